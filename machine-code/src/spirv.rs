//! WGSL to SPIR-V with the options that wgpu-hal 30 gives naga for Vulkan (`wgpu_hal::vulkan::Adapter::open`), so that a driver
//! compiles here the code that it compiles for a user.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::Error;

/// The device features that wgpu-hal queries before it writes SPIR-V.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// `shaderIntegerDotProduct`: packed dot products stay one instruction of SPIR-V.
    pub integer_dot_product: bool,
    /// `shaderInt8`.
    pub int8: bool,
    /// `robustBufferAccess2`: the device bounds accesses of buffers, so the code does not.
    pub robust_buffer_access2: bool,
    /// `shaderZeroInitializeWorkgroupMemory`: the driver clears workgroup memory, so the code does not.
    pub zero_initialize_workgroup_memory: bool,
}

impl Offered {
    /// naga's options; capabilities that only graphics needs are in the list as wgpu-hal has them.
    fn options(self) -> spv::Options<'static> {
        use spv::Capability::*;
        let mut capabilities = vec![
            Shader,
            Matrix,
            Sampled1D,
            Image1D,
            ImageQuery,
            DerivativeControl,
            StorageImageExtendedFormats,
        ];
        if self.integer_dot_product {
            capabilities.extend([DotProductInputAll, DotProductInput4x8Bit]);
            capabilities.extend([DotProductInput4x8BitPacked, DotProduct]);
        }
        if self.int8 {
            capabilities.push(Int8);
        }
        let unchecked_if = |bounded| match bounded {
            true => BoundsCheckPolicy::Unchecked,
            false => BoundsCheckPolicy::Restrict,
        };
        spv::Options {
            lang_version: (1, 6),
            flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
            capabilities: Some(capabilities.into_iter().collect()),
            bounds_check_policies: BoundsCheckPolicies {
                index: BoundsCheckPolicy::Restrict,
                buffer: unchecked_if(self.robust_buffer_access2),
                image_load: BoundsCheckPolicy::Unchecked,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: match self.zero_initialize_workgroup_memory {
                true => spv::ZeroInitializeWorkgroupMemoryMode::Native,
                false => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
            },
            force_loop_bounding: true,
            emit_int_div_checks: true,
            ..Default::default()
        }
    }
}

/// A shader in Vulkan's form.
pub struct Spirv {
    /// The words of the shader's SPIR-V, with the entry point `main`.
    pub words: Vec<u32>,
    /// For each of the bindings 0, 1, ... of group 0: true for a uniform buffer, false for a storage buffer.
    pub uniforms: Vec<bool>,
    /// True if the shader has a type of floats.
    pub floats: bool,
}

/// Translates a compute shader.
///
/// # Errors
/// If the text is no valid WGSL, or its bindings are not 0, 1, 2, ... of group 0.
pub fn translate(shader: &str, text: &str, offered: Offered) -> Result<Spirv, Error> {
    let wrong = |message: String| Error::Shader { shader: shader.to_string(), message };
    let module = naga::front::wgsl::parse_str(text).map_err(|error| wrong(error.emit_to_string(text)))?;
    // This validation is wgpu's: features that the device does not offer are outside of the verifier's dialect anyway.
    let info = Validator::new(ValidationFlags::all(), Capabilities::default())
        .validate(&module)
        .map_err(|error| wrong(error.emit_to_string(text)))?;
    let mut bindings = Vec::new();
    for (_, variable) in module.global_variables.iter() {
        if let Some(binding) = &variable.binding {
            if binding.group != 0 {
                return Err(wrong("it binds in a group other than 0".into()));
            }
            bindings.push((binding.binding, variable.space == naga::AddressSpace::Uniform));
        }
    }
    bindings.sort();
    if bindings.iter().zip(0..).any(|((number, _), place)| *number != place) {
        return Err(wrong("its bindings are not 0, 1, 2, ...".into()));
    }
    // All entry points at once: wgpu writes a module without overrides in this way.
    let words =
        spv::write_vec(&module, &info, &offered.options(), None).map_err(|error| wrong(error.to_string()))?;
    let floats = module.types.iter().any(|(_, ty)| match ty.inner {
        naga::TypeInner::Scalar(scalar)
        | naga::TypeInner::Vector { scalar, .. }
        | naga::TypeInner::Matrix { scalar, .. } => scalar.kind == naga::ScalarKind::Float,
        _ => false,
    });
    Ok(Spirv { words, uniforms: bindings.into_iter().map(|(_, uniform)| uniform).collect(), floats })
}
