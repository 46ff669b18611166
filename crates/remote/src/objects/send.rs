//! The client under object_store: it sends what that crate has signed, and hands the answers over as they came.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::Body as _;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use ureq::http::{Method, Request, Response};

use super::said::{Kind, said};
use crate::answer::{self, Failed, wrong};
use crate::ask::{NoAnswer, agent};
use crate::patience::Patience;

/// What a call of object_store on this thread gives besides its own result.
#[derive(Default)]
struct Call {
    /// The time of a read.
    time: Duration,
    /// The answer to a read, whatever its status, or the reason why a write failed.
    answer: Option<Result<Response<ureq::Body>, NoAnswer>>,
}

thread_local! {
    // object_store's interface has no place for these, and all of a call happens on the thread that waits for it.
    static CALL: RefCell<Call> = RefCell::default();
}

/// The answer that came to a request, as a server gave it.
pub(super) type Came = Option<Result<Response<ureq::Body>, NoAnswer>>;

/// Waits for a call of object_store, and returns its result with the answer that came.
pub(super) fn waited<T>(time: Duration, call: impl Future<Output = T>) -> (T, Came) {
    CALL.set(Call { time, answer: None });
    let result = pollster::block_on(call);
    (result, CALL.take().answer)
}

/// Makes the clients of a store.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) kind: Kind,
    pub(super) patience: Patience,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain =
            options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let agent = agent(&self.patience);
        Ok(HttpClient::new(Client { agent, plain, kind: self.kind, patience: self.patience }))
    }
}

#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    /// True if requests may go without TLS.
    plain: bool,
    kind: Kind,
    patience: Patience,
}

/// The bytes of a request.
async fn contents(mut body: HttpRequestBody) -> Result<Vec<u8>, HttpError> {
    let mut all = Vec::with_capacity(body.content_length());
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(piece) = frame?.into_data() {
            all.extend_from_slice(&piece);
        }
    }
    Ok(all)
}

/// Leaves a failure for whoever waits, and returns the error for object_store, which nobody shows.
fn left(why: NoAnswer) -> HttpError {
    CALL.with_borrow_mut(|call| call.answer = Some(Err(why)));
    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other("the request failed"))
}

impl Client {
    /// Sends a request once.
    fn send(
        &self,
        request: Request<()>,
        body: Option<&[u8]>,
        time: Duration,
    ) -> Result<Response<ureq::Body>, NoAnswer> {
        let (parts, ()) = request.into_parts();
        let sent = match body {
            Some(body) => {
                let request = Request::from_parts(parts, body);
                self.agent.run(self.agent.configure_request(request).timeout_global(Some(time)).build())
            }
            None => {
                let request = Request::from_parts(parts, ());
                self.agent.run(self.agent.configure_request(request).timeout_global(Some(time)).build())
            }
        };
        sent.map_err(NoAnswer::Broken)
    }

    /// Sends a write until somebody answers: the same bytes under the same condition, so a second time changes nothing.
    fn written(&self, request: &Request<()>, body: &[u8]) -> Result<HttpResponse, Failed> {
        let time = self.patience.time(body.len() as u64);
        for tried in 0.. {
            let sent = self.send(request.clone(), Some(body), time);
            let why = match sent {
                Ok(response) => match self.kind.hopeless(response.status().as_u16()) {
                    true => return self.handed(response),
                    false => format!("the store answers with status {}", response.status().as_u16()),
                },
                Err(NoAnswer::Broken(error)) => match answer::no_answer(&error, false) {
                    Failed::Again(why) | Failed::Gone(why) => why,
                    failed => return Err(failed),
                },
                Err(NoAnswer::Failed(failed)) => return Err(failed),
            };
            let Some(pause) = self.patience.pause_after(tried) else {
                let why = format!("{} tries failed, the last one so: {why}", tried + 1);
                return Err(wrong(std::io::ErrorKind::TimedOut, why));
            };
            thread::sleep(pause);
        }
        unreachable!("the loop has no end")
    }

    /// The answer to a write, for object_store; why it failed is left for whoever waits.
    fn handed(&self, response: Response<ureq::Body>) -> Result<HttpResponse, Failed> {
        let (parts, body) = response.into_parts();
        let text = answer::short_text(body);
        if let Some(failed) = said(self.kind, parts.status.as_u16(), &parts.headers, &text) {
            CALL.with_borrow_mut(|call| call.answer = Some(Err(NoAnswer::Failed(failed))));
        }
        Ok(Response::from_parts(parts, Bytes::from(text).into()))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        if let Err(why) = self.kind.allowed(&parts.uri, self.plain) {
            return Err(left(NoAnswer::Failed(wrong(std::io::ErrorKind::InvalidInput, why))));
        }
        if parts.method != Method::GET && parts.method != Method::HEAD {
            // The client counts the bytes itself.
            parts.headers.remove("content-length");
            let body = contents(body).await?;
            let request = Request::from_parts(parts, ());
            return self.written(&request, &body).map_err(|failed| left(NoAnswer::Failed(failed)));
        }
        parts.headers.insert("accept-encoding", ureq::http::HeaderValue::from_static("identity"));
        let time = CALL.with_borrow(|call| call.time);
        let response = self.send(Request::from_parts(parts, ()), None, time).map_err(left)?;
        let mut copy = Response::new(Bytes::new().into());
        *copy.status_mut() = response.status();
        *copy.headers_mut() = response.headers().clone();
        CALL.with_borrow_mut(|call| call.answer = Some(Ok(response)));
        Ok(copy)
    }
}
