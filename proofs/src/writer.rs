//! A module's functions as SMT-LIB, each after those that it calls.

use std::collections::HashMap;
use std::fmt::Write;

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module};

use crate::body::{Body, Callees, LOOP_STATE};
use crate::refusal::Refusal;
use crate::term::{Sort, packed, width};
use crate::types::{parameter, scalars};

/// What every text begins with: WGSL's functions that SMT-LIB has under no name.
pub const PRELUDE: &str = include_str!("prelude.smt2");

/// What is written so far.
pub struct Writer<'a> {
    pub module: &'a Module,
    info: &'a ModuleInfo,
    /// Functions that are declared, not defined: theorems hold for whatever they are.
    abstracted: Vec<String>,
    names: HashMap<Handle<Function>, (String, Vec<Sort>)>,
    /// The text.
    pub out: String,
}

impl<'a> Writer<'a> {
    /// Nothing is written yet.
    pub fn new(module: &'a Module, info: &'a ModuleInfo, abstracted: Vec<String>) -> Writer<'a> {
        Writer { module, info, abstracted, names: HashMap::new(), out: String::new() }
    }

    fn named(&self, name: &str) -> Result<Handle<Function>, Refusal> {
        let mut found = self.module.functions.iter().filter(|(_, f)| f.name.as_deref() == Some(name));
        Ok(found.next().ok_or_else(|| Refusal(format!("the shader has no function {name}")))?.0)
    }

    /// Writes a function with all that it calls, unless it is there.
    ///
    /// # Errors
    /// If there is no such function, or it does something that is not accepted.
    pub fn function(&mut self, name: &str) -> Result<(), Refusal> {
        let handle = self.named(name)?;
        self.called(handle).map(|_| ())
    }

    fn emit(&mut self, text: String) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{text}");
    }

    fn parameters(&self, function: &Function) -> Result<Vec<(String, Sort)>, Refusal> {
        let one = |(i, argument): (usize, &naga::FunctionArgument)| {
            let sorts = scalars(self.module, &self.module.types[argument.ty].inner)?;
            Ok((parameter(function, i), packed(&sorts)))
        };
        function.arguments.iter().enumerate().map(one).collect()
    }

    fn head(&self, name: &str, function: &Function, state: Option<Sort>) -> Result<String, Refusal> {
        let mut parameters = self.parameters(function)?;
        parameters.extend(state.map(|sort| (LOOP_STATE.to_string(), sort)));
        let texts: Vec<String> = parameters.iter().map(|(name, sort)| format!("({name} {sort})")).collect();
        Ok(format!("(define-fun {name} ({})", texts.join(" ")))
    }

    /// Writes a function with its first loop cut open: `F.reached`, `F.enter`, `F.exits`, `F.step`, `F.after`, and for each
    /// variable V of the loop `F.V`, which takes it out of a state.
    ///
    /// # Errors
    /// If there is no such function, it has no loop, or does something that is not accepted.
    pub fn cut(&mut self, name: &str) -> Result<(), Refusal> {
        let handle = self.named(name)?;
        let (module, info) = (self.module, &self.info[handle]);
        let function = &module.functions[handle];
        let mut body = Body::new(self, module, function, info, true)?;
        let after = body.run()?;
        let cut = body.cut.take().ok_or_else(|| Refusal(format!("{name} has no loop")))?;
        let after = body.terms.pack(&after);
        let sort = body.terms.sort(cut.enter);
        let mut definitions = Vec::new();
        for (part, term, takes_state) in [
            ("reached", cut.reached, false),
            ("enter", cut.enter, false),
            ("exits", cut.exits, true),
            ("step", cut.step, true),
            ("after", after, true),
        ] {
            let text = body.terms.print(term);
            definitions.push((part, text, body.terms.sort(term), takes_state.then_some(sort)));
        }
        for (part, text, result, state) in definitions {
            let head = self.head(&format!("{name}.{part}"), function, state)?;
            self.emit(format!("{head} {result}\n{text})\n"));
        }
        let mut from = 0;
        for (variable, sorts) in &cut.variables {
            let bits = width(packed(sorts));
            let extract = match cut.variables.len() {
                1 => LOOP_STATE.into(),
                _ => format!("((_ extract {} {from}) {LOOP_STATE})", from + bits - 1),
            };
            self.emit(format!(
                "(define-fun {name}.{variable} (({LOOP_STATE} {sort})) (_ BitVec {bits}) {extract})"
            ));
            from += bits;
        }
        Ok(())
    }
}

impl Callees for Writer<'_> {
    fn called(&mut self, handle: Handle<Function>) -> Result<(String, Vec<Sort>), Refusal> {
        if let Some(known) = self.names.get(&handle) {
            return Ok(known.clone());
        }
        let function = &self.module.functions[handle];
        let name = function.name.clone().unwrap_or_else(|| format!("function{}", handle.index()));
        let inside = |Refusal(text)| Refusal(format!("{name}: {text}"));
        let result = function.result.as_ref().ok_or_else(|| Refusal(format!("{name} returns nothing")))?;
        let sorts = scalars(self.module, &self.module.types[result.ty].inner).map_err(inside)?;
        let result = packed(&sorts);
        if self.abstracted.contains(&name) {
            let sorts = self.parameters(function)?.iter().map(|(_, s)| s.to_string()).collect::<Vec<_>>();
            self.emit(format!("(declare-fun {name} ({}) {result})\n", sorts.join(" ")));
        } else {
            let (module, info) = (self.module, &self.info[handle]);
            let mut body = Body::new(self, module, &module.functions[handle], info, false).map_err(inside)?;
            let value = body.run().map_err(inside)?;
            let value = body.terms.pack(&value);
            let text = body.terms.print(value);
            let head = self.head(&name, function, None)?;
            self.emit(format!("{head} {result}\n{text})\n"));
        }
        self.names.insert(handle, (name.clone(), sorts.clone()));
        Ok((name, sorts))
    }
}
