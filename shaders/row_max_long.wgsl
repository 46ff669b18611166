//!include shared/float.wgsl
// row_max.v1 for long rows, with a workgroup for each block.

// (outputs, len, 1, workgroups along x), (elements of a block, blocks, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

var<workgroup> part: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let i = group.x + group.y * p[0].w;
    let blocks = max(p[1].y, 1u);
    let begin = i % blocks * p[1].x;
    let row = i / blocks * p[0].y;
    let end = select(0u, min(begin + p[1].x, p[0].y), i < p[0].x);
    var key = 0u;
    for (var j = begin + index; j < end; j += 64u) {
        key = max(key, f_order_key(input[row + j]));
    }
    part[index] = key;
    workgroupBarrier();
    if (index == 0u && i < p[0].x) {
        for (var j = 1u; j < 64u; j++) {
            key = max(key, part[j]);
        }
        output[i] = f_from_order_key(key);
    }
}
