//!include shared/tree.wgsl
// segment_sum.v1: out[s, w] = the tree sum of input[order[i], w] for i in offsets[s]..offsets[s + 1].

// (outputs, width, 0, grid width in invocations)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 1>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(0) @binding(4) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let width = max(p[0].y, 1u);
    let segment = i / width;
    let column = i % width;
    let end = offsets[segment + 1u];
    tree_begin();
    for (var j = offsets[segment]; j < end; j++) {
        tree_push(input[order[j] * width + column]);
    }
    output[i] = tree_end();
}
