//! The bodies whose names this version gives a meaning: a program may use such a name for nothing else.
//!
//! The table is derived, not written. The catalogue's operators and small programs of every model kind are built twice, with
//! other numbers. The constants that differ depend on a program's numbers. All other instructions have to be the same.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::builder::Builder;
use super::catalogue::{Attributes, OPERATORS};
use super::expr::{Body, Instr, Reg};
use super::graph::{Graph, Primitive, View};
use super::logged::ROUND_TO_GRID;
use super::models::{Model, normalize, small};
use super::operators::rotary::{WORDS, words_body};
use super::operators::{cross_entropy_of_part, means_of_counted, scaled};
use super::optimizer::{Optimizer, own_rate};
use super::products::{ProductClass, ProductTable};
use super::step::{Program, StepSpec};
use crate::arith::DType;
use crate::arith::rounding_grid::GridRule;

/// A body, and a flag for each instruction: true if it is a constant that depends on a program's numbers.
struct Template {
    code: Vec<Instr>,
    free: Vec<bool>,
}

type Table = HashMap<String, Vec<Template>>;

/// A body that a name of this version means, for the page that lists them.
pub struct KnownBody {
    /// The name. A name may mean several bodies.
    pub name: String,
    /// The instructions.
    pub code: Vec<Instr>,
    /// For every instruction, true if it is a constant that depends on a program's numbers.
    pub free: Vec<bool>,
}

/// Every body with a name of this version but [`ROUND_TO_GRID`], by name.
pub fn all() -> Vec<KnownBody> {
    let mut names: Vec<(String, Vec<Template>)> = table().into_iter().collect();
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bodies = |(name, templates): (String, Vec<Template>)| {
        let body = move |Template { code, free }| KnownBody { name: name.clone(), code, free };
        templates.into_iter().map(body)
    };
    names.into_iter().flat_map(bodies).collect()
}

/// Small programs of every model kind and optimizer, for the page that lists their nodes.
pub fn small_programs() -> Vec<(Model, Optimizer, Program)> {
    let program = |spec: StepSpec| (spec.model.clone(), spec.optimizer.clone(), Program::new(spec));
    specs(0, true).into_iter().map(program).collect()
}

/// The nodes of one product on a grid, of operands [2, 3, 5, 11] and [2, 3, 7, 11] whose elements are contiguous.
pub fn product_on_grid(rule: GridRule) -> Graph {
    let mut products = ProductTable::logged_preset();
    products.set_logged(ProductClass::Linear, rule);
    let mut builder = Builder::new(products);
    let mut operand = |name: &str, rows: u32| {
        let dims = [2, 3, rows, 11];
        let tensor = builder.input(name, DType::F32, &dims);
        View { tensor, offset: 0, dims, strides: [3 * rows * 11, rows * 11, 11, 1] }
    };
    let [a, b] = [operand("a", 5), operand("b", 7)];
    builder.product(ProductClass::Linear, a, b, &[2, 3, 5, 7]);
    builder.into_graph()
}

/// The error in a body that has a known name, if there is one.
pub(crate) fn error(body: &Body) -> Option<String> {
    static TABLE: OnceLock<Table> = OnceLock::new();
    if PRIMITIVES.contains(&&*body.name) {
        return Some(format!("{} is the name of another kind of node", body.name));
    }
    // The validation of logged products compares this body whole, with its product.
    if body.name == ROUND_TO_GRID {
        return None;
    }
    let templates = TABLE.get_or_init(table).get(&*body.name)?;
    let is_known = templates.iter().any(|template| template.is(body));
    (!is_known).then(|| format!("the body is not what {} means", body.name))
}

/// The names of the other primitives.
const PRIMITIVES: [&str; 12] = [
    "gather.v1",
    "patches.v1",
    "digit_patches.v1",
    "row_max.v1",
    "tree_sum.v1",
    "segment_sum.v1",
    "group_order.v1",
    "group_offsets.v1",
    "scale.v1",
    "quantise.v1",
    "product.v1",
    "product_rest.v1",
];

impl Template {
    /// True if a body computes the same, up to free constants. Equal constants share an instruction, so registers are compared by
    /// their contents.
    fn is(&self, body: &Body) -> bool {
        let last = |code: &[Instr]| code.len().checked_sub(1).map(|at| Reg(at as u8));
        let (Some(ours), Some(theirs)) = (last(&self.code), last(&body.code)) else { return false };
        let (mut waiting, mut done) = (vec![(ours, theirs)], HashSet::new());
        while let Some((ours, theirs)) = waiting.pop() {
            if !done.insert((ours.0, theirs.0)) {
                continue;
            }
            let (at, of) = (self.code[usize::from(ours.0)], body.code[usize::from(theirs.0)]);
            let same = match (at, of) {
                (Instr::Const(x), Instr::Const(y)) => x == y || self.free[usize::from(ours.0)],
                (Instr::Input(x), Instr::Input(y)) | (Instr::Index(x), Instr::Index(y)) => x == y,
                _ => at.opcode() == of.opcode(),
            };
            if !same {
                return false;
            }
            waiting.extend(at.operands().into_iter().zip(of.operands()));
        }
        true
    }
}

/// Adds the bodies of two graphs that differ in their numbers only.
fn add(table: &mut Table, first: &Graph, second: &Graph) {
    let bodies = |graph: &Graph| {
        let bodies = graph.nodes.iter().filter_map(|node| match &node.primitive {
            Primitive::Map { body, .. } if body.name != ROUND_TO_GRID => Some(body.clone()),
            _ => None,
        });
        bodies.collect::<Vec<Body>>()
    };
    let (first, second) = (bodies(first), bodies(second));
    let names = |bodies: &[Body]| bodies.iter().map(|body| body.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), names(&second), "programs of the table are built alike");
    for (x, y) in first.into_iter().zip(second) {
        assert_eq!(x.code.len(), y.code.len(), "no two constants of {} are one", x.name);
        let free: Vec<bool> = x.code.iter().zip(&y.code).map(|(a, b)| a != b).collect();
        let templates = table.entry(x.name.to_string()).or_default();
        if !templates.iter().any(|have| have.code == x.code && have.free == free) {
            templates.push(Template { code: x.code, free });
        }
    }
}

fn table() -> Table {
    let mut table = Table::new();
    for number in 0..OPERATORS.len() {
        for gradient in [false, true] {
            if let (Some(x), Some(y)) = (operator(number, 0, gradient), operator(number, 1, gradient)) {
                add(&mut table, &x, &y);
            }
        }
    }
    for decay in [false, true] {
        for (x, y) in specs(0, decay).into_iter().zip(specs(1, decay)) {
            let (x, y) = (Program::new(x), Program::new(y));
            for (x, y) in [(&x.micro, &y.micro), (&x.accumulate, &y.accumulate), (&x.update, &y.update)] {
                add(&mut table, x, y);
            }
        }
    }
    add(&mut table, &rate(0), &rate(1));
    add(&mut table, &multiple(0), &multiple(1));
    add(&mut table, &counted(0), &counted(1));
    add(&mut table, &words(0), &words(1));
    for planes in 1..=normalize::PLANES_MAX {
        add(&mut table, &normalised(planes, 0), &normalised(planes, 1));
    }
    for digits in 1..=3 {
        for bits in [16, 26] {
            let graph = product(digits, bits);
            add(&mut table, &graph, &graph);
        }
    }
    table
}

/// An operator of the catalogue by itself. `second` selects other numbers.
fn operator(number: usize, second: u32, gradient: bool) -> Option<Graph> {
    let operator = &OPERATORS[number];
    let tenth = second as f32 / 16.0;
    let attributes = Attributes {
        samples: 1,
        heads: 1,
        stride: 1,
        padding: 0,
        kernel: 2 + second,
        windows: [3 + second, 4 + second],
        cap: 50.0,
        size: [1; 2],
        first: 0,
        step: 1,
        count: 1,
        groups: 1,
        smoothing: 0.19 + tenth,
        ignore: Some(1 + second),
        window: Some(2 + second),
        p: 0.21 + tenth,
        number: 7 + second,
        epsilon: 1e-5 + tenth,
        theta: 1.7 + tenth,
        beta1: 0.81 + tenth,
        beta2: 0.83 + tenth,
        weight_decay: 0.11 + tenth,
        momentum: 0.61 + tenth,
        max_norm: 1.7 + tenth,
    };
    let size = |word: &str| 5 + 2 * second + u32::from(word.as_bytes()[0]) % 3;
    let shape = |shape: &str| match shape {
        "*" => vec![size("*")],
        words => words.split(' ').map(|word| word.parse().unwrap_or_else(|_| size(word))).collect(),
    };
    let shapes: Vec<Vec<u32>> = operator.inputs.iter().map(|input| shape(input.shape)).collect();
    let mut builder = Builder::new(ProductTable::two_and_three());
    operator.append(&mut builder, &shapes, &attributes, gradient).ok()?;
    Some(builder.into_graph())
}

/// Small programs with every optimizer and model kind. `second` selects other numbers.
fn specs(second: u32, decay: bool) -> Vec<StepSpec> {
    let tenth = second as f32 / 16.0;
    let weight_decay = if decay { 0.11 + tenth } else { 0.0 };
    let adamw =
        Optimizer::Adamw { beta1: 0.81 + tenth, beta2: 0.83 + tenth, epsilon: 1e-5 + tenth, weight_decay };
    let sgd = Optimizer::Sgd { momentum: 0.61 + tenth, weight_decay };
    let spec = |(model, optimizer): (Model, Optimizer)| StepSpec {
        loss: Default::default(),
        model,
        optimizer,
        clip_norm: Some(1.7 + tenth),
        micro_batch: 2,
        micro_batches: 1,
        products: ProductTable::two_and_three(),
    };
    small(second).into_iter().zip([adamw, sgd].into_iter().cycle()).map(spec).collect()
}

/// The learning rate of a parameter group. `second` selects another factor.
fn rate(second: u32) -> Graph {
    let mut builder = Builder::new(ProductTable::two_and_three());
    let rate = builder.input("rate", DType::F32, &[1]);
    own_rate(&mut builder, rate, 0.5 + second as f32 / 16.0);
    builder.into_graph()
}

/// A tensor times a number of the model. `second` selects another number.
fn multiple(second: u32) -> Graph {
    let mut builder = Builder::new(ProductTable::two_and_three());
    let x = builder.input("x", DType::F32, &[3]);
    scaled(&mut builder, x, 0.75 + second as f32 / 16.0);
    builder.into_graph()
}

/// The loss of a part of a batch, and the mean over the batch. `second` selects other numbers.
fn counted(second: u32) -> Graph {
    let mut builder = Builder::new(ProductTable::two_and_three());
    let logits = builder.input("logits", DType::F32, &[3, 4 + second]);
    let labels = builder.input("labels", DType::U32, &[3]);
    let factor = builder.input("factor", DType::F32, &[1]);
    let smoothing = 0.19 + second as f32 / 16.0;
    let [loss, _, count] =
        cross_entropy_of_part(&mut builder, smoothing, 1 + second, [logits, labels, factor]);
    means_of_counted(&mut builder, 7 + second, count, &[loss]);
    builder.into_graph()
}

/// A list of words that takes two bodies. `second` selects other words.
fn words(second: u32) -> Graph {
    const LAST: [u32; 4] = [1, 1, 1, 300];
    let mut builder = Builder::new(ProductTable::two_and_three());
    let list = |first: u32| (0..WORDS).map(|i| first + 2 * i + second).collect::<Vec<u32>>();
    let first = builder.map_views(words_body(false, 0, &list(100)), LAST, vec![], DType::U32, &[LAST[3]]);
    let views = vec![builder.whole(first)];
    builder.map_views(words_body(true, 70 + second, &list(200)), LAST, views, DType::U32, &[LAST[3]]);
    builder.into_graph()
}

/// Pixels normalised by constants of each plane. `second` selects other numbers.
fn normalised(planes: usize, second: u32) -> Graph {
    let mut builder = Builder::new(ProductTable::two_and_three());
    let pixels = builder.input("pixels", DType::U32, &[2, 3]);
    // Every constant is a different number, so each has its own instruction.
    let numbers = |first: usize| (0..planes).map(|i| (first + 4 * i) as f32 + second as f32).collect();
    let [means, stds]: [Vec<f32>; 2] = [0, 2].map(|first| numbers(first + 1));
    builder.map(normalize::body([&means, &stds], 3 + second), &[pixels], &[2, 3]);
    builder.into_graph()
}

/// A product on a grid.
fn product(digits: u8, bits: u8) -> Graph {
    let mut products = ProductTable::uniform(digits);
    products.set_logged(ProductClass::Linear, GridRule { bits, floor: 0 });
    let mut builder = Builder::new(products);
    let [a, b] = ["a", "b"].map(|name| builder.input(name, DType::F32, &[2, 3]));
    let [a, b] = [a, b].map(|tensor| View { tensor, offset: 0, dims: [1, 1, 2, 3], strides: [0, 0, 3, 1] });
    builder.product(ProductClass::Linear, a, b, &[2, 2]);
    builder.into_graph()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_made() {
        let table = super::table();
        for name in [
            "gelu.v1",
            "adamw_w.v1",
            "coupled_decay.v1",
            "own_rate.v1",
            "times.v1",
            "dropout.v1",
            "pixel.v1",
            "normalize.v1",
            "two_parts.v1",
            "split_low.v1",
            "mean_pool.v1",
            "batch_norm_count.v1",
            "pooled_m2.v1",
            "running_var.v1",
            "batch_norm_eval.v1",
            "max_pool_backward.v1",
            "window_place.v1",
            "weighted_cross_entropy.v1",
            "counted_share.v1",
            "rotary_next_words.v1",
        ] {
            assert!(table.contains_key(name), "{name}");
        }
    }
}
