; u32_mul adds four products of 16-bit halves to 64 bits: for any four words in place of these products that are at most
; (2^16 - 1)^2, low + 2^16 (left + right) + 2^32 high. `limbs_bound` and `limbs_identity` make a product of it.
;! shader shared/wide.wgsl
;! define u32_mul
;! open wgsl.mul
;! quick
;! fault (low >> 16u) + (left & 0xffffu) => (left & 0xffffu)
;! fault + (middle >> 16u)); => );
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(define-fun low-half ((x (_ BitVec 32))) (_ BitVec 32) (bvand x #x0000ffff))
(define-fun high-half ((x (_ BitVec 32))) (_ BitVec 32) (bvlshr x #x00000010))
(define-fun low () (_ BitVec 32) (wgsl.mul (low-half a) (low-half b)))
(define-fun left () (_ BitVec 32) (wgsl.mul (high-half a) (low-half b)))
(define-fun right () (_ BitVec 32) (wgsl.mul (low-half a) (high-half b)))
(define-fun high () (_ BitVec 32) (wgsl.mul (high-half a) (high-half b)))
(define-fun possible ((x (_ BitVec 32))) Bool (bvule x #xfffe0001))
(define-fun wide ((x (_ BitVec 32)) (shift (_ BitVec 64))) (_ BitVec 64) (bvshl ((_ zero_extend 32) x) shift))
(assert (and (possible low) (possible left) (possible right) (possible high)))
(assert (not (= (u32_mul a b)
  (bvadd (wide low #x0000000000000000) (wide left #x0000000000000010) (wide right #x0000000000000010)
         (wide high #x0000000000000020)))))
