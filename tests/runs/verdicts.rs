//! Verdicts stand alone, and fall when anything in them is changed: nobody can be framed with an edited file, and no file makes
//! the checker panic.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::common::{self, edit::edited, gpt_job, key, program_job, resnet_job, trained};
use proptest::prelude::*;
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Silent, audit};
use tiebreak_contract::program::graph::{Primitive, TensorType};
use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_dispute::fact::{Fact, Wrong};
use tiebreak_dispute::verdict::{
    Base64, Claim, Disclosed, Hashes, PhaseName, ProvenInput, ProvenRecord, ProvenTensor, Ruling, TileClaim,
    Verdict,
};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::tree_head::{Head, Signed};
use tiebreak_record::commit::{merkle, multiproof, state, table, tensor};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::traces;

fn public() -> PublicKey {
    key().public()
}

fn verdict_on(cheat: &str) -> Verdict {
    verdict_of(gpt_job, cheat)
}

fn verdict_of(job: fn(&Path, &str, &str) -> PathBuf, cheat: &str) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&job(folder.path(), "operator", ""), &folder.path().join("run"), Some(cheat));
    let checked = checks::always(&run, Some(&public())).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (_, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
    verdict.expect("a cheat gives a verdict")
}

/// Verdicts that convict. The subjects are: one element of a map's output (a flipped bit), one of an update's (the state after
/// the step is published), an update's whole tile (the state is not published), a binding, the initial state.
static CONVICTING: LazyLock<Vec<Verdict>> = LazyLock::new(|| {
    ["operator@5", "learning-rate@4", "learning-rate@3", "moment@3", "init@0"].map(verdict_on).into()
});
/// The number of verdicts about tiles.
const TILES: usize = 3;

/// A run that all tests of this file read.
static HONEST: LazyLock<(Run, Checked)> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verdicts");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let run = trained(&gpt_job(&folder, "operator", ""), &folder.join("run"), None);
    let checked = checks::always(&run, Some(&public())).unwrap();
    (run, checked)
});

fn convicts(verdict: &Verdict) -> bool {
    matches!(verdict.check(Some(&public())), Ok(Ruling::Convicts(_)))
}

fn tile_claim(verdict: &mut Verdict) -> &mut TileClaim {
    match &mut verdict.claim {
        Claim::Tile(claim) => claim,
        other => panic!("{other:?} is not about a tile"),
    }
}

#[test]
fn verdicts_are_small_and_convict_from_their_bytes_alone() {
    for verdict in CONVICTING.iter() {
        let bytes = verdict.to_bytes();
        let read = Verdict::from_bytes(&bytes).unwrap();
        assert_eq!(&read, verdict);
        println!("{}: {} bytes", verdict.claim.kind(), bytes.len());
        assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
        let Ok(Ruling::Convicts(finding)) = read.check(Some(&public())) else { panic!("no conviction") };
        assert_eq!(finding.signed, Signed::By);
        let Ok(Ruling::Convicts(finding)) = read.check(None) else { panic!("no conviction") };
        assert_eq!(finding.signed, Signed::Unknown);
        let other = PrivateKey::generate("trainer.example", [6; 32]).unwrap().public();
        assert!(read.check(Some(&other)).is_err(), "another trainer is not accused");
    }
}

#[test]
fn a_cheat_between_convolutions_convicts() {
    let mut verdict = verdict_of(resnet_job, "operator@3");
    let checked = verdict.check(Some(&public()));
    let Ok(Ruling::Convicts(finding)) = checked else { panic!("{checked:?}") };
    let Wrong(Fact::Operator { operator, .. }) = &finding.what else { panic!("{:?}", finding.what) };
    assert_eq!(operator, "stage0.block0.norm0.relu");
    tile_claim(&mut verdict).node += 1;
    assert!(!convicts(&verdict));
}

/// Changes that an accuser might make to a tile verdict.
#[test]
fn an_edited_tile_verdict_does_not_convict() {
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 26] = [
        ("another tile", |v| tile_claim(v).tile ^= 1),
        ("another node", |v| tile_claim(v).node += 1),
        ("an absurd node", |v| tile_claim(v).node = usize::MAX),
        ("an absurd tile", |v| tile_claim(v).tile = usize::MAX),
        ("another micro-batch", |v| tile_claim(v).phase = PhaseName::Micro(1)),
        ("no such micro-batch", |v| tile_claim(v).phase = PhaseName::Micro(u32::MAX)),
        ("another phase", |v| tile_claim(v).phase = PhaseName::Update),
        ("no such addition", |v| tile_claim(v).phase = PhaseName::Accumulate(u32::MAX)),
        ("another claimed value", |v| tile_claim(v).value = Digest([1; 32])),
        ("another output", |v| tile_claim(v).output.digest = Digest([1; 32])),
        ("a proof too long", |v| tile_claim(v).output.proof.push(Digest([1; 32]))),
        ("a proof too short", |v| tile_claim(v).output.proof.truncate(1)),
        ("no inputs", |v| tile_claim(v).inputs.clear()),
        ("an input twice", |v| {
            let input = tile_claim(v).inputs[0].clone();
            tile_claim(v).inputs.push(input);
        }),
        ("a foreign input", |v| tile_claim(v).inputs[0].tensor += 1),
        ("a changed input", |v| tile_claim(v).inputs[0].bytes.0[5] ^= 1),
        ("a shorter input", |v| tile_claim(v).inputs[0].bytes.0.truncate(8)),
        ("a longer input", |v| tile_claim(v).inputs[0].bytes.0.push(0)),
        ("an input without slices", |v| tile_claim(v).inputs[0].slices.clear()),
        ("an input slice elsewhere", |v| tile_claim(v).inputs[0].slices[0] = usize::MAX),
        ("an input slice twice", |v| {
            let input = &mut tile_claim(v).inputs[0];
            input.slices.insert(0, input.slices[0]);
        }),
        ("a hash too many", |v| tile_claim(v).inputs[0].siblings.0.push([1; 32])),
        ("the record of the step for the one before", |v| {
            tile_claim(v).before = v.record.clone().unwrap();
        }),
        ("the record before for the step's", |v| v.record = Some(tile_claim(v).before.clone())),
        ("another place of the record", |v| v.record.as_mut().unwrap().index += 1),
        ("no record", |v| v.record = None),
    ];
    // An update's tile reads the state, a map's tile another node.
    for verdict in &CONVICTING[..TILES] {
        for (what, edit) in edits {
            let mut edited = verdict.clone();
            edit(&mut edited);
            // A node may have one tile, or belong to the update already: then the edit changes nothing.
            assert!(edited == *verdict || !convicts(&edited), "{what}");
        }
    }
}

#[test]
fn an_edited_disclosure_does_not_convict() {
    fn disclosed(v: &mut Verdict) -> &mut Disclosed {
        tile_claim(v).disclosed.as_mut().expect("the trainer's bytes are known")
    }
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 7] = [
        ("its neighbour", |v| disclosed(v).element ^= 1),
        ("an element further on", |v| disclosed(v).element += 2),
        ("an element of another tile", |v| disclosed(v).element += 1024),
        ("an absurd element", |v| disclosed(v).element = usize::MAX),
        ("other bytes", |v| disclosed(v).bytes.0[7] ^= 1),
        ("fewer bytes", |v| disclosed(v).bytes.0.truncate(1024)),
        ("no bytes, and the inputs of one element", |v| tile_claim(v).disclosed = None),
    ];
    for (what, edit) in edits {
        let mut edited = CONVICTING[0].clone();
        edit(&mut edited);
        assert!(!convicts(&edited), "{what}");
    }
}

/// A trainer who is asked for the tile's bytes makes the verdict small; wrong bytes give no verdict.
#[test]
fn a_tile_verdict_is_narrowed_to_one_element() {
    let folder = tempfile::tempdir().unwrap();
    let run =
        trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("run"), Some("learning-rate@4"));
    let path = run.layout.checkpoint(4);
    let state = tiebreak_run::run::checkpoint::read(&path, &run.program().state()).unwrap();
    std::fs::remove_file(path).unwrap();
    let checked = checks::always(&run, Some(&public())).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (_, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
    let mut wide = verdict.unwrap();
    let claim = tile_claim(&mut wide).clone();
    assert_eq!(claim.disclosed, None);
    let tensor = tiebreak_dispute::evidence::binding::state_nodes(run.program())
        .iter()
        .position(|&n| n == Some(claim.node));
    let bytes = &state[tensor.unwrap()];
    let tile = &bytes[tensor::tile_range(bytes.len(), claim.tile)];
    let narrow = wide.narrowed(tile).unwrap().expect("an element is wrong");
    assert!(convicts(&wide) && convicts(&narrow));
    let sizes = [&wide, &narrow].map(|verdict| verdict.to_bytes().len());
    println!("narrowed from {} to {} bytes", sizes[0], sizes[1]);
    assert!(sizes[1] + 5_000 < sizes[0], "{sizes:?}");
    let mut other = tile.to_vec();
    other[5] ^= 1;
    assert!(wide.narrowed(&other).is_err(), "bytes that are not committed");
    assert!(wide.narrowed(&tile[..8]).is_err());
    assert!(narrow.narrowed(tile).is_err(), "it is narrow already");
    assert!(CONVICTING[TILES].narrowed(tile).is_err(), "a binding has no tile");
    assert_eq!(Verdict::from_bytes(&narrow.to_bytes()), Ok(narrow));
}

/// A run of a program file is convicted from a verdict that carries the program.
#[test]
fn a_verdict_on_a_program_file_carries_the_program() {
    let verdict = verdict_of(program_job, "operator@3");
    assert!(convicts(&verdict) && matches!(verdict.claim, Claim::Tile(_)));
    assert_eq!(Verdict::from_bytes(&verdict.to_bytes()).as_ref(), Ok(&verdict));
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit, &str); 4] = [
        ("no program", |v| v.program = None, "is not given"),
        (
            "other samples of a micro-batch",
            |v| v.program.as_mut().unwrap().0[4] ^= 3,
            "labels_per_sample: it is 12, and a sample has 24 labels",
        ),
        ("no whole program", |v| v.program.as_mut().unwrap().0.truncate(9), "the bytes end"),
        ("another version", |v| v.program.as_mut().unwrap().0[0] = 1, "version 2 is read here"),
    ];
    for (what, edit, expected) in edits {
        let mut edited = verdict.clone();
        edit(&mut edited);
        let error = edited.check(Some(&public())).unwrap_err().to_string();
        assert!(error.contains(expected), "{what}: {error}");
    }
    // A valid program that is not the run's: its digest differs.
    let mut edited = verdict.clone();
    let mut program =
        tiebreak_contract::program::decoding::decode(&edited.program.as_ref().unwrap().0).unwrap();
    program.corrections[0] ^= 1;
    edited.program = Some(Base64(tiebreak_contract::program::encoding::encode(&program)));
    let error = edited.check(Some(&public())).unwrap_err().to_string();
    assert!(error.contains("the program digest is not that of the job"), "{error}");
    // A model kind's job need not bring its program; a program that it brings has to be the kind's.
    let mut with_program = CONVICTING[0].clone();
    with_program.program = verdict.program;
    assert!(convicts(&with_program));
    with_program.program.as_mut().unwrap().0[4] ^= 3;
    let error = with_program.check(Some(&public())).unwrap_err().to_string();
    assert!(error.contains("the file is not what the job's model kind gives"), "{error}");
}

#[test]
fn an_honest_run_of_a_program_file_matches() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&program_job(folder.path(), "microbatch", ""), &folder.path().join("run"), None);
    let checked = checks::always(&run, Some(&public())).unwrap();
    assert!(checked.passed[0].contains("program read from a file"), "{}", checked.passed[0]);
    assert_eq!(run.unexpected_files().unwrap(), Vec::<String>::new());
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
    assert_eq!((report.outcome, verdict), (tiebreak_audit::Outcome::Matches, None));
    std::fs::write(run.layout.program(), b"another").unwrap();
    assert!(Run::open(&run.layout.root).is_err());
}

/// A trainer of a job with frozen parameters who changes one of them between steps.
#[test]
fn whoever_changes_a_frozen_parameter_is_convicted() {
    fn frozen_job(folder: &Path, granularity: &str, extra: &str) -> PathBuf {
        let path = gpt_job(folder, granularity, extra);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("frozen = [\"token_embedding\", \"*.norm1.*\"]\n{text}")).unwrap();
        path
    }
    let verdict = verdict_of(frozen_job, "weight-after@3");
    let Claim::Binding { before, kept, outputs, .. } = &verdict.claim else {
        panic!("{} is no binding", verdict.claim.kind())
    };
    assert!(before.is_some() && kept.len() == 3 && !outputs.is_empty());
    let checked = verdict.check(Some(&public()));
    assert!(matches!(checked, Ok(Ruling::Convicts(_))), "{checked:?}");
    assert_eq!(Verdict::from_bytes(&verdict.to_bytes()).as_ref(), Ok(&verdict));
    type Edit = fn(&mut Option<Box<ProvenRecord>>, &mut Vec<ProvenTensor>);
    let edits: [(&str, Edit); 6] = [
        ("no record before", |before, _| *before = None),
        ("another record before", |before, _| before.as_mut().unwrap().index -= 1),
        ("no frozen parameters", |_, kept| kept.clear()),
        ("one less", |_, kept| drop(kept.pop())),
        ("another order", |_, kept| kept.swap(0, 1)),
        ("another digest", |_, kept| kept[0].digest = Digest([1; 32])),
    ];
    for (what, edit) in edits {
        let mut edited = verdict.clone();
        let Claim::Binding { before, kept, .. } = &mut edited.claim else { unreachable!("it is a binding") };
        edit(before, kept);
        assert!(edited.check(Some(&public())).is_err(), "{what}");
    }
    // The same claim about an honest run convicts nobody; and a step's other cheats do not become other verdicts.
    let operator = verdict_of(frozen_job, "operator@3");
    assert!(convicts(&operator) && matches!(operator.claim, Claim::Tile(_)));
}

#[test]
fn an_edited_binding_verdict_does_not_convict() {
    type Edit = fn(&mut Vec<Digest>);
    let edits: [(&str, Edit); 4] = [
        ("another order", |outputs| outputs.swap(0, 1)),
        ("one less", |outputs| outputs.truncate(outputs.len() - 1)),
        ("one more", |outputs| outputs.push(outputs[0])),
        ("another digest", |outputs| outputs[3] = Digest([1; 32])),
    ];
    for (what, edit) in edits {
        let mut edited = CONVICTING[TILES].clone();
        match &mut edited.claim {
            Claim::Binding { outputs, .. } => edit(outputs),
            other => panic!("{other:?} is not a binding"),
        }
        assert!(edited.check(Some(&public())).is_err(), "{what}");
    }
}

/// Changes that an accuser might make to any verdict.
#[test]
fn a_verdict_with_another_run_job_seed_or_head_does_not_convict() {
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 9] = [
        ("another format", |v| v.format += 1),
        ("another contract", |v| v.run.contract.push('x')),
        ("a challenge, for another seed", |v| v.run.challenge = Some(Digest([1; 32]))),
        ("another nonce", |v| v.run.nonce = "0".repeat(32)),
        ("no trainer", |v| v.run.trainer_key = None),
        ("other data", |v| v.run.data = Digest([1; 32])),
        ("another program", |v| v.run.program = Digest([1; 32])),
        ("another job", |v| v.job = edited(&v.job, &[("peak = 1e-2", "peak = 2e-2")])),
        ("the same job in other words", |v| v.job.push('\n')),
    ];
    let (honest, checked) = &*HONEST;
    for verdict in CONVICTING.iter() {
        for (what, edit) in edits {
            let mut edited = verdict.clone();
            edit(&mut edited);
            let bytes = edited.to_bytes();
            let read = Verdict::from_bytes(&bytes);
            assert!(!read.is_ok_and(|v| convicts(&v)), "{what}");
        }
        let mut edited = verdict.clone();
        // The honest run has the same id: same job, key and nonce. The head is over other records.
        assert_eq!(edited.run, honest.file.summary());
        edited.head = checked.note.clone();
        assert!(!convicts(&edited), "the head of an honest history");
        let signer = PrivateKey::generate("trainer.example", [6; 32]).unwrap();
        let head = Head { run: honest.id, size: checked.head.size, root: checked.head.root };
        edited.head = head.to_note(Some(&signer));
        assert!(!convicts(&edited), "a head that another key signed");
    }
}

/// A truthful verdict file about an honest tile, made without any difference: a file that a malicious accuser could sign.
fn honest_tile(step: u32) -> Verdict {
    let (run, checked) = &*HONEST;
    let program = run.program();
    let graph = &program.micro;
    let is_gather = |p: &Primitive| matches!(p, Primitive::Gather { .. });
    let node = graph.nodes.iter().position(|n| is_gather(&n.primitive)).unwrap();
    let trace = traces::read(program, &run.layout.trace(step)).unwrap();
    let before = checks::state_after(run, checked, step - 1).unwrap();
    let batch = run.dataset().unwrap().batch(program, philox_key(&run.computation.seed), step).unwrap();
    let place = |named: &[(String, TensorType, &[u8])], index: usize| {
        let digests: Vec<Digest> = named.iter().map(|(_, ty, bytes)| tensor::digest(ty, bytes)).collect();
        let leaves: Vec<Digest> =
            named.iter().zip(&digests).map(|((name, ..), d)| table::leaf(name, d)).collect();
        ProvenTensor { digest: digests[index], proof: merkle::prove(&leaves, index) }
    };
    let mut inputs = Vec::new();
    for id in graph.nodes[node].primitive.inputs() {
        let phase = Phase::Micro(0);
        let (commitment, bytes) =
            match origin(program, run.job(), &run.computation.seed, step, phase, id).unwrap() {
                Origin::State { index } => {
                    let table = program.state();
                    let digests = state::tensor_digests(&table, &before);
                    let proof = state::prove(&table, &digests, index);
                    (ProvenTensor { digest: digests[index], proof }, &before[index])
                }
                Origin::Batch { micro, tensor } => {
                    let types = &program.batch;
                    let mut named = Vec::new();
                    for (m, micro_batch) in batch.iter().enumerate() {
                        for (t, bytes) in types.iter().zip(&micro_batch.tensors) {
                            let ty = TensorType { dtype: t.dtype, shape: t.shape.clone() };
                            named.push((format!("micro{m}/{}", t.name), ty, bytes.as_slice()));
                        }
                    }
                    let index = micro as usize * types.len() + tensor;
                    (place(&named, index), &batch[micro as usize].tensors[tensor])
                }
                other => panic!("an embedding does not read {other:?}"),
            };
        let values = tensor::piece_values(bytes, tensor::SLICE_BYTES);
        let slices: Vec<usize> = (0..values.len()).collect();
        inputs.push(ProvenInput {
            tensor: id.0,
            commitment,
            bytes: Base64(bytes.clone()),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
            slices,
        });
    }
    let traced = &trace.nodes[node];
    let claim = TileClaim {
        before: checked.proven(step - 1),
        phase: PhaseName::Micro(0),
        node,
        output: ProvenTensor { digest: traced.digest, proof: merkle::prove(&trace.leaves(program), node) },
        tile: 0,
        value: Digest(traced.tiles[0]),
        siblings: Hashes(multiproof::prove(multiproof::blake3, &traced.tiles, &[0])),
        disclosed: None,
        inputs,
    };
    checked.verdict(run, step, Claim::Tile(Box::new(claim)))
}

#[test]
fn a_truthful_verdict_about_an_honest_tile_does_not_convict() {
    // The steps that begin from a checkpoint.
    for step in [1, 3, 7] {
        let outcome = honest_tile(step).check(Some(&public())).unwrap();
        assert!(matches!(outcome, Ruling::DoesNotConvict(_)), "{outcome:?}");
    }
    // Batch or state of another step do not convict either.
    let (mut one, other) = (honest_tile(1), honest_tile(3));
    let inputs = match other.claim {
        Claim::Tile(claim) => claim.inputs,
        other => panic!("{other:?} is not about a tile"),
    };
    for (i, input) in inputs.into_iter().enumerate() {
        let honest = std::mem::replace(&mut tile_claim(&mut one).inputs[i], input);
        assert!(one.check(Some(&public())).is_err());
        tile_claim(&mut one).inputs[i] = honest;
    }
}

#[test]
fn a_verdict_has_one_encoding() {
    let text = String::from_utf8(CONVICTING[0].to_bytes()).unwrap();
    for other in [
        format!("{text} "),
        format!(" {text}"),
        text.replacen("\"format\":2", "\"format\": 2", 1),
        text.replacen("\"format\":2", "\"format\":2,\"format\":2", 1),
        text.replacen("\"format\":2", "\"format\":2,\"extra\":0", 1),
        text.replacen("\"kind\":\"tile\"", "\"extra\":0,\"kind\":\"tile\"", 1),
        text.replacen("\"kind\":\"tile\"", "\"kind\":\"game\"", 1),
        "[".repeat(100_000),
        "{}".into(),
    ] {
        assert_ne!(other, text);
        assert!(Verdict::from_bytes(other.as_bytes()).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing convicts and nothing panics, whatever byte an accuser changes, cuts off or repeats.
    #[test]
    fn changed_bytes_never_convict(
        kind in 0usize..5,
        place in any::<prop::sample::Index>(),
        flip in 1u8..,
        action in 0..3,
    ) {
        let mut bytes = CONVICTING[kind].to_bytes();
        let at = place.index(bytes.len());
        match action {
            0 => bytes[at] ^= flip,
            1 => bytes.truncate(at),
            _ => drop(bytes.remove(at)),
        }
        if let Ok(verdict) = Verdict::from_bytes(&bytes) {
            prop_assert!(!convicts(&verdict));
        }
    }

    /// The same inside the decoded bytes of records and tiles, where text does not get in the way.
    #[test]
    fn changed_evidence_never_convicts(place in any::<prop::sample::Index>(), flip in 1u8.., which in 0..6) {
        let mut verdict = CONVICTING[which as usize % TILES].clone();
        let bytes = match which / TILES as i32 {
            0 => &mut verdict.record.as_mut().unwrap().record.0,
            _ => {
                let inputs = &mut tile_claim(&mut verdict).inputs;
                let input = place.index(inputs.len());
                &mut inputs[input].bytes.0
            }
        };
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(!convicts(&verdict));
    }
}

/// `assets/vectors/verdict.py` is written from the page of verdicts alone. It leaves the recomputation of tiles out.
#[test]
fn a_second_implementation_reads_verdicts() {
    if !common::has_python() {
        return;
    }
    let (folder, program) = (tempfile::tempdir().unwrap(), HONEST.0.layout.program());
    for verdict in &CONVICTING[..TILES + 1] {
        let text = String::from_utf8(verdict.to_bytes()).unwrap();
        let (code, out, error) = common::verdict_script(folder.path(), text.as_bytes(), &program);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
        match &verdict.claim {
            Claim::Tile(claim) => assert_eq!(out.matches(" slices of ").count(), claim.inputs.len(), "{out}"),
            _ => assert!(out.ends_with("\nCONVICTS\n"), "{out}"),
        }
        // An element is a number that no proof is of.
        let digits = text.match_indices(|c: char| c.is_ascii_hexdigit() || c == '/');
        let proved = digits.filter(|(at, _)| !text[..*at].ends_with("\"element\":"));
        for (at, digit) in proved.step_by(text.len() / 8) {
            let mut changed = text.clone();
            changed.replace_range(at..at + 1, if digit == "1" { "2" } else { "1" });
            let (code, _, error) = common::verdict_script(folder.path(), changed.as_bytes(), &program);
            assert!(code == Some(1) && error.starts_with("DIFFERS: "), "byte {at}: {code:?} {error}");
        }
    }
}
