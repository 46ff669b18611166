//! The thresholds of a job file's `[rounding.class]`, written into its text.

use std::collections::BTreeMap;

use tiebreak_contract::program::products::ProductClass;
use tiebreak_job::Job;
use tiebreak_record::rounding::thresholds::{Preset, Rounding};

/// The first comment of a table that was measured.
pub const MEASURED: &str = "# measured by `tiebreak log calibrate`:";

/// A job file's text with `table` (`[rounding.class]`, its comments and its keys) in place of the thresholds of classes that it has. All other lines stay as
/// they are, but an inline `rounding` becomes a table.
///
/// # Errors
/// If the text is written in a way that is not understood here: what would be written is read again, and says the same but for the thresholds.
pub fn with_thresholds(
    text: &str,
    table: &[String],
    thresholds: &BTreeMap<ProductClass, u32>,
) -> Result<String, String> {
    let job = Job::parse("job", text).map_err(|error| error.to_string())?;
    let (mut kept, inline) = without_thresholds(text);
    let rounding = job.rounding.clone().unwrap_or_default();
    if inline {
        kept.extend([String::new(), "[rounding]".to_string()]);
        kept.extend(keys(&rounding));
    }
    while kept.last().is_some_and(|line| line.trim().is_empty()) {
        kept.pop();
    }
    kept.push(String::new());
    kept.extend(table.iter().cloned());
    let written = kept.join("\n") + "\n";

    let by_hand = |why: &str| format!("{why}: write the thresholds by hand");
    let again = Job::parse("job", &written).map_err(|error| by_hand(&error.to_string()))?;
    let expected = Rounding { class: thresholds.clone(), ..rounding };
    if again.rounding != Some(expected) || rest(&written) != rest(text) {
        return Err(by_hand("its [rounding] is written in a way that this command does not understand"));
    }
    Ok(written)
}

/// All that a job file says but its `rounding`; `None` if it is no TOML.
fn rest(text: &str) -> Option<toml::Table> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    table.remove("rounding");
    Some(table)
}

/// The lines but those that give thresholds of classes, and but an inline `rounding` if there is one.
fn without_thresholds(text: &str) -> (Vec<String>, bool) {
    let (mut kept, mut section, mut inline) = (Vec::<String>::new(), String::new(), false);
    for line in text.lines() {
        let plain: String = line.chars().filter(|c| !matches!(c, ' ' | '\t' | '"' | '\'')).collect();
        if let Some(name) = plain.strip_prefix('[').and_then(|rest| Some(rest.split_once(']')?.0)) {
            section = name.to_string();
            if section == "rounding.class" {
                drop_comments(&mut kept);
            }
        }
        let key = plain.split_once('=').map_or("", |(key, _)| key);
        let dropped = match section.as_str() {
            "rounding.class" => true,
            "rounding" => key == "class" || key.starts_with("class."),
            "" => key == "rounding" || key.starts_with("rounding."),
            _ => false,
        };
        inline |= dropped && section.is_empty();
        if !dropped {
            kept.push(line.to_string());
        }
    }
    (kept, inline)
}

/// Drops the comments that stand above a table that was measured.
fn drop_comments(kept: &mut Vec<String>) {
    let comments = kept.iter().rev().take_while(|line| line.starts_with('#')).count();
    let first = kept.len() - comments;
    if let Some(at) = kept[first..].iter().position(|line| line == MEASURED) {
        kept.truncate(first + at);
    }
}

/// The keys of `[rounding]` but the thresholds of classes.
fn keys(rounding: &Rounding) -> Vec<String> {
    let preset = rounding.preset.map(|Preset::Paper| "preset = \"paper\"".to_string());
    let numbers = [
        ("bits", rounding.bits.map(u32::from)),
        ("floor", rounding.floor.map(u32::from)),
        ("threshold", rounding.threshold),
    ];
    let numbers = numbers.into_iter().filter_map(|(key, value)| Some(format!("{key} = {}", value?)));
    preset.into_iter().chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "# A job.\nsteps = 9 # of them\nmodel = { kind = \"mlp\", inputs = 4, hidden = [4], classes = 3 }\n\
        data = { kind = \"idx\", images = \"a\", labels = \"b\" }\noptimizer = { kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }\n\
        schedule = { peak = 1e-3 }\nbatch = { micro_batch = 2 }\n";

    fn written(text: &str) -> Result<String, String> {
        let thresholds = BTreeMap::from([(ProductClass::Linear, 7), (ProductClass::LinearDw, 9)]);
        let table = ["[rounding.class]", MEASURED, "linear = 7", "linear_dw = 9"].map(String::from);
        with_thresholds(text, &table, &thresholds)
    }

    #[test]
    fn thresholds_take_the_place_of_those_that_are_there() {
        let end = format!("[rounding.class]\n{MEASURED}\nlinear = 7\nlinear_dw = 9\n");
        assert_eq!(written(JOB).unwrap(), format!("{JOB}\n{end}"));
        for (before, rounding) in [
            ("[rounding]\nbits = 32\n", "[rounding]\nbits = 32\n"),
            ("[rounding]\nbits = 32\nclass = { head = 3 }\n", "[rounding]\nbits = 32\n"),
            ("[rounding]\nclass.head = 3\n\n", "[rounding]\n"),
            ("[rounding.class] # old\nlinear = 1\n[rounding]\nfloor = 20\n", "[rounding]\nfloor = 20\n"),
            (&format!("{MEASURED}\n# linear 3 products\n[ rounding . class ]\nlinear = 1\n"), ""),
        ] {
            let once = written(&format!("{JOB}{before}")).unwrap();
            assert_eq!(once, format!("{JOB}{rounding}\n{end}"), "{before}");
            assert_eq!(written(&once).unwrap(), once, "{before}: written twice");
        }
        // Inline tables and dotted keys stand among the first keys.
        for before in [
            "rounding = { threshold = 5, class = { head = 3 } }",
            "rounding.threshold = 5\nrounding.class.head = 3",
        ] {
            let once = written(&format!("{before}\n{JOB}")).unwrap();
            assert_eq!(once, format!("{JOB}\n[rounding]\nthreshold = 5\n\n{end}"), "{before}");
        }
        let odd = format!("rounding = {{ class = {{ head = 3 }}, preset = \"\"\"\npaper\"\"\" }}\n{JOB}");
        assert!(written(&odd).unwrap_err().contains("by hand"));
    }
}
