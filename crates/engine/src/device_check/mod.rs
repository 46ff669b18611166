//! Checks of a device's results on the host: products by Freivalds' test, other elements by samples.
//!
//! [`Checked`] is an engine around another one. It changes no bit. It ends a run with [`EngineError::WrongResult`] where the other
//! engine is wrong. `docs/CHECK-DEVICE.md` says what it finds, and with which probability.
//!
//! ```
//! use tiebreak_engine::Engine;
//! use tiebreak_engine::cpu::Cpu;
//! use tiebreak_engine::device_check::{Checked, Shares};
//!
//! // A caller takes the system's randomness here.
//! let random = |bytes: &mut [u8]| Ok(bytes.fill(7));
//! let (engine, tally) = Checked::new(Cpu::new(1)?, Shares { products: 1.0, elements: 0.5 }, Box::new(random));
//! assert_eq!(engine.describe(), Cpu::new(1)?.describe());
//! assert_eq!(tally.now().products, 0);
//! # Ok::<(), tiebreak_engine::EngineError>(())
//! ```

mod elements;
mod field;
mod observer;
mod product;
mod settings;

use super::{Compiled, Engine, EngineError, Observer, Tensor};
use observer::{Checking, Draws};
pub use settings::{ExactSums, Random, Shares, Sums, Tallied, Tally};

pub use super::error::WrongPart;

/// An engine whose results are checked on the host. Its bits, and its name, are those of the engine inside.
pub struct Checked<E> {
    engine: E,
    draws: Draws,
    tally: Tally,
}

impl<E: Engine> Checked<E> {
    /// The engine with these shares of its results checked, and the tally of what was checked. `random` fills bytes with
    /// randomness that no device can foresee.
    pub fn new(engine: E, shares: Shares, random: Random) -> (Checked<E>, Tally) {
        let tally = Tally::default();
        (Checked { engine, draws: Draws { shares, random }, tally: tally.clone() }, tally)
    }

    fn observed<T>(
        &mut self,
        compiled: &Compiled,
        observer: Option<&mut dyn Observer>,
        run: impl FnOnce(&mut E, &mut dyn Observer) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let device = self.engine.describe();
        let mut checking = Checking::begin(&compiled.graph, observer, device, &mut self.draws, &self.tally)?;
        run(&mut self.engine, &mut checking)
    }

    /// Compares a root that a device computed with that of the tensor's bytes.
    fn check_root(&mut self, tensor: &Tensor, number: usize, root: [u8; 32]) -> Result<(), EngineError> {
        let bytes = self.engine.download(tensor)?;
        let right = blake3::hash(&bytes);
        if right == root {
            return Ok(());
        }
        let word = |root: &[u8; 32]| u32::from_le_bytes([root[0], root[1], root[2], root[3]]);
        Err(EngineError::WrongResult {
            device: self.engine.describe(),
            operator: format!("the BLAKE3 root of tensor {number}"),
            part: WrongPart::Root,
            element: 0,
            tile: 0,
            found: word(&root),
            expected: word(right.as_bytes()),
        })
    }
}

impl<E: Engine> Engine for Checked<E> {
    crate::forward!(
        self => self.engine;
        describe, upload, read, compile, put_outside, use_outside, keeps_outside, finish, release, as_any, is_on_host,
    );

    fn roots(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let Some(roots) = self.engine.roots(tensors)? else { return Ok(None) };
        for (number, (tensor, root)) in tensors.iter().zip(&roots).enumerate() {
            if self.draws.is_drawn(self.draws.shares.elements)? {
                self.check_root(tensor, number, *root)?;
                self.tally.add(|tally| tally.roots += 1);
            }
        }
        Ok(Some(roots))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.observed(compiled, observer, |engine, observer| engine.run(compiled, inputs, Some(observer)))
    }

    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.observed(compiled, observer, |engine, observer| {
            engine.run_owning(compiled, inputs, Some(observer))
        })
    }
}
