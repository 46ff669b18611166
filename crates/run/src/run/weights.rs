//! Files of weights: safetensors under a program's own names or under released ones, read and written one tensor at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::RunError;
use super::mistaken;
use super::stored::{Reading, Stored};
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::models::released::{Made, Part, Released};
use tiebreak_contract::program::models::{Init, Model};
use tiebreak_contract::program::step::{Program, StateTensor, port};
use tiebreak_job::data::safetensors::{Header, PREAMBLE, header_len};
use tiebreak_job::element::{ArrayPlace, Element};
use tiebreak_job::initial::Drawn;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor;

/// The most names that an error lists.
const LISTED: usize = 12;
/// Prefixes that torch.compile, DataParallel, FSDP, DeepSpeed and Lightning put before the names of a model's tensors. No name of
/// a released model begins with one.
const WRAPPERS: [&str; 5] = ["_orig_mod.", "module.", "_fsdp_wrapped_module.", "_forward_module.", "model."];
/// Elements that are compared between two calls of a watch.
const WATCHED_EVERY: u64 = 1 << 20;
/// Elements that are copied at a time.
const COPIED: usize = 1 << 16;
/// Bytes of an I64.
const COUNTER_BYTES: usize = 8;

struct WeightFile {
    path: PathBuf,
    /// True if the path is one on this machine's disk.
    on_disk: bool,
    file: Reading,
    header: Header,
}

/// The elements of a state tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// A file has them as little-endian binary32, from this byte on.
    InFile(PathBuf, u64),
    /// The file has another type of element, or is on no disk here: these are the canonical bytes.
    Here(Vec<u8>),
}

/// Files of weights whose headers were read and checked.
pub struct WeightFiles {
    files: Vec<WeightFile>,
    /// The number of the file that holds a tensor, by the tensor's name.
    names: BTreeMap<String, usize>,
    /// The adapters of state tensors that an export adds to them.
    merges: HashMap<String, Merge>,
}

/// The state tensors A and B of an adapter, and the factor of B A.
#[derive(Clone)]
struct Merge {
    a: String,
    b: String,
    scaling: f32,
}

impl WeightFiles {
    /// Opens safetensors files and reads their headers.
    ///
    /// # Errors
    /// If one cannot be read, is no safetensors file, or a tensor is there twice.
    pub fn open<'a, F>(paths: &'a [F]) -> Result<WeightFiles, RunError>
    where
        Stored: From<&'a F>,
    {
        let (mut files, mut names) = (Vec::new(), BTreeMap::new());
        for (number, stored) in paths.iter().map(Stored::from).enumerate() {
            let path = stored.path();
            let file = opened(&stored)?;
            for name in file.header.names() {
                if names.insert(name.to_string(), number).is_some() {
                    return Err(RunError::invalid(path, format!("the tensor {name} is there twice")));
                }
            }
            files.push(file);
        }
        Ok(WeightFiles { files, names, merges: HashMap::new() })
    }

    /// These files, and the tensors of another one that they lack.
    pub(super) fn over(mut self, file: &Stored) -> Result<WeightFiles, RunError> {
        let (file, number) = (opened(file)?, self.files.len());
        for name in file.header.names() {
            self.names.entry(name.to_string()).or_insert(number);
        }
        self.files.push(file);
        Ok(self)
    }

    /// The tensors' names, ascending, each with the path of its file.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.names.iter().map(|(name, &number)| (name.as_str(), self.files[number].path.as_path()))
    }

    /// The bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        let bytes = |(name, &number): (&String, &usize)| self.files[number].header.place(name).ok()?.bytes();
        self.names.iter().filter_map(bytes).fold(0, u64::saturating_add)
    }

    /// The prefix that compiling or wrapping put before the name of every tensor; empty if there is none.
    pub fn prefix(&self) -> &str {
        let first = self.names.keys().next().map_or("", String::as_str);
        let mut prefix = "";
        // A name that is only a prefix would become empty.
        let on_all = |prefix: &str| {
            self.names.keys().all(|name| name.len() > prefix.len() && name.starts_with(prefix))
        };
        while let Some(next) = WRAPPERS.iter().find(|wrapper| first[prefix.len()..].starts_with(**wrapper)) {
            let longer = &first[..prefix.len() + next.len()];
            if !on_all(longer) {
                break;
            }
            prefix = longer;
        }
        prefix
    }

    /// The dimensions of a tensor, whatever its element type.
    pub fn shape(&self, name: &str) -> Option<Vec<u64>> {
        let number = *self.names.get(name)?;
        Some(self.files[number].header.place(name).ok()?.shape)
    }

    /// The name of a released tensor in the files, if they have it.
    fn name_of(&self, released: &Released) -> Result<Option<String>, RunError> {
        let mut there = released.names().filter_map(|name| self.names.get_key_value(name));
        let found = there.next();
        if let (Some((name, _)), Some((other, &number))) = (found, there.next()) {
            let why = format!("the tensor {name} is there twice, once as {other}");
            return Err(RunError::invalid(&self.files[number].path, why));
        }
        Ok(found.map(|(name, _)| name.clone()))
    }

    /// Checks by headers alone that the files hold the tensors that the layout lists, in the listed shapes, and nothing else. A
    /// tensor that is wholly drawn may be missing or have another shape, since nothing is taken from it.
    ///
    /// # Errors
    /// If a tensor is missing that has no initial constant (`constant` says so of a state tensor), is superfluous, or has another
    /// shape.
    pub fn check(
        &self,
        layout: &[Released],
        drawn: &Drawn,
        constant: impl Fn(&str) -> bool,
    ) -> Result<(), RunError> {
        let mut left = self.names.clone();
        let mut missing = Vec::new();
        for released in layout {
            let Some(name) = self.name_of(released)? else {
                let begins = |part: &Part| constant(&part.tensor) || drawn.has(&part.tensor);
                if !released.parts().iter().all(begins) {
                    missing.push(released.name.clone());
                }
                continue;
            };
            left.remove(&name);
            if let Made::Of(parts) | Made::CopyOf(parts) = &released.made
                && parts.iter().any(|part| !drawn.has(&part.tensor))
            {
                self.place(&name, &released.shape)?;
            }
        }
        let first = self.files.first().map_or(Path::new("."), |file| &file.path);
        if !missing.is_empty() {
            let prefix = self.prefix();
            let is_known = layout.iter().any(|released| released.name.starts_with(prefix));
            let hint = match prefix.is_empty() || is_known {
                true => String::new(),
                false => format!(
                    "; every name in the files begins with {prefix}: say so with init.prefix = {prefix:?}"
                ),
            };
            let why = format!("no file has the parameters {}{hint}", listed(&missing));
            return Err(RunError::invalid(first, why));
        }
        let names: Vec<String> = left.into_keys().collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(RunError::invalid(first, format!("the program has no parameters {}", listed(&names))))
    }

    /// The position of a tensor of floats of this shape: the number of its file, and the place in it.
    fn place(&self, name: &str, shape: &[u32]) -> Result<(usize, ArrayPlace), RunError> {
        let absent = || RunError::invalid(&self.files[0].path, format!("there is no tensor {name}"));
        let number = *self.names.get(name).ok_or_else(absent)?;
        let WeightFile { path, header, .. } = &self.files[number];
        let place = header.place(name).map_err(|why| RunError::invalid(path, why))?;
        if place.element.dtype() != DType::F32
            || !place.shape.iter().copied().eq(shape.iter().map(|&d| u64::from(d)))
        {
            let (element, theirs) = (place.element.name().to_uppercase(), &place.shape);
            let why = format!("{name} is {element} {theirs:?}, the program has F32 {shape:?}");
            return Err(RunError::invalid(path, why));
        }
        Ok((number, place))
    }

    /// The words of a tensor of floats.
    fn words(&mut self, name: &str, shape: &[u32]) -> Result<Vec<u32>, RunError> {
        let (number, place) = self.place(name, shape)?;
        let WeightFile { path, file, .. } = &mut self.files[number];
        // The place lies in the file, so no more is allocated than the file holds.
        let mut data = vec![0; place.bytes().unwrap_or(0) as usize];
        let read = file.seek(SeekFrom::Start(place.first)).and_then(|_| file.read_exact(&mut data));
        read.map_err(RunError::io(path))?;
        place.element.words(&data).map_err(|_| RunError::invalid(path, format!("{name} holds no floats")))
    }

    /// Copies elements of a tensor of floats, from element `first` on, to the canonical bytes of as many.
    fn copy(&mut self, name: &str, shape: &[u32], first: u64, to: &mut [u8]) -> Result<(), RunError> {
        let (number, place) = self.place(name, shape)?;
        let WeightFile { path, file, .. } = &mut self.files[number];
        let size = place.element.size();
        file.seek(SeekFrom::Start(place.first + first * size)).map_err(RunError::io(path))?;
        let mut data = vec![0; COPIED * size as usize];
        for to in to.chunks_mut(COPIED * 4) {
            let data = &mut data[..to.len() / 4 * size as usize];
            file.read_exact(data).map_err(RunError::io(path))?;
            let words = place.element.words(data);
            let words = words.map_err(|_| RunError::invalid(path, format!("{name} holds no floats")))?;
            to.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        }
        Ok(())
    }

    /// Checks that copies, such as a head that is tied to a table of tokens, equal their originals bit for bit. Two tensors are
    /// in memory at a time. `watch`: bytes of the copies that were compared, and their total.
    ///
    /// # Errors
    /// If one differs, or a file cannot be read.
    pub fn check_copies(
        &mut self,
        layout: &[Released],
        drawn: &Drawn,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<(), RunError> {
        let is_taken = |copy: &&Part| !drawn.has(&copy.tensor);
        let is_here = |released: &&Released| matches!(self.name_of(released), Ok(Some(_)));
        let copies = layout.iter().filter(is_here).map(|released| match &released.made {
            Made::CopyOf(copies) => copies.iter().filter(is_taken).map(Part::len).sum(),
            Made::Of(_) | Made::Mask | Made::Counter => 0,
        });
        let (mut done, all): (u64, u64) = (0, copies.sum());
        for released in layout {
            let (Made::CopyOf(copies), Some(name)) = (&released.made, self.name_of(released)?) else {
                continue;
            };
            let words = self.words(&name, &released.shape)?;
            for copy in copies.iter().filter(is_taken) {
                let is_source = |part: &&Part| part.tensor == copy.tensor;
                let found = layout.iter().find_map(|r| Some((r, r.parts().iter().find(is_source)?)));
                let Some((source, part)) = found else { continue };
                let Some(source_name) = self.name_of(source)? else { continue };
                let theirs = self.words(&source_name, &source.shape)?;
                let mut places = copy.places().zip(part.places());
                let differs = places.find(|&(ours, other)| {
                    done += 1;
                    if done % WATCHED_EVERY == 0 {
                        watch(4 * done, 4 * all);
                    }
                    words[ours as usize] != theirs[other as usize]
                });
                let Some((at, other)) = differs else { continue };
                let values = [words[at as usize], theirs[other as usize]];
                let why = differing([&name, &source_name], index_of(at, &released.shape), values);
                return Err(RunError::invalid(&self.files[self.names[&name]].path, why));
            }
        }
        Ok(())
    }

    /// Checks by headers alone that the files hold what a program's initial state is made from.
    ///
    /// # Errors
    /// As [`WeightFiles::check`].
    pub(super) fn check_state(
        &self,
        program: &Program,
        layout: &[Released],
        drawn: &Drawn,
    ) -> Result<(), RunError> {
        let table = program.state_with_init();
        let begin =
            |(tensor, init): &(StateTensor, Init)| begins(&tensor.name, *init).map(|_| tensor.name.clone());
        let constant: HashSet<String> = table.iter().filter_map(begin).collect();
        self.check(layout, drawn, |tensor| constant.contains(tensor))
    }

    /// The initial state that the files give: parameters that are not drawn and buffers come from the files. Buffers that the
    /// files lack have their initial constants, and optimizer slots are zeros. Beside the state, one tensor of the files is in
    /// memory at a time.
    ///
    /// # Errors
    /// As [`WeightFiles::check`], and if a file cannot be read, or a copy differs from its original.
    pub(crate) fn state(
        &mut self,
        program: &Program,
        layout: &[Released],
        drawn: &Drawn,
    ) -> Result<Vec<Vec<u8>>, RunError> {
        let table = program.state_with_init();
        let begins: HashMap<&str, Option<u32>> =
            table.iter().map(|(tensor, init)| (tensor.name.as_str(), begins(&tensor.name, *init))).collect();
        self.check_state(program, layout, drawn)?;
        self.check_copies(layout, drawn, &mut |_, _| {})?;
        let word = |tensor: &str| begins[tensor].unwrap_or(0).to_le_bytes();
        let begin = |(index, (tensor, init)): (usize, &(StateTensor, Init))| match drawn.has(&tensor.name) {
            true => bytes_of(&drawn.elements(index, [0, tensor.ty().len()], *init)),
            false => match word(&tensor.name) {
                // The system gives zeros when they are read, and slots of the optimizer may never be.
                [0, 0, 0, 0] => vec![0; tensor.ty().bytes()],
                word => word.repeat(tensor.ty().len()),
            },
        };
        let mut state: Vec<Vec<u8>> = table.iter().enumerate().map(begin).collect();
        let index: HashMap<&str, usize> = table.iter().map(|(t, _)| t.name.as_str()).zip(0..).collect();
        for released in layout {
            let Made::Of(parts) = &released.made else { continue };
            let Some(name) = self.name_of(released)? else { continue };
            let taken: Vec<&Part> = parts.iter().filter(|part| !drawn.has(&part.tensor)).collect();
            if taken.is_empty() {
                continue;
            }
            if taken.iter().all(|part| part.is_contiguous()) {
                for part in taken {
                    self.copy(&name, &released.shape, part.first, &mut state[index[part.tensor.as_str()]])?;
                }
                continue;
            }
            let words = self.words(&name, &released.shape)?;
            for part in taken {
                let tensor = state[index[part.tensor.as_str()]].as_chunks_mut::<4>().0;
                let elements = part.places().map(|at| words[at as usize].to_le_bytes());
                elements.zip(tensor).for_each(|(element, word)| *word = element);
            }
        }
        Ok(state)
    }

    /// The digests of state tensors that the files hold under their names in the state, one tensor in memory at a time.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape, or cannot be read.
    pub fn digests(&mut self, table: &[StateTensor]) -> Result<Vec<Digest>, RunError> {
        table.iter().map(|t| Ok(tensor::digest(&t.ty(), &self.tensor(t)?))).collect()
    }

    /// The canonical bytes of a state tensor that the files hold under its name in the state.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape, or cannot be read.
    pub fn tensor(&mut self, tensor: &StateTensor) -> Result<Vec<u8>, RunError> {
        Ok(bytes_of(&self.words(&tensor.name, &tensor.shape)?))
    }

    /// The elements of a state tensor that the files hold under its name in the state: in place if a file on disk has them as binary32.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape, or cannot be read.
    pub fn elements(&mut self, tensor: &StateTensor) -> Result<Elements, RunError> {
        let (number, place) = self.place(&tensor.name, &tensor.shape)?;
        Ok(match place.element {
            Element::F32 if self.files[number].on_disk => {
                Elements::InFile(self.files[number].path.clone(), place.first)
            }
            _ => Elements::Here(self.tensor(tensor)?),
        })
    }

    /// Writes a safetensors file in the released layout, from state tensors that these files hold under their names in the state.
    /// The bytes equal those of `save_pretrained` of transformers: metadata, order and padding are the safetensors library's. One
    /// released tensor and one of its parts are in memory at a time.
    ///
    /// `step` is the number of the state's step, which counters hold.
    ///
    /// # Errors
    /// If a tensor is missing or cannot be read, or the disk refuses.
    pub fn export(
        &mut self,
        disk: &Disk,
        path: &Path,
        table: &[StateTensor],
        layout: &[Released],
        step: u32,
    ) -> Result<(), RunError> {
        let shapes: HashMap<&str, &[u32]> = table.iter().map(|t| (t.name.as_str(), &t.shape[..])).collect();
        let mut written: Vec<&Released> = layout.iter().filter(|released| released.is_written()).collect();
        // The library's order: longer elements first, then by name.
        written.sort_unstable_by_key(|released| (!is_counter(released), &released.name));
        let mut failed = None;
        let result = disk.replace_by(path, |file| {
            disk.write(file, &export_header(&written))?;
            for released in &written {
                let bytes = match is_counter(released) {
                    true => Ok(i64::from(step).to_le_bytes().to_vec()),
                    false => self.released(released, &shapes),
                };
                match bytes {
                    Ok(bytes) => disk.write(file, &bytes)?,
                    Err(error) => {
                        failed = Some(error);
                        return Err(io::Error::other("the state could not be read"));
                    }
                }
            }
            Ok(())
        });
        failed.map_or(result, Err)
    }

    /// The same files, of which an export writes each weight with its adapter added: W + (B A) * (alpha / rank). An element is computed
    /// in binary64, the terms of B A in the order of the rank, and rounded once.
    #[must_use]
    pub fn merged(mut self, model: &Model) -> WeightFiles {
        let (scaling, all) = model.merges();
        let merges = all.into_iter().map(|names| {
            let [weight, a, b] = names.map(|name| port::parameter(&name));
            (weight, Merge { a, b, scaling })
        });
        self.merges = merges.collect();
        self
    }

    /// Adds an adapter to the words of a weight [outputs, inputs].
    fn merge(
        &mut self,
        merge: &Merge,
        words: &mut [u32],
        shapes: &HashMap<&str, &[u32]>,
    ) -> Result<(), RunError> {
        let shape = |name: &str| shapes.get(name).copied().unwrap_or(&[]);
        let number = |word: &u32| f64::from(f32::from_bits(*word));
        let [a, b] = [&merge.a, &merge.b].map(|name| self.words(name, shape(name)));
        let (a, b) = (a?, b?);
        let inputs = shape(&merge.a).last().map_or(1, |&inputs| inputs as usize);
        let rank = (a.len() / inputs).max(1);
        for (row, of_row) in words.chunks_mut(inputs).zip(b.chunks(rank)) {
            let mut sums = vec![0.0; row.len()];
            for (factor, of_rank) in of_row.iter().zip(a.chunks(inputs)) {
                let terms = of_rank.iter().map(|a| number(factor) * number(a));
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            }
            for (word, sum) in row.iter_mut().zip(sums) {
                let merged = (number(word) + sum * f64::from(merge.scaling)) as f32;
                *word = if merged.is_nan() { float::NAN } else { merged.to_bits() };
            }
        }
        Ok(())
    }

    /// A released tensor's bytes, assembled from state tensors of these shapes.
    fn released(&mut self, released: &Released, shapes: &HashMap<&str, &[u32]>) -> Result<Vec<u8>, RunError> {
        let mut bytes = vec![0; elements(&released.shape) * 4];
        for part in released.parts() {
            let shape = shapes.get(part.tensor.as_str()).copied().unwrap_or(&[]);
            let mut words = self.words(&part.tensor, shape)?;
            if let Some(merge) = self.merges.get(&part.tensor).cloned() {
                self.merge(&merge, &mut words, shapes)?;
            }
            let places = bytes.as_chunks_mut::<4>().0;
            part.places().zip(words).for_each(|(at, word)| places[at as usize] = word.to_le_bytes());
        }
        Ok(bytes)
    }
}

/// Opens a file and checks its header.
fn opened(stored: &Stored) -> Result<WeightFile, RunError> {
    let path = stored.path();
    let mut file = stored.open()?;
    let len = file.length();
    let head = mistaken::head(&mut file);
    let header = header(&mut file, len).map_err(RunError::io(path))?;
    let header = header.map_err(|why| mistaken::weights(path, &head, why))?;
    let on_disk = stored.on_disk().is_some();
    Ok(WeightFile { path: path.to_path_buf(), on_disk, file, header })
}

/// Reads a file's header, and checks that its tensors fill the file.
fn header(file: &mut Reading, len: u64) -> io::Result<Result<Header, String>> {
    let mut preamble = [0; PREAMBLE];
    file.rewind()?;
    if len < PREAMBLE as u64 {
        let why = format!(
            "it is no safetensors file: it has {len} bytes, and its header's length alone has {PREAMBLE}"
        );
        return Ok(Err(why));
    }
    file.read_exact(&mut preamble)?;
    let bytes = match header_len(preamble) {
        Ok(bytes) if bytes as u64 <= len - PREAMBLE as u64 => bytes,
        Ok(bytes) => {
            let why = format!(
                "its header is cut short: it has {bytes} bytes, and the file {len} with {PREAMBLE} before it"
            );
            return Ok(Err(why));
        }
        Err(why) => return Ok(Err(why)),
    };
    let mut text = vec![0; bytes];
    file.read_exact(&mut text)?;
    Ok(Header::parse(&text, len).and_then(|header| header.check_filled().map(|()| header)))
}

/// The multi-dimensional index of an element from its offset.
fn index_of(place: u64, shape: &[u32]) -> Vec<u64> {
    let mut left = place;
    let mut index: Vec<u64> =
        shape.iter().rev().map(|&d| (left % u64::from(d), left /= u64::from(d)).0).collect();
    index.reverse();
    index
}

/// The error about a copy that differs from its original, and what to do about it.
fn differing([name, source]: [&str; 2], index: Vec<u64>, [word, other]: [u32; 2]) -> String {
    let [value, theirs] = [word, other].map(|word| format!("{} ({word:08x})", f32::from_bits(word)));
    format!(
        "{name} differs from {source}, which the model uses in its place: element {index:?} is {value}, and {theirs} there. A head of its own is \
         \"tie_word_embeddings\": false in config.json (model.tied = false in a job); else leave {name} out of the file"
    )
}

fn is_counter(released: &Released) -> bool {
    released.made == Made::Counter
}

fn elements(shape: &[u32]) -> usize {
    shape.iter().map(|&d| d as usize).product()
}

/// The header of a released file: its length as a little-endian u64, then JSON, padded to eight bytes.
fn export_header(written: &[&Released]) -> Vec<u8> {
    let mut json = r#"{"__metadata__":{"format":"pt"}"#.to_string();
    let mut end = 0;
    for released in written {
        let (dtype, size) = if is_counter(released) { ("I64", COUNTER_BYTES) } else { ("F32", 4) };
        let begin = end;
        end += elements(&released.shape) * size;
        let (name, shape) = (serde_json::json!(released.name), serde_json::json!(released.shape));
        json += &format!(r#",{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#);
    }
    json.push('}');
    let mut json = json.into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// The word that all elements of a state tensor have where no file holds it: a buffer's constant, and zero for an optimizer's
/// slots.
fn begins(name: &str, init: Init) -> Option<u32> {
    match init {
        _ if name.starts_with("param/") => None,
        Init::Zeros => Some(0),
        Init::Ones => Some(float::ONE),
        Init::Normal { .. } | Init::Uniform { .. } => None,
    }
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let few = names[..names.len().min(LISTED)].join(", ");
    if more == 0 { few } else { format!("{few} and {more} more") }
}
