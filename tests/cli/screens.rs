//! `tiebreak monitor screen`: the doctored segment of a run comes first, and no run is convicted.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::edit::edit;
use crate::common::{gpt_job, trained};
use crate::{output, path};

fn screened(run: &str, more: &[&str]) -> Value {
    let (code, stdout, stderr) =
        output(&[&["monitor", "screen", run, "--seed", "3", "--json"], more].concat());
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// The kinds of the signs of the most suspicious segment.
fn signs(found: &Value) -> Vec<&str> {
    let signs = found["segments"][0]["signs"].as_array().unwrap();
    signs.iter().map(|sign| sign["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_doctored_segment_comes_first_and_its_replay_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "step", "");
    edit(&job, &[("steps = 8", "steps = 32"), ("dropout = 0.1\n", ""), ("warmup = 3", "warmup = 0")]);
    let unseen: String =
        (0..2000u32).map(|i| char::from(b'a' + (i * i % 23 + i % 3 + i % 7 % 2) as u8)).collect();
    fs::write(at("unseen.txt"), unseen).unwrap();
    let held = at("unseen.txt");
    let honest = at("honest");
    trained(&job, Path::new(&honest), None);
    let found = screened(&honest, &["--held-out", &held]);
    assert_eq!((&found["result"], &found["suspicious"]), (&"screened".into(), &0.into()), "{found:#}");
    let segments = found["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 16);
    // All twelve samples of a segment, and twice as many held-out ones.
    for segment in segments {
        let memory = &segment["memory"];
        assert_eq!((&memory["points"], &memory["held_out"]), (&12.into(), &24.into()), "{segment:#}");
        let opening = &segment["opening"];
        assert!(
            opening["value"].as_f64().unwrap().abs() < 1e-5,
            "the checkpoint has the recorded loss: {opening}"
        );
    }
    // The same seed gives the same result, and any engine does.
    assert_eq!(screened(&honest, &["--held-out", &held])["segments"], found["segments"]);
    assert_eq!(
        screened(&honest, &["--held-out", &held, "--engine", "reference"])["segments"],
        found["segments"]
    );
    // Without held-out data the rest is computed.
    let without = screened(&honest, &[]);
    assert_eq!(without["not_computed"][0]["kind"], "memory");
    assert!(without["segments"][0]["memory"].is_null() && without["segments"][0]["step_size"].is_object());

    for (cheat, kinds) in [("checkpoint@15", &["large_step", "other_loss"][..]), ("skip@15", &["small_step"])]
    {
        let run = at("cheated");
        trained(&job, Path::new(&run), Some(cheat));
        let found = screened(&run, &["--held-out", &held]);
        let first = &found["segments"][0];
        assert_eq!((&first["first"], &first["last"]), (&15.into(), &16.into()), "{cheat}: {found:#}");
        assert!(
            first["suspicious"] == true && kinds.iter().all(|kind| signs(&found).contains(kind)),
            "{cheat}: {first:#}"
        );
        // The command that it names decides.
        let next = found["next"][0]["command"].as_str().unwrap();
        assert_eq!(next, format!("tiebreak audit {run} --steps 15..16"));
        let verdict = at("verdict.json");
        assert_eq!(output(&["audit", &run, "--steps", "15..16", "--verdict", &verdict]).0, 1);
        fs::remove_dir_all(&run).unwrap();
        fs::remove_file(&verdict).unwrap();
    }
}

#[test]
fn a_run_without_its_data_or_with_a_damaged_checkpoint_is_screened_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let run = path(folder.path(), "run");
    let job = gpt_job(folder.path(), "step", "");
    edit(&job, &[("\"text.txt\"", "\"text.txt\"\ncopy = false"), ("steps = 8", "steps = 16")]);
    trained(&job, Path::new(&run), None);
    let found = screened(&run, &[]);
    assert_eq!(found["not_computed"][0]["kind"], "losses", "{found:#}");
    assert!(found["segments"][0]["opening"].is_null() && found["segments"][0]["step_size"].is_object());
    let data = folder.path().to_str().unwrap();
    let found = screened(&run, &["--data", data]);
    assert!(found["segments"][0]["opening"].is_object(), "{found:#}");
    assert!(found["next"][0]["command"].as_str().unwrap().ends_with(&format!("--data {data}")));
    let checkpoint = Path::new(&run).join("checkpoints/step-000000006.safetensors");
    let mut bytes = fs::read(&checkpoint).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&checkpoint, bytes).unwrap();
    let found = screened(&run, &["--data", data]);
    let segments = found["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 6);
    assert!(segments.iter().all(|segment| segment["first"] != 5 && segment["first"] != 7));
    let missing = found["not_computed"].as_array().unwrap();
    assert!(missing.iter().any(|missing| missing["kind"] == "segments"), "{missing:?}");
}
