//! What is computed between two products, as data.

/// What a step takes for a place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The first product.
    Product,
    /// What an earlier step computed, by number: for the place, or for the row.
    Step(usize),
    /// The place's own element of a tensor of [rows, LEN] that begins at word `offset`.
    Element { tensor: usize, offset: u32 },
    /// Element j of a vector, for place j of every row.
    OfPlace { tensor: usize, offset: u32 },
    /// An element for each row.
    OfRow { tensor: usize, offset: u32 },
    /// One element for all.
    One { tensor: usize, offset: u32 },
}

/// What a step computes.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A function of the module of the operands, the four indices of the element, and constants: for every place, or once a row. The indices
    /// are those of the element's number (that of the row, once a row) in an index space of these dimensions.
    /// `by_place` says whether the result depends on the last index itself; a causal mask's does not, beyond the diagonal.
    Map {
        function: String,
        each_place: bool,
        by_place: bool,
        dims: [u32; 4],
        constants: Vec<u32>,
    },
    /// The maximum of the row by WGSL's `f_order_key`, and its sum by the fixed tree, of one operand that has a number for every place.
    Max,
    Sum,
}

/// A node over the rows.
#[derive(Clone, Debug)]
pub struct Step {
    pub operation: Operation,
    pub operands: Vec<Operand>,
    /// The tensor that its results are written to, if any: by number among those written.
    pub write: Option<usize>,
}

/// Two products with what is computed between them.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Samples, and the rows of each.
    pub samples: u32,
    pub rows: u32,
    /// Places of a row: columns of the first product, and K of the second.
    pub len: u32,
    /// K of the first product, and columns of the second.
    pub places: u32,
    pub columns: u32,
    /// Digits of both products' operands, 1..=4 each.
    pub digits: [[u32; 2]; 2],
    /// Whether nothing depends on places of the first product beyond the diagonal.
    pub causal: bool,
    pub steps: Vec<Step>,
    /// The step whose rows the second product takes.
    pub result: usize,
    /// Tensors of 32-bit words that steps take, and that they write.
    pub reads: usize,
    pub writes: usize,
}

impl Operation {
    pub(super) fn has_places(&self) -> bool {
        matches!(self, Operation::Map { each_place: true, .. })
    }

    pub(super) fn reduces(&self) -> bool {
        matches!(self, Operation::Max | Operation::Sum)
    }
}

impl Attention {
    /// A launch's uniform words: the steps' constants, so that layers which differ in these alone share a kernel.
    pub fn words(&self) -> Vec<u32> {
        let all = self.steps.iter().flat_map(|step| match &step.operation {
            Operation::Map { constants, .. } => &constants[..],
            _ => &[],
        });
        // No buffer is empty.
        all.copied().chain([0]).collect()
    }
}
