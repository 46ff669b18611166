//! A whole kernel: its parameters and its entry point.

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    AddressSpace, ArraySize, Binding, BuiltIn, EntryPoint, GlobalVariable, Handle, Module, ShaderStage,
    StorageAccess, Type, TypeInner,
};

use super::error::{Group, Refusal, TranslateError, refuse};
use super::expressions::Component;
use super::statements::Body;
use super::types::{Types, plain_name};
use super::writer::{Options, PRELUDE, SourceWriter};

/// The most threads of a block, and the most bytes of a block's static shared memory, on every GPU.
const THREADS_MAX: u64 = 1024;
const SHARED_MAX: u64 = 48 << 10;

/// The kind of a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// A buffer of a known size: one pointer.
    Sized {
        /// The least length of the buffer.
        bytes: u32,
    },
    /// A runtime-sized array: a pointer and, as the next parameter, its number of elements as a u32, at least 1.
    Elements {
        /// Bytes from one element to the next.
        stride: u32,
    },
}

/// A buffer that a kernel takes, by its WGSL binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The number in WGSL's `@group`; 0 in kernels written by hand.
    pub group: u32,
    /// The number in WGSL's `@binding`; in kernels written by hand the parameter's place among all.
    pub binding: u32,
    /// The variable's name in WGSL.
    pub name: String,
    /// The kind, which decides what is passed to the kernel.
    pub kind: ParameterKind,
    /// True if the kernel may write it. No other parameter may overlap one that is written.
    pub writable: bool,
}

impl Parameter {
    /// The parameters of a kernel written by hand: `p`, so many uniform words; then arrays by name, stride in bytes and true if
    /// they are written.
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
    /// The parameters in order of group and binding, which is the kernel's order.
    pub parameters: Vec<Parameter>,
    /// The threads of a block, which the launch must use.
    pub block: [u32; 3],
    /// True if threads of a block wait for one another.
    pub barriers: bool,
    /// Bytes of shared memory that a launch requests, beside those that the text declares.
    pub dynamic_shared: u32,
}

/// The module's variables in an entry point.
#[derive(Default)]
struct Variables {
    /// The buffers in the kernel's order, each with its declaration.
    buffers: Vec<(Parameter, String)>,
    /// Declarations of the other variables.
    declarations: String,
    /// The text that sets workgroup memory to zero.
    zeroing: String,
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
    let writer = SourceWriter::new(module, info, options, types);
    writer.kernel(point, used).map_err(at)
}

impl<'a> SourceWriter<'a> {
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

    /// The module's variables that the entry point uses.
    fn variables(&mut self, info: &FunctionInfo, size: [u32; 3]) -> Result<Variables, Refusal> {
        let mut found = Variables::default();
        for handle in self.used(info) {
            let variable = &self.module.global_variables[handle];
            let given = variable.name.clone().unwrap_or_default();
            let of = |refusal: Refusal| refusal.within("variable", &given);
            // This call refuses types and spaces without a counterpart.
            let text = self.global_parameter(handle, true).map_err(of)?;
            if let Some(parameter) = self.parameter(handle).map_err(of)? {
                found.buffers.push((parameter, text));
                continue;
            }
            let name = self.global_name(handle);
            let ty = self.types.name(variable.ty)?;
            if variable.space == AddressSpace::WorkGroup {
                found.declarations.push_str(&format!("    __shared__ {ty} {name};\n"));
                let index = local_index(size[0], size[1]);
                found.zeroing.push_str(&format!("    tb::zero({name}, {index}, {}u);\n", threads(size)));
            } else {
                let init = match variable.init {
                    Some(init) => self.global_expression(init)?,
                    None => format!("{ty}{{}}"),
                };
                found.declarations.push_str(&format!("    {ty} {name} = {init};\n"));
            }
        }
        if !found.zeroing.is_empty() {
            self.barriers = true;
            found.zeroing.push_str("    __syncthreads();\n");
        }
        found.buffers.sort_by_key(|(parameter, _)| (parameter.group, parameter.binding));
        Ok(found)
    }

    fn kernel(mut self, point: &'a EntryPoint, info: &'a FunctionInfo) -> Result<Kernel, Refusal> {
        if point.workgroup_size_overrides.is_some() {
            return refuse(Group::Expression, "Override", "overrides are not resolved here");
        }
        let size = point.workgroup_size;
        let Variables { buffers, declarations, zeroing } = self.variables(info, size)?;
        let mut arguments = String::new();
        for (i, argument) in point.function.arguments.iter().enumerate() {
            let ty = self.types.name(argument.ty)?;
            let value = self.entry_argument(argument.ty, argument.binding.as_ref(), size)?;
            arguments.push_str(&format!("    {ty} a{i} = {value};\n"));
        }
        let body = Body::new(&mut self, &point.function, info).write()?;
        let name = format!("k_{}", plain_name(Some(&point.name)));
        let threads = threads(size);
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
            &declarations,
            &zeroing,
            &arguments,
            &body,
            "}\n",
        ]
        .concat();
        let parameters = buffers.into_iter().map(|(parameter, _)| parameter).collect();
        Ok(Kernel { name, source, parameters, block: size, barriers: self.barriers, dynamic_shared: 0 })
    }
}

/// Threads of a block.
fn threads(size: [u32; 3]) -> u32 {
    size.iter().fold(1, |all, n| n.wrapping_mul(all))
}

/// A thread's number in its block of x by y by any.
fn local_index(x: u32, y: u32) -> String {
    // Blocks have at most 1024 threads, so this does not overflow.
    format!("(threadIdx.x + threadIdx.y * {x}u + threadIdx.z * {}u)", x.wrapping_mul(y))
}
