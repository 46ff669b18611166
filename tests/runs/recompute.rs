//! Runs of trainers and audits that compute tensors again instead of keeping them.

use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::recompute;

use crate::common::edit::edit;
use crate::common::{audited, files, gpt_job, trained, trained_on};

/// Honest and cheating trainers write the same files, and audits find the same, on either side.
#[test]
fn computing_again_changes_no_file_and_no_finding() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    edit(&job, &[("layers = 1", "layers = 4"), ("steps = 8", "steps = 3")]);
    let mut again = recompute::engine(Cpu::new(2).unwrap(), true);
    for cheat in [None, Some("operator@2"), Some("weight-after@3")] {
        let [whole, less] = ["whole", "less"].map(|name| folder.path().join(format!("{name}-{cheat:?}")));
        let run = trained(&job, &whole, cheat);
        let (repeated, _) = recompute::repeated_nodes(run.program());
        assert!(repeated > 100, "{repeated}");
        let other = trained_on(&mut *again, &job, &less, cheat);
        assert!(files(&whole) == files(&less), "{cheat:?}: the files differ");
        let (expected, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        let (report, same_verdict) = audited(&other, &mut *again);
        assert_eq!(report.outcome, expected.outcome);
        assert_eq!(verdict.is_some(), cheat.is_some());
        assert!(same_verdict == verdict, "{cheat:?}: the verdicts differ");
    }
}
