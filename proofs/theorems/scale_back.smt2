; scale_back rounds total * 2^exponent once, to nearest even: to subnormals and to infinity alike, +0 for 0, and with its sign where
; it rounds to 0. For every total below 2^112 in magnitude (binary128, the specification's format, holds these) and exponent from
; -356 to 256, more than two groups' exponents and widths give.
;! shader shared/scale_back.wgsl
;! define scale_back
;! fault high | u32(low != 0u) => high
;! fault top = 95; => top = 96;
;! fault let low = (n.z << m) | n.y | n.x; => let low = (n.z << m) | n.x;
;! fault let sign = total.w & 0x80000000u; => let sign = total.z & 0x80000000u;
(declare-const total (_ BitVec 128))
(declare-const exponent (_ BitVec 32))
(declare-const ieee (_ BitVec 32))
(assert (= ((_ sign_extend 15) ((_ extract 112 0) total)) total))
(assert (not (= total (bvshl #xffffffffffffffffffffffffffffffff #x00000000000000000000000000000070))))
(assert (and (bvsge exponent (bvneg #x00000164)) (bvsle exponent #x00000100)))
(define-fun integer () (_ FloatingPoint 15 113) ((_ to_fp 15 113) RNE ((_ extract 112 0) total)))
; The exponent's field alone is that of total * 2^exponent, which is normal in binary128.
(declare-const sign (_ BitVec 1))
(declare-const field (_ BitVec 15))
(declare-const fraction (_ BitVec 112))
(assert (= integer (fp sign field fraction)))
(define-fun exact () (_ FloatingPoint 15 113)
  (ite (fp.isZero integer) integer (fp sign (bvadd field ((_ extract 14 0) exponent)) fraction)))
(define-fun result () (_ FloatingPoint 8 24) ((_ to_fp 8 24) RNE exact))
(assert (= ((_ to_fp 8 24) ieee) result))
(assert (not (= (scale_back total exponent) ieee)))
