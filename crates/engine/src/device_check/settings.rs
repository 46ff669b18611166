//! The shares of results that are checked, the randomness that draws them, and the tally of a check.

use std::ops::Add;
use std::sync::{Arc, Mutex, PoisonError};

/// Fills bytes with randomness, or says why there is none.
pub type Random = Box<dyn FnMut(&mut [u8]) -> Result<(), String> + Send>;

/// The shares of a device's results that are checked: probabilities, each above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// A product is tested as a whole with this probability.
    pub products: f64,
    /// An element of any other tensor, and a root of a tensor, is compared with this probability.
    pub elements: f64,
}

/// The summary of a product that asks a device for exact sums: words from the lowest on. A device that has them gives [`Sums`],
/// and shows the product's bytes after that. Other engines show the bytes alone.
#[derive(Clone, Copy, Debug)]
pub struct ExactSums {
    /// The number of words of each sum.
    pub words: u8,
}

/// The value of [`ExactSums`]: for each word, that word of all sums, in the layout of the product.
pub struct Sums(pub Vec<Vec<u32>>);

/// The counts of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tallied {
    /// Products that ran.
    pub products: u64,
    /// Products that were tested as a whole.
    pub tested: u64,
    /// Products that were drawn and compared by elements, since the engine hands out no sums of them.
    pub by_elements: u64,
    /// Multiply-adds of the products that were tested.
    pub of_products: u64,
    /// Multiply-adds of their tests.
    pub multiply_adds: u64,
    /// Elements of all tensors, but those of products that were tested.
    pub elements: u64,
    /// Elements that were compared with the scalar reference.
    pub compared: u64,
    /// Roots of tensors that were compared with the host's.
    pub roots: u64,
    /// Seconds that the host took for the checks, without the work of the device.
    pub seconds: f64,
}

impl Add for Tallied {
    type Output = Tallied;

    /// The counts of two checks.
    fn add(self, other: Tallied) -> Tallied {
        Tallied {
            products: self.products + other.products,
            tested: self.tested + other.tested,
            by_elements: self.by_elements + other.by_elements,
            of_products: self.of_products + other.of_products,
            multiply_adds: self.multiply_adds + other.multiply_adds,
            elements: self.elements + other.elements,
            compared: self.compared + other.compared,
            roots: self.roots + other.roots,
            seconds: self.seconds + other.seconds,
        }
    }
}

/// The tally of a check, which goes on while the check does. Clones are the same tally.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Tallied>>);

impl Tally {
    /// The counts so far.
    pub fn now(&self) -> Tallied {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, change: impl FnOnce(&mut Tallied)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
