//! Long sums, maxima and scales consist of partial results. Each is an output that a verdict can be about, and none changes a bit
//! of the result.

use std::sync::Arc;

use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::arith::{DType, digits, float, tree};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Primitive, TensorType, View};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;

/// Numbers of several absmaxes, some negative.
fn words(len: usize) -> Vec<u32> {
    let word = |i: usize| philox4x32_10([i as u32, 3], [1, 2, 3, 4])[0];
    (0..len).map(|i| (word(i) & 0x807f_ffff) | (120 + i as u32 % 11) << 23).collect()
}

fn outputs(graph: &Graph, shape: &[u32], words: &[u32]) -> Vec<Vec<u32>> {
    let engines: [Box<dyn Engine>; 2] = [Box::new(Cpu::new(2).unwrap()), Box::new(Reference)];
    let ty = TensorType { dtype: DType::F32, shape: shape.to_vec() };
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let run = |mut engine: Box<dyn Engine>| {
        let input = engine.upload(&ty, &bytes).unwrap();
        let compiled = engine.compile(Arc::new(graph.clone())).unwrap();
        let outputs = engine.run(&compiled, &[input], None).unwrap();
        words_from_bytes(DType::F32, &engine.download(&outputs[0]).unwrap())
    };
    engines.into_iter().map(run).collect()
}

#[test]
fn partial_results_change_no_bit() {
    for (rows, len) in [(2usize, 4096usize), (2, 4097), (3, 12_289), (1, 20_000), (4097, 3), (1500, 130)] {
        let (shape, words) = ([rows as u32, len as u32], words(rows * len));
        let sums_of_rows = words.chunks(len).map(|row| tree::sum(row.iter().copied())).collect();
        let column = |c: usize| (0..rows).map(move |r| r * len + c);
        let sums_of_columns = (0..len).map(|c| tree::sum(column(c).map(|i| words[i]))).collect();
        let max =
            |row: &[u32]| float::from_order_key(row.iter().map(|&x| float::order_key(x)).max().unwrap());
        let maxima = words.chunks(len).map(max).collect();
        type Build = fn(
            &mut Builder,
            tiebreak_contract::program::graph::TensorId,
        ) -> tiebreak_contract::program::graph::TensorId;
        let cases: [(Build, Vec<u32>); 3] = [
            (|b, x| b.sum_last(x), sums_of_rows),
            (|b, x| b.sum_leading(x), sums_of_columns),
            (|b, x| b.max_last(x), maxima),
        ];
        for (number, (build, expected)) in cases.into_iter().enumerate() {
            let mut builder = Builder::new(ProductTable::two_and_three());
            let x = builder.input("x", DType::F32, &shape);
            let output = build(&mut builder, x);
            builder.output("out", output);
            for have in outputs(&builder.finish(), &shape, &words) {
                assert!(have == expected, "reduction {number} of {rows} x {len}");
            }
        }
    }
}

/// A product whose operands are strided in memory computes scales from partial absmaxes; a contiguous copy of the same rows needs
/// none.
#[test]
fn partial_absmaxes_change_no_bit() {
    let (k, n) = (200u32, 130u32);
    for block in [0, 64] {
        let mut table = ProductTable::two_and_three();
        table.set(ProductClass::Linear, ProductDigits { digits_a: 2, digits_b: 3, block });
        let words = words((k * n) as usize);
        let build = |copied: bool| {
            let mut b = Builder::new(table.clone());
            let x = b.input("x", DType::F32, &[k, n]);
            let across = View { tensor: x, offset: 0, dims: [1, 1, n, k], strides: [0, 0, 1, n] };
            let view = if copied {
                let rows = b.copy(across, &[n, k]);
                b.whole(rows)
            } else {
                across
            };
            let product = b.product(ProductClass::Linear, view.clone(), view, &[n, n]);
            b.output("out", product);
            b.finish()
        };
        let scales = |graph: &Graph| {
            let scale = |node: &&tiebreak_contract::program::graph::Node| {
                matches!(node.primitive, Primitive::Absmax { .. })
            };
            graph.nodes.iter().filter(scale).count()
        };
        let (split, whole) = (build(false), build(true));
        assert_eq!((scales(&split), scales(&whole)), (2, 1));
        let mut results = outputs(&split, &[k, n], &words);
        results.extend(outputs(&whole, &[k, n], &words));
        assert!(results.iter().all(|result| *result == results[0]), "block {block}");
    }
    // A group that holds infinity stays marked through a partial absmax.
    let partial = digits::group_absmax([float::ONE, float::NEG_INFINITY]);
    assert!(digits::is_marked(digits::group_absmax([partial, float::ONE])));
}
