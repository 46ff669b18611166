//! Embeds an audit: replays every step of a run on the CPU engine, and writes the verdict if something differs.
//!
//!     cargo run --example audit -- RUN
//!
//! To use a GPU in place of the CPU, write `tiebreak::engine::gpu::Gpu::open(None)?`.

use std::path::Path;

use tiebreak::audit::plan::{Choice, plan};
use tiebreak::audit::{Silent, audit, checks};
use tiebreak::engine::cpu::Cpu;
use tiebreak::run::dir::Run;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give the run's folder")?;
    let run = Run::open(Path::new(&folder))?;
    let checked = checks::always(&run, None)?;
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let mut engine = Cpu::new(0)?;
    let (report, verdict) = audit(&run, &mut engine, checked, plan, None, &mut Silent)?;
    println!("{:?} after {} steps on {}", report.outcome, report.steps_replayed(), report.engine);
    if let Some(verdict) = verdict {
        std::fs::write("verdict.json", verdict.to_bytes())?;
        println!("evidence: verdict.json");
    }
    Ok(())
}
