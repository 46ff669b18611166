; product.wgsl behind its loop over K, for every choice of variant, digits and bits of a sum: an invocation writes finish(S, absmaxes of its row
; and column, p[1].z) to the places of its outputs that are inside, and nothing else; S = sum s_w 256^w over bytes s_w and the signed word above
; them, whenever S fits the bits chosen. `first_total`, the words that move down from output to output, and the absmaxes' places are in it.
;! shader product.wgsl
;! kernel cut
;! abstract finish
;! open wgsl.mul
;! each a 1 4
;! each b 1 4
;! among variant dot f32
;! among bits 64 128
;! choice {variant} {a} {b} {bits}
;! let weights {a} + {b} - 1
;! let big 3 if "{variant}" == "dot" else 1
;! let small 6 if "{variant}" == "dot" else 4
;! let above 128 - {bits}
;! let top {bits} - 1
;! let outputs 16 if {weights} <= {big} else 8 if {weights} <= {small} else 4
;! let state 32 * (2 + {outputs} * ({weights} + 1))
;! repeat bytes w {weights} (bvult (main.s{w}_{o} s) #x00000100)
;! repeat weighed w {weights} (weighed (main.s{w}_{o} s) (_ bv{w} 128))
;! repeat sums o {outputs} (ite (= o (_ bv{o} 32)) (bvadd {weighed} (bvshl ((_ sign_extend 96) (main.s{weights}_{o} s)) (bvmul #x00000000000000000000000000000008 (_ bv{weights} 128))))
;! repeat closed o {outputs} )
;! repeat allowed o {outputs} (and {bytes} (fits (sum (_ bv{o} 32))))
;! repeat others u {outputs} (or (= (_ bv{o} 32) (_ bv{u} 32)) (not (inside (_ bv{o} 32))) (not (inside (_ bv{u} 32))) (not (= (at (_ bv{o} 32)) (at (_ bv{u} 32)))))
;! repeat apart o {outputs} {others}
;! repeat places o {outputs} (and (inside (_ bv{o} 32)) (= place (at (_ bv{o} 32))))
;! repeat values o {outputs} (right (_ bv{o} 32))
;! fault let fill = bitcast<u32>(over >> 31u); => let fill = 0u;
;! fault var low_0 = (u32(s0_0) << 0u) => var low_0 = (u32(s0_0) << 1u)
;! fault low_0 = low_1; => low_0 = low_2;
;! fault if (r < m && c < n) { => if (r < m && c <= n) {
(declare-const group (_ BitVec 96))
(declare-const id (_ BitVec 96))
(declare-const index (_ BitVec 32))
(declare-const place (_ BitVec 32))
(declare-const x (_ BitVec 32))
(declare-const n (_ BitVec 32))
; What the variables of the loop hold at its end: bytes by `carry`, and the word above.
(declare-const s (_ BitVec {state}))
(define-fun weighed ((x (_ BitVec 32)) (w (_ BitVec 128))) (_ BitVec 128)
  (bvshl ((_ zero_extend 96) x) (bvmul #x00000000000000000000000000000008 w)))
(define-fun sum ((o (_ BitVec 32))) (_ BitVec 128)
  {sums} #x00000000000000000000000000000000{closed})
(define-fun fits ((x (_ BitVec 128))) Bool (= x ((_ sign_extend {above}) ((_ extract {top} 0) x))))
(define-fun batch () (_ BitVec 32) (ite (bvult p.0.x #x00000001) #x00000001 p.0.x))
(define-fun product () (_ BitVec 32) (bvadd p.1.w ((_ extract 95 64) group)))
(define-fun block () (_ BitVec 32) (wgsl.udiv product batch))
(define-fun sample () (_ BitVec 32) (wgsl.urem product batch))
; Output o of an invocation: eight rows or columns lie between neighbours.
(define-fun row ((o (_ BitVec 32))) (_ BitVec 32)
  (bvadd (wgsl.mul (wgsl.mul ((_ extract 63 32) group) #x00000008) ROWS)
         (bvmul #x00000008 (bvudiv o COLUMNS)) ((_ extract 63 32) id)))
(define-fun column ((o (_ BitVec 32))) (_ BitVec 32)
  (bvadd (wgsl.mul (wgsl.mul ((_ extract 31 0) group) #x00000008) COLUMNS)
         (bvmul #x00000008 (bvurem o COLUMNS)) ((_ extract 31 0) id)))
(define-fun inside ((o (_ BitVec 32))) Bool (and (bvult (row o) p.0.y) (bvult (column o) p.0.z)))
(define-fun at ((o (_ BitVec 32))) (_ BitVec 32)
  (bvadd (wgsl.mul (bvadd (wgsl.mul (bvadd (wgsl.mul block batch) sample) p.0.y) (row o)) p.0.z) (column o)))
; Loads of rows past the end repeat the last one, which changes nothing of those inside.
(define-fun last ((x (_ BitVec 32)) (n (_ BitVec 32))) (_ BitVec 32)
  (ite (bvult x (bvsub n #x00000001)) x (bvsub n #x00000001)))
(define-fun absmax-a ((o (_ BitVec 32))) (_ BitVec 32)
  (absmaxes_a (bvadd (wgsl.mul (bvadd (wgsl.mul sample p.0.y) (last (row o) p.0.y)) p.1.x) block)))
(define-fun absmax-b ((o (_ BitVec 32))) (_ BitVec 32)
  (absmaxes_b (bvadd (wgsl.mul (bvadd (wgsl.mul sample p.0.z) (last (column o) p.0.z)) p.1.x) block)))
(define-fun right ((o (_ BitVec 32))) Bool
  (=> (inside o) (= (output.after group id index s (at o)) (finish (sum o) (absmax-a o) (absmax-b o) p.1.z))))
(assert (and {allowed}))
; Outputs of different rows or columns lie in different places, the output having less than 2^32 of them; products of words may be anything else.
(assert (and {apart}))
(assert (not (and
  (=> (bvult x n) (= (last x n) x))
  (= (bvmul ROWS COLUMNS) (_ bv{outputs} 32))
  (= (output.written group id index s place) (or {places}))
  {values})))
