; f_from_u32 rounds an unsigned integer to binary32, to nearest even.
;! shader shared/float.wgsl
;! define f_from_u32
;! quick
;! fault return f_pack(0u, 158 - i32(zeros), n << (zeros & 31u)); => return f_pack(0u, 157 - i32(zeros), n << (zeros & 31u));
;! fault rest > 128u || (rest == 128u && (m & 1u) == 1u) => rest > 128u || (rest == 128u && (m & 1u) == 0u)
(declare-const n (_ BitVec 32))
(assert (not (= ((_ to_fp 8 24) (f_from_u32 n)) ((_ to_fp_unsigned 8 24) RNE n))))
