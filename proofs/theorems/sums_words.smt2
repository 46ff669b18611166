; product_words.wgsl, completed for every pair of digit counts, adds no signed sum beyond 2^31 between flushes: all operations on
; intervals, for any operands within `quantise`'s bound, over one, two and three flush lengths of K.
;! shader product_words.wgsl
;! bounds
;! quick
;! fault let stop = min(start + FLUSH_WORDS, end); => let stop = min(start + 3u * FLUSH_WORDS, end);
;! fault //@flush => //
