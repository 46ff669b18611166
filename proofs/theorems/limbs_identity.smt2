; (2^16 ah + al) (2^16 bh + bl) = al bl + 2^16 (ah bl + al bh) + 2^32 ah bh, modulo 2^64. With `limbs` and `limbs_bound`: u32_mul is
; the product of its operands, all 64 bits.
;! shader shared/wide.wgsl
;! quick
(declare-const ah (_ BitVec 64))
(declare-const al (_ BitVec 64))
(declare-const bh (_ BitVec 64))
(declare-const bl (_ BitVec 64))
(define-fun up ((x (_ BitVec 64))) (_ BitVec 64) (bvmul x #x0000000000010000))
(assert (not (= (bvmul (bvadd (up ah) al) (bvadd (up bh) bl))
  (bvadd (bvmul al bl) (up (bvmul ah bl)) (up (bvmul al bh)) (up (up (bvmul ah bh)))))))
