//! Which parameters a job's patterns name, and how training treats each parameter: frozen ones and optimizer groups.

use std::collections::{HashMap, HashSet};

use super::spec::ModelJob;
use crate::program::models::ModelParameter;
use crate::program::optimizer::Treatment;

/// The most patterns of a key that have a `*`: each is compared with every name of the model.
const PATTERNS_MAX: usize = 256;
/// The most bytes of one that has. No model has longer names.
const PATTERN_BYTES_MAX: usize = 256;

/// Whether a pattern, in which `*` stands for any characters, is the name.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(last) = parts.next_back() else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The places in `parameters` of those that each list of patterns names.
///
/// # Errors
/// If a pattern matches no parameter, or too many are no plain names.
fn named<'a>(
    lists: impl Iterator<Item = &'a [String]> + Clone,
    parameters: &[ModelParameter],
) -> Result<Vec<HashSet<usize>>, String> {
    if lists.clone().flatten().filter(|pattern| pattern.contains('*')).count() > PATTERNS_MAX {
        return Err(format!("at most {PATTERNS_MAX} names may have a `*`"));
    }
    let places: HashMap<&str, usize> =
        parameters.iter().enumerate().map(|(place, p)| (p.name.as_str(), place)).collect();
    let of_pattern = |pattern: &String| -> Result<Vec<usize>, String> {
        let found: Vec<usize> = match pattern.contains('*') {
            false => places.get(pattern.as_str()).copied().into_iter().collect(),
            true if pattern.len() > PATTERN_BYTES_MAX => Vec::new(),
            true => (0..parameters.len()).filter(|&i| matches(pattern, &parameters[i].name)).collect(),
        };
        if found.is_empty() {
            let some = parameters.iter().take(8).map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(format!("no parameter is named {pattern:?}; the model has {some}, ..."));
        }
        Ok(found)
    };
    let of_list = |list: &[String]| -> Result<HashSet<usize>, String> {
        let found = list.iter().map(of_pattern).collect::<Result<Vec<_>, String>>()?;
        Ok(found.into_iter().flatten().collect())
    };
    lists.map(of_list).collect()
}

impl ModelJob {
    /// How training treats each parameter, in the order of the model's table.
    ///
    /// # Errors
    /// If a pattern matches no parameter, too many are no plain names, or every parameter is frozen: (key, why).
    pub fn treatments(&self) -> Result<Vec<Treatment>, (&'static str, String)> {
        let parameters = self.model.parameters();
        let frozen = named([self.frozen.as_slice()].into_iter(), &parameters);
        let frozen = frozen.map_err(|why| ("frozen", why))?.remove(0);
        if frozen.len() == parameters.len() {
            return Err(("frozen", "every parameter is frozen, so there is nothing to train".into()));
        }
        let spec = &self.optimizer;
        let lists = spec.groups.iter().map(|group| group.parameters.as_slice());
        let groups = named(lists, &parameters).map_err(|why| ("optimizer.group", why))?;
        // Of several groups that name a parameter the first counts.
        let mut group_of = HashMap::new();
        for (group, places) in spec.groups.iter().zip(&groups) {
            places.iter().for_each(|&place| {
                group_of.entry(place).or_insert(group);
            });
        }
        let treatment = |(place, parameter): (usize, &ModelParameter)| {
            let usual = spec.optimizer.treatment(parameter.decayed);
            let usual = Treatment { frozen: frozen.contains(&place), decay: spec.decay, ..usual };
            group_of.get(&place).map_or(usual, |group| Treatment {
                weight_decay: group.weight_decay.unwrap_or(usual.weight_decay),
                rate_factor: group.rate_factor,
                ..usual
            })
        };
        Ok(parameters.iter().enumerate().map(treatment).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("wte", "wte", true),
            ("wte", "wte2", false),
            ("block0.*", "block0.attention.query", true),
            ("block0.*", "block01.attention", false),
            ("*.gain", "block0.ln1.gain", true),
            ("*.gain", "block0.ln1.bias", false),
            ("*.ln*.gain", "block0.ln1.gain", true),
            ("a*a", "a", false),
            ("*", "", true),
            ("**", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
