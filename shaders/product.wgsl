//!include shared/scale_back.wgsl
// product.v1 for GPUs: exact integer products of digit planes, scaled back and rounded once.
//
// A workgroup of 8 x 8 invocations computes a tile of 32 x 32 outputs, each invocation 4 x 4 of them. Digit products of
// equal weight share an accumulator: digits d and e have weight 256^(d + e). An i32 accumulator adds at most 4 pairs of
// 2^14 for each of FLUSH_WORDS * 4 places of K: 4 * 2^14 * 2^14 = 2^30, which is exact; then it is added to the
// total, which the longest K does not overflow.
//
// This is a template: src/shaders/product.rs replaces the lines `//@...` for a pair of digit counts, every loop over
// digits, rows and words of a tile written out. That keeps accumulators in registers; and some software adapters stop an
// invocation's loops, silently, after 65535 rounds altogether, so the only loop is the one over K. Two variants of the
// arithmetic share it: dot4I8Packed on words, or fma on digits turned to f32, which is exact since the terms of a tile
// add up to less than 2^24 (the lint derives that bound from the text).

//@constants

const TILE: u32 = 32u;
const STEP: u32 = 4u; // words of K that a tile holds
const FLUSH_WORDS: u32 = 4096u;

// (batch, M, N, words of a row), (blocks, words of a block, absmax bits of both, first product)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> absmaxes_a: array<u32>;
@group(0) @binding(3) var<storage, read> b: array<u32>;
@group(0) @binding(4) var<storage, read> absmaxes_b: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;

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
    // This invocation loads words `index` and `index + 64` of each tile: rows r0 and r0 + 16, word c0 of the step.
    let r0 = index / STEP;
    let c0 = index % STEP;
    let row_a = group.y * TILE + r0;
    let row_b = group.x * TILE + r0;
    let at_a = (sample * m + row_a) * words + c0;
    let at_b = (sample * n + row_b) * words + c0;
    let from_a = id.y * 4u * STEP;
    let from_b = id.x * 4u * STEP;
    //@accumulators
    var since_flush = 0u;
    for (var k = first; k < end; k += STEP) {
        let inside = k + c0 < end;
        //@load
        workgroupBarrier();
        //@multiply
        since_flush += STEP;
        if (since_flush >= FLUSH_WORDS) {
            //@flush
            since_flush = 0u;
        }
        workgroupBarrier();
    }
    //@flush
    let row = group.y * TILE + id.y * 4u;
    let column = group.x * TILE + id.x * 4u;
    let place = ((block * batch + sample) * m + row) * n + column;
    let mags_a = (sample * m + row) * p[1].x + block;
    let mags_b = (sample * n + column) * p[1].x + block;
    //@store
}
