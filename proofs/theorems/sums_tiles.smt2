; product.wgsl, completed for `dot4I8Packed` and for f32 and every pair of digit counts, adds no signed sum beyond 2^31 in any K up to
; PLACES_MAX, the carried word included, and no sum in f32 beyond 2^24, where it would be rounded: all operations on intervals, for any digits
; of integers within `quantise`'s bound, over one, two and three flush lengths of K.
;! shader product.wgsl
;! bounds
;! fault let stop = min(start + FLUSH_WORDS, end); => let stop = min(start + 3u * FLUSH_WORDS, end);
;! fault //@carry => //
