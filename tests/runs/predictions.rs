//! Predictions in this process: receipts that a script made from the page alone, their mutations, and bits that depend on model and
//! sample alone.

use std::fs;
use std::path::{Path, PathBuf};

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_run::predict::{Computed, Difference, Inputs, Mismatch, Predictor};
use tiebreak_run::run::arrays::Array;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

use crate::common::{batch_norm_job, gpt_job, trained};

/// The perceptron of `assets/vectors/predictions.py`, and its data, whose samples from number 2 on are those of the receipts.
struct Perceptron {
    job: Job,
    table: Vec<StateTensor>,
    bytes: Vec<Vec<u8>>,
    samples: Vec<Vec<u32>>,
    receipts: [String; 2],
}

impl Perceptron {
    fn new() -> Perceptron {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../assets/vectors/predictions.json")).unwrap();
        let job = r#"steps = 1
            model = { kind = "mlp", inputs = 6, hidden = [5], classes = 4, dropout = 0.5, image_mean = [0.5], image_std = [0.25] }
            data = { kind = "idx", images = "images", labels = "labels" }
            optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
            schedule = { peak = 0.1 }
            batch = { micro_batch = 4 }"#;
        let job = Job::parse("job", job).unwrap();
        let parameters = (0..).zip(job.model().unwrap().model.parameters()).map(|(number, p)| {
            let value = |i: u32| {
                let word = philox4x32_10([5, 0], [i, 0, number, 0])[0];
                ((f64::from(word) / f64::from(1 << 30) - 2.0) as f32).to_bits()
            };
            let words: Vec<u32> = (0..p.shape.iter().product()).map(value).collect();
            (StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() }, bytes_of(&words))
        });
        let (table, bytes) = parameters.unzip();
        let rows: Vec<Vec<u32>> = serde_json::from_value(golden["samples"].clone()).unwrap();
        let samples = [vec![vec![9; 6]; 2], rows, vec![vec![8; 6]]].concat();
        let receipts = ["receipt", "signed"].map(|name| golden[name].as_str().unwrap().to_string());
        Perceptron { job, table, bytes, samples, receipts }
    }

    fn inputs(&self) -> Inputs {
        let ty = TensorType { dtype: DType::U32, shape: vec![self.samples.len() as u32, 6] };
        let array = Array { name: String::new(), ty, bytes: bytes_of(&self.samples.concat()) };
        Inputs::of_array(array, &self.job.model().unwrap().model.batch(1)[0]).unwrap()
    }

    /// The first difference of samples of a receipt.
    fn difference(&self, engine: &mut dyn Engine, receipt: &Predictions, batch: u32) -> Option<Difference> {
        let tensors = self.table.iter().zip(&self.bytes).map(|(t, bytes)| engine.upload(&t.ty(), bytes));
        let released: Vec<_> = tensors.map(Result::unwrap).collect();
        let predictor = Predictor::new(engine, self.job.model().unwrap(), batch).unwrap();
        let places: Vec<u64> = (0..receipt.samples.len() as u64).collect();
        let mut inputs = self.inputs();
        predictor.difference(engine, &released, &mut inputs, (receipt, &places), &mut |_| {}).unwrap()
    }

    fn identity(&self, batch: u32) -> tiebreak_record::commit::predictions::PredictingModel {
        let model = self.job.model().unwrap();
        Predictor::new(&mut Reference, model, batch).unwrap().identity(model, &self.table, &self.bytes)
    }
}

#[test]
fn a_receipt_made_from_the_page_matches() {
    let perceptron = Perceptron::new();
    let [plain, signed] = perceptron.receipts.each_ref().map(|text| Predictions::from_text(text).unwrap());
    assert!(plain.1.is_none() && plain.0 == signed.0);
    assert_eq!(signed.1.unwrap().name(), "classifier.example");
    let receipt = plain.0;
    assert_eq!((receipt.to_text(None), receipt.first), (perceptron.receipts[0].clone(), 2));
    for batch in [1, 2, 5, 8] {
        assert_eq!(perceptron.identity(batch), receipt.model);
        assert_eq!(perceptron.difference(&mut Reference, &receipt, batch), None);
        for threads in [1, 3] {
            assert_eq!(perceptron.difference(&mut Cpu::new(threads).unwrap(), &receipt, batch), None);
        }
    }
}

/// Each lie about a sample is named with the first sample that has one.
#[test]
fn each_lie_about_a_sample_is_named() {
    let perceptron = Perceptron::new();
    let honest = Predictions::from_text(&perceptron.receipts[0]).unwrap().0;
    let mut cpu = Cpu::new(2).unwrap();
    let mut found = |lie: &dyn Fn(&mut Predictions)| {
        let mut receipt = honest.clone();
        lie(&mut receipt);
        let [cpu, reference] =
            [&mut cpu as &mut dyn Engine, &mut Reference].map(|e| perceptron.difference(e, &receipt, 3));
        assert_eq!(cpu, reference);
        cpu.unwrap()
    };
    let other = Digest([7; 32]);
    let class = found(&|r| r.samples[3].predicted[0] ^= 1);
    assert_eq!(class, Difference { sample: 5, what: Mismatch::Class { row: 0, said: 2, found: Some(3) } });
    let logits = found(&|r| (3..5).for_each(|place| r.samples[place].logits = other));
    let own = honest.samples[3].logits;
    assert_eq!(logits, Difference { sample: 5, what: Mismatch::Logits { said: other, found: own } });
    let input = found(&|r| r.samples[1].input = other);
    let own = honest.samples[1].input;
    assert_eq!(input, Difference { sample: 3, what: Mismatch::Input { said: other, found: own } });
    // The predictions of one sample do not pass for those of another.
    let swapped = found(&|r| r.samples.swap(0, 1));
    assert!(matches!(swapped, Difference { sample: 2, what: Mismatch::Input { .. } }), "{swapped:?}");
    let moved = found(&|r| r.first = 1);
    assert!(matches!(moved, Difference { sample: 1, what: Mismatch::Input { .. } }), "{moved:?}");
    // Samples 2 and 6 have the same inputs, so the same bits.
    assert_eq!(honest.samples[0], honest.samples[4]);
}

/// Receipts with changed, left out and doubled characters end with an error or a difference.
#[test]
fn no_mutation_of_a_receipt_panics_or_matches_by_chance() {
    let perceptron = Perceptron::new();
    let text = &perceptron.receipts[0];
    let honest = Predictions::from_text(text).unwrap().0;
    let (identity, mut cpu) = (perceptron.identity(1), Cpu::new(1).unwrap());
    let [mut read, mut replayed] = [0; 2];
    for number in 0..1500 {
        let [place, byte, kind, _] = philox4x32_10([41, 5], [number, 0, 0, 0]);
        let mut bytes = text.clone().into_bytes();
        let place = place as usize % bytes.len();
        match kind % 8 {
            0 => drop(bytes.remove(place)),
            1 => bytes.insert(place, bytes[place]),
            2 => bytes[place] = byte as u8,
            _ => bytes[place] = b"0123456789abcdef"[byte as usize % 16],
        }
        let Ok(changed) = String::from_utf8(bytes) else { continue };
        // A liar makes the root of the changed samples.
        let root = honest.root().to_string();
        let changed = match Predictions::from_text(&changed) {
            Err(why) => match why.to_string().rsplit_once("have ") {
                Some((_, other)) if other.len() == 64 => changed.replacen(&root, other, 1),
                _ => continue,
            },
            Ok(_) => changed,
        };
        let Ok((receipt, _)) = Predictions::from_text(&changed) else { continue };
        if receipt == honest {
            assert_eq!(&changed, text);
            continue;
        }
        read += 1;
        let fits = receipt.first as usize + receipt.samples.len() <= perceptron.samples.len();
        if receipt.model == identity && fits {
            replayed += 1;
            assert!(perceptron.difference(&mut cpu, &receipt, 4).is_some(), "{changed}");
        }
    }
    assert!(read > 500 && replayed > 300, "{read} {replayed}");
}

#[test]
fn arrays_that_the_model_does_not_take_are_refused() {
    let perceptron = Perceptron::new();
    let model = &perceptron.job.model().unwrap().model;
    let of = |dtype, shape: &[u32], word: u32| {
        let ty = TensorType { dtype, shape: shape.to_vec() };
        let bytes = bytes_of(&vec![word; ty.len()]);
        Inputs::of_array(Array { name: String::new(), ty, bytes }, &model.batch(1)[0]).map(|i| i.count())
    };
    assert_eq!(of(DType::U32, &[3, 6], 255), Ok(3));
    for (dtype, shape, word, why) in [
        (DType::F32, &[3, 6][..], 0, "the model takes"),
        (DType::U32, &[3, 7], 0, "the model takes"),
        (DType::U32, &[6], 0, "the model takes"),
        (DType::U32, &[3, 2, 3], 0, "the model takes"),
        (DType::U32, &[3, 6], 256, "numbers below 256"),
    ] {
        let error = of(dtype, shape, word).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

/// The logits of samples of a run's data.
fn computed(engine: &mut dyn Engine, run: &Run, batch: u32, numbers: &[u64]) -> Vec<(u64, Digest, Vec<u32>)> {
    let table = run.program().state();
    let table = &table[..run.program().released()];
    let model = checkpoint::read(&run.layout.model(), table).unwrap();
    let tensors = table.iter().zip(&model).map(|(t, bytes)| engine.upload(&t.ty(), bytes));
    let released: Vec<_> = tensors.map(Result::unwrap).collect();
    let predictor = Predictor::new(engine, run.job().model().unwrap(), batch).unwrap();
    let mut inputs = Inputs::Data(Box::new(run.dataset().unwrap()));
    let mut found = Vec::new();
    let none =
        predictor.run(engine, &released, &mut inputs, numbers, |Computed { number, input, logits }| {
            found.push((number, input, logits));
            None::<()>
        });
    assert!(none.unwrap().is_none());
    found
}

/// Makes a job in a folder.
type Make = fn(&Path) -> PathBuf;

#[test]
fn logits_depend_on_model_and_sample_alone() {
    let folder = tempfile::tempdir().unwrap();
    let jobs: [(&str, Make); 2] =
        [("images", |at| batch_norm_job(at, "step", 2)), ("text", |at| gpt_job(at, "step", ""))];
    for (name, job) in jobs {
        let at = folder.path().join(name);
        fs::create_dir(&at).unwrap();
        let run = trained(&job(&at), &at.join("run"), None);
        let all: Vec<u64> = (0..8).collect();
        let expected = computed(&mut Reference, &run, 1, &all);
        let expect = |numbers: &[u64]| -> Vec<_> {
            numbers.iter().map(|number| expected[*number as usize].clone()).collect()
        };
        for threads in [1, 3] {
            let mut cpu = Cpu::new(threads).unwrap();
            for batch in [1, 3, 8] {
                for numbers in [&all[..], &[5], &[7, 0, 7, 2], &[3, 4, 5, 6]] {
                    assert_eq!(computed(&mut cpu, &run, batch, numbers), expect(numbers), "{name} {batch}");
                }
            }
        }
    }
}
