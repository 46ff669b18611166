; The ghost variable of `sqrt_step` is the square it stands for: (2 r + one)^2 = 4 r^2 + one (4 r + 1), modulo 2^64, for one = 0 and 1.
;! shader shared/float.wgsl
;! each one 0 1
(declare-const r (_ BitVec 64))
(define-fun twice ((x (_ BitVec 64))) (_ BitVec 64) (bvmul x #x0000000000000002))
(define-fun odd () (_ BitVec 64) (bvadd (twice r) #x000000000000000{one}))
(assert (not (= (bvmul odd odd)
  (bvadd (twice (twice (bvmul r r))) (bvmul #x000000000000000{one} (bvadd (twice (twice r)) #x0000000000000001))))))
