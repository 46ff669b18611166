; product_words.wgsl, completed for every pair of digit counts, adds no signed sum beyond 2^31 between flushes: all operations on
; intervals, for any operands within `quantise`'s bound, over a K of two flush lengths and a step, after which sums are 0 again.
;! shader product_words.wgsl
;! bounds
;! quick
;! fault let stop = min(start + FLUSH_WORDS, end); => let stop = min(start + 3u * FLUSH_WORDS, end);
;! fault //@flush => //
