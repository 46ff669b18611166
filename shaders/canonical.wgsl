// canonical.v1: the integers of quantise.v1 as canonical bytes, which BLAKE3 hashes: two's complement with one byte for each digit,
// little-endian, without padding.

// (words of the output, K, words of a row, grid width in invocations), (words of a plane, bytes of an integer, planes or 0 for whole q's,
// integers)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + id.y * p[0].w;
    if (i >= p[0].x) {
        return;
    }
    let k = max(p[0].y, 1u);
    let size = max(p[1].y, 1u);
    var word = 0u;
    for (var j = 0u; j < 4u; j++) {
        let byte = i * 4u + j;
        let element = byte / size;
        if (element < p[1].w) {
            let place = element % k;
            let at = element / k * p[0].z + place / 4u;
            var q = 0u;
            if (p[1].z == 0u) {
                q = input[at * 4u + (place & 3u)];
            }
            for (var digit = 0u; digit < p[1].z; digit++) {
                let low = input[digit * p[1].x + at] >> ((place * 8u) & 31u);
                // The byte's sign extends to all bits above it.
                q += (((low & 255u) ^ 128u) - 128u) << ((digit * 8u) & 31u);
            }
            word |= ((q >> (((byte % size) * 8u) & 31u)) & 255u) << ((j * 8u) & 31u);
        }
    }
    output[i] = word;
}
