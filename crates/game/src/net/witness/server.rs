//! A witness's server: `POST /add-checkpoint`.
//!
//! Anybody can connect, so everything is bounded: connections, requests a second of one address, bytes and time. A request whose
//! checkpoint no known key signed reads no file.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Keeper;
use super::metrics::WitnessMetrics;
use crate::net::connection::{Server, accept, one_request};
use crate::net::gate::{Address, Budget, Lane};
use tiebreak_monitor::witness::policy::Refusal;
use tiebreak_monitor::witness::request::{AddCheckpoint, REQUEST_MAX, SIZE_TYPE};

/// Connections at a time: all, and those of one address.
const CONNECTIONS: (u32, u32) = (64, 32);
/// Requests a second: of one address, and of all.
const REQUESTS: (u32, u32) = (20, 200);
/// The time for a request's headers, and for a whole request.
const TIMES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30));

/// The limits on strangers.
struct Gate {
    lane: Arc<Lane>,
    budget: Budget,
    metrics: WitnessMetrics,
}

/// Serves a witness at an address (`127.0.0.1:8701`; port 0 = any) until the server is stopped. A checkpoint that is being written
/// then is whole, or as before.
///
/// # Errors
/// If the system refuses.
pub fn start(listen: &str, keeper: Arc<Keeper>) -> io::Result<Server> {
    let metrics = keeper.metrics().clone();
    let router = Router::new()
        .route("/add-checkpoint", post(add))
        .layer(DefaultBodyLimit::max(REQUEST_MAX))
        .with_state(keeper);
    let (all, each) = CONNECTIONS;
    let lane = Lane::shown(all, each, metrics.connections.clone());
    let gate = Arc::new(Gate { lane, budget: Budget::new(REQUESTS.0, REQUESTS.1), metrics });
    Server::run("witness", listen, async move |listener, mut stopped| {
        accept(&listener, &mut stopped, |stream, from| {
            drop(tokio::spawn(connection(stream, Address::from(from.ip()), router.clone(), gate.clone())));
        })
        .await;
    })
}

async fn connection(stream: TcpStream, from: Address, router: Router, gate: Arc<Gate>) {
    let end = Arc::new(Notify::new());
    let _place = gate.lane.enter(from, end.clone());
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let admitted = gate.budget.take(from, Instant::now());
        let (answered, gate) = (service.call(request), gate.clone());
        async move {
            let response = match admitted {
                true => answered.await?,
                false => text(StatusCode::TOO_MANY_REQUESTS, "too many requests: ask again in a second"),
            };
            gate.metrics.responses.count("status", response.status().as_u16());
            Ok(response)
        }
    });
    one_request(stream, service, TIMES.0, TIMES.1, &end).await;
}

fn text(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}

async fn add(State(keeper): State<Arc<Keeper>>, body: Bytes) -> Response {
    let request = std::str::from_utf8(&body)
        .map_err(|error| format!("the request is not UTF-8 from byte {} on", error.valid_up_to()));
    let request = match request.and_then(|body| AddCheckpoint::read(body).map_err(|error| error.to_string()))
    {
        Ok(request) => request,
        Err(why) => {
            keeper.metrics().malformed();
            return text(StatusCode::BAD_REQUEST, &why);
        }
    };
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "this witness's clock is before 1970");
    };
    let (origin, size) = (request.checkpoint.origin.clone(), request.checkpoint.size);
    let decided = tokio::task::spawn_blocking(move || keeper.add(&request, now.as_secs())).await;
    match decided.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(Ok(lines)) => {
            tracing::info!(?origin, size, "cosigned");
            lines.into_response()
        }
        Ok(Err(refusal)) => {
            tracing::info!(?origin, size, status = refusal.status(), "refused");
            refused(&refusal)
        }
        Err(error) => {
            tracing::error!(%error, "the checkpoint was not kept, so it is not cosigned");
            text(StatusCode::INTERNAL_SERVER_ERROR, "this witness cannot keep the checkpoint")
        }
    }
}

fn refused(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match refusal {
        Refusal::OtherSize(size) => {
            (status, [(header::CONTENT_TYPE, SIZE_TYPE)], format!("{size}\n")).into_response()
        }
        other => text(status, &other.to_string()),
    }
}
