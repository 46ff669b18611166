//! The product on tensor cores, run on the host, and on a GPU if there is one. The bits equal those of the scalar reference for
//! every pair of digit counts, at the edges of tiles and of K, in blocks and batches, and in whole training steps.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use common::engine::Shim;
use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::tensor_core::Shape;
use cuda_bridge::translate::{Kernel, Options};
use tiebreak_contract::arith::digits::{self, ProductPart};
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_engine::fingerprint::fingerprint;
use tiebreak_engine::reference::Reference;

const PLAIN: Options = Options { native: false };
const NATIVE: Options = Options { native: true };

fn random(i: u32, stream: u32) -> u32 {
    philox4x32_10([stream, 73], [i, 0, 0, 0])[0]
}

fn translated(shape: Shape, options: Options) -> Arc<Kernel> {
    type Kernels = HashMap<(Shape, Options), Arc<Kernel>>;
    static KERNELS: LazyLock<Mutex<Kernels>> = LazyLock::new(Mutex::default);
    let translate = || Arc::new(common::tensor_core(shape, options));
    KERNELS.lock().unwrap().entry((shape, options)).or_insert_with(translate).clone()
}

/// The digits of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// The digits of random q's, and of the extreme ones.
    Random,
    /// The same digit everywhere.
    All(i8),
}

/// An operand in the kernels' form.
struct Operand {
    q: Vec<i64>,
    planes: Vec<u32>,
    absmaxes: Vec<u32>,
}

fn operand(rows: u32, k: u32, blocks: u32, digits: u32, fill: Fill, stream: u32) -> Operand {
    let width = k.next_multiple_of(16);
    let mut bytes = vec![0u8; (digits * rows * width) as usize];
    let mut q = Vec::new();
    let most = 1i64 << digits::magnitude_bits(digits);
    for row in 0..rows {
        for place in 0..k {
            let r = random(row * k + place, stream);
            let split = match fill {
                Fill::All(digit) => [digit; 4],
                Fill::Random => {
                    let q = match r % 16 {
                        0 => most,
                        1 => -most,
                        2 => 0,
                        _ => i64::from(r as i32) % (most + 1),
                    };
                    digits::balanced_digits(q as i32, digits)
                }
            };
            q.push((0..digits).map(|d| i64::from(split[d as usize]) << (8 * d)).sum());
            for d in 0..digits {
                bytes[((d * rows + row) * width + place) as usize] = split[d as usize] as u8;
            }
        }
    }
    // Ordinary groups, and zero, subnormal, huge and marked ones.
    let absmax = |i: u32| match random(i, stream + 1) % 24 {
        0 => [0, 1, 0x007f_ffff, 0x0080_0000][(i % 4) as usize],
        1 => [0x7f80_0000, 0x7fc0_0000][(i % 2) as usize],
        2 => 0x7f7f_ffff,
        3 => 0x0100_0000 + (i << 20),
        _ => 0x3d00_0000 + random(i, stream + 2) % 0x0400_0000,
    };
    // A buffer has at least one element.
    bytes.resize(bytes.len().max(4), 0);
    let planes = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Operand { q, planes, absmaxes: (0..(rows * blocks).max(1)).map(absmax).collect() }
}

/// A product to compute.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: Shape,
    options: Options,
    /// batch, m, n, k
    size: [u32; 4],
    block: u32,
    part: ProductPart,
    fill: Fill,
}

impl Case {
    fn new(digits_a: u32, digits_b: u32, size: [u32; 4]) -> Case {
        let shape = Shape::new(digits_a, digits_b, size[3]).unwrap();
        Case { shape, options: NATIVE, size, block: 0, part: ProductPart::Rounded, fill: Fill::Random }
    }

    /// The same case with small tiles.
    fn small(self, size: [u32; 4]) -> Case {
        Case { shape: Shape { small: true, ..self.shape }, size, ..self }
    }

    /// Compares the result with the reference.
    fn check(self) {
        let Case { shape: Shape { digits_a, digits_b, .. }, size: [batch, m, n, k], block, part, .. } = self;
        let step = if block == 0 { k } else { block };
        let blocks = if block == 0 { 1 } else { k.div_ceil(block) };
        let a = operand(batch * m, k, blocks, digits_a, self.fill, 10);
        let b = operand(batch * n, k, blocks, digits_b, self.fill, 20);
        let words = k.next_multiple_of(16) / 4;
        let step_words = if block == 0 { words } else { block / 4 };
        let bits = digits::magnitude_bits(digits_a) + digits::magnitude_bits(digits_b);
        let bits = bits + (u32::from(part == ProductPart::RoundingError) << 16);
        let [rows, columns] = self.shape.tile();
        let kernel = translated(self.shape, self.options);
        let outputs = (blocks * batch * m * n) as usize;
        let mut have = vec![0x5a5a_5a5a; outputs];
        // Two launches, as where one launch cannot hold all products: the last word gives the first product of each.
        let first = blocks * batch / 2;
        for (from, count) in [(0, first), (first, blocks * batch - first)] {
            if count > 0 {
                let uniform = [batch, m, n, words, blocks, step_words, bits, from];
                let mut buffers = [
                    Buffer::Read(&uniform),
                    Buffer::Read(&a.planes),
                    Buffer::Read(&a.absmaxes),
                    Buffer::Read(&b.planes),
                    Buffer::Read(&b.absmaxes),
                    Buffer::Write(&mut have),
                ];
                let groups = [n.div_ceil(columns), m.div_ceil(rows), count];
                common::execute(&kernel, Checks::default(), groups, &mut buffers);
            }
        }
        for (i, have) in (0u32..).zip(have) {
            let (column, row, sample, block) = (i % n, i / n % m, i / n / m % batch, i / n / m / batch);
            let (row, column) = (sample * m + row, sample * n + column);
            let places = (block * step) as usize..((block + 1) * step).min(k) as usize;
            let of = |q: &[i64], line: u32| q[(line * k) as usize..][places.clone()].to_vec();
            let terms = of(&a.q, row).into_iter().zip(of(&b.q, column));
            let sum = terms.map(|(a, b)| i128::from(a * b)).sum();
            let absmaxes =
                [a.absmaxes[(row * blocks + block) as usize], b.absmaxes[(column * blocks + block) as usize]];
            let want = digits::scale_back_part(part, sum, absmaxes, [digits_a, digits_b]);
            assert_eq!(have, want, "{self:?}: output {i}, sum {sum}, absmaxes {absmaxes:x?}");
        }
    }
}

/// Every pair of digit counts, over the edges of one tile and with a tail of K, with and without the processor's floats.
#[test]
fn every_pair_of_digit_counts() {
    for digits_a in 1..=4 {
        for digits_b in 1..=4 {
            let case = Case::new(digits_a, digits_b, [1, 37, 45, 83]);
            let [rows, columns] = case.shape.tile();
            case.check();
            Case { options: PLAIN, size: [1, 9, 20, 33], ..case }.check();
            Case { fill: Fill::All(-128), size: [1, 5, 7, 64], ..case }.check();
            Case { part: ProductPart::RoundingError, size: [1, rows + 1, columns - 1, 48], ..case }.check();
            case.small([2, 37, 45, 83]).check();
        }
    }
}

/// Totals of 128 bits and carries change no bit where they are not needed.
#[test]
fn completions_for_longer_rows() {
    for (digits_a, digits_b) in [(1, 1), (2, 3), (3, 3), (4, 2)] {
        let case = Case::new(digits_a, digits_b, [1, 37, 21, 83]);
        Case { shape: Shape { long: true, ..case.shape }, ..case }.check();
        Case { shape: Shape { wide: true, long: true, ..case.shape }, options: PLAIN, ..case }.check();
    }
    // Totals beyond 64 bits without a carry.
    let case = Case { fill: Fill::All(-128), ..Case::new(3, 4, [1, 20, 40, 2049]) };
    assert!(case.shape.wide && !case.shape.long);
    case.check();
    Case { part: ProductPart::RoundingError, fill: Fill::Random, ..case }.check();
}

/// Rows, columns and K around multiples of tiles, fragments and chunks.
#[test]
fn edges_of_tiles_and_of_k() {
    let Case { shape, .. } = Case::new(2, 2, [1, 1, 1, 1]);
    let [rows, columns] = shape.tile();
    for (m, n) in [(1, 1), (7, 8), (16, 9), (17, 31), (rows - 1, columns), (rows, columns + 1), (rows + 1, 2)]
    {
        Case::new(2, 2, [1, m, n, 40]).check();
    }
    for k in [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 160, 161] {
        Case::new(2, 2, [1, 18, 10, k]).check();
        Case::new(3, 3, [1, 3, 40, k]).check();
        Case::new(1, 1, [1, 5, 4, k]).check();
        Case::new(3, 2, [1, 1, 1, 1]).small([1, 33, 9, k]).check();
    }
}

/// More tiles than blocks that walk together, in both directions.
#[test]
fn many_tiles() {
    let Case { shape, .. } = Case::new(4, 4, [1, 1, 1, 1]);
    let [rows, columns] = shape.tile();
    Case::new(4, 4, [1, 9 * rows + 3, 2 * columns + 5, 16]).check();
    Case::new(4, 4, [1, 3, 5 * columns - 1, 17]).check();
    let case = Case::new(2, 2, [1, 1, 1, 1]).small([1, 1, 1, 1]);
    let [rows, columns] = case.shape.tile();
    Case { size: [1, 8 * rows + 1, 3 * columns + 1, 40], ..case }.check();
}

#[test]
fn blocks_and_batches() {
    for (digits_a, digits_b) in [(1, 1), (2, 3), (3, 2), (4, 4)] {
        for (size, block) in
            [([2, 5, 70, 200], 64), ([3, 40, 3, 129], 128), ([5, 2, 2, 31], 0), ([1, 4, 4, 64], 64)]
        {
            for part in [ProductPart::Rounded, ProductPart::RoundingError] {
                Case { block, part, ..Case::new(digits_a, digits_b, size) }.check();
            }
        }
    }
}

/// The tiles that an output gets on a GPU of 132 SMs.
#[test]
fn tiles_follow_the_size_of_the_output() {
    let shape = Shape::new(2, 2, 768).unwrap();
    let small = |rows, columns, products| shape.for_output(rows, columns, products, 132).small;
    assert!(small(768, 768, 1), "36 large tiles leave most SMs without work");
    assert!(!small(8192, 768, 1), "384 of them are nearly three rounds");
    assert!(!small(8192, 50_257, 1));
    assert!(small(128, 128, 132) == small(128, 128 * 132, 1), "products count as tiles do");
    assert!(small(1, 1, 1) && small(64, 64, 100));
    assert_eq!(shape.for_output(0, 5, 1, 132).digits_a, 2);
}

/// An empty K gives zeros, and NaN where a group is marked.
#[test]
fn nothing_to_add() {
    Case::new(2, 2, [1, 30, 20, 0]).check();
}

/// Long rows: totals beyond 32 bits, beyond 64, and sums that are carried on the way, with full digits.
#[test]
fn long_rows() {
    for (digits_a, digits_b, k, fill) in [
        (2, 2, 70_000, Fill::Random),
        (2, 2, 70_000, Fill::All(-128)),
        (3, 3, 70_000, Fill::All(-128)),
        (4, 4, 33_000, Fill::Random),
        (4, 4, 33_000, Fill::All(127)),
        (1, 1, 131_088, Fill::All(-128)),
    ] {
        let case = Case { fill, ..Case::new(digits_a, digits_b, [1, 2, 3, k]) };
        assert!(case.shape.long);
        case.check();
    }
    // The greatest K that is not carried.
    let case = Case { fill: Fill::All(-128), ..Case::new(2, 2, [1, 1, 1, 65_535]) };
    assert!(!case.shape.long);
    case.check();
}

/// The self-test that every adapter has to pass, with every product on tensor cores.
#[test]
fn whole_steps() {
    let expected = fingerprint(&mut Reference).unwrap();
    assert_eq!(fingerprint(&mut Shim::with_tensor_cores(NATIVE)).unwrap(), expected);
}

/// Every completion becomes machine code for the three architectures, within the available registers and shared memory.
#[test]
fn every_completion_compiles_to_machine_code() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let mut work = Vec::new();
    let every = std::env::var_os("TIEBREAK_EVERY_VARIANT").is_some();
    for (i, shape) in Shape::all().enumerate() {
        // Small tiles leave registers unused: for the rare pairs one architecture is enough. The others are for all three, or for one in
        // turn.
        let common = shape.digits_a.max(shape.digits_b) < 4 && !shape.long;
        let architectures = ["sm_90a", "sm_89", "sm_80"];
        let chosen = match (shape.small && !common, every) {
            (true, _) => &architectures[..1],
            (false, true) => &architectures[..],
            (false, false) => &architectures[i % 3..][..1],
        };
        work.extend(chosen.iter().map(|architecture| (shape, NATIVE, *architecture)));
    }
    // Without the processor's conversion only the way back differs, so a sample is enough.
    work.extend(Shape::all().step_by(17).map(|shape| (shape, PLAIN, "sm_80")));
    let found = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((shape, options, architecture)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let usage =
                        common::ptxas::usage(&nvrtc, &common::tensor_core(*shape, *options), architecture);
                    found.lock().unwrap().push((*shape, *architecture, *options, usage));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    assert_eq!(found.len(), work.len());
    found.sort_by_key(|(shape, architecture, ..)| (*architecture, format!("{shape:?}")));
    for (shape, architecture, Options { native }, usage) in &found {
        let Shape { digits_a, digits_b, wide, long, small } = shape;
        let kind = format!(
            "{digits_a} x {digits_b}, wide {wide}, long {long}, small {small}, native {native}, {architecture}"
        );
        eprintln!("{kind}: {usage:?}");
        assert_eq!((usage.spilled, usage.stack), (0, 0), "{kind}");
        assert!(usage.shared <= 48 << 10, "{kind}");
    }
}
