; f_add is IEEE 754 addition of binary32, rounded to nearest even, for all 2^64 pairs of patterns: subnormals, infinities and
; signed zeros included; every NaN is 7fc00000.
;! shader shared/float.wgsl
;! define f_add
;! each apart 0 27
;! fault min(e - max(ye, 1u), 31u) => min(e - ye, 31u)
;! fault return a & b & F_SIGN; => return 0u;
;! fault (differ && ye == 255u) => (ye == 255u)
;! fault rest > 128u || => rest >= 128u ||
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(declare-const ieee (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun sum () (_ FloatingPoint 8 24) (fp.add RNE (value a) (value b)))
; How far apart the exponents are, one question for each distance and one for all from 27 on.
(define-fun field ((x (_ BitVec 32))) (_ BitVec 32) ((_ zero_extend 24) ((_ extract 30 23) x)))
(define-fun exponent ((x (_ BitVec 32))) (_ BitVec 32) (ite (= (field x) #x00000000) #x00000001 (field x)))
(define-fun distance () (_ BitVec 32)
  (ite (bvult (exponent a) (exponent b)) (bvsub (exponent b) (exponent a)) (bvsub (exponent a) (exponent b))))
(assert (ite (= (_ bv{apart} 32) (_ bv27 32)) (bvuge distance (_ bv27 32)) (= distance (_ bv{apart} 32))))
; A pattern stands for each value, but there are many for NaN.
(assert (= (value ieee) sum))
(assert (=> (fp.isNaN sum) (= ieee #x7fc00000)))
(assert (not (= (f_add a b) ieee)))
