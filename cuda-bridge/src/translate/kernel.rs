//! A whole kernel: its parameters, its functions in the order that C++ needs, and the entry point.

use std::collections::HashMap;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    AddressSpace, ArraySize, Binding, BuiltIn, Constant, EntryPoint, Function, GlobalVariable, Handle,
    Module, ShaderStage, StorageAccess, Type, TypeInner,
};

use super::error::{Group, Refusal, TranslateError, refuse};
use super::expressions::Component;
use super::natives;
use super::statements::{Body, may_be_passed};
use super::types::{Types, plain_name};
use super::{Options, PRELUDE};

/// The most threads of a block, and bytes of a block's static shared memory, on every GPU.
const THREADS_MAX: u64 = 1024;
const SHARED_MAX: u64 = 48 << 10;

/// What a kernel parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// A buffer of a known size: one pointer.
    Sized { bytes: u32 },
    /// A runtime-sized array: a pointer and, as the next parameter, its number of elements as a u32, at least 1.
    Elements { stride: u32 },
}

/// A buffer that a kernel takes, by its WGSL binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub group: u32,
    pub binding: u32,
    /// The variable's name in WGSL.
    pub name: String,
    pub kind: ParameterKind,
    /// Whether the kernel may write it. No other parameter may overlap one that is written.
    pub writable: bool,
}

impl Parameter {
    /// Those of a kernel written by hand: `p`, so many uniform words; then arrays by name, stride in bytes and whether they are written.
    pub fn by_hand(words: u32, arrays: &[(&str, u32, bool)]) -> Vec<Parameter> {
        let elements = |&(name, stride, writable): &_| (name, ParameterKind::Elements { stride }, writable);
        let uniform = ("p", ParameterKind::Sized { bytes: 4 * words }, false);
        let all = std::iter::once(uniform).chain(arrays.iter().map(elements));
        let parameter = |(binding, (name, kind, writable)): (u32, (&str, _, _))| Parameter {
            group: 0,
            binding,
            name: name.into(),
            kind,
            writable,
        };
        (0..).zip(all).map(parameter).collect()
    }
}

/// An entry point as CUDA C++.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The `extern "C"` name.
    pub name: String,
    /// A complete text for NVRTC.
    pub source: String,
    /// In order of group and binding, which is the kernel's order.
    pub parameters: Vec<Parameter>,
    /// Threads of a block, which the launch must use.
    pub block: [u32; 3],
    /// Whether threads of a block wait for one another.
    pub barriers: bool,
    /// Bytes of shared memory that a launch asks for, beside what the text has.
    pub dynamic_shared: u32,
}

/// What is written so far.
pub struct Writer<'a> {
    pub module: &'a Module,
    pub info: &'a ModuleInfo,
    pub options: Options,
    pub types: Types<'a>,
    pub constants: String,
    /// Constants that are tables in memory.
    pub tables: HashMap<Handle<Constant>, String>,
    functions: String,
    names: HashMap<Handle<Function>, String>,
    pub barriers: bool,
}

/// Translates the entry point of this index.
pub fn translate(
    module: &Module,
    info: &ModuleInfo,
    index: usize,
    options: Options,
) -> Result<Kernel, TranslateError> {
    let point = &module.entry_points[index];
    let entry = || point.name.clone();
    if point.stage != ShaderStage::Compute {
        return Err(TranslateError::Stage { entry: entry(), stage: format!("{:?}", point.stage) });
    }
    let limit = |what, amount, most| {
        let error = TranslateError::TooLarge { entry: point.name.clone(), what, amount, most };
        if amount > most { Err(error) } else { Ok(()) }
    };
    let threads = point.workgroup_size.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul);
    limit("threads of a block", threads, THREADS_MAX)?;
    let used = info.get_entry_point(index);
    let shared = module
        .global_variables
        .iter()
        .filter(|(handle, variable)| variable.space == AddressSpace::WorkGroup && !used[*handle].is_empty());
    let at = |refusal: Refusal| refusal.at(&point.name);
    let types = Types::new(module, info).map_err(at)?;
    let bytes = shared.map(|(_, variable)| u64::from(types.size(variable.ty))).sum();
    limit("bytes of workgroup memory", bytes, SHARED_MAX)?;
    let writer = Writer::new(module, info, options, types);
    writer.kernel(point, used).map_err(at)
}

/// Functions of a module as CUDA C++, for kernels whose entry point is written by hand.
#[derive(Clone, Debug)]
pub struct Functions {
    /// The prelude, and the functions with all that they call.
    pub source: String,
    /// Their C++ names, in the order in which they were asked for. Structs are taken and given by value; WGSL's vectors are
    /// `tb::vec<u32, 4u>` and the like.
    pub names: Vec<String>,
}

/// Translates functions by name.
pub fn functions(
    module: &Module,
    info: &ModuleInfo,
    wanted: &[&str],
    options: Options,
) -> Result<Functions, TranslateError> {
    let first = wanted.first().copied().unwrap_or_default();
    let types = Types::new(module, info).map_err(|refusal| refusal.at(first))?;
    let mut writer = Writer::new(module, info, options, types);
    let mut names = Vec::new();
    for name in wanted {
        let mut found = module.functions.iter().filter(|(_, f)| f.name.as_deref() == Some(*name));
        let (handle, _) =
            found.next().ok_or_else(|| TranslateError::NoFunction { function: (*name).into() })?;
        let refused = |refusal: Refusal| refusal.at(name);
        // Its callers would have to know which of the module's variables to pass.
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

impl<'a> Writer<'a> {
    fn new(module: &'a Module, info: &'a ModuleInfo, options: Options, types: Types<'a>) -> Writer<'a> {
        Writer {
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

    fn global_name(&self, handle: Handle<GlobalVariable>) -> String {
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

    /// How a function takes a module's variable.
    fn global_parameter(&mut self, handle: Handle<GlobalVariable>, kernel: bool) -> Result<String, Refusal> {
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

    fn used(&self, info: &FunctionInfo) -> Vec<Handle<GlobalVariable>> {
        let variables = self.module.global_variables.iter().map(|(handle, _)| handle);
        variables.filter(|handle| !info[*handle].is_empty()).collect()
    }

    /// The processor's own counterpart of a function, if it is wanted and there is one.
    fn native(&self, function: Handle<Function>) -> Option<&'static natives::Native> {
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
        let text = self.function(handle, &name).map_err(|refusal| refusal.within("function", &given))?;
        self.functions.push_str(&text);
        self.names.insert(handle, name.clone());
        Ok(name)
    }

    fn function(&mut self, handle: Handle<Function>, name: &str) -> Result<String, Refusal> {
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
        Ok(format!("TB_FN {result} {name}({}) {{\n{body}}}\n\n", parameters.join(", ")))
    }

    /// The value of a built-in of the entry point.
    fn built_in(&mut self, binding: Option<&Binding>, [x, y, z]: [u32; 3]) -> Result<String, Refusal> {
        let Some(Binding::BuiltIn(built_in)) = binding else {
            return refuse(Group::BuiltIn, "Location", "a kernel's inputs are buffers and built-in values");
        };
        Ok(match built_in {
            BuiltIn::GlobalInvocationId => format!(
                "tb::three(blockIdx.x * {x}u + threadIdx.x, blockIdx.y * {y}u + threadIdx.y, blockIdx.z * {z}u + threadIdx.z)"
            ),
            BuiltIn::LocalInvocationId => "tb::three(threadIdx.x, threadIdx.y, threadIdx.z)".into(),
            BuiltIn::LocalInvocationIndex => local_index(x, y),
            BuiltIn::WorkGroupId => "tb::three(blockIdx.x, blockIdx.y, blockIdx.z)".into(),
            BuiltIn::WorkGroupSize => format!("tb::three({x}u, {y}u, {z}u)"),
            BuiltIn::NumWorkGroups => "tb::three(gridDim.x, gridDim.y, gridDim.z)".into(),
            other => return refuse(Group::BuiltIn, other, "it has no counterpart here"),
        })
    }

    /// An argument of the entry point: a built-in, or a struct of them.
    fn entry_argument(
        &mut self,
        ty: Handle<Type>,
        binding: Option<&Binding>,
        size: [u32; 3],
    ) -> Result<String, Refusal> {
        match (self.types.inner(ty), binding) {
            (TypeInner::Struct { members, .. }, None) => {
                let mut parts = Vec::new();
                for member in members {
                    parts.push(Component(self.built_in(member.binding.as_ref(), size)?, None));
                }
                self.compose(ty, &parts)
            }
            _ => self.built_in(binding, size),
        }
    }

    fn parameter(&mut self, handle: Handle<GlobalVariable>) -> Result<Option<Parameter>, Refusal> {
        let variable = &self.module.global_variables[handle];
        if matches!(variable.space, AddressSpace::Private | AddressSpace::WorkGroup) {
            return Ok(None);
        }
        let Some(place) = &variable.binding else {
            return refuse(Group::AddressSpace, variable.space, "a buffer has a binding");
        };
        let kind = match self.types.inner(variable.ty) {
            TypeInner::Array { size: ArraySize::Dynamic, stride, .. } => {
                ParameterKind::Elements { stride: *stride }
            }
            _ => ParameterKind::Sized { bytes: self.types.size(variable.ty) },
        };
        let writable = matches!(variable.space,
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE));
        let name = variable.name.clone().unwrap_or_default();
        Ok(Some(Parameter { group: place.group, binding: place.binding, name, kind, writable }))
    }

    fn kernel(mut self, point: &'a EntryPoint, info: &'a FunctionInfo) -> Result<Kernel, Refusal> {
        if point.workgroup_size_overrides.is_some() {
            return refuse(Group::Expression, "Override", "overrides are not resolved here");
        }
        let size = point.workgroup_size;
        let mut buffers = Vec::new();
        let (mut variables, mut shared) = (String::new(), String::new());
        for handle in self.used(info) {
            let variable = &self.module.global_variables[handle];
            let given = variable.name.clone().unwrap_or_default();
            let of = |refusal: Refusal| refusal.within("variable", &given);
            // Refuses types and spaces that have no counterpart.
            let text = self.global_parameter(handle, true).map_err(of)?;
            if let Some(parameter) = self.parameter(handle).map_err(of)? {
                buffers.push((parameter, text));
                continue;
            }
            let name = self.global_name(handle);
            let ty = self.types.name(variable.ty)?;
            if variable.space == AddressSpace::WorkGroup {
                variables.push_str(&format!("    __shared__ {ty} {name};\n"));
                let threads = size.iter().fold(1, |all, n| n.wrapping_mul(all));
                shared.push_str(&format!(
                    "    tb::zero({name}, {}, {threads}u);\n",
                    local_index(size[0], size[1])
                ));
            } else {
                let init = match variable.init {
                    Some(init) => self.global_expression(init)?,
                    None => format!("{ty}{{}}"),
                };
                variables.push_str(&format!("    {ty} {name} = {init};\n"));
            }
        }
        if !shared.is_empty() {
            self.barriers = true;
            shared.push_str("    __syncthreads();\n");
        }
        buffers.sort_by_key(|(parameter, _)| (parameter.group, parameter.binding));
        let mut arguments = String::new();
        for (i, argument) in point.function.arguments.iter().enumerate() {
            let ty = self.types.name(argument.ty)?;
            let value = self.entry_argument(argument.ty, argument.binding.as_ref(), size)?;
            arguments.push_str(&format!("    {ty} a{i} = {value};\n"));
        }
        let body = Body::new(&mut self, &point.function, info).write()?;
        let name = format!("k_{}", plain_name(Some(&point.name)));
        let threads = size.iter().fold(1, |all, n| n.wrapping_mul(all));
        let texts: Vec<&str> = buffers.iter().map(|(_, text)| text.as_str()).collect();
        let head = format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}({})",
            texts.join(",\n    ")
        );
        let source = [
            PRELUDE,
            &self.types.declarations,
            &self.constants,
            "\n",
            &self.functions,
            &head,
            " {\n",
            &variables,
            &shared,
            &arguments,
            &body,
            "}\n",
        ]
        .concat();
        let parameters = buffers.into_iter().map(|(parameter, _)| parameter).collect();
        Ok(Kernel { name, source, parameters, block: size, barriers: self.barriers, dynamic_shared: 0 })
    }
}

fn is_runtime_sized(inner: &TypeInner) -> bool {
    matches!(inner, TypeInner::Array { size: ArraySize::Dynamic, .. })
}

/// A thread's number in its block of x by y by any.
fn local_index(x: u32, y: u32) -> String {
    // Blocks have at most 1024 threads, so this is no overflow.
    format!("(threadIdx.x + threadIdx.y * {x}u + threadIdx.z * {}u)", x.wrapping_mul(y))
}
