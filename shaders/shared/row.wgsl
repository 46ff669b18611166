//!include shared/float.wgsl
// A row of LEN elements, of which each of 64 invocations has every 64th. Between its passes over the row a workgroup keeps values
// in `held`, a stretch for each; both names are the including shader's.

// Where element j lies in its stretch: a word is left out after every 32, so that what is a power of two apart, as the operands
// of a tree are, does not lie in the same bank of memory.
fn row_place(j: u32) -> u32 {
    return j + (j >> 5u);
}

// The sum of the stretch that begins at `first`, by the fixed tree, level by level: pair neighbours, promote an odd last one. Every
// invocation calls it and gets the sum. LEN is 2 or more, so that every term is added, which makes a NaN canonical.
fn row_sum(first: u32, index: u32) -> u32 {
    for (var step = 1u; step < LEN; step = step << 1u) {
        workgroupBarrier();
        for (var left = index * 2u * step; left + step < LEN; left += 128u * step) {
            let place = first + row_place(left);
            held[place] = f_add(held[place], held[first + row_place(left + step)]);
        }
    }
    workgroupBarrier();
    let sum = held[first];
    workgroupBarrier(); // what comes next may write there
    return sum;
}

// The number whose order key is the greatest of all invocations' keys.
fn row_max(first: u32, index: u32, key: u32) -> u32 {
    held[first + row_place(index)] = key;
    workgroupBarrier();
    var greatest = 0u;
    for (var i = 0u; i < 64u; i++) {
        greatest = max(greatest, held[first + row_place(i)]);
    }
    workgroupBarrier(); // as above
    return f_from_order_key(greatest);
}
