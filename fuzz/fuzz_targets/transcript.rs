//! Transcripts: frames, checksums, records; a torn tail is never longer than the file.
#![no_main]

use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    if let Ok((transcript, whole)) = tiebreak_run::run::transcript::parse(Path::new("transcript"), bytes, len)
    {
        assert!(whole <= len && transcript.records.len() == transcript.leaves.len());
    }
});
