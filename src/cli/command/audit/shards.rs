//! `--shard` of `tiebreak audit`: one task's segments, and the report that says that they are done.

use std::path::{Path, PathBuf};

use crate::cli::args::part::PartArgs;
use crate::cli::view::report::{Exit, Failure, Printer};
use serde_json::json;
use tiebreak_audit::Outcome;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::coverage::plan_of;
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::report_file::{Account, REPORT_MAX, decode};
use tiebreak_audit::shard::Shard;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk;

/// The shard's part of a plan.
///
/// # Errors
/// If each shard would draw a sample of its own, or the plan has fewer segments than shards.
pub fn shard_of(run: &Run, plan: ReplayPlan, shard: Shard, part: &PartArgs) -> Result<ReplayPlan, Failure> {
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
        let why = format!("--shard {shard} has nothing to replay: the plan has {segments} segments");
        return Err(Failure::new(Exit::Usage, why).help(format!("divide by {segments} at most")));
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
        && (&planned.choice, &planned.segments, planned.shard) == (&plan.choice, &plan.segments, plan.shard);
    let replayed: u64 = account.replayed.iter().map(|&(first, last)| u64::from(last + 1 - first)).sum();
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
