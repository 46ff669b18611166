//! The text written of a module so far, and the passing of the module's variables to functions.

use std::collections::HashMap;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    AddressSpace, ArraySize, Constant, Function, GlobalVariable, Handle, Module, StorageAccess, TypeInner,
};

use super::error::{Group, Refusal, refuse};
use super::natives;
use super::types::{Types, plain_name};

/// The beginning of every kernel's text.
pub const PRELUDE: &str = concat!(include_str!("prelude.cuh"), "\n", include_str!("natives.cuh"));

/// Choices that change speed, never bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Functions of the u32 arithmetic library, known by name and signature ([`super::native_functions`]), are replaced by the
    /// processor's own instructions. Only for modules in which these names have the library's meaning.
    pub native: bool,
}

/// The text written so far.
pub struct SourceWriter<'a> {
    pub module: &'a Module,
    pub info: &'a ModuleInfo,
    pub options: Options,
    pub types: Types<'a>,
    pub constants: String,
    /// Constants that are tables in memory.
    pub tables: HashMap<Handle<Constant>, String>,
    /// The functions written so far, each after those that it calls.
    pub functions: String,
    /// The functions' names.
    pub names: HashMap<Handle<Function>, String>,
    pub barriers: bool,
}

impl<'a> SourceWriter<'a> {
    pub fn new(
        module: &'a Module,
        info: &'a ModuleInfo,
        options: Options,
        types: Types<'a>,
    ) -> SourceWriter<'a> {
        SourceWriter {
            module,
            info,
            options,
            types,
            constants: String::new(),
            tables: HashMap::new(),
            functions: String::new(),
            names: HashMap::new(),
            barriers: false,
        }
    }

    pub fn global_name(&self, handle: Handle<GlobalVariable>) -> String {
        let name = plain_name(self.module.global_variables[handle].name.as_deref());
        format!("g{}_{name}", handle.index())
    }

    /// The lvalue of a module's variable; for a runtime-sized array the pointer to its first element.
    pub fn global_place(&mut self, handle: Handle<GlobalVariable>) -> Result<String, Refusal> {
        let (name, variable) = (self.global_name(handle), &self.module.global_variables[handle]);
        match variable.space {
            AddressSpace::Private | AddressSpace::WorkGroup => Ok(name),
            AddressSpace::Uniform | AddressSpace::Storage { .. } => {
                Ok(if is_runtime_sized(self.types.inner(variable.ty)) { name } else { format!("(*{name})") })
            }
            other => refuse(Group::AddressSpace, other, "variables are buffers, workgroup memory or private"),
        }
    }

    /// The parameter through which a function gets a module's variable.
    pub fn global_parameter(
        &mut self,
        handle: Handle<GlobalVariable>,
        kernel: bool,
    ) -> Result<String, Refusal> {
        let (name, variable) = (self.global_name(handle), &self.module.global_variables[handle]);
        let constant = match variable.space {
            AddressSpace::Private | AddressSpace::WorkGroup => {
                return Ok(format!("{}& {name}", self.types.name(variable.ty)?));
            }
            AddressSpace::Uniform => "const ",
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => "",
            AddressSpace::Storage { .. } => "const ",
            other => {
                return refuse(
                    Group::AddressSpace,
                    other,
                    "variables are buffers, workgroup memory or private",
                );
            }
        };
        if !variable.memory_decorations.is_empty() {
            return refuse(
                Group::AddressSpace,
                variable.memory_decorations,
                "buffers have no decorations here",
            );
        }
        let restrict = if kernel { " __restrict__" } else { "" };
        Ok(match self.types.inner(variable.ty) {
            TypeInner::Array { base, size: ArraySize::Dynamic, stride } => {
                let element = self.types.element(*base, *stride)?;
                format!("{constant}{element}*{restrict} {name}, u32 {name}_n")
            }
            _ => format!("{constant}{}*{restrict} {name}", self.types.name(variable.ty)?),
        })
    }

    pub fn used(&self, info: &FunctionInfo) -> Vec<Handle<GlobalVariable>> {
        let variables = self.module.global_variables.iter().map(|(handle, _)| handle);
        variables.filter(|handle| !info[*handle].is_empty()).collect()
    }

    /// The processor's own counterpart of a function, if the options ask for it and there is one.
    pub fn native(&self, function: Handle<Function>) -> Option<&'static natives::Native> {
        let wanted = self.options.native;
        wanted.then(|| natives::of(self.module, &self.module.functions[function])).flatten()
    }

    /// The arguments by which a function's callers pass on the module's variables.
    pub fn passed_on(&self, function: Handle<Function>) -> Vec<String> {
        let mut texts = Vec::new();
        if self.native(function).is_some() {
            return texts;
        }
        for handle in self.used(&self.info[function]) {
            let name = self.global_name(handle);
            let sized = !is_runtime_sized(self.types.inner(self.module.global_variables[handle].ty));
            texts.push(if sized { name } else { format!("{name}, {name}_n") });
        }
        texts
    }
}

fn is_runtime_sized(inner: &TypeInner) -> bool {
    matches!(inner, TypeInner::Array { size: ArraySize::Dynamic, .. })
}
