//! Measuring thresholds: the distance of the native kernels of this machine from the exact product, by class, on the products of
//! a real step. This is the paper's Algorithm 3 with the exact product in place of a second GPU; in the paper's preset, kernels
//! are compared with each other, as in the paper. `docs/ROUNDING.md`, sections 3 and 6.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::record::side;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::rounding_grid::RoundingGrid;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Port, Primitive, TensorId, View};
use tiebreak_contract::program::logged::{native_graph, product_table};
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::StepObserver;
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Want, outputs_of};
use tiebreak_record::rounding::near_tie::{Product, Tolerance};
use tiebreak_record::rounding::thresholds::Rounding;

/// Engines with names, whose native products are compared.
pub type Kernels = Vec<(String, Box<dyn Engine>)>;

/// The measurements of one class of products.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Products that were compared.
    pub products: u64,
    /// Elements of these products.
    pub elements: u64,
    /// The largest distance of a native result from the exact one that the result's size does not explain
    /// ([`Rounding::relative`]), relative to the norms of the row and the column. In the paper's preset: the largest distance of
    /// a result from a boundary that another kernel's result is on the other side of, in steps of the grid.
    pub largest: f64,
    /// The kernel that gave the largest distance.
    pub kernel: String,
    /// Elements that rounded differently from the exact product without a log, over all kernels. In the paper's preset: elements
    /// that the kernels do not all round to one value.
    pub flips: u64,
}

/// Compares kernels on every logged product of the steps that it observes, in the first micro-batch only.
pub struct Calibrator {
    rounding: Rounding,
    /// Each product with its digits and grid.
    products: Vec<(LoggedProduct, ProductTable)>,
    sites: HashMap<usize, usize>,
    exact: Cpu,
    kernels: Kernels,
    /// The measurements so far, by class.
    pub measured: BTreeMap<ProductClass, Measured>,
}

impl Calibrator {
    /// A calibrator for a graph with logged products, and the kernels to measure.
    ///
    /// # Errors
    /// If the CPU engine cannot start its threads.
    pub fn new(rounding: &Rounding, graph: &Graph, kernels: Kernels) -> Result<Calibrator, EngineError> {
        let maker = |id: TensorId| graph.nodes.iter().find(|node| node.output == id);
        let with_table = |logged: &LoggedProduct| (logged.clone(), product_table(graph, logged, &maker));
        Ok(Calibrator {
            rounding: rounding.clone(),
            products: graph.logged.iter().map(with_table).collect(),
            sites: HashMap::new(),
            exact: Cpu::new(0)?,
            kernels,
            measured: BTreeMap::new(),
        })
    }

    /// The thresholds that cover the measurements, `safety` times over. In the paper's preset, a class gets none if the kernels
    /// rounded all its elements alike: its default threshold logs the most.
    pub fn thresholds(&self, safety: f64) -> BTreeMap<ProductClass, u32> {
        let units = |m: &Measured| self.rounding.units(m.largest * safety);
        let known = self.measured.iter().filter(|(_, m)| !self.rounding.is_paper() || m.flips > 0);
        known.map(|(&class, measured)| (class, units(measured))).collect()
    }

    /// Measures one product of the step on the operands that the step has.
    fn compare(&mut self, number: usize, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let (logged, digits) = &self.products[number];
        let alone = Alone::of(logged, digits, inputs)?;
        let floored = logged.rule.floor != 0;
        let a = side(inputs, &logged.a, floored.then_some(logged.absmaxes_a))?;
        let b = side(inputs, &logged.b, floored.then_some(logged.absmaxes_b))?;
        let tolerance = Tolerance::default();
        let scale = Product { dims: logged.dims(), rule: logged.rule, a: &a, b: &b, tolerance };
        let mut results = Vec::new();
        for (_, engine) in &mut self.kernels {
            results.push(alone.values(engine.as_mut(), &alone.native)?);
        }
        let measured = self.measured.entry(logged.class).or_default();
        measured.products += 1;
        measured.elements += logged.elements() as u64;
        let mut seen = |kernel: usize, distance: f64| {
            if distance > measured.largest {
                (measured.largest, measured.kernel) = (distance, self.kernels[kernel].0.clone());
            }
        };
        if self.rounding.is_paper() {
            for place in 0..logged.elements() {
                let values: Vec<f64> = results.iter().map(|kernel| kernel[place]).collect();
                if let Some((kernel, distance)) = rounded_apart(scale.grid(place), &values) {
                    seen(kernel, distance);
                    measured.flips += 1;
                }
            }
            return Ok(());
        }
        let exact = alone.values(&mut self.exact, &alone.exact)?;
        for (kernel, values) in results.iter().enumerate() {
            for (place, (&x, &v)) in exact.iter().zip(values).enumerate().filter(|(_, (x, v))| x != v) {
                let explained = f64::from(self.rounding.relative()) * v.abs();
                let (norms, unexplained) = (scale.norms(place), ((v - x).abs() - explained).max(0.0));
                seen(kernel, if norms > 0.0 { unexplained / norms } else { 0.0 });
                let grid = scale.grid(place);
                measured.flips += u64::from(grid.index(v) != grid.index(x));
            }
        }
        Ok(())
    }
}

/// A logged product as graphs of their own, on the tensors of its operands.
struct Alone {
    /// The product by the contract.
    exact: Graph,
    native: Graph,
    /// The operands' canonical bytes.
    inputs: Vec<Vec<u8>>,
    wide: bool,
}

impl Alone {
    fn of(
        logged: &LoggedProduct,
        digits: &ProductTable,
        inputs: &mut dyn Inputs,
    ) -> Result<Alone, EngineError> {
        let mut builder = Builder::new(digits.clone());
        let mut bytes = Vec::new();
        let mut views = Vec::new();
        // The whole operand, under the product's own view.
        for (name, view) in [("a", &logged.a), ("b", &logged.b)] {
            inputs.visit(view.tensor, &mut |shown| bytes.push(shown.to_vec()))?;
            let elements = bytes[bytes.len() - 1].len() / 4;
            let tensor = builder.input(name, DType::F32, &[elements as u32]);
            views.push(View { tensor, ..view.clone() });
        }
        let [batch, m, n, _] = logged.dims().map(|dim| dim as u32);
        let output = builder.product(logged.class, views[0].clone(), views[1].clone(), &[batch, m, n]);
        builder.output("rounded", output);
        let mut exact = builder.finish();
        exact.outputs = vec![Port { name: "product".into(), tensor: exact.logged[0].product }];
        Ok(Alone { native: native_graph(&exact), exact, inputs: bytes, wide: logged.rule.is_wide() })
    }

    /// The product's values on one engine, before they are rounded to the grid.
    fn values(&self, engine: &mut dyn Engine, graph: &Graph) -> Result<Vec<f64>, EngineError> {
        let outputs = outputs_of(engine, &Arc::new(graph.clone()), &self.inputs)?;
        let words = words_from_bytes(DType::F32, &outputs[0]);
        let value = |word: &u32| f64::from(f32::from_bits(*word));
        let (high, rest) = words.split_at(if self.wide { words.len() / 2 } else { words.len() });
        let mut values: Vec<f64> = high.iter().map(value).collect();
        values.iter_mut().zip(rest).for_each(|(high, rest)| *high += value(rest));
        Ok(values)
    }
}

/// If the machines' values of one element round to different values of the grid: the index of the value furthest from the
/// boundary between the first two, and that distance in steps. The paper's Algorithm 3 collects these distances.
fn rounded_apart(grid: RoundingGrid, values: &[f64]) -> Option<(usize, f64)> {
    let indices = || values.iter().map(|&v| grid.index(v));
    let (low, high) = (indices().min()?, indices().max()?);
    if low == high {
        return None;
    }
    let boundary = 0.5 * (grid.value(low) + grid.value(low + 1));
    let steps = |v: f64| (v - boundary).abs() * 2f64.powi(-grid.quantum(v));
    (0..values.len()).map(|i| (i, steps(values[i]))).max_by(|a, b| a.1.total_cmp(&b.1))
}

impl StepObserver for Calibrator {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        if phase != Phase::Micro(0) {
            return None;
        }
        let numbers: HashMap<TensorId, usize> = self
            .products
            .iter()
            .enumerate()
            .map(|(number, (product, _))| (product.product, number))
            .collect();
        let native = |node: &Node| matches!(node.primitive, Primitive::Native { .. });
        let sites = graph.nodes.iter().enumerate().filter(|(_, node)| native(node));
        self.sites = sites.map(|(index, node)| (index, numbers[&node.output])).collect();
        Some(self)
    }
}

impl Observer for Calibrator {
    fn want(&self, index: usize, _: &Node) -> Want {
        if self.sites.contains_key(&index) { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        _: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.compare(self.sites[&index], inputs)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::rounding_grid::GridRule;

    #[test]
    fn values_that_round_apart_are_found_with_their_distance() {
        let grid = GridRule { bits: 32, floor: 0 }.grid(64, 0, 0);
        let step = 2f64.powi(-23);
        let at = |steps: f64| 1.0 + steps * step;
        assert_eq!(rounded_apart(grid, &[at(0.4), at(0.1), at(0.49)]), None);
        let furthest = (at(0.53) - at(0.5)) / step;
        assert_eq!(rounded_apart(grid, &[at(0.49), at(0.53), at(0.5)]), Some((1, furthest)));
        assert_eq!(rounded_apart(grid, &[-at(0.45), -at(0.51)]).map(|(kernel, _)| kernel), Some(0));
    }
}
