//! Launch lists: all that an adapter was asked for while it ran the self-test or a training step, as one document with its files. Any program can carry it out
//! (docs/PORTABILITY.md, "A launch list"); the page for browsers holds the same document and does so.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::cli::view::report::{Exit, Failure, Printer};
use tiebreak_contract::program::step::Program;
use tiebreak_engine::fingerprint::FINGERPRINT;
use tiebreak_gpu::{Command, TextLimits, Variant, adapters, recording};
use tiebreak_job::identity::CONTRACT;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;

/// The document's file, which is written last: where it is, the others are.
const LIST: &str = "launches.json";
/// The bytes that are written to buffers.
const DATA: &str = "launches.bin";

/// The work that is recorded, and its adapter.
pub struct Recorded {
    /// A step of this; the self-test without one.
    pub program: Option<Arc<Program>>,
    /// The job's file.
    pub about: Option<String>,
    pub adapter: Option<String>,
    pub variants: Vec<Variant>,
    pub limits: TextLimits,
}

/// The document.
#[derive(Serialize)]
struct List {
    format: &'static str,
    version: &'static str,
    contract: &'static str,
    about: String,
    /// The fingerprint of every right engine of this version.
    fingerprint: &'static str,
    recorded_on: String,
    needs: Needs,
    data: Data,
    runs: Vec<Carried>,
}

/// The capabilities that a device has to offer.
#[derive(Default, Serialize)]
struct Needs {
    /// Storage buffers of one dispatch.
    storage_buffers: usize,
    /// Bytes of the largest buffer.
    buffer_bytes: u64,
}

#[derive(Serialize)]
struct Data {
    file: &'static str,
    bytes: usize,
    sha256: String,
}

/// The same work by one way to compute products.
#[derive(Serialize)]
struct Carried {
    products: &'static str,
    /// Names of files.
    shaders: Vec<String>,
    commands: Vec<Command>,
}

/// A document and what it names.
pub struct Launches {
    /// JSON without the character `<`, so that it can stand in a page's script as it is.
    list: String,
    /// By the name of their file.
    shaders: BTreeMap<String, String>,
    data: Vec<u8>,
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// JSON in which no tag of HTML can begin: each `<` stands in a string.
fn json(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::new(Exit::Undecided, error))?;
    Ok(text.replace('<', "\\u003c"))
}

impl Launches {
    /// Has an adapter run it all, and writes down what it is asked for.
    pub fn record(printer: Printer, recorded: &Recorded) -> Result<Launches, Failure> {
        let Recorded { program, about, adapter, variants, limits } = recorded;
        let (mut runs, mut shaders, mut data) = (Vec::new(), BTreeMap::new(), Vec::new());
        let (mut needs, mut used) = (Needs::default(), String::new());
        for &variant in variants {
            printer.say(format!("recording {} products ...", variant.name()));
            let mut launches = match program {
                None => recording::of_selftest(adapter.as_deref(), *limits, variant)?,
                Some(program) => recording::of_step(adapter.as_deref(), *limits, variant, program)?,
            };
            launches.shift(data.len() as u64);
            data.append(&mut launches.data);
            used = launches.adapter;
            // A text has one name in every list, so lists in one folder do not spoil each other's.
            let named = launches.shaders.into_iter().map(|text| {
                let name = format!("{}.wgsl", &sha256(text.as_bytes())[..16]);
                shaders.insert(name.clone(), text);
                name
            });
            let named = named.collect();
            for command in &launches.commands {
                match command {
                    Command::Create { bytes, .. } => needs.buffer_bytes = needs.buffer_bytes.max(*bytes),
                    Command::Submit(dispatches) => {
                        let most = dispatches.iter().map(|dispatch| dispatch.buffers.len()).max();
                        needs.storage_buffers = needs.storage_buffers.max(most.unwrap_or(0));
                    }
                    _ => {}
                }
            }
            runs.push(Carried { products: variant.name(), shaders: named, commands: launches.commands });
        }
        let driver = adapters().into_iter().find(|adapter| adapter.name == used);
        let list = json(&List {
            format: "tiebreak launches, version 1",
            version: env!("CARGO_PKG_VERSION"),
            contract: CONTRACT,
            about: about.as_ref().map_or_else(|| "the self-test".into(), |job| format!("a step of {job}")),
            fingerprint: FINGERPRINT,
            recorded_on: driver.map_or(used.clone(), |adapter| format!("{used}, {}", adapter.driver)),
            needs,
            data: Data { file: DATA, bytes: data.len(), sha256: sha256(&data) },
            runs,
        })?;
        Ok(Launches { list, shaders, data })
    }

    /// The number of shaders.
    pub fn shaders(&self) -> usize {
        self.shaders.len()
    }

    /// Writes the document and its files to a folder. A document of before is taken away first: its data change.
    pub fn write(&self, folder: &Path) -> Result<(), RunError> {
        let disk = Disk::default();
        let folder = std::path::absolute(folder).map_err(RunError::io(folder))?;
        disk.create_folder(&folder)?;
        let list = folder.join(LIST);
        if list.exists() {
            disk.remove(&list)?;
        }
        for (name, text) in &self.shaders {
            disk.replace(&folder.join(name), text.as_bytes())?;
        }
        disk.replace(&folder.join(DATA), &self.data)?;
        disk.replace(&list, self.list.as_bytes())
    }

    /// The page that carries it out.
    pub fn page(&self) -> Result<String, Failure> {
        const PAGE: &str = include_str!("../../../../assets/browser/page.html");
        // Base64 holds no placeholder; texts and names may, so what is replaced last stands first in the page.
        let page = PAGE.replacen("@DATA@", &BASE64_STANDARD.encode(&self.data), 1);
        let page = page.replacen("@SHADERS@", &json(&self.shaders)?, 1);
        Ok(page.replacen("@LAUNCHES@", &self.list, 1))
    }
}
