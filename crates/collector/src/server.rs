//! A collector's server: `POST /record` and `GET /last/SERIAL/NONCE`.
//!
//! Anybody can connect, so everything is bounded: connections, bytes, time, and requests that wait. A record that no key of its chip
//! signed is refused before the database is asked.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tiebreak_game::net::connection::{self, accept, one_request};
use tiebreak_game::net::gate::{Address, Lane};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::admission::{Refusal, attribute};
use crate::message::{Kept, Last, Refused, record};
use crate::metrics::CollectorMetrics;
use crate::roster::Roster;
use crate::store::Store;
use crate::writer::{Unkept, Writer};

/// Connections at a time. All of them may come from one address: a site's chips often share one.
const CONNECTIONS: u32 = 2048;
/// The time for a request's headers, and for a whole request.
const TIMES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));
/// The time between two looks at the register's file.
const LOOKS: Duration = Duration::from_secs(2);

/// A collector that answers.
pub struct Collector {
    server: connection::Server,
    writer: JoinHandle<()>,
}

impl Collector {
    /// The address that it listens at.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// Accepts nothing more, and returns when all that was accepted is stored or refused.
    pub fn stop(self) {
        self.server.stop();
        let _ = self.writer.join();
    }
}

/// Everything that a request needs.
struct Desk {
    key: PrivateKey,
    roster: Arc<Roster>,
    writer: Writer,
    metrics: CollectorMetrics,
}

/// Serves a collector at an address (`127.0.0.1:8702`; port 0 = any) until it is stopped.
///
/// # Errors
/// If the system refuses.
pub fn start(
    listen: &str,
    key: PrivateKey,
    roster: Arc<Roster>,
    store: Box<dyn Store>,
    metrics: CollectorMetrics,
) -> io::Result<Collector> {
    let (writer, thread) = Writer::start(store, roster.clone())?;
    metrics.register_is(&roster);
    let lane = Lane::shown(CONNECTIONS, CONNECTIONS, metrics.connections.clone());
    let counted = metrics.responses.clone();
    let desk = Arc::new(Desk { key, roster: roster.clone(), writer, metrics: metrics.clone() });
    let router = Router::new()
        .route("/record", post(keep))
        .route("/last/{serial}/{nonce}", get(last))
        .layer(DefaultBodyLimit::max(RECORD_BYTES))
        .layer(map_response(move |response: Response| {
            counted.count("status", response.status().as_u16());
            std::future::ready(response)
        }))
        .with_state(desk);
    let server = connection::Server::run("collector", listen, async move |listener, mut stopped| {
        let looking = tokio::spawn(look(roster, metrics));
        accept(&listener, &mut stopped, |stream, from| {
            drop(tokio::spawn(connect(stream, Address::from(from.ip()), router.clone(), lane.clone())));
        })
        .await;
        looking.abort();
    })?;
    Ok(Collector { server, writer: thread })
}

/// Reads the register again whenever its file changes.
async fn look(roster: Arc<Roster>, metrics: CollectorMetrics) {
    loop {
        tokio::time::sleep(LOOKS).await;
        let looking = roster.clone();
        let found = tokio::task::spawn_blocking(move || looking.look()).await;
        match &found {
            Ok(Ok(_)) => metrics.register_is(&roster),
            _ => metrics.register_failed(),
        }
        match found {
            Ok(Ok(0)) => {}
            Ok(Ok(new)) => tracing::info!(new, "the register has new entries"),
            Ok(Err(error)) => tracing::error!(%error, "the register stays as it was read before"),
            Err(error) => tracing::error!(%error, "the register was not read"),
        }
    }
}

async fn connect(stream: TcpStream, from: Address, router: Router, lane: Arc<Lane>) {
    let end = Arc::new(Notify::new());
    let _place = lane.enter(from, end.clone());
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| service.call(request));
    one_request(stream, service, TIMES.0, TIMES.1, &end).await;
}

fn json(status: u16, message: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_string(message) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn unkept(desk: &Desk, error: &Unkept) -> Response {
    desk.metrics.unkept(error);
    match error {
        Unkept::Refused(refusal) => {
            tracing::warn!(reason = refusal.kind(), why = %refusal, "refused");
            json(refusal.status(), &Refused::new(refusal.kind(), &refusal.to_string()))
        }
        Unkept::Failed => json(500, &Refused::new("failed", &error.to_string())),
        Unkept::Busy => json(503, &Refused::new("busy", &error.to_string())),
    }
}

async fn keep(State(desk): State<Arc<Desk>>, body: Result<Bytes, BytesRejection>) -> Response {
    let begin = Instant::now();
    let body = match body {
        Ok(body) => body,
        Err(error) => {
            desk.metrics.malformed();
            let why = format!("the body is no record of {RECORD_BYTES} bytes: {error}");
            return json(error.status().as_u16(), &Refused::new("malformed", &why));
        }
    };
    let signed = record(&body).map_err(Refusal::from);
    let found = match signed.and_then(|signed| attribute(&desk.roster.register(), signed)) {
        Ok(found) => found,
        Err(refusal) => return unkept(&desk, &refusal.into()),
    };
    let signed = found.signed.clone();
    match desk.writer.keep(found).await {
        Ok(()) => {
            desk.metrics.acknowledged(&signed, begin.elapsed());
            json(200, &Kept::sign(&signed, &desk.key))
        }
        Err(error) => {
            if let Unkept::Refused(Refusal::Fork { .. }) = &error {
                // Two records with one counter, both signed, convict the chip: this is the only copy of the second.
                tracing::warn!(record = evidence(&body), "a fork");
            }
            unkept(&desk, &error)
        }
    }
}

fn evidence(body: &[u8]) -> String {
    body.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn last(State(desk): State<Arc<Desk>>, Path((serial, nonce)): Path<(String, String)>) -> Response {
    let asked = Serial::new(&serial).and_then(|serial| Ok((serial, nonce.parse::<Digest>()?)));
    let (serial, nonce) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            let refusal = Refusal::from(Malformed::invalid("request", error.to_string()));
            return unkept(&desk, &refusal.into());
        }
    };
    if desk.roster.register().keys_of(&serial).is_empty() {
        return unkept(&desk, &Refusal::UnknownChip(serial).into());
    }
    match desk.writer.last(serial.clone()).await {
        Ok(record) => json(200, &Last::sign(&nonce, &serial, record.as_ref(), &desk.key)),
        Err(error) => unkept(&desk, &error),
    }
}

#[cfg(test)]
mod tests;
