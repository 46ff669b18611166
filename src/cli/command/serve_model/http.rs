//! The server: `POST /v1/completions`, `POST /v1/chat/completions`, `GET /v1/models` and `GET /healthz`.
//!
//! Anybody who reaches the address can ask, so everything is bounded: connections, bytes, tokens, requests that wait, and time. A
//! connection without an admitted request has a place among the others of its kind, and makes room when they are too many. At a
//! loopback address no web page reads an answer: a request has to name the server ([`Hosts`]).

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::queue::{Admitted, Ask, Queue, late};
use super::stream::Coming;
use super::tokenizing::Shared;
use super::wire::{Head, Kind, Prompt, Refusal, asked};
use crate::cli::args::hosts::Hosts;
use crate::cli::args::random::random;
use crate::cli::view::chats::Chats;
use tiebreak_game::net::connection::{Server, accept, one_request};
use tiebreak_game::net::gate::{Address, Lane, Place};

/// The most bytes of a request's body, and of the text that a chat template makes of it.
const BODY: usize = 1 << 20;
/// Connections at a time whose request is not admitted, or whose answer is whole. All may come from one address: that of a proxy.
const CONNECTIONS: u32 = 256;
/// The time that a client has to send its headers, and again its body.
const READ: Duration = Duration::from_secs(10);
/// The time that a client has to read the end of its answer.
const WRITE: Duration = Duration::from_secs(30);
/// The time that open connections have when the server ends.
const GRACE: Duration = Duration::from_secs(2);

/// Everything that a request needs.
pub struct Desk {
    pub alphabet: Shared,
    /// The chat template, which renders one chat at a time, or why there is none.
    pub chats: Result<Arc<tokio::sync::Mutex<Chats>>, String>,
    /// The ids of the model are below this.
    pub classes: u32,
    /// The model's name.
    pub name: String,
    /// The digests by which receipts name the model, for `/v1/models`.
    pub digests: Value,
    /// The most tokens of a prompt and its answer.
    pub most: usize,
    /// The time for an answer, waiting included.
    pub time: Duration,
    pub queue: Arc<Queue>,
}

/// A connection.
struct Guest {
    address: Address,
    /// The address of this machine at which it arrived, and the server's names.
    arrived: (Option<IpAddr>, Hosts),
    /// Notified when another connection takes this one's place.
    end: Arc<Notify>,
    place: Mutex<Option<Place>>,
    lane: Arc<Lane>,
}

impl Guest {
    fn put(&self, place: Option<Place>) {
        let before =
            std::mem::replace(&mut *self.place.lock().unwrap_or_else(PoisonError::into_inner), place);
        drop(before);
    }

    /// Takes a place among the connections without an admitted request.
    fn enter(&self) {
        self.put(Some(self.lane.enter(self.address, self.end.clone())));
    }
}

/// Serves a model at an address until it is stopped.
///
/// # Errors
/// If the system refuses.
pub fn start(listen: &str, desk: Desk) -> std::io::Result<Server> {
    let (time, metrics) = (desk.time, desk.queue.metrics.clone());
    let counted = move |response: Response| {
        metrics.response(response.status().as_u16());
        std::future::ready(response)
    };
    let router = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/v1/chat/completions", post(chat_completions))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY))
        .layer(from_fn(named))
        .layer(map_response(counted))
        .with_state(Arc::new(desk));
    let hosts = Hosts::of(listen);
    Server::run("model", listen, move |listener, stopped| serve(listener, stopped, router, (hosts, time)))
}

async fn serve(
    listener: TcpListener,
    mut stopped: watch::Receiver<bool>,
    router: Router,
    (hosts, time): (Hosts, Duration),
) {
    let (lane, open) = (Lane::new(CONNECTIONS, CONNECTIONS), Arc::new(()));
    accept(&listener, &mut stopped, |stream, from| {
        let (address, end) = (Address::from(from.ip()), Arc::new(Notify::new()));
        let arrived = (stream.local_addr().ok().map(|address| address.ip()), hosts.clone());
        let guest = Guest { address, arrived, end, place: Mutex::new(None), lane: lane.clone() };
        let served = connection(stream, guest, router.clone(), time);
        let open = open.clone();
        drop(tokio::spawn(async move {
            served.await;
            drop(open);
        }));
    })
    .await;
    let begin = Instant::now();
    while Arc::strong_count(&open) > 1 && begin.elapsed() < GRACE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Serves a connection until it ends, its time is up, or another one takes its place.
async fn connection(stream: TcpStream, guest: Guest, router: Router, time: Duration) {
    let (end, guest) = (guest.end.clone(), Arc::new(guest));
    guest.enter();
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(guest.clone());
        service.call(request)
    });
    one_request(stream, service, READ, READ + READ + time + WRITE, &end).await;
}

/// Refuses a request that has a name of others.
async fn named(
    Extension(guest): Extension<Arc<Guest>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let (arrived, hosts) = &guest.arrived;
    hosts.check(*arrived, &request).map_err(|why| Refusal::new(421, "unknown_host", why))?;
    Ok(next.run(request).await)
}

fn answered(status: u16, message: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], message.to_string()).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = answered(self.status, &self.json());
        if matches!(self.status, 429 | 503) {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

/// The paths for errors.
const SERVED: &str =
    "POST /v1/completions, POST /v1/chat/completions, GET /v1/models and GET /healthz are served";

async fn no_path() -> Refusal {
    Refusal::new(404, "unsupported_path", format!("there is no such path: {SERVED}"))
}

async fn no_method() -> Refusal {
    Refusal::new(405, "unsupported_method", format!("this path has another method: {SERVED}"))
}

async fn models(State(desk): State<Arc<Desk>>) -> Response {
    let model = json!({
        "id": desk.name, "object": "model", "created": 0, "owned_by": "tiebreak", "tiebreak": desk.digests,
    });
    answered(200, &json!({ "object": "list", "data": [model] }))
}

async fn completions(
    State(desk): State<Arc<Desk>>,
    Extension(guest): Extension<Arc<Guest>>,
    request: Request,
) -> Result<Response, Refusal> {
    answer(&desk, guest, request, Kind::Completion).await
}

async fn chat_completions(
    State(desk): State<Arc<Desk>>,
    Extension(guest): Extension<Arc<Guest>>,
    request: Request,
) -> Result<Response, Refusal> {
    if let Err(why) = &desk.chats {
        return Err(no_chats(why));
    }
    answer(&desk, guest, request, Kind::Chat).await
}

fn no_chats(why: &str) -> Refusal {
    let why = format!("chats are not served: {why}; POST /v1/completions takes texts");
    Refusal::new(404, "unsupported_path", why)
}

/// Answers a request.
async fn answer(desk: &Desk, guest: Arc<Guest>, request: Request, kind: Kind) -> Result<Response, Refusal> {
    let body = read(request).await?;
    let mut asked = asked(&body, &desk.name, kind)?;
    // A prompt that waits for the tokenizer is in memory once.
    drop(body);
    // No more chats wait for the template, and no more texts for the tokenizer, than requests are admitted.
    let (begin, admitted) = (Instant::now(), admitted(desk, guest)?);
    let field = asked.prompt.field();
    let ids = match std::mem::replace(&mut asked.prompt, Prompt::Ids(Vec::new())) {
        Prompt::Ids(ids) => ids,
        Prompt::Text(text) => ids(desk, (field, begin), text).await?,
        Prompt::Messages(messages) => {
            let text = rendered(desk, messages).await?;
            ids(desk, (field, begin), text).await?
        }
    };
    let (prompt, length) = fitted(desk, (field, asked.length), ids)?;
    let number =
        u128::from_le_bytes(random().map_err(|failure| Refusal::new(500, "server_error", failure.message))?);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let name = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
    let head = Head { kind, id: format!("{name}-{number:032x}"), created, model: desk.name.clone() };
    let wanted = (prompt.clone(), length, asked.sampling);
    let time = desk.time.saturating_sub(begin.elapsed());
    let (ask, events) = Ask::new(head.id.clone(), wanted, time, (admitted, desk.queue.metrics.clone()));
    desk.queue.push(ask);
    let coming = Coming {
        alphabet: desk.alphabet.clone(),
        head,
        events,
        given: prompt.len(),
        from: prompt.len(),
        ids: prompt,
        sent: String::new(),
        usage: asked.usage,
        begun: false,
        over: false,
    };
    if !asked.stream {
        return Ok(answered(200, &coming.whole().await?));
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(coming.streamed())).into_response())
}

/// Lets a request wait for its answer, unless as many do as may.
fn admitted(desk: &Desk, guest: Arc<Guest>) -> Result<Admitted, Refusal> {
    let at = guest.clone();
    let Some(admitted) = desk.queue.admit(Box::new(move || at.enter())) else {
        let why = "as many requests are answered and wait as this server takes: ask again in a second";
        return Err(Refusal::new(429, "busy", why));
    };
    guest.put(None);
    Ok(admitted)
}

/// The text that the chat template makes of messages. Other requests are served meanwhile.
async fn rendered(desk: &Desk, messages: String) -> Result<String, Refusal> {
    let chats = desk.chats.clone().map_err(|why| no_chats(&why))?;
    // A client that leaves gives up its turn. A rendering that is begun ends within the template's time.
    let mut chats = timeout(desk.time, chats.lock_owned()).await.map_err(|_| late())?;
    let failed = |why: String| Refusal::new(500, "server_error", why);
    let wrong = |why: String| Refusal::of("messages", "invalid_value", why);
    let rendering = spawn_blocking(move || {
        chats.ready().map_err(failed)?;
        let messages: Value = serde_json::from_str(&messages).map_err(|why| wrong(why.to_string()))?;
        chats.prompt(&messages, BODY).map_err(wrong)
    });
    rendering.await.map_err(|why| failed(why.to_string()))?
}

/// The body of a request, within its bounds.
async fn read(request: Request) -> Result<Bytes, Refusal> {
    // A page of a stranger's site cannot send this type to an address of its visitor without being allowed to.
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let why = "the body must be JSON: send the header `Content-Type: application/json`";
        return Err(Refusal::new(415, "unsupported_type", why));
    }
    let long = || Refusal::new(413, "too_long", format!("a body has at most {BODY} bytes"));
    if request.body().size_hint().lower() > BODY as u64 {
        return Err(long());
    }
    match timeout(READ, Bytes::from_request(request, &())).await {
        Err(_) => Err(Refusal::new(408, "timeout", "the body came too slowly")),
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(long()),
        Ok(Err(rejection)) => {
            Err(Refusal::new(rejection.status().as_u16(), "no_body", rejection.body_text()))
        }
        Ok(Ok(body)) => Ok(body),
    }
}

/// The ids of a prompt's text. Other requests are served meanwhile.
async fn ids(
    desk: &Desk,
    (field, begin): (&'static str, Instant),
    text: String,
) -> Result<Vec<u32>, Refusal> {
    let wrong = |why: String| Refusal::of(field, "invalid_value", why);
    let time = desk.time.saturating_sub(begin.elapsed());
    let ids = timeout(time, desk.alphabet.ids(text)).await.map_err(|_| late())?;
    ids.map_err(|failure| wrong(failure.message))
}

/// The ids of a prompt, if they are the model's and leave room for the answer; and the most tokens of that.
fn fitted(
    desk: &Desk,
    (field, length): (&'static str, Option<(u32, &'static str)>),
    ids: Vec<u32>,
) -> Result<(Vec<u32>, u32), Refusal> {
    let wrong = |why: String| Refusal::of(field, "invalid_value", why);
    let (classes, prompt, most) = (desk.classes, ids.len(), desk.most);
    match ids.iter().max() {
        None => return Err(wrong("the prompt has no token: it must have at least one".into())),
        Some(id) if *id >= classes => {
            return Err(wrong(format!(
                "the prompt has a token {id}, and those of the model are below {classes}"
            )));
        }
        Some(_) => {}
    }
    let long = |name: &str, why: String| Err(Refusal::of(name, "context_length_exceeded", why));
    match length {
        Some((length, name)) if prompt.saturating_add(length as usize) > most => {
            let why = format!(
                "the prompt has {prompt} tokens and {name} is {length}: together they must be at most {most}"
            );
            long(name, why)
        }
        Some((length, _)) => Ok((ids, length)),
        None if prompt >= most => long(
            field,
            format!("the prompt has {prompt} tokens; with its answer it must have at most {most}"),
        ),
        // `most` is the most tokens of a receipt, or less.
        None => Ok((ids, (most - prompt) as u32)),
    }
}
