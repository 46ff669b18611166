//! The fixed reduction tree: pair neighbours, promote an odd last node, repeat (the tree of RFC 9162).
//! Contract: `docs/ARITHMETIC.md`, section 5.

use super::float;

/// A step of the tree's evaluation on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Pushes term i.
    Term(u32),
    /// The i-th addition: puts the sum of the two nodes on top in their place.
    Add(u32),
}

/// How the tree over `terms` terms is evaluated: each node as soon as its operands are there, so that at most
/// log2(terms) + 1 wait.
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

/// The tree sum of binary32 patterns; +0 for no terms, the (canonical) term itself for one.
///
/// Runs in one pass with at most 32 partial sums: bit `h` of the count says whether a finished subtree of `2^h`
/// terms waits, and the subtrees that are left at the end are added from the last (smallest) upwards, which is
/// what promoting an odd node does.
pub fn sum(terms: impl IntoIterator<Item = u32>) -> u32 {
    let mut waiting = [0u32; 64];
    let mut count = 0u64;
    for term in terms {
        let mut node = if float::is_nan(term) { float::NAN } else { term };
        let mut height = 0;
        while count >> height & 1 == 1 {
            node = float::add(waiting[height], node);
            height += 1;
        }
        waiting[height] = node;
        count += 1;
    }
    let mut total = None;
    for (height, &node) in waiting.iter().enumerate() {
        if count >> height & 1 == 1 {
            total = Some(match total {
                None => node,
                Some(right) => float::add(node, right),
            });
        }
    }
    total.unwrap_or(0)
}
