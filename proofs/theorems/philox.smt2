; A round of philox4x32_10 is the one that Salmon et al. (SC11) define for Philox4x32, and key and counter go through ten of them: (c0, c1, c2, c3)
; becomes (high(M1 c2) ^ c1 ^ k0, low(M1 c2), high(M0 c0) ^ c3 ^ k1, low(M0 c0)), and the key grows by the golden ratio and sqrt(3) - 1. u32_mul is
; the whole product (`limbs`).
;! shader shared/philox.wgsl
;! cut philox4x32_10
;! abstract u32_mul
;! quick
;! fault let p0 = u32_mul(0xD2511F53u, c.x); => let p0 = u32_mul(0xD2511F53u, c.z);
;! fault vec4<u32>(p1.y ^ c.y ^ k.x, p1.x, => vec4<u32>(p1.x ^ c.y ^ k.x, p1.y,
;! fault k = k + vec2<u32>(0x9E3779B9u, 0xBB67AE85u); => k = k + vec2<u32>(0xBB67AE85u, 0x9E3779B9u);
;! fault i < 10u => i < 9u
(declare-const key (_ BitVec 64))
(declare-const counter (_ BitVec 128))
(declare-const s (_ BitVec 224))
(define-fun c ((s (_ BitVec 224))) (_ BitVec 128) (philox4x32_10.c s))
(define-fun c0 () (_ BitVec 32) ((_ extract 31 0) (c s)))
(define-fun c1 () (_ BitVec 32) ((_ extract 63 32) (c s)))
(define-fun c2 () (_ BitVec 32) ((_ extract 95 64) (c s)))
(define-fun c3 () (_ BitVec 32) ((_ extract 127 96) (c s)))
(define-fun k0 () (_ BitVec 32) ((_ extract 31 0) (philox4x32_10.k s)))
(define-fun k1 () (_ BitVec 32) ((_ extract 63 32) (philox4x32_10.k s)))
(define-fun product ((m (_ BitVec 64)) (x (_ BitVec 32))) (_ BitVec 64) (bvmul m ((_ zero_extend 32) x)))
(define-fun m0 () (_ BitVec 64) (product #x00000000d2511f53 c0))
(define-fun m1 () (_ BitVec 64) (product #x00000000cd9e8d57 c2))
(assert (= (u32_mul #xd2511f53 c0) m0))
(assert (= (u32_mul #xcd9e8d57 c2) m1))
(define-fun high ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 63 32) x))
(define-fun low ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 31 0) x))
(define-fun begin () (_ BitVec 224) (philox4x32_10.enter key counter))
(define-fun next () (_ BitVec 224) (philox4x32_10.step key counter s))
(define-fun exits () Bool (philox4x32_10.exits key counter s))
(assert (not (and
  (philox4x32_10.reached key counter)
  (= (philox4x32_10.i begin) #x00000000) (= (philox4x32_10.k begin) key) (= (philox4x32_10.c begin) counter)
  (= exits (bvuge (philox4x32_10.i s) #x0000000a))
  (=> exits (= (philox4x32_10.after key counter s) (c s)))
  (=> (not exits) (and
    (= (philox4x32_10.i next) (bvadd (philox4x32_10.i s) #x00000001))
    (= (philox4x32_10.c next) (concat (low m0) (bvxor (high m0) c3 k1) (low m1) (bvxor (high m1) c1 k0)))
    (= (philox4x32_10.k next) (concat (bvadd k1 #xbb67ae85) (bvadd k0 #x9e3779b9))))))))
