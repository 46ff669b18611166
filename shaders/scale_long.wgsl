//!include shared/view.wgsl
// scale.v1 for long groups, with a workgroup for each group, so that no invocation loops long (see product.wgsl).

// (groups, blocks of a row, elements of a block, workgroups along x), dims, strides, (offset, 0, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 4>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

var<workgroup> part: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let i = group.x + group.y * p[0].w;
    let blocks = max(p[0].y, 1u);
    let base = view_row(i / blocks, p[1], p[2], p[3].x);
    let first = (i % blocks) * p[0].z;
    let end = select(0u, min(first + p[0].z, p[1].w), i < p[0].x);
    var absmax = 0u;
    for (var k = first + index; k < end; k += 64u) {
        absmax = max(absmax, input[base + k * p[2].w] & 0x7fffffffu);
    }
    part[index] = absmax;
    workgroupBarrier();
    if (index == 0u && i < p[0].x) {
        for (var j = 1u; j < 64u; j++) {
            absmax = max(absmax, part[j]);
        }
        output[i] = absmax;
    }
}
