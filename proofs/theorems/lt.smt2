; f_lt is IEEE 754's comparison a < b for all pairs, NaNs and signed zeros included.
;! shader shared/float.wgsl
;! define f_lt
;! quick
;! fault && !zeros && => &&
;! fault return u32(!f_is_nan(a) && !f_is_nan(b) => return u32(!f_is_nan(a)
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(assert (not (= (= (f_lt a b) #x00000001) (fp.lt (value a) (value b)))))
