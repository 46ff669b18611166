//!include shared/tree.wgsl
// tree_sum.v1 for long sums, with a workgroup for each output. Each invocation sums an aligned share of 2^n terms, which is a node of
// the fixed tree. One invocation sums the shares by the same tree.

// (outputs, len, inner, workgroups along x), (terms of a block, blocks, terms of a share, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

var<workgroup> part: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let i = group.x + group.y * p[0].w;
    let inner = max(p[0].z, 1u);
    let blocks = max(p[1].y, 1u);
    let begin = (i / inner) % blocks * p[1].x;
    let terms = min(p[1].x, p[0].y - min(begin, p[0].y));
    let first = (i / inner / blocks) * p[0].y * inner + begin * inner + i % inner;
    let end = select(0u, min((index + 1u) * p[1].z, terms), i < p[0].x);
    tree_begin();
    for (var j = index * p[1].z; j < end; j++) {
        tree_push(input[first + j * inner]);
    }
    part[index] = tree_end();
    workgroupBarrier();
    if (index == 0u && i < p[0].x) {
        let shares = (terms + p[1].z - 1u) / max(p[1].z, 1u);
        tree_begin();
        for (var j = 0u; j < min(shares, 64u); j++) {
            tree_push(part[j]);
        }
        output[i] = tree_end();
    }
}
