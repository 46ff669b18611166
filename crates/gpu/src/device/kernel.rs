//! What is asked of a device, as data: kernels, the sizes they depend on, and what they may take.

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
/// Where in a buffer a dispatch's uniform data may begin: at multiples of this.
pub(crate) const UNIFORM_ALIGNMENT: usize = 256;

/// The most buffers that are of use: the largest row fusions of a GPT take 13. CUDA's and many adapters' limits are above.
pub(crate) const BUFFERS_MAX: u32 = 16;

/// What a kernel may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Buffers, beside uniform data.
    pub buffers: u32,
    /// Bytes of workgroup memory.
    pub bytes: u32,
    /// Rounds of all loops of an invocation.
    pub rounds: u32,
}

impl Limits {
    /// What every adapter has. Some software adapters (llvmpipe 22.3) silently end an invocation's loops after this many rounds
    /// altogether. No shader may need more anywhere, so that what one adapter runs, all do.
    pub(crate) const WEBGPU: Limits = Limits { buffers: 8, bytes: 16 << 10, rounds: 65_535 };
    /// What CUDA has.
    pub(crate) const CUDA: Limits = Limits { buffers: BUFFERS_MAX, bytes: 48 << 10, rounds: u32::MAX };
}

/// A shader with the uniform words and workgroups of one dispatch.
#[derive(Clone, Debug)]
pub struct Shader {
    /// Its WGSL.
    pub text: Cow<'static, str>,
    /// The words of its uniform data, which is the first binding.
    pub uniform: Vec<u32>,
    /// Workgroups along x, y and z.
    pub groups: [u32; 3],
}

/// What the best kernel of a product depends on.
#[derive(Clone, Copy, Debug)]
pub struct ProductSize {
    pub digits_a: u32,
    pub digits_b: u32,
    /// Places of a block of K.
    pub places: u32,
    pub rows: u32,
    pub columns: u32,
    /// Outputs of that many rows and columns: samples times blocks.
    pub count: u32,
}

/// What a kernel computes of a view with scale groups of `block` places (0: all of K).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digitise {
    /// Absmaxes; buffers are the tensor and the absmaxes.
    Scale,
    /// Digit planes; buffers are the tensor, the absmaxes and the digits.
    Quantise { digits: u32 },
    /// Both at once; the buffers are those of [`Digitise::Quantise`], and the absmaxes are written too.
    ScaleAndQuantise { digits: u32 },
}

/// One dispatch's work. Every device makes the first two; the others are kernels of a device's own, which it may not have.
#[derive(Clone, Debug)]
pub enum Kernel {
    /// A shader that passes the lint, or a trainer's native one.
    Wgsl(Shader),
    /// A product on digit planes: its shader, or what a device puts in its place for this size.
    Product { shader: Shader, size: ProductSize },
    /// Absmaxes, digits or both of a view.
    Digitise { view: View, block: u32, what: Digitise },
    /// A product whose left operand, a view in one scale group a row, is digitised on its way. It takes the view's tensor, digits and
    /// absmaxes of the right operand, and the product; `digits` are those of both operands.
    Columns { view: View, digits: [u32; 2], columns: u32 },
    /// Rows between two products; `text` has the functions that its steps call. It takes digits and absmaxes of the first product's
    /// operands and of the second's right one, what the rows read beside, what others read of their outputs, and the second product.
    #[cfg(feature = "cuda")]
    Attention { kernel: cuda_bridge::attention::Attention, text: String },
    /// A trainer's native product of these operands, whose result has so many parts, by a library: left operand, right operand, result.
    Native { operands: [View; 2], parts: u32 },
    /// The 2-norms of rows, for the search for near ties. Uniform data and buffers are those of `cuda-bridge/kernels/near.cuh`, here
    /// and in the search.
    RowNorms { uniform: Vec<u32>, rows: u32 },
    /// The search for near ties among so many results; it may round each to its grid besides.
    NearTies { uniform: Vec<u32>, elements: u32, rounds: bool },
}

impl Kernel {
    /// Its shader, if a shader computes it.
    pub(crate) fn shader(&self) -> Option<&Shader> {
        match self {
            Kernel::Wgsl(shader) | Kernel::Product { shader, .. } => Some(shader),
            _ => None,
        }
    }
}

/// A kernel made ready, with the uniform words and workgroups of its dispatch.
pub struct Prepared<P> {
    pub pipeline: P,
    pub uniform: Vec<u32>,
    pub groups: [u32; 3],
}

/// Workgroups for one invocation an element.
pub(crate) fn linear_groups(elements: u32) -> [u32; 3] {
    if elements <= GRID_WIDTH {
        [elements.div_ceil(GROUP), 1, 1]
    } else {
        [GRID_WIDTH / GROUP, elements.div_ceil(GRID_WIDTH), 1]
    }
}

/// Workgroups along x, and the workgroups, for one workgroup an output.
pub(crate) fn workgroup_each(outputs: u32) -> (u32, [u32; 3]) {
    let width = outputs.clamp(1, GROUPS_MAX);
    (width, [width, outputs.div_ceil(width), 1])
}

/// Puts a dispatch's uniform words at the end of a graph's uniform data: where they begin, and their bytes.
pub(crate) fn append_uniform(data: &mut Vec<u8>, words: &[u32]) -> (u64, u64) {
    data.resize(data.len().next_multiple_of(UNIFORM_ALIGNMENT), 0);
    let offset = data.len() as u64;
    data.extend(bytes_from_words(DType::U32, words));
    (offset, 4 * words.len() as u64)
}
