//! The warnings of `tiebreak job check` about data and weights that hold NaN or infinities: training on them gives a loss that is no number.

use serde_json::{Value, json};

use crate::cli::view::report::Printer;
use tiebreak_contract::program::step::Program;
use tiebreak_job::Job;
use tiebreak_job::data::Dataset;
use tiebreak_run::run::RunError;
use tiebreak_run::step::finite;

/// Inputs of the data files that are not finite, file by file: with the first sample and element.
pub fn of_data(printer: Printer, dataset: &mut Dataset, job: &Job) -> Result<Vec<Value>, RunError> {
    let bar = printer.bar(0, "samples");
    let found = dataset.not_finite(&mut |done, all| {
        bar.set_length(all);
        if done.is_multiple_of(1024) || done == all {
            bar.set_position(done);
            bar.set_message("looked at");
        }
    })?;
    bar.finish_and_clear();
    let (names, mut all) = (job.data.files.paths(), Vec::new());
    for found in found {
        let (file, value) = (names.get(found.file), finite::in_words(found.value));
        let (sample, element, samples) = (found.sample, found.element, found.samples);
        printer.say(format!(
            "warning: {}: element {element} of sample {sample} is {value}; {samples} samples of the file hold values that are not finite",
            file.map_or("", |file| file)
        ));
        all.push(json!({
            "file": file, "sample": sample, "element": element, "value": value, "samples": samples
        }));
    }
    Ok(all)
}

/// The first value of an initial state that is not finite. `files`: where the job says that the state comes from.
pub fn of_initial(printer: Printer, program: &Program, state: &[Vec<u8>], files: &str) -> Vec<Value> {
    let table = program.state();
    let tensors = table.iter().zip(state);
    let first =
        finite::of_tensors(tensors.map(|(t, bytes)| (t.name.as_str(), &t.shape[..], bytes.as_slice())));
    let say = |first: finite::FirstValue| {
        printer.say(format!("warning: {files}: {first}"));
        let mut value = json!(first);
        value["file"] = json!(files);
        value
    };
    first.map(say).into_iter().collect()
}
