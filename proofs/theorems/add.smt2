; f_add is IEEE 754 addition of binary32, rounded to nearest even, for all 2^64 pairs of patterns: subnormals, infinities and
; signed zeros included; every NaN is 7fc00000.
;! shader shared/float.wgsl
;! define f_add
;! fault min(e - max(ye, 1u), 31u) => min(e - ye, 31u)
;! fault return a & b & F_SIGN; => return 0u;
;! fault (differ && ye == 255u) => (ye == 255u)
;! fault rest > 128u || => rest >= 128u ||
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(declare-const ieee (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun sum () (_ FloatingPoint 8 24) (fp.add RNE (value a) (value b)))
; A pattern stands for each value, but there are many for NaN.
(assert (= (value ieee) sum))
(assert (=> (fp.isNaN sum) (= ieee #x7fc00000)))
(assert (not (= (f_add a b) ieee)))
