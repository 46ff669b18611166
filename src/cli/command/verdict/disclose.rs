//! `tiebreak verdict disclose`: the committed bytes of a tile, from whoever is accused of it.

use serde_json::json;
use std::path::{Path, PathBuf};

use super::answer;
use super::of_run::{another_run, read};
use crate::cli::args::engine::{EngineArgs, open, open_exact};
use crate::cli::args::limits::{Limits, Watch};
use crate::cli::args::predicted::{DataArgs, upload};
use crate::cli::args::subject::Subject;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use tiebreak_audit::disputed_step::disclosed_tile;
use tiebreak_audit::plan;
use tiebreak_dispute::answer::{AnswerClaim, AnswerRuling, AnswerTile, AnswerVerdict};
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_record::commit::tensor;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::predict::Predictor;
use tiebreak_run::predict::traced::SamplePass;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// For the trainer, or a receipt's signer: write the bytes of a verdict's tile.
///
/// The bytes are for whoever is accused of a wrong tile, after a fault of hardware or in a test of auditors. With them
/// `tiebreak verdict narrow` shows which element is wrong. Neither a run nor the trace of a receipt keeps them. So the command replays the
/// step of the run, or the window or sample of the receipt. Use the engine that made the run or the trace: only bytes with the committed
/// hash are written. An engine without the fault computes other bytes. Then they have to come from what made the tile.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak verdict disclose verdict.json --run runs/cheated --out tile.bin
  tiebreak verdict disclose answer-verdict.json --run runs/mine --out tile.bin")]
pub struct Disclose {
    /// Verdict file.
    file: PathBuf,
    /// Folder of the run; of a receipt also weights with --job.
    ///
    /// Weights are a .safetensors file, the file's address, or a folder that has them.
    #[arg(long, value_name = "RUN|MODEL")]
    run: PathBuf,
    /// File for the tile's bytes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Step of the checkpoint that gave the receipt, if it was not the released model.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Disclose) -> CommandResult {
    let watch = args.limits.watch(printer);
    if let Some((verdict, _)) = answer::read(&args.file)? {
        let claim = of_receipt(&args, &verdict)?;
        return written(printer, &args, claim.tile, signers_tile(printer, &args, &watch, (&verdict, claim))?);
    }
    let (verdict, _) = read(&args.file)?;
    let data = args.data.given_beside_job();
    let job = args.data.job.as_ref().map(|_| "--job");
    if let Some(option) = data.or(job).or(args.step.map(|_| "--step")) {
        let why = format!("{option} is for verdicts on receipts, and {} is none", args.file.display());
        return Err(Failure::new(Exit::Usage, why).help(format!("leave {option} out")));
    }
    let (tile, bytes) = trainers_tile(printer, &args, &watch, &verdict)?;
    written(printer, &args, tile, bytes)
}

/// Refuses a folder that is not there before a replay.
fn has_folder(out: &Path) -> Result<(), Failure> {
    let whole = std::path::absolute(out).map_err(RunError::io(out))?;
    if whole.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    let folder = whole.parent().unwrap_or(Path::new("."));
    let why = format!("there is no folder {} for {}", folder.display(), out.display());
    Err(Failure::new(Exit::Usage, why).help(format!("mkdir -p {}", shell::path(folder))))
}

fn written(printer: Printer, args: &Disclose, tile: usize, bytes: Vec<u8>) -> CommandResult {
    let out = std::path::absolute(&args.out).map_err(RunError::io(&args.out))?;
    Disk::default().replace(&out, &bytes)?;
    let text = format!("{} of tile {tile}: {}", bytes_text(bytes.len() as u64), args.out.display());
    printer.result(text, &json!({ "tile": tile, "bytes": bytes.len() }));
    Ok(Exit::Match)
}

/// A verdict that asks for no bytes.
fn asks_for_none() -> Failure {
    Failure::new(Exit::Usage, "only a tile verdict that convicts asks for a tile's bytes")
}

/// The tile of a verdict on a run, from a replay.
fn trainers_tile(
    printer: Printer,
    args: &Disclose,
    watch: &Watch,
    verdict: &Verdict,
) -> Result<(usize, Vec<u8>), Failure> {
    let outcome = verdict.check(None).map_err(|error| RunError::malformed(&args.file, error))?;
    let (Claim::Tile(claim), Ruling::Convicts(finding)) = (&verdict.claim, outcome) else {
        return Err(asks_for_none());
    };
    let run = args.limits.open(&args.run)?;
    if run.id != finding.run {
        return Err(another_run(&args.run, &run, finding.run));
    }
    if args.engine.native.is_some() && run.job().rounding.is_none() {
        let why = "--native is for the logged profile, and the run is of the exact one: leave it out";
        return Err(Failure::new(Exit::Usage, why));
    }
    has_folder(&args.out)?;
    args.limits.check("a replay", plan::memory_at_most(&run))?;
    watch.planned();
    let mut engine = open(&args.engine)?;
    let working = printer.working("replaying to the verdict's step", None);
    let tile = disclosed_tile(&run, engine.as_mut(), finding.step, claim)?.ok_or_else(|| {
        let (tile, node) = (claim.tile, claim.node);
        let why = format!("this engine computes another tile {tile} of node {node} than the run commits: use the one that trained");
        Failure::new(Exit::Undecided, why)
    })?;
    drop(working);
    Ok((claim.tile, tile))
}

/// The claim of a verdict on a receipt, if it asks for bytes.
fn of_receipt<'v>(args: &Disclose, verdict: &'v AnswerVerdict) -> Result<&'v AnswerTile, Failure> {
    let outcome = verdict.examine(None).outcome;
    let outcome = outcome.map_err(|error| RunError::malformed(&args.file, error))?;
    let (AnswerClaim::Tile(claim), AnswerRuling::Convicts(_)) = (&verdict.claim, outcome) else {
        return Err(asks_for_none());
    };
    if claim.disclosed.is_some() {
        let why = "the verdict has the tile's bytes already, and is about one element";
        return Err(Failure::new(Exit::Usage, why).help("tiebreak verdict check FILE"));
    }
    Ok(claim)
}

/// The tile of a verdict on a receipt, from a replay of its window or sample.
fn signers_tile(
    printer: Printer,
    args: &Disclose,
    watch: &Watch,
    (verdict, claim): (&AnswerVerdict, &AnswerTile),
) -> Result<Vec<u8>, Failure> {
    has_folder(&args.out)?;
    let malformed = |error| RunError::malformed(&args.file, error);
    let (receipt, _) =
        salted_receipt::read(&verdict.receipt, verdict.opening.as_deref()).map_err(malformed)?;
    let output = match receipt {
        AnyReceipt::Answer(receipt) => of_answer(printer, args, watch, (&receipt, claim))?,
        AnyReceipt::Predictions(receipt) => of_predictions(printer, args, watch, (&receipt, claim))?,
    };
    let tile = output.get(tensor::tile_range(output.len(), claim.tile)).unwrap_or_default();
    if tensor::tile_value(tile, claim.tile, tensor::tile_count(output.len())) == claim.value.0 {
        return Ok(tile.to_vec());
    }
    let (number, node) = (claim.tile, claim.node);
    let why = format!("this engine computes another tile {number} of node {node} than the receipt commits");
    let help =
        "give --engine and --adapter as for the trace; else the bytes have to come from what made the trace";
    Err(Failure::new(Exit::Undecided, why).help(help))
}

/// A model that is not the receipt's.
fn another_model(args: &Disclose) -> Failure {
    let why = format!("{} is another model than the receipt's, or has other weights", args.run.display());
    Failure::new(Exit::Usage, why).help("name the run and --step, or the weights, that the receipt is of; for a program from a file also its --network")
}

/// The output of the claim's node in its window of an answer.
fn of_answer(
    printer: Printer,
    args: &Disclose,
    watch: &Watch,
    (receipt, claim): (&Receipt, &AnswerTile),
) -> Result<Vec<u8>, Failure> {
    if let Some(option) = args.data.given_of_data() {
        let why =
            format!("{option} is for verdicts on receipts of predictions, and this one is on an answer");
        return Err(Failure::new(Exit::Usage, why).help(format!("leave {option} out")));
    }
    let subject = Subject::answering(&args.run, args.data.model(), args.step, &args.limits)?;
    let (model, classes) = subject.writer()?;
    let (table, known) = (subject.table(), vec![true; classes as usize]);
    // A pass over given tokens chooses none, so that the tokenizer does not matter.
    let answerer = Answerer { model, parameters: (&table, &subject.model), known: &known, ends: &[] };
    if answerer.identity() != Some([receipt.model, receipt.parameters]) {
        return Err(another_model(args));
    }
    answerer.has_tokens(receipt).map_err(|error| RunError::malformed(&args.file, error))?;
    let needed = answerer.memory(receipt).saturating_add(subject.bytes().saturating_mul(2));
    args.limits.check("a replay of the answer", needed)?;
    watch.planned();
    let mut engine = open_exact(&args.engine)?;
    let _working = printer.working("replaying the verdict's window", None);
    let mut outputs = answerer.outputs(engine.as_mut(), receipt, claim.window.number, [claim.node].into())?;
    Ok(outputs.remove(&claim.node).unwrap_or_default())
}

/// The output of the claim's node in the pass of its sample.
fn of_predictions(
    printer: Printer,
    args: &Disclose,
    watch: &Watch,
    (receipt, claim): (&Predictions, &AnswerTile),
) -> Result<Vec<u8>, Failure> {
    let subject = args.data.subject(&args.run, args.step, &args.limits)?;
    let of_model = subject.of_model();
    let mut inputs = args.data.inputs(&subject)?;
    let (place, all) = (claim.window.number, inputs.count());
    let sample = u64::from(receipt.first) + place as u64;
    let other_data = |why: String| {
        Failure::new(Exit::Usage, why).help("name the data that were predicted, by --data or --inputs")
    };
    if sample >= all {
        return Err(other_data(format!("the verdict is on sample {sample}, and the data have {all}")));
    }
    let needed = Predictor::memory(subject.job(), of_model, 1);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, why))?;
    args.limits.check("a replay of the sample", needed.saturating_add(subject.bytes()))?;
    watch.planned();
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let own = Predictor::new(engine, of_model, 1)?.identity(of_model, &subject.table(), &subject.model);
    if own != receipt.model {
        return Err(another_model(args));
    }
    let _working = printer.working("replaying the verdict's sample", None);
    let released = upload(engine, &subject)?;
    let pass = SamplePass::new(engine, of_model)?;
    let wanted = [claim.node].into();
    let mut tensors = pass.outputs(engine, &released, &mut inputs, (receipt, place), wanted)?;
    let ty = of_model.network().batch(1)[0].ty();
    let (said, found) = (receipt.samples[place].input, tensor::digest(&ty, &tensors.inputs));
    if said != found {
        let why =
            format!("sample {sample} of the data has the digest {found}, and the receipt is about {said}");
        return Err(other_data(why));
    }
    Ok(tensors.outputs.remove(&claim.node).unwrap_or_default())
}
