//! `tiebreak monitor match`: every snapshot of chips' logs against the declared runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use tiebreak_audit::checks;
use tiebreak_audit::plan::memory_at_most;
use tiebreak_monitor::closed::LogHead;
use tiebreak_monitor::inspection::examine::{Inspection, examine};
use tiebreak_monitor::inspection::finding::Finding;
use tiebreak_monitor::matching::index::Declared;
use tiebreak_monitor::matching::matcher::Matcher;
use tiebreak_monitor::matching::provenance::{Provenance, Weight};
use tiebreak_monitor::matching::sighting::{Sighting, Training, sightings, trainings};
use tiebreak_monitor::matching::silence::Silence;
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::log::{ChipLog, RECORDS_MAX};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial, SignedRecord};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, TEXT_MAX};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk, names, shell};

use super::index::{self, Indexed};
use super::registry::{self, finding_json, now, unchecked};
use super::shards::{self, Opened};
use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::place::with_data;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};

/// The most lines about snapshots that are not matched.
const LINES_MAX: usize = 100;

/// Compare every snapshot in chips' logs with the declared runs.
///
/// The command ends with 0 if every snapshot is of a declared run, and with 1 if one is not. The exit code is 3 if something is missing
/// that would decide, such as the answer of a training that showed no state. A digest that a record has needs no replay. With --register
/// the command checks who wrote the logs, with --trainer-key who signed the runs. Without them it says that nobody checked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor match chip-1.log chip-2.log --run runs/mine --run runs/other
  tiebreak monitor match chip-1.log --index declared.index
  tiebreak monitor match chip-1.log --run runs/mine --register chips.register --trainer-key trainer.key.pub
  tiebreak monitor match chip-1.log --run runs/mine --shards rank-0.map --witness witness.key.pub")]
pub struct Args {
    /// Logs of chips.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Folder of a declared run; once for each.
    #[arg(long, required_unless_present = "index", value_name = "RUN")]
    run: Vec<PathBuf>,
    /// Index of declared runs by `monitor index`: the runs that a log is about are opened, as with --run.
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Shard map of a chip that does not hold the whole state; once for each.
    #[arg(long, value_name = "MAP")]
    shards: Vec<PathBuf>,
    /// Register of chips: the command checks signatures, chains and times of the logs, as `monitor inspect` does.
    #[arg(long, value_name = "FILE")]
    register: Option<PathBuf>,
    /// Public key of the registrar: a file, or the key's text.
    #[arg(long, value_name = "KEY", requires = "register")]
    registrar: Option<String>,
    /// Public key of a trainer, as a file or its text: one of them signed each run.
    #[arg(long, value_name = "KEY")]
    trainer_key: Vec<String>,
    /// Witness who vouches for when a run was declared: a public key, as a file or its text.
    ///
    /// The witness cosigned the run's head of size 1. With several witnesses the earliest time counts.
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
    /// Seconds by which the clocks of chips and witnesses may differ.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "witness")]
    clock_skew: u64,
    /// Folder or address of the data files that runs do not hold.
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
    /// The defects of the log; `None` if nobody looked for them.
    defects: Option<Defects>,
}

impl Log {
    /// The line of a list of heads.
    fn head(&self) -> Option<String> {
        let serial = &self.log.records.first()?.record.serial;
        LogHead::of(&self.log).map(|head| head.line(serial))
    }
}

/// The defects of a log by the register of chips.
struct Defects {
    first: Vec<Finding>,
    all: u64,
}

impl Defects {
    /// Signatures, chain and times. The rate of snapshots is a question of its own.
    fn of(log: &ChipLog, register: &Register) -> Result<Defects, Failure> {
        let Some(first) = log.records.first() else { return Ok(Defects { first: Vec::new(), all: 0 }) };
        let until = now()?.saturating_mul(1000);
        let serial = &first.record.serial;
        let asked = Inspection {
            register,
            serial,
            previous: None,
            closed: None,
            rate: 0.0,
            confidence: 0.5,
            until,
            off_at_most: None,
            patience: 0,
        };
        let examined = examine(log, asked);
        let all = examined.findings.len() as u64 + examined.more;
        Ok(Defects { first: examined.findings, all })
    }
}

impl Log {
    /// Snapshots that were due and not answered.
    fn unanswered(&self) -> u64 {
        self.trainings.iter().map(|training| training.unanswered).sum()
    }
}

fn read_log(path: &Path, register: Option<&Register>) -> Result<Log, Failure> {
    let bytes = disk::read(path, (RECORDS_MAX * RECORD_BYTES) as u64).map_err(named)?;
    let log = ChipLog::read(&bytes).map_err(|error| RunError::malformed(path, error))?;
    let (sightings, trainings) = (sightings(&log), trainings(&log));
    let defects = register.map(|register| Defects::of(&log, register)).transpose()?;
    Ok(Log { file: path.display().to_string(), log, sightings, trainings, defects })
}

/// Refuses two logs of one chip: it writes one, so the shorter adds nothing, or both are evidence.
fn one_of_each(logs: &[Log]) -> Result<(), Failure> {
    for (number, log) in logs.iter().enumerate() {
        let of = |log: &Log| log.log.records.first().map(|first| first.record.serial.clone());
        let Some(serial) = of(log) else { continue };
        let Some(other) = logs[..number].iter().find(|other| of(other).as_ref() == Some(&serial)) else {
            continue;
        };
        let same = |(a, b): (&SignedRecord, &SignedRecord)| a.link() == b.link();
        let pairs = || other.log.records.iter().zip(&log.log.records);
        return Err(match pairs().position(|pair| !same(pair)) {
            Some(record) => {
                let why = format!(
                    "{} and {} are both of chip {serial}, and their records {record} differ",
                    other.file, log.file
                );
                let help =
                    "a chip writes one log: keep both files, and inspect each with tiebreak monitor inspect";
                Failure::new(Exit::Diverges, why).help(help)
            }
            None => {
                let why = format!(
                    "{} and {} are both of chip {serial}, and one begins with the other",
                    other.file, log.file
                );
                Failure::new(Exit::Usage, why).help("give the one with more records alone")
            }
        });
    }
    Ok(())
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

/// The key among these that the run names. A run that names none of them is checked with the first, and refused.
fn trainer<'a>(run: &Run, trainers: &'a [PublicKey]) -> Result<Option<&'a PublicKey>, Failure> {
    let malformed = |error| RunError::malformed(&run.layout.run_json(), error);
    let named = run.file.summary().named_key().map_err(malformed)?.map(|key| key.to_text());
    let same = trainers.iter().find(|key| Some(key.to_text()) == named);
    Ok(same.or(trainers.first()))
}

/// Opens the declared runs, and reads what their heads cover.
fn open_runs(
    args: &Args,
    paths: &[PathBuf],
    printer: Printer,
) -> Result<(Vec<Opened>, Vec<Declared>), Failure> {
    let witnesses =
        args.witness.iter().map(|argument| key::read_witness(argument)).collect::<Result<Vec<_>, _>>()?;
    let trainers =
        args.trainer_key.iter().map(|argument| key::read_public(argument)).collect::<Result<Vec<_>, _>>()?;
    let _working = printer.working("reading the declared runs", None);
    let (mut all, mut declared): (Vec<Opened>, Vec<Declared>) = (Vec::new(), Vec::new());
    for path in paths {
        let run = with_data(args.limits.open(path)?, &args.data)?;
        if declared.iter().any(|declared| declared.run == run.id) {
            let why = format!("--run {}: the run is given twice", path.display());
            return Err(Failure::new(Exit::Usage, why));
        }
        let checked = checks::structure(&run, trainer(&run, &trainers)?)?;
        if let Some(found) = &checked.inconsistent {
            let why = format!("{}: step {}: {}", path.display(), found.step, found.what);
            return Err(Failure::new(Exit::Diverges, why));
        }
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
    indexed: Option<&'a Indexed>,
    args: &'a Args,
    /// True if the registrar's signature was checked.
    registered: bool,
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
    let registrar = args.registrar.as_deref().map(key::read_public).transpose()?;
    let register = args.register.as_ref().map(|path| registry::read(path, registrar.as_ref())).transpose()?;
    let logs =
        args.logs.iter().map(|path| read_log(path, register.as_ref())).collect::<Result<Vec<_>, _>>()?;
    one_of_each(&logs)?;
    let told = logs.iter().flat_map(|log| &log.trainings).filter_map(|training| training.computation);
    let seen = logs.iter().flat_map(|log| &log.sightings).map(|sighting| sighting.digest);
    let indexed = args.index.as_deref().map(|path| index::asked(path, told, seen)).transpose()?;
    let paths: Vec<PathBuf> =
        args.run.iter().cloned().chain(indexed.iter().flat_map(Indexed::paths)).collect();
    let (runs, declared) = open_runs(args, &paths, printer)?;
    indexed.iter().try_for_each(|indexed| indexed.check(&runs[args.run.len()..]))?;
    let states: Vec<_> = runs.iter().map(|opened| opened.run.program().state()).collect();
    let witnessed = (!args.witness.is_empty()).then_some(args.clock_skew);
    let matcher = Matcher::new(&declared, &states, maps, witnessed);
    let wanted = logs.iter().flat_map(|log| matcher.needed(&log.sightings)).collect();
    let steps = shards::steps(&runs, &wanted);
    if steps > 0 {
        for opened in &runs {
            args.limits.check("a replay", memory_at_most(&opened.run))?;
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
    let compared = Compared {
        logs: &logs,
        declared: &declared,
        paths: &paths,
        indexed: indexed.as_ref(),
        args,
        registered: args.registrar.is_some(),
        silent: silent.collect(),
        judged,
    };
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
        let defect = (self.defects() > 0).then_some(Weight::Finding);
        judged.chain(silent).chain(empty).chain(defect).max().unwrap_or(Weight::Matched)
    }

    /// The number of defects of the logs.
    fn defects(&self) -> u64 {
        self.logs.iter().filter_map(|log| log.defects.as_ref()).map(|defects| defects.all).sum()
    }

    /// Lines about what nobody checked.
    fn unchecked(&self) -> impl Iterator<Item = String> {
        let (register, key) = (&self.args.register, self.args.trainer_key.is_empty());
        let logs =
            register.is_none().then(|| "nobody checked who wrote the logs: give --register".to_string());
        let registrar = register.as_ref().and_then(|_| unchecked(self.registered));
        let runs = key.then(|| "nobody checked who signed the runs: give --trainer-key".to_string());
        [logs, registrar, runs].into_iter().flatten()
    }

    /// The number of snapshots of each weight: matched, undecided, findings.
    fn counts(&self) -> [usize; 3] {
        let count = |weight| self.judged.iter().filter(|one| one.provenance.weight() == weight).count();
        [Weight::Matched, Weight::Undecided, Weight::Finding].map(count)
    }

    /// The commands that check the logs themselves.
    fn next(&self) -> Vec<Next> {
        let inspect = |log: &Log| {
            let register =
                self.args.register.as_ref().map_or("REGISTER".to_string(), |path| shell::path(path));
            let file = shell::path(Path::new(&log.file));
            let command = format!("tiebreak monitor inspect {file} --register {register}");
            let next = Next::new("check the log and how often the chip logged with", command);
            if self.args.register.is_some() { next } else { next.note("REGISTER is the register of chips") }
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
        let defects = self.logs.iter().filter_map(|log| Some((log, log.defects.as_ref()?))).flat_map(
            |(log, defects)| {
                let line = move |what: &dyn std::fmt::Display| {
                    (Weight::Finding, format!("  finding: the log {}: {what}", log.file))
                };
                let more = defects.all - defects.first.len() as u64;
                let rest = (more > 0).then(|| line(&format_args!("{more} more defects")));
                defects.first.iter().map(move |finding| line(finding)).chain(rest).collect::<Vec<_>>()
            },
        );
        let mut others: Vec<_> = defects.chain(judged).chain(silent).collect();
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
                let defects = match self.defects() {
                    0 => String::new(),
                    defects => format!("; the logs have {defects} defects"),
                };
                format!(
                    "DIFFERS: {findings} of {of} are not what was declared; {matched} are of declared runs{defects}"
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
        lines.extend(self.indexed.map(|index| {
            let opened = index.opened.len();
            format!(
                "the index has {} states of {} runs; the logs are about {opened} of them",
                index.states, index.runs
            )
        }));
        lines.extend(self.unchecked());
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
                "cosigned": run.declared, "signature_checked": !self.args.trainer_key.is_empty(),
            })
        });
        let read = self.logs.iter().map(|log| {
            json!({
                "file": log.file, "head": log.head(), "records": log.log.records.len(), "torn": log.log.torn,
                "snapshots": log.sightings.len(), "unanswered": log.unanswered(),
                "defects": log.defects.as_ref().map(|defects| json!({
                    "all": defects.all, "first": defects.first.iter().map(finding_json).collect::<Vec<_>>(),
                })),
            })
        });
        json!({
            "result": result,
            "counts": {
                "snapshots": self.judged.len(), "matched": matched, "undecided": undecided, "findings": findings,
                "silent": self.silent.len(), "defects": self.defects(),
            },
            "runs": runs.collect::<Vec<_>>(),
            "logs": read.collect::<Vec<_>>(),
            "snapshots": snapshots.collect::<Vec<_>>(),
            "silent": silent.collect::<Vec<_>>(),
            "register_checked": self.registered,
            "index": self.indexed.map(|index| json!({
                "runs": index.runs, "states": index.states, "opened": index.opened.len(),
            })),
            "next": self.next(),
        })
    }
}
