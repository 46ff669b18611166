//! `tiebreak monitor inspect`: a clean log, and each defect by its name and record.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::snapshot::record::{Event, Shard, SignedRecord};
use tiebreak_record::commit::digest::Digest;

use crate::common::key;
use crate::{chips, output, path};

/// Inspects a log of chip A-1 until 2025-04-01: the exit code, and the result.
fn inspected(folder: &Path, records: &[SignedRecord], more: &[&str]) -> (i32, Value) {
    let [log, register] = ["chip.log", "chips.register"].map(|name| path(folder, name));
    fs::write(&log, chips::bytes(records)).unwrap();
    fs::write(&register, to_text(&chips::register(), &key())).unwrap();
    let public = key().public().to_text();
    let args = ["monitor", "inspect", &log, "--register", &register, "--registrar", &public, "--json"];
    let until = if more.contains(&"--until") { &[][..] } else { &["--until", "2025-04-01"] };
    let (code, stdout, stderr) = output(&[&args, until, more].concat());
    (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code}: {stderr}")))
}

/// Inspects a log that has this defect first, at this record.
#[track_caller]
fn found(records: &[SignedRecord], more: &[&str], kind: &str, record: impl Into<Option<u64>>) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let (code, value) = inspected(folder.path(), records, more);
    assert_eq!(code, 1, "{value}");
    let first = &value["findings"][0];
    assert_eq!((first["kind"].as_str(), first["record"].as_u64()), (Some(kind), record.into()), "{value}");
    value
}

#[test]
fn a_clean_log_is_counted_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let records = chips::honest();
    let seen = path(folder.path(), "seen");
    let (code, value) =
        inspected(folder.path(), &records[..9], &["--seen-out", &seen, "--until", "2025-02-20"]);
    assert_eq!((code, value["records"].as_u64()), (0, Some(9)), "{value}");
    let heads = path(folder.path(), "heads.txt");
    fs::write(&heads, format!("tiebreak log heads 1\n{}\n", value["head"].as_str().unwrap())).unwrap();
    let (code, value) = inspected(folder.path(), &records, &["--previous", &seen, "--closed", &heads]);
    assert_eq!((code, &value["findings"]), (0, &Value::Array(Vec::new())), "{value}");
    assert_eq!((&value["rate"]["events"], &value["rate"]["days"]), (&3.into(), &40.0.into()));
    let (code, value) = inspected(folder.path(), &records, &[]);
    assert_eq!(code, 0, "{value}");
    assert_eq!((&value["kinds"]["unanswered"], &value["kinds"]["idle"]), (&1.into(), &4.into()));
    assert_eq!(value["off_milliseconds"], (2.5f64 * 86_400_000.0) as u64);
    let owners: Vec<&str> =
        value["holders"].as_array().unwrap().iter().map(|holder| holder["owner"].as_str().unwrap()).collect();
    assert_eq!(owners, ["Alice", "Bob"]);
    // A record that a crash cut off is told, and is no defect.
    let log = path(folder.path(), "chip.log");
    fs::write(&log, [chips::bytes(&records), vec![0; 100]].concat()).unwrap();
    let register = path(folder.path(), "chips.register");
    let args = ["monitor", "inspect", &log, "--register", &register, "--until", "2025-04-01"];
    let (code, stdout, _) = output(&args);
    assert!(code == 0 && stdout.starts_with("MATCHES: the log of chip A-1, 13 records"), "{stdout}");
    assert!(stdout.contains("torn       100 bytes") && stdout.contains("give --registrar"), "{stdout}");
}

#[test]
fn records_that_were_removed_or_exchanged_are_named() {
    let mut records = chips::honest();
    records.remove(3);
    found(&records, &[], "counter", 3);
    let mut records = chips::honest();
    records[3].record.time += 1;
    found(&records, &[], "signature", 3);
    records[3] = records[3].record.clone().sign(&chips::chip_key(1));
    found(&records, &[], "link", 4);
    found(&chips::honest()[1..], &[], "counter", 0);
    let mut events = chips::events();
    events[0].1 = Event::Idle;
    found(&chips::records(&events), &[], "no_begin", 0);
    found(&chips::honest(), &["--serial", "A-2"], "other_serial", 0);
    found(&chips::honest(), &["--serial", "A-9"], "unknown_chip", None);
    found(&[], &["--serial", "A-1"], "empty", None);
}

#[test]
fn keys_and_times_follow_the_register() {
    let mut records = chips::honest();
    records[12] = records[12].record.clone().sign(&chips::chip_key(1));
    found(&records, &[], "replaced_key", 12);
    let mut events = chips::events();
    events[0].0 = -3.0;
    found(&chips::records(&events), &[], "not_registered", 0);
    let mut events = chips::events();
    events[10].1 = Event::Idle;
    found(&chips::records(&events), &[], "time_back", 10);
    found(&chips::honest(), &["--until", "2025-03-15"], "future", 12);
}

#[test]
fn trainings_are_those_that_attached_themselves() {
    let shard = Shard { map: Digest([9; 32]), code: Digest([4; 32]) };
    let mut events = chips::events();
    events[4].1 = Event::Snapshot { shard, step: 3, digest: Digest([3; 32]) };
    found(&chips::records(&events), &[], "other_shard", 4);
    events = chips::events();
    events[8].1 = Event::Unanswered(shard);
    found(&chips::records(&events), &[], "not_attached", 8);
}

#[test]
fn logs_that_were_written_anew_are_named_by_their_first_record() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, heads) = (path(folder.path(), "seen"), path(folder.path(), "heads.txt"));
    let records = chips::honest();
    assert_eq!(inspected(folder.path(), &records, &["--seen-out", &seen]).0, 0);
    fs::write(&heads, chips::closed(&records).to_text()).unwrap();
    found(&records[..12], &["--previous", &seen], "rolled_back", 12);
    found(&records[..12], &["--closed", &heads], "not_closed", None);
    let mut events = chips::events();
    events[5].1 = Event::Idle;
    found(&chips::records(&events), &["--previous", &seen], "forked", 5);
}

#[test]
fn a_chip_that_logs_too_rarely_is_named() {
    let value = found(&chips::honest(), &["--rate", "0.5"], "too_rare", None);
    assert_eq!((&value["rate"]["events"], &value["rate"]["expected"]), (&9.into(), &43.75.into()), "{value}");
    assert!(value["rate"]["at_most"].as_f64().unwrap() < 0.5, "{value}");
}

#[test]
fn a_suspended_agent_is_named() {
    // The log's key changes on day 60, so all of it is of the first key. The number of snapshots is that of an honest chip.
    let asked = ["--rate", "1", "--until", "2025-02-10"];
    let value = found(&chips::suspended(), &asked, "silent", 11);
    assert_eq!(value["findings"].as_array().unwrap().len(), 1, "{value}");
    assert_eq!(value["rate"]["events"], 39, "{value}");
    // 21 days, without the ten minutes that the agent gives a training by default.
    let days = |value: &Value| value["silence"]["days"].as_f64().unwrap();
    assert!((days(&value) - (21.0 - 600.0 / 86_400.0)).abs() < 1e-9, "{value}");
    let value = found(&chips::suspended(), &[&asked[..], &["--patience", "86400"]].concat(), "silent", 11);
    assert!((days(&value) - 20.0).abs() < 1e-9, "{value}");
}
