//! Training states as safetensors files: every tensor of the state table, binary32, in the table's order.
//!
//! The file is a container for people's tools. Records promise the digest of the tensors, never of the file.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};

use super::error::RunError;
use super::stored::Stored;
use tiebreak_contract::program::step::{StateTensor, state_bytes};
use tiebreak_record::commit::state::StateRoots;

/// The bytes that headers of other writers may have beyond ours, for blanks and metadata.
const HEADER_SLACK: usize = 1 << 16;

/// Bytes that are gathered before they are written.
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
            gathered.extend_from_slice(bytes);
            if gathered.len() >= CHUNK && written.is_ok() {
                written = file.write_all(&gathered);
                gathered.clear();
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
    parse(file.path(), &file.read(state_bytes(state) + header_max(state) as u64)?, state)
}

/// [`read`] from a file's contents; `path` names them in errors.
///
/// # Errors
/// If the file is malformed, or holds other tensors.
pub fn parse(path: &Path, bytes: &[u8], state: &[StateTensor]) -> Result<Vec<Vec<u8>>, RunError> {
    // The crate would keep all that a header says, such as hundreds of megabytes of __metadata__.
    let (most, len) = (header_max(state), bytes.first_chunk().map(|len| u64::from_le_bytes(*len)));
    if len.is_none_or(|len| len > most as u64) {
        let found = len.map_or("none".into(), |len| format!("one of {len} bytes"));
        return Err(RunError::invalid(
            path,
            format!("a header of at most {most} bytes is wanted, and it has {found}"),
        ));
    }
    let file = SafeTensors::deserialize(bytes).map_err(|error| RunError::invalid(path, error.to_string()))?;
    if file.len() != state.len() {
        return Err(RunError::invalid(
            path,
            format!("{} tensors, the program has {}", file.len(), state.len()),
        ));
    }
    let mut tensors = Vec::new();
    for t in state {
        let view = file.tensor(&t.name).map_err(|error| RunError::invalid(path, error.to_string()))?;
        let shape: Vec<usize> = t.shape.iter().map(|&d| d as usize).collect();
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let why =
                format!("{} is {:?} {:?}, the program has F32 {shape:?}", t.name, view.dtype(), view.shape());
            return Err(RunError::invalid(path, why));
        }
        tensors.push(view.data().to_vec());
    }
    Ok(tensors)
}
