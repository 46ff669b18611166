//!include shared/scale_back.wgsl
// product.v1 for GPUs: exact integer products of digit planes, scaled back and rounded once.
//
// A workgroup of 8 x 8 invocations computes a tile of outputs, each invocation ROWS x COLUMNS of them, 8 apart. Digit products of
// equal weight share an accumulator: digits d and e have weight 256^(d + e). An i32 accumulator adds at most 4 pairs of
// 2^14 for each of FLUSH_WORDS * 4 indices of K: 4 * 2^14 * 2^14 = 2^30, which is exact. Then all but its low byte is carried to
// the next accumulator, at most 2^23. The highest accumulator carries to a word of its own, which 2^24 indices of K do not overflow.
// So an exact sum is bytes and that word, and takes one register more than its digits' weights.
//
// This file is a template: crates/shaders/src/product.rs replaces the lines `//@...` for a pair of digit counts. Every loop over
// digits, rows and words of a tile is written out, which keeps accumulators in registers. Some software adapters silently stop an
// invocation's loops after 65535 rounds altogether, so the only long loop is the one over K. Two variants of the
// arithmetic share the template: dot4I8Packed on words, or fma on digits as f32. The latter is exact since the terms of a tile
// add up to less than 2^24 (the lint derives that bound from the text).

//@constants

const STEP: u32 = 4u; // words of K that a tile holds
const FLUSH_WORDS: u32 = 4096u;

// (batch, M, N, words of a row), (blocks, words of a block, absmax bits of both, first product)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> absmaxes_a: array<u32>;
@group(0) @binding(3) var<storage, read> b: array<u32>;
@group(0) @binding(4) var<storage, read> absmaxes_b: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;

// A tile is indexed by digit, by one of eight rows, and by the words of a row in a step. Only the row among eight is not known when a
// shader is compiled, so an access costs one bounds check, and eight invocations read neighbours.
//@tiles

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
    let batch = max(p[0].x, 1u);
    let m = p[0].y;
    let n = p[0].z;
    let words = p[0].w;
    let product = p[1].w + group.z; // of all blocks and samples
    let block = product / batch;
    let sample = product % batch;
    let first = block * p[1].y;
    let end = min(first + p[1].y, words);
    let plane_a = batch * m * words;
    let plane_b = batch * n * words;
    let row = group.y * 8u * ROWS;
    let column = group.x * 8u * COLUMNS;
    // This invocation loads word c0 of the step of rows r0, r0 + 16, ... of each tile. Rows past the end repeat the last one and are
    // not stored; words past the end are zero in B.
    let r0 = index / STEP;
    let c0 = index % STEP;
    //@rows
    //@accumulators
    for (var start = first; start < end; start += FLUSH_WORDS) {
        let stop = min(start + FLUSH_WORDS, end);
        for (var k = start; k < stop; k += STEP) {
            let inside = k + c0 < end;
            let at = min(k + c0, end - 1u);
            //@load
            workgroupBarrier();
            //@multiply
            workgroupBarrier();
        }
        //@carry
    }
    //@totals
    // Each output in turn goes through one copy of the way back to binary32: the totals move down by one. Indexing them would need memory.
    for (var i = 0u; i < ROWS * COLUMNS; i += 1u) {
        let r = row + i / COLUMNS * 8u + id.y;
        let c = column + i % COLUMNS * 8u + id.x;
        if (r < m && c < n) {
            output[((block * batch + sample) * m + r) * n + c] = finish(first_total(low_0, high_0, over_0), ma_0, mb_0, p[1].z);
        }
        //@next
    }
}
