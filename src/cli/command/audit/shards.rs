//! `--shard` of `tiebreak audit`: one task's segments, and the report that says that they are done.

use std::path::{Path, PathBuf};

use crate::cli::args::part::PartArgs;
use crate::cli::view::outcome::outcome_exit;
use crate::cli::view::report::{Exit, Failure, Printer};
use serde_json::json;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::coverage::plan_of;
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::report_file::{Account, REPORT_MAX, decode};
use tiebreak_audit::shard::Shard;
use tiebreak_record::commit::keys::PrivateKey;
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
    if plan.segments.is_empty() {
        let why = format!("--shard {shard} has nothing to replay: the plan has {segments} segments");
        return Err(Failure::new(Exit::Usage, why).help(format!("divide by {} at most", segments.max(1))));
    }
    Ok(plan)
}

/// A shard that was replayed before.
pub struct Done {
    report: PathBuf,
    shard: Option<Shard>,
    account: Account,
}

/// The shard's report, if the file is one of this plan, under this head, by this auditor, and decided.
pub fn done(path: &Path, checked: &Checked, plan: &ReplayPlan, signer: Option<&PrivateKey>) -> Option<Done> {
    let bytes = disk::read(path, REPORT_MAX).ok()?;
    let (account, auditor) = decode(&bytes).ok()?;
    let planned = plan_of(&bytes, &account).ok()?;
    let head = (account.run, account.head_size, account.head_root);
    let same = head == (checked.head.run, checked.head.size, checked.head.root)
        && auditor == signer.map(|key| key.public().clone())
        && (&planned.choice, &planned.segments, planned.shard) == (&plan.choice, &plan.segments, plan.shard);
    let replayed: u64 = account.replayed.iter().map(|&(first, last)| u64::from(last + 1 - first)).sum();
    let decided = match outcome_exit(&account.outcome) {
        Exit::Match => replayed == plan.steps(),
        exit => exit == Exit::Diverges,
    };
    (same && decided).then(|| Done { report: path.to_owned(), shard: plan.shard, account })
}

impl Done {
    /// Says so, and ends as the report did.
    pub fn told(&self, printer: Printer) -> Exit {
        let shard = self.shard.map(|shard| shard.to_string()).unwrap_or_default();
        let text = format!("ALREADY DONE: shard {shard} is in {}, which stays", self.report.display());
        let value = json!({ "already_done": shard, "report": self.report, "outcome": self.account.outcome });
        printer.result(vec![text], &value);
        outcome_exit(&self.account.outcome)
    }
}
