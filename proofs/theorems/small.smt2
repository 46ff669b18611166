; f_lt gives 0 or 1. f_is_nan is IEEE 754's isNaN; f_canonical changes NaNs alone, to 7fc00000; f_neg flips the sign bit of all but
; NaNs. Order keys sort as numbers, -0 below +0 and NaN above all, and f_from_order_key takes them back.
;! shader shared/float.wgsl
;! define f_lt f_is_nan f_canonical f_neg f_order_key f_from_order_key
;! quick
;! fault return (x & 0x7fffffffu) > F_INFINITY; => return (x & 0x7fffffffu) >= F_INFINITY;
;! fault return select(a ^ F_SIGN, F_NAN, f_is_nan(a)); => return a ^ F_SIGN;
;! fault return select(key, F_NAN | F_SIGN, f_is_nan(x)); => return key;
;! fault return select(~key, key & 0x7fffffffu, (key & F_SIGN) != 0u); => return select(key, key & 0x7fffffffu, (key & F_SIGN) != 0u);
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun nan ((x (_ BitVec 32))) Bool (fp.isNaN (value x)))
(define-fun minus ((x (_ BitVec 32))) Bool (= ((_ extract 31 31) x) #b1))
(define-fun below () Bool
  (or (fp.lt (value a) (value b))
      (and (nan b) (not (nan a)))
      (and (fp.isZero (value a)) (fp.isZero (value b)) (minus a) (not (minus b)))))
(define-fun canonical ((x (_ BitVec 32))) (_ BitVec 32) (ite (nan x) #x7fc00000 x))
(assert (not (and
  (or (= (f_lt a b) #x00000000) (= (f_lt a b) #x00000001))
  (= (f_is_nan a) (nan a))
  (= (f_canonical a) (canonical a))
  (= (f_neg a) (ite (nan a) #x7fc00000 (bvxor a #x80000000)))
  (= (bvult (f_order_key a) (f_order_key b)) below)
  (= (f_from_order_key (f_order_key a)) (canonical a)))))
