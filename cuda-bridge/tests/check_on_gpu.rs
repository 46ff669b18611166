//! Rehearses the script for a machine with a GPU, without one: programs that fail, hang, are missing or are killed in the middle,
//! and missing tools.

#![cfg(unix)]

use std::path::Path;
use std::process::Command;

#[test]
fn the_check_on_a_gpu_ends_as_it_should_whatever_fails() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output =
        Command::new("bash").args(["cuda-bridge/check-on-gpu.sh", "rehearse"]).current_dir(root).output();
    let output = output.unwrap_or_else(|error| panic!("bash: {error}"));
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && printed.contains("went as it should"), "{printed}");
    assert!(!printed.contains("WRONG"), "{printed}");
}
