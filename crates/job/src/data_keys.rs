//! The errors in a job's data table beyond single keys: the kind must fit the batch tensors, and names and masks must fit the kind.

use super::data::{layout, threshold};
use super::spec::{DataFiles, DataSpec, Labelled, Masking};
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
    if let Some(masking) = &data.masking
        && let Some(wrong) = masking_error(masking, data, text, sample[0].below)
    {
        return Some(wrong);
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

/// The error in the masking of tokens below `vocabulary`.
fn masking_error(masking: &Masking, data: &DataSpec, is_text: bool, vocabulary: u32) -> Found {
    let Masking { probability, token, mask_share, random_share, never } = masking;
    if !is_text {
        return found("data.masking", "tokens are masked, and these data have none; leave the table out");
    }
    if matches!(&data.files, DataFiles::Tokens { masks, .. } if !masks.is_empty()) {
        return found(
            "data.masking",
            "it cannot be together with `mask`: masking chooses the targets; leave one out",
        );
    }
    let bounds = [("token", token)].into_iter().chain(never.iter().map(|token| ("never", token)));
    let numbers = [("probability", *probability), ("mask_share", *mask_share)];
    let both = mask_share + random_share;
    if let Some((key, token)) = bounds.into_iter().find(|(_, token)| **token >= vocabulary) {
        return found(
            &format!("data.masking.{key}"),
            format!("must be below vocabulary ({vocabulary}), is {token}"),
        );
    }
    if let Some((key, share)) = numbers.into_iter().find(|(_, share)| *share > 1.0) {
        return found(&format!("data.masking.{key}"), format!("must be at most 1, is {share}"));
    }
    if threshold(*probability) == 0 {
        let why = format!("must be above 2^-33, is {probability}: no token would be chosen");
        return found("data.masking.probability", why);
    }
    if both > 1.0 {
        let why = format!("must be at most 1 with mask_share, and the two are {both} together");
        return found("data.masking.random_share", why);
    }
    let why = "masking needs loss.ignore: the label of the tokens that are not chosen, such as that of the padding. A job of a program file has no loss.ignore, and masks nothing";
    if data.uncounted.is_none() { found("data.masking", why) } else { None }
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
