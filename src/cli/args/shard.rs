//! `--shard`: the segments that one task of an array replays.

use std::env;
use std::str::FromStr;

use crate::cli::view::report::{Exit, Failure};
use tiebreak_audit::shard::{SHARDS_MAX, Shard};

/// A shard that is named, or the task's own of so many.
#[derive(Clone, Copy, Debug)]
pub enum ShardArg {
    Named(Shard),
    Own(u32),
}

impl FromStr for ShardArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ShardArg, String> {
        let wrong = || format!("the form is K/N with 1 <= K <= N <= {SHARDS_MAX}, or auto/N");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let of: u32 = of.parse().map_err(|_| wrong())?;
        if number == "auto" {
            return Shard::new(of, of).map(|_| ShardArg::Own(of)).ok_or_else(wrong);
        }
        let number = number.parse().map_err(|_| wrong())?;
        Shard::new(number, of).map(ShardArg::Named).ok_or_else(wrong)
    }
}

/// The index of this task in its array, from 0, with the variable that says it.
fn task() -> Option<(&'static str, String)> {
    let set = |name, value: Result<String, _>| value.ok().filter(|v| !v.is_empty()).map(|v| (name, v));
    set("SLURM_ARRAY_TASK_ID", env::var("SLURM_ARRAY_TASK_ID"))
        .or_else(|| set("JOB_COMPLETION_INDEX", env::var("JOB_COMPLETION_INDEX")))
        .or_else(|| set("AWS_BATCH_JOB_ARRAY_INDEX", env::var("AWS_BATCH_JOB_ARRAY_INDEX")))
}

impl ShardArg {
    /// The shard.
    ///
    /// # Errors
    /// If the environment names no task, or one beyond the shards.
    pub fn shard(self) -> Result<Shard, Failure> {
        let of = match self {
            ShardArg::Named(shard) => return Ok(shard),
            ShardArg::Own(of) => of,
        };
        let Some((name, value)) = task() else {
            let why = format!(
                "--shard auto/{of}: none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX and AWS_BATCH_JOB_ARRAY_INDEX is set"
            );
            return Err(Failure::new(Exit::Usage, why).help(format!("name the shard, as in --shard 1/{of}")));
        };
        let shard = value.parse::<u32>().ok().and_then(|index| Shard::new(index.checked_add(1)?, of));
        shard.ok_or_else(|| {
            let why = format!("--shard auto/{of}: {name} is {value:?}, and the last index is {}", of - 1);
            Failure::new(Exit::Usage, why).help(format!("give the array the indices 0 to {}", of - 1))
        })
    }
}
