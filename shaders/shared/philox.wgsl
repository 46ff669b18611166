//!include shared/wide.wgsl
// Philox4x32-10, as in crates/contract/src/arith/philox.rs.

fn philox4x32_10(key: vec2<u32>, counter: vec4<u32>) -> vec4<u32> {
    var k = key;
    var c = counter;
    for (var i = 0u; i < 10u; i++) {
        let p0 = u32_mul(0xD2511F53u, c.x);
        let p1 = u32_mul(0xCD9E8D57u, c.z);
        c = vec4<u32>(p1.y ^ c.y ^ k.x, p1.x, p0.y ^ c.w ^ k.y, p0.x);
        k = k + vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

fn philox_word(key: vec2<u32>, counter: vec4<u32>, word: u32) -> u32 {
    let words = philox4x32_10(key, counter);
    let pair = select(words.xy, words.zw, (word & 2u) != 0u);
    return select(pair.x, pair.y, (word & 1u) != 0u);
}
