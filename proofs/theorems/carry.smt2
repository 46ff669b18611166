; product.wgsl's loop over K, for every choice of variant, digits and bits of a sum: it begins with sums of 0; in a round s_w takes what is carried out
; of s_(w-1) and keeps its low byte, the highest signed word keeps all, for whatever products make of the s_w; and a carry out of sums within 2^30
; (`sums_tiles` says 808,460,559) overflows nothing and leaves the number sum s_w 256^w as it is.
;! shader product.wgsl
;! kernel cut
;! abstract finish
;! open wgsl.mul
;! each a 1 4
;! each b 1 4
;! among variant dot f32
;! choice {variant} {a} {b} 128
;! let weights {a} + {b} - 1
;! let big 3 if "{variant}" == "dot" else 1
;! let small 6 if "{variant}" == "dot" else 4
;! let outputs 16 if {weights} <= {big} else 8 if {weights} <= {small} else 4
;! let state 32 * (2 + {outputs} * ({weights} + 1))
;! let words {weights} + 1
;! repeat zeros w {words} (= (main.s{w}_{o} begin) #x00000000)
;! repeat chain w {weights} (let ((t{w} (bvadd any.s{w}_{o} c))) (let ((c (bvashr t{w} #x00000008)))
;! repeat bytes w {weights} (= (main.s{w}_{o} next) (bvand t{w} #x000000ff))
;! repeat closed w {weights} ))
;! repeat begun o {outputs} {zeros}
;! repeat kept o {outputs} (let ((c #x00000000)) {chain} (and {bytes} (= (main.s{weights}_{o} next) (bvadd (main.s{weights}_{o} s) c))) {closed})
;! quick
;! fault s1_0 += s0_0 >> 8u; => s1_0 += s0_0 >> 7u;
;! fault s0_0 &= 255i; => s0_0 &= 127i;
;! fault var s0_1 = 0i; => var s0_1 = 1i;
(declare-const group (_ BitVec 96))
(declare-const id (_ BitVec 96))
(declare-const index (_ BitVec 32))
(declare-const s (_ BitVec {state}))
(define-fun begin () (_ BitVec {state}) (main.enter group id index))
(define-fun next () (_ BitVec {state}) (main.step group id index s))
(assert (not (main.exits group id index s)))
; A carry c into a sum x: the byte and 256 times what is carried on are x + c, so that the weighed sums add up to the same, term by term.
(declare-const x (_ BitVec 32))
(declare-const c (_ BitVec 32))
(define-fun within ((x (_ BitVec 32)) (bound (_ BitVec 32))) Bool (and (bvsle x bound) (bvsge x (bvneg bound))))
(define-fun long ((x (_ BitVec 32))) (_ BitVec 64) ((_ sign_extend 32) x))
(define-fun carried () (_ BitVec 32) (bvashr (bvadd x c) #x00000008))
(assert (within x #x40000000))
(assert (within c #x00800000))
(assert (not (and {begun} {kept}
  (within carried #x00800000)
  (bvult (bvand (bvadd x c) #x000000ff) #x00000100)
  (= (bvadd (long x) (long c)) (bvadd (bvshl (long carried) #x0000000000000008) (long (bvand (bvadd x c) #x000000ff)))))))
