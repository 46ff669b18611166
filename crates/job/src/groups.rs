//! The parameters that a job's patterns name: the treatment of each in training (frozen, optimizer groups), and those that begin
//! anew beside files of weights.

use std::collections::{HashMap, HashSet};

use super::spec::{Job, ModelJob};
use tiebreak_contract::program::keys::matches;
use tiebreak_contract::program::models::ModelParameter;
use tiebreak_contract::program::models::released::Released;
use tiebreak_contract::program::optimizer::Treatment;
use tiebreak_contract::program::step::port;

/// The most patterns of a key that contain a `*`: each is compared with every name of the model.
const PATTERNS_MAX: usize = 256;
/// The most bytes of a pattern that contains a `*`. No model has longer names.
const PATTERN_BYTES_MAX: usize = 256;

/// For each list of patterns, the indices of the names in `names` that it matches.
///
/// # Errors
/// If a pattern matches no name, or too many patterns contain a `*`.
fn named<'a>(
    lists: impl Iterator<Item = &'a [String]> + Clone,
    names: &[String],
) -> Result<Vec<HashSet<usize>>, String> {
    if lists.clone().flatten().filter(|pattern| pattern.contains('*')).count() > PATTERNS_MAX {
        return Err(format!("at most {PATTERNS_MAX} names may have a `*`"));
    }
    let places: HashMap<&str, usize> =
        names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let of_pattern = |pattern: &String| -> Result<Vec<usize>, String> {
        let found: Vec<usize> = match pattern.contains('*') {
            false => places.get(pattern.as_str()).copied().into_iter().collect(),
            true if pattern.len() > PATTERN_BYTES_MAX => Vec::new(),
            true => (0..names.len()).filter(|&i| matches(pattern, &names[i])).collect(),
        };
        if found.is_empty() {
            let some = names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
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
    /// The factors by which trained parameters take the learning rate, each once.
    #[doc(hidden)] // the command's alone
    pub fn rate_factors(&self) -> Vec<f32> {
        let all = self.treatments().unwrap_or_default();
        let mut factors: Vec<f32> = all.iter().filter(|it| !it.frozen).map(|it| it.rate_factor).collect();
        factors.sort_by(f32::total_cmp);
        factors.dedup();
        factors
    }

    /// The treatment of each parameter in training, in the order of the model's table.
    ///
    /// # Errors
    /// If a pattern matches no parameter, too many patterns contain a `*`, or every parameter is frozen: (key, why).
    pub(crate) fn treatments(&self) -> Result<Vec<Treatment>, (&'static str, String)> {
        let parameters = self.model.parameters();
        let names: Vec<String> = parameters.iter().map(|p| p.name.clone()).collect();
        let frozen = named([self.frozen.as_slice()].into_iter(), &names);
        let mut frozen = frozen.map_err(|why| ("frozen", why))?.remove(0);
        frozen.extend(0..self.model.frozen());
        if frozen.len() == parameters.len() {
            return Err(("frozen", "every parameter is frozen, so there is nothing to train".into()));
        }
        let spec = &self.optimizer;
        let lists = spec.groups.iter().map(|group| group.parameters.as_slice());
        let groups = named(lists, &names).map_err(|why| ("optimizer.group", why))?;
        // If several groups name a parameter, the first one counts.
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

impl Job {
    /// The state's parameters and buffers, `param/NAME` and `buffer/NAME`, that begin anew although the job begins from weights.
    /// Their order is the state's.
    ///
    /// # Errors
    /// If a pattern matches no tensor, too many patterns contain a `*`, or all parameters are named.
    #[doc(hidden)] // for the layers above
    pub fn reinitialized(&self) -> Result<Vec<String>, String> {
        let (Some(job), patterns) = (self.model(), self.init.reinitialize.as_slice()) else {
            return Ok(Vec::new());
        };
        // The first adapter's place, if all adapters are drawn.
        let adapters = Some(job.model.frozen()).filter(|&first| first > 0 && self.init.draws_adapters());
        if patterns.is_empty() && adapters.is_none() {
            return Ok(Vec::new());
        }
        let parameters: Vec<String> = job.model.parameters().into_iter().map(|p| p.name).collect();
        let buffers = job.model.statistics().into_iter().flat_map(|statistic| statistic.running());
        let count = parameters.len();
        let names: Vec<String> = parameters.into_iter().chain(buffers).collect();
        let drawn = named([patterns].into_iter(), &names).map_err(|why| match theirs(self, patterns) {
            Some(theirs) => format!("{why}; {theirs}"),
            None => why,
        });
        let mut drawn = drawn?.remove(0);
        drawn.extend(adapters.into_iter().flat_map(|first| first..count));
        if (0..count).all(|place| drawn.contains(&place)) {
            return Err(
                "every parameter is named, so the files give none: leave weights and this key out".into()
            );
        }
        let state = |(place, name): (usize, String)| {
            let port = if place < count { port::parameter(&name) } else { port::buffer(&name) };
            drawn.contains(&place).then_some(port)
        };
        Ok(names.into_iter().enumerate().filter_map(state).collect())
    }
}

/// The program's name of the first tensor whose name in released files a pattern matches, to help users who took a name from such
/// files.
fn theirs(job: &Job, patterns: &[String]) -> Option<String> {
    let layout = job.model()?.model.released()?;
    let found = |released: &&Released| {
        patterns.iter().any(|pattern| {
            pattern.len() <= PATTERN_BYTES_MAX && released.names().any(|name| matches(pattern, name))
        })
    };
    let released = layout.iter().filter(|released| !released.parts().is_empty()).find(found)?;
    let ours = released.parts()[0].tensor.split_once('/')?.1;
    Some(format!("the files' {} is {ours} here", released.name))
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
