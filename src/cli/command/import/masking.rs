//! The decisions of `tiebreak import` for encoders: the tokens that they have to find, and layers of other heads.

use serde_json::json;

use super::images::Decided;
use tiebreak_contract::program::models::released::{Made, Released};
use tiebreak_contract::program::models::{Bert, Model};
use tiebreak_run::run::companions::{Companions, SpecialTokens};
use tiebreak_run::run::weights::WeightFiles;

/// Decides what a job of an encoder has. The names in `files` begin with `prefix`.
pub fn decide(
    model: &Model,
    companions: &Companions,
    decided: &mut Decided,
    (files, prefix): (&WeightFiles, &str),
) {
    if let Model::Bert(_) | Model::Vit(_) = model {
        let is_there = |name: &str| files.shape(&format!("{prefix}{name}")).is_some();
        decided.said.extend(left_out(&model.released().unwrap_or_default(), is_there));
    }
    if let Model::Bert(bert) = model
        && bert.classes.is_none()
    {
        decided.masking = tables(bert, &companions.special_tokens(), &mut decided.said);
    }
}

/// The tables of a job that say which tokens the model has to find. `said` gets what the user has to know of them.
fn tables(bert: &Bert, special: &SpecialTokens, said: &mut Vec<String>) -> String {
    let is_known = |id: &u32| *id < bert.vocabulary;
    let token = special.mask.filter(is_known).unwrap_or_else(|| {
        let last = bert.vocabulary.saturating_sub(1);
        said.push(format!(
            "no file of a tokenizer names the token that stands for a masked one: the job has {last}, the last; write its id as data.masking.token"
        ));
        last
    });
    let uncounted = bert.padding.unwrap_or(token);
    let never: Vec<u32> = special.all.iter().copied().filter(is_known).collect();
    format!(
        "\n[loss]\n# The label of positions that are not chosen; this token is never chosen.\nignore = {uncounted}\n\n\
         [data.masking]\n# The token that stands for a masked one, and the tokenizer's special tokens, which are never chosen.\n\
         token = {token}\nnever = {}\n",
        json!(never)
    )
}

/// The weights in the files that the model lacks, in words, if there are any.
fn left_out(layout: &[Released], is_there: impl Fn(&str) -> bool) -> Option<String> {
    let is_layer =
        |released: &&Released| released.made == Made::Mask && !released.name.ends_with("position_ids");
    let names = layout.iter().filter(is_layer).flat_map(|released| released.names());
    let names: Vec<&str> = names.filter(|name| is_there(name)).collect();
    let why = "are another head's: the job does not read them, and an export leaves them out";
    (!names.is_empty()).then(|| format!("{} {why}", names.join(", ")))
}
