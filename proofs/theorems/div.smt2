; What f_div makes of its loop's end is the quotient rounded once: 26 bits of it, and whether anything is left, for any quotient from
; 2^25 to 2^26 - 1 and any rest. Zeros, infinities and NaNs are IEEE 754's. By the invariant (`div_base`, `div_step`, `div_product`)
; 2^25 N = quotient * D + rest/2 with rest/2 < D, so f_div is IEEE 754 division for all pairs.
;! shader shared/float.wgsl
;! cut f_div
;! fault let s = (quotient << 6u) | u32(rest != 0u);$    return f_pack(sign, x.exponent - => let s = quotient << 6u;$    return f_pack(sign, x.exponent -
;! fault x.exponent - y.exponent + 127 - i32(low) => x.exponent - y.exponent + 127
;! fault bm > F_INFINITY || (am == bm)) => bm > F_INFINITY)
;! fault am == F_INFINITY || bm == 0u); => am == F_INFINITY);
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(declare-const ea (_ BitVec 11))
(declare-const eb (_ BitVec 11))
(declare-const fa (_ BitVec 23))
(declare-const fb (_ BitVec 23))
(declare-const sa (_ BitVec 1))
(declare-const sb (_ BitVec 1))
(declare-const s (_ BitVec 96))
(declare-const ieee (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun special ((x (_ BitVec 32))) Bool (or (fp.isInfinite (value x)) (fp.isNaN (value x)) (fp.isZero (value x))))
(define-fun numbers () Bool (not (or (special a) (special b))))
; Both operands as 1.f times a power of two.
(assert (= ((_ to_fp 11 53) RNE (value a)) (fp sa ea (concat fa #b00000000000000000000000000000))))
(assert (= ((_ to_fp 11 53) RNE (value b)) (fp sb eb (concat fb #b00000000000000000000000000000))))
(define-fun quotient () (_ BitVec 32) (f_div.quotient s))
(assert (= ((_ extract 31 25) quotient) #b0000001))
(define-fun left () (_ BitVec 1) (ite (= (f_div.rest s) #x00000000) #b0 #b1))
; 2^25 N / D lies between two integers as quotient + 1/2 does, or is the quotient.
(define-fun exponent () (_ BitVec 11)
  (bvsub (bvadd (bvsub ea eb) #b01111111111) (ite (bvult fa fb) #b00000000001 #b00000000000)))
(define-fun exact () (_ FloatingPoint 11 53) (fp (bvxor sa sb) exponent (concat ((_ extract 24 0) quotient) left #b00000000000000000000000000)))
(define-fun result () (_ FloatingPoint 8 24)
  (ite numbers ((_ to_fp 8 24) RNE exact)
  (ite (or (fp.isNaN (value a)) (fp.isNaN (value b))
           (and (fp.isInfinite (value a)) (fp.isInfinite (value b)))
           (and (fp.isZero (value a)) (fp.isZero (value b)))) (_ NaN 8 24)
  (ite (or (fp.isInfinite (value a)) (fp.isZero (value b)))
    (fp ((_ extract 31 31) (bvxor a b)) #xff #b00000000000000000000000)
    (fp ((_ extract 31 31) (bvxor a b)) #x00 #b00000000000000000000000)))))
(assert (= (value ieee) result))
(assert (=> (fp.isNaN result) (= ieee #x7fc00000)))
(assert (not (= (f_div.after a b s) ieee)))
