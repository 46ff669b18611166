; A product of two 16-bit halves is at most (2^16 - 1)^2 and so the same in 32 bits and in 64.
;! shader shared/wide.wgsl
;! quick
(declare-const x (_ BitVec 16))
(declare-const y (_ BitVec 16))
(define-fun narrow () (_ BitVec 32) (bvmul ((_ zero_extend 16) x) ((_ zero_extend 16) y)))
(assert (not (and (bvule narrow #xfffe0001)
  (= ((_ zero_extend 32) narrow) (bvmul ((_ zero_extend 48) x) ((_ zero_extend 48) y))))))
