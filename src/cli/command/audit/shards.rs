//! `--shard` of `tiebreak audit`: one task's segments, the plan file that may name them, and the report that says that they are done.

use std::path::{Path, PathBuf};

use crate::cli::args::part::PartArgs;
use crate::cli::args::shard::ShardArg;
use crate::cli::view::next::Next;
use crate::cli::view::report::{Exit, Failure, Printer, named};
use serde_json::{Value, json};
use tiebreak_audit::Outcome;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::coverage::plan_of;
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::plan_file::{PLAN_FILE_MAX, PlanFile};
use tiebreak_audit::report_file::{Account, REPORT_MAX, decode};
use tiebreak_audit::shard::Shard;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

/// The options that divide an audit.
#[derive(clap::Args, Default)]
pub struct ShardArgs {
    /// Replay one shard of the chosen segments: number K of N shards, from 1.
    ///
    /// `auto/N` is the shard of this task in an array of Slurm, Kubernetes or AWS Batch, whose indices begin with 0. Shards of a sample
    /// need one --seed. With --key the --report is written after each segment: a shard that is started again goes on from there, and a
    /// finished one is not replayed again.
    #[arg(long, value_name = "K/N", hide_short_help = true)]
    shard: Option<ShardArg>,
    /// With --plan: write a plan file, which divides the chosen segments among --shards shards. `--plan-file` reads it.
    ///
    /// The shards have about equal predicted costs. The same run, head, choice and version give the same bytes.
    #[arg(long, value_name = "FILE", hide_short_help = true, requires_all = ["plan", "shards"], conflicts_with_all = ["shard", "draw"])]
    plan_out: Option<PathBuf>,
    /// Number of shards in the plan file of --plan-out.
    #[arg(long, value_name = "N", hide_short_help = true, requires = "plan_out")]
    shards: Option<u32>,
    /// Plan file, whose segments --shard replays.
    ///
    /// The report names the steps that the file gives to no shard.
    #[arg(long, value_name = "FILE", hide_short_help = true, requires = "shard", conflicts_with_all = ["steps", "sample", "seed", "draw", "draw_out"])]
    plan_file: Option<PathBuf>,
}

impl ShardArgs {
    /// True if one shard is to be replayed.
    pub fn is_one(&self) -> bool {
        self.shard.is_some()
    }

    /// The plan file, if one is named.
    ///
    /// # Errors
    /// If it cannot be read, or is malformed.
    pub fn read(&self) -> Result<Option<PlanFile>, Failure> {
        let read = |path: &PathBuf| -> Result<PlanFile, Failure> {
            let text = disk::read_text(path, PLAN_FILE_MAX).map_err(named)?;
            PlanFile::from_text(&text).map_err(|why| RunError::malformed(path, why).into())
        };
        self.plan_file.as_ref().map(read).transpose()
    }

    /// The part of a plan that one shard is to replay, if one is named. `last`: the last step under the head.
    ///
    /// # Errors
    /// If there is no such shard, or the plan file is not of this audit.
    pub fn part_of(
        &self,
        run: &Run,
        checked: &Checked,
        (plan, last): (ReplayPlan, u32),
        file: Option<&PlanFile>,
        part: &PartArgs,
    ) -> Result<ReplayPlan, Failure> {
        let Some(shard) = self.shard.map(ShardArg::shard).transpose()? else { return Ok(plan) };
        let (Some(file), Some(path)) = (file, &self.plan_file) else {
            return shard_of(run, plan, shard, part);
        };
        file.shard(run, checked, last, shard).map_err(|why| {
            let why = format!("{}: the plan does not fit: {why}", path.display());
            let help = "write one anew, by --plan --plan-out FILE --shards N, and give it to all tasks";
            Failure::new(Exit::Usage, why).help(help)
        })
    }

    /// Writes the plan file if one is asked for. Returns the lines about it, and adds it to the JSON of --plan.
    ///
    /// # Errors
    /// If there are too few segments, or the file cannot be written.
    pub fn write(
        &self,
        run: &Run,
        checked: &Checked,
        plan: &ReplayPlan,
        (folder, options): (&Path, &str),
        json: &mut Value,
    ) -> Result<String, Failure> {
        let (Some(path), Some(shards)) = (&self.plan_out, self.shards) else { return Ok(String::new()) };
        let file = PlanFile::divided(run, checked, plan, shards)
            .map_err(|why| Failure::new(Exit::Usage, format!("--shards {shards}: {why}")))?;
        let absolute = std::path::absolute(path).map_err(RunError::io(path))?;
        Disk::default().replace(&absolute, file.to_text().as_bytes())?;
        let (folder, name) = (shell::path(folder), shell::path(path));
        let next = Next::new(
            "replay a shard with",
            format!("tiebreak audit {folder} --plan-file {name} --shard 1/{shards}{options}"),
        );
        json["plan_file"] = json!(path);
        json["shards"] = json!(shards);
        json["next"] = json!([next]);
        let shards = if shards == 1 { "1 shard".to_string() } else { format!("{shards} shards") };
        Ok(format!("\n{name} has the segments of {shards}\n{}", next.line()))
    }
}

/// The shard's part of a plan.
///
/// # Errors
/// If each shard would draw a sample of its own, or the plan has fewer segments than shards.
fn shard_of(run: &Run, plan: ReplayPlan, shard: Shard, part: &PartArgs) -> Result<ReplayPlan, Failure> {
    if part.sample.is_some() && part.seed.is_none() {
        let why =
            format!("--shard {shard} of --sample needs --seed: else every shard draws a sample of its own");
        return Err(
            Failure::new(Exit::Usage, why).help("draw one after the head is fixed, and give it to all")
        );
    }
    let segments = plan.segments.len();
    let plan = plan.sharded(run, shard);
    if plan.segments.is_empty() && segments > 0 {
        let counted = if segments == 1 { "1 segment".to_string() } else { format!("{segments} segments") };
        let why = format!("--shard {shard} has nothing to replay: the plan has {counted}");
        let help =
            "a segment ends at each checkpoint, and the job's [checkpoint] every sets how many there are";
        return Err(Failure::new(Exit::Usage, why).help(format!("divide by {segments} at most: {help}")));
    }
    Ok(plan)
}

/// A shard that this auditor replayed before, and found to match.
pub struct Done {
    report: PathBuf,
    shard: Shard,
}

/// The shard's report, if the file is one that says all that this audit would say: of this plan, under this head, a match to the end
/// of the plan, and signed by this auditor. Anybody can have written a report that nobody signed.
pub fn done(
    path: &Path,
    checked: &Checked,
    plan: &ReplayPlan,
    native: bool,
    signer: Option<&PrivateKey>,
) -> Option<Done> {
    let (shard, signer) = (plan.shard?, signer?);
    let bytes = disk::read(path, REPORT_MAX).ok()?;
    let (account, auditor) = decode(&bytes).ok()?;
    let planned = plan_of(&bytes, &account).ok()?;
    let promised =
        |account: &Account| (account.run, account.head_size, account.head_root, account.end_checked);
    let Head { run, size, root } = checked.head;
    let same = promised(&account) == (run, size, root, checked.end_checked)
        && auditor == Some(signer.public())
        && account.native == native
        && planned.is_same(plan);
    let replayed: u64 =
        account.replayed.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum();
    let matches = account.outcome == Outcome::Matches && replayed == plan.steps();
    // Another option of this audit may find what the earlier one could not.
    let now = checked.inconsistent.is_none() && checked.undecided().is_none();
    (same && matches && now).then(|| Done { report: path.to_owned(), shard })
}

impl Done {
    /// Says so. The report has the details.
    pub fn told(&self, printer: Printer) -> Exit {
        let Done { report, shard } = self;
        let text = format!("ALREADY DONE: shard {shard} matches, as {} says, which stays", report.display());
        printer.result(vec![text], &json!({ "already_done": shard, "report": report }));
        Exit::Match
    }
}
