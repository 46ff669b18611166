//! The option `--metrics`, and the server that answers `GET /metrics`.
//!
//! Anybody can connect, so connections, the time for headers and the time for an answer are bounded. A request changes nothing. At a
//! loopback address no web page reads the metrics: a request has to name the server ([`Hosts`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use super::hosts::Hosts;
use super::listen::address;
use crate::cli::view::report::{Exit, Failure, Printer};
use tiebreak_game::net::connection::{Server, accept, one_request};
use tiebreak_game::net::gate::{Address, Lane};

/// The media type of the OpenMetrics text format, version 1.0.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Simultaneous connections; a new one ends the oldest.
const CONNECTIONS: u32 = 16;
/// The time that a client has to send its headers, and to read the answer.
const READ: Duration = Duration::from_secs(5);

/// Metrics of a command while it works.
#[derive(clap::Args, Clone, Default)]
pub struct MetricsArgs {
    /// Address at which Prometheus reads metrics while the command works, under /metrics.
    ///
    /// Port 0 takes a free one, which the command says. Anybody who reaches the address reads the metrics.
    #[arg(long, value_name = "HOST:PORT", hide_short_help = true, value_parser = address)]
    metrics: Option<String>,
}

impl MetricsArgs {
    /// Refuses the option where there are no metrics, for a reason in words.
    ///
    /// # Errors
    /// If the option is given.
    pub fn refused(&self, why: &str) -> Result<(), Failure> {
        self.metrics.as_ref().map_or(Ok(()), |_| Err(Failure::new(Exit::Usage, why)))
    }

    /// Serves the metrics that `register` adds, if they are asked for.
    ///
    /// # Errors
    /// If the system does not let the command listen at the address.
    pub fn served<M>(
        &self,
        printer: Printer,
        register: impl FnOnce(&mut Registry) -> M,
    ) -> Result<Option<Served<M>>, Failure> {
        let Some(listen) = &self.metrics else { return Ok(None) };
        let mut registry = Registry::with_prefix("tiebreak");
        let metrics = register(&mut registry);
        let (router, hosts) = (router(registry), Hosts::of(listen));
        let server =
            Server::run("metrics", listen, move |listener, stopped| serve(listener, stopped, router, hosts));
        let server = server.map_err(|error| {
            let why = format!("cannot listen at {listen} for --metrics: {error}");
            Failure::new(Exit::Undecided, why).help("give another HOST:PORT; port 0 takes a free one")
        })?;
        printer.say(format!("metrics at http://{}/metrics", server.address()));
        Ok(Some(Served { metrics, server: Some(server) }))
    }
}

/// Metrics that are served until this is dropped.
pub struct Served<M> {
    pub metrics: M,
    /// There until the drop.
    server: Option<Server>,
}

impl<M> Served<M> {
    /// The address of the metrics.
    pub fn address(&self) -> Option<String> {
        self.server.as_ref().map(|server| format!("http://{}/metrics", server.address()))
    }
}

impl<M> Drop for Served<M> {
    fn drop(&mut self) {
        self.server.take().into_iter().for_each(Server::stop);
    }
}

fn router(registry: Registry) -> Router {
    let registry = Arc::new(registry);
    let metrics = move || async move { exposed(&registry) };
    let elsewhere = || async { (StatusCode::NOT_FOUND, "the metrics are at /metrics\n") };
    Router::new().route("/metrics", get(metrics)).fallback(elsewhere)
}

/// All metrics as they are now.
fn exposed(registry: &Registry) -> Response {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The router of a connection that arrived at this address of the machine: it refuses requests with names of others.
fn named(router: Router, hosts: Hosts, arrived: Option<IpAddr>) -> Router {
    router.layer(from_fn(move |request: Request, next: Next| {
        let checked = hosts.check(arrived, &request);
        async move {
            match checked {
                Ok(()) => next.run(request).await,
                Err(why) => (StatusCode::MISDIRECTED_REQUEST, format!("{why}\n")).into_response(),
            }
        }
    }))
}

async fn serve(listener: TcpListener, mut stopped: watch::Receiver<bool>, router: Router, hosts: Hosts) {
    let lane = Lane::new(CONNECTIONS, CONNECTIONS);
    accept(&listener, &mut stopped, |stream, from| {
        let arrived = stream.local_addr().ok().map(|address| address.ip());
        let router = named(router.clone(), hosts.clone(), arrived);
        drop(tokio::spawn(connection(stream, from, router, lane.clone())));
    })
    .await;
}

async fn connection(stream: TcpStream, from: SocketAddr, router: Router, lane: Arc<Lane>) {
    let end = Arc::new(Notify::new());
    let _place = lane.enter(Address::from(from.ip()), end.clone());
    one_request(stream, TowerToHyperService::new(router), READ, 2 * READ, &end).await;
}
