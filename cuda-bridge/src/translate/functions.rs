//! Writes functions, each once, after those that it calls.

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module, TypeInner};

use super::error::{Group, Refusal, TranslateError, refuse};
use super::natives;
use super::statements::{Body, may_be_passed};
use super::types::{Types, plain_name};
use super::writer::{Options, PRELUDE, SourceWriter};

/// Functions of a module as CUDA C++, for kernels whose entry point is written by hand.
#[derive(Clone, Debug)]
pub struct Functions {
    /// The prelude, and the functions with all that they call.
    pub source: String,
    /// The functions' C++ names, in the order of the request. Structs are passed and returned by value; WGSL's vectors are
    /// `tb::vec<u32, 4u>` and the like.
    pub names: Vec<String>,
}

/// Translates functions by name, with all that they call and without any entry point, for kernels that are written by hand.
///
/// # Errors
/// If there is no such function, it reads a variable of the module, or it uses a construct that is not accepted.
pub fn functions(
    module: &Module,
    info: &ModuleInfo,
    wanted: &[&str],
    options: Options,
) -> Result<Functions, TranslateError> {
    let first = wanted.first().copied().unwrap_or_default();
    let types = Types::new(module, info).map_err(|refusal| refusal.at(first))?;
    let mut writer = SourceWriter::new(module, info, options, types);
    let mut names = Vec::new();
    for name in wanted {
        let mut found = module.functions.iter().filter(|(_, f)| f.name.as_deref() == Some(*name));
        let (handle, _) =
            found.next().ok_or_else(|| TranslateError::NoFunction { function: (*name).into() })?;
        let refused = |refusal: Refusal| refusal.at(name);
        // The function's callers would have to know which of the module's variables to pass.
        if let Some(variable) = writer.used(&info[handle]).first() {
            let reason = "a function that is called by hand reads no variable of the module";
            return refuse(Group::AddressSpace, module.global_variables[*variable].space, reason)
                .map_err(refused);
        }
        names.push(writer.called(handle).map_err(refused)?);
    }
    let source = [PRELUDE, &writer.types.declarations, &writer.constants, "\n", &writer.functions].concat();
    Ok(Functions { source, names })
}

impl SourceWriter<'_> {
    /// The name of a function, which is written if it is not yet: for a caller in the module, and for one written by hand.
    pub fn called(&mut self, handle: Handle<Function>) -> Result<String, Refusal> {
        if let Some(native) = self.native(handle) {
            return Ok(format!("tb::native::{}", native.name));
        }
        if let Some(name) = self.names.get(&handle) {
            return Ok(name.clone());
        }
        let function = &self.module.functions[handle];
        let given = function.name.clone().unwrap_or_else(|| format!("#{}", handle.index()));
        let name = format!("f{}_{}", handle.index(), plain_name(Some(&given)));
        let within = |refusal: Refusal| refusal.within("function", &given);
        let text = match natives::in_binary64(self.module, function).filter(|_| self.options.native) {
            None => self.function(handle, &name, "TB_FN").map_err(within)?,
            Some(fast) => {
                if !self.functions.contains(natives::BINARY64_TEXT) {
                    self.functions.insert_str(0, natives::BINARY64_TEXT);
                }
                let text = self.function(handle, &format!("{name}_text"), "TB_TEXT").map_err(within)?;
                format!(
                    "{text}TB_FN u32 {name}(u32 a0) {{\n    if (!TB_BINARY64) return {name}_text(a0);\n    \
                     const tb::binary64::Rounded y = tb::binary64::{fast}(a0);\n    \
                     return y.sure ? y.word : {name}_text(a0);\n}}\n\n"
                )
            }
        };
        self.functions.push_str(&text);
        self.names.insert(handle, name.clone());
        Ok(name)
    }

    /// A function under this name, after `head`, which holds its C++ specifiers.
    fn function(&mut self, handle: Handle<Function>, name: &str, head: &str) -> Result<String, Refusal> {
        let (function, info) = (&self.module.functions[handle], &self.info[handle]);
        let mut parameters = Vec::new();
        for (i, argument) in function.arguments.iter().enumerate() {
            parameters.push(match self.types.inner(argument.ty) {
                TypeInner::Pointer { base, space } => {
                    if !may_be_passed(*space) {
                        let reason =
                            "pointers that are passed point to variables of a function, private or workgroup";
                        return refuse(Group::AddressSpace, space, reason);
                    }
                    format!("{}& a{i}", self.types.name(*base)?)
                }
                _ => format!("{} a{i}", self.types.name(argument.ty)?),
            });
        }
        for variable in self.used(info) {
            parameters.push(self.global_parameter(variable, false)?);
        }
        let result = match &function.result {
            Some(result) => self.types.name(result.ty)?,
            None => "void".into(),
        };
        let body = Body::new(self, function, info).write()?;
        Ok(format!("{head} {result} {name}({}) {{\n{body}}}\n\n", parameters.join(", ")))
    }
}
