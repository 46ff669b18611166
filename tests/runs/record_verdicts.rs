//! Verdicts about records and heads: contradictions with the job, the data, the trace or another history. Each convicts from its
//! bytes alone, none does once anything in it is changed, and none against an honest run.

use std::path::Path;
use std::sync::LazyLock;

use crate::common::{self, edit::edit, gpt_job, key, mlp_job, resnet_job, sign_again, step_mut, trained};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::localise::scalar_output;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Silent, audit};
use tiebreak_dispute::verdict::{Base64, Claim, DataSlices, Fork, ProvenRecord, Ruling, Scalar, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::Job;
use tiebreak_job::data::batch_digest;
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::JobFiles;
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::traces;

const OTHER: Digest = Digest([9; 32]);

fn public() -> PublicKey {
    key().public()
}

/// A run whose loss ignores a label, so that the update depends on the labels that count.
fn fresh(name: &str) -> Run {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    trained(&gpt_job(&folder, "operator", "[loss]\nignore = 101"), &folder.join("run"), None)
}

fn checked(run: &Run) -> Checked {
    checks::always(&Run::open(&run.layout.root).unwrap(), Some(&public())).unwrap()
}

/// An audit's verdict on a history that the trainer signed after editing it.
fn verdict_after(name: &str, edit: impl FnOnce(&mut Vec<Record>)) -> Verdict {
    let run = fresh(name);
    sign_again(&run, edit);
    let checked = checked(&run);
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (_, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
    verdict.expect("an edited record gives a verdict")
}

/// The verdict of an audit of a run, if there is one.
fn found(run: &Run) -> Option<Verdict> {
    let checked = checked(run);
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap().1
}

/// A trainer who records another rate, or updates by one, is convicted: for every kind of schedule, by coupled decay and in
/// groups too.
#[test]
fn a_wrong_rate_of_every_schedule_is_convicted() {
    let usual = ("peak = 0.05\nwarmup = 2\nfloor = 0.0", "weight_decay = 5e-4\n");
    let group = "weight_decay = 5e-4\ndecay = \"coupled\"\n[[optimizer.group]]\nparameters = [\"*.bias\"]\nweight_decay = 0.1\nrate_factor = 0.5\n";
    for (name, schedule) in [
        ("linear", "peak = 0.05\nwarmup = 2\nkind = \"linear\""),
        ("every", "peak = 0.05\nkind = \"step\"\nevery = 2\ngamma = 0.1"),
        ("milestones", "peak = 0.05\nkind = \"step\"\nmilestones = [1]\ngamma = 0.1"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let job = mlp_job(folder.path(), "operator", 4, 1);
        edit(&job, &[(usual.0, schedule), (usual.1, group)]);
        let run = trained(&job, &folder.path().join("honest"), None);
        assert_eq!(run.job().settings().iter().filter(|(key, _)| key == "schedule.kind").count(), 1);
        assert!(found(&run).is_none(), "{name}");
        sign_again(&run, |records| step_mut(records, 3).learning_rate ^= 1);
        let recorded = found(&run).expect(name);
        let cheated = trained(&job, &folder.path().join("cheated"), Some("learning-rate@3"));
        let updated = found(&cheated).expect(name);
        assert_eq!((recorded.claim.kind(), updated.claim.kind()), ("learning_rate", "tile"), "{name}");
        for verdict in [recorded, updated] {
            let read = Verdict::from_bytes(&verdict.to_bytes()).unwrap();
            assert!(convicts(&read), "{name}");
        }
    }
}

static HONEST: LazyLock<(Run, Checked)> = LazyLock::new(|| {
    let run = fresh("records-honest");
    let checked = checked(&run);
    (run, checked)
});

/// Another history of the honest run, which the trainer signed too: its note, and a record with its proof.
fn other_history(index: usize) -> (String, ProvenRecord) {
    let (run, checked) = &*HONEST;
    let mut records = checked.transcript.records.clone();
    step_mut(&mut records, 5).loss ^= 1;
    let leaves: Vec<Digest> = records.iter().map(|record| merkle::leaf(&record.encode())).collect();
    let head = Head { run: run.id, size: leaves.len() as u64, root: merkle::root(&leaves) };
    let record = ProvenRecord {
        index: index as u64,
        record: Base64(records[index].encode()),
        proof: merkle::prove(&leaves, index),
    };
    (head.to_note(Some(&key())), record)
}

/// The verdict by somebody who was given another head of the honest run.
fn fork_of_heads() -> Verdict {
    let (run, _) = &*HONEST;
    let mut checked = checked(run);
    checked.other_head(run, std::path::Path::new("head"), &other_history(0).0).unwrap();
    checked.inconsistent.expect("the histories differ").verdict.expect("both heads are signed")
}

fn fork_of_records(index: u32) -> Verdict {
    let (run, checked) = &*HONEST;
    let (other, record) = other_history(index as usize);
    checked.verdict(run, index, Claim::Fork { other, evidence: Fork::Record { record } })
}

static CONVICTING: LazyLock<Vec<(u32, &str, Verdict)>> = LazyLock::new(|| {
    let initial = |r: &mut Vec<Record>| match &mut r[0] {
        Record::Initial { state, .. } => *state = OTHER,
        other => panic!("{other:?} is not the initial record"),
    };
    let last = |r: &mut Vec<Record>| match &mut r[9] {
        Record::Final { roots, .. } => roots.0[0] = OTHER,
        other => panic!("{other:?} is not the final record"),
    };
    vec![
        (0, "initial", verdict_after("records-initial", initial)),
        (4, "learning_rate", verdict_after("records-rate", |r| step_mut(r, 4).learning_rate ^= 1)),
        (5, "cursor", verdict_after("records-cursor", |r| step_mut(r, 5).cursor += 1)),
        (6, "batch", verdict_after("records-batch", |r| step_mut(r, 6).batch = OTHER)),
        (3, "scalar", verdict_after("records-clip", |r| step_mut(r, 3).clip ^= 1)),
        (7, "scalar", verdict_after("records-loss", |r| step_mut(r, 7).loss ^= 1)),
        (8, "final", verdict_after("records-final", last)),
        (0, "fork", fork_of_heads()),
        (5, "fork", fork_of_records(5)),
    ]
});

fn convicts(verdict: &Verdict) -> bool {
    matches!(verdict.check(Some(&public())), Ok(Ruling::Convicts(_)))
}

#[test]
fn each_kind_convicts_from_its_bytes_alone() {
    for (step, kind, verdict) in CONVICTING.iter() {
        let bytes = verdict.to_bytes();
        println!("{kind}: {} bytes", bytes.len());
        let read = Verdict::from_bytes(&bytes).unwrap();
        assert_eq!((read.claim.kind(), &read), (*kind, verdict));
        for key in [None, Some(&public())] {
            let examined = read.examine(key);
            let Ok(Ruling::Convicts(finding)) = examined.outcome else { panic!("{kind}: no conviction") };
            assert_eq!(finding.step, *step, "{kind}");
            assert!(examined.steps.len() >= 3, "{kind}: {:?}", examined.steps);
        }
        let other = PrivateKey::generate("trainer.example", [6; 32]).unwrap().public();
        assert!(read.check(Some(&other)).is_err(), "another trainer is not accused");
    }
}

/// `assets/vectors/verdict.py`, written from the page of verdicts alone, decides claims about hashes: it convicts these trainers, and no
/// honest one.
#[test]
fn a_second_implementation_convicts_too() {
    if !common::has_python() {
        return;
    }
    let (folder, program) = (tempfile::tempdir().unwrap(), HONEST.0.layout.program());
    let script = |verdict: &Verdict| common::verdict_script(folder.path(), &verdict.to_bytes(), &program);
    let (run, checked) = &*HONEST;
    let trace = traces::read(run.program(), &run.layout.trace(5)).unwrap();
    let loss = scalar_output(run.program(), &trace, Scalar::Loss);
    let honest = [
        (9, Claim::Final { last: checked.proven(8) }),
        (5, Claim::Cursor),
        (5, Claim::Scalar { scalar: Scalar::Loss, output: loss }),
    ];
    for (index, claim) in honest {
        let verdict = checked.verdict(run, index, claim);
        let (code, out, error) = script(&verdict);
        assert!(code == Some(0) && out.ends_with("\ndoes not convict\n"), "{code:?} {out}{error}");
    }
    let decided =
        CONVICTING.iter().filter(|(_, kind, _)| ["cursor", "scalar", "final", "fork"].contains(kind));
    assert_eq!(decided.clone().count(), 6);
    for (_, kind, verdict) in decided {
        let (code, out, error) = script(verdict);
        assert!(code == Some(0) && out.ends_with("\nCONVICTS\n"), "{kind}: {code:?} {out}{error}");
    }
    // Evidence for another claim.
    let mut mixed = CONVICTING[2].2.clone();
    mixed.claim = CONVICTING[6].2.claim.clone();
    let (code, _, error) = script(&mixed);
    assert!(code == Some(1) && error.starts_with("DIFFERS: "), "{code:?} {error}");
}

/// A trainer says that images were moved at random, and commits to a batch of unmoved images; or says that samples are kept from
/// training, and draws from them too.
#[test]
fn whoever_draws_otherwise_than_the_job_says_is_convicted() {
    for said in ["augment = { crop = 2, flip = true }", "validation_split = 0.5"] {
        let folder = tempfile::tempdir().unwrap();
        let job = resnet_job(folder.path(), "microbatch", "");
        let text = std::fs::read_to_string(&job).unwrap();
        edit(&job, &[("kind = \"idx\"", &format!("kind = \"idx\", {said}"))]);
        let run = trained(&job, &folder.path().join("run"), None);
        let (key, program) = (philox_key(&run.computation.seed), run.program());
        // The batch of a job without the key.
        let plain = Job::parse("job", &text).unwrap();
        let files = JobFiles::new(&job, None).unwrap();
        let mut dataset = JobData::open(&files, &plain, program).unwrap().dataset;
        let batch = batch_digest(program, &dataset.batch(program, key, 3).unwrap());
        let mut records = checked(&run).transcript.records;
        assert_ne!(batch, step_mut(&mut records, 3).batch, "{said}");
        sign_again(&run, |records| step_mut(records, 3).batch = batch);
        let checked = checked(&run);
        let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
        let (_, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
        let verdict = Verdict::from_bytes(&verdict.expect("the batch gives a verdict").to_bytes()).unwrap();
        assert_eq!(verdict.claim.kind(), "batch", "{said}");
        let Ok(Ruling::Convicts(finding)) = verdict.check(Some(&public())) else {
            panic!("{said}: no conviction")
        };
        assert_eq!(finding.step, 3, "{said}");
    }
}

#[test]
fn changed_evidence_never_convicts() {
    for (_, kind, verdict) in CONVICTING.iter() {
        let bytes = verdict.to_bytes();
        for at in (0..bytes.len()).step_by(bytes.len() / 400 + 1) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let convicted = Verdict::from_bytes(&changed).is_ok_and(|verdict| convicts(&verdict));
            assert!(!convicted, "{kind}: byte {at}");
        }
    }
}

#[test]
fn the_evidence_of_one_claim_is_none_for_another() {
    for (i, (_, kind, verdict)) in CONVICTING.iter().enumerate() {
        for (j, (_, _, other)) in CONVICTING.iter().enumerate() {
            let mut mixed = verdict.clone();
            mixed.claim = other.claim.clone();
            // All these histories are signed and of one run: with another head they are forks indeed.
            let fork = other.claim.kind() == "fork";
            assert!(i == j || fork || !convicts(&mixed), "{kind} with the claim of {}", other.claim.kind());
        }
        let mut mixed = verdict.clone();
        mixed.record = if verdict.record.is_some() { None } else { Some(HONEST.1.proven(0)) };
        assert!(mixed.check(None).is_err(), "{kind}");
    }
}

#[test]
fn a_job_without_clipping_gives_the_clip_factor() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(&job, &[("clip_norm = 1.0", "")]);
    let run = trained(&job, &folder.path().join("run"), None);
    let claim = || Claim::Scalar { scalar: Scalar::Clip, output: None };
    let honest = checked(&run);
    assert!(honest.inconsistent.is_none());
    let outcome = honest.verdict(&run, 3, claim()).check(Some(&public()));
    assert!(matches!(outcome, Ok(Ruling::DoesNotConvict(_))), "{outcome:?}");
    sign_again(&run, |records| step_mut(records, 3).clip ^= 1);
    let found = checked(&run).inconsistent.unwrap();
    assert_eq!((found.step, &found.verdict.as_ref().unwrap().claim), (3, &claim()));
    assert!(convicts(&found.verdict.unwrap()));
}

/// The slices of data that a batch is drawn from.
fn slices(run: &Run, step: u32) -> Vec<DataSlices> {
    let mut dataset = run.dataset().unwrap();
    dataset.batch(run.program(), philox_key(&run.computation.seed), step).unwrap();
    dataset.slices_read().unwrap().into_iter().map(DataSlices::from).collect()
}

#[test]
fn none_convicts_an_honest_run() {
    let (run, checked) = &*HONEST;
    let files = run.file.data.clone();
    let mut claims = vec![
        (0, Claim::Initial),
        (9, Claim::Final { last: checked.proven(8) }),
        (
            2,
            Claim::Fork { other: checked.note.clone(), evidence: Fork::Record { record: checked.proven(2) } },
        ),
    ];
    for step in [1, 4, 8] {
        claims.push((step, Claim::LearningRate));
        claims.push((step, Claim::Cursor));
        claims.push((step, Claim::Batch { files: files.clone(), slices: slices(run, step) }));
        let trace = traces::read(run.program(), &run.layout.trace(step)).unwrap();
        for scalar in [Scalar::Clip, Scalar::Loss] {
            let output = scalar_output(run.program(), &trace, scalar);
            claims.push((step, Claim::Scalar { scalar, output }));
        }
    }
    for (index, claim) in claims {
        let outcome = checked.verdict(run, index, claim.clone()).check(Some(&public()));
        assert!(matches!(outcome, Ok(Ruling::DoesNotConvict(_))), "{}: {outcome:?}", claim.kind());
    }
    for size in run.head_sizes().unwrap() {
        let other = std::fs::read_to_string(run.layout.head(size)).unwrap();
        let proof = merkle::prove_prefix(&checked.transcript.leaves, size as usize);
        let mut verdict = checked.verdict(run, 0, Claim::Fork { other, evidence: Fork::Prefix { proof } });
        verdict.record = None;
        let outcome = verdict.check(Some(&public()));
        assert!(matches!(outcome, Ok(Ruling::DoesNotConvict(_))), "{outcome:?}");
    }
}

/// Evidence that an accuser might make up.
#[test]
fn made_up_evidence_is_malformed() {
    let (run, checked) = &*HONEST;
    let malformed = |index: u32, claim: Claim| {
        let verdict = checked.verdict(run, index, claim);
        let outcome = verdict.check(Some(&public()));
        assert!(outcome.is_err(), "{}: {outcome:?}", verdict.claim.kind());
    };
    let files = run.file.data.clone();
    malformed(4, Claim::Batch { files: files.clone(), slices: Vec::new() });
    let mut other = slices(run, 4);
    other[0].bytes.0[0] ^= 1;
    malformed(4, Claim::Batch { files: files.clone(), slices: other });
    let mut other = slices(run, 4);
    other[0].file = usize::MAX;
    malformed(4, Claim::Batch { files: files.clone(), slices: other });
    let mut manifest = files;
    manifest[0].bytes += 1;
    malformed(4, Claim::Batch { files: manifest, slices: slices(run, 4) });
    // A job that clips does not give the factor; only the trace gives the loss.
    malformed(4, Claim::Scalar { scalar: Scalar::Clip, output: None });
    malformed(4, Claim::Scalar { scalar: Scalar::Loss, output: None });
    let trace = traces::read(run.program(), &run.layout.trace(4)).unwrap();
    let loss = scalar_output(run.program(), &trace, Scalar::Loss);
    malformed(4, Claim::Scalar { scalar: Scalar::Clip, output: loss });
    malformed(9, Claim::Final { last: checked.proven(7) });
    malformed(8, Claim::Final { last: checked.proven(8) });
    malformed(4, Claim::Initial);
    malformed(0, Claim::Cursor);
    // A second history that somebody else signed, or nobody; one of another run; records at two places.
    let record = other_history(5).1;
    let leaves = [merkle::leaf(&record.record.0)];
    let head = Head { run: run.id, size: 1, root: merkle::root(&leaves) };
    let stranger = PrivateKey::generate("trainer.example", [6; 32]).unwrap();
    let alone = ProvenRecord { index: 0, proof: Vec::new(), record: record.record.clone() };
    for other in [head.to_note(Some(&stranger)), head.to_note(None)] {
        let evidence = Fork::Record { record: alone.clone() };
        malformed(0, Claim::Fork { other: other.clone(), evidence });
        let mut verdict =
            checked.verdict(run, 0, Claim::Fork { other, evidence: Fork::Prefix { proof: vec![OTHER] } });
        verdict.record = None;
        assert!(verdict.check(Some(&public())).is_err());
        assert!(verdict.check(None).is_err(), "a fork needs the run's own signature whoever checks");
    }
    let foreign = Head { run: OTHER, ..head }.to_note(Some(&key()));
    malformed(0, Claim::Fork { other: foreign, evidence: Fork::Record { record: alone } });
    let (other, record) = other_history(5);
    malformed(4, Claim::Fork { other, evidence: Fork::Record { record } });
    // The same records under both heads are no fork.
    let same = fork_of_records(4).check(Some(&public()));
    assert!(matches!(same, Ok(Ruling::DoesNotConvict(_))), "{same:?}");
}
