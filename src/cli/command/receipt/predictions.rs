//! `tiebreak receipt check` of a receipt of predictions.

use std::path::Path;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, EngineKind, open_exact};
use crate::cli::args::limits::{Limits, Watch};
use crate::cli::args::predicted::{DataArgs, upload};
use crate::cli::args::sampled::Sampled;
use crate::cli::args::subject::Subject;
use crate::cli::view::outcome::signed_by;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_engine::reference::Reference;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::predictions::{PredictingModel, Predictions};
use tiebreak_run::predict::{Difference, Inputs, Mismatch, Predictor};

/// The arguments of a check.
pub struct Check<'a> {
    /// The model, and the data.
    pub of: (&'a Path, &'a DataArgs),
    pub step: Option<u32>,
    /// How many samples are drawn, and the seed of the draw.
    pub sample: Option<u32>,
    pub seed: Option<u64>,
    pub engine: &'a EngineArgs,
    pub limits: &'a Limits,
}

/// Refuses a receipt of another model than the one that is named.
fn same_model(said: &PredictingModel, found: &PredictingModel) -> Result<(), Failure> {
    let sizes = |model: &PredictingModel| format!("{} classes and {} rows", model.classes, model.rows);
    let pairs = [
        ("another model", said.model.to_string(), found.model.to_string()),
        ("other parameters", said.state[0].to_string(), found.state[0].to_string()),
        ("other buffers", said.state[1].to_string(), found.state[1].to_string()),
        ("logits of another size", sizes(said), sizes(found)),
    ];
    let Some((other, said, found)) = pairs.into_iter().find(|(_, said, found)| said != found) else {
        return Ok(());
    };
    let why = format!("DIVERGES: the receipt is of {other}: {said}, and the model named here has {found}");
    Err(Failure::new(Exit::Diverges, why).help("name the run and --step, or the weights, that predicted"))
}

/// What differs, in words.
fn words(Difference { sample, what }: &Difference) -> String {
    match what {
        Mismatch::Input { said, found } => {
            format!("sample {sample} of the data has the digest {found}, and the receipt is about {said}")
        }
        Mismatch::Class { row, said, found } => {
            let found = found.map_or("none".to_string(), |class| format!("{class}"));
            format!(
                "row {row} of sample {sample} is said to predict class {said}, and the model gives {found}"
            )
        }
        Mismatch::Logits { said, found } => {
            format!(
                "sample {sample} has the classes of the model, and other bits of logits: {said}; the model gives {found}"
            )
        }
    }
}

/// True if the scalar reference finds the same difference; that of inputs depends on no engine.
fn confirmed(
    subject: &Subject,
    inputs: &mut Inputs,
    receipt: &Predictions,
    found: &Difference,
) -> Result<bool, Failure> {
    if matches!(found.what, Mismatch::Input { .. }) {
        return Ok(true);
    }
    let predictor = Predictor::new(&mut Reference, subject.of_model()?, 1)?;
    let released = upload(&mut Reference, subject)?;
    let place = [found.sample - u64::from(receipt.first)];
    let again = predictor.difference(&mut Reference, &released, inputs, (receipt, &place), &mut |_| {})?;
    Ok(again.as_ref() == Some(found))
}

/// The samples that the receipt is about, which the data have to have.
fn has_samples(receipt: &Predictions, inputs: &Inputs) -> Result<(), Failure> {
    let (first, all) = (u64::from(receipt.first), inputs.count());
    let end = first + receipt.samples.len() as u64;
    if end <= all {
        return Ok(());
    }
    let why = format!("DIVERGES: the receipt is of samples {first}..{end}, and the data have {all}");
    Err(Failure::new(Exit::Diverges, why).help("name the data that were predicted, by --data or --inputs"))
}

/// Replays a receipt, by whose signature `signer` signed it.
pub fn check(
    printer: Printer,
    args: &Check,
    watch: &Watch,
    (receipt, signer): (&Predictions, Option<&PublicKey>),
) -> CommandResult {
    let (of, data) = args.of;
    let subject = data.subject(of, args.step, args.limits)?;
    let of_model = subject.of_model()?;
    let mut inputs = data.inputs(&subject)?;
    has_samples(receipt, &inputs)?;
    let batch = of_model.batch.micro_batch.min(receipt.samples.len() as u32);
    let needed = Predictor::memory(subject.job(), of_model, batch);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, why))?;
    args.limits.check("a replay of the predictions", needed.saturating_add(subject.bytes()))?;
    watch.planned();
    let mut engine = open_exact(args.engine)?;
    let engine = engine.as_mut();
    let predictor = Predictor::new(engine, of_model, batch)?;
    same_model(&receipt.model, &predictor.identity(of_model, &subject.table(), &subject.model))?;
    let released = upload(engine, &subject)?;
    let of = receipt.samples.len();
    let sampled = args.sample.map(|count| Sampled::draw(of, count, args.seed)).transpose()?;
    let places: Vec<u64> = match &sampled {
        Some(sampled) => sampled.drawn.iter().map(|place| *place as u64).collect(),
        None => (0..of as u64).collect(),
    };
    let bar = printer.bar(places.len() as u64, "samples");
    let mut progress = |done| {
        bar.set_position(done);
        bar.set_message("");
    };
    let found = predictor.difference(engine, &released, &mut inputs, (receipt, &places), &mut progress)?;
    if let Some(found) = &found
        && args.engine.engine != EngineKind::Reference
        && !confirmed(&subject, &mut inputs, receipt, found)?
    {
        let why = format!(
            "{}: {}; the scalar reference gives another result, so nothing is decided",
            engine.describe(),
            words(found)
        );
        return Err(Failure::new(Exit::Undecided, why)
            .help("see `tiebreak adapters --test`, or give --engine reference"));
    }
    bar.finish_and_clear();
    Ok(said(printer, (receipt, signer), found.as_ref(), sampled.as_ref()))
}

/// Prints what was found.
fn said(
    printer: Printer,
    (receipt, signer): (&Predictions, Option<&PublicKey>),
    found: Option<&Difference>,
    sampled: Option<&Sampled>,
) -> Exit {
    let by = signed_by(signer);
    let all = receipt.samples.len();
    let line = match (found, sampled) {
        (Some(found), _) => format!("DIVERGES: {} ({by})", words(found)),
        (None, None) => format!("MATCHES: the predictions and logits of {all} samples follow ({by})"),
        (None, Some(sampled)) => format!(
            "MATCHES: {} of {all} samples, drawn with seed {}, follow; with 95 % confidence at most {} are wrong ({by})",
            sampled.drawn.len(),
            sampled.seed,
            sampled.wrong_at_most()
        ),
    };
    let mut json = json!({
        "result": if found.is_none() { "matches" } else { "diverges" },
        "samples": all,
        "first": receipt.first,
        "signer": signer.map(PublicKey::to_text),
        "root": receipt.root(),
    });
    if let Some(sampled) = sampled {
        json["sample"] = json!({
            "drawn": sampled.drawn.len(), "seed": sampled.seed, "confidence": 0.95, "wrong_at_most": sampled.wrong_at_most(),
        });
    }
    if let Some(found) = found {
        json["difference"] = json!(words(found));
        json["differs"] = json!(found.sample);
    }
    printer.result(line, &json);
    if found.is_none() { Exit::Match } else { Exit::Diverges }
}
