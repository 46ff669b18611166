//! Completes the product's templates for a pair of digit counts. Standard library only: the build script lints the
//! result for every pair.

use std::fmt::Write;

/// How a product is computed: the bits are the same, the speed depends on the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// `dot4I8Packed` on digit planes through workgroup memory: GPUs whose integer units take four bytes at once.
    Dot,
    /// f32 `fma` on digits through workgroup memory, exact since sums stay below 2^24: GPUs that lack those.
    Float,
    /// 32-bit integer products of whole q's or parts of them, straight from memory: software adapters.
    Words,
}

impl Variant {
    /// All variants.
    pub const ALL: [Variant; 3] = [Variant::Dot, Variant::Float, Variant::Words];

    /// The file of its template, without the extension.
    pub fn file(self) -> &'static str {
        match self {
            Variant::Dot | Variant::Float => "product",
            Variant::Words => "product_words",
        }
    }

    /// Rows and columns that a workgroup computes.
    pub fn tile(self) -> [u32; 2] {
        match self {
            Variant::Dot | Variant::Float => [32, 32],
            Variant::Words => [ROWS, COLUMNS * LANES],
        }
    }
}

/// Words of K in a tile, and words of a tile of one digit plane.
const STEP: u32 = 4;
const TILE_WORDS: u32 = 32 * STEP;
/// Rows and columns that an invocation of the tiled variants computes.
const SIDE: u32 = 4;

/// Rows and columns that an invocation of the words variant computes, and invocations of its workgroup.
const ROWS: u32 = 8;
const COLUMNS: u32 = 4;
const LANES: u32 = 16;

/// What a completion depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// How the product is computed.
    pub variant: Variant,
    /// Digits of the operands, 1..=4.
    pub digits_a: u32,
    /// Digits of the right operand.
    pub digits_b: u32,
    /// Whether sums need 128 bits: K * 2^(both absmax bits) reaches 2^63.
    pub wide: bool,
}

impl Choice {
    /// The choice for blocks of `k` places.
    pub fn new(variant: Variant, digits_a: u32, digits_b: u32, k: u32) -> Choice {
        let bits = 8 * (digits_a + digits_b) - 4;
        Choice { variant, digits_a, digits_b, wide: u128::from(k) << bits >= 1 << 63 }
    }

    /// Every choice there is.
    pub fn all() -> impl Iterator<Item = Choice> {
        Variant::ALL.into_iter().flat_map(|variant| {
            (0..32).map(move |i| Choice {
                variant,
                digits_a: i / 8 + 1,
                digits_b: i / 2 % 4 + 1,
                wide: i % 2 == 1,
            })
        })
    }

    /// Rounds of all loops of an invocation over `words` groups of four places of K.
    pub fn rounds(self, words: u32) -> u32 {
        let flushes = match self.variant {
            Variant::Words => {
                (words * 4).div_ceil(Scheme::new(self.digits_a, self.digits_b).flush()) + ROWS * COLUMNS
            }
            Variant::Dot | Variant::Float => 0,
        };
        words / STEP + flushes
    }

    /// The shader's text, from the template's.
    pub fn complete(self, template: &str) -> String {
        let mut out = String::new();
        for line in template.lines() {
            match line.trim().strip_prefix("//@") {
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
                Some(part) => match self.variant {
                    Variant::Words => words(self, part, &mut out),
                    Variant::Dot | Variant::Float => tiled(self, part, &mut out),
                },
            }
        }
        out
    }

    fn total(self, out: &mut String) {
        let (ty, bits) = if self.wide { ("vec4<u32>", 128) } else { ("vec2<u32>", 64) };
        let widened = if self.wide { "total" } else { "vec4<u32>(total, fill, fill)" };
        emit(out, format!("alias Total = {ty};"));
        emit(out, "fn total_add(total: Total, value: i32, shift: u32) -> Total {".into());
        emit(out, format!("    return u{bits}_add(total, i{bits}_shl(value, shift));\n}}"));
        emit(out, "fn total_widen(total: Total) -> vec4<u32> {".into());
        if !self.wide {
            emit(out, "    let fill = select(0u, 0xffffffffu, total.y >= 0x80000000u);".into());
        }
        emit(out, format!("    return {widened};\n}}"));
    }
}

fn emit(out: &mut String, text: String) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

/// Stores one output if it exists; offsets are constants in the text.
fn store(out: &mut String, row: u32, column: u32, total: &str) {
    emit(
        out,
        format!(
            "    if (row + {row}u < m && column + {column}u < n) {{\n        \
             output[place + {row}u * n + {column}u] = finish(total_widen({total}), \
             absmaxes_a[mags_a + {row}u * p[1].x], absmaxes_b[mags_b + {column}u * p[1].x], p[1].z);\n    }}"
        ),
    );
}

/// A part of `product.wgsl`.
fn tiled(choice: Choice, part: &str, out: &mut String) {
    let Choice { variant, digits_a, digits_b, .. } = choice;
    let float = variant == Variant::Float;
    let sums = digits_a + digits_b - 1;
    let mut line = |text: String| emit(out, text);
    match part {
        "constants" => choice.total(out),
        "tiles" => {
            let ty = if float { "vec4<f32>" } else { "u32" };
            line(format!("var<workgroup> tile_a: array<{ty}, {}>;", digits_a * TILE_WORDS));
            line(format!("var<workgroup> tile_b: array<{ty}, {}>;", digits_b * TILE_WORDS));
        }
        "accumulators" => {
            for row in 0..SIDE {
                (0..sums).for_each(|s| line(format!("    var s{s}_{row} = vec4<i32>();")));
                (0..SIDE).for_each(|c| line(format!("    var total{row}_{c} = Total();")));
            }
        }
        "load" => tiled_load(choice, &mut line),
        "multiply" => tiled_multiply(choice, &mut line),
        "flush" => {
            for row in 0..SIDE {
                for s in 0..sums {
                    for (c, part) in ["x", "y", "z", "w"].iter().enumerate() {
                        let total = format!("total{row}_{c}");
                        let weight = 8 * s;
                        line(format!(
                            "            {total} = total_add({total}, s{s}_{row}.{part}, {weight}u);"
                        ));
                    }
                    line(format!("            s{s}_{row} = vec4<i32>();"));
                }
            }
        }
        "store" => {
            for row in 0..SIDE {
                (0..SIDE).for_each(|c| store(out, row, c, &format!("total{row}_{c}")));
            }
        }
        other => line(format!("    // unknown part {other}")),
    }
}

/// The part that multiplies a tile.
fn tiled_multiply(choice: Choice, line: &mut impl FnMut(String)) {
    for c in 0..STEP {
        for e in 0..choice.digits_b {
            for j in 0..SIDE {
                let at = e * TILE_WORDS + j * STEP + c;
                line(format!("        let b{c}_{e}_{j} = tile_b[from_b + {at}u];"));
            }
        }
        for d in 0..choice.digits_a {
            for row in 0..SIDE {
                let at = d * TILE_WORDS + row * STEP + c;
                line(format!("        let a{c}_{d}_{row} = tile_a[from_a + {at}u];"));
            }
        }
    }
    if choice.variant == Variant::Float {
        float_sums(choice, line);
        return;
    }
    for c in 0..STEP {
        for (d, e) in pairs(choice) {
            for row in 0..SIDE {
                let dot = |j| format!("dot4I8Packed(a{c}_{d}_{row}, b{c}_{e}_{j})");
                let dots = format!("{}, {}, {}, {}", dot(0), dot(1), dot(2), dot(3));
                line(format!("        s{}_{row} += vec4<i32>({dots});", d + e));
            }
        }
    }
}

/// The part that fills a tile.
fn tiled_load(choice: Choice, line: &mut impl FnMut(String)) {
    let float = choice.variant == Variant::Float;
    let (open, close) = if float { ("vec4<f32>(unpack4xI8(", "))") } else { ("", "") };
    let zero = if float { "vec4<f32>()" } else { "0u" };
    for (side, digits, rows) in [("a", choice.digits_a, "m"), ("b", choice.digits_b, "n")] {
        for half in 0..2 {
            line(format!("        if (inside && row_{side} + {}u < {rows}) {{", 16 * half));
            for d in 0..digits {
                let at = d * TILE_WORDS + 64 * half;
                line(format!(
                    "            tile_{side}[{at}u + index] = {open}{side}[{d}u * plane_{side} + at_{side} + {}u * words + k]{close};",
                    16 * half,
                ));
            }
            line("        } else {".into());
            for d in 0..digits {
                let at = d * TILE_WORDS + 64 * half;
                line(format!("            tile_{side}[{at}u + index] = {zero};"));
            }
            line("        }".into());
        }
    }
}

/// Pairs of digits.
fn pairs(choice: Choice) -> impl Iterator<Item = (u32, u32)> {
    (0..choice.digits_a).flat_map(move |d| (0..choice.digits_b).map(move |e| (d, e)))
}

/// The digit products of a tile by weight: chains of fma from zero to at most 4 * STEP * 4 terms of 2^14.
fn float_sums(choice: Choice, line: &mut impl FnMut(String)) {
    for weight in 0..choice.digits_a + choice.digits_b - 1 {
        for row in 0..SIDE {
            for j in 0..SIDE {
                let mut sum: Option<String> = None;
                for c in 0..STEP {
                    for (d, e) in pairs(choice).filter(|(d, e)| d + e == weight) {
                        for part in ["x", "y", "z", "w"] {
                            let name = format!("f{weight}_{row}_{j}_{c}_{d}_{part}");
                            let (a, b) = (format!("a{c}_{d}_{row}.{part}"), format!("b{c}_{e}_{j}.{part}"));
                            match sum.take() {
                                None => line(format!("        let {name} = {a} * {b};")),
                                Some(sum) => line(format!("        let {name} = fma({a}, {b}, {sum});")),
                            }
                            sum = Some(name);
                        }
                    }
                }
                let sum = sum.expect("every weight has a pair of digits");
                line(format!("        s{weight}_{row}.{} += i32({sum});", ["x", "y", "z", "w"][j as usize]));
            }
        }
    }
}

/// A q as a sum of balanced parts: part i, of `width` bits, has weight 2^(width * i), the last holds the rest.
struct Split {
    width: u32,
    /// The greatest absmax of each part.
    bounds: Vec<u64>,
}

impl Split {
    fn new(digits: u32, width: u32) -> Split {
        let bits = 8 * digits - 2;
        let parts = bits.div_ceil(width).max(1);
        let bound = |i| if i + 1 < parts { 1 << (width - 1) } else { 1u64 << (bits - width * (parts - 1)) };
        Split { width, bounds: (0..parts).map(bound).collect() }
    }

    /// The statements that split the vector `name` to `name_0`, `name_1`, ..., at this indentation.
    fn statements(&self, name: &str, line: &mut impl FnMut(String)) {
        let mut rest = name.to_string();
        for i in 0..self.bounds.len() - 1 {
            let keep = 32 - self.width;
            line(format!(
                "                let {name}_{i} = ({rest} << vec4<u32>({keep}u)) >> vec4<u32>({keep}u);"
            ));
            line(format!(
                "                let {name}_r{i} = ({rest} - {name}_{i}) >> vec4<u32>({}u);",
                self.width
            ));
            rest = format!("{name}_r{i}");
        }
        line(format!("                let {name}_{} = {rest};", self.bounds.len() - 1));
    }
}

/// How the words variant multiplies: sums of products of parts, and how these make up the total.
struct Scheme {
    a: Split,
    b: Split,
    /// The parts on either side whose sums are multiplied.
    sums: Vec<(Vec<usize>, Vec<usize>)>,
    /// (a sum, the sums taken from it, the power of two it is worth).
    folds: Vec<(usize, Vec<usize>, u32)>,
}

impl Scheme {
    fn new(digits_a: u32, digits_b: u32) -> Scheme {
        const WHOLE: u32 = 32;
        let small = digits_a.min(digits_b);
        // Products of parts stay below 2^22 or so, so that an accumulator holds hundreds.
        let width = |digits: u32, other: u32| match (digits, other) {
            (3, 3..) => 11,
            (4, 3..) => 10,
            _ if digits == small && (digits != other || digits == 1) => WHOLE,
            _ if 8 * (digits + small) - 4 <= 22 => WHOLE,
            _ => 22 - (8 * small - 2),
        };
        let (a, b) = match (digits_a, digits_b) {
            (2, 2) => (Split::new(2, WHOLE), Split::new(2, 8)),
            _ => (
                Split::new(digits_a, width(digits_a, digits_b)),
                Split::new(digits_b, width(digits_b, digits_a)),
            ),
        };
        let parts = a.bounds.len();
        let (mut sums, mut folds) = (Vec::new(), Vec::new());
        if digits_a == digits_b && parts > 1 {
            sums.extend((0..parts).map(|i| (vec![i], vec![i])));
            folds.extend((0..parts).map(|i| (i, Vec::new(), 2 * a.width * i as u32)));
            for i in 0..parts {
                for j in i + 1..parts {
                    folds.push((sums.len(), vec![i, j], a.width * (i + j) as u32));
                    sums.push((vec![i, j], vec![i, j]));
                }
            }
        } else {
            for i in 0..parts {
                for j in 0..b.bounds.len() {
                    folds.push((
                        sums.len(),
                        Vec::new(),
                        a.width % WHOLE * i as u32 + b.width % WHOLE * j as u32,
                    ));
                    sums.push((vec![i], vec![j]));
                }
            }
        }
        Scheme { a, b, sums, folds }
    }

    /// How many places of K an i32 accumulator holds: a power of two.
    fn flush(&self) -> u32 {
        let bound = |split: &Split, parts: &[usize]| parts.iter().map(|&i| split.bounds[i]).sum::<u64>();
        let term = |(a, b): &(Vec<usize>, Vec<usize>)| bound(&self.a, a) * bound(&self.b, b);
        let greatest = self.sums.iter().map(term).max().expect("there is a product");
        let places = (i32::MAX as u64 / greatest).min(1 << 16) as u32;
        let places = 1 << places.ilog2();
        assert!(places >= 4 * STEP, "an accumulator holds a whole step");
        places
    }
}

/// The outputs of an invocation: (row, column).
fn outputs() -> impl Iterator<Item = (u32, u32)> {
    (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)))
}

/// A part of `product_words.wgsl`.
fn words(choice: Choice, part: &str, out: &mut String) {
    let scheme = Scheme::new(choice.digits_a, choice.digits_b);
    let mut line = |text: String| emit(out, text);
    match part {
        "constants" => {
            for (name, value) in [("ROWS", ROWS), ("COLUMNS", COLUMNS), ("LANES", LANES), ("STEP", STEP)] {
                line(format!("const {name}: u32 = {value}u;"));
            }
            line(format!("const FLUSH_WORDS: u32 = {}u;", scheme.flush() / 4));
            choice.total(out);
        }
        "rows" => {
            for row in 0..ROWS {
                line(format!("    let row{row} = (sample * m + min(row + {row}u, m - 1u)) * words;"));
            }
            for c in 0..COLUMNS {
                let column = c * LANES;
                line(format!("    let column{c} = (sample * n + min(column + {column}u, n - 1u)) * words;"));
            }
        }
        "accumulators" => {
            for (row, column) in outputs() {
                line(format!("    var total{row}_{column} = Total();"));
                (0..scheme.sums.len()).for_each(|s| line(format!("    var s{s}_{row}_{column} = 0i;")));
            }
        }
        "multiply" => words_multiply(&scheme, &mut line),
        "flush" => {
            for (row, column) in outputs() {
                let total = format!("total{row}_{column}");
                for (sum, less, shift) in &scheme.folds {
                    let value: String = less.iter().map(|l| format!(" - s{l}_{row}_{column}")).collect();
                    let value = format!("s{sum}_{row}_{column}{value}");
                    line(format!("            {total} = total_add({total}, {value}, {shift}u);"));
                }
                (0..scheme.sums.len()).for_each(|s| line(format!("            s{s}_{row}_{column} = 0i;")));
            }
        }
        "store" => {
            line(format!("    var totals: array<Total, {}>;", ROWS * COLUMNS));
            for (row, column) in outputs() {
                line(format!("    totals[{}] = total{row}_{column};", row * COLUMNS + column));
            }
        }
        other => line(format!("    // unknown part {other}")),
    }
}

/// The part that multiplies a step.
fn words_multiply(scheme: &Scheme, line: &mut impl FnMut(String)) {
    let mut operand = |name: String, load: String, split: &Split, pair: fn(&Scheme, usize) -> &[usize]| {
        line(format!("                let {name} = {load};"));
        split.statements(&name, line);
        for s in 0..scheme.sums.len() {
            if let [i, j] = pair(scheme, s) {
                line(format!("                let {name}_s{s} = {name}_{i} + {name}_{j};"));
            }
        }
    };
    for c in 0..STEP {
        for j in 0..COLUMNS {
            operand(format!("b{c}_{j}"), format!("b[column{j} + k + {c}u]"), &scheme.b, |x, s| &x.sums[s].1);
        }
        for row in 0..ROWS {
            operand(format!("a{c}_{row}"), format!("a[row{row} + k + {c}u]"), &scheme.a, |x, s| &x.sums[s].0);
        }
    }
    for c in 0..STEP {
        for (row, column) in outputs() {
            for (s, (left, right)) in scheme.sums.iter().enumerate() {
                let name = |base: String, parts: &[usize]| match parts {
                    [i] => format!("{base}_{i}"),
                    _ => format!("{base}_s{s}"),
                };
                let a = name(format!("a{c}_{row}"), left);
                let b = name(format!("b{c}_{column}"), right);
                line(format!("                s{s}_{row}_{column} += dot({a}, {b});"));
            }
        }
    }
}
