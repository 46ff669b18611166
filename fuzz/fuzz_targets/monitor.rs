//! Files and messages of compute monitoring: chips' logs, shard maps, requests to witnesses, catalogues. The first byte chooses
//! the kind.
#![no_main]

use tiebreak_contract::program::step::StateTensor;
use tiebreak_monitor::catalogue::Catalogue;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::RECORD_BYTES;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::request::AddCheckpoint;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let text = std::str::from_utf8(rest);
    match (kind % 5, text) {
        (0, _) => {
            let Ok(log) = ChipLog::read(rest) else { return };
            let whole = log.records.iter().flat_map(|record| record.encode()).collect::<Vec<_>>();
            assert_eq!(whole, rest[..rest.len() - log.torn]);
            assert!(log.torn < RECORD_BYTES);
        }
        (1, Ok(text)) => {
            let Ok(map) = ShardMap::from_text(text) else { return };
            assert_eq!(map.to_text(), text);
            let state = ["param/a", "m/a"].map(|name| StateTensor { name: name.to_string(), shape: vec![7, 9] });
            let _ = map.check(&state);
        }
        (2, Ok(text)) => {
            let Ok(request) = AddCheckpoint::read(text) else { return };
            assert_eq!(request.to_text(), text);
        }
        (3, Ok(text)) => {
            let Ok(checkpoint) = Checkpoint::read(text) else { return };
            assert_eq!(checkpoint.note, text);
        }
        (_, Ok(text)) => {
            let _ = Catalogue::read(text).and_then(|added| Catalogue::built_in().and(added));
        }
        _ => {}
    }
});
