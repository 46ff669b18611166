//! The metrics of a party's server, in the form that Prometheus reads (docs/METRICS.md).
//!
//! They count messages and connections, and hold nothing of a question or an answer but its kind.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use tiebreak_dispute::game::message::Question;

/// Counters by the value of one label.
#[derive(Clone, Default)]
pub struct Counters(Family<[(&'static str, String); 1], Counter>);

impl Counters {
    /// Counts one more of this value.
    pub fn count(&self, label: &'static str, value: impl ToString) {
        self.0.get_or_create(&[(label, value.to_string())]).inc();
    }

    /// Adds the counters `NAME_total` to a registry.
    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.0.clone());
    }
}

/// The metrics of a party.
#[derive(Clone)]
pub struct PartyMetrics {
    pub(crate) responses: Counters,
    questions: Counters,
    answers: Counters,
    refused: Counters,
    pub(crate) repeated: Counter,
    open: Gauge,
    kept: Gauge,
    answer_seconds: Histogram,
    pub(crate) strangers: Gauge,
    pub(crate) referee: Gauge,
}

impl PartyMetrics {
    /// Metrics of a party with so many answers in its journal.
    pub(crate) fn new(kept: usize) -> PartyMetrics {
        let metrics = PartyMetrics {
            responses: Counters::default(),
            questions: Counters::default(),
            answers: Counters::default(),
            refused: Counters::default(),
            repeated: Counter::default(),
            open: Gauge::default(),
            kept: Gauge::default(),
            // A millisecond to four and a half hours: some answers are replays.
            answer_seconds: Histogram::new(exponential_buckets(1e-3, 4.0, 12)),
            strangers: Gauge::default(),
            referee: Gauge::default(),
        };
        metrics.kept(kept);
        metrics
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.questions.register(registry, "questions", "Questions that were taken, by their kind");
        self.answers.register(registry, "answers", "Questions that were taken, by how they ended");
        self.refused.register(registry, "refused", "Messages that were refused, by the reason");
        registry.register("repeated", "Questions over HTTP whose answer was there", self.repeated.clone());
        registry.register("open_questions", "Questions that wait or are being answered", self.open.clone());
        registry.register("kept_answers", "Answers in the journal", self.kept.clone());
        let seconds = self.answer_seconds.clone();
        registry.register_with_unit("answer", "Time to compute an answer", Unit::Seconds, seconds);
        self.responses.register(registry, "responses", "Responses by their HTTP status");
        let help = "Open connections that are not known to be the referee's";
        registry.register("stranger_connections", help, self.strangers.clone());
        registry.register("referee_connections", "Open connections of the referee", self.referee.clone());
    }

    /// A question is taken, and so many are open now.
    pub(crate) fn taken(&self, question: &Question, open: usize) {
        self.questions.count("kind", kind(question));
        self.open.set(open as i64);
    }

    /// So many answers are in the journal now.
    pub(crate) fn kept(&self, answers: usize) {
        self.kept.set(answers as i64);
    }

    /// A question that was taken ended so, after this time, and so many are open now.
    pub(crate) fn ended(&self, end: &'static str, after: Duration, open: usize) {
        self.open.set(open as i64);
        self.answers.count("end", end);
        self.answer_seconds.observe(after.as_secs_f64());
    }

    /// A message is refused for this reason.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.count("reason", reason);
    }
}

/// The kind of a question: its name in messages.
fn kind(question: &Question) -> &'static str {
    match question {
        Question::Commit => "commit",
        Question::Reveal => "reveal",
        Question::Logs { .. } => "logs",
        Question::Supply { .. } => "supply",
        Question::LogBlock { .. } => "log_block",
        Question::Children { .. } => "children",
        Question::Record { .. } => "record",
        Question::Statement { .. } => "statement",
        Question::Pass { .. } => "pass",
        Question::Root { .. } => "root",
        Question::Slice { .. } => "slice",
        Question::Total { .. } => "total",
        Question::Evidence { .. } => "evidence",
        Question::Binding { .. } => "binding",
    }
}
