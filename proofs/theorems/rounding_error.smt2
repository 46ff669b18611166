; rounding_error is scale_back of the integer total - R 2^-exponent for any word R in place of scale_back's result that rounding allows, but +0
; where R is infinite or its last place is below 2^exponent, where nothing was rounded away. For every total below 2^112 in magnitude.
;! shader shared/scale_back.wgsl
;! define rounding_error
;! abstract scale_back
;! quick
;! fault let n = min(u32(shift), 127u); => let n = min(u32(shift), 63u);
;! fault let taken = select(u128_neg(whole), whole, => let taken = select(whole, u128_neg(whole),
;! fault (u32(field != 0u) << 23u) => (1u << 23u)
(declare-const total (_ BitVec 128))
(declare-const exponent (_ BitVec 32))
(assert (and (bvsge exponent (bvneg #x00000164)) (bvsle exponent #x00000100)))
(assert (= ((_ sign_extend 15) ((_ extract 112 0) total)) total))
(define-fun r () (_ BitVec 32) (scale_back total exponent))
(define-fun field () (_ BitVec 8) ((_ extract 30 23) r))
; |R| = mantissa 2^(exponent + places).
(define-fun mantissa () (_ BitVec 128)
  (concat #x0000000000000000000000000 #b0000 (ite (= field #x00) #b0 #b1) ((_ extract 22 0) r)))
(define-fun places () (_ BitVec 32)
  (bvsub (bvsub (ite (= field #x00) #x00000001 ((_ zero_extend 24) field)) #x00000096) exponent))
(define-fun zero () Bool (= mantissa #x00000000000000000000000000000000))
; Rounding to nearest does no more than double a number, and twice the total is below 2^113.
(assert (=> (and (not zero) (not (= field #xff))) (bvsle places #x00000070)))
(define-fun whole () (_ BitVec 128) (ite zero mantissa (bvshl mantissa ((_ zero_extend 96) places))))
(define-fun left () (_ BitVec 128)
  (ite (= ((_ extract 31 31) r) #b1) (bvadd total whole) (bvsub total whole)))
(assert (not (= (rounding_error total exponent)
  (ite (or (= field #xff) (bvslt places #x00000000)) #x00000000 (scale_back left exponent)))))
