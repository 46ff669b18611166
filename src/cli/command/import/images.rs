//! The decisions of `tiebreak import` for models of images, the pixels that released weights expect, and for classifiers, a head for
//! other classes.

use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::args::weight_files::ModelFolder;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::keys::matches;
use tiebreak_contract::program::models::normalize::is_of_bytes;
use tiebreak_contract::program::models::released::Released;
use tiebreak_contract::program::models::{Model, Normalization, Normalize};
use tiebreak_run::run::companions::PREPROCESSOR;
use tiebreak_run::run::released_config::CONFIG_MAX;
use tiebreak_run::run::{RunError, architectures, mistaken};

/// Options for models of images, and for classifiers.
#[derive(clap::Args)]
#[command(next_help_heading = "Models of images, and classifiers")]
pub struct ImageArgs {
    /// Network of torchvision or timm that the weights are of.
    ///
    /// The command reads no config.json then.
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = PossibleValuesParser::new(architectures::NAMES))]
    pub architecture: Option<String>,
    /// Rows and columns of your images, if they are others than config.json says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    image_size: Option<u32>,
    /// Constants of the pixels that the weights expect.
    ///
    /// The option takes the place of the folder's own constants. A pixel is ((byte / 255) - mean) / std with the constants of this name; with
    /// `none` it is byte / 255.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Normalize::NAMES))]
    normalize: Option<String>,
    /// Classes of your data, if they are others than the weights'.
    ///
    /// The job draws a new head then. An encoder without a classifier gets one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    classes: Option<u32>,
}

/// The decisions.
#[derive(Default)]
pub struct Decided {
    /// The patterns of the parameters that are drawn anew.
    pub reinitialize: Vec<String>,
    /// The file of adapters, as the job names it.
    pub adapter: Option<String>,
    /// The job's tables of masked tokens, if it has them.
    pub masking: String,
    /// The facts that the user has to know, a line each.
    pub said: Vec<String>,
}

impl Decided {
    /// The lines of the job's `[init]` table.
    pub fn init(&self) -> String {
        let mut lines = String::new();
        if let Some(adapter) = &self.adapter {
            lines += &format!(
                "# Adapters, in PEFT's names; they alone are trained.\nadapter = {}\n",
                json!(adapter)
            );
        }
        if !self.reinitialize.is_empty() {
            let drawn = json!(self.reinitialize);
            lines += &format!(
                "# A new head for other classes: drawn from the seed, whatever the files have.\nreinitialize = {drawn}\n"
            );
        }
        lines
    }
}

/// The keys of a `preprocessor_config.json` that say how pixels are normalised.
#[derive(Deserialize)]
struct Preprocessor {
    do_normalize: Option<bool>,
    do_rescale: Option<bool>,
    rescale_factor: Option<f64>,
    image_mean: Option<Vec<f32>>,
    image_std: Option<Vec<f32>>,
}

impl ImageArgs {
    /// Completes a model that a folder's `config.json` describes.
    ///
    /// # Errors
    /// If the model is none of images or no classifier, and an option is for these; or a file of the folder cannot be read.
    pub fn decide(&self, model: &mut Model, folder: &ModelFolder) -> Result<Decided, Failure> {
        let mut decided = Decided::default();
        if let Some(size) = self.image_size {
            let (height, width) = match model {
                Model::Resnet(network) => (&mut network.height, &mut network.width),
                Model::Vgg11(network) => (&mut network.height, &mut network.width),
                Model::Vit(_) => {
                    let why = "--image-size: a vision transformer's weights have a position for each patch of their own image size: leave the option out";
                    return Err(Failure::new(Exit::Usage, why));
                }
                _ => return Err(only_images("--image-size")),
            };
            (*height, *width) = (size, size);
        }
        if let Some(classes) = self.classes {
            decided.reinitialize = model.reclassify(classes);
            if decided.reinitialize.is_empty() {
                let why = "--classes: only classifiers and encoders have it: leave the option out";
                return Err(Failure::new(Exit::Usage, why));
            }
        }
        self.normalize(model, folder, &mut decided)?;
        Ok(decided)
    }

    /// Keeps the parts of a new head that the files have: `shape` gives the shape of a tensor there. The model has no error.
    ///
    /// # Errors
    /// If the files are of an encoder alone, and no option gives it a classifier.
    pub fn keep(
        &self,
        model: &Model,
        decided: &mut Decided,
        shape: impl Fn(&str) -> Option<Vec<u64>>,
    ) -> Result<(), Failure> {
        let Some(classes) = self.classes else {
            let is_alone = matches!(model, Model::Vit(_)) && shape("classifier.weight").is_none();
            let why = "the files have an encoder without a classifier: say how many classes your images have by --classes N";
            return if is_alone { Err(Failure::new(Exit::Usage, why)) } else { Ok(()) };
        };
        decided.reinitialize.retain(|pattern| !has(model, pattern, &shape));
        let head = decided.reinitialize.join(", ");
        decided.said.insert(
            0,
            match head.is_empty() {
                true => format!("the weights have {classes} classes already: their head is kept"),
                false => format!(
                    "a new head for {classes} classes ({head}) is drawn from the seed, in place of the weights' own"
                ),
            },
        );
        Ok(())
    }

    fn normalize(
        &self,
        model: &mut Model,
        folder: &ModelFolder,
        decided: &mut Decided,
    ) -> Result<(), Failure> {
        let Some(own) = model.normalization() else {
            return self.normalize.as_ref().map_or(Ok(()), |_| Err(only_images("--normalize")));
        };
        let source = if let Some(name) = &self.normalize {
            model.normalize(Some(named(name)?), Default::default());
            "as --normalize says"
        } else if own.is_said() {
            "as config.json says"
        } else if let Some((preset, constants)) = preprocessor(folder)? {
            model.normalize(preset, constants);
            "as preprocessor_config.json says"
        } else if matches!(model, Model::Vit(_)) {
            let said = "pixels: byte / 255; neither config.json nor preprocessor_config.json has their mean and their standard deviation";
            decided.said.push(format!("{said}: if the weights expect others, import with --normalize NAME"));
            return Ok(());
        } else if is_torchvisions(model) {
            model.normalize(Some(Normalize::Imagenet), Default::default());
            "as torchvision's weights expect; if these do not, import with --normalize NAME"
        } else {
            return Ok(());
        };
        let how = model.normalization().map(|normalization| in_words(&normalization)).unwrap_or_default();
        decided.said.push(format!("pixels: {how}, {source}"));
        Ok(())
    }
}

/// True if the files have all parameters of a pattern, in the model's shapes.
fn has(model: &Model, pattern: &str, shape: impl Fn(&str) -> Option<Vec<u64>>) -> bool {
    let layout = model.released().unwrap_or_default();
    let is_of = |released: &&Released| {
        let mut names = released.parts().iter().filter_map(|part| part.tensor.strip_prefix("param/"));
        names.any(|name| matches(pattern, name))
    };
    let is_here = |released: &Released| {
        let due: Vec<u64> = released.shape.iter().map(|&size| size.into()).collect();
        shape(&released.name) == Some(due)
    };
    layout.iter().filter(is_of).all(is_here)
}

fn only_images(option: &str) -> Failure {
    Failure::new(Exit::Usage, format!("{option}: only models of images have it: leave the option out"))
}

fn named(name: &str) -> Result<Normalize, Failure> {
    serde_json::from_value(json!(name)).map_err(|error| Failure::new(Exit::Usage, error))
}

/// True if the model is one of torchvision's networks over images of three colours.
fn is_torchvisions(model: &Model) -> bool {
    let planes = match model {
        Model::Resnet(network) => network.planes,
        Model::Vgg11(network) => network.planes,
        _ => 0,
    };
    planes == 3 && model.released().is_some()
}

/// The normalisation of pixels, in words of the job file.
fn in_words(normalization: &Normalization) -> String {
    match (normalization.preset, normalization.constants()) {
        (Some(preset), _) => format!("normalize = {}", json!(preset)),
        (None, Some([mean, std])) => format!("image_mean = {mean:?}, image_std = {std:?}"),
        (None, None) => String::new(),
    }
}

/// Constants by name, or a mean and a standard deviation for each plane.
type Constants = (Option<Normalize>, [Vec<f32>; 2]);

/// The constants in a `preprocessor_config.json`, if it is there and has them.
fn preprocessor(folder: &ModelFolder) -> Result<Option<Constants>, Failure> {
    let path = &folder.path().join(PREPROCESSOR);
    let Some(bytes) = folder.read(PREPROCESSOR, CONFIG_MAX)? else { return Ok(None) };
    let wrong = |error| mistaken::config(path, &bytes, format!("it is no configuration of pixels: {error}"));
    let value: Value = serde_json::from_slice(&bytes).map_err(wrong)?;
    let Preprocessor { do_normalize, do_rescale, rescale_factor, image_mean, image_std } =
        Preprocessor::deserialize(value).map_err(wrong)?;
    let is_rescaled = do_rescale.unwrap_or(true);
    let factor = rescale_factor.unwrap_or(1.0 / 255.0);
    if !is_rescaled || !is_of_bytes(factor) {
        let why = match is_rescaled {
            true => format!("rescale_factor is {factor}; this version computes byte / 255 only"),
            false => "do_rescale is false; this version computes byte / 255 only".into(),
        };
        let help =
            "import with --normalize NAME if the weights expect (byte / 255 - mean) / std all the same";
        return Err(Failure::from(RunError::invalid(path, why)).help(help));
    }
    let [image_mean, image_std] = [image_mean, image_std].map(|of| of.filter(|of| !of.is_empty()));
    Ok(match (do_normalize, image_mean, image_std) {
        (Some(false), ..) => Some((Some(Normalize::None), Default::default())),
        (_, Some(mean), Some(std)) => Some((None, [mean, std])),
        _ => None,
    })
}
