//!include shared/float.wgsl
// row_max.v1: [rows, len] -> [rows], by order key.

// (rows, len, 0, grid width in invocations)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 1>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    var key = 0u;
    for (var j = 0u; j < p[0].y; j++) {
        key = max(key, f_order_key(input[i * p[0].y + j]));
    }
    output[i] = f_from_order_key(key);
}
