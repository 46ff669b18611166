; f_sub is IEEE 754 subtraction: f_sub(a, b) = f_add(a, -b), where -b flips the sign bit, as IEEE 754's own definition does.
; With `add` this makes it right for all pairs.
;! shader shared/float.wgsl
;! define f_sub
;! abstract f_add
;! quick
;! fault return f_add(a, b ^ F_SIGN); => return f_add(a ^ F_SIGN, b);
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(declare-const minus (_ BitVec 32))
(assert (= minus (bvxor b #x80000000)))
(assert (or (not (= (value minus) (fp.neg (value b)))) (not (= (f_sub a b) (f_add a minus)))))
