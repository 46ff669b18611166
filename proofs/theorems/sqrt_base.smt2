; f_sqrt's loop begins as its invariant (`sqrt_step`) says, i = 0, rest = 0, root = 0, with the radicand 2^50 1.f for an even exponent of
; the operand and 2^51 1.f for an odd one.
;! shader shared/float.wgsl
;! cut f_sqrt
;! quick
;! fault let odd = u32(x.exponent - 127) & 1u; => let odd = 0u;
(declare-const a (_ BitVec 32))
(declare-const exponent (_ BitVec 11))
(declare-const fraction (_ BitVec 23))
(define-fun value ((x (_ BitVec 32))) (_ FloatingPoint 8 24) ((_ to_fp 8 24) x))
(define-fun more ((x (_ BitVec 32))) (_ BitVec 64) ((_ zero_extend 32) x))
(define-fun feed ((s (_ BitVec 128))) (_ BitVec 64) (more (f_sqrt.feed s)))
(define-fun rest ((s (_ BitVec 128))) (_ BitVec 64) (more (f_sqrt.rest s)))
(define-fun root ((s (_ BitVec 128))) (_ BitVec 64) (more (f_sqrt.root s)))
(define-fun i ((s (_ BitVec 128))) (_ BitVec 64) (more (f_sqrt.i s)))
; x is the radicand's first 32 of 52 bits, the others are 0.
(declare-const x (_ BitVec 32))
(define-fun radicand () (_ BitVec 64) (bvshl (more x) #x0000000000000014))
(define-fun two-i ((s (_ BitVec 128))) (_ BitVec 64) (bvadd (i s) (i s)))
; p is root^2, a ghost variable: `sqrt_square` says how it goes on.
(define-fun invariant ((s (_ BitVec 128)) (p (_ BitVec 64))) Bool (and
  (bvule (i s) #x000000000000001a)
  (= (f_sqrt.feed s) ((_ extract 31 0) (bvshl (more x) (two-i s))))
  (= (bvlshr radicand (bvsub #x0000000000000034 (two-i s))) (bvadd p (rest s)))
  (bvult p #x0010000000000000)
  (bvule (rest s) (bvadd (root s) (root s)))
  (bvult (root s) (bvshl #x0000000000000001 (i s)))
  (or (= (i s) #x0000000000000000)
    (bvuge (root s) (bvshl #x0000000000000001 (bvsub (i s) #x0000000000000001))))))
(assert (f_sqrt.reached a))
(assert (= ((_ to_fp 11 53) RNE (value a)) (fp #b0 exponent (concat fraction #b00000000000000000000000000000))))
; A binary64's exponent is its field less 1023, an odd number.
(assert (= x (bvshl (concat #x00 #b1 fraction) (ite (= ((_ extract 0 0) exponent) #b0) #x00000008 #x00000007))))
(assert (not (and
  (bvuge x #x40000000)
  (= (root (f_sqrt.enter a)) #x0000000000000000)
  (invariant (f_sqrt.enter a) #x0000000000000000))))
