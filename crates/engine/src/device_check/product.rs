//! Freivalds' test of one product: exact sums that a device hands out, and the rounded product that it computed.
//!
//! The sums are a claim. They are right where C r = A (B r) for a random r, and the product is right where it is their rounding.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::field::Field;
use tiebreak_contract::arith::digits::{self, ProductPart, magnitude_bits, scale_back_part};
use tiebreak_contract::arith::float;

/// A product with everything that a device shows of it.
pub(super) struct Shown {
    /// [batch, M, N, K].
    pub dims: [usize; 4],
    /// Terms of a block; K or more is one block.
    pub block: usize,
    /// Digits of both operands.
    pub digits: [u32; 2],
    /// The result of rounding that the product is.
    pub part: ProductPart,
    /// Integers of both operands, [batch, M, K] and [batch, N, K].
    pub operands: [Vec<i32>; 2],
    /// Absmaxes of their scale groups, [batch, M, blocks] and [batch, N, blocks].
    pub absmaxes: [Vec<u32>; 2],
    /// The product, [blocks, batch, M, N].
    pub output: Vec<u32>,
    /// The words of the exact sums from the lowest on, each with the product's shape.
    pub words: Vec<Vec<u32>>,
}

/// A wrong element of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The element's place in the output.
    pub element: usize,
    /// True if the output is wrong, false if only the sum is that the device handed out beside it.
    pub in_output: bool,
    /// The word that the device gave: of the output, or of the sum.
    pub found: u32,
    /// The right word.
    pub expected: u32,
}

/// The work of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Multiply-adds of the test.
    pub multiply_adds: u64,
    /// Multiply-adds of the product itself.
    pub of_product: u64,
}

/// The number of words of exact sums that settle a product together with its rounded values.
///
/// A rounded value is within 2^-24 of its sum. So a sum below 2^55 is known from it up to 2^30, and 32 bits of the sum choose
/// the right one. A rest says little about its sum, whose words are then all needed.
pub(super) fn words_needed(terms: usize, digits: [u32; 2], part: ProductPart) -> u8 {
    let bound = bound_of(terms, digits);
    match part {
        _ if bound < 1 << 31 => 1,
        ProductPart::Rounded if bound < 1 << 55 => 1,
        ProductPart::Rounded => 2,
        ProductPart::RoundingError if bound < 1 << 63 => 2,
        ProductPart::RoundingError => 3,
    }
}

/// The greatest size of a sum of `terms` products of integers of these digits.
fn bound_of(terms: usize, digits: [u32; 2]) -> u128 {
    (terms as u128) << digits.map(magnitude_bits).into_iter().sum::<u32>()
}

/// The primes of a test. A difference of two possible sums is a multiple of all of them only if it is 0.
fn fields_of(terms: usize, digits: [u32; 2]) -> &'static [Field] {
    let one = 2 * bound_of(terms, digits) < u128::from(Field::MERSENNE.prime());
    if one { &[Field::MERSENNE] } else { &[Field::MERSENNE, Field::SECOND] }
}

/// The work of a test that computes no row itself.
fn work_of(dims: [usize; 4], block: usize, digits: [u32; 2]) -> Work {
    let [batch, m, n, k] = dims.map(|d| d as u64);
    let blocks = dims[3].div_ceil(block).max(1) as u64;
    let fields = fields_of(dims[3].min(block), digits).len() as u64;
    Work { multiply_adds: fields * batch * (n * k + m * k + blocks * m * n), of_product: batch * m * n * k }
}

impl Shown {
    fn blocks(&self) -> usize {
        self.dims[3].div_ceil(self.block).max(1)
    }

    /// The greatest size of a sum.
    fn bound(&self) -> u128 {
        bound_of(self.dims[3].min(self.block), self.digits)
    }

    /// Tests the product. `random` fills bytes with randomness that the device could not foresee.
    ///
    /// # Errors
    /// If there is no randomness.
    pub(super) fn test<E>(
        &self,
        mut random: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(Option<Wrong>, Work), E> {
        let [batch, m, n, k] = self.dims;
        let fields = fields_of(k.min(self.block), self.digits);
        let vectors: Vec<Vec<u64>> =
            fields.iter().map(|field| vector(*field, n, &mut random)).collect::<Result<_, _>>()?;
        let exact_rows = AtomicU64::new(0);
        let wrong = (0..self.blocks() * batch).find_map(|matrix| {
            let (block, sample) = (matrix / batch, matrix % batch);
            let combined: Vec<Vec<u64>> = fields
                .iter()
                .zip(&vectors)
                .map(|(field, r)| self.combined(*field, block, sample, r))
                .collect();
            (0..m).into_par_iter().find_map_first(|row| {
                let passes = self.row_passes(block, sample, row, fields, &combined, &vectors);
                let exactly = || {
                    exact_rows.fetch_add(1, Ordering::Relaxed);
                    self.wrong_in_row(block, sample, row)
                };
                if passes { None } else { exactly() }
            })
        });
        let mut work = work_of(self.dims, self.block, self.digits);
        work.multiply_adds += exact_rows.into_inner() * (n * k.min(self.block)) as u64;
        Ok((wrong, work))
    }

    /// A row of an operand of a sample in a block.
    fn row(&self, side: usize, block: usize, sample: usize, row: usize) -> &[i32] {
        let k = self.dims[3];
        let first = (sample * self.dims[1 + side] + row) * k;
        &self.operands[side][first..first + k][block * self.block..k.min((block + 1) * self.block)]
    }

    fn absmax(&self, side: usize, block: usize, sample: usize, row: usize) -> u32 {
        self.absmaxes[side][(sample * self.dims[1 + side] + row) * self.blocks() + block]
    }

    /// B r: for each place of K, the sum over the rows of B.
    fn combined(&self, field: Field, block: usize, sample: usize, r: &[u64]) -> Vec<u64> {
        const STRIP: usize = 64;
        let [_, _, n, k] = self.dims;
        let places = k.min((block + 1) * self.block) - block * self.block;
        let mut combined = vec![0; places];
        combined.par_chunks_mut(STRIP).enumerate().for_each(|(strip, out)| {
            let first = strip * STRIP;
            let mut sums = [0i128; STRIP];
            for (column, r) in (0..n).zip(r) {
                let row = &self.row(1, block, sample, column)[first..first + out.len()];
                sums.iter_mut().zip(row).for_each(|(sum, q)| *sum += i128::from(*q) * i128::from(*r));
            }
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = field.of(sum));
        });
        combined
    }

    /// True if a row of the claimed sums passes the test, and the product's row is its rounding.
    fn row_passes(
        &self,
        block: usize,
        sample: usize,
        row: usize,
        fields: &[Field],
        combined: &[Vec<u64>],
        vectors: &[Vec<u64>],
    ) -> bool {
        let n = self.dims[2];
        let first = self.place(block, sample, row, 0);
        let mut sums = Vec::with_capacity(n);
        for column in 0..n {
            let place = first + column;
            let absmaxes = [self.absmax(0, block, sample, row), self.absmax(1, block, sample, column)];
            let sum = self.claimed(place, absmaxes);
            let fits = sum.unsigned_abs() <= self.bound();
            if !fits || scale_back_part(self.part, sum, absmaxes, self.digits) != self.output[place] {
                return false;
            }
            sums.push(sum);
        }
        let row = self.row(0, block, sample, row);
        fields.iter().zip(combined).zip(vectors).all(|((field, combined), r)| {
            field.dot_elements(sums.iter().map(|sum| field.of(*sum)), r) == field.dot(row, combined)
        })
    }

    fn place(&self, block: usize, sample: usize, row: usize, column: usize) -> usize {
        let [batch, m, n, _] = self.dims;
        ((block * batch + sample) * m + row) * n + column
    }

    /// The low words of a sum.
    fn low(&self, place: usize) -> u128 {
        self.words.iter().rev().fold(0, |low, word| low << 32 | u128::from(word[place]))
    }

    /// The sum that the device claims: the number with these low words that is nearest to the rounded value.
    fn claimed(&self, place: usize, absmaxes: [u32; 2]) -> i128 {
        let bits = 32 * self.words.len() as u32;
        let rounded = self.output[place];
        let all_there = self.bound() < 1 << (bits - 1) || self.part != ProductPart::Rounded;
        let centre = if all_there { 0 } else { integer(rounded, absmaxes, self.digits) };
        let above = 128 - bits;
        let off = (self.low(place).wrapping_sub(centre as u128) << above) as i128 >> above;
        centre.wrapping_add(off)
    }

    /// The first wrong element of a row, by the sums themselves.
    fn wrong_in_row(&self, block: usize, sample: usize, row: usize) -> Option<Wrong> {
        let left = self.row(0, block, sample, row);
        (0..self.dims[2]).find_map(|column| {
            let right = self.row(1, block, sample, column);
            let sum: i128 =
                left.iter().zip(right).map(|(x, y)| i128::from(i64::from(*x) * i64::from(*y))).sum();
            let element = self.place(block, sample, row, column);
            let absmaxes = [self.absmax(0, block, sample, row), self.absmax(1, block, sample, column)];
            let (found, expected) =
                (self.output[element], scale_back_part(self.part, sum, absmaxes, self.digits));
            if found != expected {
                return Some(Wrong { element, in_output: true, found, expected });
            }
            let given = self.words.iter().map(|words| words[element]);
            let right = (0..).map(|word| (sum >> (32 * word)) as u32);
            given.zip(right).find(|(found, expected)| found != expected).map(|(found, expected)| Wrong {
                element,
                in_output: false,
                found,
                expected,
            })
        })
    }
}

/// The integer nearest to a rounded product on the scale of its sum; 0 where the rounding says nothing about it.
fn integer(rounded: u32, absmaxes: [u32; 2], of_digits: [u32; 2]) -> i128 {
    let field = (rounded >> 23 & 0xff) as i32;
    let mantissa = i128::from((rounded & 0x007f_ffff) | u32::from(field != 0) << 23);
    if field == 0xff || absmaxes.into_iter().any(digits::is_marked) {
        return 0;
    }
    let bits = of_digits.map(magnitude_bits).into_iter().sum::<u32>() as i32;
    let shift = field.max(1) - 150 - (absmaxes.map(digits::exponent).into_iter().sum::<i32>() - bits);
    let size = match shift {
        0..=100 => mantissa << shift,
        // The sum has at most 24 bits, and is the rounded value itself.
        -127..=-1 => mantissa >> -shift,
        _ => 0,
    };
    if rounded & float::SIGN != 0 { -size } else { size }
}

/// A random vector of the field.
fn vector<E>(
    field: Field,
    len: usize,
    random: &mut impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<Vec<u64>, E> {
    let mut elements = Vec::with_capacity(len);
    while elements.len() < len {
        let mut bytes = vec![0; 8 * (len - elements.len())];
        random(&mut bytes)?;
        let words =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        elements.extend(words.filter_map(|word| field.drawn(word)));
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A small generator, so that a failure can be repeated.
    struct Draws(u64);

    impl Draws {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn below(&mut self, n: usize) -> usize {
            (self.next() % n as u64) as usize
        }

        fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
            bytes.chunks_mut(8).for_each(|chunk| {
                let word = self.next().to_le_bytes();
                chunk.copy_from_slice(&word[..chunk.len()]);
            });
            Ok(())
        }
    }

    /// The way in which operands are filled.
    #[derive(Clone, Copy, PartialEq)]
    enum Fill {
        Random,
        Largest,
        /// Some groups are marked, and others have exponents so far from 0 that results are infinite or subnormal.
        Extreme,
    }

    fn shown(
        dims: [usize; 4],
        block: usize,
        digits: [u32; 2],
        part: ProductPart,
        fill: Fill,
        draws: &mut Draws,
    ) -> Shown {
        let [batch, _, _, k] = dims;
        let blocks = k.div_ceil(block).max(1);
        let mut absmaxes = [0, 1].map(|side| {
            let groups = batch * dims[1 + side] * blocks;
            let mut absmax = || match (fill, draws.below(6)) {
                (Fill::Extreme, 0) => float::INFINITY,
                (Fill::Extreme, 1) => 0x7f00_0000,
                (Fill::Extreme, 2) => 0x0080_0000,
                (Fill::Extreme, 3) => 1,
                _ => 0x3f80_0000 + (draws.below(1 << 24) as u32),
            };
            (0..groups).map(|_| absmax()).collect::<Vec<u32>>()
        });
        if fill == Fill::Largest {
            absmaxes.iter_mut().for_each(|absmaxes| absmaxes.fill(0x3f7f_ffff));
        }
        let operands = [0, 1].map(|side| {
            let top = 1i64 << magnitude_bits(digits[side]);
            let rows = batch * dims[1 + side];
            let mut integers = Vec::with_capacity(rows * k);
            for row in 0..rows {
                for place in 0..k {
                    let marked = digits::is_marked(absmaxes[side][row * blocks + place / block]);
                    integers.push(match fill {
                        _ if marked => 0,
                        Fill::Largest => {
                            if (row + side) % 3 == 0 {
                                -top as i32
                            } else {
                                top as i32
                            }
                        }
                        _ => (draws.next() as i64).rem_euclid(2 * top + 1) as i32 - top as i32,
                    });
                }
            }
            integers
        });
        let count = blocks * batch * dims[1] * dims[2];
        let words = usize::from(words_needed(k.min(block), digits, part));
        let (output, words) = (vec![0; count], vec![vec![0; count]; words]);
        let mut shown = Shown { dims, block, digits, part, operands, absmaxes, output, words };
        for block in 0..blocks {
            for sample in 0..batch {
                for row in 0..dims[1] {
                    for column in 0..dims[2] {
                        let sum = exact(&shown, [block, sample, row, column]);
                        shown.claim([block, sample, row, column], sum);
                    }
                }
            }
        }
        shown
    }

    fn exact(shown: &Shown, [block, sample, row, column]: [usize; 4]) -> i128 {
        let (left, right) = (shown.row(0, block, sample, row), shown.row(1, block, sample, column));
        left.iter().zip(right).map(|(x, y)| i128::from(*x) * i128::from(*y)).sum()
    }

    impl Shown {
        /// Makes a device say that an element's sum is this one, with everything that follows from it.
        fn claim(&mut self, [block, sample, row, column]: [usize; 4], sum: i128) {
            let place = self.place(block, sample, row, column);
            let absmaxes = [self.absmax(0, block, sample, row), self.absmax(1, block, sample, column)];
            self.output[place] = scale_back_part(self.part, sum, absmaxes, self.digits);
            for (word, words) in self.words.iter_mut().enumerate() {
                words[place] = (sum >> (32 * word)) as u32;
            }
        }

        fn at(&self, draws: &mut Draws) -> [usize; 4] {
            let [batch, m, n, _] = self.dims;
            [draws.below(self.blocks()), draws.below(batch), draws.below(m), draws.below(n)]
        }

        fn tested(&self, draws: &mut Draws) -> (Option<Wrong>, Work) {
            self.test(|bytes| draws.fill(bytes)).unwrap()
        }
    }

    const PARTS: [ProductPart; 2] = [ProductPart::Rounded, ProductPart::RoundingError];

    fn each_pair(mut f: impl FnMut([u32; 2], &mut Draws)) {
        let mut draws = Draws(0x1234_5678_9abc_def1);
        for a in 1..=4 {
            for b in 1..=4 {
                f([a, b], &mut draws);
            }
        }
    }

    #[test]
    fn right_products_pass_without_a_row_computed() {
        each_pair(|digits, draws| {
            for part in PARTS {
                for (dims, block) in [([2, 5, 7, 200], 200), ([1, 3, 4, 200], 64), ([1, 1, 1, 1], 1)] {
                    for fill in [Fill::Random, Fill::Largest] {
                        let shown = shown(dims, block, digits, part, fill, draws);
                        let (wrong, work) = shown.tested(draws);
                        assert_eq!(wrong, None, "{digits:?} {part:?}");
                        assert_eq!(work, work_of(dims, block, digits), "{digits:?} {part:?}");
                    }
                }
            }
        });
    }

    #[test]
    fn marked_infinite_and_subnormal_results_pass() {
        each_pair(|digits, draws| {
            for part in PARTS {
                let shown = shown([2, 6, 9, 130], 64, digits, part, Fill::Extreme, draws);
                assert_eq!(shown.tested(draws).0, None, "{digits:?} {part:?}");
            }
        });
    }

    #[test]
    fn every_flipped_bit_of_a_result_is_found_at_its_place() {
        each_pair(|digits, draws| {
            for part in PARTS {
                for fill in [Fill::Random, Fill::Largest, Fill::Extreme] {
                    let mut shown = shown([2, 4, 5, 100], 100, digits, part, fill, draws);
                    for bit in 0..32 {
                        let place = draws.below(shown.output.len());
                        let right = shown.output[place];
                        shown.output[place] ^= 1 << bit;
                        let (wrong, _) = shown.tested(draws);
                        let found = shown.output[place];
                        let expected = Wrong { element: place, in_output: true, found, expected: right };
                        assert_eq!(wrong, Some(expected), "{digits:?} {part:?} bit {bit}");
                        shown.output[place] = right;
                    }
                }
            }
        });
    }

    /// A device that lies as a whole: the rounded value, and all words, are those of a wrong sum.
    #[test]
    fn a_wrong_sum_that_is_rounded_well_never_passes() {
        each_pair(|digits, draws| {
            for fill in [Fill::Random, Fill::Largest] {
                let mut shown = shown([1, 4, 5, 300], 300, digits, ProductPart::Rounded, fill, draws);
                for _ in 0..200 {
                    let at = shown.at(draws);
                    let sum = exact(&shown, at);
                    let primes = [Field::MERSENNE, Field::SECOND].map(|field| i128::from(field.prime()));
                    let off = match draws.below(5) {
                        0 => 1 << draws.below(60),
                        1 => -(1 << draws.below(60)),
                        2 => primes[draws.below(2)] * (1 + draws.below(9) as i128),
                        3 => i128::from(draws.next() as i64),
                        _ => 1 << 32,
                    };
                    shown.claim(at, sum + off);
                    let (wrong, _) = shown.tested(draws);
                    let wrong = wrong.unwrap_or_else(|| panic!("{digits:?}: {sum} + {off} passes"));
                    assert_eq!(wrong.element, shown.place(at[0], at[1], at[2], at[3]));
                    shown.claim(at, sum);
                }
            }
        });
    }

    /// Errors that cancel each other in a plain checksum of the row, or of the column, do not in a random one.
    #[test]
    fn errors_that_cancel_in_a_checksum_do_not_pass() {
        each_pair(|digits, draws| {
            let mut shown = shown([1, 6, 6, 300], 300, digits, ProductPart::Rounded, Fill::Random, draws);
            for _ in 0..50 {
                let [_, _, row, column] = shown.at(draws);
                let places = [
                    (row, column),
                    (row, (column + 1) % 6),
                    ((row + 1) % 6, column),
                    ((row + 1) % 6, (column + 1) % 6),
                ];
                for ((row, column), sign) in places.into_iter().zip([1, -1, -1, 1]) {
                    let sum = exact(&shown, [0, 0, row, column]);
                    shown.claim([0, 0, row, column], sum + sign * 5);
                }
                assert!(shown.tested(draws).0.is_some(), "{digits:?}");
                for (row, column) in places {
                    let sum = exact(&shown, [0, 0, row, column]);
                    shown.claim([0, 0, row, column], sum);
                }
            }
        });
    }

    #[test]
    fn a_wrong_word_beside_a_right_product_is_found() {
        each_pair(|digits, draws| {
            let mut shown = shown([1, 4, 5, 300], 300, digits, ProductPart::Rounded, Fill::Random, draws);
            for _ in 0..50 {
                let place = draws.below(shown.output.len());
                let word = draws.below(shown.words.len());
                let flip = 1 << draws.below(32);
                shown.words[word][place] ^= flip;
                let wrong = shown.tested(draws).0.expect("a wrong sum never passes");
                assert!(!wrong.in_output && wrong.element == place && wrong.found ^ wrong.expected == flip);
                shown.words[word][place] ^= flip;
            }
        });
    }

    /// The test of all products of a step of GPT-2 124M over 1024 tokens takes at most a hundredth of their multiply-adds.
    #[test]
    fn the_products_of_gpt_2_are_tested_at_a_hundredth_of_their_cost() {
        let (tokens, width, vocabulary) = (1024, 768, 50_257);
        let linear = |inputs: usize, outputs: usize| {
            // The product, and the gradients of its input and of its weights.
            [[1, tokens, outputs, inputs], [1, tokens, inputs, outputs], [1, outputs, inputs, tokens]]
        };
        let mut layer: Vec<[usize; 4]> =
            [width; 4].into_iter().flat_map(|outputs| linear(width, outputs)).collect();
        layer.extend(linear(width, 4 * width));
        layer.extend(linear(4 * width, width));
        // Scores, values, and the gradients of both.
        let (heads, each) = (12, 64);
        layer.extend([[heads, tokens, tokens, each]; 2]);
        layer.extend([[heads, tokens, each, tokens]; 4]);
        let mut all: Vec<[usize; 4]> = (0..12).flat_map(|_| layer.clone()).collect();
        all.extend(linear(width, vocabulary));
        for digits in [[3, 3], [3, 2], [2, 2], [4, 3]] {
            let works = all.iter().map(|dims| work_of(*dims, dims[3], digits));
            let (test, product) = works
                .fold((0, 0), |(test, product), work| (test + work.multiply_adds, product + work.of_product));
            println!("{digits:?}: {test} of {product}, 1/{}", product / test);
            assert!(100 * test <= product, "{digits:?}: {test} of {product}");
        }
    }
}
