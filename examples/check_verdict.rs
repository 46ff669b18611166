//! Checks a verdict from the file alone, with the referee core: no engine, no threads, no network.
//!
//!     cargo run --package tiebreak-dispute --example check_verdict -- assets/verdicts/operator.json
//!
//! The exit status is 1 if the verdict convicts, 0 if not, 3 if only a replay can tell, 4 if the file does not hold together.

use std::process::exit;

use tiebreak_dispute::verdict::{Ruling, Verdict};

fn main() {
    let path = std::env::args().nth(1).expect("give the verdict's file");
    let bytes = std::fs::read(&path).expect("the file can be read");
    // There is no trainer's key here: the finding then says that nobody vouches for the signer.
    let outcome = Verdict::from_bytes(&bytes).and_then(|verdict| verdict.check(None));
    exit(match outcome {
        Ok(Ruling::Convicts(finding)) => {
            println!("CONVICTS run {} at step {}: {}", finding.run, finding.step, finding.what);
            1
        }
        Ok(Ruling::DoesNotConvict(why)) => {
            println!("does not convict: {why}");
            0
        }
        Ok(Ruling::NeedsReplay { step, run }) => {
            println!("step {step} of run {run} has to be replayed");
            3
        }
        Err(why) => {
            println!("{path}: {why}");
            4
        }
    });
}
