//! Functions' bodies. Every expression that naga emits becomes a variable, assigned where it is emitted. So loads happen when
//! WGSL says, and nothing is computed twice.

use std::collections::HashSet;
use std::fmt::Write;

use naga::valid::FunctionInfo;
use naga::{
    AddressSpace, Barrier, Block, Expression, Function, Handle, Literal, Statement, SwitchCase, SwitchValue,
    TypeInner,
};

use super::error::{Group, Refusal, refuse};
use super::literals::literal;
use super::writer::SourceWriter;

/// The meaning of `continue` in the loop that is being written.
struct Loop {
    /// The number of the label before the statements at the loop's end, if there are any.
    label: Option<u32>,
    used: bool,
}

/// A function being written.
pub struct Body<'w, 'a> {
    pub writer: &'w mut SourceWriter<'a>,
    pub function: &'a Function,
    pub info: &'a FunctionInfo,
    /// Expressions that have a variable.
    pub baked: HashSet<Handle<Expression>>,
    /// Variables of the C++ scopes that are open, innermost last.
    scopes: Vec<String>,
    out: String,
    depth: usize,
    loops: Vec<Loop>,
    labels: u32,
}

impl<'w, 'a> Body<'w, 'a> {
    pub fn new(
        writer: &'w mut SourceWriter<'a>,
        function: &'a Function,
        info: &'a FunctionInfo,
    ) -> Body<'w, 'a> {
        let (baked, scopes, loops) = (HashSet::new(), Vec::new(), Vec::new());
        Body { writer, function, info, baked, scopes, out: String::new(), depth: 0, loops, labels: 0 }
    }

    /// The text of the whole body.
    pub fn write(mut self) -> Result<String, Refusal> {
        self.depth = 1;
        for (handle, variable) in self.function.local_variables.iter() {
            let ty = self.writer.types.name(variable.ty)?;
            let init = match variable.init {
                Some(init) => self.value(init)?,
                None => format!("{ty}{{}}"),
            };
            self.line(&format!("{ty} v{} = {init};", handle.index()));
        }
        let locals = std::mem::take(&mut self.out);
        let function = self.function;
        self.scope(|body| body.block(&function.body))?;
        Ok(locals + &self.out)
    }

    fn line(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{:width$}{text}", "", width = 4 * self.depth);
    }

    /// Writes the statements of one pair of braces, with the variables first.
    fn scope(&mut self, write: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let before = std::mem::take(&mut self.out);
        self.scopes.push(String::new());
        let done = write(self);
        let variables = self.scopes.pop().unwrap_or_default();
        let inside = std::mem::replace(&mut self.out, before);
        self.out.push_str(&variables);
        self.out.push_str(&inside);
        done
    }

    fn braces(&mut self, head: &str, block: &Block) -> Result<(), Refusal> {
        self.line(&format!("{head}{{"));
        self.depth += 1;
        self.scope(|body| body.block(block))?;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    /// Declares the variable of an expression.
    fn bake(&mut self, handle: Handle<Expression>) -> Result<String, Refusal> {
        let ty = self.writer.types.resolved(&self.info[handle].ty)?;
        let name = format!("e{}", handle.index());
        let width = 4 * self.depth;
        if let Some(scope) = self.scopes.last_mut() {
            let _ = writeln!(scope, "{:width$}{ty} {name};", "");
        }
        self.baked.insert(handle);
        Ok(name)
    }

    fn block(&mut self, block: &Block) -> Result<(), Refusal> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Refusal> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    // Pointers are written out where they are followed; their indices have variables.
                    if matches!(
                        self.inner(handle),
                        TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
                    ) {
                        continue;
                    }
                    let text = self.text(handle)?;
                    let name = self.bake(handle)?;
                    self.line(&format!("{name} = {text};"));
                }
            }
            Statement::Block(block) => self.braces("", block)?,
            Statement::If { condition, accept, reject } => {
                let condition = self.value(*condition)?;
                self.braces(&format!("if ({condition}) "), accept)?;
                if !reject.is_empty() {
                    self.braces("else ", reject)?;
                }
            }
            Statement::Switch { selector, cases } => self.switch(*selector, cases)?,
            Statement::Loop { body, continuing, break_if } => self.repeat(body, continuing, *break_if)?,
            Statement::Break => self.line("break;"),
            Statement::Continue => {
                let target = self.loops.last_mut().and_then(|inner| {
                    inner.used = true;
                    inner.label
                });
                match target {
                    Some(label) => self.line(&format!("goto next{label};")),
                    None => self.line("continue;"),
                }
            }
            Statement::Return { value: None } => self.line("return;"),
            Statement::Return { value: Some(value) } => {
                let value = self.value(*value)?;
                self.line(&format!("return {value};"));
            }
            Statement::ControlBarrier(barrier) => {
                if barrier.intersects(Barrier::SUB_GROUP | Barrier::TEXTURE) {
                    return refuse(
                        Group::Statement,
                        statement,
                        "barriers are workgroupBarrier and storageBarrier",
                    );
                }
                self.barrier();
            }
            Statement::Store { pointer, value } => {
                let (place, value) = (self.place(*pointer)?, self.value(*value)?);
                self.line(&format!("{place} = {value};"));
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                let place = self.place(*pointer)?;
                let name = self.bake(*result)?;
                self.barrier();
                self.line(&format!("{name} = {place};"));
                self.barrier();
            }
            Statement::Call { function, arguments, result } => self.call(*function, arguments, *result)?,
            other => return refuse(Group::Statement, other, "it has no counterpart here"),
        }
        Ok(())
    }

    fn barrier(&mut self) {
        self.writer.barriers = true;
        self.line("__syncthreads();");
    }

    fn switch(&mut self, selector: Handle<Expression>, cases: &[SwitchCase]) -> Result<(), Refusal> {
        let selector = self.value(selector)?;
        self.line(&format!("switch ({selector}) {{"));
        self.depth += 1;
        for case in cases {
            let label = match case.value {
                SwitchValue::I32(value) => format!("case {}: ", literal(Literal::I32(value))?),
                SwitchValue::U32(value) => format!("case {}: ", literal(Literal::U32(value))?),
                SwitchValue::Default => "default: ".into(),
            };
            self.braces(&label, &case.body)?;
            if !case.fall_through {
                self.line("break;");
            }
        }
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    /// Writes a loop. The continuing block sees the body's variables, so both are one C++ scope, and `continue` is a jump to the
    /// label between them.
    fn repeat(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), Refusal> {
        let ends = !continuing.is_empty() || break_if.is_some();
        let label = ends.then_some(self.labels);
        self.labels += u32::from(ends);
        self.line("for (;;) {");
        self.depth += 1;
        self.loops.push(Loop { label, used: false });
        self.scope(|this| {
            this.block(body)?;
            let inner = this.loops.pop();
            if let Some(Loop { label: Some(label), used: true }) = inner {
                this.line(&format!("next{label}:;"));
            }
            this.block(continuing)?;
            if let Some(condition) = break_if {
                let condition = this.value(condition)?;
                this.line(&format!("if ({condition}) break;"));
            }
            Ok(())
        })?;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn call(
        &mut self,
        handle: Handle<Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
    ) -> Result<(), Refusal> {
        let mut texts = Vec::new();
        for argument in arguments {
            texts.push(match self.inner(*argument) {
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => self.place(*argument)?,
                _ => self.value(*argument)?,
            });
        }
        let name = self.writer.called(handle)?;
        texts.extend(self.writer.passed_on(handle));
        let call = format!("{name}({});", texts.join(", "));
        match result {
            None => self.line(&call),
            Some(result) => {
                let variable = self.bake(result)?;
                self.line(&format!("{variable} = {call}"));
            }
        }
        Ok(())
    }
}

/// True if a function may get a pointer into this space, as a reference in C++.
pub fn may_be_passed(space: AddressSpace) -> bool {
    matches!(space, AddressSpace::Function | AddressSpace::Private | AddressSpace::WorkGroup)
}
