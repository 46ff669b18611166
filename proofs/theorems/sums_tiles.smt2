; product.wgsl, completed for `dot4I8Packed` and for f32 and every pair of digit counts, adds no signed sum beyond 2^31 between flushes,
; and no sum in f32 beyond 2^24, where it would be rounded: all operations on intervals, for any digits, as `sums_words`.
;! shader product.wgsl
;! bounds
;! fault since_flush += STEP; => since_flush += 1u;
;! fault if (since_flush >= FLUSH_WORDS) { => if (since_flush > 2u * FLUSH_WORDS) {
