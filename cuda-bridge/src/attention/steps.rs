//! What is computed between two products, as data.

/// What a step takes for a place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The first product.
    Product,
    /// What an earlier step computed, by its number in [`Attention::steps`]: for the place, or for the row.
    Step(usize),
    /// The place's own element of a tensor of [samples * rows, LEN].
    Element {
        /// By number among the tensors that are read ([`Attention::reads`]).
        tensor: usize,
        /// The word where place 0 of row 0 lies; place j of row i lies i * LEN + j words behind it.
        offset: u32,
    },
    /// Element j of a vector, for place j of every row.
    OfPlace {
        /// By number among the tensors that are read.
        tensor: usize,
        /// The word where the element of place 0 lies.
        offset: u32,
    },
    /// An element for each row. Rows are counted through all samples.
    OfRow {
        /// By number among the tensors that are read.
        tensor: usize,
        /// The word where the element of row 0 lies.
        offset: u32,
    },
    /// One element for all.
    One {
        /// By number among the tensors that are read.
        tensor: usize,
        /// The word where it lies.
        offset: u32,
    },
}

/// What a step computes.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A function of the operands, the four indices of the element, and constants, in this order: words all of them, as is its result.
    Map {
        /// Its name in the WGSL module that [`Attention::kernel`] translates.
        function: String,
        /// Whether it is computed for every place, else once a row.
        each_place: bool,
        /// Whether the result depends on the last index itself; a causal mask's does not, beyond the diagonal.
        by_place: bool,
        /// The index space, whose last index varies fastest. The indices are those of the element's number in it, or of the row's number where
        /// the function is computed once a row.
        dims: [u32; 4],
        /// The numbers of the function's definition, as words. A launch gives them ([`Attention::words`]), so kernels do not depend on them.
        constants: Vec<u32>,
    },
    /// The maximum of a row by WGSL's `f_order_key`, of one operand that has a number for every place.
    Max,
    /// The sum of a row by the contract's fixed tree, of one operand that has a number for every place.
    Sum,
}

/// A node over the rows.
#[derive(Clone, Debug)]
pub struct Step {
    /// How its result follows from the operands.
    pub operation: Operation,
    /// In the order of the function's parameters; one for a maximum or a sum.
    pub operands: Vec<Operand>,
    /// The tensor that its results are written to, if any: by number among those written.
    pub write: Option<usize>,
}

/// Two products with what is computed between them.
#[derive(Clone, Debug)]
pub struct Attention {
    /// How many pairs of products are computed, each of operands of its own: one for each head of each sequence.
    pub samples: u32,
    /// Rows of a sample in both products: the positions of a sequence.
    pub rows: u32,
    /// Places of a row: columns of the first product, and K of the second.
    pub len: u32,
    /// K of the first product.
    pub places: u32,
    /// Columns of the second product.
    pub columns: u32,
    /// Digits of an element, 1..=4: of the first product's left and right operand, then of the second's.
    pub digits: [[u32; 2]; 2],
    /// Whether nothing depends on places of the first product beyond the diagonal.
    pub causal: bool,
    /// What is computed between the products, each step behind those that it takes.
    pub steps: Vec<Step>,
    /// The number of the step whose rows the second product takes.
    pub result: usize,
    /// How many tensors of 32-bit words the steps take.
    pub reads: usize,
    /// How many tensors of 32-bit words they write.
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
