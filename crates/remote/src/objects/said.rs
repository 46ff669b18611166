//! The kinds of object stores, and the reasons that they give.

use std::io::ErrorKind;

use ureq::http::{HeaderMap, Uri};

use crate::answer::{Failed, header, wrong};

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Amazon S3, and stores with its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Kind {
    /// The variables that hold the credentials.
    pub(super) fn variables(self) -> &'static str {
        match self {
            Kind::S3 => "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
            Kind::Google => "GOOGLE_SERVICE_ACCOUNT",
            Kind::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }

    /// True if a status tells that the same write would end the same way again.
    pub(super) fn hopeless(self, status: u16) -> bool {
        !matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
    }

    /// Refuses addresses that the command line does not name: those of other hosts, and those without TLS unless a variable allows it.
    pub(super) fn allowed(self, to: &Uri, plain: bool) -> Result<(), String> {
        let host = to.host().unwrap_or_default();
        let loopback = ["127.0.0.1", "localhost"].contains(&host);
        let own = match self {
            // All credentials are the environment's, so object_store asks nobody for any.
            Kind::S3 => true,
            Kind::Google => host == "storage.googleapis.com" || loopback,
            Kind::Azure => host.ends_with(".blob.core.windows.net") || loopback,
        };
        if !own {
            let why = "only the store itself is asked";
            return Err(format!(
                "the credentials need a request to {host}, and {why}: use {}",
                self.variables()
            ));
        }
        if to.scheme_str() == Some("https") || plain {
            return Ok(());
        }
        let variable = match self {
            Kind::S3 => "AWS_ALLOW_HTTP",
            Kind::Google => "GOOGLE_ALLOW_HTTP",
            Kind::Azure => "AZURE_ALLOW_HTTP",
        };
        Err(format!("the endpoint has no TLS: set {variable}=true if that is meant"))
    }
}

/// The code in the text of an error, such as `NoSuchKey`: a store writes it for programs. Other parts of the text may quote the request.
fn code(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    (code.len() <= 60 && code.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(code)
}

/// The reason why a store gives nothing, as far as a store says more than a plain server.
pub(super) fn said(kind: Kind, status: u16, headers: &HeaderMap, text: &[u8]) -> Option<Failed> {
    let code = code(text);
    let region = header(headers, "x-amz-bucket-region")
        .filter(|region| region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
    let shown = code.map_or(String::new(), |code| format!(" ({code})"));
    let says = format!("status {status}{shown}");
    match (status, code) {
        (200..=299, _) => None,
        (300..=399, _) => Some(wrong(
            ErrorKind::Other,
            match region {
                Some(region) => {
                    format!("the bucket is in the region {region} ({says}): set AWS_REGION={region}")
                }
                None => format!(
                    "the store redirects ({says}), and redirects are not followed: check region and endpoint"
                ),
            },
        )),
        (_, Some("NoSuchBucket" | "ContainerNotFound")) => Some(wrong(
            ErrorKind::Other,
            format!(
                "the store has no such bucket ({says}): check the address, and the endpoint in the environment"
            ),
        )),
        (
            _,
            Some(
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "AuthenticationFailed"
                | "AuthorizationHeaderMalformed"
                // s3s says so of an unknown key.
                | "NotSignedUp",
            ),
        )
        | (401, _) => Some(wrong(
            ErrorKind::PermissionDenied,
            format!("the store does not take the credentials ({says}): check {}", kind.variables()),
        )),
        (403, _) => Some(wrong(
            ErrorKind::PermissionDenied,
            format!(
                "the store forbids it ({says}): the credentials in {} may not do this, or the file is not there and the bucket \
                 may not be listed",
                kind.variables()
            ),
        )),
        _ => None,
    }
}
