// window_copy.v1: the elements of a strided window, from or to a piece of a tensor. Elements outside of either buffer are left out:
// other pieces have them.

// (elements, grid width in invocations, words of the source, words of the target), dims, strides in the source, strides in the
// target, (offset in the source, offset in the target, 0, 0). Offsets before a piece wrap around, so that places before it are
// past its end.
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 5>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].y;
    if (i >= p[0].x) {
        return;
    }
    let i3 = i % max(p[1].w, 1u);
    let t2 = i / max(p[1].w, 1u);
    let i2 = t2 % max(p[1].z, 1u);
    let t1 = t2 / max(p[1].z, 1u);
    let i1 = t1 % max(p[1].y, 1u);
    let i0 = t1 / max(p[1].y, 1u);
    let from_place = p[4].x + i0 * p[2].x + i1 * p[2].y + i2 * p[2].z + i3 * p[2].w;
    let to_place = p[4].y + i0 * p[3].x + i1 * p[3].y + i2 * p[3].z + i3 * p[3].w;
    if (from_place < p[0].z && to_place < p[0].w) {
        output[to_place] = input[from_place];
    }
}
