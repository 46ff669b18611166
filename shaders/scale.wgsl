//!include shared/view.wgsl
// scale.v1: the absmax of every scale group of a strided view: the greatest bits & 0x7fffffff.

// (groups, blocks of a row, elements of a block, grid width in invocations), dims, strides, (offset, 0, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 4>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let blocks = max(p[0].y, 1u);
    let base = view_row(i / blocks, p[1], p[2], p[3].x);
    let first = (i % blocks) * p[0].z;
    let end = min(first + p[0].z, p[1].w);
    var absmax = 0u;
    for (var k = first; k < end; k++) {
        absmax = max(absmax, input[base + k * p[2].w] & 0x7fffffffu);
    }
    output[i] = absmax;
}
