// gather.v1: out[i, c] = table[i * stride_row + c * stride_column + indices[i] * stride_index].

// (elements, columns, 0, grid width in invocations), (stride_index, stride_row, stride_column, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read> indices: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let columns = max(p[0].y, 1u);
    let row = i / columns;
    let column = i % columns;
    output[i] = table[indices[row] * p[1].x + row * p[1].y + column * p[1].z];
}
