; f_div's loop begins as its invariant (`div_step`) says: i = 0, quotient = 0 and D <= rest = N < 2D, where N and D are the dividend's
; and the divisor's significands, N shifted by one place where it is the smaller one.
;! shader shared/float.wgsl
;! define f_parts
;! cut f_div
;! quick
;! fault let low = u32(rest < divisor); => let low = 0u;
;! fault let divisor = y.significand >> 8u; => let divisor = y.significand >> 7u;
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
(assert (not (and
  (bvuge d #x0000000000800000) (bvult d #x0000000001000000)
  (bvuge n d) (bvult n (bvadd d d))
  (= (rest (f_div.enter a b)) n)
  (= (quotient (f_div.enter a b)) #x0000000000000000)
  (invariant (f_div.enter a b) #x0000000000000000))))
