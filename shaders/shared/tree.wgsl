//!include shared/float.wgsl
// The fixed reduction tree of crates/contract/src/arith/tree.rs as a binary counter: bit h of the count is set if a finished
// subtree of 2^h terms waits.

var<private> tree_waiting: array<u32, 32>;
var<private> tree_count: u32;

fn tree_begin() {
    tree_count = 0u;
}

fn tree_push(term: u32) {
    var node = f_canonical(term);
    var height = 0u;
    var count = tree_count;
    while ((count & 1u) == 1u) {
        node = f_add(tree_waiting[height & 31u], node);
        height = height + 1u;
        count = count >> 1u;
    }
    tree_waiting[height & 31u] = node;
    tree_count = tree_count + 1u;
}

// The waiting subtrees are added from the smallest upwards; the sum of no terms is +0.
fn tree_end() -> u32 {
    var total = 0u;
    var have = false;
    for (var height = 0u; height < 32u; height++) {
        if (((tree_count >> (height & 31u)) & 1u) == 1u) {
            let node = tree_waiting[height];
            if (have) {
                total = f_add(node, total);
            } else {
                total = node;
            }
            have = true;
        }
    }
    return total;
}
