//! Spans that are sent by OTLP over HTTP, by OpenTelemetry's own crates.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanBuilder, Status, TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter as Exporter};

use super::about::{About, Told};
use crate::cli::view::report::Printer;

/// The most time that the end of a command waits for the collector.
const PATIENCE: Duration = Duration::from_secs(5);

/// The sender of a command's spans.
pub struct Sent {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The command's span, if it has one; else what is around nothing.
    around: Context,
    ended: AtomicBool,
    lost: Lost,
    printer: Printer,
}

/// The first reason why spans were not sent.
type Lost = Arc<Mutex<Option<String>>>;

/// An exporter that remembers its first error: the provider keeps errors to itself.
#[derive(Debug)]
struct Noting {
    exporter: SpanExporter,
    lost: Lost,
}

impl Exporter for Noting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        if let Err(why) = &sent {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert_with(|| why.to_string());
        }
        sent
    }

    fn shutdown_with_timeout(&self, time: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(time)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A variable, if it has a value.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first of OpenTelemetry's variables for traces, or for all signals, that has a value: `(name, value)`.
fn of_otlp(what: &str) -> Option<(String, String)> {
    ["TRACES_", ""].iter().find_map(|signal| {
        let name = format!("OTEL_EXPORTER_OTLP_{signal}{what}");
        variable(&name).map(|value| (name, value))
    })
}

/// The reason why nothing can be sent to what the variables name.
fn refused((endpoint_name, endpoint): &(String, String)) -> Option<String> {
    if let Some((name, protocol)) = of_otlp("PROTOCOL").filter(|(_, protocol)| protocol != "http/protobuf") {
        return Some(format!("{name} is {protocol:?}, and http/protobuf alone is sent"));
    }
    let plain = endpoint.starts_with("http://");
    let why = "and this command sends without TLS: name a collector at http://, such as one on this machine";
    (!plain).then(|| format!("{endpoint_name} is {endpoint:?}, {why}"))
}

impl Sent {
    /// The sender to the collector that the variables name, if they name one. The command's span, if it has one, is a child of the one
    /// in the variable TRACEPARENT.
    pub fn of(printer: Printer, command: Option<&'static str>) -> Option<Sent> {
        let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let others = variable("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter != "otlp");
        let endpoint = of_otlp("ENDPOINT").filter(|_| !is_off && !others)?;
        let problem = |why: &str| printer.problem(&format!("no traces are sent: {why}"));
        if let Some(why) = refused(&endpoint) {
            problem(&why);
            return None;
        }
        let lost = Lost::default();
        let exporter = match SpanExporter::builder().with_http().build() {
            Ok(exporter) => Noting { exporter, lost: lost.clone() },
            Err(why) => {
                problem(&why.to_string());
                return None;
            }
        };
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let mut resource = Resource::builder().with_attribute(version);
        let is_named = |attributes: String| attributes.split(',').any(|one| one.starts_with("service.name="));
        if variable("OTEL_SERVICE_NAME").is_none()
            && !variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(is_named)
        {
            resource = resource.with_service_name("tiebreak");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("tiebreak");
        let around = command.map_or_else(Context::new, |command| {
            let carried = ["traceparent", "tracestate"]
                .into_iter()
                .filter_map(|name| Some((name.to_string(), variable(&name.to_uppercase())?)));
            let parent = TraceContextPropagator::new().extract(&carried.collect::<HashMap<_, _>>());
            let span = SpanBuilder::from_name(command).start_with_context(&tracer, &parent);
            parent.with_span(span)
        });
        Some(Sent { provider, tracer, around, ended: AtomicBool::new(false), lost, printer })
    }

    pub fn did(&self, span: &'static str, seconds: f64, told: &Told) {
        let end = SystemTime::now();
        let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let begin = end.checked_sub(took).unwrap_or(end);
        let builder = SpanBuilder::from_name(span).with_start_time(begin).with_attributes(attributes(told));
        builder.start_with_context(&self.tracer, &self.around).end_with_timestamp(end);
    }

    pub fn tell(&self, told: &Told) {
        self.around.span().set_attributes(attributes(told));
    }

    /// Sends what there is. An exit code above 0 is an error of the command's span.
    pub fn end(&self, exit: u8) {
        if self.ended.swap(true, Relaxed) {
            return;
        }
        self.tell(&[("process.exit.code", About::Count(exit.into()))]);
        if exit != 0 {
            self.around.span().set_status(Status::error(""));
        }
        self.around.span().end();
        let stopped = self.provider.shutdown_with_timeout(PATIENCE).err().map(|why| why.to_string());
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(why) = lost.or(stopped) {
            self.printer.problem(&format!("not all traces were sent: {why}"));
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // A command that nobody ended had an error.
        self.end(1);
    }
}

fn attributes(told: &Told) -> Vec<KeyValue> {
    let value = |about: &About| match about {
        About::Count(count) => Value::I64(i64::try_from(*count).unwrap_or(i64::MAX)),
        About::Real(real) => Value::F64(*real),
        About::Text(text) => Value::String(text.to_string().into()),
    };
    told.iter().map(|(name, about)| KeyValue::new(*name, value(about))).collect()
}
