//!include shared/blake3.wgsl
// blake3_chunks.v1: BLAKE3 over a tensor's words: an invocation hashes a chunk of 1024 bytes, a workgroup merges its 64 chunks.

// (words of the tensor, chunks, where the values go in the output, workgroups along x), (1 if this is the whole tree, ...)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
// Read a vector at a time; the last may hold words behind the tensor, which count as zeros.
@group(0) @binding(1) var<storage, read> input: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> output: array<vec4<u32>>;

fn words_at(vector: u32) -> vec4<u32> {
    let first = vector * 4u;
    let words = p[0].x;
    if (first >= words) {
        return vec4<u32>();
    }
    let place = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<u32>(), input[vector], place < vec4<u32>(words));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let number = group.x + group.y * p[0].w;
    let first = number * 64u;
    let chunks = p[0].y;
    let chunk = first + index;
    var value = Blake3(BLAKE3_IV_LOW, BLAKE3_IV_HIGH);
    if (chunk < chunks) {
        let words = min(p[0].x - chunk * 256u, 256u);
        let blocks = max((words + 15u) / 16u, 1u);
        for (var block = 0u; block < blocks; block += 1u) {
            let at = chunk * 64u + block * 4u;
            var flags = 0u;
            if (block == 0u) {
                flags |= BLAKE3_CHUNK_START;
            }
            if (block + 1u == blocks) {
                flags |= BLAKE3_CHUNK_END | select(0u, BLAKE3_ROOT, chunks == 1u);
            }
            let bytes = min(words - block * 16u, 16u) * 4u;
            let message = blake3_block(words_at(at), words_at(at + 1u), words_at(at + 2u), words_at(at + 3u));
            value = blake3_compress(value, message, chunk, bytes, flags);
        }
    }
    let count = min(max(chunks, first) - first, 64u);
    let merged = blake3_tree(value, index, count, p[1].x != 0u);
    if (index == 0u && count > 0u) {
        output[2u * (p[0].z + number)] = merged.low;
        output[2u * (p[0].z + number) + 1u] = merged.high;
    }
}
