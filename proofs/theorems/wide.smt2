; The helpers on two and four words are those of 64 and 128-bit integers: addition, subtraction, comparison, negation, shifts by 0 to
; 63 places, leading zeros, and a signed word's value shifted.
;! shader shared/wide.wgsl
;! define u64_add u64_sub u64_less u64_shl u64_shr u64_clz u128_add u128_neg i64_shl i128_shl
;! quick
;! fault return vec2<u32>(low, a.y + b.y + u32(low < a.x)); => return vec2<u32>(low, a.y + b.y + u32(low <= a.x));
;! fault return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x)); => return vec2<u32>(a.x - b.x, a.y - b.y);
;! fault (v.y << m) | ((v.x >> 1u) >> ((31u - m) & 31u)) => (v.y << m) | (v.x >> ((32u - m) & 31u))
;! fault ((v.y << 1u) << ((31u - m) & 31u)), v.y >> m => (v.y << ((32u - m) & 31u)), v.y >> m
;! fault let c2 = u32(s.z < a.z) | u32(z < c1); => let c2 = u32(s.z < a.z);
;! fault return select(vec4<u32>(a, b, fill, fill), vec4<u32>(0u, a, b, fill), n >= 32u); => return select(vec4<u32>(a, b, fill, fill), vec4<u32>(0u, a, b, 0u), n >= 32u);
(declare-const a (_ BitVec 64))
(declare-const b (_ BitVec 64))
(declare-const c (_ BitVec 128))
(declare-const d (_ BitVec 128))
(declare-const n (_ BitVec 32))
(declare-const value (_ BitVec 32))
(assert (bvult n #x00000040))
(define-fun n64 () (_ BitVec 64) ((_ zero_extend 32) n))
(define-fun n128 () (_ BitVec 128) ((_ zero_extend 96) n))
(assert (not (and
  (= (u64_add a b) (bvadd a b))
  (= (u64_sub a b) (bvsub a b))
  (= (u64_less a b) (bvult a b))
  (= (u64_shl a n) (bvshl a n64))
  (= (u64_shr a n) (bvlshr a n64))
  ; n leading zeros: the top n bits are 0, and the next one is not.
  (=> (= (u64_clz a) n) (and (= (bvlshr (bvlshr a #x0000000000000001) (bvsub #x000000000000003f n64)) #x0000000000000000)
                             (= ((_ extract 63 63) (bvshl a n64)) #b1)))
  (or (bvult (u64_clz a) #x00000040) (and (= (u64_clz a) #x00000040) (= a #x0000000000000000)))
  (= (u128_add c d) (bvadd c d))
  (= (u128_neg c) (bvneg c))
  (= (i64_shl value n) (bvshl ((_ sign_extend 32) value) n64))
  (= (i128_shl value n) (bvshl ((_ sign_extend 96) value) n128)))))
