; product.wgsl, completed for `dot4I8Packed` and for f32 and every pair of digit counts, adds no signed sum beyond 2^31 between carries,
; and no sum in f32 beyond 2^24, where it would be rounded: all operations on intervals, for any digits, as `sums_words`. After each flush
; length all sums but the highest are bytes again, and the highest has room for 2^24 places of K, more than which are refused.
;! shader product.wgsl
;! bounds
;! fault const FLUSH_WORDS: u32 = 4096u; => const FLUSH_WORDS: u32 = 16384u;
;! fault let stop = min(start + FLUSH_WORDS, end); => let stop = min(start + 3u * FLUSH_WORDS, end);
;! fault //@carry => //
