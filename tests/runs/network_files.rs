//! Models of network files: logits of a sample are those of the built-in model of the same shape, on every engine, in batches of any
//! size.

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::inference::{Writer, settings};
use tiebreak_contract::program::network;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::AnswerClaim;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::model_digest;
use tiebreak_record::commit::receipt;
use tiebreak_run::inference::traced::row_leaves;
use tiebreak_run::predict::{Inputs, Predictor};
use tiebreak_run::run::arrays::Array;

use crate::receipt_verdicts::{Signer, job_text};

/// A network of an encoder of padded texts, which is no built-in model.
pub const ENCODER: &str = include_str!("../../assets/networks/encoder.json");

/// A network of a decoder, which is no built-in model.
pub const DECODER: &str = include_str!("../../assets/networks/decoder.json");

/// Network files, and the job's `model` and `data` of the built-in model of the same shape.
const NETWORKS: [(&str, Option<[&str; 2]>); 4] = [
    (
        include_str!("../../assets/networks/mlp.json"),
        Some(["kind = 'mlp', inputs = 7, hidden = [5], classes = 3, dropout = 0.25", "arrays"]),
    ),
    (
        include_str!("../../assets/networks/resnet.json"),
        Some([
            "kind = 'resnet', height = 6, width = 6, planes = 2, stages = [3, 5], blocks = 1, classes = 4, norm = 'batch', \
             order = 'post', convolution = 2",
            "arrays",
        ]),
    ),
    (
        include_str!("../../assets/networks/gpt.json"),
        Some([
            "kind = 'gpt', vocabulary = 19, context = 5, layers = 2, heads = 2, width = 8, dropout = 0.1",
            "bytes",
        ]),
    ),
    (ENCODER, None),
];

const SAMPLES: u32 = 7;

fn built_in([model, data]: [&str; 2]) -> Job {
    let data = match data {
        "arrays" => "kind = 'arrays', inputs = 'inputs.npy', labels = 'labels.npy', dtype = 'u8'",
        _ => "kind = 'bytes', path = 'text.txt'",
    };
    let text = format!(
        "steps = 1\nmodel = {{ {model} }}\ndata = {{ {data} }}\nbatch = {{ micro_batch = 2 }}\n\
         optimizer = {{ kind = 'sgd', momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 0.1 }}\n"
    );
    Job::parse("job.toml", &text).unwrap()
}

fn word(key: u32, index: u32) -> u32 {
    philox4x32_10([key, 0], [index, 0, 0, 0])[0]
}

/// Values of parameters and buffers: numbers from 0 to 1, less 1/2 in a parameter.
fn values(table: &[StateTensor]) -> Vec<Vec<u8>> {
    let tensor = |(number, t): (u32, &StateTensor)| {
        let less = if t.name.starts_with("buffer/") { 0.0 } else { 0.5 };
        let value = |i| ((f64::from(word(number, i)) / f64::from(u32::MAX) - less) as f32).to_bits();
        bytes_of(&(0..t.ty().len() as u32).map(value).collect::<Vec<u32>>())
    };
    (0..).zip(table).map(tensor).collect()
}

fn inputs(model: &dyn Evaluable) -> Inputs {
    let wanted = &model.network().batch(1)[0];
    let words = (0..SAMPLES * wanted.ty().len() as u32).map(|i| word(99, i) % wanted.below);
    let of_sample = if wanted.shape.len() == 1 { &wanted.shape[..] } else { &wanted.shape[1..] };
    let ty = TensorType { dtype: DType::U32, shape: [&[SAMPLES][..], of_sample].concat() };
    let array = Array { name: String::new(), ty, bytes: bytes_of(&words.collect::<Vec<u32>>()) };
    Inputs::of_array(array, wanted).unwrap()
}

/// The logits of all samples.
fn logits(
    engine: &mut dyn Engine,
    model: &dyn Evaluable,
    (table, values): (&[StateTensor], &[Vec<u8>]),
    batch: u32,
) -> Vec<Vec<u32>> {
    let tensors = table.iter().zip(values).map(|(t, bytes)| engine.upload(&t.ty(), bytes));
    let released: Vec<_> = tensors.map(Result::unwrap).collect();
    let predictor = Predictor::new(engine, model, batch).unwrap();
    let (numbers, mut found) = ((0..u64::from(SAMPLES)).collect::<Vec<_>>(), Vec::new());
    let none = predictor.run(engine, &released, &mut inputs(model), &numbers, |computed| {
        found.push(computed.logits);
        None::<()>
    });
    assert!(none.unwrap().is_none());
    found
}

#[test]
fn logits_of_a_network_are_those_of_the_built_in_model_in_every_batch() {
    for (text, twin) in NETWORKS {
        let (program, model) = network::model(text).unwrap();
        let mut table = program.state();
        table.truncate(program.released());
        let values = values(&table);
        let state = (&table[..], &values[..]);
        let expected = logits(&mut Reference, &model, state, 1);
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]), "all samples have the same logits");
        if let Some(twin) = twin {
            let job = built_in(twin);
            let twin = job.model().unwrap();
            let parameters: Vec<String> =
                twin.model.parameters().iter().map(|p| format!("param/{}", p.name)).collect();
            let own: Vec<&str> = table.iter().map(|t| &*t.name).filter(|n| n.starts_with("param/")).collect();
            assert_eq!(own, parameters);
            assert_eq!(logits(&mut Reference, twin, state, 2), expected, "{}", twin.settings()[0].0);
        }
        for batch in [1, 2, 5] {
            assert_eq!(logits(&mut Reference, &model, state, batch), expected, "batches of {batch}");
            for threads in [1, 3] {
                let mut cpu = Cpu::new(threads).unwrap();
                assert_eq!(logits(&mut cpu, &model, state, batch), expected, "batches of {batch}");
            }
        }
    }
}

/// The digest by which receipts name the model of a network, as a script makes it from the page.
#[test]
fn receipts_name_a_network_by_what_acts_in_an_evaluation() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../assets/vectors/predictions.json")).unwrap();
    let (_, model) = network::model(ENCODER).unwrap();
    assert_eq!(model_digest(&model.settings()).to_string(), golden["network"].as_str().unwrap());
}

/// The same of a network that answers.
#[test]
fn receipts_of_answers_name_a_network_by_what_acts_in_an_evaluation() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../assets/vectors/predictions.json")).unwrap();
    let (_, model) = network::model(DECODER).unwrap();
    let digest = receipt::model_digest(&settings(Writer::Network(&model)).unwrap());
    assert_eq!(digest.to_string(), golden["answering"].as_str().unwrap());
}

/// An array for a network that has several rows in a sample has all rows of each.
#[test]
fn arrays_have_all_rows_of_a_sample() {
    let text = r#"{"format": "tiebreak network 1", "micro_batch": 2, "inputs": {"name": "values", "shape": [6, 2]},
        "labels": {"shape": [6], "below": 2}, "parameters": [{"name": "w", "shape": [2, 2]}],
        "nodes": [{"name": "out", "operator": "matmul", "inputs": ["inputs", "w"]}],
        "optimizer": {"kind": "sgd", "momentum": 0}}"#;
    let (_, model) = network::model(text).unwrap();
    let wanted = &model.network().batch(1)[0];
    let of = |shape: &[u32]| {
        let ty = TensorType { dtype: DType::F32, shape: shape.to_vec() };
        let bytes = vec![0; ty.bytes()];
        Inputs::of_array(Array { name: String::new(), ty, bytes }, wanted).map(|inputs| inputs.count())
    };
    assert_eq!(of(&[4, 3, 2]), Ok(4));
    for shape in [&[4, 2][..], &[12, 2], &[4, 6]] {
        assert!(of(shape).unwrap_err().contains("the model takes F32 [samples, 3, 2]"));
    }
}

/// A network file's text takes the place of a job's in the verdicts on its answers.
#[test]
fn answers_of_a_network_file_convict_by_the_file() {
    let signer = Signer::of(DECODER.into(), Vec::new());
    let (honest, trace) = signer.honest();
    let mut lie = honest.clone();
    *lie.answer.last_mut().unwrap() ^= 1;
    lie.root = merkle::root(&row_leaves(&lie, &trace.rows));
    signer.convicts(&signer.accused(&lie, Some(&trace)).unwrap(), "token 13 of the answer is");
    let mut changed = trace.clone();
    changed.rows[6] = Digest([9; 32]);
    let lie = signer.committed(&honest, &changed);
    let verdict = signer.accused(&lie, Some(&changed)).unwrap();
    signer.convicts(&verdict, "the row of token 6 is not");
    // Another network, a network that writes no text, and a job.
    for (text, why) in [
        (DECODER.replace("\"theta\": 100", "\"theta\": 50"), "its network file has the model"),
        (DECODER.replace("\"key0\"", "\"key\""), "its network file: node key: two tensors"),
        (ENCODER.into(), "its network file writes no text: node "),
        (job_text(2), "its job has the model"),
    ] {
        let mut other = verdict.clone();
        let AnswerClaim::Row(claim) = &mut other.claim else { panic!("{:?}", other.claim.kind()) };
        claim.job = text;
        let found = signer.ruling(&other).unwrap_err();
        assert!(found.contains(why), "{why}: {found}");
    }
}
