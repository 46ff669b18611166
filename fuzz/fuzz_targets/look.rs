//! Files that somebody names as token ids: no bytes of a file stop the look at it.
#![no_main]

use tiebreak_token_files::{Format, LlmC, Look, Width, other_width};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let look = Look::at(bytes);
    if let Some(format) = Format::of(&look) {
        assert!(!format.why().is_empty());
    }
    if let Some(Ok(header)) = LlmC::of(&look.start) {
        let whole = LlmC::HEADER + header.ids * header.width.bytes();
        assert_eq!(header.fits(look.bytes).is_ok(), whole == look.bytes);
    }
    for width in [Width::U8, Width::U16, Width::U32] {
        for below in [None, Some(2), Some(50_257)] {
            other_width(&look.start, look.bytes, width, below);
        }
    }
});
