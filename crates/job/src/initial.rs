//! The origin of an initial state, and its expected digest if a run's declaration determines it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Job;
use super::data::safetensors::{Header, PREAMBLE, header_len};
use super::element::DIMENSIONS_MAX;
use super::manifest::{self, DataError, DataFile, FileManifest};
use super::spec::WeightNames;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::Init;
use tiebreak_contract::program::models::released::Released;
use tiebreak_contract::program::step::{Program, StateTensor};
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::proven::ProvenRecord;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::{StateRoots, state_digest};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::commit::{Malformed, tensor};

/// A finished run that another run continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierRun {
    /// The signed note of the run's head; the origin line names the run.
    pub head: String,
    /// The run's final record, which names the computation, with its proof under the head.
    pub record: ProvenRecord,
    /// True if the optimizer's slots are taken too; otherwise they begin at zero.
    pub optimizer_state: bool,
}

/// The origin of the initial state, as `run.json` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", try_from = "OriginFields")]
pub enum InitialOrigin {
    /// The seed determines the state.
    #[default]
    Seed,
    /// Files of weights hold the state; they are not part of the run.
    Weights {
        /// A manifest for each file, in the job's order.
        files: Vec<FileManifest>,
    },
    /// Another run's final state is the state.
    Run(Box<EarlierRun>),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginKind {
    Seed,
    Weights,
    Run,
}

/// The fields of any origin. Serde's own reader of an enum with a tag copies them first into values of many times their bytes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OriginFields {
    kind: OriginKind,
    files: Option<Vec<FileManifest>>,
    head: Option<String>,
    record: Option<ProvenRecord>,
    optimizer_state: Option<bool>,
}

impl TryFrom<OriginFields> for InitialOrigin {
    type Error = &'static str;

    fn try_from(fields: OriginFields) -> Result<InitialOrigin, &'static str> {
        let OriginFields { kind, files, head, record, optimizer_state } = fields;
        match (kind, files, head, record, optimizer_state) {
            (OriginKind::Seed, None, None, None, None) => Ok(InitialOrigin::Seed),
            (OriginKind::Weights, Some(files), None, None, None) => Ok(InitialOrigin::Weights { files }),
            (OriginKind::Run, None, Some(head), Some(record), Some(optimizer_state)) => {
                Ok(InitialOrigin::Run(Box::new(EarlierRun { head, record, optimizer_state })))
            }
            _ => Err(
                "an origin has the fields of its kind: seed none, weights files, run head, record and optimizer_state",
            ),
        }
    }
}

/// The expectation about an initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The state of this digest.
    State(Digest),
    /// The state is in the weights' files: only their owners know it.
    InFiles,
}

/// The tensors of an initial state that are drawn from the seed, beside files of weights that give the others.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// The state tensors' names.
    names: HashSet<String>,
    /// The seed's Philox key.
    key: [u32; 2],
}

impl Drawn {
    /// The tensors that a job draws; `key` is the seed's Philox key.
    pub fn of(job: &Job, key: [u32; 2]) -> Drawn {
        // The job was read before, and a job whose names match nothing is refused then.
        Drawn { names: job.reinitialized().unwrap_or_default().into_iter().collect(), key }
    }

    /// True if a state tensor is drawn.
    pub fn has(&self, tensor: &str) -> bool {
        self.names.contains(tensor)
    }

    /// Elements of the state tensor with index `index` in the program's table: `count` of them from `first` on.
    pub fn elements(&self, index: usize, [first, count]: [usize; 2], init: Init) -> Vec<u32> {
        init::elements(self.key, index as u32, [first, count], init)
    }
}

impl EarlierRun {
    /// The run's id, its computation, and the roots of its final state.
    ///
    /// # Errors
    /// If the head does not cover a final record.
    #[doc(hidden)] // for the layers above
    pub fn finish(&self) -> Result<(Digest, Digest, StateRoots), Malformed> {
        // An audit of the earlier run says whose key signed the head.
        let (head, _) = Head::from_note(&self.head, None)?;
        match self.record.under(&head)? {
            Record::Final { computation, roots, .. } => Ok((head.run, computation, roots)),
            other => {
                let why = format!("it names {}; the final record is expected", other.name());
                Err(Malformed::invalid("earlier run", why))
            }
        }
    }
}

/// An origin in words: so many files of weights, or an earlier run, whose optimizer's state is taken or not; else the seed.
fn in_words(files: usize, optimizer_state: Option<bool>) -> String {
    match (files, optimizer_state) {
        (0, None) => "the seed".into(),
        (files, None) => format!("{files} files of weights"),
        (_, Some(taken)) => format!("an earlier run with optimizer_state = {taken}"),
    }
}

impl InitialOrigin {
    /// Checks the declared origin against the job.
    ///
    /// # Errors
    /// If the job names another origin, or the declared origin contradicts itself.
    #[doc(hidden)] // for the layers above
    pub fn check(&self, job: &Job) -> Result<(), Malformed> {
        let fits = match self {
            InitialOrigin::Seed => job.init.run.is_none() && job.init.weights.is_empty(),
            InitialOrigin::Weights { files } => {
                manifest::check(files)?;
                !files.is_empty() && files.len() == job.init.files().count()
            }
            InitialOrigin::Run(earlier) => {
                earlier.finish()?;
                job.init.run.is_some() && job.init.optimizer_state == earlier.optimizer_state
            }
        };
        if fits {
            return Ok(());
        }
        let found = match self {
            InitialOrigin::Seed => in_words(0, None),
            InitialOrigin::Weights { files } => in_words(files.len(), None),
            InitialOrigin::Run(earlier) => in_words(0, Some(earlier.optimizer_state)),
        };
        let due =
            in_words(job.init.files().count(), job.init.run.is_some().then_some(job.init.optimizer_state));
        Err(Malformed::invalid(
            "initial state",
            format!("it comes from {found}; the job's [init] says {due}"),
        ))
    }

    /// The origin in words.
    #[doc(hidden)] // for the layers above
    pub fn source(&self) -> &'static str {
        match self {
            InitialOrigin::Seed => "the seed",
            InitialOrigin::Weights { .. } => "the weights' files",
            InitialOrigin::Run(_) => "the earlier run's final state",
        }
    }

    /// The digest that a run id covers.
    #[doc(hidden)] // for the layers above
    pub fn digest(&self) -> Digest {
        let mut e = Encoder::default();
        match self {
            InitialOrigin::Seed => {
                e.u8(0);
            }
            InitialOrigin::Weights { files } => {
                e.u8(1).list(files, |e, file| {
                    e.u64(file.bytes).digest(&file.root);
                });
            }
            InitialOrigin::Run(earlier) => {
                e.u8(2).bytes(earlier.head.as_bytes()).u64(earlier.record.index);
                e.bytes(&earlier.record.record.0).list(&earlier.record.proof, |e, hash| {
                    e.digest(hash);
                });
                e.u8(u8::from(earlier.optimizer_state));
            }
        }
        hash("tiebreak 2 initial-origin", &e.0)
    }

    /// The expected initial state; `key` is the seed's Philox key.
    ///
    /// # Errors
    /// If the proof of an earlier run's record does not hold.
    #[doc(hidden)] // for the layers above
    pub fn expected(&self, program: &Program, key: [u32; 2]) -> Result<Expected, Malformed> {
        self.expected_watched(program, key, &mut |_| {})
    }

    /// [`InitialOrigin::expected`], with its progress: bytes that were made from the seed since the last call.
    ///
    /// # Errors
    /// As [`InitialOrigin::expected`].
    #[doc(hidden)] // for the layers above
    pub fn expected_watched(
        &self,
        program: &Program,
        key: [u32; 2],
        watch: &mut dyn FnMut(u64),
    ) -> Result<Expected, Malformed> {
        Ok(match self {
            InitialOrigin::Seed => Expected::State(seeded_digest_watched(program, key, watch)),
            InitialOrigin::Weights { .. } => Expected::InFiles,
            InitialOrigin::Run(earlier) => {
                let (_, _, StateRoots([parameters, buffers, slots])) = earlier.finish()?;
                let slots = if earlier.optimizer_state { slots } else { zero_slots(program) };
                Expected::State(StateRoots([parameters, buffers, slots]).digest())
            }
        })
    }
}

/// The layout of files of weights with a program's own names for parameters and buffers: `NAME` or `param/NAME`, and
/// `buffer/NAME`.
pub fn program_layout(program: &Program) -> Vec<Released> {
    let tensors = program.state().into_iter().take(program.released());
    let released = |StateTensor { name, shape }: StateTensor| match name.strip_prefix("param/") {
        Some(plain) => Released::same(plain, name.as_str(), &shape).or(name.as_str()),
        None => Released::same(name.as_str(), name.as_str(), &shape),
    };
    tensors.map(released).collect()
}

/// The layout of the files of weights that a job names: how they hold its program's parameters and buffers.
pub fn weights_layout(job: &Job, program: &Program) -> Vec<Released> {
    let released = job.model().filter(|_| job.init.names == WeightNames::Hf);
    let layout = released.and_then(|model| model.model.released()).unwrap_or_else(|| program_layout(program));
    let mut layout: Vec<Released> =
        layout.into_iter().map(|released| released.behind(&job.init.prefix)).collect();
    let of_model = job.model().filter(|_| job.init.adapter.is_some());
    let adapters = of_model.map_or(Vec::new(), |model| model.model.adapters());
    let own: HashSet<&str> =
        adapters.iter().flat_map(|released| released.parts()).map(|part| part.tensor.as_str()).collect();
    layout.retain(|released| !released.parts().iter().any(|part| own.contains(part.tensor.as_str())));
    layout.extend(adapters.iter().cloned());
    layout
}

/// An element of a state tensor in a file of weights, a binary32 pattern. `layout` says how files hold the tensors.
///
/// # Errors
/// If the file is no safetensors file, has no tensor of floats that holds the element, or the bytes are not available.
pub fn weights_element(
    file: &mut DataFile,
    layout: &[Released],
    tensor: &StateTensor,
    element: u64,
) -> Result<u32, DataError> {
    let path = file.path().to_path_buf();
    let wrong = |why: String| DataError::invalid(&path, why);
    let preamble = file.read(0, PREAMBLE)?.first_chunk().copied().unwrap_or_default();
    let len = header_len(preamble).map_err(wrong)?;
    let header = Header::parse(&file.read(PREAMBLE as u64, len)?, file.bytes()).map_err(wrong)?;
    let parts = layout.iter().flat_map(|r| r.parts().iter().map(move |part| (r, part)));
    let found = parts.into_iter().find(|(_, part)| part.tensor == tensor.name && element < part.len());
    let (released, part) = found.ok_or_else(|| wrong(format!("{} has no element {element}", tensor.name)))?;
    let mut names = released.names();
    let place =
        names.find_map(|name| header.place(name).ok()).map_or_else(|| header.place(&released.name), Ok);
    let place = place.map_err(wrong)?;
    let shape: Vec<u64> = released.shape.iter().map(|&d| u64::from(d)).collect();
    if place.element.dtype() != DType::F32 || place.shape != shape {
        let (dtype, found) = (place.element, place.shape.iter().take(DIMENSIONS_MAX + 1).collect::<Vec<_>>());
        let why = format!("{} is {dtype:?} {found:?}; floats of shape {shape:?} are wanted", released.name);
        return Err(wrong(why));
    }
    let size = place.element.size();
    let bytes = file.read(place.first + part.place(element) * size, size as usize)?;
    let words = place.element.words(&bytes).map_err(|_| wrong("it is no float".into()))?;
    words.first().copied().ok_or_else(|| wrong("it is no float".into()))
}

/// The state digest of init(seed), with its progress: bytes that were made since the last call.
fn seeded_digest_watched(program: &Program, key: [u32; 2], watch: &mut dyn FnMut(u64)) -> Digest {
    state_digest(&program.state(), &seeded_digests(program, key, watch))
}

/// The tensor digests of init(seed), in the table's order, computed with one piece of a tensor in memory at a time. `key` is the
/// seed's Philox key; `watch` sees bytes that were made since its last call.
#[doc(hidden)] // for the layers above
pub fn seeded_digests(program: &Program, key: [u32; 2], watch: &mut dyn FnMut(u64)) -> Vec<Digest> {
    let (table, inits): (Vec<StateTensor>, Vec<Init>) = program.state_with_init().into_iter().unzip();
    (0..)
        .zip(table.iter().zip(inits))
        .map(|(index, (tensor, init))| {
            tensor::digest_by(&tensor.ty(), |first, count| {
                watch(4 * count as u64);
                init::elements(key, index, [first, count], init)
            })
        })
        .collect()
}

/// The root of an optimizer's slots before the first step.
fn zero_slots(program: &Program) -> Digest {
    let table = program.state();
    let zeros = |tensor: &StateTensor| tensor::digest_by(&tensor.ty(), |_, count| vec![0; count]);
    let digests: Vec<Digest> = table.iter().map(zeros).collect();
    StateRoots::of(&table, &digests).0[2]
}
