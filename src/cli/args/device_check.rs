//! Checks of what an engine computes: the options, the engine with its check, and the counts for people and programs.

use serde_json::{Value, json};

use crate::cli::args::engine::{EngineArgs, EngineKind};
use crate::cli::view::report::{Exit, Failure};
use tiebreak_engine::Engine;
use tiebreak_engine::device_check::{Checked, Random, Shares, Tallied, Tally};

/// The shares of an audit that says none: the engine's products are all that an auditor would have to trust.
pub const OF_AUDITS: Shares = Shares { products: 1.0, elements: 1e-3 };
/// The shares of training that says none. A tested product takes a device twice as long, so one in 64 adds 1.6 % to products.
pub const OF_TRAINING: Shares = Shares { products: 1.0 / 64.0, elements: 1e-4 };

/// A share, above 0 and at most 1.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "a number above 0 and at most 1 is wanted".to_string())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("a share is above 0 and at most 1".into()) }
}

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct CheckArgs {
    /// Check on the CPU what the engine computes.
    ///
    /// SHARE of the products is tested as a whole, by Freivalds' test. Without SHARE an audit tests all, and training one in 64. The
    /// engine hands out exact sums for it, so a tested product takes a GPU twice as long. An engine on the CPU hands out none: its
    /// products are compared by elements, which finds a processor that computes wrongly. A wrong engine ends the command, with exit
    /// code 3 and its name.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, require_equals = true, value_parser = share)]
    pub check_device: Option<Option<f64>>,
    /// With --check-device: share of all other elements that are compared with the scalar reference.
    ///
    /// The default is 0.001 in an audit, and 0.0001 in training.
    #[arg(long, value_name = "SHARE", requires = "check_device", value_parser = share, hide_short_help = true)]
    pub check_elements: Option<f64>,
}

/// A check in progress.
pub struct Check {
    shares: Shares,
    /// One for each engine.
    tallies: Vec<Tally>,
}

/// Randomness of the system.
fn system() -> Random {
    Box::new(|bytes| getrandom::fill(bytes).map_err(|error| error.to_string()))
}

impl CheckArgs {
    /// Refuses a check of an engine that has nothing to be checked.
    ///
    /// # Errors
    /// If the engine is the scalar reference.
    pub fn check(&self, engine: &EngineArgs) -> Result<(), Failure> {
        if self.check_device.is_none() || engine.engine != EngineKind::Reference {
            return Ok(());
        }
        let why =
            "--check-device compares an engine with the scalar reference, and the engine is the reference";
        Err(Failure::new(Exit::Usage, why).help("leave --check-device out, or give another --engine"))
    }

    /// True if the engine is to be checked.
    pub fn is_asked(&self) -> bool {
        self.check_device.is_some()
    }

    /// The engines with their check, if one is asked for; `default` has the shares that are not given.
    pub fn around_all(
        &self,
        engines: Vec<Box<dyn Engine>>,
        default: Shares,
    ) -> (Vec<Box<dyn Engine>>, Option<Check>) {
        let Some(products) = self.check_device else { return (engines, None) };
        let products = products.unwrap_or(default.products);
        let shares = Shares { products, elements: self.check_elements.unwrap_or(default.elements) };
        let checked = engines.into_iter().map(|engine| Checked::new(engine, shares, system()));
        let (engines, tallies): (Vec<_>, _) = checked.unzip();
        let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>);
        (engines.collect(), Some(Check { shares, tallies }))
    }

    /// The options that say the same to another process.
    pub fn options(&self) -> Vec<String> {
        let products = self.check_device.map(|share| match share {
            Some(share) => format!("--check-device={share}"),
            None => "--check-device".into(),
        });
        let elements = self.check_elements.map(|share| format!("--check-elements={share}"));
        products.into_iter().chain(elements).collect()
    }
}

impl Check {
    fn now(&self) -> Tallied {
        self.tallies.iter().map(Tally::now).fold(Tallied::default(), |all, one| all + one)
    }

    /// The probabilities that the check finds a single wrong product, and a single wrong element.
    fn probabilities(&self) -> [f64; 2] {
        let Shares { products, elements } = self.shares;
        let by_elements = self.now().by_elements > 0;
        [if by_elements { products.min(elements) } else { products }, elements]
    }

    /// The check for people.
    pub fn line(&self) -> String {
        let (done, [product, element]) = (self.now(), self.probabilities());
        format!(
            "device checked: {} of {} products tested, {} of {} elements of other results compared; a single wrong product is found with \
             probability {product}, a single wrong element with {element}",
            done.tested, done.products, done.compared, done.elements
        )
    }

    /// The check for programs.
    pub fn json(&self) -> Value {
        let (done, [product, element]) = (self.now(), self.probabilities());
        json!({
            "products": done.products,
            "products_tested": done.tested,
            "products_by_elements": done.by_elements,
            "elements": done.elements,
            "elements_compared": done.compared,
            "roots_compared": done.roots,
            "multiply_adds": done.multiply_adds,
            "multiply_adds_of_products": done.of_products,
            "seconds": done.seconds,
            "finds_a_wrong_product": product,
            "finds_a_wrong_element": element,
        })
    }
}
