//! Plan files: the segments of each shard of an audit, for tasks that each replay one.
//!
//! A plan file may come from anybody. It says which segments a shard replays. The auditor derives everything else from the run, and
//! names the steps that the file leaves out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::checks::Checked;
use super::merge::Range;
use super::plan::{Choice, ReplayPlan, bytes_read, plan};
use super::report::VERSION;
use super::shard::{SHARDS_MAX, Shard};
use tiebreak_contract::program::step::Program;
use tiebreak_engine::reference::operations;
use tiebreak_job::identity::CONTRACT;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_run::run::dir::Run;

/// The most bytes of a plan file.
pub const PLAN_FILE_MAX: u64 = 1 << 26;
/// The version of plan files.
const FORMAT: &str = "tiebreak audit plan 1";
/// Operations, or bytes that are read, in a second of the machine for which costs are predicted.
const A_SECOND: u64 = 1_000_000_000;

/// The segments of every shard of an audit, bound to the head that they were planned under.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// The version of the file.
    format: String,
    /// The version of the program that planned.
    verifier: String,
    /// The contract of that program.
    contract: String,
    /// The run id.
    run: Digest,
    /// The number of records that the run's head covered.
    head_size: u64,
    /// The root over these records.
    head_root: Digest,
    /// The part of the run that is divided.
    choice: Choice,
    /// The shards, in their order.
    shards: Vec<Part>,
    /// The digest of the file's text.
    #[serde(skip)]
    digest: Option<Digest>,
}

/// A shard's segments, and their predicted costs, which decide nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// Steps first..=last of each segment.
    segments: Vec<Range>,
    /// Predicted seconds, rounded up.
    seconds: u64,
    /// Bytes of memory that a replay needs.
    memory: u64,
    /// Bytes of checkpoints and rounding logs to read.
    bytes: u64,
}

impl PlanFile {
    /// Divides a plan among so many shards, of about equal predicted costs.
    ///
    /// # Errors
    /// If a shard would get no segment, in words.
    pub fn divided(run: &Run, checked: &Checked, plan: &ReplayPlan, shards: u32) -> Result<PlanFile, String> {
        let segments = plan.segments.len();
        if shards == 0 || shards > SHARDS_MAX || shards as usize > segments {
            let most = segments.min(SHARDS_MAX as usize);
            return Err(format!("the plan has {segments} segments: divide by 1 to {most}"));
        }
        let step = operations_of_a_step(run.program());
        let costs: Vec<u64> = plan.segments.iter().map(|segment| cost(run, step, &[*segment])).collect();
        let mut parts = vec![Vec::new(); shards as usize];
        for (&segment, shard) in plan.segments.iter().zip(balanced(&costs, shards)) {
            parts[shard as usize].push(segment);
        }
        let part = |segments: Vec<Range>| Part {
            seconds: cost(run, step, &segments).div_ceil(A_SECOND),
            memory: plan.memory,
            bytes: bytes_read(run, &segments),
            segments,
        };
        let mut file = PlanFile {
            format: FORMAT.into(),
            verifier: VERSION.into(),
            contract: CONTRACT.into(),
            run: run.id,
            head_size: checked.head.size,
            head_root: checked.head.root,
            choice: plan.choice.clone(),
            shards: parts.into_iter().map(part).collect(),
            digest: None,
        };
        file.digest = Some(digest(&file.to_text()));
        Ok(file)
    }

    /// The file's text. The same plan of the same run has the same bytes.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string(self).expect("a plan has no maps with keys that are no text");
        // A line for each shard.
        format!("{}\n", text.replace("{\"segments\"", "\n{\"segments\""))
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// If the text is no plan of this version, or its choice or its segments make no sense.
    pub fn from_text(text: &str) -> Result<PlanFile, Malformed> {
        let wrong = |why: String| Malformed::invalid("plan", why);
        let mut file: PlanFile = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if file.format != FORMAT {
            return Err(wrong(format!("its format is {:?}, and this program reads {FORMAT:?}", file.format)));
        }
        file.choice.check().map_err(wrong)?;
        let shards = file.shards.len();
        if shards == 0 || shards > SHARDS_MAX as usize || file.head_size == 0 {
            let why = format!("it has {shards} shards under a head over {} records", file.head_size);
            return Err(wrong(format!("{why}; 1 to {SHARDS_MAX} shards, and 1 record, are needed")));
        }
        if let Some(empty) = file.shards.iter().position(|part| part.segments.is_empty()) {
            return Err(wrong(format!("shard {} has no segment", empty + 1)));
        }
        let mut all: Vec<Range> = Vec::new();
        for part in &file.shards {
            ascending(&part.segments).map_err(wrong)?;
            all.extend(&part.segments);
        }
        all.sort_unstable();
        ascending(&all).map_err(wrong)?;
        file.digest = Some(digest(text));
        Ok(file)
    }

    /// The shard's plan, for a run whose head covers the steps up to `last`. Only the choice and the segments come from the file.
    ///
    /// # Errors
    /// If the plan is of another run, head, version, contract or number of shards, or has a segment that the choice does not have
    /// here, in words.
    pub fn shard(&self, run: &Run, checked: &Checked, last: u32, shard: Shard) -> Result<ReplayPlan, String> {
        self.hold(run, checked)?;
        let part = match usize::try_from(shard.of) {
            Ok(of) if of == self.shards.len() => &self.shards[shard.number as usize - 1],
            _ => return Err(format!("it has {} shards, and this is shard {shard}", self.shards.len())),
        };
        let mut plan = plan(run, &checked.checkpoints, last, &self.choice);
        let mut planned: Vec<Range> = self.shards.iter().flat_map(|part| &part.segments).copied().collect();
        planned.sort_unstable();
        if let Some((first, last)) =
            planned.iter().find(|segment| plan.segments.binary_search(segment).is_err())
        {
            return Err(format!(
                "it has a segment {first}..{last}, and here its choice has none such: other checkpoints are intact, or a correction came"
            ));
        }
        plan.omitted = plan.segments.clone();
        plan.omitted.retain(|segment| planned.binary_search(segment).is_err());
        if !plan.omitted.is_empty() {
            plan.segments = planned;
            plan.no_secret_any_more(last);
        }
        plan.segments.clone_from(&part.segments);
        plan.bytes = bytes_read(run, &plan.segments);
        plan.shard = Some(shard);
        plan.file = self.digest;
        Ok(plan)
    }

    /// Compares what the plan is bound to.
    fn hold(&self, run: &Run, checked: &Checked) -> Result<(), String> {
        if self.run != run.id {
            return Err(format!("it is of run {}, and this is run {}", self.run, run.id));
        }
        let (size, root) = (checked.head.size, checked.head.root);
        if (self.head_size, self.head_root) != (size, root) {
            return Err(format!(
                "it is under a head over {} records, {}, and the run's head is over {size}, {root}",
                self.head_size, self.head_root
            ));
        }
        if self.contract != CONTRACT || self.verifier != VERSION {
            return Err(format!(
                "version {:?} wrote it for contract {:?}, and this is version {VERSION:?} for {CONTRACT:?}",
                self.verifier, self.contract
            ));
        }
        Ok(())
    }
}

/// The digest of a plan file's text, by which reports name it.
fn digest(text: &str) -> Digest {
    hash("tiebreak 2 audit-plan", text.as_bytes())
}

/// The operations of one step, as the scalar reference counts them.
fn operations_of_a_step(program: &Program) -> u64 {
    let of = |graph, times: u32| operations(graph).saturating_mul(u64::from(times));
    let sums = program.micro_batches.saturating_sub(1);
    let parts =
        [of(&program.micro, program.micro_batches), of(&program.accumulate, sums), of(&program.update, 1)];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The predicted cost of segments: the operations of their steps, and the bytes that are read for them.
fn cost(run: &Run, operations_of_a_step: u64, segments: &[Range]) -> u64 {
    let steps = segments.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum::<u64>();
    operations_of_a_step.saturating_mul(steps).saturating_add(bytes_read(run, segments))
}

/// The shard of each segment: the most expensive segment that is left goes to the shard with the least to do, and of equal ones the
/// first.
fn balanced(costs: &[u64], shards: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&segment| (Reverse(costs[segment]), segment));
    let mut idle: BinaryHeap<Reverse<(u64, usize, u32)>> =
        (0..shards).map(|shard| Reverse((0, 0, shard))).collect();
    let mut of = vec![0; costs.len()];
    for segment in order {
        let Some(Reverse((load, segments, shard))) = idle.pop() else { return of };
        of[segment] = shard;
        // Segments without a cost are dealt out by their number.
        idle.push(Reverse((load.saturating_add(costs[segment]), segments + 1, shard)));
    }
    of
}

/// Checks that segments are steps of a run, ascending and apart.
pub(crate) fn ascending(segments: &[Range]) -> Result<(), String> {
    let mut next = 1;
    for &(first, last) in segments {
        if first < next || last < first || last == u32::MAX {
            return Err(format!("it has a segment {first}..{last}, out of order, twice or of no run"));
        }
        next = last + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(segments: &str) -> String {
        let digest = Digest([7; 32]);
        format!(
            r#"{{"format":"{FORMAT}","verifier":"1","contract":"c","run":"{digest}","head_size":10,"head_root":"{digest}","choice":"all",
            "shards":[{{"segments":{segments},"seconds":1,"memory":2,"bytes":3}},{{"segments":[[3,4]],"seconds":1,"memory":2,"bytes":3}}]}}"#
        )
    }

    #[test]
    fn shards_have_about_equal_costs() {
        let loads = |costs: &[u64], shards: u32| {
            let mut loads = vec![0; shards as usize];
            costs.iter().zip(balanced(costs, shards)).for_each(|(cost, shard)| loads[shard as usize] += cost);
            loads
        };
        // Dealt in turn, the first shard would have 21 of 30.
        assert_eq!(loads(&[10, 2, 6, 4, 5, 3], 2), [16, 14]);
        assert_eq!(loads(&[1; 7], 3), [3, 2, 2]);
        assert_eq!(loads(&[u64::MAX, u64::MAX], 2), [u64::MAX; 2]);
        // Every shard has a segment, though none costs anything.
        let mut shards = balanced(&[0; 4], 4);
        shards.sort_unstable();
        assert_eq!(shards, [0, 1, 2, 3]);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        let read = |text: &str| PlanFile::from_text(text).map_err(|error| error.to_string());
        let text_of_a_plan = read(&text("[[1,2],[5,6]]")).unwrap().to_text();
        assert_eq!(read(&text_of_a_plan).unwrap().to_text(), text_of_a_plan);
        for (segments, why) in [
            ("[]", "shard 1 has no segment"),
            ("[[0,2]]", "out of order"),
            ("[[2,1]]", "out of order"),
            ("[[5,6],[1,2]]", "out of order"),
            ("[[1,2],[2,2]]", "out of order"),
            ("[[4,4]]", "out of order, twice"),
            ("[[5,4294967295]]", "of no run"),
            ("[[5,4294967296]]", "u32"),
            ("[[1,2]],\"more\":1", "unknown field"),
        ] {
            let error = read(&text(segments)).unwrap_err();
            assert!(error.contains(why), "{segments}: {error}");
        }
        let whole = text("[[1,2]]");
        for (from, to, why) in [
            ("audit plan 1", "audit plan 2", "this program reads"),
            ("\"head_size\":10", "\"head_size\":0", "over 0 records"),
            ("\"all\"", r#"{"sample":{"fraction":2,"seed":1}}"#, "a share is from 0 to 1"),
            ("\"all\"", r#"{"range":[0,4]}"#, "no steps of a run"),
        ] {
            let error = read(&whole.replace(from, to)).unwrap_err();
            assert!(error.contains(why), "{to}: {error}");
        }
        let none = format!("{}[]}}", whole.split_once('[').unwrap().0);
        assert!(read(&none).unwrap_err().contains("0 shards"), "{none}");
    }
}
