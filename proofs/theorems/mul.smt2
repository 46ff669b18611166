; f_mul rounds the product of the significands once, for any word P of 64 bits in place of u32_mul's product that is at least 2^62 and has 16
; zeros at its end:
; the result is (P 2^e) rounded to binary32, to nearest even. Zeros, infinities and NaNs are IEEE 754's. With `parts`, the lemmas of
; u32_mul and `mul_least`, f_mul is IEEE 754 multiplication for all pairs.
;! shader shared/float.wgsl
;! define f_mul
;! abstract u32_mul
;! fault let low = (s >> 31u) ^ 1u; => let low = 0u;
;! fault let s = p.y | u32(p.x != 0u); => let s = p.y;
;! fault large > F_INFINITY || small == 0u => large > F_INFINITY
;! fault x.exponent + y.exponent - 126 => x.exponent + y.exponent - 127
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(declare-const ea (_ BitVec 11))
(declare-const eb (_ BitVec 11))
(declare-const fa (_ BitVec 23))
(declare-const fb (_ BitVec 23))
(declare-const sa (_ BitVec 1))
(declare-const sb (_ BitVec 1))
(declare-const ieee (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun finite ((x (_ BitVec 32))) Bool (and (not (fp.isInfinite (value x))) (not (fp.isNaN (value x))) (not (fp.isZero (value x)))))
(define-fun numbers () Bool (and (finite a) (finite b)))
; Both operands as 1.f times a power of two, and the product of both 1.f's.
(assert (= ((_ to_fp 11 53) RNE (value a)) (fp sa ea (concat fa #b00000000000000000000000000000))))
(assert (= ((_ to_fp 11 53) RNE (value b)) (fp sb eb (concat fb #b00000000000000000000000000000))))
(define-fun p () (_ BitVec 64) (u32_mul (concat #b1 fa #x00) (concat #b1 fb #x00)))
(assert (and (bvuge p #x4000000000000000) (= ((_ extract 15 0) p) #x0000)))
(define-fun exponent () (_ BitVec 11) (bvsub (bvadd ea eb) #b01111111111))
(define-fun exact () (_ FloatingPoint 11 53)
  (ite (= ((_ extract 63 63) p) #b1)
    (fp (bvxor sa sb) (bvadd exponent #b00000000001) ((_ extract 62 11) p))
    (fp (bvxor sa sb) exponent ((_ extract 61 10) p))))
(define-fun result () (_ FloatingPoint 8 24)
  (ite numbers ((_ to_fp 8 24) RNE exact) (fp.mul RNE (value a) (value b))))
(assert (= (value ieee) result))
(assert (=> (fp.isNaN result) (= ieee #x7fc00000)))
(assert (not (= (f_mul a b) ieee)))
