//! The shader of a region, and regions made ready: one workgroup computes a row in passes (`row_layout`), so that what only its nodes
//! read never leaves it. Instructions that do not depend on the element are computed once a row.

use std::fmt::Write;
use std::sync::Arc;

use super::Accelerated;
use super::device::Device;
use super::kernels::{OwnKernel, Shader, workgroup_each};
use super::launch::Shared;
use super::map::{GROUP, includes, operation, strided, unravel};
use super::regions::{Limits, Region, Role, regions};
use super::row_layout::{Layout, Operand, Place, stretch_words};
use super::schedule::{Unit, Uses};
use super::windows::Cut;
use crate::arith::philox::philox4x32_10;
use crate::arith::words::bytes_from_words;
use crate::arith::{DType, float};
use crate::engine::reference::Reference;
use crate::engine::{EngineError, outputs_of};
use crate::program::builder::Builder;
use crate::program::expr::{Body, Instr};
use crate::program::graph::{Graph, Node, Primitive, TensorId, View};
use crate::program::operators::{cross_entropy, layer_norm};
use crate::program::products::ProductTable;
use crate::shaders;

/// A region's shader, its uniform words and workgroups. It takes the tensors that the region reads, then those that it writes.
pub fn shader(graph: &Graph, region: &Region, layout: &Layout) -> Shader {
    let (width, groups) = workgroup_each(region.rows);
    let mut writer = Writer { graph, region, layout, uniform: vec![region.rows, width, 0, 0] };
    let passes: String = (0..layout.passes()).map(|pass| writer.pass(pass)).collect();
    let uniform = writer.uniform;
    let text = header(graph, region, layout, uniform.len() / 4) + &passes + "}\n";
    (shaders::compose_text("rows", &text).expect("its includes are there"), uniform, groups)
}

fn header(graph: &Graph, region: &Region, layout: &Layout, vectors: usize) -> String {
    let nodes = || region.members.iter().map(|member| &graph.nodes[member.node].primitive);
    let bodies: Vec<&Body> = nodes()
        .filter_map(|primitive| match primitive {
            Primitive::Map { body, .. } => Some(body),
            _ => None,
        })
        .collect();
    let mut text = includes(&bodies);
    if layout.stretches > 0 {
        text.push_str("//!include shared/row.wgsl\n");
    }
    let names: Vec<&str> = nodes().map(Primitive::name).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "// A row each: {}.\n\nconst LEN = {}u;", names.join(", "), region.len);
    if layout.stretches > 0 {
        let share = region.len.div_ceil(GROUP).next_power_of_two();
        let words = layout.stretches * stretch_words(region.len);
        let _ = writeln!(text, "const SHARE = {share}u;\nvar<workgroup> held: array<u32, {words}>;");
    }
    let _ = writeln!(text, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {vectors}>;");
    let reads = (0..region.reads.len()).map(|number| format!("<storage, read> in{number}"));
    let writes = (0..region.writes.len()).map(|number| format!("<storage, read_write> out{number}"));
    for (binding, variable) in (1..).zip(reads.chain(writes)) {
        let _ = writeln!(text, "@group(0) @binding({binding}) var{variable}: array<u32>;");
    }
    let _ = writeln!(
        text,
        "\n@compute @workgroup_size({GROUP})\n\
         fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {{\n    \
         let row = group.x + group.y * p[0].y;\n    if (row >= p[0].x) {{\n        return;\n    }}"
    );
    text
}

struct Writer<'a> {
    graph: &'a Graph,
    region: &'a Region,
    layout: &'a Layout,
    /// (rows, workgroups along x, 0, 0), then in the order of their use: a map's dims, the last one counted in rows; a view's
    /// (offset, 0, 0, 0) and strides; (a load's offset or a constant, 0, 0, 0).
    uniform: Vec<u32>,
}

/// The lines of a map that are the same for the whole row, and those of an element.
#[derive(Default)]
struct Lines {
    row: String,
    element: String,
}

impl<'a> Writer<'a> {
    fn primitive(&self, number: usize) -> &'a Primitive {
        &self.graph.nodes[self.region.members[number].node].primitive
    }

    /// The name of a member's value.
    fn value(&self, number: usize) -> String {
        match self.primitive(number) {
            Primitive::Map { body, .. } => format!("v{number}_{}", body.code.len() - 1),
            _ => format!("v{number}"),
        }
    }

    /// A vector of the uniform data.
    fn vector(&mut self, words: [u32; 4]) -> usize {
        self.uniform.extend(words);
        self.uniform.len() / 4 - 1
    }

    /// A word of the uniform data.
    fn word(&mut self, value: u32) -> String {
        format!("p[{}].x", self.vector([value, 0, 0, 0]))
    }

    fn read(&self, tensor: TensorId) -> usize {
        self.region.reads.iter().position(|read| *read == tensor).expect("a region reads what it loads")
    }

    /// A map's instructions.
    fn map(&mut self, number: usize, body: &Body, dims: [u32; 4], inputs: &[View]) -> Lines {
        let (mut lines, wide) = (Lines::default(), self.region.members[number].role == Role::Wide);
        let [i0, i1, i2, i3] = [0, 1, 2, 3].map(|d| format!("v{number}i{d}"));
        // The last dimension is as long as a row, or several.
        let i3 = if wide { format!("({i3} * LEN + j)") } else { i3 };
        let operands = &self.layout.operands[number];
        let apart = |operand: &Operand| matches!(operand, Operand::Outside { place: Place::Strided, .. });
        if operands.iter().any(apart) || body.code.iter().any(|i| matches!(i, Instr::Index(_))) {
            let [d0, d1, d2, d3] = dims;
            let dims = self.vector([d0, d1, d2, if wide { d3 / self.region.len } else { d3 }]);
            lines.row = unravel("row", dims, &format!("v{number}i"));
        }
        let mut varies: Vec<bool> = Vec::new();
        for (n, instr) in body.code.iter().enumerate() {
            let varying = match instr {
                Instr::Input(k) => match operands[*k as usize] {
                    Operand::Member(of) => self.region.members[of].role == Role::Wide,
                    Operand::Load(_) => true,
                    Operand::Outside { place, .. } => wide && matches!(place, Place::Column | Place::Strided),
                },
                Instr::Index(3) => wide,
                _ => instr.operands().iter().any(|register| varies[register.0 as usize]),
            };
            let value = operation(instr, &format!("v{number}_"), |leaf| match leaf {
                Instr::Input(k) => match operands[*k as usize] {
                    Operand::Member(of) => self.value(of),
                    Operand::Load(load) => format!("x{load}"),
                    Operand::Outside { input, place } => {
                        let view = &inputs[input];
                        let at = self.vector([view.offset, 0, 0, 0]);
                        self.uniform.extend(view.strides);
                        let element = match place {
                            Place::Uniform => format!("p[{at}].x"),
                            Place::Column => format!("p[{at}].x + j"),
                            Place::Row | Place::Element => format!("p[{at}].x + row"),
                            Place::Strided => strided(at, [&i0, &i1, &i2, &i3]),
                        };
                        format!("in{}[{element}]", self.read(view.tensor))
                    }
                },
                Instr::Index(d) => [&i0, &i1, &i2, &i3][*d as usize].clone(),
                Instr::Const(value) => self.word(*value),
                _ => unreachable!("an operation has operands"),
            });
            let (to, indent) = if varying { (&mut lines.element, 8) } else { (&mut lines.row, 4) };
            let _ = writeln!(to, "{:indent$}let v{number}_{n} = {value};", "");
            varies.push(varying);
        }
        lines
    }

    /// Everything of a pass: what rows have one of, the loop over elements, and the sums and maxima that end it.
    fn pass(&mut self, pass: usize) -> String {
        let (region, layout) = (self.region, self.layout);
        let of_pass: Vec<usize> = (0..region.members.len()).filter(|&m| layout.pass[m] == pass).collect();
        let (mut before, mut maps, mut after) = (String::new(), String::new(), String::new());
        let (takes, mut keeps) = self.waiting(pass, &of_pass);
        for &number in &of_pass {
            if let Primitive::Map { body, dims, inputs } = self.primitive(number) {
                let lines = self.map(number, body, *dims, inputs);
                before.push_str(&lines.row);
                maps.push_str(&lines.element);
            }
            let value = self.value(number);
            let (stretch, term) = (layout.scratch[number].map(|s| self.stretch(s)), || self.term(number));
            match (region.members[number].role, stretch) {
                (Role::Wide, _) => {
                    if let Some(write) = self.written(number) {
                        keeps.push_str(&format!("        out{write}[i] = {value};\n"));
                    }
                }
                (Role::Sum, Some(stretch)) => {
                    keeps.push_str(&format!("        held[{stretch}u + at] = {};\n", term()));
                    after.push_str(&format!("    let {value} = row_sum({stretch}u, index);\n"));
                    after.push_str(&self.write_one(number));
                }
                (Role::Max, Some(stretch)) => {
                    let key = format!("key{number}");
                    before.push_str(&format!("    var {key} = 0u;\n"));
                    keeps.push_str(&format!("        {key} = max({key}, f_order_key({}));\n", term()));
                    after.push_str(&format!("    let {value} = row_max({stretch}u, index, {key});\n"));
                    after.push_str(&self.write_one(number));
                }
                _ => before.push_str(&self.write_one(number)),
            }
        }
        if maps.is_empty() && keeps.is_empty() {
            return before; // nothing of an element
        }
        let at = if layout.stretches > 0 { "        let at = row_place(j);\n" } else { "" };
        let i = "        let i = row * LEN + j;\n";
        let head = format!("    for (var j = index; j < LEN; j += {GROUP}u) {{\n");
        before + &head + i + at + &takes + &maps + &keeps + "    }\n" + &after
    }

    /// The lines by which a pass takes the row's elements and what waits for it, and those by which it keeps what later ones take. It takes
    /// before it keeps, so that one value may lie where another lay.
    fn waiting(&mut self, pass: usize, of_pass: &[usize]) -> (String, String) {
        let layout = self.layout;
        let (mut takes, mut keeps) = (String::new(), String::new());
        let operands = || of_pass.iter().flat_map(|&member| &layout.operands[member]);
        for (number, load) in layout.loads.iter().enumerate() {
            if !operands().any(|operand| matches!(operand, Operand::Load(taken) if *taken == number)) {
                continue;
            }
            let (home, (first, last)) = (layout.load_homes[number].map(|s| self.stretch(s)), load.passes);
            let value = match home {
                Some(home) if pass > first => format!("held[{home}u + at]"),
                _ => format!("in{}[{} + i]", self.read(load.tensor), self.word(load.offset)),
            };
            takes.push_str(&format!("        let x{number} = {value};\n"));
            if let Some(home) = home.filter(|_| pass == first && pass < last) {
                keeps.push_str(&format!("        held[{home}u + at] = x{number};\n"));
            }
        }
        for (number, home) in layout.homes.iter().enumerate() {
            let Some(home) = home.map(|s| self.stretch(s)) else { continue };
            let value = self.value(number);
            if layout.pass[number] == pass {
                keeps.push_str(&format!("        held[{home}u + at] = {value};\n"));
            } else if operands().any(|operand| matches!(operand, Operand::Member(of) if *of == number)) {
                takes.push_str(&format!("        let {value} = held[{home}u + at];\n"));
            }
        }
        (takes, keeps)
    }

    /// The first word of a stretch.
    fn stretch(&self, number: u32) -> u32 {
        number * stretch_words(self.region.len)
    }

    /// What a sum or a maximum takes.
    fn term(&self, number: usize) -> String {
        match self.layout.operands[number][0] {
            Operand::Member(of) => self.value(of),
            Operand::Load(load) => format!("x{load}"),
            Operand::Outside { .. } => unreachable!("sums and maxima take the row's elements"),
        }
    }

    /// The number of a member's output among what is written.
    fn written(&self, number: usize) -> Option<usize> {
        let output = self.graph.nodes[self.region.members[number].node].output;
        self.region.writes.iter().position(|write| *write == output)
    }

    /// Writes what a row has one of, if it is written.
    fn write_one(&self, number: usize) -> String {
        let Some(write) = self.written(number) else { return String::new() };
        format!("    if (index == 0u) {{\n        out{write}[row] = {};\n    }}\n", self.value(number))
    }
}

/// The texts of a graph's regions with a name, for dumps and the lint's tests: those of adapters with WebGPU's default limits, and
/// CUDA's.
pub fn texts(graph: &Graph) -> Vec<(String, String)> {
    let (uses, places) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
    let of = |limits: Limits| {
        let found = regions(graph, &uses, &places, &limits, &|node| has_words(graph, node));
        let shaders = found
            .into_iter()
            .filter_map(move |region| Some(shader(graph, &region, &Layout::of(graph, &region, &limits)?).0));
        shaders.collect::<Vec<_>>()
    };
    let all = [Limits::WEBGPU, Limits::CUDA].into_iter().flat_map(of);
    all.map(|text| ("rows".to_string(), text)).collect()
}

/// Whether all of a node's tensors have four-byte elements.
pub fn has_words(graph: &Graph, node: &Node) -> bool {
    let mut tensors = node.primitive.inputs();
    tensors.push(node.output);
    tensors.iter().all(|id| matches!(graph.tensor(*id).dtype, DType::F32 | DType::U32))
}

impl<D: Device> Accelerated<D> {
    /// The regions of a graph, whose tensors are whole, with their shaders.
    pub(super) fn regions_of(
        &self,
        graph: &Graph,
        uses: &Uses,
        fused: &[Unit<D::Pipeline>],
    ) -> Vec<(Region, Shader)> {
        if !self.regions {
            return Vec::new();
        }
        let mut runs_at: Vec<usize> = (0..graph.nodes.len()).collect();
        fused.iter().for_each(|unit| unit.nodes.iter().for_each(|&node| runs_at[node] = unit.at));
        let limits = self.device.row_limits();
        let may = |node: &Node| has_words(graph, node) && self.cuts(graph, node).iter().all(Cut::is_whole);
        let found = regions(graph, uses, &runs_at, &limits, &may);
        let shaders = found.into_iter().filter_map(|region| {
            let layout = Layout::of(graph, &region, &limits)?;
            let shader = shader(graph, &region, &layout);
            Some((region, shader))
        });
        shaders.collect()
    }

    /// A region made ready.
    pub(super) fn region(
        &mut self,
        graph: &Graph,
        region: Region,
        (text, uniform, groups): Shader,
        shared: &mut Shared,
    ) -> Result<Unit<D::Pipeline>, EngineError> {
        let kernel = OwnKernel { pipeline: self.device.pipeline(&text)?, uniform, groups };
        let nodes = region.members.iter().map(|member| member.node).collect();
        Ok(self.unit(graph, nodes, region.at, [region.reads, region.writes], kernel, shared))
    }

    /// Whether regions have the scalar reference's bits here.
    pub(super) fn computes_rows_well(&mut self) -> Result<bool, EngineError> {
        let (rows, attention) = (trial(TRIAL_LEN), super::attention::trial(TRIAL_LEN));
        for (graph, inputs) in [rows, attention] {
            let graph = Arc::new(graph);
            if outputs_of(self, &graph, &inputs)? != outputs_of(&mut Reference, &graph, &inputs)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A length with a last round of one element, and an odd node on every level of its tree.
const TRIAL_LEN: u32 = 65;

/// A layer norm, a loss over its rows and both gradients, with inputs: rows of ordinary numbers, of subnormal ones, of large ones, with a
/// NaN and with infinities.
pub fn trial(len: u32) -> (Graph, Vec<Vec<u8>>) {
    const ROWS: u32 = 5;
    let mut b = Builder::new(ProductTable::preset());
    let x = b.input("x", DType::F32, &[ROWS, len]);
    let [gain, bias] = ["gain", "bias"].map(|name| b.input(name, DType::F32, &[len]));
    let labels = b.input("labels", DType::U32, &[ROWS]);
    let factor = b.input("factor", DType::F32, &[1]);
    let y = layer_norm(&mut b, x, gain, bias, 1e-5);
    let (loss, dy) = cross_entropy(&mut b, y, labels, factor);
    let dx = b.backward(y, dy)[&x];
    for (name, tensor) in [("y", y), ("loss", loss), ("dy", dy), ("dx", dx)] {
        b.output(name, tensor);
    }

    let word = |i: u32, stream: u32| match (stream, i / len, i % len) {
        (0, 1, _) => philox4x32_10([stream, len], [i, 0, 0, 0])[0] & 0x807f_ffff,
        (0, 3, 7) => float::NAN,
        (0, 4, 60 | 61) => 0x7f80_0000 | (i % 2) << 31,
        (_, row, _) => {
            let [bits, spread, ..] = philox4x32_10([stream, len], [i, 0, 0, 0]);
            (bits & 0x807f_ffff) | ((if row == 2 { 250 } else { 120 }) + spread % 5) << 23
        }
    };
    let words = |len: u32, stream: u32| (0..len).map(|i| word(i, stream)).collect::<Vec<u32>>();
    let labels = (0..ROWS).map(|row| row * (len - 1) / (ROWS - 1)).collect();
    let inputs = [
        words(ROWS * len, 0),
        words(len, 1),
        words(len, 2),
        labels,
        vec![float::div(float::ONE, 0x40a0_0000)],
    ];
    (b.finish(), inputs.iter().map(|words| bytes_from_words(DType::F32, words)).collect())
}
