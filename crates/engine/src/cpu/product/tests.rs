//! Every path and number of threads against the scalar reference: equal bits, always.

use std::io::Write as _;

use super::*;
use tiebreak_contract::arith::digits;
use tiebreak_contract::program::im2col::{ConvGeometry, DigitPatches};

const INFINITY: u32 = tiebreak_contract::arith::float::INFINITY;

/// A deterministic stream of words.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

fn quantise(view: StridedView<'_>, digits: u32, block: usize) -> Operand {
    let memory = vec![0; memory_of(view.shape(), digits)];
    quantise_into(memory, view, absmaxes(view, block), digits, block)
}

/// The contents of a tensor.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Near 1, either sign.
    Ordinary,
    /// Any finite pattern: every exponent and subnormals.
    Wide,
    Subnormal,
    /// Mostly ordinary, some NaN and infinity.
    Special,
    /// The greatest integers the digits reach, signs alternating by row.
    Extreme,
}

fn fill(kind: Fill, words: &mut Words, len: usize) -> Vec<u32> {
    let one = |x: u32| x & 0x807f_ffff | (120 + (x >> 23 & 7)) << 23;
    (0..len)
        .map(|_| {
            let x = words.next();
            match kind {
                Fill::Ordinary => one(x),
                Fill::Wide if x & INFINITY == INFINITY => x & !0x0080_0000,
                Fill::Wide => x,
                Fill::Subnormal => x & 0x807f_ffff,
                Fill::Special => match x % 61 {
                    0 => INFINITY,
                    1 => 0xff80_0000,
                    2 => 0x7f80_0001,
                    3 => 0xffff_ffff,
                    4 => 0x8000_0000,
                    _ => one(x),
                },
                Fill::Extreme => 0x3f7f_ffff | x & 0x8000_0000,
            }
        })
        .collect()
}

/// The reference's `[block, batch, M, N]` of row-major `[batch_a, m, k]` and `[batch_b, n, k]`.
fn reference(a: &Reference<'_>, b: &Reference<'_>, block: usize) -> Vec<u32> {
    reference_part(ProductPart::Rounded, a, b, block)
}

/// [`reference`], or its rounding errors.
fn reference_part(part: ProductPart, a: &Reference<'_>, b: &Reference<'_>, block: usize) -> Vec<u32> {
    let k = a.k;
    let step = if block == 0 { k.max(1) } else { block };
    let mut out = Vec::new();
    for first in (0..k.max(1)).step_by(step) {
        let range = first..(first + step).min(k);
        for batch in 0..if a.batch == 1 { b.batch } else { a.batch } {
            for m in 0..a.rows {
                let (qa, ma) = a.group(batch, m, range.clone());
                for n in 0..b.rows {
                    let (qb, mb) = b.group(batch, n, range.clone());
                    out.push(match part {
                        ProductPart::Rounded => digits::dot(&qa, &qb, ma, mb, a.digits, b.digits),
                        ProductPart::RoundingError => {
                            let sum = qa.iter().zip(&qb).map(|(&x, &y)| i128::from(x) * i128::from(y)).sum();
                            digits::scale_back_part(part, sum, [ma, mb], [a.digits, b.digits])
                        }
                    });
                }
            }
        }
    }
    out
}

struct Reference<'a> {
    data: &'a [u32],
    batch: usize,
    rows: usize,
    k: usize,
    digits: u32,
}

impl Reference<'_> {
    fn group(&self, batch: usize, row: usize, k: std::ops::Range<usize>) -> (Vec<i32>, u32) {
        let start = (batch % self.batch * self.rows + row) * self.k;
        let group = &self.data[start + k.start..start + k.end];
        let absmax = digits::group_absmax(group.iter().copied());
        (group.iter().map(|&x| digits::quantise(x, absmax, self.digits)).collect(), absmax)
    }

    fn operand(&self, block: usize) -> Operand {
        quantise(StridedView::contiguous(self.data, self.batch, self.rows, self.k), self.digits, block)
    }
}

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool").install(work)
}

fn check(
    kind: Fill,
    batches: (usize, usize),
    shape: (usize, usize, usize),
    digits: (u32, u32),
    block: usize,
) {
    let (m, n, k) = shape;
    let mut words = Words((m * 7 + n * 11 + k * 13 + block) as u64);
    let (data_a, data_b) =
        (fill(kind, &mut words, batches.0 * m * k), fill(kind, &mut words, batches.1 * n * k));
    let a = Reference { data: &data_a, batch: batches.0, rows: m, k, digits: digits.0 };
    let b = Reference { data: &data_b, batch: batches.1, rows: n, k, digits: digits.1 };
    let [rounded, errors] = PARTS.map(|part| reference_part(part, &a, &b, block));
    for path in Path::of_machine() {
        for (threads, part, expected) in
            [(1, PARTS[0], &rounded), (2, PARTS[0], &rounded), (2, PARTS[1], &errors)]
        {
            let mut out = vec![0xdead_beef; expected.len()];
            on_threads(threads, || compute(path, part, &a.operand(block), &b.operand(block), &mut out));
            assert!(
                &out == expected,
                "{path:?} {part:?} {threads} threads {kind:?} {batches:?} {shape:?} {digits:?} {block}"
            );
        }
    }
}

const PARTS: [ProductPart; 2] = [ProductPart::Rounded, ProductPart::RoundingError];

const PAIRS: [(u32, u32); 16] = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (2, 1),
    (2, 2),
    (2, 3),
    (2, 4),
    (3, 1),
    (3, 2),
    (3, 3),
    (3, 4),
    (4, 1),
    (4, 2),
    (4, 3),
    (4, 4),
];

#[test]
fn every_pair_of_digits_on_every_kind_of_input() {
    for kind in [Fill::Ordinary, Fill::Wide, Fill::Subnormal, Fill::Special, Fill::Extreme] {
        for digits in PAIRS {
            check(kind, (1, 1), (19, 37, 131), digits, 0);
            check(kind, (2, 1), (5, 18, 200), digits, 64);
            // Few rows are not packed.
            check(kind, (1, 1), (1, 70, 131), digits, 0);
            check(kind, (2, 2), (4, 65, 200), digits, 64);
            // The larger side is packed in bands.
            check(kind, (1, 1), (7, 45, 200), digits, 64);
        }
    }
}

#[test]
fn ragged_and_empty_shapes_and_batches() {
    for digits in [(1, 1), (2, 2), (3, 3), (4, 4), (3, 1)] {
        for shape in
            [(1, 1, 1), (1, 1, 0), (0, 3, 5), (3, 0, 5), (2, 33, 63), (47, 1, 65), (16, 16, 64), (17, 513, 3)]
        {
            for batches in [(1, 1), (3, 3), (1, 2), (2, 1)] {
                check(Fill::Ordinary, batches, shape, digits, 0);
                check(Fill::Wide, batches, shape, digits, 64);
            }
        }
        check(Fill::Ordinary, (0, 1), (3, 4, 5), digits, 0);
        check(Fill::Extreme, (1, 1), (3, 5, 4500), digits, 2048);
        check(Fill::Special, (1, 1), (33, 5, 1100), digits, 512);
        // Sums of several panels wait for the next indices of K.
        check(Fill::Extreme, (1, 1), (17, 300, 600), digits, 0);
    }
}

#[test]
fn the_longest_rows_of_extreme_integers_stay_exact() {
    // Below 2^19 an i64 holds the sums of integers of three digits.
    for k in [(1 << 19) - 1, 802_816] {
        for positive in [true, false] {
            let mut words = Words(1);
            let data = if positive { vec![0x3f7f_ffff; k] } else { fill(Fill::Extreme, &mut words, k) };
            for digits in PAIRS {
                let row = |digits| Reference { data: &data, batch: 1, rows: 1, k, digits };
                let expected = reference(&row(digits.0), &row(digits.1), 0);
                for path in Path::of_machine() {
                    let mut out = [0];
                    product_on(path, &row(digits.0).operand(0), &row(digits.1).operand(0), &mut out);
                    assert_eq!(out[..], expected, "{path:?} {digits:?} {k}");
                }
            }
        }
    }
}

#[test]
fn any_strides_digitise_alike() {
    let (outer, inner, rows, k) = (2, 3, 35, 300);
    let mut words = Words(5);
    // The axes [outer, inner, rows, k] stored in several orders, with one element of padding in front.
    for order in [[0, 1, 2, 3], [0, 1, 3, 2], [2, 0, 1, 3], [3, 2, 1, 0], [0, 2, 1, 3]] {
        let lens = [outer, inner, rows, k];
        let mut strides = [0; 4];
        let mut step = 1;
        for &axis in order.iter().rev() {
            strides[axis] = step;
            step *= lens[axis];
        }
        for (kind, block, digits) in
            [(Fill::Wide, 0, 3), (Fill::Special, 64, 2), (Fill::Wide, 128, 4), (Fill::Subnormal, 0, 1)]
        {
            let stored = fill(kind, &mut words, step + 1);
            let at = |o: usize, i: usize, r: usize, k: usize| {
                stored[1 + o * strides[0] + i * strides[1] + r * strides[2] + k * strides[3]]
            };
            let mut plain = Vec::new();
            for (o, i, r) in (0..outer * inner * rows).map(|x| (x / rows / inner, x / rows % inner, x % rows))
            {
                plain.extend((0..k).map(|k| at(o, i, r, k)));
            }
            let axis = |i: usize| Axis { len: lens[i], stride: strides[i] };
            let view = StridedView::new(&stored, 1, [axis(0), axis(1)], axis(2), axis(3));
            let operand = quantise(view, digits, block);
            let group = if block == 0 { k } else { block };
            let mut bytes = Vec::new();
            for (row, q) in plain.chunks(k).zip(operand.integers().chunks(k)) {
                for (group, q) in row.chunks(group).zip(q.chunks(group)) {
                    let absmax = digits::group_absmax(group.iter().copied());
                    let expected: Vec<i32> =
                        group.iter().map(|&x| digits::quantise(x, absmax, digits)).collect();
                    assert_eq!(q, expected, "{order:?} {kind:?} {block} {digits}");
                    bytes.extend(expected.iter().flat_map(|q| q.to_le_bytes()[..digits as usize].to_vec()));
                }
            }
            let groups = plain.chunks(k).flat_map(|row| row.chunks(group));
            let expected: Vec<u32> =
                groups.map(|group| digits::group_absmax(group.iter().copied())).collect();
            assert_eq!(operand.absmaxes(), expected);
            assert_eq!(to_canonical(&operand), bytes);
        }
    }
}

#[test]
#[should_panic(expected = "leaves its tensor")]
fn a_view_may_not_leave_its_tensor() {
    StridedView::contiguous(&[0; 23], 2, 3, 4);
}

/// Eight products of the greatest integers of two digits exceed an i32. Seven do not, nor do eight where one side is a unit
/// smaller.
#[test]
fn sums_at_the_ends_of_an_i32_are_exact() {
    const K: usize = 72;
    const GREATEST: u32 = 0x3f7f_ffff;
    const ROUNDS_UP: u32 = 0x3f7f_fe00;
    const A_UNIT_BELOW: u32 = 0x3f7f_fdff;
    const SIGN: u32 = tiebreak_contract::arith::float::SIGN;
    for x in [GREATEST, ROUNDS_UP, A_UNIT_BELOW] {
        for y in [GREATEST, ROUNDS_UP, A_UNIT_BELOW, GREATEST | SIGN, ROUNDS_UP | SIGN, A_UNIT_BELOW | SIGN] {
            let (data_a, data_b) = (vec![x; 9 * K], vec![y; 9 * K]);
            let a = Reference { data: &data_a, batch: 1, rows: 9, k: K, digits: 2 };
            let b = Reference { data: &data_b, batch: 1, rows: 9, k: K, digits: 2 };
            let expected = reference(&a, &b, 0);
            for path in Path::of_machine() {
                let mut out = vec![0; expected.len()];
                product_on(path, &a.operand(0), &b.operand(0), &mut out);
                assert!(out == expected, "{path:?} {x:08x} {y:08x}");
            }
        }
    }
}

/// Integers of three digits whose halves, and the halves' products, are as great as possible. Rows are long enough for lanes to
/// add without a flush.
#[test]
fn halves_at_their_ends_are_exact() {
    const K: usize = 1021;
    const GREATEST: u32 = 0x3f7f_ffff;
    // 2^22 - 2^10: the low half is -2^10, the high half 2^11.
    const BOTH: u32 = 0x3f7f_f000;
    const SIGN: u32 = tiebreak_contract::arith::float::SIGN;
    for x in [GREATEST, BOTH] {
        for y in [GREATEST, BOTH, GREATEST | SIGN, BOTH | SIGN] {
            let (data_a, data_b) = (vec![x; 5 * K], vec![y; 33 * K]);
            let a = Reference { data: &data_a, batch: 1, rows: 5, k: K, digits: 3 };
            let b = Reference { data: &data_b, batch: 1, rows: 33, k: K, digits: 3 };
            let expected = reference(&a, &b, 0);
            for path in Path::of_machine() {
                let mut out = vec![0; expected.len()];
                product_on(path, &a.operand(0), &b.operand(0), &mut out);
                assert!(out == expected, "{path:?} {x:08x} {y:08x}");
            }
        }
    }
}

/// Patches of images are the integers of their definition, in every way of gathering, and so are their products: those of a quarter of the
/// cases, and with TIEBREAK_EVERY_PAIR all.
#[test]
fn patches_are_gathered_as_defined() {
    let all = std::env::var_os("TIEBREAK_EVERY_PAIR").is_some();
    if !all {
        let what =
            "products of three quarters of the patches: TIEBREAK_EVERY_PAIR asks for these, as .ci/full does";
        let _ = writeln!(std::io::stderr(), "NOT TESTED: {what}");
    }
    // A quarter of the cases has all geometries, sizes, ways and digits: their numbers are no multiples of four.
    let mut cases = (0..).map(|case| all || case % 4 == 0);
    let geometries = [
        ([9, 17], [3, 3], 1, 1),
        ([8, 16], [3, 3], 2, 1),
        ([11, 13], [1, 1], 2, 0),
        ([4, 4], [3, 3], 1, 1),
        ([3, 33], [3, 3], 1, 1),
        ([2, 1], [3, 3], 1, 1),
        ([9, 8], [4, 5], 3, 2),
        ([5, 12], [2, 2], 4, 0),
        // Some lines are much longer than the images' lines: of the greatest allowed length, and longer.
        ([2, 1], [2, 28], 1, 14),
        ([2, 1], [2, 38], 1, 19),
    ];
    let mut words = Words(3);
    for (image, kernel, stride, padding) in geometries {
        let forward = ConvGeometry::of_image(image, kernel, stride, padding).expect("the kernel fits");
        for (samples, channels) in [(1, 8), (9, 2), (3, 3), (2, 16), (1, 23)] {
            for (geometry, by_channel) in
                [(forward, false), (forward.transposed(image), false), (forward, true)]
            {
                let image = if geometry.transposed { forward.size } else { image };
                let patches = DigitPatches { image, geometry, by_channel };
                let len = samples * image[0] * image[1] * channels;
                let rows = if by_channel { channels } else { samples };
                let data = fill(Fill::Ordinary, &mut words, len as usize);
                let [rows, k] = [rows, len / rows].map(|n| n as usize);
                let [of_patches, places] = patches.shape([samples, channels]).map(|n| n as usize);
                let other = fill(Fill::Ordinary, &mut words, 40 * places);
                for digits in [2, 3, 4] {
                    let images = quantise(StridedView::contiguous(&data, 1, rows, k), digits, 0);
                    let gathered = images.patches(patches, |len| vec![-1; len]);
                    let q = images.integers();
                    let source = |i| patches.source([samples, channels], i).map_or(0, |at| q[at]);
                    let expected: Vec<i32> = (0..of_patches * places).map(source).collect();
                    let what = format!("{patches:?} {samples} {channels} {digits}");
                    assert!(gathered.integers() == expected, "{what}");
                    if cases.next() == Some(false) {
                        continue;
                    }
                    for block in [0, 64] {
                        let absmaxes = vec![
                            0x3f80_0000;
                            of_patches
                                * places.div_ceil(if block == 0 { places } else { block })
                        ];
                        let gathered = gathered.with_absmaxes(&absmaxes, block);
                        let bytes = to_canonical(&gathered);
                        let plain =
                            Operand::from_canonical(digits, [1, of_patches, places], block, absmaxes, &bytes);
                        for (digits, columns) in [(2, 10), (3, 10), (3, 40), (4, 40)] {
                            let other = StridedView::contiguous(&other, 1, columns, places);
                            let other = quantise(other, digits, block);
                            let of = |path, a: &Operand, b: &Operand| {
                                let mut out = vec![0; gathered.blocks() * of_patches * columns];
                                product_on(path, a, b, &mut out);
                                out
                            };
                            for path in Path::of_machine() {
                                let what = format!("{path:?} {what} {digits} {block}");
                                assert!(of(path, &gathered, &other) == of(path, &plain, &other), "{what}");
                                assert!(of(path, &other, &gathered) == of(path, &other, &plain), "{what}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_that_are_packed_once_multiply_alike() {
    let [few, many, wide] = [2, 33, 35];
    for (kind, [m, n, k], block) in [
        (Fill::Ordinary, [1, 64, 16], 0),
        (Fill::Extreme, [few, 130, 67], 0),
        (Fill::Special, [9, 100, 257], 0),
        (Fill::Wide, [many, 77, 190], 0),
        (Fill::Ordinary, [3, 64, 192], 64),
        // Accumulators are flushed on the way.
        (Fill::Extreme, [1, 65, 16_500], 0),
        (Fill::Extreme, [few + 1, 64, 1000], 0),
        // The packed rows are read in bands, if the batch is 1.
        (Fill::Special, [wide, 150, 301], 0),
        (Fill::Extreme, [wide, 150, 600], 512),
    ] {
        let batch = if m == wide { 1 } else { 2 };
        let mut words = Words((m * 3 + n * 5 + k * 7) as u64);
        let [data_a, data_b] = [batch * m * k, n * k].map(|len| fill(kind, &mut words, len));
        for digits in [3, 2] {
            let a = Reference { data: &data_a, batch, rows: m, k, digits };
            let b = Reference { data: &data_b, batch: 1, rows: n, k, digits: 3 };
            let [of_a, of_b] = [&a, &b].map(|side| side.operand(block));
            let Some(kept) = packed(&of_b) else {
                assert!(Path::fastest() < Path::Avx512Vnni, "these rows are worth being packed");
                continue;
            };
            assert_eq!(kept.integers(), of_b.integers());
            for part in PARTS {
                let expected = reference_part(part, &a, &b, block);
                for (path, threads) in Path::of_machine().flat_map(|path| [(path, 1), (path, 2)]) {
                    let mut out = vec![0xdead_beef; expected.len()];
                    on_threads(threads, || compute(path, part, &of_a, &kept, &mut out));
                    assert!(
                        out == expected,
                        "{path:?} {part:?} {threads} threads {kind:?} {m} {n} {k} {digits} {block}"
                    );
                }
            }
        }
    }
}
