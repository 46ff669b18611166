//! A server in a thread of its own, its connections, and a connection that carries one request, bounded in time.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Connections that the system queues until they are accepted. A client whose connection finds no room retries after a second.
const BACKLOG: u32 = 1024;

/// A server that runs in a thread of its own.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens at an address, and runs `serve` in a thread of this name until the server is stopped.
    ///
    /// # Errors
    /// If the system refuses.
    #[doc(hidden)] // for the layers above
    pub fn run<F: Future<Output = ()>>(
        name: &str,
        listen: &str,
        serve: impl FnOnce(TcpListener, watch::Receiver<bool>) -> F + Send + 'static,
    ) -> io::Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let listener = bound(listen)?;
        drop(inside);
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(serve(listener, stopped));
        })?;
        Ok(Server { address, stop, thread })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, and waits for the server's end.
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

/// Gives each connection to `each`, until the server is stopped.
pub async fn accept(
    listener: &TcpListener,
    stopped: &mut watch::Receiver<bool>,
    mut each: impl FnMut(TcpStream, SocketAddr),
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        match accepted {
            Ok((stream, from)) => each(stream, from),
            Err(error) => {
                // For example too many open files: others may be closed.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A listener at the first socket address that the system grants among those that `listen` resolves to.
fn bound(listen: &str) -> io::Result<TcpListener> {
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
pub async fn one_request<S>(stream: TcpStream, service: S, read: Duration, all: Duration, end: &Notify)
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
