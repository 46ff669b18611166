//! `tiebreak receipt check` of a receipt of predictions.

use serde_json::json;

use super::args::Check;
use super::evidence::{
    NOTHING_STANDS, Saved, UNSIGNED, WITHOUT_TRACE_OF_PREDICTIONS, another_network, holds, save, trace_file,
    usable,
};
use crate::cli::args::engine::{EngineKind, open_exact};
use crate::cli::args::limits::Watch;
use crate::cli::args::predicted::upload;
use crate::cli::args::sampled::Sampled;
use crate::cli::args::subject::Subject;
use crate::cli::view::outcome::signed_by;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_audit::predictions::Accuser;
use tiebreak_dispute::answer::AnswerVerdict;
use tiebreak_engine::Engine;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::{PredictingModel, Predictions};
use tiebreak_run::predict::traced::{OtherTraces, SamplePass, sample_leaves};
use tiebreak_run::predict::{Difference, Inputs, Mismatch, Predictor};
use tiebreak_run::run::{RunError, disk};

/// What differs.
enum Finding {
    /// A sample is not what the model gives.
    Sample(Difference),
    /// All samples follow, and the root over the traces does not.
    Traces(OtherTraces),
}

/// Refuses a receipt of another model than the one that is named.
fn same_model(said: &PredictingModel, found: &PredictingModel, of_network: bool) -> Result<(), Failure> {
    if of_network && said.model != found.model {
        return Err(another_network(&said.model, &found.model));
    }
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
fn words(finding: &Finding, first: u32) -> String {
    let Difference { sample, what } = match finding {
        Finding::Sample(difference) => difference,
        Finding::Traces(OtherTraces { place: Some(place), .. }) => {
            let sample = u64::from(first) + *place as u64;
            return format!("all samples follow, and the trace of sample {sample} is not the model's");
        }
        Finding::Traces(OtherTraces { said, found, .. }) => {
            return format!(
                "all samples follow, and the root over the traces is {said}; the model gives {found}"
            );
        }
    };
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

/// A replay: the model, the samples, the receipt, and its trace if there is one that can be used.
struct Replay<'a> {
    subject: &'a Subject,
    of_model: &'a dyn Evaluable,
    inputs: Inputs,
    receipt: &'a Predictions,
    trace: Option<AnswerTrace>,
}

impl Replay<'_> {
    /// The root over the traces, if it differs.
    fn other_traces(
        &mut self,
        engine: &mut dyn Engine,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<OtherTraces>, Failure> {
        if self.receipt.traces.is_none() {
            return Ok(None);
        }
        let released = upload(engine, self.subject)?;
        let pass = SamplePass::new(engine, self.of_model)?;
        let said = (self.receipt, self.trace.as_ref());
        Ok(pass.other_traces(engine, &released, &mut self.inputs, said, progress)?)
    }

    /// True if the scalar reference finds the same difference; that of inputs depends on no engine.
    fn confirmed(&mut self, found: &Finding) -> Result<bool, Failure> {
        let engine = &mut Reference;
        match found {
            Finding::Sample(Difference { what: Mismatch::Input { .. }, .. }) => Ok(true),
            Finding::Sample(found) => {
                let predictor = Predictor::new(engine, self.of_model, 1)?;
                let released = upload(engine, self.subject)?;
                let place = [found.sample - u64::from(self.receipt.first)];
                let said = (self.receipt, &place[..]);
                let again = predictor.difference(engine, &released, &mut self.inputs, said, &mut |_| {})?;
                Ok(again.as_ref() == Some(found))
            }
            Finding::Traces(found) => {
                let Some((place, theirs)) = found.place.zip(self.trace.as_ref()) else {
                    return Ok(self.other_traces(engine, &mut |_| {})?.as_ref() == Some(found));
                };
                let released = upload(engine, self.subject)?;
                let pass = SamplePass::new(engine, self.of_model)?;
                let said = (self.receipt, place);
                let again = pass.trace(engine, &released, &mut self.inputs, said, None)?;
                Ok(theirs.windows.get(place) != Some(&again.nodes))
            }
        }
    }

    /// The evidence against a signer, or the reason why there is none.
    fn evidence(
        &mut self,
        engine: &mut dyn Engine,
        (text, opening): (&str, Option<&str>),
        (found, signer): (&Finding, Option<&PublicKey>),
    ) -> Result<Result<AnswerVerdict, &'static str>, Failure> {
        if signer.is_none() {
            return Ok(Err(UNSIGNED));
        }
        let table = self.subject.table();
        let accuser = Accuser {
            job: (self.of_model, self.subject.model_text()),
            model: (&table, &self.subject.model),
            receipt: (self.receipt, text),
            opening,
            trace: self.trace.as_ref(),
        };
        let verdict = match found {
            Finding::Sample(found) => accuser.verdict(engine, &mut self.inputs, found)?,
            Finding::Traces(OtherTraces { place: Some(place), .. }) => {
                accuser.verdict_below(engine, &mut self.inputs, *place)?
            }
            Finding::Traces(_) => None,
        };
        let is_of_data = matches!(found, Finding::Sample(Difference { what: Mismatch::Input { .. }, .. }));
        Ok(verdict.ok_or(match (self.receipt.traces, &self.trace) {
            _ if is_of_data => "no verdict is written: the receipt may be true of its own data, so that it accuses nobody",
            (None, _) => {
                "no verdict is written: the receipt commits other logits than the model gives, and no traces; who has the model finds the same"
            }
            (Some(_), None) => WITHOUT_TRACE_OF_PREDICTIONS,
            (Some(_), Some(_)) => NOTHING_STANDS,
        }))
    }
}

/// The signer's trace, which has to be the one that the receipt commits.
fn read_trace(
    args: &Check,
    of_model: &dyn Evaluable,
    receipt: &Predictions,
) -> Result<Option<AnswerTrace>, Failure> {
    let Some((path, traces)) = trace_file(args, receipt.traces)? else { return Ok(None) };
    let graphs = SamplePass::graphs(of_model, receipt.samples.len());
    let most = AnswerTrace::bytes_max(0, &graphs);
    args.limits.check("the trace", most.saturating_mul(2))?;
    let bytes = disk::read(path, most).map_err(named)?;
    let trace = AnswerTrace::decode(&bytes, 0, &graphs).map_err(|why| RunError::malformed(path, why))?;
    holds(path, "samples", [merkle::root(&sample_leaves(receipt, &trace)), traces])?;
    Ok(Some(trace))
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
    (text, receipt, signer): ((&str, Option<&str>), &Predictions, Option<&PublicKey>),
) -> CommandResult {
    let subject = args.data.subject(&args.run, args.step, &args.limits)?;
    let of_model = subject.of_model();
    let inputs = args.data.inputs(&subject)?;
    has_samples(receipt, &inputs)?;
    let batch = of_model.micro_batch().min(receipt.samples.len() as u32);
    let needed = Predictor::memory(subject.job(), of_model, batch);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, why))?;
    args.limits.check("a replay of the predictions", needed.saturating_add(subject.bytes()))?;
    watch.planned();
    let trace = read_trace(args, of_model, receipt);
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let predictor = Predictor::new(engine, of_model, batch)?;
    let own = predictor.identity(of_model, &subject.table(), &subject.model);
    same_model(&receipt.model, &own, subject.is_of_network())?;
    let sampled =
        args.sample.map(|count| Sampled::draw(receipt.samples.len(), count, args.seed)).transpose()?;
    let (trace, unusable) = match trace {
        Ok(trace) => (trace, None),
        Err(why) => (None, Some(why)),
    };
    let mut replay = Replay { subject: &subject, of_model, inputs, receipt, trace };
    let found = difference(printer, engine, &predictor, &mut replay, sampled.as_ref())?;
    if let Some(unusable) = unusable {
        usable(printer, Err(unusable), found.is_some())?;
    }
    if let Some(found) = &found
        && args.engine.engine != EngineKind::Reference
        && !replay.confirmed(found)?
    {
        let why = format!(
            "{}: {}; the scalar reference gives another result, so nothing is decided",
            engine.describe(),
            words(found, receipt.first)
        );
        return Err(Failure::new(Exit::Undecided, why)
            .help("see `tiebreak adapters --test`, or give --engine reference"));
    }
    let evidence = found.as_ref().filter(|_| args.verdict.is_some());
    let evidence = evidence.map(|found| replay.evidence(engine, text, (found, signer))).transpose()?;
    let verdict = save(args, evidence)?;
    Ok(said(printer, (receipt, signer), found.as_ref(), (sampled.as_ref(), verdict)))
}

/// The first difference: of a sample, or of the traces if all samples are checked.
fn difference(
    printer: Printer,
    engine: &mut dyn Engine,
    predictor: &Predictor,
    replay: &mut Replay,
    sampled: Option<&Sampled>,
) -> Result<Option<Finding>, Failure> {
    let receipt = replay.receipt;
    let places: Vec<u64> = match sampled {
        Some(sampled) => sampled.drawn.iter().map(|place| *place as u64).collect(),
        None => (0..receipt.samples.len() as u64).collect(),
    };
    let bar = printer.bar(places.len() as u64, "samples");
    let mut progress = |done| {
        bar.set_position(done);
        bar.set_message("");
    };
    let released = upload(engine, replay.subject)?;
    let said = (receipt, &places[..]);
    let found = predictor.difference(engine, &released, &mut replay.inputs, said, &mut progress)?;
    let found = match (found, sampled) {
        (Some(found), _) => Some(Finding::Sample(found)),
        (None, Some(_)) => None,
        (None, None) => replay.other_traces(engine, &mut progress)?.map(Finding::Traces),
    };
    bar.finish_and_clear();
    Ok(found)
}

/// Prints what was found.
fn said(
    printer: Printer,
    (receipt, signer): (&Predictions, Option<&PublicKey>),
    found: Option<&Finding>,
    (sampled, verdict): (Option<&Sampled>, Option<Saved>),
) -> Exit {
    let by = signed_by(signer);
    let all = receipt.samples.len();
    let line = match (found, sampled) {
        (Some(found), _) => format!("DIVERGES: {} ({by})", words(found, receipt.first)),
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
        json["difference"] = json!(words(found, receipt.first));
        json["differs"] = json!(match found {
            Finding::Sample(found) => Some(found.sample),
            Finding::Traces(other) => other.place.map(|place| u64::from(receipt.first) + place as u64),
        });
    }
    if let Some(verdict) = &verdict {
        verdict.show(&mut json);
    }
    let lines = [Some(line), verdict.as_ref().map(|verdict| verdict.line.clone())];
    printer.result(lines.into_iter().flatten().collect::<Vec<_>>(), &json);
    if let Some(next) = verdict.and_then(|verdict| verdict.next) {
        printer.say(next.line());
    }
    if found.is_none() { Exit::Match } else { Exit::Diverges }
}
