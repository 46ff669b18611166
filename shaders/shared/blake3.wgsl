// BLAKE3's compression (github.com/BLAKE3-team/BLAKE3-specs, section 2.2), and its tree within a workgroup.

const BLAKE3_IV_LOW = vec4<u32>(0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au);
const BLAKE3_IV_HIGH = vec4<u32>(0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u);
const BLAKE3_CHUNK_START: u32 = 1u;
const BLAKE3_CHUNK_END: u32 = 2u;
const BLAKE3_PARENT: u32 = 4u;
const BLAKE3_ROOT: u32 = 8u;

// A chaining value: words 0 to 3, and 4 to 7.
struct Blake3 {
    low: vec4<u32>,
    high: vec4<u32>,
}

// Sixteen words in the order of a round: even and odd words of the columns, then of the diagonals.
struct Blake3Block {
    column_x: vec4<u32>,
    column_y: vec4<u32>,
    diagonal_x: vec4<u32>,
    diagonal_y: vec4<u32>,
}

fn blake3_block(a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>) -> Blake3Block {
    return Blake3Block(vec4<u32>(a.x, a.z, b.x, b.z), vec4<u32>(a.y, a.w, b.y, b.w),
                       vec4<u32>(c.x, c.z, d.x, d.z), vec4<u32>(c.y, c.w, d.y, d.w));
}

// The state's rows.
struct Blake3State {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

// Four quarter rounds side by side, on the state's columns.
fn blake3_quarters(state: Blake3State, x: vec4<u32>, y: vec4<u32>) -> Blake3State {
    var s = state;
    s.a = s.a + s.b + x;
    s.d = s.d ^ s.a;
    s.d = (s.d >> vec4<u32>(16u)) | (s.d << vec4<u32>(16u));
    s.c = s.c + s.d;
    s.b = s.b ^ s.c;
    s.b = (s.b >> vec4<u32>(12u)) | (s.b << vec4<u32>(20u));
    s.a = s.a + s.b + y;
    s.d = s.d ^ s.a;
    s.d = (s.d >> vec4<u32>(8u)) | (s.d << vec4<u32>(24u));
    s.c = s.c + s.d;
    s.b = s.b ^ s.c;
    s.b = (s.b >> vec4<u32>(7u)) | (s.b << vec4<u32>(25u));
    return s;
}

fn blake3_compress(value: Blake3, block: Blake3Block, counter: u32, bytes: u32, flags: u32) -> Blake3 {
    var m = block;
    var s = Blake3State(value.low, value.high, BLAKE3_IV_LOW, vec4<u32>(counter, 0u, bytes, flags));
    for (var round = 0u; round < 7u; round += 1u) {
        s = blake3_quarters(s, m.column_x, m.column_y);
        // Diagonals are columns of rows that are rotated by 1, 2 and 3.
        s = blake3_quarters(Blake3State(s.a, s.b.yzwx, s.c.zwxy, s.d.wxyz), m.diagonal_x, m.diagonal_y);
        s = Blake3State(s.a, s.b.wxyz, s.c.zwxy, s.d.yzwx);
        // The permutation 2 6 3 10 7 0 4 13 1 11 12 5 9 14 15 8 of the words.
        let x = m.column_x;
        let y = m.column_y;
        let z = m.diagonal_x;
        let w = m.diagonal_y;
        m = Blake3Block(vec4<u32>(x.y, y.y, y.w, x.z), vec4<u32>(x.w, z.y, x.x, w.z),
                        vec4<u32>(y.x, z.z, w.x, w.w), vec4<u32>(w.y, y.z, z.w, z.x));
    }
    return Blake3(s.a ^ s.c, s.b ^ s.d);
}

// Chaining values of a workgroup's 64 invocations.
var<workgroup> blake3_low: array<vec4<u32>, 64>;
var<workgroup> blake3_high: array<vec4<u32>, 64>;

// Merges the first `count` of a workgroup's values; invocation `index` brings one. Neighbours merge level by level, and a value without a
// neighbour moves up, as in BLAKE3's tree. After `levels` levels, up to 6, every 2^levels values are one, held by the first invocations.
// `root` says that the last merge is the tree's top.
fn blake3_tree(mine: Blake3, index: u32, count: u32, levels: u32, root: bool) -> Blake3 {
    blake3_low[index] = mine.low;
    blake3_high[index] = mine.high;
    var merged = mine;
    var left = count;
    for (var level = 0u; level < min(levels, 6u); level += 1u) {
        workgroupBarrier();
        let pairs = left / 2u;
        let pair = min(index, 31u) * 2u;
        merged = Blake3(blake3_low[pair], blake3_high[pair]);
        if (index < pairs) {
            let flags = BLAKE3_PARENT | select(0u, BLAKE3_ROOT, root && left == 2u);
            let block = blake3_block(merged.low, merged.high, blake3_low[pair + 1u], blake3_high[pair + 1u]);
            merged = blake3_compress(Blake3(BLAKE3_IV_LOW, BLAKE3_IV_HIGH), block, 0u, 64u, flags);
        }
        workgroupBarrier();
        left = left - pairs;
        if (index < left) {
            blake3_low[index] = merged.low;
            blake3_high[index] = merged.high;
        }
    }
    return merged;
}
