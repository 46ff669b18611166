; u64_mul_high is the high half of a 128-bit product or 1 less: for any four 64-bit words in place of u32_mul's products that are at
; most (2^32 - 1)^2, added column by column.
;! shader shared/wide.wgsl
;! define u64_mul_high
;! abstract u32_mul
;! quick
;! fault let carry = u32(left.x + right.x < left.x); => let carry = 0u;
;! fault let middle = u64_add(vec2<u32>(left.y, 0u), vec2<u32>(right.y, 0u)); => let middle = vec2<u32>(left.y + right.y, 0u);
(declare-const a (_ BitVec 64))
(declare-const b (_ BitVec 64))
(define-fun low-half ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 31 0) x))
(define-fun high-half ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 63 32) x))
(define-fun low () (_ BitVec 64) (u32_mul (low-half a) (low-half b)))
(define-fun left () (_ BitVec 64) (u32_mul (high-half a) (low-half b)))
(define-fun right () (_ BitVec 64) (u32_mul (low-half a) (high-half b)))
(define-fun high () (_ BitVec 64) (u32_mul (high-half a) (high-half b)))
(define-fun possible ((x (_ BitVec 64))) Bool (bvule x #xfffffffe00000001))
(assert (and (possible low) (possible left) (possible right) (possible high)))
(define-fun more ((x (_ BitVec 32))) (_ BitVec 64) ((_ zero_extend 32) x))
; The second column's sum, and what it carries into the third.
(define-fun column () (_ BitVec 64)
  (bvadd (more (high-half low)) (more (low-half left)) (more (low-half right))))
(define-fun exact () (_ BitVec 64)
  (bvadd high (more (high-half left)) (more (high-half right)) (more (high-half column))))
(assert (not (bvule (bvsub exact (u64_mul_high a b)) #x0000000000000001)))
