//! Runs in object stores. object_store makes and signs each request; this crate's client sends it, and judges the answer as it judges
//! that of a plain server.

mod said;
mod send;

use std::io::{self, ErrorKind};
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use tiebreak_run::run::{Held, RunError};
use ureq::http::Response;

use self::said::{Kind, said};
use self::send::{Connector, waited};
use super::answer::{self, Failed, wrong};
use super::ask::{Ask, Asked, NoAnswer};
use super::patience::Patience;
use super::target::{Found, PIECE, Put, Source, Target};

/// The name of the digest that a publisher leaves with each file. Azure takes no hyphens.
const DIGEST: &str = "tiebreakblake3";
/// The most bytes of a new file that is sent at once. A longer one is sent in parts, which know no condition.
const WHOLE_MAX: u64 = 2 * PIECE;
/// The most bytes of a file that is written over another one: at once, and so under a condition.
const OVER_MAX: u64 = 1 << 30;
/// The most parts of a file.
const PARTS_MAX: u64 = 10_000;

/// A prefix in a bucket.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    kind: Kind,
    prefix: String,
    address: String,
    patience: Patience,
}

/// The store that an address names, by the variables of the environment that its own tools read.
fn built(kind: Kind, bucket: &str, patience: Patience) -> object_store::Result<Arc<dyn ObjectStore>> {
    let connector = Connector { kind, patience };
    // Requests are sent again by their own rules here.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    Ok(match kind {
        Kind::S3 => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            let anonymous = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_none();
            // Without a key, object_store would ask machines of Amazon's for one.
            let builder = if anonymous { builder.with_skip_signature(true) } else { builder };
            Arc::new(builder.with_retry(once).with_http_connector(connector).build()?)
        }
        Kind::Google => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            let keys = [GoogleConfigKey::ServiceAccount, GoogleConfigKey::ServiceAccountKey];
            let anonymous = keys.iter().all(|key| builder.get_config_value(key).is_none());
            let builder = if anonymous { builder.with_skip_signature(true) } else { builder };
            Arc::new(builder.with_retry(once).with_http_connector(connector).build()?)
        }
        Kind::Azure => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            Arc::new(builder.with_retry(once).with_http_connector(connector).build()?)
        }
    })
}

impl Objects {
    /// The place at an address. Nothing is asked of it yet.
    pub(crate) fn at(address: &str, patience: Patience) -> Result<Objects, RunError> {
        let refused = |why: String| RunError::Refused(format!("{address}: {why}"));
        let (scheme, rest) = address.split_once("://").unwrap_or_default();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let kind = match scheme {
            "gs" => Kind::Google,
            "az" => Kind::Azure,
            _ => Kind::S3,
        };
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !bucket.bytes().all(fine) {
            return Err(refused("a bucket's name has letters, digits and hyphens".into()));
        }
        let prefix = prefix.trim_end_matches('/').to_string();
        Path::parse(&prefix).map_err(|_| refused("no object store has such a path".into()))?;
        let store = built(kind, bucket, patience).map_err(|error| {
            let why: String = error.to_string().chars().take(300).collect();
            refused(format!("the variables of the environment name no store: {why}"))
        })?;
        let address = address.trim_end_matches('/').to_string();
        Ok(Objects { store, kind, prefix, address, patience })
    }

    /// The object of a file.
    fn path(&self, name: &str) -> io::Result<Path> {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        Path::parse(format!("{}{slash}{name}", self.prefix))
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "no object store has such a name"))
    }

    /// Asks once for a file, or for a range of it.
    fn asked(&self, asked: &Asked) -> Result<(Response<ureq::Body>, Found), NoAnswer> {
        let path = self.path(asked.name).map_err(|error| NoAnswer::Failed(Failed::Wrong(error)))?;
        let options = GetOptions {
            range: asked.range.map(|range| range.clone().into()),
            head: asked.head,
            ..GetOptions::default()
        };
        let (result, came) = waited(asked.time, self.store.get_opts(&path, options));
        let response = match (came, &result) {
            (Some(came), _) => came?,
            (None, Err(error)) => return Err(NoAnswer::Failed(unsent(error))),
            (None, Ok(_)) => return Err(NoAnswer::Failed(wrong(ErrorKind::Other, "no answer came"))),
        };
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            let (parts, body) = response.into_parts();
            let text = if asked.head { Vec::new() } else { answer::short_text(body) };
            if let Some(failed) = said(self.kind, status, &parts.headers, &text) {
                return Err(NoAnswer::Failed(failed));
            }
            return Ok((Response::from_parts(parts, ureq::Body::builder().data(text)), Found::default()));
        }
        let found = result.map_or_else(
            |_| Found { tag: answer::tag(response.headers()), ..Found::default() },
            |result| Found {
                length: result.meta.size,
                digest: result
                    .attributes
                    .get(&Attribute::Metadata(DIGEST.into()))
                    .map(|digest| digest.to_string()),
                tag: result.meta.e_tag,
                version: result.meta.version,
            },
        );
        Ok((response, found))
    }

    /// Asks until there is an answer; none if the file is not there.
    fn answered(&self, asked: &Asked) -> io::Result<Option<(Response<ureq::Body>, Found)>> {
        for tried in 0.. {
            let failed = match self.asked(asked) {
                Ok((response, found)) => match answer::check_status(&response) {
                    Ok(()) => return Ok(Some((response, found))),
                    Err(failed) => failed,
                },
                Err(NoAnswer::Broken(error)) => answer::no_answer(&error, tried == 0),
                Err(NoAnswer::Failed(failed)) => failed,
            };
            let why = match failed {
                Failed::Wrong(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Failed::Wrong(error) => return Err(error),
                Failed::Again(why) | Failed::Gone(why) => why,
            };
            let Some(pause) = self.patience.pause_after(tried) else {
                let why = format!("{} tries failed, the last one so: {why}", tried + 1);
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            };
            std::thread::sleep(pause);
        }
        unreachable!("the loop has no end")
    }

    /// Writes a file in parts, which appear together. The digest was of the same bytes, or nothing appears.
    fn put_in_parts(&self, file: &Source, digest: &str) -> io::Result<()> {
        let path = self.path(file.name)?;
        let options =
            PutMultipartOptions { attributes: attributes(digest), ..PutMultipartOptions::default() };
        let (begun, came) = waited(self.patience.time(0), self.store.put_multipart_opts(&path, options));
        let mut upload = begun.map_err(|error| reason(&error, came))?;
        let part = PIECE.max(file.length.div_ceil(PARTS_MAX));
        let mut hasher = blake3::Hasher::new();
        let mut sent = || -> io::Result<()> {
            for first in (0..file.length).step_by(part as usize) {
                let bytes = file.read(first..file.length.min(first + part))?;
                hasher.update(&bytes);
                let (result, came) =
                    waited(self.patience.time(part), upload.put_part(PutPayload::from(bytes)));
                result.map_err(|error| reason(&error, came))?;
            }
            if hasher.finalize().to_hex().as_str() != digest {
                return Err(io::Error::other("the file changed while it was read: publish again"));
            }
            let (result, came) = waited(self.patience.time(0), upload.complete());
            result.map(drop).map_err(|error| reason(&error, came))
        };
        let sent = sent();
        if sent.is_err() {
            // The first error is the one to report.
            let _ = waited(self.patience.time(0), upload.abort());
        }
        sent
    }
}

fn attributes(digest: &str) -> Attributes {
    Attributes::from_iter([(Attribute::Metadata(DIGEST.into()), digest.to_string())])
}

/// The failure of a request that object_store did not send.
fn unsent(error: &object_store::Error) -> Failed {
    let why: String = error.to_string().chars().take(300).collect();
    wrong(ErrorKind::InvalidInput, format!("the request cannot be made: {why}"))
}

/// The reason why a write failed.
fn reason(error: &object_store::Error, came: send::Came) -> io::Error {
    use object_store::Error;
    let failed = match came {
        Some(Err(NoAnswer::Failed(failed))) => failed,
        Some(Err(NoAnswer::Broken(error))) => answer::no_answer(&error, false),
        _ => match error {
            Error::NotFound { .. } => wrong(ErrorKind::NotFound, "the store does not find it"),
            _ => wrong(ErrorKind::Other, "the store does not do what S3, Google or Azure do, or refuses it"),
        },
    };
    match failed {
        Failed::Wrong(error) => error,
        Failed::Again(why) | Failed::Gone(why) => io::Error::new(ErrorKind::TimedOut, why),
    }
}

impl Ask for Objects {
    fn ask(&self, asked: &Asked) -> Result<Response<ureq::Body>, NoAnswer> {
        self.asked(asked).map(|(response, _)| response)
    }
}

impl Target for Objects {
    fn place(&self) -> String {
        self.address.clone()
    }

    fn hold(&self) -> io::Result<Option<Box<dyn Held>>> {
        Ok(None)
    }

    fn found(&self, name: &str) -> io::Result<Option<Found>> {
        let asked = Asked { name, range: None, head: true, time: self.patience.time(0) };
        Ok(self.answered(&asked)?.map(|(_, found)| found))
    }

    fn bytes(&self, name: &str, most: u64) -> io::Result<Option<(Vec<u8>, Found)>> {
        let asked = Asked { name, range: None, head: false, time: self.patience.time(most) };
        let Some((response, found)) = self.answered(&asked)? else { return Ok(None) };
        let length = answer::content_length(response.headers());
        let Some(length) = length.filter(|length| *length <= most) else {
            let why = format!("it comes with length {length:?}, and at most {most} bytes are read");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        };
        let mut bytes = Vec::new();
        match answer::contents(response, length, &mut bytes) {
            Ok(()) => Ok(Some((bytes, Found { length, ..found }))),
            Err(Failed::Wrong(error)) => Err(error),
            Err(Failed::Again(why) | Failed::Gone(why)) => Err(io::Error::new(ErrorKind::TimedOut, why)),
        }
    }

    fn put(&self, file: &Source, over: Option<&Found>) -> io::Result<Put> {
        if file.length > WHOLE_MAX && over.is_none() {
            let digest = file.digest(file.length)?;
            return self.put_in_parts(file, &digest).map(|()| Put::Done);
        }
        if file.length > OVER_MAX {
            let why = format!("at most {OVER_MAX} bytes are written over a file in a store");
            return Err(io::Error::new(ErrorKind::FileTooLarge, why));
        }
        let bytes = file.read(0..file.length)?;
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let mode = match over {
            None => PutMode::Create,
            Some(found) => {
                PutMode::Update(UpdateVersion { e_tag: found.tag.clone(), version: found.version.clone() })
            }
        };
        let options = PutOptions { mode, attributes: attributes(&digest), ..PutOptions::default() };
        let path = self.path(file.name)?;
        let put = self.store.put_opts(&path, PutPayload::from(bytes), options);
        let (result, came) = waited(self.patience.time(file.length), put);
        match result {
            Ok(_) => Ok(Put::Done),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                | object_store::Error::NotModified { .. },
            ) => Ok(Put::Changed),
            Err(error) => Err(reason(&error, came)),
        }
    }
}
