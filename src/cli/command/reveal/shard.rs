//! Shards of a state: opened from a checkpoint or a replay, and checked against the record of the step.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::states::{Reached, Visitor, visit};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::shard_opening::{FORMAT, Place, ShardOpening, ShownRange};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, Slice, TEXT_MAX};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::states::State;
use tiebreak_run::run::{RunError, shell};

use crate::cli::view::next::Next;
use crate::cli::view::progress::ProgressBar;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};

/// True if the text of an opening is that of a shard.
pub fn is_of_shard(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Named {
        format: String,
    }
    serde_json::from_str::<Named>(text).is_ok_and(|named| named.format == FORMAT)
}

/// The shard that somebody wants to show.
pub struct Asked<'a> {
    /// The run's folder, as it was named.
    pub folder: &'a Path,
    /// The step; 0 for the initial state.
    pub step: u32,
    /// The shard map.
    pub shards: &'a Path,
    /// The opening's file.
    pub output: &'a Path,
}

/// The places of a shard in a state.
fn places(run: &Run, map: &ShardMap) -> Result<Vec<Place>, Malformed> {
    let table = run.program().state();
    map.check(&table)?;
    Ok(match map {
        ShardMap::Whole => {
            (0..).zip(&table).map(|(index, tensor)| (index, 0, tensor.ty().len() as u32)).collect()
        }
        ShardMap::Slices(slices) => {
            let index = |slice: &Slice| table.iter().position(|tensor| tensor.name == slice.tensor);
            slices.iter().filter_map(|slice| Some((index(slice)?, slice.first, slice.count))).collect()
        }
    })
}

/// The last step whose state a head commits.
fn last_step(run: &Run, checked: &Checked) -> u32 {
    (checked.transcript.records.len().saturating_sub(1) as u32).min(run.job().steps)
}

/// Receives the one state that is asked for.
struct Received<'a> {
    reached: Option<Reached>,
    state: Option<State>,
    bar: &'a ProgressBar,
}

impl Visitor for Received<'_> {
    fn state(&mut self, _: u32, reached: Reached, state: Option<&State>) {
        (self.reached, self.state) = (Some(reached), state.cloned());
    }

    fn replayed(&mut self, step: u32) {
        self.bar.advance();
        self.bar.set_message(format!("step {step}"));
    }
}

/// The state after a step: from a checkpoint, or by a replay from the nearest one before.
fn state(printer: Printer, run: &Run, checked: &Checked, step: u32) -> Result<State, Failure> {
    let kept = run.checkpoint_steps()?;
    let from = kept.into_iter().rev().find(|&kept| kept <= step).unwrap_or(0);
    let bar = printer.bar(u64::from(step - from), "steps");
    let mut received = Received { reached: None, state: None, bar: &bar };
    let found = visit(run, &mut Cpu::new(0)?, checked, &[step], None, &mut received);
    bar.finish_and_clear();
    found?;
    match (received.state, received.reached) {
        (Some(state), _) => Ok(state),
        (None, Some(Reached::Deviates(bad, what))) => {
            let why = format!(
                "the state after step {step} is not reached: a replay of step {bad} has another {what}"
            );
            let audit = format!("tiebreak audit RUN --steps {bad}..{bad} says why");
            Err(Failure::new(Exit::Undecided, why).help(audit))
        }
        (None, _) => {
            Err(Failure::new(Exit::Undecided, format!("the state after step {step} is not reached")))
        }
    }
}

/// Writes the opening of a shard.
pub fn written(printer: Printer, run: &Run, asked: &Asked) -> CommandResult {
    run.opened()?;
    let text = disk::read_text(asked.shards, TEXT_MAX as u64).map_err(named)?;
    let malformed = |error| RunError::malformed(asked.shards, error);
    let map = ShardMap::from_text(&text).map_err(malformed)?;
    let places = places(run, &map).map_err(malformed)?;
    let checked = checks::structure(run, None)?;
    let (step, last) = (asked.step, last_step(run, &checked));
    if step > last {
        let why = format!("--step {step}: the head covers the states after steps 0 to {last}");
        return Err(Failure::new(Exit::Usage, why).help(format!("give a step from 0 to {last}")));
    }
    let state = state(printer, run, &checked, step)?;
    let opening = ShardOpening::of(run.id, &run.computation, step, &state, &places).map_err(malformed)?;
    let (meant, shown) = opening.ranges.iter().fold((0, 0), |(meant, shown), range| {
        (meant + 4 * u64::from(range.count), shown + range.bytes.0.len() as u64)
    });
    let path = std::path::absolute(asked.output).map_err(RunError::io(asked.output))?;
    Disk::default().replace(&path, opening.to_text().as_bytes())?;
    let command =
        format!("tiebreak reveal {} --check {}", shell::path(asked.folder), shell::path(asked.output));
    let next = Next::new("anybody can check it", command);
    let text = format!(
        "{}: {} of the state after step {step}, in slices that show {}",
        asked.output.display(),
        bytes_text(meant),
        bytes_text(shown)
    );
    let json = json!({
        "run": run.id, "step": step, "output": asked.output, "bytes": meant, "shown": shown, "next": [next],
    });
    printer.result(vec![text, next.line()], &json);
    Ok(Exit::Match)
}

/// Checks the opening of a shard against the published part of a run.
pub fn checked(
    printer: Printer,
    run: &Run,
    key: Option<&PublicKey>,
    (file, text): (&Path, &str),
    output: Option<&Path>,
) -> CommandResult {
    let malformed = |why| RunError::malformed(file, why);
    let opening = ShardOpening::from_text(text).map_err(malformed)?;
    let checked = checks::structure(run, key)?;
    if opening.run != run.id {
        let why = format!("the opening is of another run: {}", opening.run.not(&run.id));
        return Err(Failure::new(Exit::Diverges, why));
    }
    let (step, last) = (opening.step, last_step(run, &checked));
    let record = checked.transcript.records.get(step as usize).filter(|_| step <= last);
    let Some(promised) = record.map(Record::state) else {
        let why =
            format!("it is of the state after step {step}; the head covers those after steps 0 to {last}");
        return Err(RunError::invalid(file, why).into());
    };
    let table = run.program().state();
    let slice =
        |range: &ShownRange| Slice { tensor: range.tensor.clone(), first: range.first, count: range.count };
    let map = ShardMap::Slices(opening.ranges.iter().map(slice).collect());
    map.check(&table).map_err(malformed)?;
    let shown = opening.shown(&table, run.job().hides(), &promised).map_err(malformed)?;
    let mut ranges = shown.iter();
    let digest = map.shard_digest(|_| {
        ranges.next().map(|bytes| bytes.to_vec()).ok_or_else(|| {
            RunError::invalid(file, format!("it shows {} ranges, fewer than its map has", shown.len()))
        })
    })?;
    let mut lines = vec![
        format!("OPENS: the state after step {step} has these elements"),
        format!("run {}: {}", run.id, checked.signed),
    ];
    lines.extend(opening.ranges.iter().map(|range| {
        let end = range.first + u64::from(range.count);
        format!("  ok: elements {}..{end} of {}", range.first, range.tensor)
    }));
    if let Some(digest) = digest {
        lines.push(format!("  shard map {}, shard digest {digest}", map.digest()));
    }
    if let Some(output) = output {
        let path = std::path::absolute(output).map_err(RunError::io(output))?;
        Disk::default().replace(&path, &shown.concat())?;
        lines.push(format!("  the bytes: {}", output.display()));
    }
    let parts: Vec<_> = opening
        .ranges
        .iter()
        .map(|range| json!({ "tensor": range.tensor, "first": range.first, "count": range.count }))
        .collect();
    let json = json!({
        "run": run.id, "signed": checked.signed, "opens": true, "step": step, "ranges": parts,
        "shard_map": map.digest(), "shard": digest, "output": output,
    });
    printer.result(lines, &json);
    Ok(Exit::Match)
}
