//! A model with weights and samples of Philox, and its predictions: where tests of receipts of predictions begin.

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::network;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Engine, Tensor};
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_run::predict::{Inputs, Predictor};
use tiebreak_run::run::arrays::Array;

/// The first sample of the receipts, and how many they have.
pub const FIRST: u32 = 2;
pub const SAMPLES: usize = 3;

pub fn job_text(model: &str, data: &str) -> String {
    format!(
        "steps = 1\nmodel = {{ {model} }}\ndata = {{ {data} }}\nbatch = {{ micro_batch = 2, micro_batches = 1 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 0.1 }}\n"
    )
}

/// The logits of a sample take two slices.
pub fn perceptron() -> String {
    job_text(
        "kind = \"mlp\", inputs = 6, hidden = [5], classes = 300, image_mean = [0.5], image_std = [0.25]",
        "kind = \"idx\", images = \"images\", labels = \"labels\"",
    )
}

/// A sample has five rows of logits.
pub fn gpt(vocabulary: u32) -> String {
    job_text(
        &format!("kind = \"gpt\", vocabulary = {vocabulary}, context = 5, layers = 1, heads = 2, width = 8"),
        "kind = \"bytes\", path = \"text.txt\"",
    )
}

/// A residual network, which has buffers.
pub fn resnet() -> String {
    job_text(
        "kind = \"resnet\", height = 4, width = 4, planes = 1, stages = [8], blocks = 1, classes = 3, norm = \"batch\", \
         norm_momentum = 0.25",
        "kind = \"idx\", images = \"images\", labels = \"labels\"",
    )
}

/// A model with weights and samples of Philox.
pub struct Predicting {
    /// The text of the job, or of a network file.
    pub text: String,
    pub model: Box<dyn Evaluable>,
    pub table: Vec<StateTensor>,
    pub weights: Vec<Vec<u8>>,
    /// The bytes of all samples of the data.
    pub samples: Vec<u8>,
}

impl Predicting {
    pub fn new(text: String) -> Predicting {
        let (program, model): (_, Box<dyn Evaluable>) = match text.starts_with('{') {
            true => network::model(&text).map(|(program, model)| (program, Box::new(model) as _)).unwrap(),
            false => {
                let job = Job::parse("job.toml", &text).unwrap();
                (job.program(None).unwrap(), Box::new(job.model().unwrap().clone()))
            }
        };
        let mut table = program.state();
        table.truncate(program.released());
        let weights = (0..).zip(&table).map(|(number, t)| {
            let value = |i: u32| {
                let word = philox4x32_10([5, 0], [i, 0, number, 0])[0];
                // Buffers are means and variances, which are positive.
                let is_buffer = t.name.starts_with("buffer/");
                let value = f64::from(word) / f64::from(1u32 << 31) - if is_buffer { 0.0 } else { 1.0 };
                (value as f32).to_bits()
            };
            bytes_of(&(0..t.shape.iter().product()).map(value).collect::<Vec<u32>>())
        });
        let weights = weights.collect();
        let wanted = &model.network().batch(1)[0];
        let words = (0..wanted.ty().len() as u32 * (FIRST + SAMPLES as u32))
            .map(|i| philox4x32_10([6, 0], [i, 0, 0, 0])[0] % wanted.below.min(200));
        let samples = bytes_of(&words.collect::<Vec<u32>>());
        Predicting { text, model, table, weights, samples }
    }

    pub fn released(&self, engine: &mut dyn Engine) -> Vec<Tensor> {
        let tensors = self.table.iter().zip(&self.weights).map(|(t, bytes)| engine.upload(&t.ty(), bytes));
        tensors.map(Result::unwrap).collect()
    }

    /// Samples with these bytes.
    pub fn inputs_of(&self, samples: &[u8]) -> Inputs {
        let wanted = &self.model.network().batch(1)[0];
        let count = (samples.len() / wanted.ty().bytes()) as u32;
        let of_sample = if wanted.shape.len() == 1 { &wanted.shape[..] } else { &wanted.shape[1..] };
        let ty = TensorType { dtype: DType::U32, shape: [&[count][..], of_sample].concat() };
        Inputs::of_array(Array { name: String::new(), ty, bytes: samples.to_vec() }, wanted).unwrap()
    }

    pub fn inputs(&self) -> Inputs {
        self.inputs_of(&self.samples)
    }

    /// The predictions of the receipt's samples, without traces.
    pub fn predictions(&self) -> Predictions {
        let mut cpu = Cpu::new(1).unwrap();
        let (released, mut samples) = (self.released(&mut cpu), Vec::new());
        let predictor = Predictor::new(&mut cpu, &*self.model, 2).unwrap();
        let numbers: Vec<u64> = (0..SAMPLES as u64).map(|place| u64::from(FIRST) + place).collect();
        let none: Option<()> = predictor
            .run(&mut cpu, &released, &mut self.inputs(), &numbers, |computed| {
                samples.push(predictor.predicted(&computed).unwrap());
                None
            })
            .unwrap();
        assert!(none.is_none());
        let model = predictor.identity(&*self.model, &self.table, &self.weights);
        Predictions { model, first: FIRST, samples, traces: None }
    }
}
