//! Reads ACO's assembly: which float instructions are in it, and how long its loops are.
//!
//! The verifier's shaders compute with integers, so that no driver has anything to round. Whether that is so in the machine code is
//! seen there: an instruction whose name has a float type stands on one of two short lists, or the shader is refused.

use std::collections::BTreeMap;

/// A float instruction that a shader may have, and why it cannot change a bit of the result.
pub struct Listed {
    /// Its name, without encoding (`_e32`, `_sdwa`) and without the `dual_` of paired instructions.
    pub name: &'static str,
    /// Why.
    pub why: &'static str,
}

/// What the f32 variant of the product may have. The lint proves that all its floats are integers of at most 2^24, sums of absolute
/// terms included, so whatever adds or multiplies them is exact, fused or not, in any order.
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
    Listed { name: "v_cvt_i32_f32", why: "an integer as an integer: exact" },
];

/// How ACO divides unsigned integers by what is no constant: it takes an approximate reciprocal, which the integer steps after it
/// correct whatever it is within its error. In this order only, each on the result of the one before.
pub const RECIPROCAL: &[Listed] = &[
    Listed { name: "v_cvt_f32_u32", why: "the divisor, rounded" },
    Listed { name: "v_rcp_f32", why: "its reciprocal, to an ulp (also v_rcp_iflag_f32)" },
    Listed { name: "v_mul_f32", why: "times the float before 2^32 (0x4f7ffffe)" },
    Listed { name: "v_cvt_u32_f32", why: "a lower estimate of 2^32 / divisor, an integer from here on" },
];

/// The constant of ACO's division, the second float before 2^32.
const BELOW_2_32: &str = "0x4f7ffffe";

/// An instruction that is on no list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line of the assembly, from 1.
    pub line: usize,
    /// The instruction as it stands there.
    pub instruction: String,
    /// Why it is refused.
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

/// What a line of assembly holds.
enum Line<'a> {
    Empty,
    /// The number of a block that begins here.
    Label(usize),
    /// The instruction before, so many times more.
    Repeated(usize),
    /// The instructions; GFX11 pairs two in one.
    Instructions(Vec<Instruction<'a>>),
    Unreadable,
}

fn read(line: &str) -> Line<'_> {
    // What follows is the encoding, in hexadecimal.
    let line = line.split(';').next().unwrap_or("").trim();
    if line.is_empty() {
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

/// Whether an instruction's name has a float type.
fn is_float(name: &str) -> bool {
    ["f16", "f32", "f64", "bf16"].iter().any(|ty| name.split('_').any(|part| part == *ty))
        || ["v_fma", "v_mad_mix", "v_wmma", "v_mfma", "v_dot2_f", "v_interp"]
            .iter()
            .any(|p| name.starts_with(p))
}

/// The registers that an operand names: `v7`, `v[2:5]`, `sext(v58)`, `-v3`, or none.
fn registers(operand: &str) -> impl Iterator<Item = u32> {
    let word = operand.split_whitespace().next().unwrap_or("");
    let word = word.trim_matches(|c: char| "-|()".contains(c)).trim_start_matches("sext(");
    let parse = |text: &str| text.parse::<u32>().ok();
    let range = match word.strip_prefix('v') {
        None => None,
        Some(rest) => match rest.strip_prefix('[').and_then(|r| r.strip_suffix(']')) {
            Some(both) => both.split_once(':').and_then(|(first, last)| Some(parse(first)?..=parse(last)?)),
            None => parse(rest).map(|number| number..=number),
        },
    };
    range.into_iter().flatten()
}

/// Float instructions that stand on no list. `floats` says whether the shader is the f32 variant of the product, whose exact ones are
/// allowed; what cannot be read is refused too.
pub fn refusals(assembly: &str, floats: bool) -> Vec<Refusal> {
    let mut found = Vec::new();
    // How far each register is in a division: the number of steps of RECIPROCAL that are done. A division lies in one block.
    let mut divisions: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (number, text) in (1..).zip(assembly.lines()) {
        let mut refuse =
            |line, reason| found.push(Refusal { line, instruction: instruction_at(assembly, line), reason });
        match read(text) {
            // What was judged once is judged.
            Line::Empty | Line::Repeated(_) => {}
            Line::Unreadable => refuse(number, "the disassembler cannot read it"),
            Line::Label(_) => {
                divisions.values().for_each(|(line, _)| refuse(*line, "no division follows in its block"));
                divisions.clear();
            }
            Line::Instructions(all) => {
                for instruction in all {
                    if let Err(reason) = follow(&instruction, number, floats, &mut divisions) {
                        refuse(number, reason);
                    }
                }
            }
        }
    }
    for (line, _) in divisions.values() {
        let reason = "no division follows in its block";
        found.push(Refusal { line: *line, instruction: instruction_at(assembly, *line), reason });
    }
    found
}

fn instruction_at(assembly: &str, line: usize) -> String {
    let text = assembly.lines().nth(line - 1).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_string()
}

/// Takes an instruction into account, or says why it is refused.
fn follow(
    instruction: &Instruction,
    line: usize,
    floats: bool,
    divisions: &mut BTreeMap<u32, (usize, usize)>,
) -> Result<(), &'static str> {
    let [written, read @ ..] = &instruction.operands[..] else { return Ok(()) };
    let name = match &instruction.name[..] {
        "v_rcp_iflag_f32" => "v_rcp_f32",
        name => name,
    };
    // The step of a division that this is, if what it reads has come so far.
    let sources: Vec<u32> = read.iter().flat_map(|operand| registers(operand)).collect();
    let begun: Vec<_> = sources.iter().filter_map(|r| divisions.get(r).map(|(_, done)| *done)).collect();
    let step = match (name, &begun[..]) {
        ("v_cvt_f32_u32", []) => Some(0),
        (_, [done]) => Some(*done).filter(|done| RECIPROCAL.get(*done).is_some_and(|next| next.name == name)),
        _ => None,
    };
    let scales = name == "v_mul_f32";
    let step = step.filter(|_| !scales || read.contains(&BELOW_2_32));
    if step.is_some() {
        sources.iter().for_each(|register| {
            divisions.remove(register);
        });
    }
    let kept = divisions.clone();
    registers(written).for_each(|register| {
        divisions.remove(&register);
    });
    if let Some(step) = step {
        if step + 1 < RECIPROCAL.len() {
            registers(written).for_each(|register| {
                divisions.insert(register, (line, step + 1));
            });
        }
        return Ok(());
    }
    if sources.iter().any(|register| kept.contains_key(register)) {
        return Err("it reads a float on the way of a division");
    }
    match is_float(name) {
        false => Ok(()),
        true if floats && EXACT.iter().any(|listed| listed.name == name) => Ok(()),
        true if floats => {
            Err("this float instruction is not one of the exact ones that the f32 variant may have")
        }
        true => Err("a float instruction in a shader without floats, outside of a division of integers"),
    }
}

/// A loop of machine code that has no other in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// All its instructions, those of blocks that are rarely run included.
    pub instructions: usize,
    /// Those among them that multiply: packed dot products, fused or separate products of floats, products of integers.
    pub products: usize,
}

/// The innermost loop with the most products, which in a product's kernel is the one over K.
pub fn product_loop(assembly: &str) -> Option<Loop> {
    let mut blocks: Vec<(usize, Vec<Instruction>)> = vec![(0, Vec::new())];
    for text in assembly.lines() {
        match read(text) {
            Line::Label(number) => blocks.push((number, Vec::new())),
            Line::Instructions(all) => blocks.last_mut().expect("there is one").1.extend(all),
            Line::Repeated(count) => {
                let instructions = &mut blocks.last_mut().expect("there is one").1;
                let again = instructions.last().cloned();
                instructions.extend(again.into_iter().cycle().take(count));
            }
            Line::Empty | Line::Unreadable => {}
        }
    }
    let place = |number: usize| blocks.iter().position(|(label, _)| *label == number);
    let branches = |block: &(usize, Vec<Instruction>)| {
        let targets =
            block.1.iter().filter(|i| i.name.starts_with("s_branch") || i.name.starts_with("s_cbranch"));
        targets.filter_map(|i| i.operands[0].strip_prefix("BB")?.parse().ok()).collect::<Vec<usize>>()
    };
    let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
    for (end, block) in blocks.iter().enumerate() {
        for begin in branches(block).into_iter().filter_map(place).filter(|begin| *begin <= end) {
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
            let all = || blocks[*begin..=*end].iter().flat_map(|(_, instructions)| instructions);
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
        let lines: Vec<&str> = DIVISION.lines().collect();
        // Without any one of its steps the rest is refused.
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
