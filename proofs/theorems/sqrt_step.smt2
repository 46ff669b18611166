; A round of f_sqrt's loop keeps its invariant: the radicand's first 2 i bits are P + rest with P = root^2 and rest <= 2 root, feed holds the
; others, 2^(i-1) <= root < 2^i, and i counts to 26.
;! shader shared/float.wgsl
;! each round 0 26
;! cut f_sqrt
;! fault let one = u32(rest >= trial); => let one = u32(rest > trial);
;! fault let trial = (root << 2u) | 1u; => let trial = root << 2u;
;! fault rest = (rest << 2u) | (feed >> 30u); => rest = (rest << 2u) | (feed >> 31u);
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
(declare-const s (_ BitVec 128))
(declare-const p (_ BitVec 64))
; By `sqrt_base`.
(assert (bvuge x #x40000000))
(assert (invariant s p))
(assert (= (f_sqrt.i s) (_ bv{round} 32)))
(define-fun next () (_ BitVec 128) (f_sqrt.step a s))
(define-fun one () (_ BitVec 64) (bvsub (root next) (bvadd (root s) (root s))))
(define-fun four ((x (_ BitVec 64))) (_ BitVec 64) (bvshl x #x0000000000000002))
(define-fun next-p () (_ BitVec 64)
  (bvadd (four p) (ite (= one #x0000000000000001) (bvadd (four (root s)) #x0000000000000001) #x0000000000000000)))
(assert (not (and
  (= (f_sqrt.exits a s) (= (i s) #x000000000000001a))
  (=> (not (f_sqrt.exits a s)) (and
    (bvule one #x0000000000000001)
    (= (i next) (bvadd (i s) #x0000000000000001))
    (invariant next next-p))))))
