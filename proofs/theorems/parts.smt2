; f_parts splits each finite nonzero binary32 without its sign as IEEE 754 does a binary32 with more bits of exponent: 1.f times
; a power of two, subnormals normalised.
;! shader shared/float.wgsl
;! define f_parts
;! quick
;! fault i32(max(field, 1u)) + 8 - i32(zeros) => i32(field) + 8 - i32(zeros)
;! fault let m = (x & 0x7fffffu) | select(0u, 0x800000u, field != 0u); => let m = (x & 0x7fffffu) | 0x800000u;
(declare-const a (_ BitVec 32))
(declare-const exponent (_ BitVec 11))
(declare-const fraction (_ BitVec 23))
(define-fun value () (_ FloatingPoint 8 24) ((_ to_fp 8 24) a))
(assert (and (bvult a #x7f800000) (bvult #x00000000 a)))
(assert (= ((_ to_fp 11 53) RNE value) (fp #b0 exponent (concat fraction #b00000000000000000000000000000))))
(assert (not (= (f_parts a) (concat (bvsub ((_ zero_extend 21) exponent) #x00000380) #b1 fraction #x00))))
