//!include shared/float.wgsl
// row_max.v1: [rows, len] -> [rows, blocks], by order key.

// (outputs, len, 1, grid width in invocations), (elements of a block, blocks, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let blocks = max(p[1].y, 1u);
    let begin = i % blocks * p[1].x;
    let row = i / blocks * p[0].y;
    var key = 0u;
    for (var j = begin; j < min(begin + p[1].x, p[0].y); j++) {
        key = max(key, f_order_key(input[row + j]));
    }
    output[i] = f_from_order_key(key);
}
