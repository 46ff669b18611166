//!include shared/scale_back.wgsl
// product.v1 for software adapters: exact integer products of whole q's, one in a word, scaled back and rounded once.
//
// A CPU has no workgroup memory of its own and multiplies 32-bit integers in vectors, so this variant has neither
// tiles nor digits: an invocation computes ROWS x COLUMNS outputs directly from the operands. The rows of A are the same
// for the whole workgroup, so that their loads are one load and a broadcast; columns are LANES apart. A q too wide for a
// 32-bit product is split into a few balanced parts in registers. crates/shaders/src/product.rs chooses the parts, and the number of
// products that an accumulator holds. Products of equally split sides are Karatsuba's: three for two parts, six for three.
//
// This file is a template, as product.wgsl is. For the same reason, its only loops are those over K and over the outputs.

//@constants

// (batch, M, N, words of a row / 4), (blocks, words of a block / 4, absmax bits of both, first product)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> a: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read> absmaxes_a: array<u32>;
@group(0) @binding(3) var<storage, read> b: array<vec4<i32>>;
@group(0) @binding(4) var<storage, read> absmaxes_b: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = max(p[0].x, 1u);
    let m = p[0].y;
    let n = p[0].z;
    let words = p[0].w;
    let product = p[1].w + group.z; // of all blocks and samples
    let block = product / batch;
    let sample = product % batch;
    let first = block * p[1].y;
    let end = min(first + p[1].y, words);
    let row = group.y * ROWS;
    let column = group.x * COLUMNS * LANES + lane;
    // Rows and columns past the end repeat the last one and are not stored.
    //@rows
    //@accumulators
    for (var start = first; start < end; start += FLUSH_WORDS) {
        let stop = min(start + FLUSH_WORDS, end);
        for (var k = start; k < stop; k += STEP) {
            //@multiply
        }
        //@flush
    }
    let place = ((block * batch + sample) * m + row) * n + column;
    let mags_a = (sample * m + row) * p[1].x + block;
    let mags_b = (sample * n + column) * p[1].x + block;
    //@store
    // Each output goes through one copy of the way back to binary32: software adapters inline calls, and 32 copies take seconds to compile.
    for (var i = 0u; i < ROWS * COLUMNS; i += 1u) {
        let r = i / COLUMNS;
        let c = i % COLUMNS * LANES;
        if (row + r < m && column + c < n) {
            output[place + r * n + c] = finish(total_widen(totals[i]), absmaxes_a[mags_a + r * p[1].x],
                                               absmaxes_b[mags_b + c * p[1].x], p[1].z);
        }
    }
}
