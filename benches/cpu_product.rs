//! The CPU engine's matrix product, digitising and rounding back included, against the `gemm` crate's own binary32 product on as
//! many threads. Runs are interleaved, and the best and the median of each are shown, since other work on the machine only adds
//! time. The memory of integers and of both results is reused, as in the engine.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use tiebreak_contract::arith::digits;
use tiebreak_engine::cpu::product::{Path, StridedView, absmaxes, memory_of, product, quantise_into};

const RUNS: usize = 11;

/// (name, batch, M, N, K)
const SHAPES: [(&str, usize, usize, usize, usize); 7] = [
    ("square", 1, 1024, 1024, 1024),
    ("qkv", 1, 1024, 768, 256),
    ("mlp down", 1, 1024, 512, 2048),
    ("weight gradient", 1, 512, 2048, 1024),
    ("few rows", 1, 256, 8192, 2048),
    ("attention scores", 48, 128, 128, 64),
    ("attention values", 48, 128, 64, 128),
];

fn random(len: usize, mut state: u64) -> Vec<u32> {
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0).to_bits()
        })
        .collect()
}

/// The product of d digits; `memory` holds the integers of both sides.
fn ours(
    batch: usize,
    (m, n, k): (usize, usize, usize),
    d: u32,
    [a, b]: [&[u32]; 2],
    memory: &mut [Vec<i32>; 2],
    out: &mut [u32],
) {
    let mut sides = [(a, m), (b, n)].into_iter().zip(memory.iter_mut()).map(|((data, rows), memory)| {
        let view = StridedView::contiguous(data, batch, rows, k);
        memory.resize(memory.len().max(memory_of(view.shape(), d)), 0);
        quantise_into(std::mem::take(memory), view, absmaxes(view, 0), d, 0)
    });
    let mut sides = [(); 2].map(|()| sides.next().expect("a product has two sides"));
    product(&sides[0], &sides[1], out);
    for (memory, side) in memory.iter_mut().zip(&mut sides) {
        *memory = side.take_memory().expect("nothing else has it");
    }
}

/// c = a b^T by the library; its threads share one large product, or the batch.
fn theirs(batch: usize, (m, n, k): (usize, usize, usize), a: &[u32], b: &[u32], c: &mut [f32]) {
    let parallelism =
        if batch == 1 { gemm_common::Parallelism::Rayon(0) } else { gemm_common::Parallelism::None };
    let (a, b): (&[f32], &[f32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    let factors = a.par_chunks(m * k).zip(b.par_chunks(n * k));
    c.par_chunks_mut(m * n).zip(factors).for_each(|(c, (a, b))| {
        assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n);
        // SAFETY: the lengths are asserted and c is borrowed mutably.
        unsafe {
            let (c, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
            let (n_step, k_step) = (n as isize, k as isize);
            // The transposed product: kernels write columns.
            gemm_f32::gemm::f32::get_gemm_fn()(
                n,
                m,
                k,
                c,
                n_step,
                1,
                false,
                b,
                1,
                k_step,
                a,
                k_step,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    });
}

/// Compares a sample of the outputs with the scalar reference.
fn verify(batch: usize, (m, n, k): (usize, usize, usize), d: u32, a: &[u32], b: &[u32], out: &[u32]) {
    let row = |data: &[u32], row: usize| {
        let group = &data[row * k..][..k];
        let absmax = digits::group_absmax(group.iter().copied());
        (group.iter().map(|&x| digits::quantise(x, absmax, d)).collect::<Vec<_>>(), absmax)
    };
    for at in (0..batch * m * n).step_by(997) {
        let (batch, i, j) = (at / (m * n), at / n % m, at % n);
        let ((qa, ma), (qb, mb)) = (row(a, batch * m + i), row(b, batch * n + j));
        assert_eq!(out[at], digits::dot(&qa, &qb, ma, mb, d, d), "{d} digits at {at}");
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn main() {
    println!(
        "{} threads, {}; GMAC/s best (median); ratio = our best time / best time of gemm f32",
        rayon::current_num_threads(),
        Path::fastest().name()
    );
    for (what, batch, m, n, k) in SHAPES {
        let shape = (m, n, k);
        let (a, b) = (random(batch * m * k, 1), random(batch * n * k, 2));
        let (mut out, mut c) = (vec![0; batch * m * n], vec![0f32; batch * m * n]);
        let mut memory = [Vec::new(), Vec::new()];
        for d in 1..=4 {
            ours(batch, shape, d, [&a, &b], &mut memory, &mut out);
            verify(batch, shape, d, &a, &b, &out);
        }
        let mut times: [Vec<Duration>; 5] = Default::default();
        for _ in 0..RUNS {
            times[0].push(timed(|| theirs(batch, shape, &a, &b, &mut c)));
            for d in 1..=4 {
                times[d as usize].push(timed(|| ours(batch, shape, d, [&a, &b], &mut memory, &mut out)));
            }
        }
        println!("{what}: batch {batch}, M {m}, N {n}, K {k}");
        let macs = (batch * m * n * k) as f64 / 1e9;
        let mut library = 0.0;
        for (d, times) in times.iter_mut().enumerate() {
            times.sort_unstable();
            let (best, median) = (times[0].as_secs_f64(), times[RUNS / 2].as_secs_f64());
            if d == 0 {
                library = best;
            }
            let name = if d == 0 { "gemm f32".to_owned() } else { format!("d = {d}") };
            println!("  {name:9} {:7.1} ({:7.1})   {:5.2}", macs / best, macs / median, best / library);
        }
    }
}
