; The ghost variable of `sqrt_step` is the square it stands for: (2 r + one)^2 = 4 r^2 + one (4 r + one), modulo 2^64; one is 0 or 1, so the
; last term is one (4 r + 1).
;! shader shared/float.wgsl
;! quick
(declare-const r (_ BitVec 64))
(declare-const one (_ BitVec 64))
(define-fun four ((x (_ BitVec 64))) (_ BitVec 64) (bvmul x #x0000000000000004))
(define-fun next () (_ BitVec 64) (bvadd (bvmul r #x0000000000000002) one))
(assert (not (= (bvmul next next) (bvadd (four (bvmul r r)) (four (bvmul r one)) (bvmul one one)))))
