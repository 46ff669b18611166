//! Data files: headers, layouts and samples of every kind. The first byte chooses the kind, the next two the beginning of the
//! second file.
#![no_main]

use std::io::Cursor;
use std::path::Path;
use std::sync::LazyLock;

use tiebreak_contract::program::step::Program;
use tiebreak_job::Job;
use tiebreak_job::data::Dataset;
use tiebreak_job::manifest::{DataFile, GroupTree};

const KINDS: [(&str, &str); 8] = [
    ("mlp", r#"kind = "idx", images = "x", labels = "y""#),
    ("mlp", r#"kind = "cifar10", paths = ["x", "y"]"#),
    ("mlp", r#"kind = "cifar100", paths = ["x", "y"], labels = "coarse""#),
    ("mlp", r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "f16""#),
    (
        "mlp",
        r#"kind = "arrays", inputs = "x.safetensors", inputs_tensor = "x", labels = "y.npy", dtype = "bf16""#,
    ),
    ("gpt", r#"kind = "tokens", paths = ["x.npy", "y.npy"], dtype = "u16""#),
    ("gpt", r#"kind = "tokens", paths = ["x", "y"], dtype = "u32""#),
    (
        "mlp",
        r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "u8", augment = { crop = 1, flip = true }"#,
    ),
];

static JOBS: LazyLock<Vec<(Job, Program)>> = LazyLock::new(|| {
    let job = |(model, data): &(&str, &str)| {
        let inputs = if data.contains("cifar") { 3072 } else { 6 };
        let model = match *model {
            "mlp" => format!(r#"kind = "mlp", inputs = {inputs}, hidden = [2], classes = 5"#),
            _ => r#"kind = "gpt", context = 4, layers = 1, heads = 1, width = 2"#.to_string(),
        };
        let text = format!(
            "steps = 3\nmodel = {{ {model} }}\ndata = {{ {data} }}\nbatch = {{ micro_batch = 4 }}\n\
             optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 1e-2 }}\n"
        );
        let job = Job::parse("job", &text).unwrap();
        let program = job.program(None).unwrap();
        (job, program)
    };
    KINDS.iter().map(job).collect()
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [kind, a, b, rest @ ..] = bytes else { return };
    let (job, program) = &JOBS[usize::from(*kind) % JOBS.len()];
    let (first, second) = rest.split_at(usize::from(u16::from_le_bytes([*a, *b])).min(rest.len()));
    let files = [("x", first), ("y", second)].map(|(name, bytes)| {
        let (manifest, tree) = GroupTree::of(&mut Cursor::new(bytes)).unwrap();
        DataFile::new(name.into(), manifest, tree, Box::new(Cursor::new(bytes.to_vec())))
    });
    let Ok(mut dataset) = Dataset::of(files.into(), Path::new("data"), &job.data, &program.sample()) else {
        return;
    };
    if let Ok(batch) = dataset.batch(program, [1, 2], 1) {
        for (tensor, bytes) in program.batch.iter().zip(&batch[0].tensors) {
            assert_eq!(bytes.len(), 4 * tensor.shape.iter().product::<u32>() as usize);
        }
    }
});
