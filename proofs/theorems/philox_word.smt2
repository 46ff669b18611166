; philox_word is word n mod 4 of philox4x32_10.
;! shader shared/philox.wgsl
;! define philox_word
;! abstract philox4x32_10
;! quick
;! fault (word & 1u) != 0u => (word & 3u) != 0u
(declare-const key (_ BitVec 64))
(declare-const counter (_ BitVec 128))
(declare-const n (_ BitVec 32))
(assert (not (= (philox_word key counter n)
  ((_ extract 31 0) (bvlshr (philox4x32_10 key counter)
    (bvmul #x00000000000000000000000000000020 ((_ zero_extend 126) ((_ extract 1 0) n))))))))
