//! Statements: a function's body run on terms. Branches are joined by `ite`. Counted loops are unrolled until their condition is
//! the constant `false`, so no bound on rounds is assumed; or one loop is cut open for a proof by invariant.

use std::collections::HashMap;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{Block, Expression, Function, Handle, LocalVariable, Module, Statement, SwitchCase, SwitchValue};

use crate::memory::Memory;
use crate::refusal::Refusal;
use crate::term::{Sort, Term, Terms, packed};
use crate::types::{parameter, part, scalars};

/// The state of a run of the body. The variables' values count only while the run is live.
#[derive(Clone)]
pub struct State {
    /// True if a run reaches this state.
    pub live: Term,
    /// The values of the function's variables.
    pub locals: Vec<Vec<Term>>,
    /// The values of the module's private variables; other variables have none.
    pub privates: Vec<Vec<Term>>,
    /// The returned value, where there is one.
    pub result: Option<Vec<Term>>,
}

/// The states in which the innermost loop or switch is left or continued.
#[derive(Default)]
pub struct Exits {
    breaks: Vec<State>,
    continues: Vec<State>,
}

/// A loop cut open: its initial values, one round of it, and the condition of its end.
pub struct Cut {
    /// Names and sorts of the variables that the loop writes.
    pub variables: Vec<(String, Vec<Sort>)>,
    /// True if the loop is reached at all.
    pub reached: Term,
    /// The variables before the first round, packed.
    pub enter: Term,
    /// True if the loop is left in this round.
    pub exits: Term,
    /// The variables after the round, packed.
    pub step: Term,
}

/// The name of the parameter that stands for the variables of a loop cut open.
pub const LOOP_STATE: &str = "loop.state";

/// The most rounds that are unrolled; a longer loop counts as endless.
const ROUNDS: u32 = 4096;

/// Writes the functions that are called.
pub trait Callees {
    /// The name of a function and the sorts of its result; it is written if it is not yet.
    ///
    /// # Errors
    /// If the function does something that is not accepted.
    fn called(&mut self, handle: Handle<Function>) -> Result<(String, Vec<Sort>), Refusal>;
}

/// A function being run on terms.
pub struct Body<'w, 'a> {
    callees: &'w mut dyn Callees,
    pub module: &'a Module,
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    /// The information on the whole module, in a kernel.
    pub infos: Option<&'a ModuleInfo>,
    pub terms: Terms,
    pub arguments: Vec<Vec<Term>>,
    /// Values that the text has computed.
    pub values: HashMap<Handle<Expression>, Vec<Term>>,
    pub state: State,
    pub exits: Vec<Exits>,
    /// True if the next loop is to be cut open; then the loop that was.
    pub cutting: bool,
    pub cut: Option<Cut>,
    /// True while a loop is cut open.
    inside: bool,
    /// The memory, in a kernel.
    pub memory: Option<Memory>,
}

impl<'w, 'a> Body<'w, 'a> {
    /// A function with its parameters as inputs; `cutting` asks for its first loop to be cut open.
    ///
    /// # Errors
    /// If a parameter has a type that is not accepted.
    pub fn new(
        callees: &'w mut dyn Callees,
        module: &'a Module,
        function: &'a Function,
        info: &'a FunctionInfo,
        cutting: bool,
    ) -> Result<Body<'w, 'a>, Refusal> {
        let mut terms = Terms::default();
        let mut arguments = Vec::new();
        for (i, argument) in function.arguments.iter().enumerate() {
            let sorts = scalars(module, &module.types[argument.ty].inner)?;
            let packed = terms.input(&parameter(function, i), packed(&sorts));
            arguments.push(terms.unpack(packed, &sorts));
        }
        let state = State { live: terms.bool(true), locals: Vec::new(), privates: Vec::new(), result: None };
        let (values, exits) = (HashMap::new(), Vec::new());
        Ok(Body {
            callees,
            module,
            function,
            info,
            infos: None,
            terms,
            arguments,
            values,
            state,
            exits,
            cutting,
            cut: None,
            inside: false,
            memory: None,
        })
    }

    /// Runs the body as that of a kernel, which may use the module's variables.
    ///
    /// # Errors
    /// If the body does something that is not accepted.
    pub fn run_kernel(&mut self, infos: &'a ModuleInfo, memory: Memory) -> Result<(), Refusal> {
        (self.infos, self.memory) = (Some(infos), Some(memory));
        for (global, _) in self.module.global_variables.iter() {
            let value = self.initial(global)?;
            self.state.privates.push(value);
        }
        if self.cutting && self.state.privates.iter().any(|value| !value.is_empty()) {
            return Err(Refusal("a kernel with private variables is not cut open".into()));
        }
        self.enter()
    }

    /// The parameter that stands for the variables of the loop that was cut open.
    pub fn loop_state(&self) -> Option<(String, Sort)> {
        self.cut.as_ref().map(|cut| (LOOP_STATE.to_string(), self.terms.sort(cut.enter)))
    }

    /// The memory of the kernel that is run.
    ///
    /// # Errors
    /// If no kernel is run.
    pub fn memory(&mut self) -> Result<&mut Memory, Refusal> {
        let none = || Refusal("a variable of the module outside of a kernel".into());
        self.memory.as_mut().ok_or_else(none)
    }

    /// Runs the body: the values that the function returns.
    ///
    /// # Errors
    /// If the function does not always return, or does something that is not accepted.
    pub fn run(&mut self) -> Result<Vec<Term>, Refusal> {
        self.enter()?;
        if self.terms.as_bool(self.state.live) != Some(false) {
            return Err(Refusal("the function may end without a value".into()));
        }
        self.state.result.clone().ok_or_else(|| Refusal("the function returns nothing".into()))
    }

    /// Runs the body from its variables' initial values.
    ///
    /// # Errors
    /// If the body does something that is not accepted.
    pub fn enter(&mut self) -> Result<(), Refusal> {
        let (function, module) = (self.function, self.module);
        for (_, variable) in function.local_variables.iter() {
            let init = match variable.init {
                Some(init) => self.value(init)?,
                None => {
                    let sorts = scalars(module, &module.types[variable.ty].inner)?;
                    sorts.iter().map(|s| self.zero_of(*s)).collect()
                }
            };
            self.state.locals.push(init);
        }
        self.block(&function.body)
    }

    fn zero_of(&mut self, sort: Sort) -> Term {
        match sort {
            Sort::Bool => self.terms.bool(false),
            Sort::Bits(_) => self.terms.word(0),
        }
    }

    fn dead(&self) -> bool {
        self.terms.as_bool(self.state.live) == Some(false)
    }

    fn block(&mut self, block: &'a Block) -> Result<(), Refusal> {
        for statement in block.iter() {
            if self.dead() {
                break;
            }
            self.statement(statement)?;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<(), Refusal> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    if matches!(
                        self.inner(handle),
                        naga::TypeInner::Pointer { .. } | naga::TypeInner::ValuePointer { .. }
                    ) {
                        continue;
                    }
                    // In a later round of a loop the expression has another value.
                    self.values.remove(&handle);
                    let value = self.value(handle)?;
                    self.values.insert(handle, value);
                }
                Ok(())
            }
            Statement::Block(block) => self.block(block),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(*condition)?;
                self.branch(condition, accept, reject)
            }
            Statement::Switch { selector, cases } => self.switch(*selector, cases),
            Statement::Loop { body, continuing, break_if } => {
                if std::mem::take(&mut self.cutting) {
                    return self.cut_open(body, continuing, *break_if);
                }
                self.repeat(body, continuing, *break_if)
            }
            Statement::Break => self.leave(|exits| &mut exits.breaks),
            Statement::Continue => self.leave(|exits| &mut exits.continues),
            Statement::Return { value } => {
                let value = value.map(|value| self.value(value)).transpose()?.unwrap_or_default();
                let live = self.state.live;
                self.state.result = Some(match self.state.result.take() {
                    None => value,
                    Some(before) => self.choose(live, &value, &before),
                });
                self.state.live = self.terms.bool(false);
                Ok(())
            }
            Statement::Store { pointer, value } => {
                let value = self.value(*value)?;
                if self.global(*pointer).is_some() {
                    return self.store_global(*pointer, value);
                }
                let (variable, from, count) = self.place(*pointer)?;
                self.state.locals[variable.index()][from..from + count].copy_from_slice(&value);
                Ok(())
            }
            Statement::Call { function, arguments, result } => {
                let value = self.call(*function, arguments)?;
                if let Some(result) = result {
                    self.values.insert(*result, value);
                }
                Ok(())
            }
            Statement::ControlBarrier(_) => {
                self.memory()?.barriers += 1;
                Ok(())
            }
            other => Err(Refusal(format!("a statement is {other:?}"))),
        }
    }

    fn call(
        &mut self,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
    ) -> Result<Vec<Term>, Refusal> {
        let arguments: Result<Vec<_>, Refusal> = arguments.iter().map(|a| self.value(*a)).collect();
        if self.uses_globals(function) {
            return self.inline(function, arguments?);
        }
        let values: Vec<Term> = arguments?.iter().map(|value| self.terms.pack(value)).collect();
        let (name, sorts) = self.callees.called(function)?;
        let packed = self.terms.apply(&name, &values, packed(&sorts));
        Ok(self.terms.unpack(packed, &sorts))
    }

    fn leave(&mut self, kind: fn(&mut Exits) -> &mut Vec<State>) -> Result<(), Refusal> {
        let state = self.state.clone();
        self.state.live = self.terms.bool(false);
        match self.exits.last_mut() {
            Some(exits) => kind(exits).push(state),
            None => return Err(Refusal("a break outside of loops".into())),
        }
        Ok(())
    }

    fn choose(&mut self, condition: Term, yes: &[Term], no: &[Term]) -> Vec<Term> {
        yes.iter().zip(no).map(|(yes, no)| self.terms.ite(condition, *yes, *no)).collect()
    }

    /// Joins two states that no run is in at once; `first` is true if the run is in the first.
    fn join(&mut self, first: Term, a: State, b: State) -> State {
        let live = self.terms.or(a.live, b.live);
        let is_dead = |state: &State| self.terms.as_bool(state.live) == Some(false);
        let dead = (is_dead(&a), is_dead(&b));
        let mut either = |a: &[Vec<Term>], b: &[Vec<Term>]| -> Vec<Vec<Term>> {
            a.iter().zip(b).map(|(a, b)| self.choose(first, a, b)).collect()
        };
        let (locals, privates) = match dead {
            (true, _) => (b.locals, b.privates),
            (_, true) => (a.locals, a.privates),
            _ => (either(&a.locals, &b.locals), either(&a.privates, &b.privates)),
        };
        let result = match (a.result, b.result) {
            (Some(a), Some(b)) => Some(self.choose(first, &a, &b)),
            (a, b) => a.or(b),
        };
        State { live, locals, privates, result }
    }

    fn branch(&mut self, condition: Term, accept: &'a Block, reject: &'a Block) -> Result<(), Refusal> {
        match self.terms.as_bool(condition) {
            Some(true) => return self.block(accept),
            Some(false) => return self.block(reject),
            None => {}
        }
        let before = self.state.clone();
        let live = before.live;
        let accepted = self.terms.and(live, condition);
        self.state.live = accepted;
        self.block(accept)?;
        let yes = std::mem::replace(&mut self.state, before);
        let otherwise = self.terms.not(condition);
        let rejected = self.terms.and(live, otherwise);
        self.state.live = rejected;
        self.block(reject)?;
        let no = self.state.clone();
        let both_end = yes.live == accepted && no.live == rejected;
        self.state = self.join(condition, yes, no);
        if both_end {
            self.state.live = live;
        }
        Ok(())
    }

    fn switch(&mut self, selector: Handle<Expression>, cases: &'a [SwitchCase]) -> Result<(), Refusal> {
        let selector = self.scalar(selector)?;
        let mut chosen = Vec::new();
        let mut any = self.terms.bool(false);
        for case in cases {
            let value = match case.value {
                SwitchValue::I32(value) => value as u32,
                SwitchValue::U32(value) => value,
                SwitchValue::Default => {
                    chosen.push(None);
                    continue;
                }
            };
            let value = self.terms.word(value);
            let equal = self.terms.apply("=", &[selector, value], Sort::Bool);
            any = self.terms.or(any, equal);
            chosen.push(Some(equal));
        }
        let otherwise = self.terms.not(any);
        let entry = self.state.clone();
        self.exits.push(Exits::default());
        self.state.live = self.terms.bool(false);
        for (case, condition) in cases.iter().zip(chosen) {
            // A case is entered by its value, or by fall-through from the case before it.
            let mut entered = entry.clone();
            entered.live = self.terms.and(entry.live, condition.unwrap_or(otherwise));
            let before = self.state.clone();
            self.state = self.join(entered.live, entered, before);
            self.block(&case.body)?;
            if !case.fall_through && !self.dead() {
                self.leave(|exits| &mut exits.breaks)?;
            }
        }
        let exits = self.exits.pop().unwrap_or_default();
        if !exits.continues.is_empty() {
            return Err(Refusal("a continue inside a switch".into()));
        }
        self.join_all(exits.breaks);
        Ok(())
    }

    /// Continues from whichever of these states a run is in, or from the present one.
    fn join_all(&mut self, states: Vec<State>) {
        for state in states {
            let present = self.state.clone();
            self.state = self.join(state.live, state, present);
        }
    }

    /// One round of a loop from the present state: the states in which it is left.
    fn round(
        &mut self,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<Vec<State>, Refusal> {
        self.exits.push(Exits::default());
        self.block(body)?;
        let Exits { mut breaks, continues } = self.exits.pop().unwrap_or_default();
        self.join_all(continues);
        self.block(continuing)?;
        if let (Some(condition), false) = (break_if, self.dead()) {
            let condition = self.scalar(condition)?;
            let mut left = self.state.clone();
            left.live = self.terms.and(left.live, condition);
            breaks.push(left);
            let stays = self.terms.not(condition);
            self.state.live = self.terms.and(self.state.live, stays);
        }
        Ok(breaks)
    }

    fn repeat(
        &mut self,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), Refusal> {
        if self.inside && self.memory.is_some() {
            return self.forget(body, continuing);
        }
        let mut breaks = Vec::new();
        for _ in 0..ROUNDS {
            breaks.extend(self.round(body, continuing, break_if)?);
            if self.dead() {
                self.join_all(breaks);
                return Ok(());
            }
        }
        Err(Refusal("a loop whose end does not follow from constants: cut it open".into()))
    }

    /// Continues behind a loop within the kernel's loop that is cut open: its variables and workgroup memory may hold anything.
    fn forget(&mut self, body: &'a Block, continuing: &'a Block) -> Result<(), Refusal> {
        let mut written = Vec::new();
        self.written(body, &mut written)?;
        self.written(continuing, &mut written)?;
        // The loop may pass barriers, and write.
        self.memory()?.barriers += 1;
        for variable in written {
            let name = self.function.local_variables[variable].name.clone().unwrap_or_default();
            for i in 0..self.state.locals[variable.index()].len() {
                let sort = self.terms.sort(self.state.locals[variable.index()][i]);
                let name = if i == 0 { format!("any.{name}") } else { format!("any.{name}.{i}") };
                if !self.memory()?.declare(&name, format!("() {sort}")) {
                    return Err(Refusal(format!(
                        "two loops write {name}: one name would equate what they leave"
                    )));
                }
                self.state.locals[variable.index()][i] = self.terms.input(&name, sort);
            }
        }
        Ok(())
    }

    /// Runs one round from any values of the variables that the loop writes, and the statements behind the loop from its final
    /// values.
    fn cut_open(
        &mut self,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), Refusal> {
        let mut written = Vec::new();
        self.written(body, &mut written)?;
        self.written(continuing, &mut written)?;
        // Rounds before this one, and those after it, may pass barriers and write.
        if let Some(memory) = &mut self.memory {
            memory.barriers += 1;
        }
        let reached = self.state.live;
        let variables: Vec<(String, Vec<Sort>)> = written
            .iter()
            .map(|variable| {
                let sorts = self.state.locals[variable.index()].iter().map(|t| self.terms.sort(*t)).collect();
                (self.function.local_variables[*variable].name.clone().unwrap_or_default(), sorts)
            })
            .collect();
        let enter = self.packed(&written);
        let sorts: Vec<Sort> = variables.iter().flat_map(|(_, sorts)| sorts.clone()).collect();
        let any = self.terms.input(LOOP_STATE, packed(&sorts));
        let mut any = self.terms.unpack(any, &sorts).into_iter();
        for variable in &written {
            for place in self.state.locals[variable.index()].iter_mut() {
                *place = any.next().expect("as many parts as sorts");
            }
        }
        let before = self.state.result.take();
        self.state.live = self.terms.bool(true);
        self.inside = true;
        let breaks = self.round(body, continuing, break_if)?;
        self.inside = false;
        if let Some(memory) = &mut self.memory {
            memory.barriers += 1;
        }
        let step = self.packed(&written);
        let never = self.terms.bool(false);
        let exits = breaks.iter().fold(never, |any, state| self.terms.or(any, state.live));
        self.state.live = never;
        self.join_all(breaks);
        if self.state.result.is_some() {
            return Err(Refusal("a return inside a loop that is cut open".into()));
        }
        // The statements behind the loop count if it was reached and is left.
        self.state.live = reached;
        self.state.result = before;
        self.cut = Some(Cut { variables, reached, enter, exits, step });
        Ok(())
    }

    fn packed(&mut self, variables: &[Handle<LocalVariable>]) -> Term {
        let parts: Vec<Term> =
            variables.iter().flat_map(|v| self.state.locals[v.index()].iter().copied()).collect();
        self.terms.pack(&parts)
    }

    /// The variables that a block writes.
    fn written(&self, block: &Block, found: &mut Vec<Handle<LocalVariable>>) -> Result<(), Refusal> {
        for statement in block.iter() {
            match statement {
                Statement::Store { pointer, .. } if self.global(*pointer).is_some_and(|g| self.shared(g)) => {
                }
                Statement::Return { .. } => return Err(Refusal("a return inside a loop".into())),
                Statement::Call { function, .. } if self.uses_globals(*function) => {
                    return Err(Refusal("a call that uses memory inside a loop".into()));
                }
                Statement::Store { pointer, .. } => {
                    let variable = self.root(*pointer)?;
                    if !found.contains(&variable) {
                        found.push(variable);
                    }
                }
                Statement::Block(inner) => self.written(inner, found)?,
                Statement::If { accept, reject, .. } => {
                    self.written(accept, found)?;
                    self.written(reject, found)?;
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().try_for_each(|case| self.written(&case.body, found))?;
                }
                Statement::Loop { body, continuing, .. } => {
                    self.written(body, found)?;
                    self.written(continuing, found)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn shared(&self, global: Handle<naga::GlobalVariable>) -> bool {
        self.module.global_variables[global].space == naga::AddressSpace::WorkGroup
    }

    fn root(&self, pointer: Handle<Expression>) -> Result<Handle<LocalVariable>, Refusal> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => Ok(variable),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            ref other => Err(Refusal(format!("a pointer to {other:?}"))),
        }
    }

    /// A variable, and the range of its scalars that a pointer refers to.
    fn place(
        &mut self,
        pointer: Handle<Expression>,
    ) -> Result<(Handle<LocalVariable>, usize, usize), Refusal> {
        let (function, module) = (self.function, self.module);
        let (base, index) = match function.expressions[pointer] {
            Expression::LocalVariable(variable) => {
                return Ok((variable, 0, self.state.locals[variable.index()].len()));
            }
            Expression::AccessIndex { base, index } => (base, index as usize),
            Expression::Access { base, index } => (base, self.constant_index(index)?),
            ref other => return Err(Refusal(format!("a pointer to {other:?}"))),
        };
        let (variable, from, _) = self.place(base)?;
        let naga::TypeInner::Pointer { base: ty, .. } = *self.inner(base) else {
            return Err(Refusal("a pointer into a scalar".into()));
        };
        let (offset, count) = part(module, &module.types[ty].inner, index)?;
        Ok((variable, from + offset, count))
    }

    /// The value that a pointer refers to.
    pub fn load(&mut self, pointer: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        if self.global(pointer).is_some() {
            return self.load_global(pointer);
        }
        let (variable, from, count) = self.place(pointer)?;
        Ok(self.state.locals[variable.index()][from..from + count].to_vec())
    }
}
