; digits_quantise gives RNE(x 2^(m - e)) for every x of a group, m = 6, 14, 22 and 30 (one to four digits), e the least integer with
; absmax < 2^e, and so at most 2^m in magnitude; 0 in a marked group.
;! shader shared/digits.wgsl
;! define digits_quantise digits_exponent
;! each d 1 4
;! fault rest == half && (q & 1u) == 1u => rest == half
;! fault let scale = i32(max(field, 1u)) - 150; => let scale = i32(field) - 150;
;! fault return 32 - i32(countLeadingZeros(absmax)) - 149; => return 31 - i32(countLeadingZeros(absmax)) - 149;
(declare-const x (_ BitVec 32))
(declare-const absmax (_ BitVec 32))
(define-fun bits () (_ BitVec 32) (bvsub (bvmul #x00000008 #x0000000{d}) #x00000002))
(assert (bvule (bvand x #x7fffffff) absmax))
(assert (bvult absmax #x80000000))
(define-fun marked () Bool (bvuge absmax #x7f800000))
(define-fun wide ((x (_ BitVec 32))) (_ FloatingPoint 11 53) ((_ to_fp 11 53) RNE ((_ to_fp 8 24) x)))
(declare-const sign (_ BitVec 1))
(declare-const field (_ BitVec 11))
(declare-const fraction (_ BitVec 52))
(declare-const field-absmax (_ BitVec 11))
(declare-const fraction-absmax (_ BitVec 52))
(assert (=> (not marked) (= (wide x) (fp sign field fraction))))
(assert (=> (not marked) (= (wide absmax) (fp #b0 field-absmax fraction-absmax))))
; absmax is 1.f 2^(e - 1).
(define-fun e () (_ BitVec 32)
  (ite (= absmax #x00000000) #x00000000 (bvsub ((_ zero_extend 21) field-absmax) #x000003fe)))
; Zero stays zero; no other quotient is near the ends of binary64.
(define-fun scaled () (_ FloatingPoint 11 53)
  (ite (fp.isZero (wide x)) (_ +zero 11 53)
    (fp sign (bvsub (bvadd field ((_ extract 10 0) bits)) ((_ extract 10 0) e)) fraction)))
(define-fun q () (_ BitVec 32) (digits_quantise x absmax bits))
(assert (not (ite marked (= q #x00000000) (and
  (= (digits_exponent absmax) e)
  (= q ((_ fp.to_sbv 32) RNE scaled))
  (bvsle q (bvshl #x00000001 bits))
  (bvsge q (bvneg (bvshl #x00000001 bits)))))))
