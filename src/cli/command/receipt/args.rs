//! The arguments of `tiebreak receipt check`.

use std::path::PathBuf;

use crate::cli::args::decided::Decided;
use crate::cli::args::engine::EngineArgs;
use crate::cli::args::limits::Limits;
use crate::cli::args::predicted::DataArgs;

/// Replay the receipt of an answer or of predictions.
///
/// Model, tokenizer and data are yours; nothing of the receipt vouches for them. All tokens or samples are checked unless --sample draws
/// some. A difference that another engine finds is confirmed by the scalar reference.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak receipt check answer.json runs/mine
  tiebreak receipt check answer.json runs/mine --signer-key trainer.key.pub --engine reference
  tiebreak receipt check answer.json runs/mine --trace answer.trace --verdict verdict.json
  tiebreak receipt check answer.json runs/mine --sample 20
  tiebreak receipt check predictions.json runs/mine --inputs images.npy
  tiebreak receipt check predictions.json runs/mine --trace predictions.trace --verdict verdict.json")]
pub struct Check {
    /// The receipt.
    pub receipt: PathBuf,
    /// Folder or address of a run, or released weights with --job.
    ///
    /// Weights are a .safetensors file, or a folder that has them, here or at an address.
    #[arg(value_name = "RUN|MODEL")]
    pub run: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
    /// Public key of the signer: a file, or the text itself.
    #[arg(long, value_name = "KEY")]
    pub signer_key: Option<String>,
    /// Check K tokens or samples that are drawn at random.
    ///
    /// Tokens before a drawn one in its window are replayed too, and no root of an answer is compared. The result says how many can be
    /// wrong.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: Option<u32>,
    /// Seed of the draw, to draw the same ones again.
    ///
    /// Without the option the system gives one after the receipt was read, so that no signer knows it before.
    #[arg(long, requires = "sample")]
    pub seed: Option<u64>,
    /// Opening of a salted receipt, which whoever holds the text keeps.
    #[arg(long, value_name = "FILE")]
    pub opening: Option<PathBuf>,
    /// Trace of the answer or the predictions, if the receipt commits one.
    ///
    /// `--trace` of `tiebreak generate` and `tiebreak predict` writes it. With it a verdict names the tile of an operator that is wrong.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// File for a verdict on a signer whose answer or predictions do not follow.
    ///
    /// Anybody checks the verdict without the model and the data, by `tiebreak verdict check`.
    #[arg(long, value_name = "FILE")]
    pub verdict: Option<PathBuf>,
    /// Replay with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N")]
    pub step: Option<u32>,
    /// Tokenizer, as `tiebreak generate` takes one.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub limits: Limits,
    #[command(flatten)]
    pub decided: Decided,
}
