//! Ranks that divide the optimizer's slots: one process's bytes, whoever goes on with a run; and who is named when a rank's slots or
//! parameters are wrong.

use std::path::Path;

use crate::common::{begin_run, edit::edit, files, gpt_job, mlp_job, program_job, trained};
use crate::ranks_in_process::{Bytes, Fault, Wrong, audited, train_run};
use tiebreak_audit::Outcome;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Port, TensorId};
use tiebreak_contract::program::part::{GraphPart, needed};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, state_bytes};
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::recompute::step_bytes_sharing;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{read_job, transcript};
use tiebreak_train::ranks::collective::MessageKind;
use tiebreak_train::ranks::slots::SlotPlan;
use tiebreak_train::{Progress, Silent, TrainError};

/// Trains a job over ranks that divide the slots, one of which may be faulty.
fn divided(job: &Path, out: &Path, ranks: u32, fault: Option<(u32, Fault)>) -> Result<(), TrainError> {
    let run = begin_run(&Disk::default(), job, out).unwrap();
    let wrong = fault.map(|(rank, fault)| (rank, Wrong::Fault(fault)));
    train_run(&run, ranks, wrong, (None, true), &mut Silent)
}

fn program(job: &Path) -> Program {
    read_job(job).unwrap().1.program(None).unwrap()
}

#[test]
fn every_granularity_and_profile_has_the_bytes_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let lora = "\n[model.lora]\nrank = 2\nalpha = 4\ntargets = [\"all-linear\"]\n";
    let counted = "\n[loss]\nignore = 97\n";
    for (number, (granularity, extra)) in
        [("step", lora), ("microbatch", counted), ("operator", ""), ("operator", "\n[rounding]\n")]
            .into_iter()
            .enumerate()
    {
        let job = gpt_job(folder.path(), granularity, extra);
        let whole = folder.path().join(format!("whole-{number}"));
        trained(&job, &whole, None);
        for ranks in [2, 3] {
            let out = folder.path().join(format!("divided-{number}-{ranks}"));
            divided(&job, &out, ranks, None).unwrap();
            assert!(files(&out) == files(&whole), "{granularity} {extra} over {ranks} ranks");
        }
    }
}

/// A perceptron of four parameters: with seven ranks, three hold no slots and update nothing.
#[test]
fn there_may_be_more_ranks_than_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "operator", 3, 7);
    edit(&job, &[("hidden = [33, 20]", "hidden = [33]")]);
    let whole = folder.path().join("whole");
    trained(&job, &whole, None);
    for ranks in 2..=7 {
        let out = folder.path().join(ranks.to_string());
        divided(&job, &out, ranks, None).unwrap();
        assert!(files(&out) == files(&whole), "{ranks} ranks");
    }
}

#[test]
fn frozen_parameters_have_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let path = program_job(folder.path(), "microbatch", "");
    let text = std::fs::read_to_string(&path).unwrap();
    let described = gpt_job(folder.path(), "microbatch", "");
    let frozen = format!("frozen = [\"block0.*\"]\n{}", std::fs::read_to_string(&described).unwrap());
    std::fs::write(&described, frozen).unwrap();
    let program = tiebreak_contract::program::encoding::encode(&program(&described));
    std::fs::write(folder.path().join("gpt.program"), program).unwrap();
    std::fs::write(&path, text).unwrap();
    let (whole, out) = (folder.path().join("whole"), folder.path().join("divided"));
    trained(&path, &whole, None);
    divided(&path, &out, 3, None).unwrap();
    assert!(files(&out) == files(&whole));
    assert_eq!(audited(&out), Outcome::Matches);
}

/// Asks training to stop behind a step.
struct Until(u32, u32);

impl Progress for Until {
    fn step(&mut self, record: &StepRecord, _: u32) {
        self.1 = record.step;
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.1 >= self.0
    }
}

/// One run: three ranks that divide, four that do not, two that divide, one process.
#[test]
fn others_go_on_with_a_run_in_other_numbers_divided_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(&job, &[("micro_batches = 3", "micro_batches = 4")]);
    let (whole, out) = (folder.path().join("whole"), folder.path().join("divided"));
    trained(&job, &whole, None);
    begin_run(&Disk::default(), &job, &out).unwrap();
    for (ranks, divided, until) in [(3, true, 2), (4, false, 4), (2, true, 6)] {
        let run = Run::open(&out).unwrap();
        let error = train_run(&run, ranks, None, (None, divided), &mut Until(until, 0)).unwrap_err();
        assert!(matches!(error, TrainError::Asked { step } if step == until), "{error}");
    }
    train_run(&Run::open(&out).unwrap(), 4, None, (Some(1), true), &mut Silent).unwrap();
    assert!(files(&out) == files(&whole));
}

/// A slot that is not the one whose digest the rank told, of another size, and a share with a wrong digest: each names the rank, and
/// no checkpoint is written.
#[test]
fn a_rank_with_wrong_slots_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 4, 3);
    type Change = fn(&mut Vec<u8>);
    // The slots of step 0 are wrong in the first two cases, and those of a later step in the others.
    let changes: [(&str, MessageKind, usize, Change); 4] = [
        ("is not the tensor whose digest it told", MessageKind::State, 0, |bytes| bytes[1] ^= 1),
        (" bytes, not ", MessageKind::State, 0, |bytes| bytes.truncate(12)),
        ("is not the tensor whose digest it told", MessageKind::Share, 1, |bytes| {
            // Behind the digest of the common state, three words and the roots of two micro-batches.
            bytes[32 + 12 + 64] ^= 1;
        }),
        ("ends too early", MessageKind::Share, 1, |bytes| bytes.truncate(32 + 12 + 64 + 40)),
    ];
    for (number, (says, kind, checkpoints, change)) in changes.into_iter().enumerate() {
        let out = folder.path().join(number.to_string());
        let fault: Fault = Box::new(move |what, bytes| {
            if what == Bytes::Sent(kind) {
                change(bytes);
            }
        });
        let error = divided(&job, &out, 2, Some((1, fault))).unwrap_err().to_string();
        assert!(error.starts_with("rank 1") && error.contains(says), "{number}: {error}");
        let left = std::fs::read_dir(out.join("checkpoints")).map_or(0, |all| {
            all.filter(|entry| !entry.as_ref().unwrap().path().to_string_lossy().ends_with(".partial"))
                .count()
        });
        assert_eq!(left, checkpoints, "{number}: checkpoints of right slots");
    }
}

/// Stops where a loss is not finite.
struct Finite;

impl Progress for Finite {
    fn step(&mut self, _: &StepRecord, _: u32) {}

    fn stops_at_not_finite(&self) -> bool {
        true
    }
}

/// A loss that is not a number: rank 0 searches where it began while the others wait for the new parameters.
#[test]
fn a_loss_that_is_not_finite_is_told_as_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 6, 3);
    edit(&job, &[("peak = 0.05", "peak = 1e30")]);
    let run = |out: &Path| begin_run(&Disk::default(), &job, out).unwrap();
    let (whole, out) = (folder.path().join("whole"), folder.path().join("divided"));
    let alone = train_run(&run(&whole), 1, None, (None, false), &mut Finite).unwrap_err();
    let error = train_run(&run(&out), 3, None, (None, true), &mut Finite).unwrap_err();
    assert!(matches!(alone, TrainError::NotFinite { .. }), "{alone}");
    assert_eq!(error.to_string(), alone.to_string());
    assert!(files(&out) == files(&whole));
}

/// A parameter that arrives wrongly at one rank is seen; one that its rank sends wrongly to all is an auditor's to find.
#[test]
fn a_parameter_that_arrives_wrongly_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 4, 3);
    // The third exchange of step 2.
    let fault: Fault = Box::new(|what, bytes| {
        if what == Bytes::Taken(5) {
            bytes[2] ^= 0x10;
        }
    });
    let out = folder.path().join("taken");
    let error = divided(&job, &out, 3, Some((2, fault))).unwrap_err().to_string();
    assert!(error.starts_with("rank 2: the state after step 2 is not that of most ranks"), "{error}");
    assert_eq!(transcript::read(&out.join("transcript")).unwrap().0.records.len(), 2);
    let whole = folder.path().join("whole");
    trained(&job, &whole, None);
    train_run(&Run::open(&out).unwrap(), 2, None, (None, false), &mut Silent).unwrap();
    assert!(files(&out) == files(&whole));
}

/// A rank whose slots are wrong before the first step.
#[test]
fn a_slot_that_does_not_arrive_stops_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 2, 3);
    let fault: Fault = Box::new(|what, bytes| {
        if what == Bytes::Sent(MessageKind::Ready) {
            bytes[70] ^= 1;
        }
    });
    let error = divided(&job, &folder.path().join("run"), 3, Some((2, fault))).unwrap_err().to_string();
    assert!(error.starts_with("rank 2") && error.contains("state after step 0"), "{error}");
}

#[test]
fn slots_are_divided_evenly_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(&gpt_job(folder.path(), "step", ""));
    let (table, released) = (program.state(), program.released());
    let all = state_bytes(&table[released..]);
    let largest = table.iter().map(|tensor| tensor.ty().bytes() as u64).max().unwrap();
    for ranks in 1..=9u32 {
        let plan = SlotPlan::new(&program, ranks).unwrap();
        let shares: Vec<_> = (0..ranks).map(|rank| plan.share(&program, rank).update).collect();
        let mut held: Vec<usize> = shares.iter().flat_map(|share| share.held.clone()).collect();
        held.sort();
        let due: Vec<usize> =
            (0..released).flat_map(|i| vec![i; ranks as usize]).chain(released..table.len()).collect();
        assert_eq!(held, due, "{ranks} ranks");
        let (most, sum) = plan.most_of_all();
        // AdamW has two slots for each parameter, and both are of one rank.
        assert!(sum == all && most <= all / u64::from(ranks) + 2 * largest, "{ranks} ranks: {most} of {all}");
        let made: usize = shares.iter().map(|share| share.made.len()).sum();
        assert_eq!(made, table.len(), "each tensor is updated once");
        // The plan of memory looks at three ranks, and no other needs more.
        let bytes = |rank: u32| {
            let keeping = Keeping { outside: false, before: false, holds: false };
            step_bytes_sharing(&program, &shares[rank as usize], false, keeping)
        };
        let heaviest = plan.heaviest().map(bytes).into_iter().max();
        assert_eq!(heaviest, (0..ranks).map(bytes).max(), "{ranks} ranks");
    }
}

#[test]
fn an_update_that_cannot_be_divided_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 2, 3);
    edit(&job, &[("hidden = [33, 20]", "hidden = [33, 33, 33]")]);
    let mut program = program(&job);
    let refused = |program: &Program| SlotPlan::new(program, 3).err().map(|error| error.to_string());
    assert_eq!(refused(&program), None);
    // Two parameters of one shape read each other's momentum.
    let square = |port: &Port, update: &Graph| {
        port.name.starts_with("momentum/") && update.tensor(port.tensor).shape == [33, 33]
    };
    let update = &mut program.update;
    let found: Vec<usize> = (0..update.inputs.len()).filter(|&i| square(&update.inputs[i], update)).collect();
    let [a, b] = [found[0], found[1]];
    let tensor = update.inputs[a].tensor;
    update.inputs[a].tensor = std::mem::replace(&mut update.inputs[b].tensor, tensor);
    assert!(refused(&program).unwrap().contains("for another parameter than its own"));
    program.slots.clear();
    assert!(refused(&program).unwrap().contains("has no slots to divide"));
}

/// a + b = s, s + b = t; c + c = u.
fn graph() -> Graph {
    let mut b = Builder::new(ProductTable::two_and_three());
    let [x, y, z] = ["a", "b", "c"].map(|name| b.input(name, DType::F32, &[2]));
    let s = b.add(x, y);
    let t = b.add(s, y);
    let u = b.add(z, z);
    [("s", s), ("t", t), ("u", u)].into_iter().for_each(|(name, id)| b.output(name, id));
    b.finish()
}

#[test]
fn a_part_has_the_nodes_that_its_outputs_need_and_no_others() {
    let whole = graph();
    let at = |name| whole.output(name).expect("the graph has this output");
    assert_eq!(needed(&whole, [at("s")]), [true, false, false]);
    assert_eq!(needed(&whole, [at("t")]), [true, true, false]);
    assert_eq!(needed(&whole, [at("u")]), [false, false, true]);
    let part = GraphPart::of(&whole, &[false, false, true], &[false, false, true]);
    assert_eq!(part.inputs, [2]);
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&part.graph.inputs), names(&part.graph.outputs)), (vec!["c".into()], vec!["u".into()]));
    assert_eq!((part.graph.tensors.len(), part.graph.nodes.len()), (2, 1));
    assert_eq!(part.graph.nodes[0].primitive.inputs(), [TensorId(0); 2]);
    // All of it is itself, but for the tensors' numbers.
    let all = GraphPart::of(&whole, &[true; 3], &[true; 3]);
    assert_eq!((all.graph, all.inputs), (whole, vec![0, 1, 2]));
}

#[test]
#[should_panic(expected = "a part has what its nodes read")]
fn a_node_without_the_node_that_it_reads_is_no_part() {
    let whole = graph();
    GraphPart::of(&whole, &[false, true, false], &[false, true, false]);
}
