//! Verdicts about runs whose commitments hide: on what the records show, checked by anybody without the salt key.

use std::fs;
use std::path::Path;

use tiebreak_dispute::verdict::{Claim, Verdict};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::salts::SaltKey;

use crate::common::{sign_again, step_mut};
use crate::hidden::{Hiding, ends};

/// Audits a run that is changed and signed again: the verdict's file, which the check without the key has to confirm.
fn convicted(
    hiding: &Hiding,
    name: &str,
    says: &str,
    more: &[&str],
    change: impl FnOnce(&mut Vec<Record>),
) -> Verdict {
    let run = hiding.train(name);
    let honest = fs::read(Path::new(&run).join("heads/000000000010")).unwrap();
    fs::write(hiding.at("honest.head"), honest).unwrap();
    sign_again(&hiding.opened(&run), change);
    let (data, file, key) =
        (hiding.at("private"), hiding.at(&format!("{name}.json")), hiding.at("trainer.pub"));
    let audit =
        ["audit", &run, "--data", &data, "--trainer-key", &key, "--verdict", &file, "--engine", "cpu"];
    let told = ends(&[&audit[..], more].concat(), 1, &[says]);
    assert!(!told.contains("no verdict is written"), "{told}");
    ends(&["verdict", "check", &file, "--trainer-key", &key], 1, &["CONVICTS"]);
    let text = fs::read_to_string(&file).unwrap();
    // The salts stay secret: neither the key nor one that follows from it for the run's data is in the file.
    let salts = SaltKey::from_text(&fs::read_to_string(format!("{run}.salt-key")).unwrap()).unwrap();
    assert!(!text.contains(&salts.to_text()[9..]));
    let plain = hiding.guess();
    assert!(!text.contains(&plain), "the verdict has the plain digest of the data");
    Verdict::from_bytes(text.as_bytes()).unwrap()
}

#[test]
fn records_of_a_run_that_hides_convict_without_its_salts() {
    let hiding = Hiding::new();
    let cursor = convicted(&hiding, "cursor", "the cursor is not the number", &[], |records| {
        step_mut(records, 5).cursor += 1
    });
    assert!(matches!(cursor.claim, Claim::Cursor));
    let rate = convicted(&hiding, "rate", "the learning rate is not the schedule", &[], |records| {
        step_mut(records, 4).learning_rate ^= 1;
    });
    assert!(matches!(rate.claim, Claim::LearningRate));
    let last = convicted(&hiding, "last", "the final record commits another state", &[], |records| {
        let Some(Record::Final { roots, .. }) = records.last_mut() else { panic!("no final record") };
        roots.0[0].0[0] ^= 1;
    });
    assert!(matches!(last.claim, Claim::Final { .. }));
    let head = hiding.at("honest.head");
    let fork =
        convicted(&hiding, "fork", "the trainer signed two histories", &["--head", &head], |records| {
            step_mut(records, 5).state = Digest([7; 32]);
        });
    assert!(matches!(fork.claim, Claim::Fork { .. }));

    // The same evidence about what an honest trainer signs convicts nobody, and other claims need what the run hides.
    let file = hiding.at("forged.json");
    let check = ["verdict", "check", &file];
    let wrong = Verdict { claim: Claim::LearningRate, ..cursor.clone() };
    fs::write(&file, wrong.to_bytes()).unwrap();
    ends(&check, 0, &["does not convict"]);
    for claim in [Claim::Initial, Claim::Step { micro_batches: Vec::new(), tensors: Vec::new() }] {
        fs::write(&file, Verdict { claim, ..cursor.clone() }.to_bytes()).unwrap();
        ends(&check, 4, &["commit.scheme is 1: the run's commitments hide"]);
    }
    let mut edited = cursor.clone();
    edited.run.data = Digest([9; 32]);
    fs::write(&file, edited.to_bytes()).unwrap();
    ends(&check, 4, &["the verdict is about run"]);
}
