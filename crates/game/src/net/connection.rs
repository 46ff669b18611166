//! Listening for connections, and a connection that carries one request, bounded in time.

use std::convert::Infallible;
use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Connections that the system queues until they are accepted. A client whose connection finds no room retries after a second.
const BACKLOG: u32 = 1024;

/// A listener at the first socket address that the system grants among those that `listen` resolves to.
pub(super) fn bound(listen: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "it names no address");
    for address in listen.to_socket_addrs()? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // On other systems this would let another program listen at the same address.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Serves one request of a connection, until the connection ends, its time is up, or `end` is notified: another one takes its
/// place. `read` is the time for the headers, `all` for everything.
pub(super) async fn one_request<S>(stream: TcpStream, service: S, read: Duration, all: Duration, end: &Notify)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(read).keep_alive(false).max_buf_size(16 << 10);
    let served = timeout(all, http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = served => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = ?error.to_string(), "a connection failed"),
            Err(_) => tracing::debug!("a connection took too long"),
        },
        () = end.notified() => tracing::debug!("a connection made room for another one"),
    }
}
