; The product of two significands 1.f with 31 bits after the point is at least 2^62, and a multiple of 2^16 if both are of 2^8: what
; `mul` asks of P.
;! shader shared/wide.wgsl
;! quick
(declare-const x (_ BitVec 64))
(declare-const y (_ BitVec 64))
(declare-const more (_ BitVec 64))
; (2^31 + x) (2^31 + y) = 2^62 + 2^31 (x + y) + x y, whose last three terms, with x and y below 2^31 and so x y below 2^62, do not
; wrap around.
(define-fun whole () (_ BitVec 64) #x0000000080000000)
(define-fun up ((x (_ BitVec 64))) (_ BitVec 64) (bvmul x #x0000000000000100))
(assert (not (and
  (= (bvmul (up x) (up y)) (up (up (bvmul x y))))
  (= (bvmul (bvadd whole x) (bvadd whole y))
     (bvadd #x4000000000000000 (bvmul whole x) (bvmul whole y) (bvmul x y)))
  (=> (and (bvult x whole) (bvult y whole) (bvult more #x4000000000000000))
      (bvuge (bvadd #x4000000000000000 (bvmul whole x) (bvmul whole y) more) #x4000000000000000)))))
