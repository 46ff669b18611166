//! Files that say that they hold more than they do: an opening of a shard, a receipt, a plan of an audit, a program.

use tiebreak_audit::plan_file::PlanFile;
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::graph::Port;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::Receipt;

/// An opening that says that it shows a tensor of a million elements, and has none of them.
pub fn shard() -> String {
    let digest = Digest([7; 32]);
    let range = format!(
        r#"{{"tensor":"param/token_embedding","first":0,"count":{},"bytes":"","siblings":[],"salt":"{digest}","proof":[]}}"#,
        256 * 4096
    );
    format!(r#"{{"format":"tiebreak shard opening 1","run":"{digest}","step":1,"ranges":[{range}]}}"#)
}

/// A receipt of a million tokens, and nothing else.
pub fn receipt() -> String {
    format!("{{\"prompt\":[0{}]}}", ",0".repeat(1 << 20))
}

/// Reads a receipt, which has to be refused.
pub fn read_receipt(bytes: &[u8]) {
    assert!(Receipt::from_text(&String::from_utf8_lossy(bytes)).is_err());
}

/// A plan of thirty thousand shards, each of the same four billion steps.
pub fn plan() -> String {
    let (digest, part) =
        (Digest([7; 32]), r#"{"segments":[[1,4294967294]],"seconds":0,"memory":0,"bytes":0}"#);
    let head = format!(
        r#""verifier":"","contract":"","run":"{digest}","head_size":18446744073709551615,"head_root":"{digest}""#
    );
    let parts = format!("{part},").repeat(1 << 15);
    format!(r#"{{"format":"tiebreak audit plan 1",{head},"choice":"all","shards":[{parts}{part}]}}"#)
}

/// Reads a plan, which has to be refused.
pub fn read_plan(bytes: &[u8]) {
    assert!(PlanFile::from_text(&String::from_utf8_lossy(bytes)).is_err());
}

/// A program of many parameters and as many slots with names as long as there may be, which its graphs do not have.
pub fn program(mut program: Program) -> Vec<u8> {
    let first = program.parameters[0].clone();
    let named =
        |number| tiebreak_contract::program::step::Parameter { name: format!("{number}"), ..first.clone() };
    program.parameters = (0..4000).map(named).collect();
    program.slots = (0..63).map(|number| format!("{number:0>256}")).collect();
    encode(&program)
}

/// A program of many slots whose first parameter has as many dimensions as no tensor.
pub fn dimensions(mut program: Program) -> Vec<u8> {
    program.parameters.truncate(1);
    program.parameters[0].shape = vec![1; 100_000];
    program.slots = (0..64).map(|number| format!("slot{number}")).collect();
    let names = [String::new()].into_iter().chain(program.slots.iter().cloned());
    let inputs =
        names.map(|slot| Port { name: format!("{slot:0>99}"), tensor: program.update.inputs[0].tensor });
    program.update.inputs = inputs.collect();
    encode(&program)
}

/// Reads a program, which has to be refused before anything is made of its state.
pub fn read_program(bytes: &[u8]) {
    let why = decode(bytes).unwrap_err().to_string();
    let early = ["the state that it reads has", "dimensions, 1 to 4 are allowed"];
    assert!(early.iter().any(|early| why.contains(early)), "{why}");
}
