//! Addresses to listen at, as arguments.

/// An address `HOST:PORT` to listen at. Whether the host's name resolves shows when the command listens.
///
/// # Errors
/// If it has no host or no port, or is an IPv6 address without brackets, in words.
pub fn address(text: &str) -> Result<String, String> {
    let wanted = "HOST:PORT is wanted, such as 127.0.0.1:8700 or [::1]:8700";
    let (host, port) = text.rsplit_once(':').ok_or(wanted)?;
    if port.starts_with('+') || port.parse::<u16>().is_err() {
        return Err(format!("a port is a number from 0 to 65535; {wanted}"));
    }
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inside.unwrap_or(host) {
        "" => Err(wanted.into()),
        bare if inside.is_none() && bare.contains(':') => {
            Err(format!("an IPv6 address has brackets; {wanted}"))
        }
        _ => Ok(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for right in ["127.0.0.1:0", "localhost:8700", "[::1]:9464", "0.0.0.0:65535"] {
            assert_eq!(address(right).unwrap(), right);
        }
        for wrong in
            ["", "127.0.0.1", ":0", "127.0.0.1:", "h:99999", "h:-1", "h:+1", "::1:0", "[]:0", "h:0x1"]
        {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
