//! Training states as safetensors files: every tensor of the state table, binary32, in the table's order.
//!
//! The file is a container for people's tools. Records promise the digest of the tensors, never of the file.

use std::ops::Range;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata};

use super::error::RunError;
use super::stored::Stored;
use tiebreak_contract::parallel;
use tiebreak_contract::program::step::{StateTensor, state_bytes};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::state::StateRoots;
use tiebreak_record::commit::{Malformed, tensor};

/// The bytes that headers of other writers may have beyond ours, for blanks and metadata.
const HEADER_SLACK: usize = 1 << 16;

/// The most bytes of several tensors that are read at once.
const TOGETHER: u64 = 1 << 20;

/// Bytes of small tensors that are gathered before they are written.
const GATHERED: usize = 1 << 20;

/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 23;

/// Writes the tensors that `state` lists, one at a time: `visit` shows each tensor's canonical bytes, in order.
///
/// # Errors
/// The errors of `visit` or the store.
pub fn write<E: From<RunError>>(
    file: impl Into<Stored>,
    state: &[StateTensor],
    visit: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<(), E>,
) -> Result<(), E> {
    let mut visited = Ok(());
    let replaced = file.into().replace_by(|file| {
        let mut gathered = header(state);
        let mut written = Ok(());
        visited = visit(&mut |bytes| {
            let is_large = bytes.len() >= GATHERED;
            if !is_large {
                gathered.extend_from_slice(bytes);
            }
            if (is_large || gathered.len() >= GATHERED) && written.is_ok() {
                written = file.write_all(&gathered);
                gathered.clear();
            }
            if is_large && written.is_ok() {
                written = file.write_all(bytes);
            }
        });
        written?;
        match visited {
            Ok(()) => file.write_all(&gathered),
            Err(_) => Err(std::io::Error::other("the state could not be read")),
        }
    });
    replaced.or_else(|error| std::mem::replace(&mut visited, Ok(())).and(Err(error.into())))
}

/// The header of a safetensors file: its length as a little-endian u64, then JSON, padded to eight bytes.
fn header(state: &[StateTensor]) -> Vec<u8> {
    let mut end = 0;
    let mut entries = serde_json::Map::new();
    for tensor in state {
        let start = end;
        end += tensor.ty().bytes();
        let entry =
            serde_json::json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end] });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// The most bytes of a header, its length included.
fn header_max(state: &[StateTensor]) -> usize {
    2 * header(state).len() + HEADER_SLACK
}

/// Checks that a released model with roots `found` has the parameters and buffers of a final state with these roots.
///
/// # Errors
/// If it has others.
pub fn is_released(path: &Path, found: &StateRoots, due: &StateRoots) -> Result<(), RunError> {
    match found.0.iter().zip(&due.0).take(2).find(|(found, due)| found != due) {
        None => Ok(()),
        Some((found, due)) => {
            let why = "the released model is not the final state's parameters and buffers";
            Err(RunError::invalid(path, format!("{why}: a root is {}", found.not(due))))
        }
    }
}

/// Reads exactly the tensors of `state`, each with its shape.
///
/// # Errors
/// If the file cannot be read, or holds other tensors.
pub fn read(file: impl Into<Stored>, state: &[StateTensor]) -> Result<Vec<Vec<u8>>, RunError> {
    let file = file.into();
    let layout = layout_of(&file, state)?;
    read_at(&layout.into_iter().map(|range| (&file, range)).collect::<Vec<_>>())
}

/// Reads tensors by their places.
pub(super) fn read_at(places: &[Place]) -> Result<Vec<Vec<u8>>, RunError> {
    let mut tensors = Vec::with_capacity(places.len());
    each(places, |_, bytes| {
        tensors.push(bytes);
        Ok::<_, RunError>(())
    })?;
    Ok(tensors)
}

/// The place of a tensor: a file, and the range of its bytes there.
pub(super) type Place<'a> = (&'a Stored, Range<u64>);

/// Passes tensors to `pass` by their places, with their indices. Small ones that lie one behind another are read at once: a store that is
/// far away takes as long for each read.
pub(super) fn each<E: From<RunError>>(
    places: &[Place],
    mut pass: impl FnMut(usize, Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut first = 0;
    while let Some((file, place)) = places.get(first) {
        let follows = |pair: &[Place]| {
            let [(one, before), (other, after)] = pair else { return false };
            std::ptr::eq(*one, *other)
                && before.end == after.start
                && after.end.saturating_sub(place.start) <= TOGETHER
        };
        let more = places[first..].windows(2).take_while(|pair| follows(pair)).count();
        let bytes = file.read_range(place.start..places[first + more].1.end)?;
        match more {
            0 => pass(first, bytes)?,
            _ => (first..=first + more).try_for_each(|index| {
                let Range { start, end } = &places[index].1;
                let [start, end] = [start, end].map(|at| (at - place.start) as usize);
                pass(index, bytes[start..end].to_vec())
            })?,
        }
        first += more + 1;
    }
    Ok(())
}

/// The digests of exactly the tensors of `state`, without a copy of the state in memory.
///
/// # Errors
/// As [`read`].
pub fn digests(file: impl Into<Stored>, state: &[StateTensor]) -> Result<Vec<Digest>, RunError> {
    let file = file.into();
    let layout = layout_of(&file, state)?;
    digests_at(&layout.into_iter().map(|range| (&file, range)).collect::<Vec<_>>(), state)
}

/// The digests of the tensors of `state`, which lie in these places.
pub(super) fn digests_at(places: &[Place], state: &[StateTensor]) -> Result<Vec<Digest>, RunError> {
    let digest = |i: usize| {
        let (file, Range { start, end }) = places[i].clone();
        let mut hasher = blake3::Hasher::new();
        for first in (start..end).step_by(CHUNK) {
            hasher.update(&file.read_range(first..end.min(first + CHUNK as u64))?);
        }
        Ok(tensor::digest_from_root(&state[i].ty(), hasher.finalize().as_bytes()))
    };
    parallel::map(state.len(), digest).into_iter().collect()
}

/// The places of exactly the tensors of `state` in a file.
pub(super) fn layout_of(file: &Stored, state: &[StateTensor]) -> Result<Vec<Range<u64>>, RunError> {
    let (length, header) = read_header(file, state)?;
    layout(file.path(), &header, length, state)
}

/// The places of exactly the tensors of `all` in a file, or those of `few` of them if the file has only as many, and which of both.
pub(super) fn layout_of_few(
    file: &Stored,
    all: &[StateTensor],
    few: &[StateTensor],
) -> Result<(bool, Vec<Range<u64>>), RunError> {
    let (length, header) = read_header(file, all)?;
    match layout(file.path(), &header, length, few) {
        Ok(found) => Ok((true, found)),
        Err(error) => match layout(file.path(), &header, length, all) {
            Ok(found) => Ok((false, found)),
            Err(_) => Err(error),
        },
    }
}

/// The length of a file with at most the tensors of `state`, and its header.
fn read_header(file: &Stored, state: &[StateTensor]) -> Result<(u64, Vec<u8>), RunError> {
    let (length, max) = (file.length()?, state_bytes(state) + header_max(state) as u64);
    if length > max {
        return Err(RunError::malformed(file.path(), Malformed::TooLarge { what: "file", limit: max }));
    }
    let head = file.read_range(0..length.min(8))?;
    let header = header_end(file.path(), &head, state)?.min(length);
    Ok((length, file.read_range(0..header)?))
}

/// [`read`] from a file's contents; `path` names them in errors.
///
/// # Errors
/// If the file is malformed, or holds other tensors.
pub fn parse(path: &Path, bytes: &[u8], state: &[StateTensor]) -> Result<Vec<Vec<u8>>, RunError> {
    let header = header_end(path, bytes, state)?.min(bytes.len() as u64) as usize;
    let layout = layout(path, &bytes[..header], bytes.len() as u64, state)?;
    Ok(layout.into_iter().map(|range| bytes[range.start as usize..range.end as usize].to_vec()).collect())
}

/// The end of the header of a file that begins with `bytes`.
fn header_end(path: &Path, bytes: &[u8], state: &[StateTensor]) -> Result<u64, RunError> {
    // The crate would keep all that a header says, such as hundreds of megabytes of __metadata__.
    let (most, len) = (header_max(state) as u64, bytes.first_chunk().map(|len| u64::from_le_bytes(*len)));
    len.filter(|&len| len <= most).map(|len| len + 8).ok_or_else(|| {
        let found = len.map_or("none".into(), |len| format!("one of {len} bytes"));
        RunError::invalid(path, format!("a header of at most {most} bytes is wanted, and it has {found}"))
    })
}

/// The places of exactly the tensors of `state` in a file of `length` bytes that begins with `header`.
fn layout(
    path: &Path,
    header: &[u8],
    length: u64,
    state: &[StateTensor],
) -> Result<Vec<Range<u64>>, RunError> {
    let refuse = |error: SafeTensorError| RunError::invalid(path, error.to_string());
    let (start, json) = (header.len() as u64, header.get(8..).unwrap_or_default());
    // The crate checks that tensors follow one another and have the sizes of their shapes.
    let found: Metadata = serde_json::from_slice(json)
        .map_err(|error| refuse(SafeTensorError::InvalidHeaderDeserialization(error)))?;
    if (found.data_len() as u64).checked_add(start) != Some(length) {
        return Err(refuse(SafeTensorError::MetadataIncompleteBuffer));
    }
    let tensors = found.tensors();
    if tensors.len() != state.len() {
        return Err(RunError::invalid(
            path,
            format!("{} tensors, the program has {}", tensors.len(), state.len()),
        ));
    }
    let mut layout = Vec::new();
    for t in state {
        let Some(info) = tensors.get(&t.name) else {
            return Err(refuse(SafeTensorError::TensorNotFound(t.name.clone())));
        };
        let shape: Vec<usize> = t.shape.iter().map(|&d| d as usize).collect();
        if info.dtype != Dtype::F32 || info.shape != shape {
            let why =
                format!("{} is {:?} {:?}, the program has F32 {shape:?}", t.name, info.dtype, info.shape);
            return Err(RunError::invalid(path, why));
        }
        let (first, end) = info.data_offsets;
        layout.push(start + first as u64..start + end as u64);
    }
    Ok(layout)
}
