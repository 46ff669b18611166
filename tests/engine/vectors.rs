//! The scalar reference and the CPU engine's building blocks against golden vectors that a script made from the
//! contract's text (`assets/vectors/contract.py`: Python integers and fractions, no code of ours).

use std::sync::Arc;

use crate::edit::edited;
use serde::Deserialize;
use tiebreak_contract::arith::digits::ProductPart;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::arith::{DType, digits, float, philox, tree};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Attributes, Operator};
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::expr::{Body, BodyWriter, Reg};
use tiebreak_contract::program::graph::{Primitive, TensorId, View, block_count};
use tiebreak_contract::program::im2col::ConvGeometry;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::Init;
use tiebreak_contract::program::operators::{ConvVersion, conv2d};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_dispute::game::message::{Answer, Answered, Asked, Question, Sealed};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::GameVerdict;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::outputs_of;
use tiebreak_engine::reference::Reference;
use tiebreak_job::identity::program_digest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::rounding::log::Log;
use tiebreak_record::rounding::{Decision, codec};

/// Shapes of x, weight and dy; stride, padding and digits; these tensors; y, dx and dw of version 1, and of version 2.
type Convolution = ([u32; 4], [u32; 4], [u32; 4], [u32; 3], [Vec<u32>; 3], [Vec<u32>; 3], [Vec<u32>; 3]);

#[derive(Deserialize)]
#[expect(clippy::type_complexity, reason = "rows as they stand in the file")]
struct Vectors {
    scalar: Vec<[u32; 8]>,
    tree: Vec<(Vec<u32>, u32)>,
    product: Vec<(Vec<u32>, Vec<u32>, u32, u32, u32, u32)>,
    convolution: Vec<Convolution>,
    philox: Vec<([u32; 2], [u32; 4], [u32; 4])>,
    init: Vec<([u32; 2], u32, u64, u32, u32)>,
    nan: Vec<(String, u32, u32)>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../assets/vectors/contract.json")).expect("the vectors are JSON")
}

#[test]
fn scalars() {
    for [a, b, sum, difference, product, quotient, root, less] in vectors().scalar {
        let have = [
            float::add(a, b),
            float::sub(a, b),
            float::mul(a, b),
            float::div(a, b),
            float::sqrt(a),
            float::lt(a, b),
        ];
        assert_eq!(have, [sum, difference, product, quotient, root, less], "{a:08x} and {b:08x}");
    }
}

#[test]
fn trees() {
    for (terms, sum) in vectors().tree {
        assert_eq!(tree::sum(terms.iter().copied()), sum, "{} terms", terms.len());
        // Padding with -0 to any length changes nothing, unless there were no terms.
        if !terms.is_empty() {
            let padding = std::iter::repeat_n(float::NEG_ZERO, 11);
            assert_eq!(tree::sum(terms.iter().copied().chain(padding)), sum);
        }
    }
}

#[test]
fn products() {
    for (a, b, digits_a, digits_b, block, want) in vectors().product {
        let step = if block == 0 { a.len().max(1) } else { block as usize };
        let parts = (0..block_count(a.len() as u32, block) as usize).map(|i| {
            let range = i * step..((i + 1) * step).min(a.len());
            let quantised = |row: &[u32], d| {
                let absmax = digits::group_absmax(row.iter().copied());
                (absmax, row.iter().map(|&x| digits::quantise(x, absmax, d)).collect::<Vec<_>>())
            };
            let (absmax_a, qa) = quantised(&a[range.clone()], digits_a);
            let (absmax_b, qb) = quantised(&b[range], digits_b);
            digits::dot(&qa, &qb, absmax_a, absmax_b, digits_a, digits_b)
        });
        let parts: Vec<u32> = parts.collect();
        let have = if parts.len() == 1 { parts[0] } else { tree::sum(parts) };
        assert_eq!(have, want, "K = {}, digits {digits_a} and {digits_b}, block {block}", a.len());
    }
}

#[test]
fn convolutions() {
    let rows = vectors().convolution.into_iter().flat_map(|(x, weight, dy, numbers, inputs, v1, v2)| {
        [(ConvVersion::V1, v1), (ConvVersion::V2, v2)]
            .map(|(version, outputs)| (version, [x, weight, dy], numbers, inputs.clone(), outputs))
    });
    for (version, [x, weight, dy], [stride, padding, digits], inputs, [y, dx, dw]) in rows {
        let mut b = Builder::new(ProductTable::uniform(digits as u8));
        let [x_id, weight_id] =
            [("x", x), ("weight", weight)].map(|(name, shape)| b.input(name, DType::F32, &shape));
        let y_id = conv2d(&mut b, x_id, weight_id, version, stride, padding).unwrap();
        assert_eq!(b.shape(y_id), dy);
        let dy_id = b.input("dy", DType::F32, &dy);
        let gradients = b.backward(y_id, dy_id);
        let wanted = [(y_id, y), (gradients[&x_id], dx), (gradients[&weight_id], dw)];
        wanted.iter().for_each(|(id, _)| b.output(format!("{id:?}"), *id));
        let graph = Arc::new(b.finish());
        let inputs = inputs.map(|words| bytes_from_words(DType::F32, &words));
        let wanted: Vec<Vec<u8>> =
            wanted.iter().map(|(_, words)| bytes_from_words(DType::F32, words)).collect();
        assert_eq!(
            outputs_of(&mut Reference, &graph, &inputs).unwrap(),
            wanted,
            "reference, {version:?}, {x:?}"
        );
        let cpu = outputs_of(&mut Cpu::new(2).unwrap(), &graph, &inputs).unwrap();
        assert_eq!(cpu, wanted, "CPU, {version:?}, {x:?}");
    }
}

#[test]
fn random_words_and_initial_weights() {
    for (key, counter, words) in vectors().philox {
        assert_eq!(philox::philox4x32_10(key, counter), words);
    }
    for (seed, parameter, element, std, weight) in vectors().init {
        let init = Init::Normal { std: f32::from_bits(std) };
        assert_eq!(
            init::element(seed, parameter, element, init),
            weight,
            "parameter {parameter}, element {element}"
        );
    }
}

/// The output of the primitive `name` for the one element `x`.
fn of_one_element(b: &mut Builder, name: &str, x: TensorId) -> TensorId {
    let view = View { tensor: x, offset: 0, dims: [1; 4], strides: [0; 4] };
    let body = |write: fn(&mut BodyWriter, Reg) -> Reg| {
        Body::new("nan.v1", |w| {
            let x = w.input(0);
            write(w, x)
        })
    };
    let scale = Primitive::Absmax { input: view.clone(), block: 0 };
    let quantise = |b: &mut Builder| {
        let absmaxes = b.node(scale.clone(), DType::U32, &[1, 1, 1]);
        let quantise = Primitive::Quantise { input: view.clone(), absmaxes, digits: 4, block: 0 };
        (b.node(quantise, DType::Q(4), &[1, 1, 1]), absmaxes)
    };
    let product = |b: &mut Builder, part| {
        let (q, absmaxes) = quantise(b);
        let product =
            Primitive::Product { a: q, absmaxes_a: absmaxes, b: q, absmaxes_b: absmaxes, block: 0, part };
        b.node(product, DType::F32, &[1])
    };
    match name {
        "copy" => b.copy(view, &[1]),
        "select" => {
            let one = body(|w, x| {
                let (one, zero) = (w.word(1), w.word(0));
                w.select(one, x, zero)
            });
            b.map(one, &[x], &[1])
        }
        "add" => b.add(x, x),
        "lt" => {
            let less = body(|w, x| w.lt(x, x));
            b.map_views(less, [1; 4], vec![view], DType::U32, &[1])
        }
        "neg" => b.map(body(BodyWriter::neg), &[x], &[1]),
        "exp" => b.map(body(BodyWriter::exp), &[x], &[1]),
        "max" => b.max_last(x),
        "tree_sum" => b.sum_last(x),
        "scale" => b.node(scale, DType::U32, &[1, 1, 1]),
        "quantise" => quantise(b).0,
        "product" => product(b, ProductPart::Rounded),
        "product_rest" => product(b, ProductPart::RoundingError),
        _ => of_one_row(b, name, x),
    }
}

/// The same for primitives that read x by way of integers, or as an image.
fn of_one_row(b: &mut Builder, name: &str, x: TensorId) -> TensorId {
    let zero = |b: &mut Builder| {
        let body = Body::new("zero.v1", |w| w.word(0));
        b.map_views(body, [1; 4], vec![], DType::U32, &[1])
    };
    match name {
        "gather" => {
            let indices = zero(b);
            let gather = Primitive::Gather {
                table: x,
                indices,
                bound: 1,
                stride_index: 1,
                stride_row: 0,
                stride_column: 1,
            };
            b.node(gather, DType::F32, &[1, 1])
        }
        "segment_sum" => {
            let classes = zero(b);
            let order = b.node(Primitive::GroupOrder { classes, bound: 1 }, DType::U32, &[1]);
            let offsets = b.node(Primitive::GroupOffsets { classes, bound: 1 }, DType::U32, &[2]);
            b.node(Primitive::SegmentSum { input: x, order, offsets }, DType::F32, &[1, 1])
        }
        "patches" => {
            let geometry = ConvGeometry::of_image([1, 1], [1, 1], 1, 0).unwrap();
            b.node(Primitive::Im2col { input: x, geometry }, DType::F32, &[1, 1])
        }
        other => panic!("the vectors name a primitive {other}"),
    }
}

#[test]
fn nan_patterns() {
    let rows = vectors().nan;
    assert_eq!(rows.len(), 60);
    for (name, word, want) in rows {
        let mut b = Builder::new(ProductTable::two_and_three());
        let shape: &[u32] = match name.as_str() {
            "patches" => &[1; 4],
            "segment_sum" | "gather" => &[1; 2],
            _ => &[1],
        };
        let x = b.input("x", DType::F32, shape);
        let id = of_one_element(&mut b, &name, x);
        let dtype = b.tensor(id).dtype;
        b.output("out", id);
        let graph = Arc::new(b.finish());
        let input = [bytes_from_words(DType::F32, &[word])];
        let wanted = vec![bytes_from_words(dtype, &[want])];
        assert_eq!(
            outputs_of(&mut Reference, &graph, &input).unwrap(),
            wanted,
            "reference, {name}, {word:x}"
        );
        assert_eq!(
            outputs_of(&mut Cpu::new(1).unwrap(), &graph, &input).unwrap(),
            wanted,
            "CPU, {name}, {word:x}"
        );
    }
}

/// A case of `assets/vectors/catalogue.json`.
#[derive(Deserialize)]
struct Case {
    operator: String,
    attributes: CaseAttributes,
    inputs: Vec<(Vec<u32>, Vec<u32>)>,
    output: Vec<u32>,
    dy: Option<Vec<u32>>,
    #[serde(default)]
    gradients: Vec<Vec<u32>>,
}

/// The fields of [`Attributes`] that a case may set.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CaseAttributes {
    kernel: u32,
    stride: u32,
    padding: u32,
    groups: u32,
    windows: [u32; 2],
    epsilon: f32,
    samples: u32,
    heads: u32,
    theta: f32,
    ignore: Option<u32>,
    window: Option<u32>,
}

/// Single operators and their gradients, by `assets/vectors/catalogue.py`.
#[test]
fn operators() {
    #[derive(Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }
    let Cases { cases } = serde_json::from_str(include_str!("../../assets/vectors/catalogue.json")).unwrap();
    let mut cpu = Cpu::new(1).unwrap();
    for (number, case) in cases.iter().enumerate() {
        let operator = Operator::by_name(&case.operator).unwrap();
        let CaseAttributes { kernel, stride, padding, groups, windows, epsilon, .. } = case.attributes;
        let CaseAttributes { samples, heads, theta, ignore, window, .. } = case.attributes;
        let others =
            Attributes { samples, heads: heads.max(1), theta, ignore, window, ..Attributes::default() };
        let attributes = Attributes { kernel, stride, padding, groups, windows, epsilon, ..others };
        let shapes: Vec<Vec<u32>> = case.inputs.iter().map(|(shape, _)| shape.clone()).collect();
        let mut check = |dy: Option<&Vec<u32>>, expected: &[Vec<u32>]| {
            let mut b = Builder::new(ProductTable::uniform(2));
            operator.append(&mut b, &shapes, &attributes, dy.is_some()).unwrap();
            let graph = Arc::new(b.finish());
            // A gradient may read none of the inputs; those that it reads come in their order.
            let words = case.inputs.iter().map(|(_, words)| words).chain(dy);
            let inputs: Vec<Vec<u8>> = words.map(|words| bytes_from_words(DType::F32, words)).collect();
            let expected: Vec<Vec<u8>> =
                expected.iter().map(|words| bytes_from_words(DType::F32, words)).collect();
            let name = format!("case {number}: {} (gradient {})", case.operator, dy.is_some());
            assert!(outputs_of(&mut Reference, &graph, &inputs).unwrap() == expected, "{name}, reference");
            assert!(outputs_of(&mut cpu, &graph, &inputs).unwrap() == expected, "{name}, CPU");
        };
        check(None, std::slice::from_ref(&case.output));
        if case.dy.is_some() {
            check(case.dy.as_ref(), &case.gradients);
        }
    }
    assert!(cases.len() > 20);
}

/// The output of assets/vectors/examples.py, made from the pages' text.
#[derive(Deserialize)]
struct Examples {
    program: Vec<[String; 2]>,
    program_digest: String,
    game: Game,
    log: LogExample,
}

#[derive(Deserialize)]
struct LogExample {
    elements: u64,
    decisions: Vec<(u64, u8, u32)>,
    bytes: Vec<[String; 2]>,
    bits: Vec<[String; 2]>,
    root: Digest,
}

#[derive(Deserialize)]
struct Game {
    terms: String,
    game: Digest,
    computation: Digest,
    question: String,
    question_digest: Digest,
    answer: String,
    statement: String,
    verdict: String,
}

fn examples() -> Examples {
    serde_json::from_str(include_str!("../../assets/vectors/examples.json")).expect("the examples are JSON")
}

/// The bytes of rows of hexadecimal digits and their meanings.
fn bytes_of_rows(rows: &[[String; 2]]) -> Vec<u8> {
    let hex: String = rows.iter().map(|[bytes, _]| bytes.as_str()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}

/// The bytes of the worked program.
fn example_program() -> Vec<u8> {
    bytes_of_rows(&examples().program)
}

#[test]
fn the_worked_log_is_one() {
    let LogExample { elements, decisions, bytes, bits, root } = examples().log;
    let decisions: Vec<Decision> =
        decisions.into_iter().map(|(place, bits, residue)| Decision { place, bits, residue }).collect();
    let log = Log::new(&[codec::encode(&decisions, elements)]);
    assert_eq!(log.bytes(), bytes_of_rows(&bytes));
    assert_eq!((log.root(), codec::decode(log.part(0), elements).unwrap()), (root, decisions));
    let page = include_str!("../../docs/ROUNDING.md");
    for [have, meaning] in bytes.iter().chain(&bits) {
        assert!(page.contains(&format!("| `{have}` | {meaning} |")), "the page has no {meaning}");
    }
    assert!(page.contains(&root.to_string()));
}

#[test]
fn the_worked_program_is_one() {
    let (bytes, page) = (example_program(), include_str!("../../docs/PROGRAMS.md"));
    let program = decode(&bytes).unwrap();
    assert_eq!(encode(&program), bytes);
    assert_eq!(program_digest(&program).to_string(), examples().program_digest);
    assert_eq!((program.parameter_count(), program.micro.nodes.len(), program.update.nodes.len()), (1, 3, 3));
    for [bytes, meaning] in examples().program {
        assert!(page.contains(format!("{bytes}  {meaning}").trim_start()), "the page has no {meaning}");
    }
}

#[test]
fn the_worked_game_is_one() {
    let game = examples().game;
    let terms = Terms::from_bytes(game.terms.as_bytes()).unwrap();
    assert_eq!(terms.game(), game.game);
    assert_eq!(terms.program.as_ref().unwrap().0, example_program());
    let (parties, referee) = terms.keys().unwrap();
    let asked = Asked::read(game.question.as_bytes(), 1024, &referee, &game.game).unwrap();
    assert_eq!((asked.turn, &asked.question), (0, &Question::Commit));
    assert_eq!(asked.digest(), game.question_digest);
    let answer = |key: &PublicKey| Sealed::<Answered>::from_bytes(game.answer.as_bytes(), 1024, key);
    assert_eq!(answer(&parties[0]).unwrap().body.question, game.question_digest);
    assert!(answer(&parties[1]).is_err());
    let Answer::Statement(statement) = serde_json::from_str(&game.statement).unwrap() else {
        panic!("a statement")
    };
    assert!(statement.is_of(&parties[0]) && !statement.is_of(&parties[1]));
    assert_eq!(statement.computation, game.computation);
    assert_eq!(serde_json::to_string(&Answer::Statement(statement)).unwrap(), game.statement);
    let verdict = GameVerdict::from_bytes(game.verdict.as_bytes()).unwrap();
    let judge = verdict.check().unwrap();
    assert_eq!(*judge.rules().run().unwrap().computation(), game.computation);
    assert_eq!(verdict.result.remaining, [0, 1]);
    assert_eq!(verdict.result.upheld, Some(Digest([0x77; 32])));
    let other = edited(&game.verdict, &[("\"at\":100", "\"at\":111")]);
    assert!(GameVerdict::from_bytes(other.as_bytes()).unwrap().check().is_err());
    // The page shows these bytes with line breaks.
    let page: String = include_str!("../../docs/DISPUTE-WIRE.md").split('\n').collect();
    let end = &game.verdict[game.verdict.find("\"result\"").unwrap()..];
    for shown in [&game.terms, &game.question, &game.answer, &game.statement, end] {
        assert!(page.contains(shown), "the page has no {shown}");
    }
    for shown in [game.game, game.computation, game.question_digest] {
        assert!(page.contains(&shown.to_string()), "the page has no {shown}");
    }
}
