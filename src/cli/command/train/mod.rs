//! `tiebreak train`.

mod agent;
pub mod bar;
mod hints;
mod memory;
pub mod recording;
mod stopped;
mod workers;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgAction, ValueEnum};
use serde_json::json;

use crate::cli::args::around::{AroundArgs, Ways};
use crate::cli::args::cache::CacheArgs;
use crate::cli::args::device_check;
use crate::cli::args::engine::{EngineArgs, open};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::metrics::{MetricsArgs, Served};
use crate::cli::args::place::{job_files, job_files_through};
use crate::cli::args::random::random;
use crate::cli::args::ranks::{Meeting, RanksArgs, Role, bucket_bytes};
use crate::cli::args::salts::SaltArgs;
use crate::cli::args::terms::beside;
use crate::cli::view::data::{say_copied, scanning};
use crate::cli::view::exposition::training::TrainingMetrics;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use crate::cli::view::traces::Traces;
use agent::{AgentArgs, Watched, WatchedRank};
use bar::{Bar, Evaluating};
use hints::{Named, done_text, toml_text};
use memory::{check_memory, rank_bytes};
use stopped::Asked;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_job::Job;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::checked::Checked;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::job::logged;
use tiebreak_run::run::{Folder, read_job, read_program, shell};
use tiebreak_train::ranks::collective::Collective;
use tiebreak_train::ranks::lead::{Lead, can_cross_check};
use tiebreak_train::ranks::plan::{ShardPlan, divides};
use tiebreak_train::ranks::slots::SlotPlan;
use tiebreak_train::ranks::tcp::{RankPlace, Tcp};
use tiebreak_train::ranks::{report, worker};
use tiebreak_train::{Beginning, Prepared, Progress, TrainError, disk_needed, train, train_over};
use workers::{Host, network};

/// Train a job and commit to every step.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak train job.toml --out runs/mine --key trainer.key",
    after_long_help = "A run that was interrupted goes on with --resume, to the same bits. Several ranks compute the bits of one.\n\n\
Examples:
  tiebreak train job.toml --out runs/mine --key trainer.key
  tiebreak train --out runs/mine --key trainer.key --resume
  tiebreak train job.toml --out runs/watched --agent chip.sock   # `tiebreak monitor agent` listens there
  tiebreak train job.toml --out runs/ranks --ranks 4
  tiebreak train job.toml --out runs/gpus --ranks 4 --engine cuda --transport nccl
  tiebreak train job.toml --out runs/two --ranks 2 --rank 0 --coordinator host0:29400
  tiebreak train --ranks 2 --rank 1 --coordinator host0:29400   # on the other machine"
)]
pub struct Args {
    /// Job file; with --resume leave it out.
    job: Option<PathBuf>,
    /// Folder of the run.
    ///
    /// Ranks other than rank 0 write no run, and need no folder.
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,
    /// Trainer's private key, which signs the heads (`tiebreak key new` makes one).
    ///
    /// Without a key the heads are not signed.
    #[arg(long, value_name = "KEY")]
    key: Option<PathBuf>,
    /// Go on where the run stopped, to the same bits.
    #[arg(long)]
    resume: bool,
    /// Products of the contract, or of native kernels with a rounding log.
    ///
    /// `logged` takes the job's thresholds, or the default ones.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Another folder whose files the job may name, besides its own, or an address; once for each.
    ///
    /// A job reaches files at addresses only below the addresses given here: your credentials may open others.
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    data_root: Vec<PathBuf>,
    /// With --resume: folder or address of the data files that the run does not hold.
    ///
    /// A run holds no data files if its job says `data.copy = false`.
    #[arg(long, value_name = "DIR", requires = "resume")]
    data: Option<PathBuf>,
    /// 64 hexadecimal digits from the client or a beacon, given after the job was fixed.
    #[arg(long, value_name = "DIGEST", hide_short_help = true)]
    challenge: Option<Digest>,
    /// Stop when a step's loss, or the model in the end, is not finite.
    ///
    /// With `false` the command says so and goes on.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, hide_short_help = true)]
    stop_on_nan: bool,
    #[command(flatten)]
    salts: SaltArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    around: AroundArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    ranks: RanksArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

impl Args {
    /// The places of files that the command line names.
    fn named(&self) -> Named<'_> {
        Named { job: self.job.as_deref(), data: self.data.as_deref() }
    }
}

/// The products of a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// The contract's own products, without a log.
    Exact,
    /// Native kernels' products, with a rounding log.
    Logged,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let (traces, cache) = (Traces::of(printer, "train"), args.cache.clone());
    let ended = worked(printer, args, &traces);
    cache.say(printer);
    traces.clone().around(ended)
}

fn worked(printer: Printer, args: Args, traces: &Traces) -> CommandResult {
    let (start, watch) = (Instant::now(), args.limits.watch(printer));
    let (role, mut meeting) = args.ranks.role()?;
    role.check_transport(&args.ranks, &args.engine)?;
    args.agent.check(&role)?;
    if let Role::Joins { place, coordinator, .. } = &role
        && place.rank > 0
    {
        drop(watch);
        return joins(printer, &args, &role, (place, coordinator), meeting);
    }
    let Some(out) = &args.out else { return Err(without_folder(&role)) };
    let private = args.key.as_deref().map(key::read_private).transpose()?;
    // Nothing is begun that is refused, or cannot go on here.
    let reopened = || {
        let run = Limits::with_data(args.salts.open(&args.limits, out)?, args.data.as_ref())?;
        run.opened()?;
        args.cache.around(run)
    };
    let begun = args.resume.then(reopened).transpose()?;
    let job = job_of(&args, begun.as_ref())?;
    let agent = args.agent.of_rank(0);
    let asked = check(&args, &role, &job, begun.as_ref(), &agent)?;
    let engine = open(&role.engine(&args.engine)?)?;
    let (mut engine, checking) = args.around.around(engine, device_check::OF_TRAINING)?;
    let exposed = args.metrics.served(printer, TrainingMetrics::registered)?;
    let run = match begun {
        None => new_run(printer, &args, out, private.as_ref())?.with_memory(args.limits.memory()),
        Some(run) => {
            // Of a run that was begun by a version that did not, or whose data lie elsewhere now.
            Checked::of_this_user().check_run(&run, &mut scanning(printer))?;
            run
        }
    };
    let slots = args.ranks.slots(run.program(), &role)?;
    check_memory(&run, (&args.engine, &args.around, &args.limits), slots.as_ref())?;
    // From here on training stops by itself, with a checkpoint.
    drop(watch);
    let mut host = Host::new(&role, &mut meeting, (&args.engine, &args.around), &args.limits, &args.agent)?;
    let joined = host.as_mut().map(|host| host.wait(printer)).transpose()?;
    let mut ranks = joined.map(|tcp| network(tcp, meeting)).transpose()?;
    let ways = args.around.ways(&args.engine);
    announce(printer, &run, (engine.as_ref(), ways), (ranks.as_deref(), slots.as_ref()))?;
    let mut bar = bar(printer, &run, &engine.describe(), (exposed.as_ref(), traces))?;
    bar.stops = (args.stop_on_nan, Some(Asked::listen(printer, &args.limits, start)));
    let mut watched = Watched::new(printer, &mut bar, asked, &run)?;
    let trained = trained(&args, &run, engine.as_mut(), private.as_ref(), &mut ranks, &mut watched);
    drop(watched);
    if let (Err(_), Some(host)) = (&trained, &mut host) {
        host.workers.deaths(printer);
    }
    bar.bar.finish_and_clear();
    let state = match trained {
        Err(error) if !error.is_an_end() => return Err(failed(&run, &bar, error, &args)),
        trained => trained,
    };
    // First, since the others' networks may end when this one does.
    drop(ranks);
    if let Some(host) = host {
        host.workers.finish();
    }
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            return stopped::said(printer, &run, &error, bar.stops.1.as_ref(), &resume_options(&args, &run));
        }
    };
    ended(printer, &run, &args, &bar, (&state, checking.as_ref()));
    Ok(Exit::Match)
}

/// Trains as another rank than rank 0.
fn joins(
    printer: Printer,
    args: &Args,
    role: &Role,
    (place, coordinator): (&RankPlace, &[SocketAddr]),
    meeting: Meeting,
) -> CommandResult {
    args.metrics.refused("rank 0 has the metrics of all ranks: give --metrics to rank 0 alone")?;
    args.cache.refused("rank 0 reads the files of all ranks: give --cache to rank 0 alone")?;
    let agent = args.agent.of_rank(place.rank);
    let engine = (&role.engine(&args.engine)?, &args.around);
    work(printer, (place, coordinator), meeting, engine, &args.limits, &agent)
}

/// What shows the steps of the run, with its evaluations, for people, on `exposed` and in traces.
fn bar(
    printer: Printer,
    run: &Run,
    engine: &str,
    (exposed, traces): (Option<&Served<TrainingMetrics>>, &Traces),
) -> Result<Bar, Failure> {
    let mut bar = Bar::new(printer, run);
    bar.evaluation = Evaluating::of(run)?;
    bar.exposed = exposed.map(|exposed| exposed.metrics.clone());
    bar.exposed.iter().for_each(|exposed| exposed.begin(run, engine));
    bar.traces = traces.begun(run, engine);
    Ok(bar)
}

/// The error of training that failed in the step after the last one that is done.
fn failed(run: &Run, bar: &Bar, error: TrainError, args: &Args) -> Failure {
    stopped::failed(run, bar.at.map(|at| at + 1), error, &cpu_options(args, run))
}

/// The error of a command line that names no folder for the run.
fn without_folder(role: &Role) -> Failure {
    let why = match role {
        Role::Joins { .. } => "rank 0 needs --out, the folder of the run",
        Role::Alone | Role::Spawns { .. } => "the command needs --out, the folder of the run",
    };
    Failure::new(Exit::Usage, why).help("`tiebreak train JOB --out RUN` writes the run to the folder RUN")
}

/// The job that is named, or that a run has which is gone on with.
fn job_of(args: &Args, begun: Option<&Run>) -> Result<Job, Failure> {
    match (begun, &args.job) {
        (Some(run), _) => Ok(run.job().clone()),
        (None, Some(job)) => Ok(read_job(job)?.1),
        (None, None) => {
            let help = "`tiebreak train JOB --out RUN` begins a run; `tiebreak train --out RUN --resume` goes on with one";
            Err(Failure::new(Exit::Usage, "neither a job file nor --resume is given").help(help))
        }
    }
}

/// Says that a run is at its end.
fn ended(
    printer: Printer,
    run: &Run,
    args: &Args,
    bar: &Bar,
    (state, check): (&Digest, Option<&device_check::Check>),
) {
    let out = args.out.as_deref().unwrap_or(&run.layout.root);
    let seconds = bar.start.elapsed().as_secs_f64();
    let done = done_text(bar.done, out);
    let key = key::trainer_option(args.key.as_deref(), run.file.trainer_key.as_deref());
    let hf = run.job().model().is_some_and(|job| job.model.released().is_some());
    let model = shell::path(&beside(out, "-model"));
    let (id, out) = (run.id, shell::path(out));
    let format = if hf { "" } else { " --format safetensors" };
    let audit = args.named().audit(run, &format!("{out}{key}{}", args.salts.option()));
    let salts = args.salts.option();
    let mut next = vec![Next::new("check it with", format!("tiebreak verify {out}{key}{salts}")), audit];
    if !run.job().hides() {
        next.push(Next::new("export it with", format!("tiebreak export {out} --output {model}{format}")));
    }
    let mut lines =
        vec![format!("{done} in {seconds:.1} s"), format!("run    {id}"), format!("state  {state}")];
    lines.extend(check.map(|check| check.line()));
    lines.extend(next::lines(&next));
    let mut json =
        json!({ "run": id, "state": state, "steps": run.job().steps, "seconds": seconds, "next": next });
    if let Some(check) = check {
        json["device_check"] = check.json();
    }
    printer.result(lines, &json);
}

/// The options of this command line that a resume needs too, as a shell takes them.
fn resume_options(args: &Args, run: &Run) -> String {
    let default = ["--engine=cpu", "--threads=0"];
    let engine = args.engine.options().into_iter().filter(|option| !default.contains(&option.as_str()));
    let around = args.around.options().into_iter().map(|option| option.to_string_lossy().into_owned());
    options_with(args, run, engine.chain(around))
}

/// The options of a resume on the CPU.
fn cpu_options(args: &Args, run: &Run) -> String {
    options_with(args, run, ["--engine=cpu".to_string()].into_iter())
}

/// The options of this command line that do not say how it computes, and then these.
fn options_with(args: &Args, run: &Run, engine: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = Vec::new();
    let data = args.data.clone().or_else(|| args.named().data_of(run));
    let files = [("--key", &args.key), ("--data", &data), ("--salt-key", &args.salts.salt_key)];
    let files = files.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
    words.extend(
        files.chain(args.agent.options()).map(|(option, path)| format!("{option} {}", shell::path(path))),
    );
    // A resume reads the data alone from an address.
    if data.is_some_and(|data| tiebreak_remote::is_address(&data)) {
        words.extend(args.cache.options());
    }
    words.extend(engine.chain(args.ranks.options()).map(|option| shell::word(&option)));
    words.iter().map(|word| format!(" {word}")).collect()
}

/// Says the size of the run, and of the gradients that its ranks send.
fn announce(
    printer: Printer,
    run: &Run,
    (engine, ways): (&dyn Engine, Ways),
    (ranks, slots): (Option<&dyn Collective>, Option<&SlotPlan>),
) -> Result<(), Failure> {
    printer.say(format!(
        "run {}: {} parameters, {} steps on {}{}; tensors of a step take {}, the run about {} on disk",
        run.id.short(),
        run.program().parameter_count(),
        run.job().steps,
        ranks.map_or(String::new(), |ranks| format!("{} ranks, rank 0 on ", ranks.ranks())),
        engine.describe(),
        bytes_text(rank_bytes(run, ways, slots)),
        bytes_text(disk_needed(run)),
    ));
    if let Some(advice) = run.job().rounding.as_ref().and_then(|r| r.advice(&run.program().micro.logged)) {
        printer.say(format!("warning: {advice}"));
    }
    if let Some(ranks) = ranks {
        let plan = ShardPlan::new(run.program(), ranks.ranks())?;
        let most = (0..ranks.ranks()).map(|rank| plan.bytes_sent(rank)).max().unwrap_or(0);
        let over = ranks.describe();
        printer.say(format!("a rank sends up to {} of gradients a step over {over}", bytes_text(most)));
        if let Some(slots) = slots {
            let sent = (0..ranks.ranks()).map(|rank| slots.bytes_sent(rank)).max().unwrap_or(0);
            let (most, all) = slots.most_of_all();
            let [sent, most, all] = [sent, most, all].map(bytes_text);
            printer.say(format!(
                "a rank holds up to {most} of the optimizer's {all}, and sends up to {sent} of parameters a step"
            ));
        }
    }
    Ok(())
}

/// Trains alone, or as rank 0.
fn trained(
    args: &Args,
    run: &Run,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    ranks: &mut Option<Box<dyn Collective>>,
    progress: &mut dyn Progress,
) -> Result<Digest, TrainError> {
    let Some(ranks) = ranks else { return train(run, engine, key, progress) };
    let mut lead = Lead::new(run, ranks.as_mut())?;
    if let Some(steps) = args.ranks.cross_check {
        lead = lead.cross_checking(run, steps)?;
    }
    if args.ranks.shard_optimizer {
        lead = lead.dividing_slots(run)?;
    }
    if let Some(bytes) = bucket_bytes()? {
        lead = lead.in_buckets(run, bytes)?;
    }
    train_over(run, engine, key, lead, progress)
}

/// Begins a run of the job that is named.
fn new_run(printer: Printer, args: &Args, out: &Path, key: Option<&PrivateKey>) -> Result<Run, Failure> {
    let job = args.job.as_deref().expect("there is a job, or a run");
    let (files, challenge) = (job_files_through(job, &args.data_root, &args.cache)?, args.challenge);
    let logged = args.profile == Some(Profile::Logged);
    let (folder, out) = (out.to_path_buf(), Folder::at(out));
    let beginning = Beginning { job, data_root: None, out, key, challenge, logged, nonce: random()? };
    let salts = args.salts.begun(read_job(job)?.1.hides(), &folder)?;
    let salt_key = salts.as_ref().map(|(key, _)| key);
    let run = Prepared::reaching(&beginning, &files, salt_key, &mut scanning(printer));
    let run = run.map_err(Failure::from).and_then(|run| args.cache.is_of_use().map(|()| run));
    let run = run.inspect_err(|_| {
        // Nothing was begun, so nothing is of this key.
        salts.iter().for_each(|(_, path)| drop(fs::remove_file(path)));
    })?;
    if let Some((_, path)) = &salts {
        let path = path.display();
        printer.say(format!(
            "the run's salt key is {path}: whoever has it can test guesses of the data; keep it"
        ));
    }
    let copied: Vec<(String, u64)> =
        run.copied().into_iter().map(|(path, bytes)| (path.display().to_string(), bytes)).collect();
    say_copied(printer, copied.iter().map(|(path, bytes)| (path.as_str(), *bytes)));
    Ok(run.create()?)
}

/// Checks that a run that is gone on with is the one that the rest of the command line describes.
fn check_resumed(args: &Args, run: &Run) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::new(Exit::Usage, why));
    if let Some(path) = &args.job {
        let (text, _) = read_job(path)?;
        // The table that --profile logged adds to a job without one.
        if text != run.job_text && logged(&text) != run.job_text {
            let why = "is not the job that the run was begun with (its job.toml); with --resume leave it out";
            let out = toml_text(&run.layout.root);
            return refused(&format!(
                "{} {why}. For more steps than the run's {}, begin a new run from its end: a job with [init] run = {out} and \
                 optimizer_state = true, whose steps and schedule count from 1 again",
                path.display(),
                run.job().steps
            ));
        }
    }
    if args.challenge.is_some() && args.challenge != run.file.challenge {
        let named = run.file.challenge.map_or("none".into(), |challenge| challenge.to_string());
        return refused(&format!("the run was begun with another --challenge, {named}: leave it out"));
    }
    if args.profile == Some(Profile::Logged) && run.job().rounding.is_none() {
        return refused("the run was begun in the exact profile: leave --profile logged out");
    }
    Ok(())
}

/// Refuses ways to train that would show what a job's commitments hide.
fn check_hiding(args: &Args, role: &Role, job: &Job) -> Result<(), Failure> {
    let refused = [
        (role.ranks() > 1, "ranks compare plain digests: train with one rank"),
        (
            args.agent.options().next().is_some(),
            "a chip's log has plain digests of the state: leave --agent out",
        ),
        (
            args.profile == Some(Profile::Logged),
            "a rounding log shows decisions about the data: leave --profile out",
        ),
    ];
    let refused = refused.into_iter().find(|(is_asked, _)| job.hides() && *is_asked);
    let Some((_, why)) = refused else { return Ok(()) };
    Err(Failure::new(Exit::Usage, format!("the job's commitments hide (commit.scheme 1), and {why}")))
}

/// Checks that a job can be trained in the way that is asked for, by so many ranks.
///
/// Returns the socket of the chip's agent and the shard map, if an agent is named.
fn check<'a>(
    args: &Args,
    role: &Role,
    job: &Job,
    begun: Option<&Run>,
    agent: &'a AgentArgs,
) -> Result<Option<(&'a Path, ShardMap)>, Failure> {
    bucket_bytes().map_err(TrainError::from)?;
    if let Some(run) = begun {
        check_resumed(args, run)?;
    }
    args.engine.check()?;
    args.around.check(&args.engine, job)?;
    check_hiding(args, role, job)?;
    if args.engine.has_native() && job.rounding.is_none() && args.profile != Some(Profile::Logged) {
        let why = "--native is for the logged profile, and the job is of the exact one, whose products have one result";
        let help = "add --profile logged, or leave --native out";
        return Err(Failure::new(Exit::Usage, why).help(help));
    }
    if args.profile == Some(Profile::Exact) && job.rounding.is_some() {
        let why = "the job has a [rounding] table: it is of the logged profile; remove the table or --profile exact";
        return Err(Failure::new(Exit::Usage, why));
    }
    let read;
    let program = match (begun, &args.job) {
        (Some(run), _) => run.program(),
        (None, job_path) => {
            let path = job_path.as_deref().expect("there is a job, or a run");
            read = read_program(&job_files(path, &args.data_root)?, job)?.0;
            &read
        }
    };
    divides(program, role.ranks())?;
    let asked = agent.asked(program)?;
    if args.ranks.slots(program, role)?.is_some() && asked.is_some() {
        return Err(Failure::new(Exit::Usage, agent::DIVIDED));
    }
    if args.ranks.cross_check.is_none() {
        return Ok(asked);
    }
    if role.ranks() == 1 {
        return Err(Failure::new(Exit::Usage, "--cross-check needs two ranks or more"));
    }
    if args.profile == Some(Profile::Logged) && job.rounding.is_none() {
        return Err(Failure::new(Exit::Usage, "--cross-check and --profile logged exclude each other"));
    }
    can_cross_check(job)?;
    Ok(asked)
}

/// Any rank but 0. An error that rank 0 knows of is rank 0's to print.
fn work(
    printer: Printer,
    (place, coordinator): (&RankPlace, &[SocketAddr]),
    meeting: Meeting,
    (engine, around): (&EngineArgs, &AroundArgs),
    limits: &Limits,
    agent: &AgentArgs,
) -> CommandResult {
    let (rank, start) = (place.rank, Instant::now());
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(Exit::Undecided, format!("rank {rank}: {error}"));
    let tcp = Tcp::join(coordinator, place.clone()).map_err(|error| failed(&error))?;
    let mut ranks = network(tcp, meeting).map_err(|error| failed(&error))?;
    let engine = || {
        let opened = open(engine).and_then(|engine| around.around(engine, device_check::OF_TRAINING));
        opened.map(|(engine, _)| engine).map_err(|failure| EngineError::Stopped(failure.message))
    };
    let asked = Asked::listen(printer, limits, start);
    let mut watch = WatchedRank::new(printer, agent);
    match worker::work_on(engine, ranks.as_mut(), &|| asked.is_asked(), &mut watch) {
        Ok(()) => Ok(Exit::Match),
        Err(error) if report(ranks.as_mut(), &error) => {
            printer.say(format!("rank {rank} stopped, and rank 0 knows why: {error}"));
            Ok(Exit::Undecided)
        }
        Err(error) => Err(failed(&error)),
    }
}
