//! Completes the product's templates for a pair of digit counts. The module uses the standard library only, because the build
//! script uses it to lint the result for every pair.

use std::fmt::Write;

/// The way in which a product is computed: the bits are the same, the speed depends on the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// `dot4I8Packed` on digit planes through workgroup memory: GPUs whose integer units take four bytes at once.
    Dot,
    /// f32 `fma` on digits through workgroup memory, exact since sums stay below 2^24: GPUs without such integer units.
    Float,
    /// 32-bit integer products of whole q's or parts of them, straight from memory: software adapters.
    Words,
}

impl Variant {
    /// All variants.
    pub const ALL: [Variant; 3] = [Variant::Dot, Variant::Float, Variant::Words];

    /// The variants that a GPU may use.
    pub const FOR_GPUS: [Variant; 2] = [Variant::Dot, Variant::Float];

    /// A short name for people.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Dot => "dot",
            Variant::Float => "f32",
            Variant::Words => "words",
        }
    }

    /// The file of the variant's template, without the extension.
    pub fn file(self) -> &'static str {
        match self {
            Variant::Dot | Variant::Float => "product",
            Variant::Words => "product_words",
        }
    }
}

/// Words of K in a tile.
const STEP: u32 = 4;
/// Rows and columns of invocations in a workgroup of the tiled variants.
const SIDE: u32 = 8;
/// Words of K after which the tiled variants carry.
const FLUSH_WORDS: u32 = 4096;

/// Rows and columns that an invocation of the words variant computes, and invocations of its workgroup.
const ROWS: u32 = 8;
const COLUMNS: u32 = 4;
const LANES: u32 = 16;

/// The parameters of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The variant of the product.
    pub variant: Variant,
    /// Digits of the left operand, 1..=4.
    pub digits_a: u32,
    /// Digits of the right operand, 1..=4.
    pub digits_b: u32,
    /// True if sums need 128 bits: K * 2^(both absmax bits) reaches 2^63.
    pub wide: bool,
}

impl Choice {
    /// The choice for blocks of `k` indices of K.
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

    /// The length of a block of K up to which no sum of the tiled variants overflows. The carry out of the highest weight is at
    /// most 2^6 for each index of K, for any digits, and one more for each carry; it has 31 bits (docs/PROOFS.md).
    pub const PLACES_MAX: u32 = 1 << 24;

    /// Rows and columns that a workgroup computes.
    pub fn tile(self) -> [u32; 2] {
        match self.variant {
            Variant::Dot | Variant::Float => self.each().map(|side| side * SIDE),
            Variant::Words => [ROWS, COLUMNS * LANES],
        }
    }

    /// Weights of digit products.
    fn weights(self) -> u32 {
        self.digits_a + self.digits_b - 1
    }

    /// Rows and columns that an invocation of the tiled variants computes: 128 registers hold them together with the operands in
    /// use. A weight takes a register for each output, or two as floats.
    fn each(self) -> [u32; 2] {
        match (self.variant, self.weights()) {
            (Variant::Float, 5..) | (Variant::Dot, 7..) => [2, 2],
            (Variant::Float, 1) | (Variant::Dot, ..=3) => [4, 4],
            _ => [4, 2],
        }
    }

    /// Rounds of all loops of an invocation over `words` groups of four indices of K.
    pub fn rounds(self, words: u32) -> u32 {
        let flushes = match self.variant {
            Variant::Words => {
                (words * 4).div_ceil(Scheme::new(self.digits_a, self.digits_b).flush()) + ROWS * COLUMNS
            }
            Variant::Dot | Variant::Float => {
                words.div_ceil(FLUSH_WORDS) + self.each().iter().product::<u32>()
            }
        };
        words / STEP + flushes
    }

    /// The shader's text, made from the template's text.
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

    /// The type of sums in the words variant, and the operations on it.
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

/// The call that makes an output of a sum, in both templates.
const FINISH: &str = "= finish(";

/// A completed shader that gives a word of each exact sum in place of the rounded value. The word's number takes the place of the
/// flag for the rest, above the absmax bits. The sum is the one that is rounded: nothing else of the text changes.
///
/// # Panics
/// If the text is no completed template.
pub fn giving_sums(completed: &str) -> String {
    assert_eq!(completed.matches(FINISH).count(), 1, "a template finishes each output at one place");
    let mut text = completed.replace(FINISH, "= sum_word(");
    emit(&mut text, "\nfn sum_word(total: vec4<u32>, ma: u32, mb: u32, bits: u32) -> u32 {".into());
    emit(&mut text, "    let word = bits >> 16u;".into());
    emit(&mut text, "    let above = select(total.z, total.y, word == 1u);".into());
    emit(&mut text, "    return select(above, total.x, word == 0u);\n}".into());
    text
}

fn emit(out: &mut String, text: String) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

/// Emits a part of `product.wgsl`.
fn tiled(choice: Choice, part: &str, out: &mut String) {
    let [rows, columns] = choice.each();
    let weights = choice.weights();
    let mut line = |text: String| emit(out, text);
    match part {
        "constants" => {
            line(format!("const ROWS: u32 = {rows}u;\nconst COLUMNS: u32 = {columns}u;"));
            line("fn first_total(low: u32, high: u32, over: i32) -> vec4<u32> {".into());
            line("    let fill = bitcast<u32>(over >> 31u);".into());
            let over = if choice.wide { "bitcast<u32>(over)" } else { "fill" };
            line(format!("    return vec4<u32>(low, high, {over}, fill);\n}}"));
        }
        "tiles" => {
            // A step of a row is four words side by side; as floats, each word is a vector.
            let ty = match choice.variant {
                Variant::Float => "array<array<vec4<f32>, 8>, 4>",
                _ => "array<array<u32, 4>, 8>",
            };
            for (side, digits, each) in [("a", choice.digits_a, rows), ("b", choice.digits_b, columns)] {
                line(format!("var<workgroup> tile_{side}: array<array<{ty}, {each}>, {digits}>;"));
            }
        }
        "rows" => {
            for (side, from, count, each) in [("a", "row", "m", rows), ("b", "column", "n", columns)] {
                for half in 0..each / 2 {
                    line(format!(
                        "    let at_{side}{half} = (sample * {count} + min({from} + {}u + r0, {count} - 1u)) * words;",
                        16 * half
                    ));
                }
            }
        }
        "accumulators" => {
            for output in 0..rows * columns {
                (0..=weights).for_each(|s| line(format!("    var s{s}_{output} = 0i;")));
            }
        }
        "load" => tiled_load(choice, &mut line),
        "multiply" => tiled_multiply(choice, &mut line),
        "carry" => {
            for output in 0..rows * columns {
                for s in 0..weights {
                    line(format!("        s{}_{output} += s{s}_{output} >> 8u;", s + 1));
                    line(format!("        s{s}_{output} &= 255i;"));
                }
            }
        }
        "totals" => tiled_totals(choice, &mut line),
        "next" => {
            for i in 1..rows * columns {
                for word in ["low", "high", "over"] {
                    line(format!("        {word}_{} = {word}_{i};", i - 1));
                }
            }
            let rotate = |name: &str, count: u32| {
                let moved: String = (1..count).map(|i| format!(" {name}_{} = {name}_{i};", i - 1)).collect();
                format!("let {name} = {name}_0;{moved} {name}_{} = {name};", count - 1)
            };
            line(format!("        {}", rotate("mb", columns)));
            line(format!("        if (i % COLUMNS == COLUMNS - 1u) {{ {} }}", rotate("ma", rows)));
        }
        other => line(format!("    // unknown part {other}")),
    }
}

/// Emits the part that makes each output's exact sum one number of two or three words: `low`, `high` and the signed rest above
/// them. The part also loads the absmaxes of the outputs' rows and columns.
fn tiled_totals(choice: Choice, line: &mut impl FnMut(String)) {
    let [rows, columns] = choice.each();
    let weights = choice.weights();
    for i in 0..rows * columns {
        let mut words = [const { Vec::new() }; 3];
        for s in 0..weights {
            words[s as usize / 4].push(format!("(u32(s{s}_{i}) << {}u)", s % 4 * 8));
        }
        // The word that received the carries, above the bytes; it has the sign.
        let (word, shift) = (weights as usize / 4, weights % 4 * 8);
        words[word].push(format!("(bitcast<u32>(s{weights}_{i}) << {shift}u)"));
        let above = if shift == 0 { 31 } else { 32 - shift };
        words[word + 1].push(format!("bitcast<u32>(s{weights}_{i} >> {above}u)"));
        let [low, high, over] = words;
        line(format!("    var low_{i} = {};", low.join(" | ")));
        line(format!("    var high_{i} = {};", high.join(" | ")));
        // Sums of two words have their sign in the second word.
        let over = match (choice.wide, over.is_empty()) {
            (false, _) => format!("bitcast<i32>(high_{i}) >> 31u"),
            (true, true) => format!("s{weights}_{i} >> 31u"),
            (true, false) => format!("bitcast<i32>({})", over.join(" | ")),
        };
        line(format!("    var over_{i} = {over};"));
    }
    for (name, side, from, count, id, each) in
        [("ma", "a", "row", "m", "y", rows), ("mb", "b", "column", "n", "x", columns)]
    {
        for i in 0..each {
            let at = format!(
                "(sample * {count} + min({from} + {}u + id.{id}, {count} - 1u)) * p[1].x + block",
                i * SIDE
            );
            line(format!("    var {name}_{i} = absmaxes_{side}[{at}];"));
        }
    }
}

/// Emits the part that fills a tile.
fn tiled_load(choice: Choice, line: &mut impl FnMut(String)) {
    let [rows, columns] = choice.each();
    for (side, digits, each) in [("a", choice.digits_a, rows), ("b", choice.digits_b, columns)] {
        for half in 0..each / 2 {
            for d in 0..digits {
                let word = format!("{side}[{d}u * plane_{side} + at_{side}{half} + at]");
                let word = if side == "b" { format!("select(0u, {word}, inside)") } else { word };
                let tile = format!("tile_{side}[{d}][{}u + r0 / 8u]", 2 * half);
                line(match choice.variant {
                    Variant::Float => {
                        format!("            {tile}[c0][r0 % 8u] = vec4<f32>(unpack4xI8({word}));")
                    }
                    _ => format!("            {tile}[r0 % 8u][c0] = {word};"),
                });
            }
        }
    }
}

/// An operand that an invocation reads from a tile: a digit of one of its rows or columns.
#[derive(Clone, Copy)]
struct Operand {
    side: char,
    digit: u32,
    place: u32,
}

impl Operand {
    fn all(side: char, digits: u32, places: u32) -> Vec<Operand> {
        (0..digits).flat_map(|digit| (0..places).map(move |place| Operand { side, digit, place })).collect()
    }

    /// The name of the operand's word `c` of the step.
    fn word(self, c: u32) -> String {
        format!("{}{c}_{}_{}", self.side, self.digit, self.place)
    }

    fn load(self, c: u32, float: bool) -> String {
        let Operand { side, digit, place } = self;
        let id = if side == 'a' { "id.y" } else { "id.x" };
        let at = if float { format!("[{c}][{id}]") } else { format!("[{id}][{c}]") };
        format!("            let {} = tile_{side}[{digit}][{place}]{at};", self.word(c))
    }
}

/// Emits the part that multiplies a tile. The operands of the side that takes fewer registers are held; the operands of the other
/// side come one by one.
fn tiled_multiply(choice: Choice, line: &mut impl FnMut(String)) {
    let [rows, columns] = choice.each();
    let mut held = Operand::all('b', choice.digits_b, columns);
    let mut streamed = Operand::all('a', choice.digits_a, rows);
    if held.len() > streamed.len() {
        std::mem::swap(&mut held, &mut streamed);
    }
    // The closure gives the weight and the output of the product of two operands.
    let sum = |one: &Operand, other: &Operand| {
        let (a, b) = if one.side == 'a' { (one, other) } else { (other, one) };
        (a.digit + b.digit, a.place * columns + b.place)
    };
    if choice.variant == Variant::Float {
        // Chains of fma start from zero and have at most 4 * STEP * 4 terms of 2^14.
        let mut terms = std::collections::BTreeMap::new();
        for c in 0..STEP {
            held.iter().for_each(|one| line(one.load(c, true)));
            for other in &streamed {
                line(other.load(c, true));
                for (one, part) in held.iter().flat_map(|one| ["x", "y", "z", "w"].map(|part| (one, part))) {
                    let (weight, output) = sum(one, other);
                    let count = terms.entry((weight, output)).or_insert(0u32);
                    let (x, y) = (format!("{}.{part}", one.word(c)), format!("{}.{part}", other.word(c)));
                    let name = format!("f{weight}_{output}");
                    line(match *count {
                        0 => format!("            let {name}_0 = {x} * {y};"),
                        n => format!("            let {name}_{n} = fma({x}, {y}, {name}_{});", n - 1),
                    });
                    *count += 1;
                }
            }
        }
        for ((weight, output), count) in terms {
            line(format!("            s{weight}_{output} += i32(f{weight}_{output}_{});", count - 1));
        }
        return;
    }
    held.iter().for_each(|one| (0..STEP).for_each(|c| line(one.load(c, false))));
    for other in &streamed {
        (0..STEP).for_each(|c| line(other.load(c, false)));
        for c in 0..STEP {
            for one in &held {
                let (weight, output) = sum(one, other);
                line(format!(
                    "            s{weight}_{output} += dot4I8Packed({}, {});",
                    one.word(c),
                    other.word(c)
                ));
            }
        }
    }
}

/// A q as a sum of balanced parts. Part i, of `width` bits, has weight 2^(width * i); the last part holds the rest.
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

    /// Emits the statements that split the vector `name` to `name_0`, `name_1`, ..., at this indentation.
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

/// The scheme by which the words variant multiplies: sums of products of parts, and their combination to the total.
struct Scheme {
    a: Split,
    b: Split,
    /// The parts on each side whose sums are multiplied.
    sums: Vec<(Vec<usize>, Vec<usize>)>,
    /// (a sum, the sums taken from it, the power of two it is worth).
    folds: Vec<(usize, Vec<usize>, u32)>,
}

impl Scheme {
    fn new(digits_a: u32, digits_b: u32) -> Scheme {
        const WHOLE: u32 = 32;
        let small = digits_a.min(digits_b);
        // Products of parts stay below about 2^22, so that an accumulator holds hundreds.
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

    /// The number of indices of K that an i32 accumulator holds: a power of two.
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

/// Emits a part of `product_words.wgsl`.
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

/// Emits the part that multiplies a step.
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
