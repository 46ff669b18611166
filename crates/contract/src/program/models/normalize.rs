//! The normalisation of pixels by models of images: the usual constants by name, or a model's own, and the body that has them.

use serde::{Deserialize, Serialize};

use super::{Input, pixel_body};
use crate::program::expr::Body;
use crate::program::keys::{NOT_NEGATIVE, Type};

/// The most planes that have constants of their own: each plane takes six of a body's instructions.
pub(crate) const PLANES_MAX: usize = 16;

/// The help text of the key `normalize`.
pub(super) const NORMALIZE: &str = "How pixels are normalised: a byte becomes ((byte / 255) - mean) / std, with mean and std of its plane, as torchvision's released networks expect. `none`: a byte becomes byte / 255. docs/ARITHMETIC.md, section 8.3, has the constants of each name.";
/// The help text of the key `image_mean`.
pub(super) const IMAGE_MEAN: &str =
    "The means of pixels in 0..=1, in place of a name: one for all planes, or one for each.";
/// The type of the means.
pub(super) const MEANS: Type = Type::List { of: &NOT_NEGATIVE, least: 1, most: PLANES_MAX };
/// The type of the standard deviations.
pub(super) const STDS: Type =
    Type::List { of: &Type::Number { least: 0.0, above: true, below: None }, least: 1, most: PLANES_MAX };

/// Means and standard deviations by the name of the images that they were measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// Pixels stay in 0..=1.
    None,
    /// torchvision's released networks.
    Imagenet,
    /// The training images of CIFAR-10.
    Cifar10,
    /// The training images of CIFAR-100.
    Cifar100,
    /// The training images of MNIST.
    Mnist,
    /// The training images of Fashion-MNIST.
    FashionMnist,
    /// One half for mean and standard deviation: pixels in -1..=1.
    Half,
}

impl Normalize {
    /// The names in job files.
    #[doc(hidden)] // for the layers above
    pub const NAMES: &[&str] = &["none", "imagenet", "cifar10", "cifar100", "mnist", "fashion_mnist", "half"];

    /// Mean and standard deviation of each plane, or of all planes; `None` for pixels that stay as they are.
    fn constants(self) -> Option<[&'static [f32]; 2]> {
        Some(match self {
            Normalize::None => return None,
            Normalize::Imagenet => [&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]],
            Normalize::Cifar10 => [&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]],
            Normalize::Cifar100 => [&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]],
            Normalize::Mnist => [&[0.1307], &[0.3081]],
            Normalize::FashionMnist => [&[0.2860], &[0.3530]],
            Normalize::Half => [&[0.5], &[0.5]],
        })
    }
}

/// True of a factor by which pixels are bytes / 255, as far as a configuration writes it.
#[doc(hidden)] // for the layers above
pub fn is_of_bytes(factor: f64) -> bool {
    (factor * 255.0 - 1.0).abs() <= 1e-6
}

/// The values of the keys `normalize`, `image_mean` and `image_std` of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization<'a> {
    /// Constants by name.
    pub preset: Option<Normalize>,
    /// The model's own means: one, or one for each plane.
    pub mean: &'a [f32],
    /// The model's own standard deviations, as many as means.
    pub std: &'a [f32],
}

impl<'a> Normalization<'a> {
    /// True if the model sets any of the keys, even to leave pixels as they are.
    #[doc(hidden)] // for the layers above
    pub fn is_said(&self) -> bool {
        self.preset.is_some() || !self.mean.is_empty()
    }

    /// Mean and standard deviation of each plane, or of all planes; `None` for pixels that stay as they are.
    #[doc(hidden)] // for the layers above
    pub fn constants(&self) -> Option<[&'a [f32]; 2]> {
        match self.preset {
            Some(preset) => preset.constants(),
            None => (!self.mean.is_empty()).then_some([self.mean, self.std]),
        }
    }

    /// The error in these values, if there is one: (key, why). `fits` says if a sample can have this many planes; `planes` says
    /// the same in words.
    pub(super) fn error(
        &self,
        input: Input,
        fits: impl Fn(u32) -> bool,
        planes: &str,
    ) -> Option<(&'static str, String)> {
        let key = if self.preset.is_some() { "normalize" } else { "image_mean" };
        if self.mean.len() != self.std.len() {
            let (means, stds) = (self.mean.len(), self.std.len());
            let why = format!("a plane has a mean and a standard deviation, here are {means} and {stds}");
            return Some(("image_std", why));
        }
        let [mean, _] = self.constants()?;
        if !fits(mean.len() as u32) {
            return Some((key, format!("it has {} planes, and {planes}", mean.len())));
        }
        let why = "only bytes are pixels, and numbers are taken as they are: leave the key out, or give the data as u8";
        (input == Input::Values).then(|| (key, why.into()))
    }

    /// The body that maps a pixel's byte to the number that the model sees. `plane`: elements of the output's last dimension in
    /// one plane; planes follow in order.
    pub(super) fn body(&self, plane: u32) -> Body {
        self.constants().map_or_else(pixel_body, |constants| body(constants, plane))
    }
}

/// ((byte / 255) - mean) / std, with the constants of the plane that the last dimension is in.
pub(crate) fn body([means, stds]: [&[f32]; 2], plane: u32) -> Body {
    Body::new("normalize.v1", |w| {
        let (pixel, full) = (w.input(0), w.f(255.0));
        let value = w.from_u(pixel);
        let value = w.div(value, full);
        let last = means.len() - 1;
        let (mut mean, mut std) = (w.f(means[last]), w.f(stds[last]));
        for number in (0..last).rev() {
            let (place, end) = (w.index(3), w.word((number as u32 + 1) * plane));
            let inside = w.ult(place, end);
            let (own_mean, own_std) = (w.f(means[number]), w.f(stds[number]));
            (mean, std) = (w.select(inside, own_mean, mean), w.select(inside, own_std, std));
        }
        let centred = w.sub(value, mean);
        w.div(centred, std)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_preset_and_every_preset_fits_a_body() {
        for name in Normalize::NAMES {
            let preset: Normalize = serde_json::from_str(&format!("{name:?}")).unwrap();
            assert_eq!(serde_json::to_string(&preset).unwrap(), format!("{name:?}"));
            let normalization = Normalization { preset: Some(preset), mean: &[], std: &[] };
            assert_eq!(normalization.error(Input::Pixels, |_| true, ""), None);
            assert_eq!(normalization.body(1) == pixel_body(), *name == "none");
        }
    }

    #[test]
    fn each_plane_has_its_constants() {
        let means: Vec<f32> = (0..PLANES_MAX).map(|i| i as f32 / 32.0).collect();
        let stds: Vec<f32> = (1..=PLANES_MAX).map(|i| i as f32 / 64.0).collect();
        for plane in [1, 7] {
            let body = body([&means, &stds], plane);
            for place in 0..PLANES_MAX as u32 * plane {
                let number = (place / plane) as usize;
                let wanted = (200.0 / 255.0 - means[number]) / stds[number];
                assert_eq!(body.eval(&[200], [0, 0, 0, place]), f32::to_bits(wanted), "{plane} {place}");
            }
        }
    }
}
