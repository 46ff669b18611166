//! The errors in a job's data table beyond single keys: the kind must fit the batch tensors, and names and masks must fit the kind.

use super::data::layout;
use super::spec::{DataFiles, DataSpec, Labelled};
use tiebreak_contract::program::models::BatchTensor;

/// A dotted key, and the error in it.
pub(super) type Found = Option<(String, String)>;

pub(super) fn found(key: &str, why: impl Into<String>) -> Found {
    Some((key.to_string(), why.into()))
}

/// The error in data files: they must fit the batch tensors of one sample, and have names that their kind demands. Nothing is
/// opened.
pub(super) fn data_error(data: &DataSpec, sample: &[BatchTensor]) -> Found {
    let files = &data.files;
    if let Err(why) = layout::fits(files, sample) {
        return found("data.kind", why);
    }
    let text = match files {
        DataFiles::Arrays(arrays) => arrays.has_ids(),
        _ => matches!(files, DataFiles::Bytes { .. } | DataFiles::Tokens { .. }),
    };
    if text && data.augment.is_any() {
        return found(
            "data.augment",
            "images are cropped and flipped, and a text has none; leave the key out",
        );
    }
    match files {
        DataFiles::Arrays(arrays) => arrays_error(arrays),
        DataFiles::Tokens { paths, masks, .. } if !masks.is_empty() => {
            masks_error(paths.len(), masks.len(), data.uncounted)
        }
        _ => None,
    }
}

/// The error in the masks of files of tokens.
fn masks_error(files: usize, masks: usize, uncounted: Option<u32>) -> Found {
    if masks != files {
        let why = format!("each file of tokens has one mask: there are {files} files, and {masks} masks");
        return found("data.mask", why);
    }
    let why = "a mask needs loss.ignore: the label of the targets that do not count. A job of a program file has no loss.ignore, and takes no mask";
    if uncounted.is_none() { found("data.mask", why) } else { None }
}

fn arrays_error(arrays: &Labelled) -> Found {
    let ends = [
        ("inputs", &arrays.inputs, &arrays.inputs_tensor),
        ("labels", &arrays.labels, &arrays.labels_tensor),
    ];
    for (key, path, tensor) in ends {
        match (layout::is_npy(path), layout::is_safetensors(path), tensor) {
            (true, _, None) | (_, true, Some(_)) => {}
            (true, _, Some(_)) => {
                return found(
                    &format!("data.{key}_tensor"),
                    "a .npy file has one array without a name; leave the key out",
                );
            }
            (_, true, None) => {
                return found(
                    &format!("data.{key}"),
                    format!("a safetensors file has several tensors: name one by {key}_tensor"),
                );
            }
            _ => {
                return found(
                    &format!("data.{key}"),
                    "arrays are .npy or .safetensors files, or either with .gz",
                );
            }
        }
    }
    None
}
