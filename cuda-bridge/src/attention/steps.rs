//! The computations between two products, as data.

/// An operand of a step, for a place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The first product.
    Product,
    /// The result of an earlier step, by its number in [`Attention::steps`]: for the place, or for the row.
    Step(usize),
    /// The place's own element of a tensor of [samples * rows, LEN].
    Element {
        /// The number among the tensors that are read ([`Attention::reads`]).
        tensor: usize,
        /// The offset of place 0 of row 0 in words; place j of row i is i * LEN + j words behind it.
        offset: u32,
    },
    /// Element j of a vector, for place j of every row.
    OfPlace {
        /// The number among the tensors that are read.
        tensor: usize,
        /// The offset in words of the element of place 0.
        offset: u32,
    },
    /// An element for each row. Rows are counted through all samples.
    OfRow {
        /// The number among the tensors that are read.
        tensor: usize,
        /// The offset in words of the element of row 0.
        offset: u32,
    },
    /// One element for all.
    One {
        /// The number among the tensors that are read.
        tensor: usize,
        /// The element's offset in words.
        offset: u32,
    },
}

/// The operation of a step.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A function of the operands, the four indices of the element, and constants, in this order. All of them are words, and so
    /// is the result.
    Map {
        /// The function's name in the WGSL module that [`Attention::kernel`] translates.
        function: String,
        /// True if the function is computed for every place, false if once a row.
        each_place: bool,
        /// True if the result depends on the last index itself; a causal mask's does not, beyond the diagonal.
        by_place: bool,
        /// The index space, whose last index varies fastest. The indices belong to the element's number in it, or to the row's
        /// number if the function is computed once a row.
        dims: [u32; 4],
        /// The numbers of the function's definition, as words. A launch passes them ([`Attention::words`]), so kernels do not
        /// depend on them.
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
    /// The operation that gives the step's result.
    pub operation: Operation,
    /// The operands, in the order of the function's parameters; one for a maximum or a sum.
    pub operands: Vec<Operand>,
    /// The tensor that the results are written to, if any: its number among those written.
    pub write: Option<usize>,
}

/// Two products with the computations between them.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The number of pairs of products, each with operands of its own: one for each head of each sequence.
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
    /// True if nothing depends on places of the first product beyond the diagonal.
    pub causal: bool,
    /// The steps between the products, each behind its operands.
    pub steps: Vec<Step>,
    /// The number of the step whose rows are the second product's operand.
    pub result: usize,
    /// The number of tensors of 32-bit words that the steps read.
    pub reads: usize,
    /// The number of tensors of 32-bit words that the steps write.
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
    /// A launch's uniform words: the steps' constants, so that layers which differ only in these share a kernel.
    pub fn words(&self) -> Vec<u32> {
        let all = self.steps.iter().flat_map(|step| match &step.operation {
            Operation::Map { constants, .. } => &constants[..],
            _ => &[],
        });
        // The extra zero keeps the buffer from being empty.
        all.copied().chain([0]).collect()
    }
}
