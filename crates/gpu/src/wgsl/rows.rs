//! The shader of a row fusion: one workgroup computes a row in passes (`rows/layout`). Values that are read only inside the
//! fusion never leave the workgroup. Instructions that do not depend on the element are computed once for each row.

use std::fmt::Write;

use super::map::{includes, operation, strided, unravel};
use crate::device::kernel::{GROUP, Shader, workgroup_each};
use crate::rows::access::RowAccess;
use crate::rows::fusion::{Role, RowFusion};
use crate::rows::layout::{RowLayout, RowOperand, stretch_words};
use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, View};

/// A row fusion's shader. The buffers are the tensors that the fusion reads, then the tensors that it writes.
pub(crate) fn shader(graph: &Graph, fusion: &RowFusion, layout: &RowLayout) -> Shader {
    let (width, groups) = workgroup_each(fusion.rows);
    let mut writer = RowShaderWriter { graph, fusion, layout, uniform: vec![fusion.rows, width, 0, 0] };
    let passes: String = (0..layout.passes()).map(|pass| writer.pass(pass)).collect();
    let uniform = writer.uniform;
    let text = header(graph, fusion, layout, uniform.len() / 4) + &passes + "}\n";
    let text = tiebreak_shaders::compose_text("rows", &text).expect("its includes are there");
    Shader { text: text.into(), uniform, groups }
}

fn header(graph: &Graph, fusion: &RowFusion, layout: &RowLayout, vectors: usize) -> String {
    let nodes = || fusion.members.iter().map(|member| &graph.nodes[member.node].primitive);
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
    let _ = writeln!(text, "// A row each: {}.\n\nconst LEN = {}u;", names.join(", "), fusion.len);
    if layout.stretches > 0 {
        let share = fusion.len.div_ceil(GROUP).next_power_of_two();
        let words = layout.stretches * stretch_words(fusion.len);
        let _ = writeln!(text, "const SHARE = {share}u;\nvar<workgroup> held: array<u32, {words}>;");
    }
    let _ = writeln!(text, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {vectors}>;");
    let reads = (0..fusion.reads.len()).map(|number| format!("<storage, read> in{number}"));
    let writes = (0..fusion.writes.len()).map(|number| format!("<storage, read_write> out{number}"));
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

struct RowShaderWriter<'a> {
    graph: &'a Graph,
    fusion: &'a RowFusion,
    layout: &'a RowLayout,
    /// The uniform words: (rows, workgroups along x, 0, 0), then the others in the order of their use. The others are a map's
    /// dims, the last one counted in rows; a view's (offset, 0, 0, 0) and strides; and (a load's offset or a constant, 0, 0, 0).
    uniform: Vec<u32>,
}

/// The lines of a map that are the same for the whole row, and the lines for an element.
#[derive(Default)]
struct Lines {
    row: String,
    element: String,
}

impl<'a> RowShaderWriter<'a> {
    fn primitive(&self, number: usize) -> &'a Primitive {
        &self.graph.nodes[self.fusion.members[number].node].primitive
    }

    /// The name of a member's value.
    fn value(&self, number: usize) -> String {
        match self.primitive(number) {
            Primitive::Map { body, .. } => format!("v{number}_{}", body.code.len() - 1),
            _ => format!("v{number}"),
        }
    }

    /// Appends a vector to the uniform data; returns its number.
    fn vector(&mut self, words: [u32; 4]) -> usize {
        self.uniform.extend(words);
        self.uniform.len() / 4 - 1
    }

    /// Appends a word to the uniform data; returns its expression.
    fn word(&mut self, value: u32) -> String {
        format!("p[{}].x", self.vector([value, 0, 0, 0]))
    }

    fn read(&self, tensor: TensorId) -> usize {
        self.fusion.reads.iter().position(|read| *read == tensor).expect("a row fusion reads what it loads")
    }

    /// The lines of a map's instructions.
    fn map(&mut self, number: usize, body: &Body, dims: [u32; 4], inputs: &[View]) -> Lines {
        let (mut lines, wide) = (Lines::default(), self.fusion.members[number].role == Role::Wide);
        let [i0, i1, i2, i3] = [0, 1, 2, 3].map(|d| format!("v{number}i{d}"));
        // The last dimension is as long as one row, or as several.
        let i3 = if wide { format!("({i3} * LEN + j)") } else { i3 };
        let operands = &self.layout.operands[number];
        let apart =
            |operand: &RowOperand| matches!(operand, RowOperand::Outside { access: RowAccess::Strided, .. });
        if operands.iter().any(apart) || body.code.iter().any(|i| matches!(i, Instr::Index(_))) {
            let [d0, d1, d2, d3] = dims;
            let dims = self.vector([d0, d1, d2, if wide { d3 / self.fusion.len } else { d3 }]);
            lines.row = unravel("row", dims, &format!("v{number}i"));
        }
        let mut varies: Vec<bool> = Vec::new();
        for (n, instr) in body.code.iter().enumerate() {
            let varying = match instr {
                Instr::Input(k) => match operands[*k as usize] {
                    RowOperand::Member(of) => self.fusion.members[of].role == Role::Wide,
                    RowOperand::Load(_) => true,
                    RowOperand::Outside { access, .. } => {
                        wide && matches!(access, RowAccess::Column | RowAccess::Strided)
                    }
                },
                Instr::Index(3) => wide,
                _ => instr.operands().iter().any(|register| varies[register.0 as usize]),
            };
            let value = operation(instr, &format!("v{number}_"), |leaf| match leaf {
                Instr::Input(k) => match operands[*k as usize] {
                    RowOperand::Member(of) => self.value(of),
                    RowOperand::Load(load) => format!("x{load}"),
                    RowOperand::Outside { input, access } => {
                        let view = &inputs[input];
                        let at = self.vector([view.offset, 0, 0, 0]);
                        self.uniform.extend(view.strides);
                        let element = match access {
                            RowAccess::Uniform => format!("p[{at}].x"),
                            RowAccess::Column => format!("p[{at}].x + j"),
                            RowAccess::PerRow | RowAccess::Element => format!("p[{at}].x + row"),
                            RowAccess::Strided => strided(at, [&i0, &i1, &i2, &i3]),
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

    /// All lines of a pass: the values that rows have once, the loop over elements, and the sums and maxima that end it.
    fn pass(&mut self, pass: usize) -> String {
        let (fusion, layout) = (self.fusion, self.layout);
        let of_pass: Vec<usize> = (0..fusion.members.len()).filter(|&m| layout.pass[m] == pass).collect();
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
            match (fusion.members[number].role, stretch) {
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
            return before; // the pass computes nothing for an element
        }
        let at = if layout.stretches > 0 { "        let at = row_place(j);\n" } else { "" };
        let i = "        let i = row * LEN + j;\n";
        let head = format!("    for (var j = index; j < LEN; j += {GROUP}u) {{\n");
        before + &head + i + at + &takes + &maps + &keeps + "    }\n" + &after
    }

    /// The lines by which a pass takes the row's elements and waiting values, and the lines by which it keeps values for later
    /// passes. A pass takes before it keeps, so that one value may replace another.
    fn waiting(&mut self, pass: usize, of_pass: &[usize]) -> (String, String) {
        let layout = self.layout;
        let (mut takes, mut keeps) = (String::new(), String::new());
        let operands = || of_pass.iter().flat_map(|&member| &layout.operands[member]);
        for (number, load) in layout.loads.iter().enumerate() {
            if !operands().any(|operand| matches!(operand, RowOperand::Load(taken) if *taken == number)) {
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
            } else if operands().any(|operand| matches!(operand, RowOperand::Member(of) if *of == number)) {
                takes.push_str(&format!("        let {value} = held[{home}u + at];\n"));
            }
        }
        (takes, keeps)
    }

    /// The first word of a stretch.
    fn stretch(&self, number: u32) -> u32 {
        number * stretch_words(self.fusion.len)
    }

    /// The term of a sum or a maximum.
    fn term(&self, number: usize) -> String {
        match self.layout.operands[number][0] {
            RowOperand::Member(of) => self.value(of),
            RowOperand::Load(load) => format!("x{load}"),
            RowOperand::Outside { .. } => unreachable!("sums and maxima take the row's elements"),
        }
    }

    /// The number of a member's output among the written tensors.
    fn written(&self, number: usize) -> Option<usize> {
        let output = self.graph.nodes[self.fusion.members[number].node].output;
        self.fusion.writes.iter().position(|write| *write == output)
    }

    /// Writes a value that a row has once, if it is an output.
    fn write_one(&self, number: usize) -> String {
        let Some(write) = self.written(number) else { return String::new() };
        format!("    if (index == 0u) {{\n        out{write}[row] = {};\n    }}\n", self.value(number))
    }
}
