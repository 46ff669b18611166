//! Digitising by hand, run on the host: absmaxes and digits of rows and columns equal the scalar reference's, for every number of
//! digits, every kind of binary32, blocks, batches, tails and padding. NVRTC compiles every kernel, without spills.

mod common;

use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::quantise::{Launch, QuantiseOperand, all};
use tiebreak_contract::arith::digits;

const CHECKS: Checks = Checks { undefined: true };

/// The number of kinds of rows.
const KINDS: u32 = 9;

/// An element of row `row`: rows take the kinds by turns.
fn element(row: u32, place: u32) -> u32 {
    let r = common::word(row.wrapping_mul(7919).wrapping_add(place));
    let s = common::word(place ^ row << 16 ^ 0x0055_5000);
    let about = |field: u32, spread: u32| (r & 0x807f_ffff) | (field - s % spread) << 23;
    match row % KINDS {
        // Numbers of about one size, some of them far away; the same near both ends of the range.
        0 => about(127, 8),
        1 => about(130, 100),
        2 => about(254, 60),
        3 => about(60, 60),
        // Subnormal numbers, zeros of either sign, and a group of only subnormal and least numbers.
        4 => r & 0x807f_ffff,
        5 => (s & 1) << 31,
        6 => (r & 0x8000_0003) | u32::from(s.is_multiple_of(3)) << 31,
        // Halves of units, which round to the even neighbour, and the bound of q.
        7 => ((s % 511) as f32 * 0.5 - 127.5).to_bits() | u32::from(s.is_multiple_of(7)) << 31,
        // Some infinities and NaNs: only the groups that hold one are marked.
        _ if s.is_multiple_of(97) => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffff_ffff][(r % 4) as usize],
        _ => about(127, 20),
    }
}

/// A case: an operand in memory of its own.
struct Case {
    operand: QuantiseOperand,
    words: Vec<u32>,
}

impl Case {
    /// Puts the operand's elements in their places, and NaNs in all others.
    fn new(dims: [u32; 4], strides: [u32; 4], offset: u32, block: u32) -> Case {
        let operand = QuantiseOperand { dims, strides, offset, block };
        let mut case = Case { operand, words: Vec::new() };
        let last: u32 = offset + dims.iter().zip(strides).map(|(d, s)| (d - 1) * s).sum::<u32>();
        case.words = vec![0x7fff_ffff; last as usize + 1];
        for row in 0..case.rows() {
            for place in 0..dims[3] {
                let at = case.at(row, place);
                case.words[at] = element(row, place);
            }
        }
        case
    }

    /// Rows that lie one after the other, `gap` words apart, from `offset` on.
    fn rows_of(rows: u32, k: u32, block: u32, gap: u32, offset: u32) -> Case {
        Case::new([1, 1, rows, k], [0, 0, k + gap, 1], offset, block)
    }

    fn columns_of(rows: u32, k: u32, block: u32, gap: u32) -> Case {
        Case::new([1, 1, rows, k], [0, 0, 1, rows + gap], 0, block)
    }

    fn rows(&self) -> u32 {
        let [first, second, rows, _] = self.operand.dims;
        first * second * rows
    }

    fn at(&self, row: u32, place: u32) -> usize {
        let QuantiseOperand { dims, strides, offset, .. } = self.operand;
        let (sample, row) = (row / dims[2], row % dims[2]);
        let index = [sample / dims[1], sample % dims[1], row, place];
        (offset + index.iter().zip(strides).map(|(i, s)| i * s).sum::<u32>()) as usize
    }

    fn step(&self) -> u32 {
        if self.operand.block == 0 { self.operand.dims[3] } else { self.operand.block }
    }

    /// The contract's absmaxes, [row][block].
    fn absmaxes(&self) -> Vec<u32> {
        let k = self.operand.dims[3];
        let group = |row, first: u32| {
            let places = first..(first + self.step()).min(k);
            digits::group_absmax(places.map(|place| self.words[self.at(row, place)]))
        };
        let firsts = || (0..k).step_by(self.step() as usize);
        (0..self.rows()).flat_map(|row| firsts().map(move |first| group(row, first))).collect()
    }

    /// The contract's digits in the kernels' layout.
    fn planes(&self, absmaxes: &[u32], count: u32) -> Vec<u32> {
        let k = self.operand.dims[3];
        let (width, blocks) = (k.next_multiple_of(16), k.div_ceil(self.step()));
        let mut planes = vec![0u8; (count * self.rows() * width) as usize];
        for row in 0..self.rows() {
            for place in 0..k {
                let absmax = absmaxes[(row * blocks + place / self.step()) as usize];
                let q = digits::quantise(self.words[self.at(row, place)], absmax, count);
                for (d, digit) in (0..count).zip(digits::balanced_digits(q, count)) {
                    planes[((d * self.rows() + row) * width + place) as usize] = digit as u8;
                }
            }
        }
        planes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// Every kernel for the operand, against the contract.
    fn check(&self) {
        let absmaxes = self.absmaxes();
        let fresh = |len: usize| vec![0x5a5a_5a5a; len];
        let run = |launch: &Launch, buffers: &mut [Buffer]| {
            let mut all = vec![Buffer::Read(&launch.words)];
            all.extend(buffers.iter_mut().map(|buffer| match buffer {
                Buffer::Read(words) => Buffer::Read(words),
                Buffer::Write(words) => Buffer::Write(words),
            }));
            common::execute(&launch.kernel, CHECKS, launch.groups, &mut all);
        };
        let rows = self.operand.strides[3] == 1;
        let scale = self.operand.scale();
        assert_eq!(scale.is_none(), rows, "columns have a kernel for absmaxes of their own");
        if let Some(launch) = scale {
            let mut have = fresh(absmaxes.len());
            run(&launch, &mut [Buffer::Read(&self.words), Buffer::Write(&mut have)]);
            assert_eq!(have, absmaxes, "absmaxes of {:?}", self.operand);
        }
        for count in 1..=4 {
            let planes = self.planes(&absmaxes, count);
            let launch = self.operand.quantise(count).unwrap();
            let mut have = fresh(planes.len());
            let mut buffers = [Buffer::Read(&self.words), Buffer::Read(&absmaxes), Buffer::Write(&mut have)];
            run(&launch, &mut buffers);
            assert!(have == planes, "{count} digits of {:?} by {}", self.operand, launch.kernel.name);

            let both = self.operand.scale_and_quantise(count);
            assert_eq!(both.is_some(), rows, "rows have a kernel for both");
            if let Some(launch) = both {
                let (mut found, mut have) = (fresh(absmaxes.len()), fresh(planes.len()));
                let mut buffers =
                    [Buffer::Read(&self.words), Buffer::Write(&mut found), Buffer::Write(&mut have)];
                run(&launch, &mut buffers);
                assert_eq!(found, absmaxes, "absmaxes of {:?}", self.operand);
                assert!(have == planes, "{count} digits of {:?} by {}", self.operand, launch.kernel.name);
            }
        }
    }
}

/// Rows about the edges of words, padding, teams and what a team holds, aligned or not.
#[test]
fn rows() {
    for k in [1u32, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 260] {
        for (gap, offset) in [(0, 0), (1, 3), (k.next_multiple_of(4) - k, 4)] {
            Case::rows_of(19, k, 0, gap, offset).check();
        }
    }
    // A row for each team; the longest row does not fit its team.
    for k in [511u32, 768, 1024, 1025, 2047, 3072, 5000, 8192, 16_384, 16_385, 16_400, 20_003] {
        Case::rows_of(KINDS, k, 0, k % 3, 0).check();
    }
}

/// Scale groups within rows: each has its own absmax and may be marked alone, and the last one is shorter and padded.
#[test]
fn blocks_of_rows() {
    for (k, block) in [(64, 64), (65, 64), (200, 64), (255, 128), (300, 64), (1000, 512), (4097, 1024)] {
        Case::rows_of(11, k, block, 0, 0).check();
        Case::rows_of(10, k, block, 2, 1).check();
    }
}

#[test]
fn columns() {
    for (rows, k) in [(1, 2), (2, 1), (31, 15), (32, 16), (33, 17), (64, 127), (40, 128), (7, 129), (70, 300)]
    {
        Case::columns_of(rows, k, 0, 1).check();
    }
    for (k, block) in [(64, 64), (100, 32), (300, 64), (513, 32), (1000, 128), (31, 32)] {
        Case::columns_of(41, k, block, 3).check();
    }
}

/// Heads of attention: samples at two strides, rows that are far apart, columns with a stride of their own.
#[test]
fn batches() {
    // [batch, heads, positions, channels] of [batch, positions, 3, heads, channels], and its columns.
    let (batch, heads, positions, channels) = (2, 3, 37, 20);
    let position = 3 * heads * channels;
    for part in 0..3 {
        let (of_batch, offset) = (positions * position, part * heads * channels);
        let strides = [of_batch, channels, position, 1];
        Case::new([batch, heads, positions, channels], strides, offset, 0).check();
        let strides = [of_batch, channels, 1, position];
        Case::new([batch, heads, channels, positions], strides, offset, 0).check();
        Case::new([batch, heads, channels, positions], strides, offset, 32).check();
    }
}

/// The shaders handle views that no kernel supports.
#[test]
fn other_views_have_no_kernel() {
    let of = |dims, strides, block| QuantiseOperand { dims, strides, offset: 0, block };
    let none = |operand: QuantiseOperand| {
        operand.scale().is_none() && operand.quantise(2).is_none() && operand.scale_and_quantise(2).is_none()
    };
    assert!(none(of([1, 1, 5, 6], [0, 0, 12, 2], 0)), "neither rows nor columns are contiguous");
    assert!(none(of([1, 1, 0, 6], [0, 0, 6, 1], 0)) && none(of([2, 1, 6, 0], [0, 0, 1, 6], 0)), "nothing");
    assert!(none(of([1, 1, 5, 60], [0, 0, 60, 1], 24)), "blocks of half words of digits");
    assert!(none(of([300, 300, 1, 2], [2, 2, 1, 9], 0)), "more samples than blocks along a dimension");
}

#[test]
fn every_kernel_compiles_to_machine_code() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let kernels = all();
    // The absmaxes of columns; for each number of digits seven teams twice, and columns.
    assert_eq!(kernels.len(), 1 + 4 * (2 * 7 + 1));
    for kernel in &kernels {
        // For the other architectures two digits stand for all.
        let others = if kernel.name.contains("_2") || kernel.name == "scale_columns" { 2 } else { 0 };
        for architecture in ["sm_90a", "sm_80", "sm_89"].iter().take(1 + others) {
            let usage = common::ptxas::usage(&nvrtc, kernel, architecture);
            eprintln!("{}, {architecture}: {usage:?}", kernel.name);
            assert_eq!((usage.spilled, usage.stack), (0, 0), "{}, {architecture}", kernel.name);
            // Four blocks of 256 threads an SM.
            assert!(usage.registers <= 64, "{}, {architecture}: {usage:?}", kernel.name);
        }
    }
}
