; quantise.wgsl's kernel, for one to four digits: an invocation below its count writes one word of each plane and nothing else. Byte j of these
; words, read back as dot4I8Packed and canonical.wgsl read it, are digits of -128..127 whose sum with weights 256^digit is the q of place j, 0
; behind the row's end; for any function in place of digits_quantise that keeps to its bound (`quantise`).
;! shader quantise.wgsl
;! kernel
;! abstract digits_quantise
;! abstract view_row
;! each digits 1 4
;! each j 0 3
;! word p.0.z {digits}
;! open wgsl.mul
;! quick
;! fault rest = (rest - low) >> vec4<u32>(8u); => rest = rest >> vec4<u32>(8u);
;! fault (b.z << 16u) | (b.w << 24u) => (b.w << 16u) | (b.z << 24u)
;! fault output[digit * p[0].x + i] = => output[digit * p[0].y + i] =
;! fault if (first + j < p[1].w) { => if (first + j <= p[1].w) {
;! fault if (i >= p[0].x) { => if (i > p[0].x) {
(declare-const id (_ BitVec 96))
(declare-const place (_ BitVec 32))
(define-fun i () (_ BitVec 32) (bvadd ((_ extract 31 0) id) (wgsl.mul ((_ extract 63 32) id) p.0.w)))
(define-fun words () (_ BitVec 32) (ite (bvult p.0.y #x00000001) #x00000001 p.0.y))
(define-fun row () (_ BitVec 32) (wgsl.udiv i words))
(define-fun first () (_ BitVec 32) (wgsl.mul (wgsl.urem i words) #x00000004))
(define-fun k () (_ BitVec 32) (bvadd first #x0000000{j}))
(define-fun group () (_ BitVec 32)
  (let ((block (wgsl.udiv first (ite (bvult p.3.z #x00000001) #x00000001 p.3.z))))
    (bvadd (wgsl.mul row p.3.y) (ite (bvult block (bvsub p.3.y #x00000001)) block (bvsub p.3.y #x00000001)))))
(define-fun base () (_ BitVec 32)
  (view_row row (concat p.1.w p.1.z p.1.y p.1.x) (concat p.2.w p.2.z p.2.y p.2.x) p.3.x))
(define-fun q () (_ BitVec 32)
  (ite (bvult k p.1.w) (digits_quantise (input (bvadd base (wgsl.mul k p.2.w))) (absmaxes group) p.3.w) #x00000000))
; |q| <= 2^(8 d - 2).
(define-fun bound () (_ BitVec 32) (bvshl #x00000001 (bvsub (bvmul #x00000008 #x0000000{digits}) #x00000002)))
(assert (and (bvsle q bound) (bvsge q (bvneg bound))))
; The planes lie within 2^32 words; every other product may be anything.
(assert (bvult p.0.x #x40000000))
(assert (= (wgsl.mul #x00000002 p.0.x) (bvshl p.0.x #x00000001)))
(assert (= (wgsl.mul #x00000003 p.0.x) (bvadd (bvshl p.0.x #x00000001) p.0.x)))
(define-fun at ((digit (_ BitVec 32))) (_ BitVec 32) (bvadd (bvmul digit p.0.x) i))
(define-fun used ((digit (_ BitVec 32))) Bool (bvult digit #x0000000{digits}))
(define-fun byte ((digit (_ BitVec 32))) (_ BitVec 8)
  ((_ extract 7 0) (bvlshr (output.after id (at digit)) (bvmul #x00000008 #x0000000{j}))))
(define-fun weighed ((digit (_ BitVec 32))) (_ BitVec 40)
  (ite (used digit) (bvshl ((_ sign_extend 32) (byte digit)) (bvmul #x0000000008 ((_ zero_extend 8) digit))) #x0000000000))
(assert (not (and
  (= (output.written id place) (and (bvult i p.0.x) (or
    (= place (at #x00000000))
    (and (used #x00000001) (= place (at #x00000001)))
    (and (used #x00000002) (= place (at #x00000002)))
    (and (used #x00000003) (= place (at #x00000003))))))
  (=> (bvult i p.0.x) (= ((_ sign_extend 8) q)
    (bvadd (weighed #x00000000) (weighed #x00000001) (weighed #x00000002) (weighed #x00000003)))))))
