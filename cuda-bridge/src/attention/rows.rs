//! Writes the text of the computations on a row between two products.

use std::fmt::Write;

use super::plan::Plan;
use super::steps::{Attention, Operand, Operation, Step};

/// The function `compute_row`, which returns the greatest absmax of the result, the blocks that hold its places up to the
/// diagonal, and its number beyond these.
pub(super) fn text<'n>(of: &Attention, plan: &Plan, name_of: impl Fn(&str) -> &'n str) -> String {
    let passes = plan.pass.iter().max().map_or(0, |last| last + 1);
    let writer = RowsWriter { of, plan, name_of };
    let body: String = (0..passes).map(|pass| writer.pass(pass)).collect();
    let any = plan.beyond.contains(&true);
    let within = if any { "tb::min(row % SAMPLE_ROWS / 128u + 1u, BLOCKS)" } else { "BLOCKS" };
    let result =
        if plan.beyond[of.result] { format!("within, s{}_beyond", of.result) } else { "BLOCKS, 0u".into() };
    format!(
        "TB_FN Row compute_row(const Tensors& of, u32* own, u32 lane, u32 row) {{\n    const u32 within = {within};\n    u32 most = 0u, end = \
         BLOCKS;\n{body}    return {{greatest_of_lanes(most), {result}}};\n}}\n"
    )
}

/// The text of a pass: before its loop; for each group what the loop reads, computes and stores; after the loop.
#[derive(Default)]
struct RowParts {
    before: String,
    takes: String,
    computes: String,
    keeps: String,
    after: String,
}

/// Writes a line; writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($arguments:tt)*) => {
        let _ = writeln!($text, $($arguments)*);
    };
}

const EACH: &str = "_Pragma(\"unroll\") for (u32 i = 0; i < 4; i++)";
const GROUP: &str = "const u32 group = block * 32u + lane, places = inside(group);";

struct RowsWriter<'a, N> {
    of: &'a Attention,
    plan: &'a Plan,
    name_of: N,
}

impl<'n, N: Fn(&str) -> &'n str> RowsWriter<'_, N> {
    fn aligned(&self, offset: u32) -> bool {
        self.of.len.is_multiple_of(4) && offset.is_multiple_of(4)
    }

    fn has_places(&self, step: usize) -> bool {
        self.of.steps[step].operation.has_places()
    }

    /// An operand of a step at place `i` of a lane's group.
    fn operand(&self, operand: Operand) -> String {
        match operand {
            Operand::Step(of) if !self.has_places(of) => format!("s{of}"),
            Operand::Product | Operand::Step(_) | Operand::Element { .. } => four(operand) + ".v[i]",
            Operand::OfPlace { tensor, offset } => format!("of.in{tensor}[{offset}u + 4u * group + i]"),
            Operand::OfRow { tensor, offset } => format!("of.in{tensor}[{offset}u + row]"),
            Operand::One { tensor, offset } => format!("of.in{tensor}[{offset}u]"),
        }
    }

    /// An operand beyond the diagonal, where nothing depends on the first product.
    fn operand_beyond(&self, operand: Operand) -> String {
        match operand {
            Operand::Product => "0u".into(),
            Operand::Step(of) if self.has_places(of) => format!("s{of}_beyond"),
            _ => self.operand(operand),
        }
    }

    /// The step that a sum or a maximum reduces, if its values beyond the diagonal are one number.
    fn reduced_beyond(&self, step: usize) -> Option<usize> {
        match (self.of.steps[step].operation.reduces(), self.of.steps[step].operands.first()) {
            (true, Some(&Operand::Step(of))) if self.plan.beyond[of] => Some(of),
            _ => None,
        }
    }

    fn call(&self, i: usize, function: &str, operand: impl Fn(Operand) -> String, place: &str) -> String {
        let constants = |step: &Step| match &step.operation {
            Operation::Map { constants, .. } => constants.len(),
            _ => 0,
        };
        let steps = &self.of.steps;
        let first: usize = steps[..i].iter().map(constants).sum();
        let mut arguments: Vec<String> = steps[i].operands.iter().map(|taken| operand(*taken)).collect();
        arguments.push(format!("i{i}_0, i{i}_1, i{i}_2, i{i}_3{place}"));
        arguments.extend((first..first + constants(&steps[i])).map(|word| format!("of.p[{word}]")));
        format!("{}({})", (self.name_of)(function), arguments.join(", "))
    }

    /// The text of a whole pass: the values that rows have once, the loop over groups, and the sums and maxima that end it.
    fn pass(&self, pass: usize) -> String {
        let steps = &self.of.steps;
        let of_pass: Vec<usize> = (0..steps.len()).filter(|&step| self.plan.pass[step] == pass).collect();
        // A pass may end at the diagonal if each of its numbers beyond is known, and those that are summed are zero.
        let ends = of_pass.iter().all(|&step| match steps[step].operation {
            Operation::Max | Operation::Sum => self.reduced_beyond(step).is_some(),
            Operation::Map { each_place, .. } => self.plan.beyond[step] || !each_place,
        });
        let mut parts = RowParts::default();
        let mut zeros: Vec<String> = Vec::new();
        self.takes(pass, &of_pass, &mut parts);
        for &step in &of_pass {
            let taken = steps[step].operands.first().copied();
            let beyond = self.reduced_beyond(step).filter(|_| ends);
            match &steps[step].operation {
                Operation::Map { function, each_place, dims, .. } => {
                    self.map(step, function, *each_place, *dims, &mut parts);
                    if ends && *each_place {
                        self.map_beyond(step, &mut parts);
                    }
                    continue;
                }
                Operation::Sum => {
                    let terms = four(taken.expect("a sum takes something"));
                    line!(parts.before, "    RowSum sum{step};");
                    line!(parts.keeps, "        sum{step}.add(block, lane, places, {terms});");
                    if let Some(of) = beyond {
                        zeros.push(format!("s{of}_beyond == 0u"));
                        line!(parts.after, "    sum{step}.add_zeros(end, lane);");
                    }
                    line!(parts.after, "    const u32 s{step} = sum{step}.total();");
                }
                Operation::Max => {
                    let term = self.operand(taken.expect("a maximum takes something"));
                    let key = format!("key{step} = tb::max(key{step}, wgsl_f_order_key");
                    line!(parts.before, "    u32 key{step} = 0u;");
                    line!(parts.keeps, "        {EACH} if (i < places) {key}({term}));");
                    if let Some(of) = beyond {
                        line!(parts.after, "    if (end < BLOCKS) {key}(s{of}_beyond));");
                    }
                    let greatest = format!("wgsl_f_from_order_key(greatest_of_lanes(key{step}))");
                    line!(parts.after, "    const u32 s{step} = {greatest};");
                }
            }
            self.write_one(step, &mut parts.after);
        }
        let RowParts { before, takes, computes, keeps, after } = parts;
        if takes.is_empty() && computes.is_empty() && keeps.is_empty() {
            return before;
        }
        let end = match (ends, zeros.is_empty()) {
            (false, _) => "BLOCKS".into(),
            (true, true) => "within".into(),
            (true, false) => format!("{} ? within : BLOCKS", zeros.join(" && ")),
        };
        format!(
            "    // Pass {pass}.\n{before}    end = {end};\n    _Pragma(\"unroll 1\") for (u32 block = 0; block < end; block++) {{\n        \
             {GROUP}\n{takes}{computes}{keeps}    }}\n{after}"
        )
    }

    /// The values of a group that a pass reads and does not compute.
    fn takes(&self, pass: usize, of_pass: &[usize], parts: &mut RowParts) {
        let mut taken: Vec<Operand> = Vec::new();
        for &operand in of_pass.iter().flat_map(|&step| &self.of.steps[step].operands) {
            if taken.contains(&operand) {
                continue;
            }
            taken.push(operand);
            let loaded = match operand {
                Operand::Product => format!("load_16({}, places != 0u)", home(0)),
                Operand::Step(of) if self.plan.pass[of] < pass && self.has_places(of) => {
                    let stretch = self.plan.homes[of].expect("what a later pass takes waits");
                    let load = format!("load_16({}, places != 0u)", home(stretch));
                    if self.plan.beyond[of] {
                        format!("block < within ? {load} : all(s{of}_beyond)")
                    } else {
                        load
                    }
                }
                Operand::Element { tensor, offset } => format!(
                    "load_group<{}>(of.in{tensor}, of.in{tensor}_n, {offset}u + row * LEN, group, places)",
                    self.aligned(offset)
                ),
                _ => continue,
            };
            line!(parts.takes, "        const Four {} = {loaded};", four(operand));
        }
    }

    fn map(&self, i: usize, function: &str, each_place: bool, dims: [u32; 4], parts: &mut RowParts) {
        parts.before.push_str(&indices(i, dims, each_place.then_some(self.of.len)));
        if !each_place {
            let value = self.call(i, function, |taken| self.operand(taken), "");
            line!(parts.before, "    const u32 s{i} = {value};");
            return self.write_one(i, &mut parts.before);
        }
        let value = self.call(i, function, |taken| self.operand(taken), " + 4u * group + i");
        let each = format!("{EACH} s{i}.v[i] = i < places ? {value} : 0u;");
        if self.plan.beyond[i] {
            let beyond = self.call(i, function, |taken| self.operand_beyond(taken), " + LEN - 1u");
            line!(parts.before, "    const u32 s{i}_beyond = {beyond};");
            line!(
                parts.computes,
                "        Four s{i} = all(s{i}_beyond);\n        if (block < within) {each}"
            );
        } else {
            line!(parts.computes, "        Four s{i};\n        {each}");
        }
        if i == self.of.result {
            let absmax = format!("i < places ? s{i}.v[i] & 0x7fffffffu : 0u");
            line!(parts.keeps, "        {EACH} most = tb::max(most, {absmax});");
        }
        if let Some(stretch) = self.plan.homes[i] {
            line!(parts.keeps, "        if (places != 0u) store_16({}, s{i});", home(stretch));
        }
        if let Some(write) = self.of.steps[i].write {
            line!(parts.keeps, "        {}", self.store(write, &format!("s{i}")));
        }
    }

    /// Handles a map's number beyond the diagonal after a pass that ended there.
    fn map_beyond(&self, i: usize, parts: &mut RowParts) {
        if i == self.of.result {
            line!(parts.after, "    if (end < BLOCKS) most = tb::max(most, s{i}_beyond & 0x7fffffffu);");
        }
        if let Some(write) = self.of.steps[i].write {
            let store = self.store(write, &format!("all(s{i}_beyond)"));
            line!(
                parts.after,
                "    _Pragma(\"unroll 1\") for (u32 block = end; block < BLOCKS; block++) {{\n        {GROUP}\n        {store}\n    }}"
            );
        }
    }

    fn store(&self, write: usize, value: &str) -> String {
        let aligned = self.aligned(0);
        format!("store_group<{aligned}>(of.out{write}, of.out{write}_n, row * LEN, group, places, {value});")
    }

    /// Writes a value that a row has once, if it is to be written.
    fn write_one(&self, i: usize, text: &mut String) {
        if let Some(write) = self.of.steps[i].write {
            line!(text, "    if (lane == 0u) of.out{write}[row] = s{i};");
        }
    }
}

/// The position of a lane's group in a stretch.
fn home(stretch: usize) -> String {
    format!("own + {stretch}u * STRETCH + place_of(group)")
}

/// The variable with the four values of a group.
fn four(operand: Operand) -> String {
    match operand {
        Operand::Product => "x".into(),
        Operand::Step(of) => format!("s{of}"),
        Operand::Element { tensor, offset } => format!("e{tensor}_{offset}"),
        _ => unreachable!("it has no number for each place of a row alone"),
    }
}

/// The indices of a row's first place, or of a row, in an index space of these dimensions.
fn indices(step: usize, [_, d1, d2, d3]: [u32; 4], len: Option<u32>) -> String {
    let last = len.map_or(d3, |len| d3 / len).max(1);
    let (d1, d2, each) = (d1.max(1), d2.max(1), len.map_or("1u", |_| "LEN"));
    format!(
        "    const u32 i{step}_3 = row % {last}u * {each}, i{step}_2 = row / {last}u % {d2}u, i{step}_1 = row / {last}u / {d2}u % {d1}u, \
         i{step}_0 = row / {last}u / {d2}u / {d1}u;\n"
    )
}
