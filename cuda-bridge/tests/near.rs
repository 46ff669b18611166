//! The search for near ties on the device, by the host's compiler: norms of any view equal the host's own, and so do the
//! decisions of random and adversarial results. The rounded values equal those of the contract's rounding. NVRTC compiles the
//! search for the architectures that run it.

mod common;

use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::near::{ELEMENTS, ROWS, near_ties, round_near_ties, row_norms};
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::program::graph::{TensorId, View};
use tiebreak_contract::program::logged::round_body;
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::near_tie::{NearTie, Product, Side, Tolerance};
use tiebreak_record::rounding::search::NearTieCandidate;
use tiebreak_run::observers::near_ties::Search as _;
use tiebreak_run::observers::norms;

const CHECKS: Checks = Checks { undefined: true };

/// A value of about the size 2^-spread to 1, of either sign.
fn value(i: u32, spread: u32) -> u32 {
    let (r, s) = (common::word(2 * i + 77), common::word(i ^ 0x5555_0000));
    (r & 0x807f_ffff) | (127 - s % spread.max(1)) << 23
}

#[test]
fn norms_are_the_hosts() {
    let words: Vec<u32> = (0..40_000).map(|i| value(i, 1 + i / 3000)).collect();
    let view = |dims, strides, offset| View { tensor: TensorId(0), offset, dims, strides };
    for view in [
        view([1, 1, 37, 100], [0, 0, 100, 1], 3),
        view([1, 1, 37, 100], [0, 0, 1, 37], 0),
        view([2, 3, 9, 17], [459, 17, 51, 1], 7),
        view([2, 3, 9, 17], [459, 153, 1, 9], 7),
        view([3, 1, 5, 16], [0, 0, 32, 2], 1),
        view([1, 1, 2, 15], [0, 0, 15, 1], 0),
        view([1, 1, 300, 1], [0, 0, 1, 1], 0),
        view([1, 1, 300, 130], [0, 0, 130, 1], 0),
    ] {
        let [b0, b1, rows, k] = view.dims;
        let all = b0 * b1 * rows;
        let mut p = vec![b1, rows, k, view.offset];
        p.extend(view.strides);
        p.extend([all, 4, 1]);
        let mut sides = vec![0xffff_ffff; 4 + all as usize];
        let mut buffers = [Buffer::Read(&p), Buffer::Read(&words), Buffer::Write(&mut sides)];
        common::execute(&row_norms(), CHECKS, [all.div_ceil(ROWS), 1, 1], &mut buffers);
        assert_eq!(sides[0], 0, "the count begins at zero");
        let expected: Vec<u32> = norms::row_norms(&view, &words).iter().map(|norm| norm.to_bits()).collect();
        assert_eq!(sides[4..], expected, "{view:?}");
    }
}

/// The kernel's findings in a product's results with this much room: their number, and those that fitted.
fn search(product: &Product, results: &[u32], places: u32) -> (u32, Vec<NearTieCandidate>) {
    let [batch, m, n, k] = product.dims.map(|dim| dim as u32);
    let elements = batch * m * n;
    let floored = product.rule.floor != 0;
    let p = [
        elements,
        m,
        n,
        product.rule.bits.into(),
        floored.into(),
        product.rule.floor_offset(k) as u32,
        product.rule.floor_min() as u32,
        product.tolerance.norms.to_bits(),
        product.tolerance.relative(product.rule).to_bits(),
        u32::from(results.len() as u32 == 2 * elements),
        4,
        4 + batch * m,
        places,
    ];
    let norms = product.a.norms.iter().chain(&product.b.norms).map(|norm| norm.to_bits());
    let sides: Vec<u32> = [0; 4].into_iter().chain(norms).collect();
    let groups = [elements.div_ceil(ELEMENTS), 1, 1];
    let before = [
        p.to_vec(),
        results.to_vec(),
        product.a.absmaxes.clone(),
        product.b.absmaxes.clone(),
        sides,
        vec![0; 3 * places as usize],
        vec![0x5a5a_5a5a; elements as usize],
    ];
    let candidates = |count: u32, found: &[u32]| {
        let candidate = |c: &[u32]| NearTieCandidate { place: c[0], high: c[1], rounding_error: c[2] };
        let mut all: Vec<NearTieCandidate> =
            found.chunks_exact(3).take(count.min(places) as usize).map(candidate).collect();
        all.sort();
        all
    };
    let on_grid = rounded(product, results);
    let both = [near_ties(), round_near_ties()].map(|kernel| {
        let buffers = kernel.parameters.len();
        let all = common::everywhere(&kernel, CHECKS, groups, &before[..buffers]);
        let rounds = buffers == before.len();
        let mut seen: Option<(u32, Vec<_>)> = None;
        for (place, after) in all {
            assert!(!rounds || after[6] == on_grid, "{:?}: other values on {place}", product.rule);
            let count = after[4][0];
            let found = candidates(count, &after[5]);
            // A GPU finds the same in an order of its own, and the same number where it has no room for all.
            let (first, same) = seen.get_or_insert_with(|| (count, found.clone()));
            assert_eq!(count, *first, "on {place}");
            assert!(count > places || found == *same, "other candidates on {place}");
        }
        seen.expect("it ran somewhere")
    });
    let [searched, rounded] = both;
    // With too little room, the findings that a GPU keeps are unspecified.
    let same = searched.0 > places || searched.1 == rounded.1;
    assert!(searched.0 == rounded.0 && same, "the search that rounds finds something else");
    searched
}

/// The results of a product after the contract's rounding.
fn rounded(product: &Product, results: &[u32]) -> Vec<u32> {
    let [batch, m, n, k] = product.dims;
    let (rule, body) = (product.rule, round_body(product.rule, k as u32));
    let value = |place: usize| {
        let (row, column) = (place / n, place / (m * n) * n + place % n);
        let x = results[place];
        let inputs = match rule.bits {
            _ if rule.floor != 0 => vec![x, product.a.absmaxes[row], product.b.absmaxes[column]],
            17..32 => vec![x, results[batch * m * n + place]],
            _ => vec![x],
        };
        body.eval(&inputs, [0; 4])
    };
    (0..batch * m * n).map(value).collect()
}

fn facts(ties: &[NearTie]) -> Vec<(usize, u64, i64, u64, Option<Decision>)> {
    let fact = |tie: &NearTie| {
        let decision = tie.decision(tie.rounded);
        (tie.place, tie.value.to_bits(), tie.rounded, tie.tolerance.to_bits(), decision)
    };
    ties.iter().map(fact).collect()
}

#[test]
fn decisions_are_the_hosts() {
    let dims = [3usize, 41, 67, 96];
    let [batch, m, n, _] = dims;
    let elements = batch * m * n;
    let side = |rows: usize, seed: u32| {
        let scale = |i: usize| common::word(i as u32 + seed) % 24;
        Side {
            absmaxes: (0..rows).map(|i| value(i as u32 + seed, scale(i)) & 0x7fff_ffff).collect(),
            norms: (0..rows).map(|i| 2f32.powi(3 - scale(i) as i32) * 1.37).collect(),
        }
    };
    let (a, b) = (side(batch * m, 100), side(batch * n, 9000));
    let mut seen = 0;
    for (bits, floor) in [(16, 0), (16, 14), (16, 4), (26, 0), (28, 0), (30, 0), (32, 0)] {
        let rule = GridRule { bits, floor };
        let tight = if bits == 16 { 2f32.powi(-19) } else { 2f32.powi(-48) };
        let relative = if bits == 16 { 2f32.powi(-20) } else { 2f32.powi(-44) };
        for (norms, steps) in [(tight, 0.0), (64.0 * tight, 0.0), (0.0, 0.25 - 2f32.powi(-24)), (0.0, 0.01)] {
            if bits == 16 && steps != 0.0 {
                continue;
            }
            let value_part = if steps == 0.0 { relative } else { 0.0 };
            let tolerance = Tolerance { norms, value: value_part, steps };
            let product = Product { dims, rule, a: &a, b: &b, tolerance };
            // A third of the results is random, a third is near a value of its grid, a third near a boundary (by about a tolerance).
            let result = |i: usize| -> f64 {
                let any = f64::from(f32::from_bits(value(i as u32, 40)));
                let extreme = f64::from(f32::from_bits(common::word(i as u32) & 0xbfff_ffff));
                let x = if i.is_multiple_of(29) { extreme } else { any };
                let (grid, t) = (product.grid(i), product.tolerance(i, x));
                let index = grid.index(x);
                let [here, next] = [index, index + 1].map(|index| grid.value(index));
                let off = t * (f64::from(common::word(i as u32 + 5) % 4001) / 2000.0 - 1.0) * 1.5;
                match i % 3 {
                    0 => x,
                    1 => here + off,
                    _ => 0.5 * (here + next) + off,
                }
            };
            let results: Vec<f64> =
                (0..elements).map(result).map(|x| if x.is_finite() { x } else { 0.0 }).collect();
            let mut words: Vec<u32> = results.iter().map(|&x| (x as f32).to_bits()).collect();
            if rule.is_wide() {
                let rest = |&x: &f64| ((x - f64::from(x as f32)) as f32).to_bits();
                words.extend(results.iter().map(rest));
            }
            let expected = product.near_ties(&words).unwrap();
            let (count, found) = search(&product, &words, elements as u32);
            assert_eq!(count as usize, found.len());
            assert!(count as usize >= expected.len());
            let have = product.fold_among(found.clone(), Vec::new, |all, tie, _| all.push(tie)).unwrap();
            assert_eq!(facts(&have.concat()), facts(&expected), "{rule:?} {tolerance:?}");
            let decisions = product.decisions_among(found).unwrap();
            assert_eq!(decisions, product.decisions(&words).unwrap(), "{rule:?} {tolerance:?}");
            seen += expected.len();

            // Without room for all findings the count still tells their number, and nothing is written behind the room.
            let (short, found) = search(&product, &words, 5);
            assert_eq!((short, found.len()), (count, 5.min(count as usize)));

            // A value that is not finite is found, and refused as the host does. Zeros have no sign on a grid.
            words[1] = 0x8000_0000;
            words[elements / 2] = 0x7f80_0000;
            words[elements / 2 + 1] = 0xffff_ffff;
            let (_, found) = search(&product, &words, elements as u32);
            let refused = product.decisions_among(found).err();
            assert_eq!(refused, Some(elements / 2));
            assert_eq!(refused, product.near_ties(&words).err());
        }
    }
    assert!(seen > 50_000, "{seen} near ties were seen");
}

#[test]
fn nvrtc_compiles_it() {
    let Some(nvrtc) = common::nvrtc() else { return };
    for kernel in [row_norms(), near_ties(), round_near_ties()] {
        for architecture in ["sm_80", "sm_89", "sm_90a"] {
            let cubin = nvrtc
                .compile(&kernel.name, &kernel.source, architecture)
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(!cubin.is_empty(), "{} for {architecture}", kernel.name);
        }
    }
}
