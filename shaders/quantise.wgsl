//!include shared/view.wgsl
//!include shared/digits.wgsl
// quantise.v1: a strided view to planes of balanced base-256 digits: [digit][row][word], four digits along K in a word,
// least significant first; or to whole q's, one in a word. K is padded with zeros to whole steps of the product.

// (words of a plane, words of a row, digits or 0 for whole q's, grid width in invocations), dims, strides,
// (offset, blocks of a row, elements of a block, absmax bits)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 4>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> absmaxes: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let words = max(p[0].y, 1u);
    let row = i / words;
    let base = view_row(row, p[1], p[2], p[3].x);
    let first = (i % words) * 4u;
    // A word is in one block, since blocks are multiples of four.
    let absmax = absmaxes[row * p[3].y + min(first / max(p[3].z, 1u), p[3].y - 1u)];
    var rest = vec4<i32>(0, 0, 0, 0);
    for (var j = 0u; j < 4u; j++) {
        if (first + j < p[1].w) {
            rest[j] = digits_quantise(input[base + (first + j) * p[2].w], absmax, i32(p[3].w));
        }
    }
    if (p[0].z == 0u) {
        for (var j = 0u; j < 4u; j++) {
            output[i * 4u + j] = bitcast<u32>(rest[j]);
        }
    }
    for (var digit = 0u; digit < p[0].z; digit++) {
        // The low byte is a signed digit; the rest is above it.
        let low = vec4<i32>((rest << vec4<u32>(24u)) >> vec4<u32>(24u));
        rest = (rest - low) >> vec4<u32>(8u);
        let b = vec4<u32>(low) & vec4<u32>(255u);
        output[digit * p[0].x + i] = b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
    }
}
