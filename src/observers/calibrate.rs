//! Measuring thresholds: how far the native kernels at hand are from the exact product, by class, on the products of a real step
//! (the paper's Algorithm 3, with the exact product in place of a second GPU; in the paper's preset as it stands, kernel against
//! kernel). `docs/ROUNDING.md`, sections 3 and 6.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::record::side;
use crate::arith::DType;
use crate::arith::grid::Grid;
use crate::arith::words::with_words;
use crate::engine::cpu::Cpu;
use crate::engine::session::StepObserver;
use crate::engine::{Engine, EngineError, Inputs, Observer, Tensor};
use crate::program::builder::Builder;
use crate::program::graph::{Graph, LoggedProduct, Node, Port, Primitive, TensorId, TensorType, View};
use crate::program::logged::native_graph;
use crate::program::phase::Phase;
use crate::program::products::{ProductClass, ProductTable};
use crate::rounding::near_tie::{Product, Tolerance};
use crate::rounding::thresholds::Rounding;

/// Engines with names, whose native products are compared.
pub type Kernels = Vec<(String, Box<dyn Engine>)>;

/// What was measured of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    pub products: u64,
    pub elements: u64,
    /// The largest distance of a native result from the exact one that its size does not explain ([`Rounding::relative`]),
    /// relative to the norms of its row and column; in the paper's preset the largest distance from the boundary of a result that
    /// another kernel's is on the other side of, in steps of the grid.
    pub largest: f64,
    /// The kernel that it was.
    pub kernel: String,
    /// Elements that rounded differently from the exact product without a log, over all kernels; in the paper's preset elements that
    /// the kernels do not all round to one value.
    pub flips: u64,
}

/// Compares kernels on every logged product of the steps that it observes; only their first micro-batch.
pub struct Calibrator {
    rounding: Rounding,
    digits: ProductTable,
    products: Vec<LoggedProduct>,
    sites: HashMap<usize, usize>,
    exact: Cpu,
    kernels: Kernels,
    pub measured: BTreeMap<ProductClass, Measured>,
}

impl Calibrator {
    /// For a graph with logged products, and the kernels to be measured.
    pub fn new(
        rounding: &Rounding,
        digits: ProductTable,
        graph: &Graph,
        kernels: Kernels,
    ) -> Result<Calibrator, EngineError> {
        Ok(Calibrator {
            rounding: rounding.clone(),
            digits,
            products: graph.logged.clone(),
            sites: HashMap::new(),
            exact: Cpu::new(0)?,
            kernels,
            measured: BTreeMap::new(),
        })
    }

    /// The thresholds that cover what was measured, `safety` times over. In the paper's preset a class of which the machines rounded
    /// nothing apart gets none: its default logs the most.
    pub fn thresholds(&self, safety: f64) -> BTreeMap<ProductClass, u32> {
        let units = |m: &Measured| self.rounding.units(m.largest * safety);
        let known = self.measured.iter().filter(|(_, m)| !self.rounding.is_paper() || m.flips > 0);
        known.map(|(&class, measured)| (class, units(measured))).collect()
    }

    fn compare(&mut self, number: usize, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let logged = &self.products[number];
        // The two operands' tensors, whole, under the product's own views.
        let mut builder = Builder::new(self.digits.clone());
        let mut bytes = Vec::new();
        let mut views = Vec::new();
        for (name, view) in [("a", &logged.a), ("b", &logged.b)] {
            inputs.visit(view.tensor, &mut |shown| bytes.push(shown.to_vec()))?;
            let elements = bytes[bytes.len() - 1].len() / 4;
            let tensor = builder.input(name, DType::F32, &[elements as u32]);
            views.push(View { tensor, ..view.clone() });
        }
        let dims = logged.dims();
        let shape = [dims[0] as u32, dims[1] as u32, dims[2] as u32];
        let [a, b] = [0, 1].map(|i| views[i].clone());
        let output = builder.product(logged.class, a, b, &shape);
        builder.output("rounded", output);
        let mut exact = builder.finish();
        exact.outputs = vec![Port { name: "product".into(), tensor: exact.logged[0].product }];
        let native = native_graph(&exact);
        let types: Vec<TensorType> = exact.inputs.iter().map(|p| exact.tensor(p.tensor).clone()).collect();
        let run = |engine: &mut dyn Engine, graph: &Graph| -> Result<Vec<u8>, EngineError> {
            let compiled = engine.compile(Arc::new(graph.clone()))?;
            let mut tensors: Vec<Tensor> = Vec::new();
            for (ty, bytes) in types.iter().zip(&bytes) {
                tensors.push(engine.upload(ty, bytes)?);
            }
            let outputs = engine.run(&compiled, &tensors, None)?;
            engine.download(&outputs[0])
        };
        let expected = run(&mut self.exact, &exact)?;
        let floored = logged.rule.floor != 0;
        let a = side(inputs, &logged.a, floored.then_some(logged.magnitudes_a))?;
        let b = side(inputs, &logged.b, floored.then_some(logged.magnitudes_b))?;
        let tolerance = Tolerance::default();
        let scale = Product { dims, rule: logged.rule, a: &a, b: &b, tolerance };
        let elements = logged.elements();
        let value = |bytes: &[u8], place: usize| {
            let part =
                |place: usize| f64::from(f32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[4 * place + i])));
            part(place) + if logged.rule.is_wide() { part(elements + place) } else { 0.0 }
        };
        let measured = self.measured.entry(logged.class).or_default();
        measured.products += 1;
        measured.elements += elements as u64;
        if self.rounding.is_paper() {
            let mut results = Vec::new();
            for (_, engine) in &mut self.kernels {
                let bytes = run(engine.as_mut(), &native)?;
                results.push((0..elements).map(|place| value(&bytes, place)).collect::<Vec<f64>>());
            }
            for place in 0..elements {
                let values: Vec<f64> = results.iter().map(|kernel| kernel[place]).collect();
                let Some((kernel, distance)) = rounded_apart(scale.grid(place), &values) else { continue };
                measured.flips += 1;
                if distance > measured.largest {
                    (measured.largest, measured.kernel) = (distance, self.kernels[kernel].0.clone());
                }
            }
            return Ok(());
        }
        for (name, engine) in &mut self.kernels {
            let results = run(engine.as_mut(), &native)?;
            for place in 0..elements {
                let (x, v) = (value(&expected, place), value(&results, place));
                let norms = scale.norms(place);
                let explained = f64::from(self.rounding.relative()) * v.abs();
                let unexplained = ((v - x).abs() - explained).max(0.0);
                let relative = if norms > 0.0 { unexplained / norms } else { 0.0 };
                if relative > measured.largest {
                    (measured.largest, measured.kernel) = (relative, name.clone());
                }
                if v != x {
                    let grid = scale.grid(place);
                    measured.flips += u64::from(grid.index(v) != grid.index(x));
                }
            }
        }
        Ok(())
    }
}

/// If machines' values of one element round to more than one value of the grid: which of them is furthest from the boundary
/// between the first two, and how far, in steps. The paper's Algorithm 3 collects these.
fn rounded_apart(grid: Grid, values: &[f64]) -> Option<(usize, f64)> {
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
        let numbers: HashMap<TensorId, usize> =
            self.products.iter().enumerate().map(|(number, product)| (product.product, number)).collect();
        let native = |node: &Node| matches!(node.primitive, Primitive::Native { .. });
        let sites = graph.nodes.iter().enumerate().filter(|(_, node)| native(node));
        self.sites = sites.map(|(index, node)| (index, numbers[&node.output])).collect();
        Some(self)
    }
}

impl Observer for Calibrator {
    fn wants(&self, index: usize, _: &Node) -> bool {
        self.sites.contains_key(&index)
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        debug_assert!(with_words(bytes, |words| !words.is_empty()));
        self.compare(self.sites[&index], inputs)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::grid::GridRule;

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
