//! What the metrics of a server say of itself: its name and version. The others are those of its crate.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Registers `SERVER_info` with these labels and the version, and returns the registry for the others.
pub fn labelled<'a>(
    registry: &'a mut Registry,
    server: &'static str,
    labels: &[(&'static str, String)],
) -> &'a mut Registry {
    let registry = registry.sub_registry_with_prefix(server);
    let info: Family<Vec<(&'static str, String)>, Gauge> = Family::default();
    let version = ("version", env!("CARGO_PKG_VERSION").to_string());
    info.get_or_create(&[labels, &[version]].concat()).set(1);
    registry.register("info", "Always 1; the labels name the server", info);
    registry
}
