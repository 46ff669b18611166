//! Records: a record that decodes is canonical.
#![no_main]

use tiebreak_record::commit::record::Record;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
});
