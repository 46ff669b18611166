//! The requests to a device, as data: kernels, the sizes that they depend on, and the limits of kernels.

use std::borrow::Cow;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::View;

/// Invocations of a workgroup.
pub(crate) const GROUP: u32 = 64;
/// WebGPU's limit on workgroups along a dimension.
pub(crate) const GROUPS_MAX: u32 = 65_535;
/// Invocations along x of a dispatch.
pub(crate) const GRID_WIDTH: u32 = GROUPS_MAX * GROUP;
/// A dispatch's uniform data begins at a multiple of this in its buffer.
pub(crate) const UNIFORM_ALIGNMENT: usize = 256;

/// The most buffers that are of use: the largest row fusions of a GPT take 13. The limits of CUDA and of many adapters are
/// higher.
pub(crate) const BUFFERS_MAX: u32 = 16;

/// The limits of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of buffers, beside uniform data.
    pub buffers: u32,
    /// Bytes of workgroup memory.
    pub bytes: u32,
    /// Rounds of all loops of an invocation.
    pub rounds: u32,
}

impl Limits {
    /// The limits that every adapter has. Some software adapters (llvmpipe 22.3) silently end an invocation's loops after this
    /// many rounds altogether. No shader may need more anywhere, so that a program that runs on one adapter runs on all.
    pub(crate) const WEBGPU: Limits = Limits { buffers: 8, bytes: 16 << 10, rounds: 65_535 };
    /// The limits of CUDA.
    pub(crate) const CUDA: Limits = Limits { buffers: BUFFERS_MAX, bytes: 48 << 10, rounds: u32::MAX };
}

/// A shader with the uniform words and workgroups of one dispatch.
#[derive(Clone, Debug)]
pub struct Shader {
    /// The shader's WGSL.
    pub text: Cow<'static, str>,
    /// The words of the shader's uniform data, which is the first binding.
    pub uniform: Vec<u32>,
    /// The number of workgroups along x, y and z.
    pub groups: [u32; 3],
}

/// The sizes that the best kernel of a product depends on.
#[derive(Clone, Copy, Debug)]
pub struct ProductSize {
    pub digits_a: u32,
    pub digits_b: u32,
    /// The length of a block of K.
    pub places: u32,
    pub rows: u32,
    pub columns: u32,
    /// The number of outputs of that many rows and columns: samples times blocks.
    pub count: u32,
}

/// The result that a kernel computes of a view with scale groups of `block` elements (0: all of K).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digitise {
    /// Absmaxes; buffers are the tensor and the absmaxes.
    Scale,
    /// Digit planes; buffers are the tensor, the absmaxes and the digits.
    Quantise { digits: u32 },
    /// Both at once; the buffers are those of [`Digitise::Quantise`], and the absmaxes are written too.
    ScaleAndQuantise { digits: u32 },
}

/// The work of one dispatch. Every device makes the first two kernels; the others are kernels of a device's own, which it may not
/// have.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// A shader that passes the lint, or a trainer's native one.
    Wgsl(Shader),
    /// A product on digit planes: its shader, or a device's own kernel for this size.
    Product { shader: Shader, size: ProductSize },
    /// Absmaxes, digits or both of a view.
    Digitise { view: View, block: u32, what: Digitise },
    /// A product whose left operand, a view with one scale group for each row, is digitised on the way. The buffers are the
    /// view's tensor, digits and absmaxes of the right operand, and the product. `digits` are those of both operands.
    Columns { view: View, digits: [u32; 2], columns: u32 },
    /// Rows between two products; `text` has the functions that its steps call. The buffers begin with digits and absmaxes of the
    /// first product's operands and of the second's right operand. The other inputs of the rows, the outputs that other nodes
    /// read, and the second product follow.
    #[cfg(feature = "cuda")]
    Attention { kernel: cuda_bridge::attention::Attention, text: String },
    /// A trainer's native product of these operands, by a library; its result has `parts` parts. The buffers are the left
    /// operand, the right operand and the result.
    Native { operands: [View; 2], parts: u32 },
    /// The 2-norms of rows, for the search for near ties. `cuda-bridge/kernels/near.cuh` defines the uniform data and the
    /// buffers, of the norms and of the search.
    RowNorms { uniform: Vec<u32>, rows: u32 },
    /// The search for near ties among `elements` results; it may also round each result to its grid.
    NearTies { uniform: Vec<u32>, elements: u32, rounds: bool },
}

impl Kernel {
    /// The kernel's shader, if a shader computes it.
    pub(crate) fn shader(&self) -> Option<&Shader> {
        match self {
            Kernel::Wgsl(shader) | Kernel::Product { shader, .. } => Some(shader),
            _ => None,
        }
    }
}

/// A prepared kernel, with the uniform words and workgroups of its dispatch.
pub struct Prepared<P> {
    pub pipeline: P,
    pub uniform: Vec<u32>,
    pub groups: [u32; 3],
}

/// Workgroups for one invocation for each element.
pub(crate) fn linear_groups(elements: u32) -> [u32; 3] {
    if elements <= GRID_WIDTH {
        [elements.div_ceil(GROUP), 1, 1]
    } else {
        [GRID_WIDTH / GROUP, elements.div_ceil(GRID_WIDTH), 1]
    }
}

/// Workgroups along x, and all workgroups, for one workgroup for each output.
pub(crate) fn workgroup_each(outputs: u32) -> (u32, [u32; 3]) {
    let width = outputs.clamp(1, GROUPS_MAX);
    (width, [width, outputs.div_ceil(width), 1])
}

/// Appends a dispatch's uniform words to a graph's uniform data. Returns the first byte and the number of bytes.
pub(crate) fn append_uniform(data: &mut Vec<u8>, words: &[u32]) -> (u64, u64) {
    data.resize(data.len().next_multiple_of(UNIFORM_ALIGNMENT), 0);
    let offset = data.len() as u64;
    data.extend(bytes_from_words(DType::U32, words));
    (offset, 4 * words.len() as u64)
}
