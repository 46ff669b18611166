//! The referee core alone: `cargo test --package tiebreak-dispute --test referee` builds no other layer.

use std::collections::BTreeSet;
use std::process::Command;

use tiebreak_dispute::fact::{Fact, Wrong};
use tiebreak_dispute::verdict::{Ruling, Verdict};

/// The repository's root: the tests belong to crates/dispute.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// An auditor's verdict on a trainer that changed one element of a GELU (`assets/verdicts/README.md`).
const OPERATOR: &[u8] = include_bytes!("../assets/verdicts/operator.json");

#[test]
fn a_verdict_convicts_from_the_file_alone() {
    let verdict = Verdict::from_bytes(OPERATOR).unwrap();
    match verdict.check(None).unwrap() {
        Ruling::Convicts(finding) => {
            assert_eq!(finding.step, 17);
            let Wrong(Fact::Operator { operator, .. }) = &finding.what else { panic!("{:?}", finding.what) };
            assert!(operator.ends_with(".gelu"), "{operator}");
        }
        other => panic!("{other:?}"),
    }
}

/// Every digit of the evidence counts: with another digit the file convicts nobody, whatever it claims.
#[test]
fn a_changed_verdict_does_not_convict() {
    let text = std::str::from_utf8(OPERATOR).unwrap();
    let mut changed = 0;
    for (at, digit) in text.match_indices(|c: char| c.is_ascii_hexdigit() || c == '/').step_by(97) {
        let other = if digit == "1" { "2" } else { "1" };
        let mut bytes = OPERATOR.to_vec();
        bytes[at..at + 1].copy_from_slice(other.as_bytes());
        let outcome = Verdict::from_bytes(&bytes).and_then(|verdict| verdict.check(None));
        assert!(!matches!(outcome, Ok(Ruling::Convicts(_))), "byte {at}");
        changed += 1;
    }
    assert!(changed > 50, "{changed}");
}

/// The crates below the referee are those of docs/REFEREE.md, so that a review of them is still a review of the running code.
#[test]
fn the_crates_below_are_those_of_the_page() {
    let manifest = ROOT;
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--package", "tiebreak", "--no-default-features", "--edges", "normal,build"])
        .args([
            "--target",
            "x86_64-unknown-linux-gnu",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--locked",
            "--offline",
        ])
        .current_dir(manifest)
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let name = |line: &str| line.split(' ').next().unwrap_or("").to_string();
    let tree: BTreeSet<String> = String::from_utf8(tree.stdout).unwrap().lines().map(name).collect();
    let page = std::fs::read_to_string(format!("{manifest}/docs/REFEREE.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let page: BTreeSet<String> = rows
        .flat_map(|row| row.split('|').next().unwrap_or("").split('`'))
        .map(|name| name.trim_matches([',', ' ']).to_string())
        .filter(|name| !name.is_empty())
        .chain(["tiebreak".to_string()])
        .collect();
    assert_eq!(tree, page, "cargo's tree on the left, docs/REFEREE.md on the right");
}

/// A referee that leaves a check out exists for tests of tests, and only a test's build has it.
#[test]
fn the_command_has_no_referee_that_leaves_checks_out() {
    let features = |edges: &str| {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let tree = Command::new(cargo)
            .args(["tree", "--package", "tiebreak", "--edges", edges, "--invert", "tiebreak-dispute"])
            .args(["--locked", "--offline"])
            .current_dir(ROOT)
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        String::from_utf8(tree.stdout).unwrap()
    };
    assert!(!features("normal,build,features").contains("feature \"faults\""));
    assert!(features("normal,dev,features").contains("feature \"faults\""));
}
