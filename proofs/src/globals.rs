//! Variables of a module in terms: words of a uniform, private variables with a run's values, and elements of storage and
//! workgroup arrays, which are functions of their index. A function that uses any of them is run where it is called.

use std::mem::{replace, take};

use naga::{AddressSpace, Expression, Function, GlobalVariable, Handle, TypeInner};

use crate::body::Body;
use crate::memory::Access;
use crate::refusal::Refusal;
use crate::term::{Sort, Term, packed};
use crate::types::{part, scalars};

fn refuse<T>(text: &str) -> Result<T, Refusal> {
    Err(Refusal(text.into()))
}

/// An element of a variable, or some scalars of one.
struct Element {
    global: Handle<GlobalVariable>,
    place: Vec<Term>,
    from: usize,
    count: usize,
}

impl Body<'_, '_> {
    /// The variable of the module that a pointer points into.
    pub fn global(&self, pointer: Handle<Expression>) -> Option<Handle<GlobalVariable>> {
        match self.function.expressions[pointer] {
            Expression::GlobalVariable(global) => Some(global),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.global(base),
            _ => None,
        }
    }

    /// The number of array levels of a variable, and the sorts of an element.
    pub fn layout(&self, global: Handle<GlobalVariable>) -> Result<(usize, Vec<Sort>), Refusal> {
        let mut inner = &self.module.types[self.module.global_variables[global].ty].inner;
        let mut levels = 0;
        while let TypeInner::Array { base, .. } = inner {
            inner = &self.module.types[*base].inner;
            levels += 1;
        }
        Ok((levels, scalars(self.module, inner)?))
    }

    /// The value of a private variable when the kernel begins.
    pub fn initial(&mut self, global: Handle<GlobalVariable>) -> Result<Vec<Term>, Refusal> {
        let variable = &self.module.global_variables[global];
        match (variable.space, variable.init) {
            (AddressSpace::Private, Some(init)) => self.global_expression(init),
            (AddressSpace::Private, None) => {
                let sorts = scalars(self.module, &self.module.types[variable.ty].inner)?;
                Ok(self.zero(&sorts))
            }
            _ => Ok(Vec::new()),
        }
    }

    fn element(&mut self, pointer: Handle<Expression>) -> Result<Element, Refusal> {
        let (function, module) = (self.function, self.module);
        let count = match *self.inner(pointer) {
            // The expression is used only for variables of one size; a whole array is refused, since its place lacks an index.
            TypeInner::Pointer { base, .. } => {
                scalars(module, &module.types[base].inner).map_or(0, |sorts| sorts.len())
            }
            TypeInner::ValuePointer { size, .. } => size.map_or(1, |size| size as usize),
            _ => return refuse("a place that is no pointer"),
        };
        let base = match function.expressions[pointer] {
            Expression::GlobalVariable(global) => {
                return Ok(Element { global, place: Vec::new(), from: 0, count });
            }
            Expression::AccessIndex { base, .. } | Expression::Access { base, .. } => base,
            _ => return refuse("a pointer to no variable"),
        };
        let mut element = self.element(base)?;
        element.count = count;
        let TypeInner::Pointer { base: ty, .. } = *self.inner(base) else {
            return refuse("a pointer into a scalar");
        };
        let index = match function.expressions[pointer] {
            Expression::AccessIndex { index, .. } => self.terms.word(index),
            Expression::Access { index, .. } => self.scalar(index)?,
            _ => return refuse("a pointer to no variable"),
        };
        match &module.types[ty].inner {
            TypeInner::Array { .. } => element.place.push(index),
            inner => match self.terms.as_word(index) {
                Some(index) => element.from += part(module, inner, index as usize)?.0,
                None => return refuse("an index that is no constant"),
            },
        }
        Ok(element)
    }

    /// The offset of an element's scalars among those of a variable that has a value for each.
    fn flat(&self, element: &Element, scalars: usize) -> Result<usize, Refusal> {
        let index = match element.place.as_slice() {
            [] => 0,
            [index] => match self.terms.as_word(*index) {
                Some(index) => index as usize,
                None => return refuse("an index that is no constant"),
            },
            _ => return refuse("an array of arrays"),
        };
        Ok(index * scalars + element.from)
    }

    /// The function for the values that the kernel finds in a variable, after this many barriers. Other invocations write
    /// workgroup memory between barriers.
    pub fn found(
        &mut self,
        global: Handle<GlobalVariable>,
        place: &[Term],
        barriers: u32,
    ) -> Result<Term, Refusal> {
        let (levels, sorts) = self.layout(global)?;
        let variable = &self.module.global_variables[global];
        let mut name = variable.name.clone().unwrap_or_default();
        if variable.space == AddressSpace::WorkGroup {
            name = format!("{name}.{barriers}");
        }
        let sort = packed(&sorts);
        let parameters = vec!["(_ BitVec 32)"; levels].join(" ");
        self.memory()?.declare(&name, format!("({parameters}) {sort}"));
        Ok(if levels == 0 { self.terms.input(&name, sort) } else { self.terms.apply(&name, place, sort) })
    }

    /// The value at a pointer into a variable of the module.
    pub fn load_global(&mut self, pointer: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        let element = self.element(pointer)?;
        let Element { global, from, count, .. } = element;
        let (levels, sorts) = self.layout(global)?;
        if levels != element.place.len() {
            return refuse("a whole array is read");
        }
        let variable = &self.module.global_variables[global];
        match variable.space {
            AddressSpace::Uniform => {
                let from = self.flat(&element, sorts.len())?;
                let name = variable.name.clone().unwrap_or_default();
                (from..from + count).map(|word| self.uniform_word(&name, word)).collect()
            }
            AddressSpace::Private => {
                let from = self.flat(&element, sorts.len())?;
                match self.state.privates[global.index()].get(from..from + count) {
                    Some(values) => Ok(values.to_vec()),
                    None => refuse("an index behind the end of a private array"),
                }
            }
            AddressSpace::Storage { .. } | AddressSpace::WorkGroup => {
                let (live, shared) = (self.state.live, variable.space == AddressSpace::WorkGroup);
                let memory = self.memory()?;
                let barriers = memory.barriers;
                let stale = |access: &Access| {
                    access.global == global
                        && access.value.is_some()
                        && !(shared && access.barriers < barriers)
                };
                if memory.accesses.iter().any(stale) {
                    return refuse("a variable is read behind a write without a barrier between them");
                }
                let place = element.place.clone();
                memory.accesses.push(Access { global, live, place, value: None, barriers });
                let value = self.found(global, &element.place, barriers)?;
                Ok(self.terms.unpack(value, &sorts)[from..from + count].to_vec())
            }
            _ => refuse("a variable of an address space that is not known"),
        }
    }

    fn uniform_word(&mut self, name: &str, word: usize) -> Result<Term, Refusal> {
        let name = format!("{name}.{}.{}", word / 4, ["x", "y", "z", "w"][word % 4]);
        let memory = self.memory()?;
        match memory.fixed.get(&name) {
            Some(value) => {
                let value = *value;
                Ok(self.terms.word(value))
            }
            None => {
                memory.declare(&name, "() (_ BitVec 32)".into());
                Ok(self.terms.input(&name, Sort::Bits(32)))
            }
        }
    }

    /// Writes a value through a pointer into a variable of the module.
    pub fn store_global(&mut self, pointer: Handle<Expression>, value: Vec<Term>) -> Result<(), Refusal> {
        let element = self.element(pointer)?;
        let (levels, sorts) = self.layout(element.global)?;
        if levels != element.place.len() {
            return refuse("a whole array is written");
        }
        match self.module.global_variables[element.global].space {
            AddressSpace::Private => {
                let from = self.flat(&element, sorts.len())?;
                match self.state.privates[element.global.index()].get_mut(from..from + element.count) {
                    Some(place) => place.copy_from_slice(&value),
                    None => return refuse("an index behind the end of a private array"),
                }
            }
            AddressSpace::Storage { .. } | AddressSpace::WorkGroup if element.count == sorts.len() => {
                let (live, value) = (self.state.live, Some(self.terms.pack(&value)));
                let memory = self.memory()?;
                let barriers = memory.barriers;
                memory.accesses.push(Access {
                    global: element.global,
                    live,
                    place: element.place,
                    value,
                    barriers,
                });
            }
            _ => return refuse("a part of an element is written"),
        }
        Ok(())
    }

    /// True if a function, or one that it calls, uses variables of the module.
    pub fn uses_globals(&self, function: Handle<Function>) -> bool {
        let uses = |infos: &naga::valid::ModuleInfo| {
            self.module.global_variables.iter().any(|(global, _)| !infos[function][global].is_empty())
        };
        self.infos.is_some_and(uses)
    }

    /// Runs a function where it is called: the values that it returns.
    pub fn inline(
        &mut self,
        called: Handle<Function>,
        arguments: Vec<Vec<Term>>,
    ) -> Result<Vec<Term>, Refusal> {
        let (module, infos) = (self.module, self.infos);
        let Some(infos) = infos else {
            return refuse("a function uses variables of the module: run the kernel");
        };
        let function = replace(&mut self.function, &module.functions[called]);
        let info = replace(&mut self.info, &infos[called]);
        let arguments = replace(&mut self.arguments, arguments);
        let cutting = take(&mut self.cutting);
        let (values, exits) = (take(&mut self.values), take(&mut self.exits));
        let (locals, result) = (take(&mut self.state.locals), self.state.result.take());
        let live = self.state.live;
        self.enter()?;
        if self.function.result.is_some() && self.terms.as_bool(self.state.live) != Some(false) {
            return refuse("a function may end without a value");
        }
        let returned = self.state.result.take().unwrap_or_default();
        (self.function, self.info, self.arguments, self.cutting) = (function, info, arguments, cutting);
        (self.values, self.exits) = (values, exits);
        (self.state.locals, self.state.result, self.state.live) = (locals, result, live);
        Ok(returned)
    }
}
