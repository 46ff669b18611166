//! Rules about data on a run: samples are drawn, opened and looked at, and each rule is decided.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regex::bytes::Regex;
use serde::Serialize;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::opened;
use tiebreak_job::data::InFile;
use tiebreak_job::spec::DataFiles;
use tiebreak_monitor::draw::sample;
use tiebreak_monitor::rules::decision::Decision;
use tiebreak_monitor::rules::property::{OfSamples, Property, digest, digests, expression};
use tiebreak_monitor::rules::share::{Counted, NAMED_MAX, Named, Population};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk};

use super::reader::answers;
use crate::cli::args::weight_files::tokenizer_at;
use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{Exit, Failure, Printer, named};

/// The most bytes of a file of digests.
const DIGESTS_MAX: u64 = 1 << 28;
/// The most bytes of the samples that one command reads.
const INPUT_MAX: usize = 1 << 28;

/// The test of a property.
enum Test<'a> {
    Digests(Vec<Digest>),
    Pattern(Regex),
    Command(&'a [String]),
}

/// A rule with its test.
pub struct Tested<'a> {
    rule: &'a OfSamples,
    test: Test<'a>,
}

/// The rules with their tests. Files and programs with a folder are beside the file of the rules.
pub fn tested<'a>(rules: &'a [OfSamples], folder: &Path) -> Result<Vec<Tested<'a>>, Failure> {
    let of = |rule: &'a OfSamples| {
        let wrong = |why: String| Failure::new(Exit::Usage, format!("data.{}: {why}", rule.name));
        let test = match rule.property().ok_or_else(|| wrong("there is no property".into()))? {
            Property::Hashes(file) => {
                let path = folder.join(file);
                let text = disk::read_text(&path, DIGESTS_MAX).map_err(named)?;
                Test::Digests(digests(&text).map_err(|why| RunError::invalid(&path, why))?)
            }
            Property::Pattern(pattern) => Test::Pattern(expression(pattern).map_err(wrong)?),
            Property::Command(command) => Test::Command(command),
        };
        Ok(Tested { rule, test })
    };
    rules.iter().map(of).collect()
}

/// The meaning of a run's samples.
enum Reading {
    /// The bytes are the text.
    Bytes,
    /// The ids are tokens.
    Tokens(Alphabet),
    /// There is no text, with the reason.
    None(String),
}

impl Reading {
    /// The inspector names the tokenizer: the run's own one is the operator's file, and could show another text.
    fn of(run: &Run, tokenizer: Option<&PathBuf>) -> Result<Reading, Failure> {
        let are_bytes = matches!(run.job().data.files, DataFiles::Bytes { .. });
        if are_bytes && tokenizer.is_none() {
            return Ok(Reading::Bytes);
        }
        let sample = run.program().sample();
        let tokens = sample.first().filter(|inputs| inputs.name == "tokens" && !are_bytes);
        match (tokens, tokenizer) {
            (Some(_), Some(path)) => Ok(Reading::Tokens(Alphabet::named(tokenizer_at(path)?)?)),
            (Some(_), None) => {
                Ok(Reading::None("samples are tokens, and no tokenizer is named: give --tokenizer".into()))
            }
            (None, None) => Ok(Reading::None("samples are no text".into())),
            (None, Some(path)) => {
                let what = if are_bytes { "bytes" } else { "no text" };
                let why = format!("the samples of run {} are {what}, and no tokenizer reads them", run.id);
                Err(Failure::new(Exit::Usage, format!("--tokenizer {}: {why}", path.display())))
            }
        }
    }

    fn text(&self, sample: &InFile) -> Result<Vec<u8>, String> {
        match self {
            Reading::Bytes => Ok(sample.bytes.clone()),
            Reading::Tokens(alphabet) => match alphabet.text(&sample.ids) {
                Ok(text) => Ok(text.into_bytes()),
                Err(_) => Err("the tokenizer does not read its tokens".into()),
            },
            Reading::None(why) => Err(why.clone()),
        }
    }
}

/// A sample as a command reads it: a line of JSON.
#[derive(Serialize)]
struct Line {
    step: u32,
    place: u32,
    file: usize,
    number: u64,
    digest: Digest,
    bytes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    labels: Vec<u32>,
}

/// The state of a rule while samples are opened.
#[derive(Default)]
struct Progress {
    counted: Counted,
    /// The lines that a command will read, and their samples, each with the number of times that it was drawn.
    input: Vec<u8>,
    asked: Vec<(Named, u32)>,
}

impl Progress {
    fn unknown(&mut self, times: u32, why: impl Into<String>) {
        self.counted.unknown += times;
        self.counted.why.get_or_insert_with(|| why.into());
    }

    fn found(&mut self, rule: &OfSamples, sample: Named, times: u32, has: bool) {
        self.counted.with += if has { times } else { 0 };
        let against = &mut self.counted.against;
        if rule.speaks_against(has) && against.len() < NAMED_MAX {
            against.push(sample);
        }
    }
}

/// The samples to open: where they are, whose they are, and the seed that draws them.
pub struct Asked<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its records.
    pub checked: &'a Checked,
    /// The samples to draw from.
    pub population: Population,
    /// The draw's seed.
    pub seed: Digest,
    /// The tokenizer that the inspector names.
    pub tokenizer: Option<&'a PathBuf>,
    /// The folder of the rules.
    pub folder: &'a Path,
}

/// Decides the rules for a run.
pub fn decide(printer: Printer, asked: &Asked, rules: &[Tested]) -> Result<Vec<Decision>, Failure> {
    let read = asked.population.read;
    // By sample, the rules that drew it: once for each draw.
    let mut drawn: Vec<(u64, usize)> = Vec::new();
    for (number, Tested { rule, .. }) in rules.iter().enumerate() {
        let count = rule.drawn(read);
        let place = |index: u32| match u64::from(count) == read {
            true => u64::from(index),
            false => sample(&asked.seed, &asked.run.id, index, read),
        };
        drawn.extend((0..count).map(|index| (place(index), number)));
    }
    drawn.sort_unstable();
    let batch = u64::from(asked.run.program().samples()).max(1);
    let at = |place: u64| ((place / batch + 1) as u32, (place % batch) as u32);
    let places: Vec<(u32, u32)> = drawn.chunk_by(|a, b| a.0 == b.0).map(|same| at(same[0].0)).collect();
    let reading = Reading::of(asked.run, asked.tokenizer)?;
    let mut all: Vec<Progress> = rules.iter().map(|_| Progress::default()).collect();
    let bar = printer.bar(places.len() as u64, "samples");
    let mut done = 0;
    let mut groups = drawn.chunk_by(|a, b| a.0 == b.0);
    let opened = opened::open(asked.run, asked.checked, &places, |at, sample| {
        let group = groups.next().unwrap_or_default();
        for of_rule in group.chunk_by(|a, b| a.1 == b.1) {
            let (number, times) = (of_rule[0].1, of_rule.len() as u32);
            let progress = &mut all[number];
            progress.counted.drawn += times;
            match &sample {
                Ok(sample) => look(&rules[number], &reading, at, sample, times, progress)?,
                Err(why) => progress.unknown(times, why.to_string()),
            }
        }
        done += 1;
        bar.set_position(done);
        Ok::<(), Failure>(())
    });
    bar.finish_and_clear();
    opened?;
    let decision = |(tested, mut progress): (&Tested, Progress)| {
        let rule = tested.rule;
        if let Test::Command(command) = tested.test {
            printer.during("waiting for the command", || ask(command, rule, asked.folder, &mut progress));
        }
        let (ruling, evidence, share) = rule.decide(asked.population, progress.counted, asked.seed);
        Decision {
            rule: format!("data.{}", rule.name),
            run: asked.run.id,
            ruling,
            evidence,
            share: Some(share),
        }
    };
    Ok(rules.iter().zip(all).map(decision).collect())
}

/// Looks at a sample, or notes it for a command.
fn look(
    tested: &Tested,
    reading: &Reading,
    (step, place): (u32, u32),
    sample: &InFile,
    times: u32,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let named = Named { step, place, digest: digest(&sample.bytes) };
    match &tested.test {
        Test::Digests(digests) => {
            progress.found(tested.rule, named, times, digests.binary_search(&named.digest).is_ok());
        }
        Test::Pattern(pattern) => match reading.text(sample) {
            Ok(text) => progress.found(tested.rule, named, times, pattern.is_match(&text)),
            Err(why) => progress.unknown(times, why),
        },
        Test::Command(_) => {
            let text = reading.text(sample).ok().map(|text| String::from_utf8_lossy(&text).into_owned());
            let line = Line {
                step,
                place,
                file: sample.file,
                number: sample.number,
                digest: named.digest,
                bytes: STANDARD.encode(&sample.bytes),
                text,
                labels: sample.labels.clone(),
            };
            let line = serde_json::to_vec(&line)
                .map_err(|error| Failure::new(Exit::Undecided, format!("a sample is no JSON: {error}")))?;
            if progress.input.len() + line.len() >= INPUT_MAX {
                let why = format!("the command reads at most {INPUT_MAX} bytes of samples: ask for fewer");
                progress.unknown(times, why);
                return Ok(());
            }
            progress.input.extend(line);
            progress.input.push(b'\n');
            progress.asked.push((named, times));
        }
    }
    Ok(())
}

/// Asks a command about the noted samples.
fn ask(command: &[String], rule: &OfSamples, folder: &Path, progress: &mut Progress) {
    let (input, asked) = (std::mem::take(&mut progress.input), std::mem::take(&mut progress.asked));
    if asked.is_empty() {
        return;
    }
    match answers(command, folder, input, asked.len(), Duration::from_secs(rule.seconds)) {
        Ok(answers) => {
            for ((sample, times), has) in asked.into_iter().zip(answers) {
                progress.found(rule, sample, times, has);
            }
        }
        Err(why) => progress.unknown(asked.iter().map(|(_, times)| times).sum(), why),
    }
}
