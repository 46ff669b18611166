; A round of f_div's loop keeps its invariant: 2^i N = 2 P + rest with P = quotient * D, rest < 2D, 2^(i-1) <= quotient < 2^i, and i counts to 26.
;! shader shared/float.wgsl
;! define f_parts
;! each round 0 26
;! cut f_div
;! fault let one = u32(rest >= divisor); => let one = u32(rest > divisor);
;! fault rest = (rest - select(0u, divisor, one == 1u)) << 1u; => rest = rest - select(0u, divisor, one == 1u);
;! fault quotient = (quotient << 1u) | one; => quotient = quotient | one;
;! fault i < 26u; i++) {$        let one => i < 25u; i++) {$        let one
(declare-const a (_ BitVec 32))
(declare-const b (_ BitVec 32))
(define-fun significand ((x (_ BitVec 32))) (_ BitVec 64)
  ((_ zero_extend 32) (bvlshr ((_ extract 31 0) (f_parts (bvand x #x7fffffff))) #x00000008)))
(define-fun d () (_ BitVec 64) (significand b))
(define-fun smaller () Bool (bvult (significand a) d))
(define-fun n () (_ BitVec 64) (ite smaller (bvadd (significand a) (significand a)) (significand a)))
(define-fun rest ((s (_ BitVec 96))) (_ BitVec 64) ((_ zero_extend 32) (f_div.rest s)))
(define-fun quotient ((s (_ BitVec 96))) (_ BitVec 64) ((_ zero_extend 32) (f_div.quotient s)))
(define-fun i ((s (_ BitVec 96))) (_ BitVec 64) ((_ zero_extend 32) (f_div.i s)))
; p is quotient * d, a ghost variable: `div_product` says how it goes on.
(define-fun invariant ((s (_ BitVec 96)) (p (_ BitVec 64))) Bool (and
  (bvule (i s) #x000000000000001a)
  (= (bvshl n (i s)) (bvadd p p (rest s)))
  (bvult p #x0008000000000000)
  (bvult (rest s) (bvadd d d))
  (bvult (quotient s) (bvshl #x0000000000000001 (i s)))
  (ite (= (i s) #x0000000000000000)
    (bvuge (rest s) d)
    (bvuge (quotient s) (bvshl #x0000000000000001 (bvsub (i s) #x0000000000000001))))))
(assert (f_div.reached a b))
(declare-const s (_ BitVec 96))
(declare-const p (_ BitVec 64))
; By `div_base`.
(assert (and (bvuge d #x0000000000800000) (bvult d #x0000000001000000) (bvuge n d) (bvult n (bvadd d d))))
(assert (invariant s p))
(assert (= (f_div.i s) (_ bv{round} 32)))
(define-fun next () (_ BitVec 96) (f_div.step a b s))
(define-fun one () (_ BitVec 64) (bvsub (quotient next) (bvadd (quotient s) (quotient s))))
(define-fun next-p () (_ BitVec 64) (bvadd p p (ite (= one #x0000000000000001) d #x0000000000000000)))
(assert (not (and
  (= (f_div.exits a b s) (= (i s) #x000000000000001a))
  (=> (not (f_div.exits a b s)) (and
    (bvule one #x0000000000000001)
    (= (i next) (bvadd (i s) #x0000000000000001))
    (invariant next next-p))))))
