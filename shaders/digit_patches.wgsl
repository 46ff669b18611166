// digit_patches.v1: the integers of every pixel of every patch of quantised images, 0 outside of the image. The layout is that of
// quantise.v1: planes of digits, four elements along K in a word, or whole q's, one in a word.

// (words of an output plane, words of an output row, digits or 0 for whole q's, grid width in invocations),
// (words of an input plane, words of an input row, K, channels), (patches down, patches across, taps down, taps across),
// (height, width, stride, padding), (1 if transposed, 1 if channels are rows, first row of patches, first element of a patch)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 5>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// The row (or column) of `len` that tap `tap` of patch `at` reads, as in patches.v1; a number that is not below `len` is outside.
fn source(at: u32, tap: u32, len: u32) -> u32 {
    if (p[4].x == 0u) {
        return at * p[3].z + tap - p[3].w;
    }
    let place = at + p[3].w - tap;
    let stride = max(p[3].z, 1u);
    return select(len, place / stride, place % stride == 0u);
}

// The place of element k of a row of the output in the input's first plane: the word times 4, plus the element in the word. All ones
// outside of the images.
fn place_of(row: u32, k: u32) -> u32 {
    let by_channel = p[4].y != 0u;
    let number = select(row, k, by_channel);
    let place = select(k, row, by_channel);
    let channels = max(p[1].w, 1u);
    let down = max(p[2].x, 1u);
    let across = max(p[2].y, 1u);
    let taps_across = max(p[2].w, 1u);
    let tap = place / channels + p[4].w;
    let channel = place % channels;
    let line = number / across;
    let sample = line / down;
    let y = source(line % down + p[4].z, tap / taps_across, p[3].x);
    let x = source(number % across, tap % taps_across, p[3].y);
    if (y >= p[3].x || x >= p[3].y) {
        return 0xffffffffu;
    }
    if (by_channel) {
        return channel * p[1].y * 4u + (sample * p[3].x + y) * p[3].y + x;
    }
    return sample * p[1].y * 4u + (y * p[3].y + x) * channels + channel;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let words = max(p[0].y, 1u);
    let row = i / words;
    let first = (i % words) * 4u;
    var places = vec4<u32>(0xffffffffu);
    for (var j = 0u; j < 4u; j++) {
        if (first + j < p[1].z) {
            places[j] = place_of(row, first + j);
        }
    }
    if (p[0].z == 0u) {
        for (var j = 0u; j < 4u; j++) {
            var q = 0u;
            if (places[j] != 0xffffffffu) {
                q = input[places[j]];
            }
            output[i * 4u + j] = q;
        }
    }
    for (var digit = 0u; digit < p[0].z; digit++) {
        var word = 0u;
        for (var j = 0u; j < 4u; j++) {
            if (places[j] != 0xffffffffu) {
                let four = input[digit * p[1].x + places[j] / 4u];
                word |= ((four >> ((places[j] * 8u) & 24u)) & 255u) << ((8u * j) & 24u);
            }
        }
        output[digit * p[0].x + i] = word;
    }
}
