; finish takes a product's exact sum to its output: NaN if a group is marked, else scale_back, or rounding_error if `bits` has 2^16 more, at the
; exponent e_a + e_b - bits, which is then from -356 to 256: what `scale_back` asks. (`quantise` says what e is.)
;! shader shared/scale_back.wgsl
;! define digits_exponent finish
;! abstract scale_back
;! abstract rounding_error
;! quick
;! fault digits_marked(ma) || digits_marked(mb) => digits_marked(ma)
;! fault digits_exponent(ma) + digits_exponent(mb) - i32(bits & 0xffffu); => digits_exponent(ma) + digits_exponent(mb) - i32(bits);
(declare-const total (_ BitVec 128))
(declare-const ma (_ BitVec 32))
(declare-const mb (_ BitVec 32))
(declare-const width (_ BitVec 32))
(declare-const rest Bool)
(define-fun marked ((m (_ BitVec 32))) Bool (bvuge m #x7f800000))
; From two to eight digits of 8 bits, two bits less for each operand.
(assert (and (bvuge width #x0000000c) (bvule width #x0000003c)))
(define-fun exponent () (_ BitVec 32) (bvsub (bvadd (digits_exponent ma) (digits_exponent mb)) width))
(define-fun output () (_ BitVec 32) (finish total ma mb (ite rest (bvadd width #x00010000) width)))
(assert (not (and
  (= output (ite (or (marked ma) (marked mb)) #x7fc00000
            (ite rest (rounding_error total exponent) (scale_back total exponent))))
  (bvsge exponent (bvneg #x00000164)) (bvsle exponent #x00000100))))
