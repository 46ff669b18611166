//! Spans of a command's work in OpenTelemetry's form (docs/METRICS.md). Variables of OpenTelemetry name the collector that they are
//! sent to; without them, and in a build without the feature `otel`, nothing is sent.

mod about;
#[cfg(feature = "otel")]
mod sent;

pub use about::About;
use about::Told;

use crate::cli::view::report::{CommandResult, Printer};
use tiebreak_run::run::dir::Run;

/// The spans of a command. Clones are of the same command.
#[derive(Clone, Default)]
pub struct Traces {
    #[cfg(feature = "otel")]
    sent: Option<std::sync::Arc<sent::Sent>>,
}

#[cfg(feature = "otel")]
impl Traces {
    /// The spans of a command that ends: its own span is around them.
    pub fn of(printer: Printer, command: &'static str) -> Traces {
        Traces { sent: sent::Sent::of(printer, Some(command)).map(std::sync::Arc::new) }
    }

    /// The spans of a server: each is a trace of its own.
    pub fn of_server(printer: Printer) -> Traces {
        Traces { sent: sent::Sent::of(printer, None).map(std::sync::Arc::new) }
    }

    /// Work that took so many seconds ends now.
    pub fn did(&self, span: &'static str, seconds: f64, told: &Told) {
        self.sent.iter().for_each(|sent| sent.did(span, seconds, told));
    }

    /// The command's own span has these facts.
    fn tell(&self, told: &Told) {
        self.sent.iter().for_each(|sent| sent.tell(told));
    }

    /// The command ends with this exit code, or the server stops. The spans that wait are sent for some seconds at most; if any were
    /// not sent, the command says so.
    pub fn end(&self, exit: u8) {
        self.sent.iter().for_each(|sent| sent.end(exit));
    }
}

#[cfg(not(feature = "otel"))]
impl Traces {
    /// Nothing, in this build.
    pub fn of(_: Printer, _: &'static str) -> Traces {
        Traces::default()
    }

    /// Nothing, in this build.
    pub fn of_server(_: Printer) -> Traces {
        Traces::default()
    }

    /// Nothing, in this build.
    pub fn did(&self, _: &'static str, _: f64, _: &Told) {}

    fn tell(&self, _: &Told) {}

    /// Nothing, in this build.
    pub fn end(&self, _: u8) {}
}

impl Traces {
    /// The spans of the command, which works on this run from here on, on an engine.
    pub fn begun(&self, run: &Run, engine: &str) -> Traces {
        let (id, steps) = (run.id.to_string(), run.job().steps.into());
        self.tell(&[
            ("tiebreak.run.id", About::Text(&id)),
            ("tiebreak.run.steps", About::Count(steps)),
            ("tiebreak.engine", About::Text(engine)),
        ]);
        self.clone()
    }

    /// The result of a command, which ends with it.
    pub fn around(self, result: CommandResult) -> CommandResult {
        self.end(match &result {
            Ok(exit) => *exit as u8,
            Err(failure) => failure.exit as u8,
        });
        result
    }
}
