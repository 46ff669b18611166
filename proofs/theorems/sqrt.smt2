; What f_sqrt makes of its loop's end is the square root rounded once: 26 bits of it, and whether anything is left, for any root from 2^25 to
; 2^26 - 1 and any rest. Zeros, infinities, NaNs and negative operands are IEEE 754's. By the invariant (`sqrt_base`, `sqrt_step`,
; `sqrt_square`) radicand = root^2 + rest with rest <= 2 root, so f_sqrt is IEEE 754's square root for every operand.
;! shader shared/float.wgsl
;! cut f_sqrt
;! quick
;! fault let s = (root << 6u) | u32(rest != 0u || feed != 0u); => let s = root << 6u;
;! fault return f_pack(0u, half + 127, s); => return f_pack(0u, half + 126, s);
;! fault if (a == 0u || a == F_SIGN || a == F_INFINITY) { => if (a == 0u || a == F_INFINITY) {
(declare-const a (_ BitVec 32))
(declare-const exponent (_ BitVec 11))
(declare-const fraction (_ BitVec 23))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(declare-const sign (_ BitVec 1))
(declare-const s (_ BitVec 128))
(declare-const ieee (_ BitVec 32))
(assert (= ((_ to_fp 11 53) RNE (value a)) (fp sign exponent (concat fraction #b00000000000000000000000000000))))
(assert (= ((_ extract 31 25) (f_sqrt.root s)) #b0000001))
; After 26 rounds all bits are taken.
(assert (= (f_sqrt.feed s) #x00000000))
(define-fun left () (_ BitVec 1) (ite (= (f_sqrt.rest s) #x00000000) #b0 #b1))
; Half the exponent, rounded down. The root of the radicand lies between two integers as root + 1/2 does, or is root.
(define-fun half () (_ BitVec 12) (bvlshr (bvadd (concat #b0 exponent) #x3ff) #x001))
(define-fun exact () (_ FloatingPoint 11 53)
  (fp #b0 ((_ extract 10 0) half) (concat ((_ extract 24 0) (f_sqrt.root s)) left #b00000000000000000000000000)))
(define-fun result () (_ FloatingPoint 8 24)
  (ite (fp.isZero (value a)) (value a)
  (ite (or (fp.isNaN (value a)) (fp.isNegative (value a))) (_ NaN 8 24)
  (ite (fp.isInfinite (value a)) (value a)
    ((_ to_fp 8 24) RNE exact)))))
(assert (= (value ieee) result))
(assert (=> (fp.isNaN result) (= ieee #x7fc00000)))
(assert (not (= (f_sqrt.after a s) ieee)))
