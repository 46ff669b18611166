//! A collector as processes: chips' agents and trainings beside it, kills of it, and what an inspector reads from it.

#![cfg(unix)]

#[path = "../common/mod.rs"]
mod common;
mod kills;
mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use tiebreak_monitor::snapshot::log::ChipLog;

use common::edit::edit;
use common::gpt_job;
use processes::{FAST, World, ended, output};

/// The bits of a training beside a collector are those of one without, and the exported log is the chip's own.
#[test]
fn a_collected_training_has_the_bits_of_another_and_its_log_is_the_chips() {
    let world = World::new();
    let collector = world.collector("chips.sqlite", &[]);
    let agent = world.agent(&collector, &["--log", "chip.log", "--rate", FAST]);
    let job = gpt_job(&world.path(""), "step", "");
    edit(&job, &[("steps = 8", "steps = 300"), ("\nevery = 2", "\nevery = 100")]);
    let (code, said) = ended(world.train("run", &["job.toml", "--agent", "chip.sock"]));
    assert!(code == 0 && said.contains("chip chip-1 logs this training"), "{said}");
    agent.until_said("snapshot", 3);
    let records = agent.stop();
    world.same_bits("run");

    // What the collector hands out is the file that the chip wrote, byte for byte.
    let exported = world.export();
    let own = fs::read(world.path("chip.log")).unwrap();
    assert_eq!(fs::read(world.path("out.log")).unwrap(), own);
    assert_eq!(exported["records"], records);
    assert_eq!(ChipLog::read(&own).unwrap().records.len(), records);

    // The inspector's commands take it, and the heads are those that `inspect` prints.
    world.done(&["monitor", "collector", "heads", "--database", "chips.sqlite", "-o", "heads.txt", "--json"]);
    let closed = ["--register", "chips.register", "--closed", "heads.txt"];
    let inspected = world.done(&[&["monitor", "inspect", "out.log", "--json"], &closed[..]].concat());
    assert_eq!(inspected["findings"], Value::Array(Vec::new()));
    let heads = fs::read_to_string(world.path("heads.txt")).unwrap();
    assert_eq!(heads, format!("tiebreak log heads 1\n{}\n", inspected["head"].as_str().unwrap()));
    assert_eq!(exported["head"], inspected["head"]);
    let matched = world.done(&["monitor", "match", "out.log", "--run", "run", "--json"]);
    assert_eq!(matched["result"], "matches", "{matched}");
    let beacon = [
        "--beacon",
        "000102030405060708090a0b0c0d0e0f",
        "--round",
        "7",
        "--chips",
        "1",
        "--out",
        "draw.json",
    ];
    world.done(&[&["monitor", "draw", "--json"], &closed[..], &beacon[..]].concat());
    let (code, said) = output(
        &world,
        &["monitor", "collector", "export", "--database", "chips.sqlite", "--serial", "chip-9", "-o", "x"],
    );
    assert!(code == 2 && said.contains("no records of chip chip-9"), "{said}");
    let (code, said) = output(&world, &["monitor", "collector", "heads", "--database", "missing", "-o", "x"]);
    assert!(code == 3 && said.contains("unable to open"), "{said}");
    drop(collector);
}

/// An agent whose only memory is the collector goes on behind its last record, and not beside it.
#[test]
fn an_agent_without_a_log_of_its_own_goes_on_after_a_kill() {
    let world = World::new();
    let collector = world.collector("chips.sqlite", &[]);
    let first = world.agent(&collector, &["--rate", FAST]);
    first.until_said("idle", 5);
    drop(first);
    let second = world.agent(&collector, &["--rate", FAST]);
    second.until_said("idle", 2);
    let records = second.stop();
    world.export();
    let log = world.checked_log("out.log");
    assert_eq!(log.len(), records);
    let begins: Vec<u64> = log
        .iter()
        .filter(|signed| signed.record.event.name() == "begin")
        .map(|signed| signed.record.counter)
        .collect();
    assert!(begins.len() == 2 && begins[0] == 0 && begins[1] >= 6, "{begins:?}");
    // The collector's address, key and register decide.
    let refused = |more: &[&str], exit: i32, says: &str| {
        let args = world.agent_args(&collector, &[&["--max-time", "60"], more].concat());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, said) = output(&world, &args);
        assert!(code == exit && said.contains(says), "{more:?}: {code} {said}");
    };
    refused(&["--collector-key", "other.key.pub"], 3, "not signed by the collector's key");
    refused(&["--key", "other.key"], 3, "no key that the register has for the chip chip-1 signed record");
    refused(&["--serial", "chip-9"], 3, "the register never had the chip chip-9");
    refused(&["--collector", "http://127.0.0.1:1", "--hold", "1"], 3, "the limit of 1 s is over");
}

/// Options of `serve`: each has a meaning that is seen.
#[test]
fn a_collector_serves_what_its_options_say() {
    let world = World::new();
    let refused = |more: &[&str], exit: i32, says: &str| {
        let args = world.collector_args("chips.sqlite", more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, said) = output(&world, &args);
        assert!(code == exit && said.contains(says), "{more:?}: {code} {said}");
    };
    refused(&["--key", "missing"], 2, "missing");
    refused(&["--key", "collector.key.pub"], 2, "is the public key");
    refused(&["--register", "job.toml"], 2, "job.toml");
    refused(&["--registrar", "other.key.pub"], 4, "chips.register");
    refused(&["--listen", "nowhere:1"], 3, "cannot listen at nowhere:1");
    refused(&["--database", "chips.register"], 3, "not a database");
    refused(&["--database", "postgres://tiebreak@127.0.0.1:1/x"], 3, "PostgreSQL: the database: ");
    let collector = world.collector("chips.sqlite", &["--registrar", "registrar.key.pub"]);
    assert_eq!(collector.told["register_checked"], true);
    assert_eq!((&collector.told["chips"], &collector.told["logs"]), (&1.into(), &0.into()));
    collector.process.terminate();
    let without = world.collector("chips.sqlite", &[]);
    assert_eq!(without.told["register_checked"], false);
}

/// The metrics of a collector: their text, and the values by name.
fn scraped(collector: &processes::Collector) -> (String, BTreeMap<String, f64>) {
    let address = collector.told["metrics"].as_str().unwrap().strip_prefix("http://").unwrap();
    let (_, text) = asked(address.strip_suffix("/metrics").unwrap(), "GET /metrics", &[]);
    let samples =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
    let without = |name: &str| name.strip_prefix("tiebreak_collector_").unwrap().to_string();
    let values = samples.map(|(name, value)| (without(name), value.parse().unwrap())).collect();
    (text, values)
}

/// The status of a request's answer, and its body.
fn asked(address: &str, what: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{what} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

/// The metrics of a collector are those of its database and of what it refused, and the page has each.
#[test]
fn a_collector_shows_what_it_took_and_what_it_refused() {
    let world = World::new();
    let collector = world.collector("chips.sqlite", &["--metrics", "127.0.0.1:0"]);
    let (_, values) = scraped(&collector);
    let names = ["acknowledged_total", "database_errors_total", "newest_record_timestamp_seconds", "chips"];
    assert_eq!(names.map(|name| values[name]), [0.0, 0.0, 0.0, 1.0]);
    let agent = world.agent(&collector, &["--rate", FAST]);
    agent.until_said("idle", 3);
    let records = agent.stop();
    let args = world.agent_args(&collector, &["--max-time", "60", "--key", "other.key"]);
    assert_eq!(output(&world, &args.iter().map(String::as_str).collect::<Vec<_>>()).0, 3);
    let address = collector.address.strip_prefix("http://").unwrap();
    assert_eq!([b"garbage".as_slice(), b""].map(|body| asked(address, "POST /record", body).0), [400; 2]);
    assert_eq!(asked(address, &format!("GET /last/chip-9/{}", "0".repeat(64)), b"").0, 403);
    let (text, values) = scraped(&collector);
    assert_eq!(values["acknowledged_total"], records as f64, "{text}");
    assert_eq!(values["keep_seconds_count"], records as f64, "{text}");
    let refused = |reason: &str| values[&format!("refused_total{{reason=\"{reason}\"}}")];
    let reasons = ["malformed", "signature", "unknown_chip"].map(refused);
    assert_eq!(reasons, [2.0, 1.0, 1.0], "{text}");
    assert_eq!(values["responses_total{status=\"400\"}"], 2.0, "{text}");
    assert_eq!([values["chips"], values["database_errors_total"]], [1.0, 0.0], "{text}");
    world.export();
    let last = world.checked_log("out.log").pop().unwrap().record.time;
    assert_eq!(values["newest_record_timestamp_seconds"], last as f64 / 1000.0, "{text}");
    let page = include_str!("../../docs/METRICS.md");
    let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(types.len(), 10, "{text}");
    for (name, kind) in types.iter().map(|family| family.split_once(' ').unwrap()) {
        let total = if kind == "counter" { "_total" } else { "" };
        assert!(page.contains(&format!("| `{name}{total}` | {kind} |")), "METRICS.md has no row of {name}");
    }
    drop(collector);
}
