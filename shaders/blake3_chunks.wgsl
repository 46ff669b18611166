//!include shared/blake3.wgsl
// blake3_chunks.v1: BLAKE3 over a tensor's words. An invocation hashes a chunk of 1024 bytes; a workgroup merges its 64 chunks, all together
// or for each tile.

// (words of the tensor, chunks, first place of the values in the output, workgroups along x), (1 if this is the whole tree, levels that
// are merged, bytes of the last word that are zero and not the tensor's, 0)
@group(0) @binding(0) var<uniform> p: array<vec4<u32>, 2>;
// The input is read a vector at a time; the last vector may hold words behind the tensor, which count as zeros.
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
            let missing = select(0u, p[1].z, chunk + 1u == chunks && block + 1u == blocks);
            let bytes = min(words - block * 16u, 16u) * 4u - missing;
            let message = blake3_block(words_at(at), words_at(at + 1u), words_at(at + 2u), words_at(at + 3u));
            value = blake3_compress(value, message, chunk, bytes, flags);
        }
    }
    let count = min(max(chunks, first) - first, 64u);
    let levels = p[1].y & 7u;
    let merged = blake3_tree(value, index, count, levels, p[1].x != 0u);
    let values = (count + (1u << levels) - 1u) >> levels;
    if (index < values) {
        let to = p[0].z + number * (64u >> levels) + index;
        output[2u * to] = merged.low;
        output[2u * to + 1u] = merged.high;
    }
}
