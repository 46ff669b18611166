//! The fixed reduction tree: pair neighbours, promote an odd last node, repeat (the tree of RFC 9162).
//! Contract: `docs/ARITHMETIC.md`, section 5.

use super::float;

/// A step of the tree's evaluation on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Pushes term i.
    Term(u32),
    /// The i-th addition: replaces the two nodes on top by their sum.
    Add(u32),
}

/// The operations that evaluate the tree over `terms` terms. Each node is added as soon as its operands are computed, so at most
/// log2(terms) + 1 nodes wait.
pub fn operations(terms: u32) -> Vec<Operation> {
    let mut operations = Vec::new();
    let mut additions = 0..;
    let mut add = |operations: &mut Vec<Operation>, count| {
        operations.extend(additions.by_ref().take(count as usize).map(Operation::Add));
    };
    for term in 0..terms {
        operations.push(Operation::Term(term));
        // The same binary counter as in `sum`.
        add(&mut operations, (term + 1).trailing_zeros());
    }
    add(&mut operations, terms.count_ones().saturating_sub(1));
    operations
}

/// The tree sum of binary32 patterns that come one after another, in a memory of 64 partial sums. Bit `h` of the count is set if
/// a finished subtree of `2^h` terms waits.
///
/// ```
/// use tiebreak_contract::arith::tree::{Sum, sum};
///
/// let terms: Vec<u32> = (0..1000).map(|i| (1.0 / (i + 1) as f32).to_bits()).collect();
/// let mut one_by_one = Sum::default();
/// terms.iter().for_each(|&term| one_by_one.push(term));
/// assert_eq!((one_by_one.count(), one_by_one.total()), (1000, sum(terms)));
/// ```
pub struct Sum {
    waiting: [u32; 64],
    count: u64,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { waiting: [0; 64], count: 0 }
    }
}

impl Sum {
    /// Adds the next term.
    pub fn push(&mut self, term: u32) {
        let mut node = if float::is_nan(term) { float::NAN } else { term };
        let mut height = 0;
        while self.count >> height & 1 == 1 {
            node = float::add(self.waiting[height], node);
            height += 1;
        }
        self.waiting[height] = node;
        self.count += 1;
    }

    /// The number of terms so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum: +0 for no terms, the (canonical) term itself for one. The waiting subtrees are added from the last (smallest)
    /// upwards, as promoting an odd node does.
    pub fn total(&self) -> u32 {
        let mut total = None;
        for (height, &node) in self.waiting.iter().enumerate() {
            if self.count >> height & 1 == 1 {
                total = Some(match total {
                    None => node,
                    Some(right) => float::add(node, right),
                });
            }
        }
        total.unwrap_or(0)
    }
}

/// The [`Sum`] of all terms.
///
/// ```
/// use tiebreak_contract::arith::tree;
///
/// // Neighbours first: (1e8 + 1) + (-1e8 + 1). From the left it would be 1.
/// let terms = [1e8f32, 1.0, -1e8, 1.0];
/// assert_eq!(f32::from_bits(tree::sum(terms.map(f32::to_bits))), 0.0);
/// assert_eq!(terms.iter().sum::<f32>(), 1.0);
/// ```
pub fn sum(terms: impl IntoIterator<Item = u32>) -> u32 {
    let mut sum = Sum::default();
    terms.into_iter().for_each(|term| sum.push(term));
    sum.total()
}
