//! `tiebreak monitor match`: every snapshot of chips' logs against the declared runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use tiebreak_audit::checks;
use tiebreak_audit::plan::memory;
use tiebreak_monitor::matching::index::Declared;
use tiebreak_monitor::matching::matcher::Matcher;
use tiebreak_monitor::matching::provenance::{Provenance, Weight};
use tiebreak_monitor::matching::sighting::{Sighting, Training, sightings, trainings};
use tiebreak_monitor::matching::silence::Silence;
use tiebreak_monitor::snapshot::log::{ChipLog, RECORDS_MAX};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, TEXT_MAX};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::{RunError, disk, names, shell};

use super::shards::{self, Opened};
use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};

/// The most lines about snapshots that are not matched.
const LINES_MAX: usize = 100;

/// Compare every snapshot in chips' logs with the declared runs.
///
/// The command ends with 0 if every snapshot is of a declared run, with 1 if one is not, and with 3 if something is missing that would
/// decide, such as the answer of a training that showed no state. A digest that a record has needs no replay. Signatures and chains of the logs are not checked here.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor match chip-1.log chip-2.log --run runs/mine --run runs/other
  tiebreak monitor match chip-1.log --run runs/mine --shards rank-0.map --witness witness.key.pub")]
pub struct Args {
    /// Logs of chips.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Folder of a declared run; once for each.
    #[arg(long, required = true, value_name = "RUN")]
    run: Vec<PathBuf>,
    /// Shard map of a chip that does not hold the whole state; once for each.
    #[arg(long, value_name = "MAP")]
    shards: Vec<PathBuf>,
    /// Witness who vouches for when a run was declared: a public key, as a file or its text.
    ///
    /// The witness cosigned the run's head of size 1. With several witnesses the earliest time counts.
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
    /// Seconds by which the clocks of chips and witnesses may differ.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "witness")]
    clock_skew: u64,
    /// Folder of the data files that runs do not hold.
    #[arg(long, value_name = "DIR")]
    data: Vec<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// A chip's log that was read.
struct Log {
    file: String,
    log: ChipLog,
    sightings: Vec<Sighting>,
    trainings: Vec<Training>,
}

impl Log {
    /// Snapshots that were due and not answered.
    fn unanswered(&self) -> u64 {
        self.trainings.iter().map(|training| training.unanswered).sum()
    }
}

fn read_log(path: &Path) -> Result<Log, Failure> {
    let bytes = disk::read(path, (RECORDS_MAX * RECORD_BYTES) as u64).map_err(named)?;
    let log = ChipLog::read(&bytes).map_err(|error| RunError::malformed(path, error))?;
    let (sightings, trainings) = (sightings(&log), trainings(&log));
    Ok(Log { file: path.display().to_string(), log, sightings, trainings })
}

fn read_map(path: &Path) -> Result<ShardMap, Failure> {
    let text = disk::read_text(path, TEXT_MAX as u64).map_err(named)?;
    Ok(ShardMap::from_text(&text).map_err(|error| RunError::malformed(path, error))?)
}

/// The earliest time at which one of these witnesses cosigned the run's head of size 1.
fn declared_at(opened: &Opened, witnesses: &[PublicKey]) -> Result<Option<u64>, RunError> {
    let (run, first) = (&opened.run, opened.run.at(names::head(1)));
    if witnesses.is_empty() || !first.is_here() {
        return Ok(None);
    }
    let (head, _) = run.head(1, None)?;
    let root = opened.checked.transcript.root(1);
    if head.root != root {
        let why = format!(
            "the head of size 1 is not over the run's first record: its root is {}",
            head.root.not(&root)
        );
        return Err(RunError::invalid(first.path(), why));
    }
    let note = first.read_text(NOTE_MAX as u64)?;
    let malformed = |error: Malformed| RunError::malformed(first.path(), error);
    let times = witnesses.iter().map(|key| cosigned_at(&note, key).map_err(malformed));
    Ok(times.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().min())
}

/// Opens the declared runs, and reads what their heads cover.
fn open_runs(args: &Args, printer: Printer) -> Result<(Vec<Opened>, Vec<Declared>), Failure> {
    let witnesses =
        args.witness.iter().map(|argument| key::read_public(argument)).collect::<Result<Vec<_>, _>>()?;
    let _working = printer.working("reading the declared runs", None);
    let (mut all, mut declared): (Vec<Opened>, Vec<Declared>) = (Vec::new(), Vec::new());
    for path in &args.run {
        let run = args.limits.open(path)?.with_data(args.data.clone());
        if declared.iter().any(|declared| declared.run == run.id) {
            let why = format!("--run {}: the run is given twice", path.display());
            return Err(Failure::new(Exit::Usage, why));
        }
        let checked = checks::structure(&run, None)?;
        let opened = Opened { run, checked };
        let records = &opened.checked.transcript.records;
        // The final record is of the last step's state, and no step of its own.
        let steps = records.iter().take(opened.run.job().steps as usize + 1);
        declared.push(Declared {
            run: opened.run.id,
            computation: opened.run.computation.id,
            states: steps.map(|record| record.state()).collect(),
            declared: declared_at(&opened, &witnesses)?,
        });
        all.push(opened);
    }
    Ok((all, declared))
}

/// A snapshot with its provenance.
struct Judged<'a> {
    log: &'a Log,
    sighting: &'a Sighting,
    provenance: Provenance,
}

/// A training that did not show all that was due.
struct Silent<'a> {
    log: &'a Log,
    training: &'a Training,
    silence: Silence,
}

/// The comparison of logs with declared runs.
struct Compared<'a> {
    logs: &'a [Log],
    declared: &'a [Declared],
    /// The folders of the declared runs.
    paths: &'a [PathBuf],
    judged: Vec<Judged<'a>>,
    silent: Vec<Silent<'a>>,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(matched(printer, &args))
}

fn matched(printer: Printer, args: &Args) -> CommandResult {
    let (start, watch) = (Instant::now(), args.limits.watch(printer));
    let mut engine = open_exact(&args.engine)?;
    let maps = args.shards.iter().map(|path| read_map(path)).collect::<Result<Vec<_>, _>>()?;
    let logs = args.logs.iter().map(|path| read_log(path)).collect::<Result<Vec<_>, _>>()?;
    let (runs, declared) = open_runs(args, printer)?;
    let states: Vec<_> = runs.iter().map(|opened| opened.run.program().state()).collect();
    let witnessed = (!args.witness.is_empty()).then_some(args.clock_skew);
    let matcher = Matcher::new(&declared, &states, maps, witnessed);
    let wanted = logs.iter().flat_map(|log| matcher.needed(&log.sightings)).collect();
    let steps = shards::steps(&runs, &wanted);
    if steps > 0 {
        for opened in &runs {
            args.limits.check("a replay", memory(&opened.run))?;
        }
        printer.say(format!("replays at most {steps} steps on {}", engine.describe()));
    }
    // From here on the replay itself stops, with a result.
    drop(watch);
    let bar = printer.bar(steps, "steps");
    let end = args.limits.time().and_then(|limit| start.checked_add(limit));
    let shards = shards::compute(&matcher, &runs, &wanted, engine.as_mut(), end, &bar);
    bar.finish_and_clear();
    let all = logs.iter().flat_map(|log| log.sightings.iter().map(move |sighting| (log, sighting)));
    let judged: Vec<Judged> = all
        .map(|(log, sighting)| Judged { log, sighting, provenance: matcher.judge(sighting, &shards) })
        .collect();
    let trainings = logs.iter().flat_map(|log| log.trainings.iter().map(move |training| (log, training)));
    let silent = trainings.filter_map(|(log, training)| {
        Some(Silent { log, training, silence: Silence::of(training, &declared)? })
    });
    let compared =
        Compared { logs: &logs, declared: &declared, paths: &args.run, silent: silent.collect(), judged };
    printer.result(compared.told(), &compared.as_json());
    Ok(match compared.outcome() {
        Weight::Matched => Exit::Match,
        Weight::Undecided => Exit::Undecided,
        Weight::Finding => Exit::Diverges,
    })
}

impl Compared<'_> {
    /// The greatest weight. A log without any record is not a chip's: nothing follows from it.
    fn outcome(&self) -> Weight {
        let empty = self.logs.iter().any(|log| log.log.records.is_empty()).then_some(Weight::Undecided);
        let judged = self.judged.iter().map(|judged| judged.provenance.weight());
        let silent = self.silent.iter().map(|silent| silent.silence.weight());
        judged.chain(silent).chain(empty).max().unwrap_or(Weight::Matched)
    }

    /// The number of snapshots of each weight: matched, undecided, findings.
    fn counts(&self) -> [usize; 3] {
        let count = |weight| self.judged.iter().filter(|one| one.provenance.weight() == weight).count();
        [Weight::Matched, Weight::Undecided, Weight::Finding].map(count)
    }

    /// The commands that check the logs themselves.
    fn next(&self) -> Vec<Next> {
        let inspect = |log: &Log| {
            let command =
                format!("tiebreak monitor inspect {} --register REGISTER", shell::path(Path::new(&log.file)));
            Next::new("check who wrote the log with", command).note("REGISTER is the register of chips")
        };
        self.logs.iter().take(1).map(inspect).collect()
    }

    /// Everything that is not matched, the heaviest first: weight and line.
    fn others(&self) -> Vec<(Weight, String)> {
        let line = |weight, log: &Log, chip: &Serial, record: u64, time: u64, what: String| {
            let word = if weight == Weight::Finding { "finding" } else { "undecided" };
            let time = utc(time / 1000);
            (weight, format!("  {word}: chip {chip}, record {record} at {time} ({}): {what}", log.file))
        };
        let judged = self.judged.iter().filter(|one| one.provenance.weight() != Weight::Matched).map(|one| {
            let Sighting { serial, record, time, .. } = one.sighting;
            line(one.provenance.weight(), one.log, serial, *record, *time, one.provenance.to_string())
        });
        let silent = self.silent.iter().map(|one| {
            let Training { serial, record, time, .. } = one.training;
            line(one.silence.weight(), one.log, serial, *record, *time, one.silence.to_string())
        });
        let mut others: Vec<_> = judged.chain(silent).collect();
        others.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        others
    }

    /// The result in words.
    fn told(&self) -> Vec<String> {
        let [matched, undecided, findings] = self.counts();
        let of = format!("{} snapshots of {} logs", self.judged.len(), self.logs.len());
        let mut lines = vec![match self.outcome() {
            Weight::Matched => format!("MATCHES: {matched} of {of} are of declared runs"),
            Weight::Undecided => format!("UNDECIDED: {undecided} of {of}; {matched} are of declared runs"),
            Weight::Finding => {
                format!(
                    "DIFFERS: {findings} of {of} are not what was declared; {matched} are of declared runs"
                )
            }
        }];
        let empty = self.logs.iter().filter(|log| log.log.records.is_empty());
        lines
            .extend(empty.map(|log| format!("  undecided: {} has no record: it is no chip's log", log.file)));
        let mut of_run: BTreeMap<_, (usize, u32, u32)> = BTreeMap::new();
        for one in &self.judged {
            if let Provenance::Matched { run, step, .. } = one.provenance {
                let (count, first, last) = of_run.entry(run).or_insert((0, step, step));
                (*count, *first, *last) = (*count + 1, step.min(*first), step.max(*last));
            }
        }
        lines.extend(self.declared.iter().zip(self.paths).map(|(run, path)| {
            let since = run.declared.map_or(String::new(), |time| format!(", cosigned at {}", utc(time)));
            let seen = of_run.get(&run.run).map_or("no snapshot".to_string(), |(count, first, last)| {
                format!("{count} snapshots of steps {first} to {last}")
            });
            format!("  run {} ({}): {seen}{since}", run.run.short(), path.display())
        }));
        let others = self.others();
        lines.extend(others.iter().take(LINES_MAX).map(|(_, line)| line.clone()));
        if let Some(more) = others.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more; --json lists all"));
        }
        lines.extend(next::lines(&self.next()));
        lines
    }

    /// The result for programs.
    fn as_json(&self) -> Value {
        let [matched, undecided, findings] = self.counts();
        let result = match self.outcome() {
            Weight::Matched => "matches",
            Weight::Undecided => "undecided",
            Weight::Finding => "differs",
        };
        let snapshots = self.judged.iter().map(|one| {
            let mut value = json!(one.provenance);
            let sighting = one.sighting;
            value["what"] = json!(one.provenance.to_string());
            value["weight"] = json!(one.provenance.weight());
            value["log"] = json!(one.log.file);
            value["chip"] = json!(sighting.serial);
            value["record"] = json!(sighting.record);
            value["time"] = json!(sighting.time);
            value["logged"] =
                json!({ "map": sighting.map, "step": sighting.step, "digest": sighting.digest });
            value
        });
        let silent = self.silent.iter().map(|one| {
            let mut value = json!(one.silence);
            value["what"] = json!(one.silence.to_string());
            value["weight"] = json!(one.silence.weight());
            value["log"] = json!(one.log.file);
            value["chip"] = json!(one.training.serial);
            value["record"] = json!(one.training.record);
            value["time"] = json!(one.training.time);
            value
        });
        let runs = self.declared.iter().zip(self.paths).map(|(run, path)| {
            json!({
                "folder": path, "run": run.run, "computation": run.computation, "covered": run.covered(),
                "cosigned": run.declared,
            })
        });
        let read = self.logs.iter().map(|log| {
            json!({
                "file": log.file, "records": log.log.records.len(), "torn": log.log.torn,
                "snapshots": log.sightings.len(), "unanswered": log.unanswered(),
            })
        });
        json!({
            "result": result,
            "counts": {
                "snapshots": self.judged.len(), "matched": matched, "undecided": undecided, "findings": findings,
                "silent": self.silent.len(),
            },
            "runs": runs.collect::<Vec<_>>(),
            "logs": read.collect::<Vec<_>>(),
            "snapshots": snapshots.collect::<Vec<_>>(),
            "silent": silent.collect::<Vec<_>>(),
            "next": self.next(),
        })
    }
}
