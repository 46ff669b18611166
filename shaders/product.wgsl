//!include shared/float.wgsl
//!include shared/digits.wgsl
// product.v1: exact integer products of digit planes by dot4I8Packed, scaled back and rounded once.
//
// A workgroup of 8 x 8 invocations computes a tile of 32 x 32 outputs, each invocation 4 x 4 of them. Digit products of
// equal weight share an accumulator: digits d and e have weight 256^(d + e). An accumulator adds at most 4 pairs of
// 2^14 for each of FLUSH_WORDS * 4 places of K: 4 * 2^14 * 2^14 = 2^30, so i32 is exact; then it is added to a
// 128-bit sum, which no K overflows.
//
// The engine puts `const DIGITS_A`, `const DIGITS_B` (1 to 4) in front of this text.

const TILE: u32 = 32u;
const STEP: u32 = 4u; // words of K that a tile holds
const FLUSH_WORDS: u32 = 4096u;
const SUMS: u32 = DIGITS_A + DIGITS_B - 1u;

// (batch, M, N, words of a row), (blocks, words of a block, magnitude bits of both, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> magnitudes_a: array<u32>;
@group(0) @binding(3) var<storage, read> b: array<u32>;
@group(0) @binding(4) var<storage, read> magnitudes_b: array<u32>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;

var<workgroup> tile_a: array<u32, DIGITS_A * TILE * STEP>;
var<workgroup> tile_b: array<u32, DIGITS_B * TILE * STEP>;
var<private> sums: array<i32, SUMS * 16u>;
var<private> totals: array<vec4<u32>, 16>;

fn flush() {
    for (var o = 0u; o < 16u; o++) {
        var total = totals[o];
        for (var s = 0u; s < SUMS; s++) {
            total = u128_add(total, i128_digit(sums[s * 16u + o], s));
            sums[s * 16u + o] = 0;
        }
        totals[o] = total;
    }
}

fn scale_back(total: vec4<u32>, exponent: i32) -> u32 {
    if ((total.x | total.y | total.z | total.w) == 0u) {
        return 0u;
    }
    let sign = total.w & 0x80000000u;
    var n = select(total, u128_neg(total), sign != 0u);
    // The top bit to bit 127: whole words first.
    var top = 127;
    for (var i = 0u; i < 3u; i++) {
        if (n.w == 0u) {
            n = vec4<u32>(0u, n.x, n.y, n.z);
            top = top - 32;
        }
    }
    let zeros = countLeadingZeros(n.w);
    let m = zeros & 31u;
    let high = (n.w << m) | ((n.z >> 1u) >> ((31u - m) & 31u));
    let low = (n.z << m) | n.y | n.x;
    return f_pack(sign, top - i32(zeros) + exponent + 127, high | u32(low != 0u));
}

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
    let batch = max(p[0].x, 1u);
    let m = p[0].y;
    let n = p[0].z;
    let words = p[0].w;
    let block = group.z / batch;
    let sample = group.z % batch;
    let first = block * p[1].y;
    let end = min(first + p[1].y, words);
    let plane_a = batch * m * words;
    let plane_b = batch * n * words;
    var since_flush = 0u;
    for (var k = first; k < end; k += STEP) {
        // 128 words of each plane of each operand, two for each invocation.
        for (var w = index; w < TILE * STEP; w += 64u) {
            let r = w / STEP;
            let c = k + w % STEP;
            let row_a = group.y * TILE + r;
            let row_b = group.x * TILE + r;
            for (var d = 0u; d < DIGITS_A; d++) {
                var word = 0u;
                if (row_a < m && c < end) {
                    word = a[d * plane_a + (sample * m + row_a) * words + c];
                }
                tile_a[d * TILE * STEP + w] = word;
            }
            for (var d = 0u; d < DIGITS_B; d++) {
                var word = 0u;
                if (row_b < n && c < end) {
                    word = b[d * plane_b + (sample * n + row_b) * words + c];
                }
                tile_b[d * TILE * STEP + w] = word;
            }
        }
        workgroupBarrier();
        for (var c = 0u; c < STEP; c++) {
            for (var e = 0u; e < DIGITS_B; e++) {
                let at_b = e * TILE * STEP + id.x * 4u * STEP + c;
                let vb = vec4<u32>(tile_b[at_b], tile_b[at_b + STEP], tile_b[at_b + 2u * STEP],
                                   tile_b[at_b + 3u * STEP]);
                for (var d = 0u; d < DIGITS_A; d++) {
                    let at_a = d * TILE * STEP + id.y * 4u * STEP + c;
                    let sum = (d + e) * 16u;
                    for (var r = 0u; r < 4u; r++) {
                        let va = tile_a[at_a + r * STEP];
                        let o = sum + r * 4u;
                        sums[o] += dot4I8Packed(va, vb.x);
                        sums[o + 1u] += dot4I8Packed(va, vb.y);
                        sums[o + 2u] += dot4I8Packed(va, vb.z);
                        sums[o + 3u] += dot4I8Packed(va, vb.w);
                    }
                }
            }
        }
        since_flush += STEP;
        if (since_flush >= FLUSH_WORDS) {
            flush();
            since_flush = 0u;
        }
        workgroupBarrier();
    }
    flush();
    for (var o = 0u; o < 16u; o++) {
        let row = group.y * TILE + id.y * 4u + o / 4u;
        let column = group.x * TILE + id.x * 4u + o % 4u;
        if (row < m && column < n) {
            let ma = magnitudes_a[(sample * m + row) * p[1].x + block];
            let mb = magnitudes_b[(sample * n + column) * p[1].x + block];
            let exponent = digits_exponent(ma) + digits_exponent(mb) - i32(p[1].z);
            let value = scale_back(totals[o], exponent);
            let place = ((block * batch + sample) * m + row) * n + column;
            output[place] = select(value, F_NAN, digits_marked(ma) || digits_marked(mb));
        }
    }
}
