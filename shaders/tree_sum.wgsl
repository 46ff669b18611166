//!include shared/tree.wgsl
// tree_sum.v1: [outer, len, inner] -> [outer, blocks, inner]. Each output has one invocation, so that neighbours read neighbours.

// (outputs, len, inner, grid width in invocations), (terms of a block, blocks, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let inner = max(p[0].z, 1u);
    let blocks = max(p[1].y, 1u);
    let begin = (i / inner) % blocks * p[1].x;
    let first = (i / inner / blocks) * p[0].y * inner + i % inner;
    tree_begin();
    for (var j = begin; j < min(begin + p[1].x, p[0].y); j++) {
        tree_push(input[first + j * inner]);
    }
    output[i] = tree_end();
}
