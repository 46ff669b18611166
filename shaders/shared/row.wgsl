//!include shared/float.wgsl
// A row of LEN elements: each of 64 invocations has every 64th element. Between its passes over the row, a workgroup keeps values
// in `held`, with a stretch for each. The including shader defines LEN, `held` and SHARE, a power of two that is a 64th of LEN or more.

// The word of element j in its stretch. A word is left out after every 32, so that elements a power of two apart, as the operands
// of a tree are, are not in the same bank of memory.
fn row_place(j: u32) -> u32 {
    return j + (j >> 5u);
}

// The sum of the stretch that begins at `first`, by the fixed tree: pair neighbours, promote an odd last one. A node of 2^h terms
// replaces its first term. All invocations make nodes of SHARE terms, some make nodes of 8 times as many, and one makes the sum. All
// invocations call this function, and all get the sum. LEN is 2 or more, so that every term is added, which makes a NaN canonical.
fn row_sum(first: u32, index: u32) -> u32 {
    var terms = 1u; // of a node
    for (var block = SHARE; terms < LEN; block = block << 3u) {
        workgroupBarrier();
        let end = min((index + 1u) * block, LEN);
        for (; terms < block; terms = terms << 1u) {
            for (var left = index * block; left + terms < end; left += 2u * terms) {
                let place = first + row_place(left);
                held[place] = f_add(held[place], held[first + row_place(left + terms)]);
            }
        }
    }
    workgroupBarrier();
    let sum = held[first];
    workgroupBarrier(); // the caller may write there next
    return sum;
}

// The number whose order key is the greatest of all invocations' keys. Some invocations find the greatest of 8 keys, all find the
// greatest of these.
fn row_max(first: u32, index: u32, key: u32) -> u32 {
    var greatest = key;
    held[first + row_place(index)] = key;
    workgroupBarrier();
    if (index < 8u) {
        for (var i = 0u; i < 8u; i++) {
            greatest = max(greatest, held[first + row_place(8u * index + i)]);
        }
        // No other invocation reads this invocation's eight.
        held[first + row_place(8u * index)] = greatest;
    }
    workgroupBarrier();
    for (var i = 0u; i < 64u; i += 8u) {
        greatest = max(greatest, held[first + row_place(i)]);
    }
    workgroupBarrier(); // as above
    return f_from_order_key(greatest);
}
