//! The names by which a server at a loopback address may be asked.
//!
//! A page of a stranger's site may have its browser ask the machine that it runs on, if the site's owner lets the site's name mean
//! 127.0.0.1 ("DNS rebinding"): the browser then takes the answers for the site's own, and shows them to the page. The request's
//! `Host` has the site's name.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{Request, header};

/// The names of a server.
#[derive(Clone)]
pub struct Hosts {
    /// The host of its HOST:PORT.
    given: Arc<str>,
}

impl Hosts {
    /// The names of a server that listens at `HOST:PORT`.
    pub fn of(listen: &str) -> Hosts {
        Hosts { given: listen.rsplit_once(':').map_or(listen, |(host, _)| host).into() }
    }

    /// Checks the names in a request whose connection arrived at this address of the machine, if that is known. An address that
    /// other machines reach may have any name. A request without a name is no browser's.
    ///
    /// # Errors
    /// If a name is neither the server's nor an IP address, in words.
    pub fn check<B>(&self, arrived: Option<IpAddr>, request: &Request<B>) -> Result<(), String> {
        if arrived.is_some_and(|address| !address.to_canonical().is_loopback()) {
            return Ok(());
        }
        let named = |host: &header::HeaderValue| {
            let host = Authority::try_from(host.as_bytes());
            host.is_ok_and(|host| self.has(host.host()))
        };
        let is_own = request.uri().host().is_none_or(|host| self.has(host))
            && request.headers().get_all(header::HOST).iter().all(named);
        if is_own { Ok(()) } else { Err(self.refusal()) }
    }

    /// An address is its own meaning: nobody can let it mean another one.
    fn has(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok()
            || ["localhost", &*self.given].iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    fn refusal(&self) -> String {
        let given = if self.has_a_name() { format!(", {}", self.given) } else { String::new() };
        format!(
            "the request's header Host has a name that is not this server's: at a loopback address it answers to localhost{given} and \
             IP addresses; a reverse proxy must send one of these as Host"
        )
    }

    /// True if the user gave a name that others do not have.
    fn has_a_name(&self) -> bool {
        !self.given.eq_ignore_ascii_case("localhost") && !Hosts { given: "".into() }.has(&self.given)
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;
    use axum::http::{Request, header};
    use std::net::IpAddr;

    /// True if a request with these headers `Host` is taken.
    fn taken(listen: &str, arrived: Option<&str>, uri: &str, hosts: &[&str]) -> bool {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let arrived = arrived.map(|address| address.parse::<IpAddr>().unwrap());
        Hosts::of(listen).check(arrived, &request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn a_loopback_address_answers_to_its_names_alone() {
        let (listen, loopback) = ("Here.example:8704", Some("127.0.0.1"));
        for own in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:8704",
            "127.8.9.1",
            "[::1]:8704",
            "192.0.2.1",
            "here.example:8704",
        ] {
            assert!(taken(listen, loopback, "/", &[own]), "{own}");
        }
        let foreign = [
            "evil.example",
            "evil.example:8704",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example@x",
            "",
            "localhost evil",
            "[evil]",
            "here.example.",
        ];
        for foreign in foreign {
            assert!(!taken(listen, loopback, "/", &[foreign]), "{foreign}");
            assert!(!taken(listen, None, "/", &[foreign]), "{foreign}");
            assert!(!taken(listen, Some("::ffff:127.0.0.1"), "/", &["localhost", foreign]), "{foreign}");
            assert!(!taken(listen, Some("::1"), "/", &[foreign, "localhost"]), "{foreign}");
            assert!(taken(listen, Some("192.0.2.1"), "/", &[foreign]), "{foreign}");
        }
        assert!(taken(listen, loopback, "/", &[]));
        assert!(!taken(listen, loopback, "http://evil.example/", &["localhost"]));
        assert!(taken(listen, loopback, "http://localhost:8704/", &["localhost"]));
    }

    #[test]
    fn the_refusal_names_what_is_taken() {
        for (listen, names) in [
            ("127.0.0.1:0", "to localhost and IP addresses;"),
            ("localhost:0", "to localhost and IP addresses;"),
            ("[::1]:0", "to localhost and IP addresses;"),
            ("here:0", "to localhost, here and IP addresses;"),
        ] {
            assert!(Hosts::of(listen).refusal().contains(names), "{listen}");
        }
    }
}
