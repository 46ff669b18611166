//!include shared/tree.wgsl
// segment_sum.v1 for many positions. A workgroup takes eight columns of a segment. Each of 32 invocations of a column sums an aligned
// share of 2^n terms, which is a node of the fixed tree. One of them sums the shares by the same tree.

// (segments, width, groups of eight columns, workgroups along x)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 1>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(0) @binding(4) var<storage, read_write> output: array<u32>;

const COLUMNS: u32 = 8u;
const SHARES: u32 = 32u;

var<workgroup> part: array<u32, 256>;

@compute @workgroup_size(8, 32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {
    let i = group.x + group.y * p[0].w;
    let width = p[0].y;
    let segment = i / max(p[0].z, 1u);
    let column = i % max(p[0].z, 1u) * COLUMNS + id.x;
    let inside = segment < p[0].x && column < width;
    let known = min(segment, max(p[0].x, 1u) - 1u);
    let first = offsets[known];
    let terms = offsets[known + 1u] - first;
    // A share is the least power of two of which 32 cover all terms.
    let least = max((terms + SHARES - 1u) / SHARES, 1u);
    let share = 1u << ((32u - countLeadingZeros(least - 1u)) & 31u);
    let end = select(0u, first + min((id.y + 1u) * share, terms), inside);
    tree_begin();
    for (var j = first + id.y * share; j < end; j++) {
        tree_push(input[order[j] * width + column]);
    }
    part[id.y * COLUMNS + id.x] = tree_end();
    workgroupBarrier();
    if (id.y == 0u && inside) {
        let shares = (terms + share - 1u) / max(share, 1u);
        tree_begin();
        for (var j = 0u; j < min(shares, SHARES); j++) {
            tree_push(part[j * COLUMNS + id.x]);
        }
        output[segment * width + column] = tree_end();
    }
}
