; The ghost variable of `div_step` is the product it stands for: (2 q + one) d = 2 (q d) + (one ? d : 0), modulo 2^64.
;! shader shared/float.wgsl
;! quick
(declare-const q (_ BitVec 64))
(declare-const d (_ BitVec 64))
(declare-const one Bool)
(define-fun bit () (_ BitVec 64) (ite one #x0000000000000001 #x0000000000000000))
(assert (not (= (bvmul (bvadd q q bit) d) (bvadd (bvmul q d) (bvmul q d) (ite one d #x0000000000000000)))))
