//! Training that ends before its last step: because somebody asks for it, or because a value is not finite.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::view::escape::one_line;
use crate::cli::view::heard;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_engine::EngineError;
use tiebreak_game::net::stop::on_stop;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::shell;
use tiebreak_train::TrainError;

/// A request for the end: by Ctrl-C or SIGTERM (asking twice ends the process at once), or by a limit that is reached.
pub struct Asked {
    signalled: Arc<AtomicBool>,
    limits: Limits,
    start: Instant,
    /// The limit that was reached first, in words.
    reached: OnceLock<String>,
}

impl Asked {
    /// Listens from now on: to signals, or to the program that called the command. The limits are those of a command that began at `start`.
    pub fn listen(printer: Printer, limits: &Limits, start: Instant) -> Asked {
        let reached = OnceLock::new();
        if let Some(caller) = heard::caller() {
            return Asked { signalled: caller.stop_flag(), limits: limits.clone(), start, reached };
        }
        let asked = Arc::new(AtomicBool::new(false));
        let flag = asked.clone();
        let listening = on_stop(move || {
            flag.store(true, Ordering::Relaxed);
            printer.say("stopping after this step, with a checkpoint; again ends at once, without one");
        });
        if let Err(error) = listening {
            printer.problem(&format!("signals cannot be waited for, so that Ctrl-C ends at once: {error}"));
        }
        Asked { signalled: asked, limits: limits.clone(), start, reached }
    }

    pub fn is_asked(&self) -> bool {
        if let Some(why) = self.limits.reached(self.start) {
            let _ = self.reached.set(why);
        }
        self.reached.get().is_some() || self.signalled.load(Ordering::Relaxed)
    }

    /// Why it ends, in words.
    fn why(&self) -> &str {
        self.reached.get().map_or("as was asked", String::as_str)
    }
}

/// The error of training that failed at a step, if it is known. A device that computes wrongly has published no record of the step in
/// which it was found. `options`: those by which a resume computes on a processor.
pub fn failed(run: &Run, step: Option<u32>, error: TrainError, options: &str) -> Failure {
    let out = shell::path(&run.layout.root);
    if let TrainError::NotReproduced { step, .. } = &error {
        let help = format!(
            "if the record is wrong: `tiebreak correct withdraw {out} --step {step}` where no head covers it, else `tiebreak correct begin \
             {out} --step {step} --out NEW`. `tiebreak audit {out} --prefix --engine cpu` says which records under a head are wrong"
        );
        return Failure::from(error).help(help);
    }
    let wrong = matches!(error, TrainError::Engine(EngineError::WrongResult { .. }));
    let mut failure = Failure::from(error);
    if !wrong {
        return failure;
    }
    let at = step.map_or("the step".into(), |step| format!("step {step}"));
    if let (Some(step), Some(fields)) = (step, &mut failure.fields) {
        fields["step"] = json!(step);
        failure.message = format!("step {step}: {}", failure.message);
    }
    failure.help(format!(
        "nothing of {at} is recorded. Go on from the last good record: `tiebreak train --out {out} --resume{options}`, or with another \
         --adapter. Earlier steps may be wrong too: `tiebreak audit {out} --prefix --engine cpu` checks those under a head, and `tiebreak \
         correct withdraw {out} --step N` takes back later ones"
    ))
}

/// Says where a run stands that ended early, and how to go on. `options`: those of the command line that a resume needs too.
pub fn said(
    printer: Printer,
    run: &Run,
    error: &TrainError,
    asked: Option<&Asked>,
    options: &str,
) -> CommandResult {
    let (out, steps) = (&run.layout.root, run.job().steps);
    let resume = |more: &str| format!("tiebreak train --out {} --resume{options}{more}", shell::path(out));
    let anyway = || resume(" --stop-on-nan false");
    // What is there may be of an earlier checkpoint, or none but the beginning.
    let checkpoint = run.checkpoint_steps()?.last().copied();
    let (step, headline, not_finite, command) = match error {
        TrainError::Asked { step } => {
            let why = asked.map_or("as was asked", Asked::why);
            (*step, format!("STOPPED after step {step} of {steps}, {why}"), json!(null), resume(""))
        }
        TrainError::NotFinite { step, found } => {
            (*step, format!("STOPPED at step {step} of {steps}: {found}"), json!(found), anyway())
        }
        TrainError::LastStateNotFinite { step, first } => {
            let why = format!("the model holds a value that is not finite: {first}");
            (
                *step,
                format!("STOPPED after the last step, {step}: {why}"),
                json!({ "first": first }),
                anyway(),
            )
        }
        _ => (0, error.to_string(), json!(null), resume("")),
    };
    let mut lines = vec![headline.clone()];
    let indented = |next: &Next| format!("  {}", next.line());
    let path = checkpoint.map(|step| run.layout.checkpoint(step));
    if let (Some(step), Some(path)) = (checkpoint, &path) {
        lines.push(format!("  the last checkpoint is of step {step}: {}", path.display()));
    }
    let (mut next, finite) = (Vec::new(), not_finite.is_null());
    if !finite {
        let audit = format!("tiebreak audit {} --prefix", shell::path(out));
        next.push(Next::new("the records up to this step are under a head", audit));
        lines.extend(next.iter().map(indented));
        lines.push("  mostly the learning rate (schedule.peak) is too high, there is no clip_norm, or the data hold what is no number \
                    (tiebreak job check)".into());
    }
    let why = if finite { "go on, to the same bits" } else { "go on anyway, to the same bits" };
    next.push(Next::new(why, &command));
    lines.extend(next.last().map(indented));
    printer.result(
        lines,
        &json!({
            "run": run.id,
            "stopped": match asked.and_then(|asked| asked.reached.get()) {
                _ if !not_finite.is_null() => "not_finite",
                Some(_) => "limit",
                None => "asked",
            },
            "why": one_line(&headline),
            "step": step,
            "steps": steps,
            "not_finite": not_finite,
            "checkpoint": path,
            "checkpoint_step": checkpoint,
            "resume": command,
            "next": next,
        }),
    );
    Ok(Exit::Undecided)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_engine::device_check::WrongPart;
    use tiebreak_run::run::Folder;
    use tiebreak_train::{Beginning, begin};

    #[test]
    fn a_wrong_device_is_told_with_its_step_and_the_command_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().join("job.toml");
        std::fs::write(folder.path().join("text.txt"), "abcdefghij".repeat(40)).unwrap();
        let text = r#"steps = 8
model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 4 }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 1 }
"#;
        std::fs::write(&job, text).unwrap();
        let out = Folder::at(&folder.path().join("run"));
        let beginning = Beginning {
            job: &job,
            data_root: None,
            out,
            key: None,
            challenge: None,
            logged: false,
            nonce: [1; 16],
        };
        let run = begin(&beginning).unwrap();
        let error = EngineError::WrongResult {
            device: "gpu".into(),
            operator: "block0.gelu".into(),
            part: WrongPart::Element,
            element: 7,
            tile: 0,
            found: 1,
            expected: 2,
        };
        let failure = failed(&run, Some(6), TrainError::Engine(error), " --key trainer.key --engine=cpu");
        assert!(failure.message.starts_with("step 6: "), "{}", failure.message);
        let (help, fields) = (failure.help.unwrap(), failure.fields.unwrap());
        let out = shell::path(&run.layout.root);
        let command = format!("`tiebreak train --out {out} --resume --key trainer.key --engine=cpu`");
        assert!(help.contains(&command) && help.contains("nothing of step 6 is recorded"), "{help}");
        assert_eq!((&fields["step"], &fields["operator"]), (&json!(6), &json!("block0.gelu")));
        let error = TrainError::NotReproduced { step: 5, device: "gpu".into() };
        let help = failed(&run, Some(4), error, "").help.unwrap();
        assert!(help.contains(&format!("`tiebreak correct withdraw {out} --step 5`")), "{help}");
    }
}
