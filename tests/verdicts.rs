//! Verdicts stand alone, and fall when anything in them is changed: nobody can be framed with an edited file, and no
//! file makes the checker panic.

mod common;

use std::path::Path;
use std::sync::LazyLock;

use common::{gpt_job, key, trained};
use proptest::prelude::*;
use tiebreak::arith::DType;
use tiebreak::audit::checks::{self, Checked};
use tiebreak::audit::plan::{Choice, plan};
use tiebreak::audit::{Silent, audit};
use tiebreak::commit::checkpoint::{Head, Signed};
use tiebreak::commit::digest::Digest;
use tiebreak::commit::keys::{PrivateKey, PublicKey};
use tiebreak::commit::{merkle, table, tensor};
use tiebreak::dispute::origin::{Origin, origin};
use tiebreak::dispute::verdict::{
    Base64, Claim, Outcome, PhaseName, ProvenInput, ProvenTensor, ProvenTile, TileClaim, Verdict,
};
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::session::Phase;
use tiebreak::program::graph::{Primitive, TensorType};
use tiebreak::run::dir::Run;
use tiebreak::run::job::philox_key;
use tiebreak::run::traces::Trace;

fn public() -> PublicKey {
    key().public()
}

fn verdict_on(cheat: &str) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("run"), Some(cheat));
    let checked = checks::always(&run, Some(&public())).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job.steps, &Choice::All);
    let (_, verdict) = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
    verdict.expect("a cheat gives a verdict")
}

/// A verdict that convicts of each self-contained kind: a map's tile, an update's tile, a binding, the initial state.
static CONVICTING: LazyLock<Vec<Verdict>> =
    LazyLock::new(|| ["operator@5", "learning-rate@4", "moment@3", "init@0"].map(verdict_on).into());

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
    matches!(verdict.check(Some(&public())), Ok(Outcome::Convicts(_)))
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
        assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
        let Ok(Outcome::Convicts(finding)) = read.check(Some(&public())) else { panic!("no conviction") };
        assert_eq!(finding.signed, Signed::By);
        let Ok(Outcome::Convicts(finding)) = read.check(None) else { panic!("no conviction") };
        assert_eq!(finding.signed, Signed::Unknown);
        let other = PrivateKey::generate("trainer.example", [6; 32]).unwrap().public();
        assert!(read.check(Some(&other)).is_err(), "another trainer is not accused");
    }
}

/// What an accuser might change in a tile verdict.
#[test]
fn an_edited_tile_verdict_does_not_convict() {
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 22] = [
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
        ("a changed input", |v| tile_claim(v).inputs[0].tiles[0].bytes.0[5] ^= 1),
        ("a shorter input", |v| tile_claim(v).inputs[0].tiles[0].bytes.0.truncate(8)),
        ("a missing tile", |v| tile_claim(v).inputs[0].tiles.clear()),
        ("an input tile elsewhere", |v| tile_claim(v).inputs[0].tiles[0].tile = usize::MAX),
        ("the record of the step for the one before", |v| {
            let record = v.record.clone();
            tile_claim(v).before = record;
        }),
        ("the record before for the step's", |v| v.record = tile_claim(v).before.clone()),
        ("another place of the record", |v| v.record.index += 1),
    ];
    // An update's tile reads the state, a map's tile another node.
    for verdict in &CONVICTING[..2] {
        for (what, edit) in edits {
            let mut edited = verdict.clone();
            edit(&mut edited);
            // A node may have one tile, or be of the update already: then the edit is none.
            assert!(edited == *verdict || !convicts(&edited), "{what}");
        }
    }
}

#[test]
fn an_edited_binding_verdict_does_not_convict() {
    type Edit = fn(&mut Vec<ProvenTensor>);
    let edits: [(&str, Edit); 4] = [
        ("another order", |outputs| outputs.swap(0, 1)),
        ("one less", |outputs| drop(outputs.pop())),
        ("one more", |outputs| outputs.push(outputs[0].clone())),
        ("another digest", |outputs| outputs[3].digest = Digest([1; 32])),
    ];
    for (what, edit) in edits {
        let mut edited = CONVICTING[2].clone();
        match &mut edited.claim {
            Claim::Binding { outputs } => edit(outputs),
            other => panic!("{other:?} is not a binding"),
        }
        assert!(edited.check(Some(&public())).is_err(), "{what}");
    }
}

/// What an accuser might change in any verdict.
#[test]
fn a_verdict_with_another_run_job_seed_or_head_does_not_convict() {
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 9] = [
        ("another format", |v| v.format += 1),
        ("another contract", |v| v.run.contract.push('x')),
        ("a challenge, for another seed", |v| v.run.challenge = Some(Digest([1; 32]))),
        ("another nonce", |v| v.run.nonce = "0".repeat(32)),
        ("no trainer", |v| v.run.trainer_key = None),
        ("other data", |v| v.run.data[0].chunks[0] = Digest([1; 32])),
        ("another program", |v| v.run.program = Digest([1; 32])),
        ("another job", |v| v.job = v.job.replace("peak = 1e-2", "peak = 2e-2")),
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
        // The honest run has the same id: same job, key and nonce. Its head is over other records.
        assert_eq!(edited.run, honest.file);
        edited.head = checked.note.clone();
        assert!(!convicts(&edited), "the head of an honest history");
        let signer = PrivateKey::generate("trainer.example", [6; 32]).unwrap();
        let head = Head { run: honest.id, size: checked.head.size, root: checked.head.root };
        edited.head = head.to_note(Some(&signer));
        assert!(!convicts(&edited), "a head that another key signed");
    }
}

/// A truthful verdict file about an honest tile, made without any difference: what a malicious accuser could sign off.
fn honest_tile(step: u32) -> Verdict {
    let (run, checked) = &*HONEST;
    let program = &run.program;
    let graph = &program.micro;
    let is_gather = |p: &Primitive| matches!(p, Primitive::Gather { .. });
    let node = graph.nodes.iter().position(|n| is_gather(&n.primitive)).unwrap();
    let trace = Trace::read(program, &run.layout.trace(step)).unwrap();
    let state = checks::state_after(run, checked, step - 1).unwrap();
    let batch = run.dataset().unwrap().batch(program, philox_key(&run.seed), step).unwrap();
    let place = |named: &[(String, TensorType, &[u8])], index: usize| {
        let digests: Vec<Digest> = named.iter().map(|(_, ty, bytes)| tensor::digest(ty, bytes)).collect();
        let leaves: Vec<Digest> =
            named.iter().zip(&digests).map(|((name, ..), d)| table::leaf(name, d)).collect();
        ProvenTensor { digest: digests[index], proof: merkle::prove(&leaves, index) }
    };
    let mut inputs = Vec::new();
    for id in graph.nodes[node].primitive.inputs() {
        let phase = Phase::Micro(0);
        let (commitment, bytes) = match origin(program, &run.job, &run.seed, step, phase, id).unwrap() {
            Origin::State { index } => {
                let named: Vec<_> = program
                    .state()
                    .into_iter()
                    .zip(&state)
                    .map(|(t, bytes)| {
                        (t.name, TensorType { dtype: DType::F32, shape: t.shape }, bytes.as_slice())
                    })
                    .collect();
                (place(&named, index), &state[index])
            }
            Origin::Batch { micro, tensor } => {
                let types = program.spec.model.batch(program.spec.micro_batch);
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
        let values = tensor::tile_values(bytes);
        let tile = |tile: usize| ProvenTile {
            tile,
            bytes: Base64(bytes[tensor::tile_range(bytes.len(), tile)].to_vec()),
            siblings: tensor::prove_tile(&values, tile).into_iter().map(Digest).collect(),
        };
        inputs.push(ProvenInput { tensor: id.0, commitment, tiles: (0..values.len()).map(tile).collect() });
    }
    let traced = &trace.nodes[node];
    let claim = TileClaim {
        before: checked.proven(step - 1),
        phase: PhaseName::Micro(0),
        node,
        output: ProvenTensor { digest: traced.digest, proof: merkle::prove(&trace.leaves(program), node) },
        tile: 0,
        value: Digest(traced.tiles[0]),
        siblings: tensor::prove_tile(&traced.tiles, 0).into_iter().map(Digest).collect(),
        inputs,
    };
    checked.verdict(run, step, Claim::Tile(Box::new(claim))).unwrap()
}

#[test]
fn a_truthful_verdict_about_an_honest_tile_does_not_convict() {
    // The steps that begin from a checkpoint.
    for step in [1, 3, 7] {
        let outcome = honest_tile(step).check(Some(&public())).unwrap();
        assert!(matches!(outcome, Outcome::DoesNotConvict(_)), "{outcome:?}");
    }
    // Neither with the batch or state of another step.
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
        text.replacen("\"format\":1", "\"format\": 1", 1),
        text.replacen("\"format\":1", "\"format\":1,\"format\":1", 1),
        text.replacen("\"format\":1", "\"format\":1,\"extra\":0", 1),
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

    /// Whatever byte an accuser changes, cuts off or repeats, nothing convicts and nothing panics.
    #[test]
    fn changed_bytes_never_convict(
        kind in 0usize..4,
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
    fn changed_evidence_never_convicts(place in any::<prop::sample::Index>(), flip in 1u8.., which in 0..4) {
        let mut verdict = CONVICTING[which as usize % 2].clone();
        let bytes = match which / 2 {
            0 => &mut verdict.record.record.0,
            _ => {
                let inputs = &mut tile_claim(&mut verdict).inputs;
                let input = place.index(inputs.len());
                let tiles = &mut inputs[input].tiles;
                let tile = place.index(tiles.len());
                &mut tiles[tile].bytes.0
            }
        };
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(!convicts(&verdict));
    }
}
