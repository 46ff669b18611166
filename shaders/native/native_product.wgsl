// native_product: a plain binary32 matrix product, summed in any order of the driver. The shader stands in for a trainer's own kernels
// in the logged profile. It is no verifier shader: the lint does not pass it, and the engine runs it for nothing else.

struct Params {
    // batch0 * batch1, M, N, K
    size: vec4<u32>,
    // strides of (batch0, batch1, row, K)
    a: vec4<u32>,
    b: vec4<u32>,
    // batch1, offsets of a and b, the first batch of this dispatch
    place: vec4<u32>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> in_a: array<f32>;
@group(0) @binding(2) var<storage, read> in_b: array<f32>;
@group(0) @binding(3) var<storage, read_write> output: array<f32>;

// Each invocation computes four neighbouring columns of a row.
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let column = id.x * 4u;
    let batch = id.z + p.place.w;
    if (row >= p.size.y || column >= p.size.z || batch >= p.size.x) {
        return;
    }
    let outer = vec2<u32>(batch / p.place.x, batch % p.place.x);
    let a = p.place.y + outer.x * p.a.x + outer.y * p.a.y + row * p.a.z;
    let b = p.place.z + outer.x * p.b.x + outer.y * p.b.y;
    // Columns past the end repeat the last one and are not written.
    let last = p.size.z - 1u;
    let columns = min(vec4<u32>(column, column + 1u, column + 2u, column + 3u), vec4<u32>(last));
    let starts = vec4<u32>(b) + columns * p.b.z;
    var sums = vec4<f32>();
    let k = p.size.w;
    for (var i = 0u; i < k; i = i + 1u) {
        let at = starts + vec4<u32>(i * p.b.w);
        let terms = vec4<f32>(in_b[at.x], in_b[at.y], in_b[at.z], in_b[at.w]);
        sums = sums + in_a[a + i * p.a.w] * terms;
    }
    let to = (batch * p.size.y + row) * p.size.z;
    output[to + columns.x] = sums.x;
    if (column + 1u < p.size.z) {
        output[to + columns.y] = sums.y;
    }
    if (column + 2u < p.size.z) {
        output[to + columns.z] = sums.z;
    }
    if (column + 3u < p.size.z) {
        output[to + columns.w] = sums.w;
    }
}
