//!include shared/blake3.wgsl
// blake3_parents.v1: BLAKE3's tree over chaining values. A workgroup merges 64 values.

// (unused, values, first place of the merged values in the output, workgroups along x), (1 if this is the top of the tree, ...)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> output: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let number = group.x + group.y * p[0].w;
    let first = number * 64u;
    let values = p[0].y;
    var value = Blake3(BLAKE3_IV_LOW, BLAKE3_IV_HIGH);
    if (first + index < values) {
        value = Blake3(input[2u * (first + index)], input[2u * (first + index) + 1u]);
    }
    let count = min(max(values, first) - first, 64u);
    let merged = blake3_tree(value, index, count, 6u, p[1].x != 0u);
    if (index == 0u && count > 0u) {
        output[2u * (p[0].z + number)] = merged.low;
        output[2u * (p[0].z + number) + 1u] = merged.high;
    }
}
