//! A module's functions as SMT-LIB, each after those that it calls.

use std::collections::HashMap;
use std::fmt::Write;

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module};

use crate::body::{Body, Callees, LOOP_STATE};
use crate::memory::{Access, Memory};
use crate::refusal::Refusal;
use crate::term::{Sort, Term, WORD, packed, width};
use crate::types::{parameter, scalars};

/// The beginning of every text: WGSL's functions that SMT-LIB does not have.
pub const PRELUDE: &str = include_str!("prelude.smt2");

/// The text written so far.
pub struct Writer<'a> {
    pub module: &'a Module,
    info: &'a ModuleInfo,
    /// Functions that are declared, not defined: theorems hold for any definition of them.
    abstracted: Vec<String>,
    names: HashMap<Handle<Function>, (String, Vec<Sort>)>,
    /// The text.
    pub out: String,
}

impl<'a> Writer<'a> {
    /// A writer without text.
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

    fn define(&mut self, definition: Definition) {
        let Definition { name, parameters, sort, text } = definition;
        let texts: Vec<String> = parameters.iter().map(|(name, sort)| format!("({name} {sort})")).collect();
        self.emit(format!("(define-fun {name} ({}) {sort}\n{text})\n", texts.join(" ")));
    }

    /// Writes a function with its first loop cut open: `F.reached`, `F.enter`, `F.exits`, `F.step`, `F.after`, and for each
    /// variable V of the loop `F.V`, which extracts V from a state.
    ///
    /// # Errors
    /// If there is no such function, it has no loop, or does something that is not accepted.
    pub fn cut(&mut self, name: &str) -> Result<(), Refusal> {
        let handle = self.named(name)?;
        let (module, info) = (self.module, &self.info[handle]);
        let function = &module.functions[handle];
        let parameters = self.parameters(function)?;
        let mut body = Body::new(self, module, function, info, true)?;
        let after = body.run()?;
        let after = body.terms.pack(&after);
        let definitions = cut_open(&mut body, name, &parameters, Some(after))?;
        definitions.into_iter().for_each(|definition| self.define(definition));
        Ok(())
    }

    /// Writes the entry point's effects on memory. For each array A that it uses, and any place: `A.written` and `A.read` say if
    /// an invocation writes and reads that place, and `A.after` is the value there after its writes. The values found are A; the
    /// uniform's words are p.0.x and so on, and a workgroup's array is A.1 behind one barrier. The module's constants have their
    /// names. `cut` asks for the first loop to be cut open as well; nothing is known of the effects of a loop within it.
    ///
    /// # Errors
    /// If the entry point does something that is not accepted.
    pub fn kernel(&mut self, fixed: HashMap<String, u32>, cut: bool) -> Result<(), Refusal> {
        let (module, infos) = (self.module, self.info);
        let [entry] = module.entry_points.as_slice() else {
            return Err(Refusal("the shader has not one entry point".into()));
        };
        let function = &entry.function;
        let mut parameters = self.parameters(function)?;
        let mut body = Body::new(self, module, function, infos.get_entry_point(0), cut)?;
        body.run_kernel(infos, Memory::new(fixed))?;
        let mut definitions = Vec::new();
        if cut {
            definitions = cut_open(&mut body, &entry.name, &parameters, None)?;
            parameters.extend(body.loop_state());
        }
        let accesses = std::mem::take(&mut body.memory()?.accesses);
        for (global, variable) in module.global_variables.iter() {
            if let naga::AddressSpace::Storage { .. } = variable.space {
                // A theorem may mention an array that is not used.
                let nowhere = vec![body.terms.word(0); body.layout(global)?.0];
                body.found(global, &nowhere, 0)?;
            }
        }
        for (global, variable) in module.global_variables.iter() {
            let name = variable.name.clone().unwrap_or_default();
            let of: Vec<&Access> = accesses.iter().filter(|access| access.global == global).collect();
            let Some(first) = of.first() else { continue };
            definitions.extend(accessed(&mut body, &name, &parameters, &of, first.place.len())?);
        }
        for (_, constant) in module.constants.iter() {
            let value = body.global_expression(constant.init)?;
            if let (Some(name), [value]) = (&constant.name, value.as_slice()) {
                definitions.push(Definition::of(&body, name.clone(), &[], *value));
            }
        }
        let declared = std::mem::take(&mut body.memory()?.declared);
        declared.into_iter().for_each(|(_, text)| self.emit(text));
        definitions.into_iter().for_each(|definition| self.define(definition));
        Ok(())
    }
}

/// A function of the text.
struct Definition {
    name: String,
    parameters: Vec<(String, Sort)>,
    sort: Sort,
    text: String,
}

impl Definition {
    fn of(body: &Body, name: String, parameters: &[(String, Sort)], term: Term) -> Definition {
        let (text, sort) = (body.terms.print(term), body.terms.sort(term));
        Definition { name, parameters: parameters.to_vec(), sort, text }
    }
}

/// The kernel's effects on an array of so many levels, from its accesses: for any place, if the kernel reads and writes it, and
/// the value there afterwards.
fn accessed(
    body: &mut Body,
    name: &str,
    parameters: &[(String, Sort)],
    accesses: &[&Access],
    levels: usize,
) -> Result<[Definition; 3], Refusal> {
    let mut parameters = parameters.to_vec();
    parameters.extend((0..levels).map(|i| (format!("place.{i}"), WORD)));
    let places = &parameters[parameters.len() - levels..];
    let inputs: Vec<Term> = places.iter().map(|(name, _)| body.terms.input(name, WORD)).collect();
    let mut after = body.found(accesses[0].global, &inputs, 0)?;
    let [mut read, mut written] = [body.terms.bool(false); 2];
    for access in accesses {
        let mut here = access.live;
        for (at, input) in access.place.iter().zip(&inputs) {
            let same = body.terms.apply("=", &[*at, *input], Sort::Bool);
            here = body.terms.and(here, same);
        }
        let kind = if access.value.is_some() { &mut written } else { &mut read };
        *kind = body.terms.or(*kind, here);
        after = access.value.map_or(after, |value| body.terms.ite(here, value, after));
    }
    let parts = [("read", read), ("written", written), ("after", after)];
    Ok(parts.map(|(part, term)| Definition::of(body, format!("{name}.{part}"), &parameters, term)))
}

/// The parts of a body whose first loop is cut open.
fn cut_open(
    body: &mut Body,
    name: &str,
    parameters: &[(String, Sort)],
    after: Option<Term>,
) -> Result<Vec<Definition>, Refusal> {
    let state = body.loop_state().ok_or_else(|| Refusal(format!("{name} has no loop")))?;
    let mut with_state = parameters.to_vec();
    with_state.push(state.clone());
    let mut definitions = Vec::new();
    let Some(cut) = &body.cut else { return Ok(definitions) };
    for (part, term, parameters) in [
        ("reached", Some(cut.reached), parameters),
        ("enter", Some(cut.enter), parameters),
        ("exits", Some(cut.exits), &with_state),
        ("step", Some(cut.step), &with_state),
        ("after", after, &with_state),
    ] {
        let define = |term| Definition::of(body, format!("{name}.{part}"), parameters, term);
        definitions.extend(term.map(define));
    }
    let mut from = 0;
    for (variable, sorts) in &cut.variables {
        let bits = width(packed(sorts));
        let text = match cut.variables.len() {
            1 => LOOP_STATE.into(),
            _ => format!("((_ extract {} {from}) {LOOP_STATE})", from + bits - 1),
        };
        let (name, parameters) = (format!("{name}.{variable}"), vec![state.clone()]);
        definitions.push(Definition { name, parameters, sort: Sort::Bits(bits), text });
        from += bits;
    }
    Ok(definitions)
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
            let parameters = self.parameters(function);
            let mut body = Body::new(self, module, &module.functions[handle], info, false).map_err(inside)?;
            let value = body.run().map_err(inside)?;
            let value = body.terms.pack(&value);
            let parameters = parameters?;
            let definition = Definition::of(&body, name.clone(), &parameters, value);
            self.define(definition);
        }
        self.names.insert(handle, (name.clone(), sorts.clone()));
        Ok((name, sorts))
    }
}

#[cfg(test)]
mod tests {
    use super::Writer;
    use crate::parse::validated;
    use crate::refusal::Refusal;

    /// A kernel of one invocation, cut open: its loop's body is this text, and `i` counts its rounds.
    fn cut(round: &str) -> Result<String, Refusal> {
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
             var<workgroup> shared_words: array<u32, 8>;
             @compute @workgroup_size(1) fn main() {{
                 var seen = 0u;
                 var other = 0u;
                 for (var i = 0u; i < 8u; i++) {{ {round} }}
                 out[0] = seen - other;
             }}"
        );
        let (module, info) = validated("a test", &text)?;
        let mut writer = Writer::new(&module, &info, Vec::new());
        writer.kernel(Default::default(), true)?;
        Ok(writer.out)
    }

    /// The names under which the loop reads the array. Before the kernel its name is the first, `shared_words.0`.
    fn names(text: &str) -> Vec<&str> {
        let declared = text.lines().filter_map(|line| line.strip_prefix("(declare-fun "));
        declared
            .filter_map(|line| line.split(' ').next())
            .filter(|name| name.starts_with("shared_") && !name.ends_with(".0"))
            .collect()
    }

    #[test]
    fn loads_with_nothing_between_them_find_the_same() {
        let text = cut("seen = shared_words[1]; other = shared_words[1];").unwrap();
        assert_eq!(names(&text).len(), 1, "{text}");
    }

    #[test]
    fn a_forgotten_loop_may_change_workgroup_memory() {
        let text = cut("seen = shared_words[1];
             for (var j = 0u; j < 2u; j++) { workgroupBarrier(); shared_words[1] = i; workgroupBarrier(); }
             other = shared_words[1];");
        let text = text.unwrap();
        assert_eq!(names(&text).len(), 2, "{text}");
    }

    #[test]
    fn what_two_loops_leave_in_a_variable_is_not_equated() {
        let inner = "for (var j = 0u; j < 2u; j++) { seen += j; }";
        assert!(cut(inner).is_ok());
        assert!(cut(&format!("{inner} other = seen; {inner}")).unwrap_err().0.contains("two loops write"));
    }
}
