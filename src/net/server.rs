//! A party over HTTP: `POST /v1/answer` takes a sealed question and gives the sealed answer.
//!
//! Anybody can connect, so everything is bounded: connections, requests a second, bytes, and the time for headers, bodies and answers. A question
//! whose answer takes longer than a request may last gets status 503, goes on being answered, and is asked again.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::desk::{Desk, Refused, Taken};

/// What requests may take.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Requests a second, on average; twice as many may come at once.
    pub requests_per_second: u32,
    /// Connections at a time.
    pub connections: u32,
    /// How long a client may take to send its headers, and again its body.
    pub read: Duration,
    /// How long a request waits for its answer before it is told to ask again.
    pub answer: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        let seconds = Duration::from_secs;
        ServerLimits { requests_per_second: 20, connections: 64, read: seconds(10), answer: seconds(25) }
    }
}

/// How long a client may take to read its answer.
const WRITE: Duration = Duration::from_secs(30);
/// How long requests may go on when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// A server that runs in a thread of its own.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// A bucket of requests: it fills with time, and each request takes one.
struct Bucket {
    rate: f64,
    left: Mutex<(f64, Instant)>,
}

impl Bucket {
    fn new(rate: u32) -> Bucket {
        let rate = f64::from(rate.max(1));
        Bucket { rate, left: Mutex::new((2.0 * rate, Instant::now())) }
    }

    fn take(&self, now: Instant) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(left.1).as_secs_f64();
        *left = ((left.0 + since * self.rate).min(2.0 * self.rate), now);
        if left.0 < 1.0 {
            return false;
        }
        left.0 -= 1.0;
        true
    }
}

/// What handlers share.
struct Shared {
    desk: Arc<Desk>,
    bucket: Bucket,
    limits: ServerLimits,
}

impl Server {
    /// Listens at an address (`127.0.0.1:8700`; port 0 = any) and serves the desk until it is stopped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(listen: &str, desk: Arc<Desk>, limits: ServerLimits) -> io::Result<Server> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared { desk, bucket: Bucket::new(limits.requests_per_second), limits });
        let thread = std::thread::Builder::new().name("http".into()).spawn(move || {
            runtime.block_on(serve(listener, shared, stopped));
        })?;
        Ok(Server { address, stop, thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and waits a few seconds for the requests that are there.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/answer", post(answer))
        .route("/v1/game", get(game))
        .route("/v1/health", get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(shared.desk.limit() as usize))
        .layer(middleware::from_fn_with_state(shared.clone(), limited))
        .with_state(shared.clone())
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the listener cannot be used"),
    };
    let ServerLimits { connections, read, answer, .. } = shared.limits;
    let router = router(&shared);
    let slots = Arc::new(Semaphore::new(connections as usize));
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            next = next => next,
            _ = stopped.changed() => break,
        };
        let (Ok(slot), stream) = (slot, accepted) else { break };
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Such as too many open files: others may close theirs.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            // A question is a connection, so that nobody holds one without a question.
            http.timer(TokioTimer::new()).header_read_timeout(read).keep_alive(false).max_buf_size(16 << 10);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let all = read + read + answer + WRITE;
            match timeout(all, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(error = ?error.to_string(), "a connection failed"),
                Err(_) => tracing::debug!("a connection took too long"),
            }
            drop(slot);
        });
    }
    let _ = timeout(GRACE, slots.acquire_many(connections)).await;
}

/// Holds requests to their rate, and logs them.
async fn limited(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let response = if shared.bucket.take(begin) {
        next.run(request).await
    } else {
        refusal(StatusCode::TOO_MANY_REQUESTS, "too many requests: ask again in a second")
    };
    let milliseconds = begin.elapsed().as_millis() as u64;
    // Paths are foreign text: as Debug, control characters are escaped.
    tracing::info!(%method, ?path, status = response.status().as_u16(), milliseconds, "request");
    response
}

/// An error as plain text; of those that pass, it says when to ask again.
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

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let limit = shared.desk.limit();
    if request.body().size_hint().lower() > limit {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, &format!("a question has at most {limit} bytes"));
    }
    let body = match timeout(shared.limits.read, Bytes::from_request(request, &())).await {
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the question came too slowly"),
        Ok(Err(rejection)) => return refusal(rejection.status(), &rejection.body_text()),
        Ok(Ok(body)) => body,
    };
    let asked = match shared.desk.check(&body) {
        Ok(asked) => asked,
        Err(why) => return refused(&why),
    };
    tracing::info!(turn = asked.turn, question = ?asked.question, "question");
    let told = match shared.desk.take(body.into()) {
        Err(why) => return refused(&why),
        Ok(Taken::Known(answer)) => return given(&answer),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_twice_that_at_once() {
        let (bucket, begin) = (Bucket::new(5), Instant::now());
        let taken = |at: u64| {
            let now = begin + Duration::from_millis(at);
            (0..100).filter(|_| bucket.take(now)).count()
        };
        assert_eq!([taken(0), taken(100), taken(1100), taken(60_000)], [10, 0, 5, 10]);
    }
}
