// patches.v1: every pixel of every patch of images [N, height, width, channels], 0 outside: out[(n, y, x), (ky, kx, c)].

// (elements, grid width in invocations, channels, first row of patches), (patches down, patches across, taps down, taps across),
// (height, width, stride, padding), (1 if transposed, 0, 0, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 4>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// The row (or column) of `len` that tap `tap` of patch `at` reads; a number that is not below `len` is outside. Numbers before the image
// wrap around to far behind it.
fn source(at: u32, tap: u32, len: u32) -> u32 {
    if (p[3].x == 0u) {
        return at * p[2].z + tap - p[2].w;
    }
    let place = at + p[2].w - tap;
    let stride = max(p[2].z, 1u);
    return select(len, place / stride, place % stride == 0u);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].y;
    if (i >= p[0].x) {
        return;
    }
    let channels = max(p[0].z, 1u);
    let down = max(p[1].x, 1u);
    let across = max(p[1].y, 1u);
    let taps_down = max(p[1].z, 1u);
    let taps_across = max(p[1].w, 1u);
    var place = i / channels;
    let kx = place % taps_across;
    place /= taps_across;
    let ky = place % taps_down;
    place /= taps_down;
    let x = place % across;
    place /= across;
    let row = source(place % down + p[0].w, ky, p[2].x);
    let column = source(x, kx, p[2].y);
    var value = 0u;
    if (row < p[2].x && column < p[2].y) {
        value = input[((place / down * p[2].x + row) * p[2].y + column) * channels + i % channels];
    }
    output[i] = value;
}
