//! A party over HTTP: `POST /v1/answer` takes a sealed question and gives the sealed answer.
//!
//! Anybody can connect, so everything is bounded: connections, requests a second, bytes, and the time for headers, bodies and
//! answers. Strangers and the referee have separate limits: the referee's pass is checked first, and costs a hash. If an answer
//! takes longer than a request may last, the request gets status 503; the party continues to compute the answer, and the question
//! is asked again.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use super::connection::Server;
use super::connection::{accept, one_request};
use super::desk::{Desk, Refused, Taken};
use super::gate::{Address, Budget, Lane, Place};
use super::pass::{self, question_name};
use tiebreak_record::commit::digest::Digest;

/// Limits on requests.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Requests a second of one address without the referee's pass, on average; twice as many may come at once. All addresses
    /// together have ten times as many.
    pub requests_per_second: u32,
    /// Simultaneous connections that are not known to be the referee's; one address has half of them at most.
    pub connections: u32,
    /// The time that a client has to send its headers, and again its body.
    pub read: Duration,
    /// The time that a request waits for its answer before it is told to ask again.
    pub answer: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        let seconds = Duration::from_secs;
        ServerLimits { requests_per_second: 20, connections: 64, read: seconds(10), answer: seconds(25) }
    }
}

/// The path of questions, with the version of the exchange.
pub const ANSWER: &str = "/v1/answer";
/// The time that a client has to read its answer.
const WRITE: Duration = Duration::from_secs(30);
/// The time that open requests have when the server ends.
const GRACE: Duration = Duration::from_secs(5);
/// Simultaneous connections of the referee.
const REFEREE: u32 = 16;
/// Requests a second for `/v1/health` and `/v1/game`: for one address, and for all.
const INFO: (u32, u32) = (5, 50);
/// The budget of all addresses, as a multiple of one address's.
const ALL: u32 = 10;
/// The interval at which the log reports the number of refused requests.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The state that handlers share.
struct Shared {
    desk: Arc<Desk>,
    limits: ServerLimits,
    /// The budget of requests for answers without a pass.
    questions: Budget,
    info: Budget,
    strangers: Arc<Lane>,
    referee: Arc<Lane>,
    away: TurnedAway,
}

/// The number of requests that were refused since the last line of the log.
struct TurnedAway {
    count: AtomicU64,
    said: Mutex<Instant>,
}

impl TurnedAway {
    /// Counts a refused request. A line for each would let strangers fill the log.
    fn count(&self) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.elapsed() >= LOG_EVERY {
            tracing::warn!(count, "requests were turned away");
            self.count.fetch_sub(count, Ordering::Relaxed);
            *said = Instant::now();
        }
    }
}

/// A connection.
struct Guest {
    address: Address,
    /// Notified when another connection takes this one's place.
    end: Arc<Notify>,
    place: Mutex<Place>,
}

impl Guest {
    /// Moves the connection, which is the referee's, out of the strangers' lane.
    fn is_the_referee(&self, shared: &Shared) {
        let place = shared.referee.enter(self.address, self.end.clone());
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// The name of the question that the referee's pass belongs to.
#[derive(Clone, Copy)]
struct Passed(Digest);

impl Server {
    /// Listens at an address (`127.0.0.1:8700`; port 0 = any) and serves the desk until it is stopped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(listen: &str, desk: Arc<Desk>, limits: ServerLimits) -> io::Result<Server> {
        let rate = limits.requests_per_second;
        let (strangers, of_referee) = (desk.metrics().strangers.clone(), desk.metrics().referee.clone());
        let shared = Arc::new(Shared {
            desk,
            limits,
            questions: Budget::new(rate, rate.saturating_mul(ALL)),
            info: Budget::new(INFO.0, INFO.1),
            strangers: Lane::shown(limits.connections, limits.connections / 2, strangers),
            referee: Lane::shown(REFEREE, REFEREE, of_referee),
            away: TurnedAway { count: AtomicU64::new(0), said: Mutex::new(Instant::now()) },
        });
        Server::run("http", listen, move |listener, stopped| serve(listener, shared, stopped))
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route(ANSWER, post(answer))
        .route("/v1/game", get(game))
        .route("/v1/health", get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(shared.desk.limit() as usize))
        .layer(middleware::from_fn_with_state(shared.clone(), limited))
        .with_state(shared.clone())
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let router = router(&shared);
    accept(&listener, &mut stopped, |stream, from| {
        drop(tokio::spawn(connection(stream, from, router.clone(), shared.clone())));
    })
    .await;
    let begin = Instant::now();
    while !shared.referee.is_empty() && begin.elapsed() < GRACE {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Serves a connection until it ends, its time is up, or another one takes its place.
async fn connection(stream: TcpStream, from: SocketAddr, router: Router, shared: Arc<Shared>) {
    let (address, end) = (Address::from(from.ip()), Arc::new(Notify::new()));
    let place = Mutex::new(shared.strangers.enter(address, end.clone()));
    let guest = Arc::new(Guest { address, end: end.clone(), place });
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(guest.clone());
        service.call(request)
    });
    let ServerLimits { read, answer, .. } = shared.limits;
    // A connection carries one question, so that nobody holds a connection without a question.
    one_request(stream, service, read, read + read + answer + WRITE, &end).await;
}

/// Recognises the referee by its pass, limits all others by their budgets, and logs requests.
async fn limited(
    State(shared): State<Arc<Shared>>,
    Extension(guest): Extension<Arc<Guest>>,
    mut request: Request,
    next: Next,
) -> Response {
    let begin = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let pass = request.headers().get(pass::HEADER).filter(|_| path == ANSWER);
    let passed = pass.map(|pass| shared.desk.pass().lets_in(pass.as_bytes()));
    let budget =
        if matches!(path.as_str(), "/v1/health" | "/v1/game") { &shared.info } else { &shared.questions };
    let response = match passed {
        Some(Some(question)) => {
            guest.is_the_referee(&shared);
            request.extensions_mut().insert(Passed(question));
            next.run(request).await
        }
        _ if !budget.take(guest.address, begin) => {
            refusal(StatusCode::TOO_MANY_REQUESTS, "too many requests: ask again in a second")
        }
        Some(None) => refusal(StatusCode::FORBIDDEN, "the pass is not one of this game's referee"),
        None => next.run(request).await,
    };
    let (milliseconds, status) = (begin.elapsed().as_millis() as u64, response.status());
    shared.desk.metrics().responses.count("status", status.as_u16());
    // Paths are foreign text: the Debug format escapes control characters.
    if status.is_client_error() {
        shared.away.count();
        tracing::debug!(%method, ?path, status = status.as_u16(), milliseconds, "request");
    } else if path == ANSWER {
        tracing::info!(%method, ?path, status = status.as_u16(), milliseconds, "request");
    }
    response
}

/// An error as plain text; a temporary one says when to ask again.
fn refusal(status: StatusCode, why: &str) -> Response {
    let text = format!("{why}\n");
    let again = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    match again {
        true => (status, [(header::RETRY_AFTER, "1")], text).into_response(),
        false => (status, text).into_response(),
    }
}

async fn game(State(shared): State<Arc<Shared>>) -> String {
    format!("{}\n", shared.desk.game())
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    Extension(guest): Extension<Arc<Guest>>,
    request: Request,
) -> Response {
    let limit = shared.desk.limit();
    if request.body().size_hint().lower() > limit {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, &format!("a question has at most {limit} bytes"));
    }
    let passed = request.extensions().get::<Passed>().copied();
    let body = match timeout(shared.limits.read, Bytes::from_request(request, &())).await {
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the question came too slowly"),
        Ok(Err(rejection)) => return refusal(rejection.status(), &rejection.body_text()),
        Ok(Ok(body)) => body,
    };
    if passed.is_some_and(|Passed(question)| question != question_name(&body)) {
        return refusal(StatusCode::BAD_REQUEST, "the pass is of another question");
    }
    let asked = match shared.desk.check(&body) {
        Ok(asked) => asked,
        Err(why) => return refused(&why),
    };
    if passed.is_none() {
        guest.is_the_referee(&shared);
    }
    tracing::info!(turn = asked.turn, question = ?asked.question, "question");
    let told = match shared.desk.take(&asked, body.into()) {
        Err(why) => return refused(&why),
        Ok(Taken::Known(answer)) => {
            shared.desk.metrics().repeated.inc();
            return given(&answer);
        }
        Ok(Taken::Later(told)) => told,
    };
    match timeout(shared.limits.answer, told).await {
        Err(_) => refusal(StatusCode::SERVICE_UNAVAILABLE, "the answer is being computed: ask again"),
        Ok(Err(_)) => refused(&Refused::Closed),
        Ok(Ok(Err(why))) => refused(&why),
        Ok(Ok(Ok(answer))) => given(&answer),
    }
}

fn given(answer: &[u8]) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer.to_vec()).into_response()
}

fn refused(why: &Refused) -> Response {
    let status = match why {
        Refused::Malformed(_) => StatusCode::BAD_REQUEST,
        Refused::Foreign(_) => StatusCode::FORBIDDEN,
        Refused::Busy | Refused::Closed => StatusCode::SERVICE_UNAVAILABLE,
        Refused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    refusal(status, &why.to_string())
}
