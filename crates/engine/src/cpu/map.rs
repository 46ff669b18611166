//! Maps on the CPU: a body runs over blocks of elements, one instruction at a time, so that every loop is short,
//! branch-free and vectorised by the compiler.

use rayon::prelude::*;

use super::product::simd::{Path, vectorised};
use tiebreak_contract::arith::{elementary, float};
use tiebreak_contract::program::element::unravel;
use tiebreak_contract::program::expr::{Body, Instr, Reg};
use tiebreak_contract::program::graph::View;

/// Elements of a block. A register is one kilobyte, so a body's registers stay in the first-level caches.
const LANES: usize = 256;
/// The fewest elements of a task, so that small maps stay on one thread.
const TASK: usize = 16 * LANES;

type Block = [u32; LANES];

/// An input in the form that the block loop takes.
enum Input<'a> {
    /// Element i of the output reads element `offset + i`.
    Contiguous(&'a [u32]),
    /// Every element reads this word.
    Uniform(u32),
    Strided(&'a [u32], &'a View),
}

impl<'a> Input<'a> {
    fn new(words: &'a [u32], view: &'a View) -> Input<'a> {
        if view.strides == [0; 4] {
            return Input::Uniform(words[view.offset as usize]);
        }
        if view.is_contiguous() {
            Input::Contiguous(&words[view.offset as usize..])
        } else {
            Input::Strided(words, view)
        }
    }

    fn load(&self, first: usize, out: &mut [u32]) {
        match self {
            Input::Contiguous(words) => out.copy_from_slice(&words[first..first + out.len()]),
            Input::Uniform(word) => out.fill(*word),
            Input::Strided(words, view) => for_runs(view.dims, first, out.len(), |at, index, len| {
                let base = view.at(index);
                let run = &mut out[at..at + len];
                match view.strides[3] {
                    0 => run.fill(words[base]),
                    1 => run.copy_from_slice(&words[base..base + len]),
                    stride => {
                        for (x, word) in run.iter_mut().zip(words[base..].iter().step_by(stride as usize)) {
                            *x = *word;
                        }
                    }
                }
            }),
        }
    }
}

/// Splits `len` elements from the row-major element `first` into runs along the last dimension: (position in the block, index of
/// the run's first element, length).
fn for_runs(dims: [u32; 4], first: usize, len: usize, mut each: impl FnMut(usize, [u32; 4], usize)) {
    let mut at = 0;
    let mut index = unravel(first, dims);
    while at < len {
        let run = ((dims[3] - index[3]) as usize).min(len - at);
        each(at, index, run);
        at += run;
        index[3] += run as u32;
        for d in (1..4).rev() {
            if index[d] == dims[d] {
                index[d] = 0;
                index[d - 1] += 1;
            }
        }
    }
}

/// Runs `body` for every element of `dims` into `out`. `words` and `views` are the inputs.
pub(crate) fn run(body: &Body, dims: [u32; 4], words: &[&[u32]], views: &[View], out: &mut [u32]) {
    let indexed = body.code.iter().any(|instr| matches!(instr, Instr::Index(_)));
    if dims[3] == 1 && dims[2] > 1 && !indexed {
        // Runs go along the last dimension, and a dimension of length 1 gives no runs.
        let inner = |[a, b, c, _]: [u32; 4]| [1, a, b, c];
        let views: Vec<View> = views
            .iter()
            .map(|view| {
                let [a, b, c, _] = view.strides;
                View { dims: inner(view.dims), strides: [0, a, b, c], ..view.clone() }
            })
            .collect();
        return run(body, inner(dims), words, &views, out);
    }
    let inputs: Vec<Input> = words.iter().zip(views).map(|(w, v)| Input::new(w, v)).collect();
    if let [Instr::Input(0)] = body.code[..]
        && let [Input::Contiguous(words)] = &inputs[..]
    {
        out.copy_from_slice(&words[..out.len()]);
        return;
    }
    let path = Path::fastest();
    out.par_chunks_mut(TASK).enumerate().for_each(|(task, out)| {
        // Constants and uniform inputs are filled in once for the whole task.
        let mut registers = vec![[0u32; LANES]; body.code.len()];
        for (register, instr) in registers.iter_mut().zip(&body.code) {
            match instr {
                Instr::Const(word) => register.fill(*word),
                Instr::Input(k) => {
                    if let Input::Uniform(word) = inputs[*k as usize] {
                        register.fill(word);
                    }
                }
                _ => {}
            }
        }
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            run_block(path, body, dims, &inputs, task * TASK + block * LANES, &mut registers, out);
        }
    });
}

vectorised! {
    /// Runs one block through the widest vectors that the machine has.
    fn run_block(
        operator: &Body,
        dims: [u32; 4],
        inputs: &[Input<'_>],
        first: usize,
        registers: &mut [Block],
        out: &mut [u32],
    ) {
        block(operator, dims, inputs, first, registers, out);
    }
}

#[inline(always)]
fn unary(out: &mut Block, a: &Block, f: impl Fn(u32) -> u32) {
    for (x, &a) in out.iter_mut().zip(a) {
        *x = f(a);
    }
}

#[inline(always)]
fn binary(out: &mut Block, a: &Block, b: &Block, f: impl Fn(u32, u32) -> u32) {
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
}

/// The indices of the elements along a dimension.
fn indices(dims: [u32; 4], dimension: usize, first: usize, out: &mut [u32]) {
    for_runs(dims, first, out.len(), |at, index, run| {
        for (j, x) in out[at..at + run].iter_mut().enumerate() {
            *x = if dimension == 3 { index[3] + j as u32 } else { index[dimension] };
        }
    });
}

/// Calls a function that costs more than the loop, for the needed elements only.
#[inline(always)]
fn called(out: &mut [u32], a: &Block, f: fn(u32) -> u32) {
    for (x, &a) in out.iter_mut().zip(a) {
        *x = f(a);
    }
}

/// Runs every instruction over a whole block. The last result goes into `out` if `out` has all elements of a block; elements past
/// it are computed but never read.
#[inline(always)]
fn block(
    body: &Body,
    dims: [u32; 4],
    inputs: &[Input],
    first: usize,
    registers: &mut [Block],
    out: &mut [u32],
) {
    let (len, last) = (out.len(), body.code.len() - 1);
    // An input that is contiguous in the block is read in place.
    let in_place = |reg: usize| match body.code[reg] {
        Instr::Input(k) => match inputs[k as usize] {
            Input::Contiguous(words) => words[first..].first_chunk::<LANES>(),
            _ => None,
        },
        _ => None,
    };
    for (i, instr) in body.code.iter().enumerate() {
        let (done, rest) = registers.split_at_mut(i);
        let of = |reg: Reg| in_place(reg.0 as usize).unwrap_or_else(|| &done[reg.0 as usize]);
        let to = match out.first_chunk_mut() {
            Some(out) if i == last => out,
            _ => &mut rest[0],
        };
        match *instr {
            Instr::Const(word) if i == last => to.fill(word),
            Instr::Const(_) => {}
            Instr::Input(k) => match inputs[k as usize] {
                Input::Uniform(word) if i == last => to.fill(word),
                Input::Uniform(_) => {}
                _ if i < last && in_place(i).is_some() => {}
                ref input => input.load(first, &mut to[..len]),
            },
            Instr::Index(d) => indices(dims, d as usize, first, &mut to[..len]),
            Instr::FAdd(a, b) => binary(to, of(a), of(b), float::add),
            Instr::FSub(a, b) => binary(to, of(a), of(b), float::sub),
            Instr::FMul(a, b) => binary(to, of(a), of(b), float::mul),
            Instr::FDiv(a, b) => binary(to, of(a), of(b), float::div),
            Instr::FSqrt(a) => unary(to, of(a), float::sqrt),
            Instr::FNeg(a) => unary(to, of(a), float::neg),
            Instr::FExp(a) => elementary::exp_each(&of(a)[..len], &mut to[..len]),
            Instr::FLog(a) => called(&mut to[..len], of(a), elementary::log),
            Instr::FTanh(a) => elementary::tanh_each(&of(a)[..len], &mut to[..len]),
            Instr::FErf(a) => elementary::erf_each(&of(a)[..len], &mut to[..len]),
            Instr::FLt(a, b) => binary(to, of(a), of(b), float::lt),
            Instr::FFromU(a) => unary(to, of(a), float::from_u32),
            Instr::UAdd(a, b) => binary(to, of(a), of(b), u32::wrapping_add),
            Instr::UMul(a, b) => binary(to, of(a), of(b), u32::wrapping_mul),
            Instr::UAnd(a, b) => binary(to, of(a), of(b), |a, b| a & b),
            Instr::UShr(a, b) => binary(to, of(a), of(b), |a, b| a >> (b & 31)),
            Instr::ULt(a, b) => binary(to, of(a), of(b), |a, b| u32::from(a < b)),
            Instr::UEq(a, b) => binary(to, of(a), of(b), |a, b| u32::from(a == b)),
            Instr::Select(c, a, b) => {
                let (c, a, b) = (of(c), of(a), of(b));
                for i in 0..LANES {
                    to[i] = if c[i] != 0 { a[i] } else { b[i] };
                }
            }
            Instr::Philox { .. } => {
                for (lane, x) in to[..len].iter_mut().enumerate() {
                    *x = instr.eval(|r| of(r)[lane], &[], [0; 4]);
                }
            }
        }
    }
    if len < LANES {
        out.copy_from_slice(&registers[last][..len]);
    }
}
