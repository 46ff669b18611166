//! `tiebreak shaders`.

use std::path::PathBuf;

use serde_json::json;

use super::job::JobArgs;
use super::{CommandResult, Exit, Printer};
use crate::engine::gpu::texts;
use crate::run::{RunError, read_job, read_program};
use crate::shaders::lint;

/// Write the WGSL text of every pipeline that a job runs, as the adapter gets it, and lint each again.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak shaders assets/jobs/demo.toml --dump shaders-out")]
pub struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// The folder to write to.
    #[arg(long)]
    dump: PathBuf,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let (_, job) = read_job(&args.job.job)?;
    let program = read_program(&args.job.files()?, &job)?.0;
    std::fs::create_dir_all(&args.dump).map_err(RunError::io(&args.dump))?;
    let mut files: Vec<(String, String)> = Vec::new();
    for graph in [&program.micro, &program.accumulate, &program.update] {
        for (name, text) in texts(graph) {
            if !files.iter().any(|(_, t)| *t == text) {
                let same_name = files.iter().filter(|(n, _)| n.starts_with(&name)).count();
                files.push((format!("{name}-{same_name}.wgsl"), text));
            }
        }
    }
    let mut violations = Vec::new();
    for (name, text) in &files {
        let path = args.dump.join(name);
        std::fs::write(&path, text).map_err(RunError::io(&path))?;
        violations.extend(lint::check(name, text).err().into_iter().flatten().map(|v| v.to_string()));
    }
    let text =
        format!("{} shaders in {}, {} lint errors", files.len(), args.dump.display(), violations.len());
    printer.result(text, &json!({ "shaders": files.len(), "violations": violations }));
    Ok(if violations.is_empty() { Exit::Match } else { Exit::Undecided })
}
