; The ghost variable of `div_step` is the product it stands for: (2 q + one) d = 2 (q d) + one d, modulo 2^64.
;! shader shared/float.wgsl
;! quick
(declare-const q (_ BitVec 64))
(declare-const d (_ BitVec 64))
(declare-const one (_ BitVec 64))
(define-fun twice ((x (_ BitVec 64))) (_ BitVec 64) (bvmul x #x0000000000000002))
(assert (not (= (bvmul (bvadd (twice q) one) d) (bvadd (twice (bvmul q d)) (bvmul one d)))))
