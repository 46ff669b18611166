//! The metrics of `tiebreak serve-model`.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::cli::view::traces::{About, Traces};

type Labels = Vec<(&'static str, String)>;

/// The metrics of a served model.
#[derive(Clone)]
pub struct ServingMetrics {
    info: Family<Labels, Gauge>,
    seats: Gauge,
    /// Answers that are being computed.
    pub answering: Gauge,
    /// Requests that wait for a seat.
    pub waiting: Gauge,
    responses: Family<Labels, Counter>,
    answers: Family<Labels, Counter>,
    prompt_tokens: Counter,
    tokens: Counter,
    first_token_seconds: Histogram,
    answer_seconds: Histogram,
    /// The same, a span for each answer.
    traces: Traces,
}

impl ServingMetrics {
    /// Metrics without a value, beside these traces.
    pub fn new(traces: Traces) -> ServingMetrics {
        // A millisecond to four and a half hours.
        let seconds = || Histogram::new(exponential_buckets(1e-3, 4.0, 12));
        ServingMetrics {
            info: Family::default(),
            seats: Gauge::default(),
            answering: Gauge::default(),
            waiting: Gauge::default(),
            responses: Family::default(),
            answers: Family::default(),
            prompt_tokens: Counter::default(),
            tokens: Counter::default(),
            first_token_seconds: seconds(),
            answer_seconds: seconds(),
            traces,
        }
    }

    /// Adds the metrics `model_*` to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("model");
        registry.register("info", "Always 1; the labels name the model", self.info.clone());
        registry.register("seats", "Most answers that are computed together", self.seats.clone());
        registry.register("answering", "Answers that are being computed", self.answering.clone());
        registry.register("waiting", "Requests that wait for a seat", self.waiting.clone());
        registry.register("responses", "Responses by their HTTP status", self.responses.clone());
        registry.register("answers", "Admitted requests by how they ended", self.answers.clone());
        registry.register("prompt_tokens", "Tokens of admitted prompts", self.prompt_tokens.clone());
        registry.register("tokens", "Tokens of answers", self.tokens.clone());
        let (first, answer) = (self.first_token_seconds.clone(), self.answer_seconds.clone());
        registry.register_with_unit(
            "first_token",
            "Time from a request to its first token",
            Unit::Seconds,
            first,
        );
        registry.register_with_unit(
            "answer",
            "Time from a request to its whole answer",
            Unit::Seconds,
            answer,
        );
    }

    /// The server listens.
    pub fn begin(&self, name: &str, digest: &str, engine: &str, seats: u32) {
        let labels = vec![
            ("name", name.to_string()),
            ("model", digest.to_string()),
            ("engine", engine.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_string()),
        ];
        self.info.get_or_create(&labels).set(1);
        self.seats.set(seats.into());
    }

    /// A response with this status is sent. That of a stream is counted as it begins.
    pub fn response(&self, status: u16) {
        self.responses.get_or_create(&vec![("status", status.to_string())]).inc();
    }

    /// A request with so many tokens is admitted.
    pub fn admitted(&self, tokens: usize) {
        self.prompt_tokens.inc_by(tokens as u64);
    }

    /// A token of an answer is there, `since` its request came; the first one is told apart.
    pub fn token(&self, is_first: bool, since: Duration) {
        self.tokens.inc();
        if is_first {
            self.first_token_seconds.observe(since.as_secs_f64());
        }
    }

    /// An admitted request ended: `end` is "whole", or the code of the error.
    pub fn ended(&self, end: &str, since: Duration) {
        self.traces.did("answer", since.as_secs_f64(), &[("tiebreak.end", About::Text(end))]);
        self.answers.get_or_create(&vec![("end", end.to_string())]).inc();
        if end == "whole" {
            self.answer_seconds.observe(since.as_secs_f64());
        }
    }
}
