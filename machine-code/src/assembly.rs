//! Reads ACO's assembly: its float instructions, and the length of its loops.
//!
//! The verifier's shaders compute with integers, so that no driver has anything to round. The machine code shows if that is so.
//! An instruction whose name has a float type must be on one of two short lists, or the shader is refused.

use std::collections::{BTreeMap, BTreeSet};

/// A float instruction that a shader may have, with the reason why it cannot change a bit of the result.
pub struct Listed {
    /// The instruction's name, without encoding (`_e32`, `_sdwa`) and without the `dual_` of paired instructions.
    pub name: &'static str,
    /// The reason.
    pub why: &'static str,
}

/// The float instructions that the f32 variant of the product may have. The lint proves that all its floats are integers of at
/// most 2^24, sums of absolute terms included. So instructions that add or multiply them are exact, fused or not, in any order.
pub const EXACT: &[Listed] = &[
    Listed { name: "v_cvt_f32_i32", why: "a digit, -128 to 127, as a float: exact" },
    Listed { name: "v_mul_f32", why: "of two digits: at most 2^14, exact" },
    Listed { name: "v_add_f32", why: "of sums that the lint bounds by 2^24: exact" },
    Listed { name: "v_fma_f32", why: "adds a product of digits to such a sum: exact" },
    Listed { name: "v_fmac_f32", why: "v_fma_f32 onto its own addend" },
    Listed { name: "v_mac_f32", why: "the same with a rounded product, which is exact (GFX6 to GFX9)" },
    Listed { name: "v_mad_f32", why: "the same with four operands" },
    Listed {
        name: "v_med3_f32",
        why: "naga clamps a float before i32(): the clamp changes no number below 2^31",
    },
    Listed { name: "v_max_f32", why: "the same on GFX8, in two instructions" },
    Listed { name: "v_min_f32", why: "the same on GFX8, in two instructions" },
    Listed { name: "v_maxmin_f32", why: "the same on GFX11" },
    Listed { name: "v_minmax_f32", why: "the same on GFX11" },
    Listed { name: "v_maxmin_num_f32", why: "the same on GFX12" },
    Listed { name: "v_minmax_num_f32", why: "the same on GFX12" },
    Listed { name: "v_cvt_i32_f32", why: "an integer as an integer: exact" },
];

/// ACO's division of unsigned integers by a divisor that is not constant. The compiler takes an approximate reciprocal, which the
/// integer steps after it correct for any error within its bound. The instructions come in this order only, each on the result of
/// the one before.
pub const RECIPROCAL: &[Listed] = &[
    Listed { name: "v_cvt_f32_u32", why: "the divisor, rounded" },
    Listed { name: "v_rcp_f32", why: "its reciprocal, to an ulp (also v_rcp_iflag_f32)" },
    Listed { name: "v_mul_f32", why: "times the float before 2^32 (0x4f7ffffe)" },
    Listed { name: "v_cvt_u32_f32", why: "a lower estimate of 2^32 / divisor, an integer from here on" },
];

/// The constant of ACO's division, the second float before 2^32.
const BELOW_2_32: &str = "0x4f7ffffe";

/// An instruction that is on neither list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line of the assembly, from 1.
    pub line: usize,
    /// The instruction as the assembly has it.
    pub instruction: String,
    /// The reason for the refusal.
    pub reason: &'static str,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "assembly line {}: `{}`: {}", self.line, self.instruction, self.reason)
    }
}

/// One instruction: its name without encoding, and its operands.
#[derive(Clone)]
struct Instruction<'a> {
    name: String,
    operands: Vec<&'a str>,
}

/// The contents of a line of assembly.
enum Line<'a> {
    Empty,
    /// The number of a block that begins here.
    Label(usize),
    /// A number of repetitions of the instruction before.
    Repeated(usize),
    /// The instructions; GFX11 pairs two in one.
    Instructions(Vec<Instruction<'a>>),
    Unreadable,
}

fn read(line: &str) -> Line<'_> {
    // The text after the semicolon is the encoding, in hexadecimal.
    let line = line.split(';').next().unwrap_or("").trim();
    // Tables follow the code: their offsets, and words in hexadecimal.
    let is_word = |word: &str| word.len() == 8 && word.bytes().all(|digit| digit.is_ascii_hexdigit());
    let words = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let is_table = words.is_some_and(|(_, words)| words.split_whitespace().all(is_word));
    if line.is_empty() || line == "/* constant data */" || is_table {
        return Line::Empty;
    }
    if let Some(number) = line.strip_prefix("BB").and_then(|rest| rest.strip_suffix(':')) {
        return number.parse().map_or(Line::Unreadable, Line::Label);
    }
    let repeated = line.strip_prefix("(then repeated ").and_then(|rest| rest.strip_suffix(" times)"));
    if let Some(count) = repeated.and_then(|count| count.parse().ok()) {
        return Line::Repeated(count);
    }
    const KINDS: [&str; 7] = ["s_", "v_", "ds_", "buffer_", "global_", "scratch_", "flat_"];
    let mut found = Vec::new();
    for half in line.split("::") {
        let half = half.trim();
        let (name, operands) = half.split_once(char::is_whitespace).unwrap_or((half, ""));
        if !KINDS.iter().any(|kind| name.starts_with(kind)) {
            return Line::Unreadable;
        }
        let mut name = name.replace("v_dual_", "v_");
        for encoding in ["_e32", "_e64", "_sdwa", "_dpp", "_dpp8"] {
            name.truncate(name.strip_suffix(encoding).map_or(name.len(), str::len));
        }
        found.push(Instruction { name, operands: operands.split(',').map(str::trim).collect() });
    }
    Line::Instructions(found)
}

/// True if an instruction's name has a float type.
fn is_float(name: &str) -> bool {
    ["f16", "f32", "f64", "bf16"].iter().any(|ty| name.split('_').any(|part| part == *ty))
        || ["v_fma", "v_mad_mix", "v_wmma", "v_mfma", "v_dot2_f", "v_interp"]
            .iter()
            .any(|p| name.starts_with(p))
}

/// A register: `v` or `s`, and its number.
type Register = (char, u32);

/// The registers that an operand names: `v7`, `s[2:5]`, `sext(v58)`, `-v3`, or none.
fn registers(operand: &str) -> impl Iterator<Item = Register> {
    let word = operand.split_whitespace().next().unwrap_or("");
    let word = word.trim_matches(|c: char| "-|()".contains(c)).trim_start_matches("sext(");
    let parse = |text: &str| text.parse::<u32>().ok();
    let kind = word.chars().next().unwrap_or(' ');
    let range = match word.strip_prefix(['v', 's']) {
        None => None,
        Some(rest) => match rest.strip_prefix('[').and_then(|r| r.strip_suffix(']')) {
            Some(both) => both.split_once(':').and_then(|(first, last)| Some(parse(first)?..=parse(last)?)),
            None => parse(rest).map(|number| number..=number),
        },
    };
    range.into_iter().flatten().map(move |number| (kind, number))
}

/// The float instructions that are on neither list. `floats`: true if the shader is the f32 variant of the product, whose exact
/// ones are allowed. Lines that cannot be read are refused too.
pub fn refusals(assembly: &str, floats: bool) -> Vec<Refusal> {
    let mut found = Vec::new();
    let mut state = State::default();
    let constants = constants(&blocks(assembly));
    for (number, text) in (1..).zip(assembly.lines()) {
        let mut refuse =
            |line, reason| found.push(Refusal { line, instruction: instruction_at(assembly, line), reason });
        match read(text) {
            // The instruction was judged once already.
            Line::Empty | Line::Repeated(_) => {}
            Line::Unreadable => refuse(number, "the disassembler cannot read it"),
            Line::Label(label) => {
                state.constants = constants.get(&label).cloned().unwrap_or_default();
                state.divisions.values().for_each(|(line, _)| refuse(*line, UNUSED));
                state.divisions.clear();
            }
            Line::Instructions(all) => {
                for instruction in all {
                    if let Err(reason) = state.follow(&instruction, number, floats) {
                        refuse(number, reason);
                    }
                }
            }
        }
    }
    for (line, _) in state.divisions.values() {
        let instruction = instruction_at(assembly, *line);
        found.push(Refusal { line: *line, instruction, reason: UNUSED });
    }
    found
}

const UNUSED: &str = "no division follows in its block";

fn instruction_at(assembly: &str, line: usize) -> String {
    let text = assembly.lines().nth(line - 1).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_string()
}

/// The contents of registers, line after line.
#[derive(Default)]
struct State {
    /// The registers of unfinished divisions: the line of the last step, and how many steps of RECIPROCAL are done. A division
    /// lies in one block.
    divisions: BTreeMap<Register, (usize, usize)>,
    /// The scalar registers that hold the constant of divisions, which ACO keeps there for several divisions.
    constants: BTreeSet<Register>,
}

/// The scalar registers that hold the constant of divisions at the beginning of each block: those that hold it on every path to
/// the block.
fn constants(blocks: &[Block]) -> BTreeMap<usize, BTreeSet<Register>> {
    let place = |label: usize| blocks.iter().position(|block| block.label == label);
    // `None`: no path to the block has been seen.
    let mut at: Vec<Option<BTreeSet<Register>>> = vec![None; blocks.len()];
    at[0] = Some(BTreeSet::new());
    let mut open = vec![0];
    while let Some(number) = open.pop() {
        let mut state = State { constants: at[number].clone().unwrap_or_default(), ..State::default() };
        blocks[number].instructions.iter().for_each(|instruction| state.write(instruction));
        let ends = |i: &Instruction| i.name == "s_branch" || i.name == "s_endpgm";
        let falls = (!blocks[number].instructions.last().is_some_and(ends)).then_some(number + 1);
        for next in
            blocks[number].targets().filter_map(place).chain(falls.filter(|next| *next < blocks.len()))
        {
            let both = match &at[next] {
                None => state.constants.clone(),
                Some(before) => before & &state.constants,
            };
            if at[next].as_ref() != Some(&both) {
                at[next] = Some(both);
                open.push(next);
            }
        }
    }
    blocks.iter().zip(at).map(|(block, constants)| (block.label, constants.unwrap_or_default())).collect()
}

impl State {
    /// Updates the state for the registers that an instruction writes.
    fn write(&mut self, instruction: &Instruction) {
        let [written, read @ ..] = &instruction.operands[..] else { return };
        for register in registers(written) {
            match (&instruction.name[..], read) {
                ("s_mov_b32", [BELOW_2_32]) => self.constants.insert(register),
                _ => self.constants.remove(&register),
            };
        }
    }

    /// Updates the state for an instruction, or returns the reason why it is refused.
    fn follow(&mut self, instruction: &Instruction, line: usize, floats: bool) -> Result<(), &'static str> {
        let [written, read @ ..] = &instruction.operands[..] else { return Ok(()) };
        // From GFX11.5 on, scalar registers are used for divisions too.
        let name = match &instruction.name[..] {
            "v_rcp_iflag_f32" | "v_s_rcp_f32" => "v_rcp_f32",
            "s_cvt_f32_u32" => "v_cvt_f32_u32",
            "s_mul_f32" => "v_mul_f32",
            "s_cvt_u32_f32" => "v_cvt_u32_f32",
            name => name,
        };
        // The step of a division that this instruction is, if its operands are at the step before.
        let sources: Vec<Register> = read.iter().flat_map(|operand| registers(operand)).collect();
        let begun = sources.iter().filter_map(|register| self.divisions.get(register));
        let begun: Vec<usize> = begun.map(|(_, done)| *done).collect();
        let step = match (name, &begun[..]) {
            ("v_cvt_f32_u32", []) => Some(0),
            (_, [done]) => {
                Some(*done).filter(|done| RECIPROCAL.get(*done).is_some_and(|step| step.name == name))
            }
            _ => None,
        };
        let held = |operand: &str| registers(operand).any(|register| self.constants.contains(&register));
        let scaled =
            name != "v_mul_f32" || read.iter().any(|operand| *operand == BELOW_2_32 || held(operand));
        let step = step.filter(|_| scaled);
        self.write(instruction);
        if let Some(step) = step {
            sources.iter().for_each(|register| {
                self.divisions.remove(register);
            });
            if step + 1 < RECIPROCAL.len() {
                self.divisions.extend(registers(written).map(|register| (register, (line, step + 1))));
            }
            return Ok(());
        }
        // The first operand counts as read too: stores and comparisons write no register there.
        if sources.into_iter().chain(registers(written)).any(|r| self.divisions.contains_key(&r)) {
            return Err("it uses a float on the way of a division");
        }
        // The class test of a constant is one bit of the mask in the other operand: ACO's way to test that bit of an integer. ACO
        // may keep the constant in a scalar register.
        let is_constant = read.first().is_some_and(|operand| !operand.is_empty() && !operand.contains('v'));
        let tests_a_bit = ["v_cmp_class_f16", "v_cmp_class_f32"].contains(&name) && is_constant;
        match is_float(name) && !tests_a_bit {
            false => Ok(()),
            true if floats && EXACT.iter().any(|listed| listed.name == name) => Ok(()),
            true if floats => {
                Err("this float instruction is not one of the exact ones that the f32 variant may have")
            }
            true => Err("a float instruction in a shader without floats, outside of a division of integers"),
        }
    }
}

/// An innermost loop of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// All its instructions, including those of blocks that are rarely run.
    pub instructions: usize,
    /// The instructions that multiply: packed dot products, fused or separate products of floats, products of integers.
    pub products: usize,
}

/// Instructions in sequence, up to a branch.
struct Block<'a> {
    label: usize,
    instructions: Vec<Instruction<'a>>,
}

impl Block<'_> {
    /// The labels that the block branches to.
    fn targets(&self) -> impl Iterator<Item = usize> {
        let branches = self
            .instructions
            .iter()
            .filter(|i| i.name.starts_with("s_branch") || i.name.starts_with("s_cbranch"));
        branches.filter_map(|i| i.operands[0].strip_prefix("BB")?.parse().ok())
    }
}

/// The blocks of an assembly in their order, the first empty if the assembly begins with a label.
fn blocks(assembly: &str) -> Vec<Block<'_>> {
    // No driver gives a block this number.
    let mut blocks = vec![Block { label: usize::MAX, instructions: Vec::new() }];
    for text in assembly.lines() {
        let instructions = &mut blocks.last_mut().expect("there is one").instructions;
        match read(text) {
            Line::Label(label) => blocks.push(Block { label, instructions: Vec::new() }),
            Line::Instructions(all) => instructions.extend(all),
            Line::Repeated(count) => {
                let again = instructions.last().cloned();
                instructions.extend(again.into_iter().cycle().take(count));
            }
            Line::Empty | Line::Unreadable => {}
        }
    }
    blocks
}

/// The innermost loop with the most products, which in a product's kernel is the loop over K.
pub fn product_loop(assembly: &str) -> Option<Loop> {
    let blocks = blocks(assembly);
    let place = |label: usize| blocks.iter().position(|block| block.label == label);
    let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
    for (end, block) in blocks.iter().enumerate() {
        for begin in block.targets().filter_map(place).filter(|begin| *begin <= end) {
            loops.insert(begin, end);
        }
    }
    let multiplies = |name: &str| {
        let names =
            ["v_dot4", "v_mul_lo", "v_mul_i32_i24", "v_mul_u32_u24", "v_mad_i32_i24", "v_mad_u32_u24"];
        let floats = ["v_mul_f32", "v_fma_f32", "v_fmac_f32", "v_mac_f32", "v_mad_f32"];
        names.iter().chain(&floats).any(|prefix| name.starts_with(prefix))
    };
    let innermost = loops.iter().filter(|(begin, end)| {
        !loops.iter().any(|(b, e)| (b, e) != (*begin, *end) && b >= *begin && e <= *end)
    });
    innermost
        .map(|(begin, end)| {
            let all = || blocks[*begin..=*end].iter().flat_map(|block| &block.instructions);
            Loop { instructions: all().count(), products: all().filter(|i| multiplies(&i.name)).count() }
        })
        .filter(|found| found.products > 0)
        .max_by_key(|found| found.products)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIVISION: &str = "BB0:\n\tv_cvt_f32_u32_e32 v8, s18 ; 7e100c12\n\tv_rcp_iflag_f32_e32 v8, v8\n\
                            \ts_mul_i32 s20, s12, s13\n\tv_mul_f32_e32 v8, 0x4f7ffffe, v8\n\tv_cvt_u32_f32_e32 v9, v8\n\
                            \tv_mul_lo_u32 v3, v9, v8\n\ts_endpgm\n";

    fn reasons(assembly: &str, floats: bool) -> Vec<(usize, &'static str)> {
        refusals(assembly, floats).into_iter().map(|r| (r.line, r.reason)).collect()
    }

    #[test]
    fn a_division_of_integers_is_allowed_and_nothing_else_of_it() {
        assert_eq!(reasons(DIVISION, false), []);
        let scalar = "BB0:\n s_cvt_f32_u32 s17, s16\n v_s_rcp_f32 s17, s17\n s_mul_f32 s17, s17, 0x4f7ffffe\n s_cvt_u32_f32 s17, s17\n";
        assert_eq!(reasons(scalar, false), []);
        assert!(!reasons(&scalar.replace("s_mul_f32", "s_add_f32"), false).is_empty());
        let held =
            DIVISION.replace("BB0:", "BB0:\n\ts_mov_b32 s3, 0x4f7ffffe").replace("0x4f7ffffe, v8", "s3, v8");
        assert_eq!(reasons(&held, false), []);
        // The register holds the constant on every path to the division, or it does not.
        let ways = |other: &str| {
            let text = format!(
                "BB0:\n s_mov_b32 s3, 0x4f7ffffe\n s_cbranch_scc0 BB2\nBB1:\n s_mov_b32 {other}, 1\n{{}}\nBB2:\n{{}}"
            );
            let division = DIVISION.replace("BB0:\n", "").replace("0x4f7ffffe, v8", "s3, v8");
            ["s_branch BB3", "s_nop 0"].map(|end| {
                let text = text.replacen("{}", end, 1).replacen("{}", &division, 1) + "BB3:\n s_endpgm\n";
                reasons(&text, false).is_empty()
            })
        };
        assert_eq!(ways("s4"), [true, true]);
        assert_eq!(ways("s3"), [true, false]);
        assert!(!reasons(&held.replace("s20, s12", "s3, s12"), false).is_empty(), "another constant");
        let lines: Vec<&str> = DIVISION.lines().collect();
        // Without any one of the steps, the others are refused.
        for step in [1, 2, 4, 5] {
            let mut without = lines.clone();
            without.remove(step);
            assert!(!reasons(&without.join("\n"), false).is_empty(), "without {}", lines[step]);
        }
        for (from, to) in [
            ("0x4f7ffffe", "0x4f7fffff"),
            ("v_mul_f32_e32 v8, 0x4f7ffffe, v8", "v_mul_f32_e32 v8, 0x4f7ffffe, v7"),
            ("s_mul_i32 s20, s12, s13", "v_add_u32_e32 v1, v8, v2"),
            ("s_mul_i32 s20, s12, s13", "BB1:"),
            ("s_mul_i32 s20, s12, s13", "v_add_f32_e32 v1, v2, v2"),
            ("s_mul_i32 s20, s12, s13", "v_mov_b32_e32 v8, v2"),
            ("s_mul_i32 s20, s12, s13", "buffer_store_dword v8, v0, s[4:7], 0 offen"),
        ] {
            assert!(!reasons(&DIVISION.replace(from, to), false).is_empty(), "{to}");
        }
    }

    #[test]
    fn a_shader_without_floats_has_no_other_float_instruction() {
        for name in [
            "v_mul_f32_e32",
            "v_fmac_f32_e64",
            "v_cvt_f32_i32_sdwa",
            "v_pk_add_f16",
            "v_fma_mix_f32",
            "v_cmp_lt_f32_e32",
        ] {
            let text = format!("BB0:\n\t{name} v1, v2, v3\n");
            assert_eq!(reasons(&text, false).len(), 1, "{name}");
        }
        for constant in ["1.0", "-1", "0x7c01", "s76"] {
            assert_eq!(
                reasons(&format!("\tv_cmp_class_f32_e64 s[24:25], {constant}, v46\n"), false),
                [],
                "a bit test"
            );
        }
        assert_eq!(reasons("\tv_cmp_class_f32_e64 s[24:25], v45, v46\n", false).len(), 1);
        let pair = "BB0:\n\tv_dual_mov_b32 v1, v2 :: v_dual_mul_f32 v3, v4, v5\n";
        assert_eq!(reasons(pair, false).len(), 1);
        assert_eq!(reasons(pair, true), []);
        assert_eq!(reasons("BB0:\n(invalid instruction) ; f4281a0e\n", true).len(), 1);
    }

    #[test]
    fn the_f32_variant_may_not_round() {
        for listed in EXACT {
            assert_eq!(reasons(&format!("\t{} v1, v2, v3\n", listed.name), true), []);
        }
        for name in [
            "v_rcp_f32",
            "v_sqrt_f32",
            "v_exp_f32",
            "v_add_f16",
            "v_add_f64",
            "v_cvt_f16_f32",
            "v_mul_legacy_f32",
        ] {
            assert_eq!(reasons(&format!("\t{name} v1, v2, v3\n"), true).len(), 1, "{name}");
        }
    }

    #[test]
    fn the_innermost_loop_is_counted() {
        let text = "BB0:\n s_mov_b32 s0, 0\nBB1:\n v_mul_lo_u32 v1, v2, v3\nBB2:\n v_dot4c_i32_i8_e32 v1, v2, v3\n\
                    v_dot4c_i32_i8_e32 v1, v2, v3\n v_add_u32_e32 v1, v2, v3\n s_cbranch_scc1 BB2\nBB3:\n s_branch BB1\nBB4:\n s_endpgm\n";
        assert_eq!(product_loop(text), Some(Loop { instructions: 4, products: 2 }));
        assert_eq!(product_loop("BB0:\n v_mul_lo_u32 v1, v2, v3\n s_endpgm\n"), None);
    }
}
