//! The run format by a second implementation: `assets/vectors/run_format.py` reads runs of every kind, and finds an edited byte
//! in every kind of file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::faulty::faulty_at;
use crate::common::{
    self, batch_norm_job, edit::edited, files, gpt_job, key, mlp_job, program_job, resnet_job, trained,
};
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::correction::{Correction, History, Reason};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::salts::SaltKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Folder, names, transcript};
use tiebreak_train::{Again, Beginning, Prepared, Silent, again, begin, train};

/// The script's output on a run.
fn script(run: &Run, arguments: &[&str]) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vectors/run_format.py");
    let mut command = Command::new("python3");
    // Compiled modules beside the scripts would be unwanted files.
    command.arg("-B").arg(script).arg(&run.layout.root).args(arguments);
    command.output().unwrap()
}

/// Checks that the script finds no fault, leaves out only `not_checked`, and derives the same identity.
pub fn passes(run: &Run, arguments: &[&str], not_checked: &[&str]) {
    let output = script(run, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, digest) in
        [("run", run.id), ("computation", run.computation.id), ("seed", run.computation.seed)]
    {
        assert_eq!(found[name], digest.to_string(), "{name}");
    }
    let left_out = found["not_checked"].as_array().unwrap();
    let as_named =
        left_out.iter().zip(not_checked).all(|(note, named)| note.as_str().unwrap().contains(named));
    assert!(left_out.len() == not_checked.len() && as_named, "{left_out:?}");
}

fn differs(run: &Run) -> String {
    let output = script(run, &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.starts_with("DIFFERS: "), "{:?} {error}", output.status);
    error
}

/// A copy of a job with `from` replaced by `to`, and of 4 steps if the job has 8.
fn with(job: &Path, name: &str, from: &str, to: &str) -> PathBuf {
    let text = edited(&fs::read_to_string(job).unwrap(), &[(from, to)]);
    let path = job.with_file_name(name);
    fs::write(&path, text.replace("steps = 8", "steps = 4")).unwrap();
    path
}

/// Trains a run with a challenge, or without a signature.
fn trained_by(
    key: Option<&PrivateKey>,
    challenge: Option<Digest>,
    logged: bool,
    job: &Path,
    out: &Path,
) -> Run {
    let out = Folder::at(out);
    let beginning = Beginning { job, data_root: None, out, key, challenge, logged, nonce: [3; 16] };
    let run = begin(&beginning).unwrap();
    // A run that holds no copy of its data reads them from the job's folder.
    let run = run.with_data(job.parent().map(Path::to_path_buf));
    train(&run, &mut Cpu::new(2).unwrap(), key, &mut Silent).unwrap();
    run
}

#[test]
fn runs_of_every_granularity_and_model_pass() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (granularity, loss) in [("step", ""), ("microbatch", ""), ("operator", "[loss]\nignore = 101")] {
        let run = trained(&gpt_job(folder.path(), granularity, loss), &at(granularity), None);
        passes(&run, &[], &[]);
    }
    // Jobs that leave out keys with a default.
    passes(&trained(&resnet_job(folder.path(), "operator", ""), &at("resnet"), None), &[], &[]);
    passes(&trained(&mlp_job(folder.path(), "operator", 4, 1), &at("mlp"), None), &[], &[]);
    let idx = "kind = \"idx\"";
    let moved = format!("{idx}\naugment = {{ crop = 3, flip = true }}\nvalidation_split = 0.3");
    let job = with(&mlp_job(folder.path(), "operator", 2, 7), "moved.toml", idx, &moved);
    passes(&trained(&job, &at("seven"), None), &[], &[]);
    passes(&trained(&program_job(folder.path(), "operator", ""), &at("program"), None), &[], &[]);
    passes(&trained(&batch_norm_job(folder.path(), "operator", 3), &at("buffers"), None), &[], &[]);
}

#[test]
fn runs_that_hide_pass_with_their_salt_key() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let key = SaltKey::new([5; 32]);
    let file = folder.path().join("salts");
    fs::write(&file, key.to_text()).unwrap();
    let (file, data) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
    let hides = "head_every = 3\nscheme = 1";
    for granularity in ["step", "microbatch"] {
        let job = with(&gpt_job(folder.path(), granularity, ""), granularity, "head_every = 3", hides);
        let job = with(&job, granularity, "path = \"text.txt\"", "path = \"text.txt\"\ncopy = false");
        let run = trained_hiding(&key, &job, &folder.path().join(format!("{granularity}-run")));
        let arguments = ["--salt-key", file, "--data", data];
        passes(&run, &arguments, &[]);
        // The scalars are what the run's metrics would say.
        let found: serde_json::Value =
            serde_json::from_slice(&script(&run, &[&arguments[..], &["--json"]].concat()).stdout).unwrap();
        let (transcript, _) = tiebreak_run::run::transcript::read(&run.layout.transcript()).unwrap();
        let shown = run.shown(&transcript.records);
        let losses = shown.iter().map(|record| match record {
            Record::Step { step, .. } => step.loss.to_le_bytes(),
            other => panic!("{other:?}"),
        });
        let losses: Vec<u8> = losses.flatten().collect();
        assert_eq!(losses.len(), 16);
        assert_eq!(found["loss"], losses.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        // Another key is another run's.
        let other = folder.path().join("other");
        fs::write(&other, SaltKey::new([6; 32]).to_text()).unwrap();
        let output = script(&run, &["--salt-key", other.to_str().unwrap(), "--data", data]);
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("DIFFERS: run.json: salts"));
    }
    // From files of weights, over images of two files.
    let job = batch_norm_job(folder.path(), "microbatch", 2);
    let weights = trained(&job, &folder.path().join("before"), None).layout.model();
    fs::copy(weights, folder.path().join("before.safetensors")).unwrap();
    let text = fs::read_to_string(&job).unwrap();
    let text = text.replace("labels = \"labels\"", "labels = \"labels\", copy = false");
    let text = text.replace("granularity = \"microbatch\"", "granularity = \"microbatch\", scheme = 1");
    fs::write(&job, text + "\ninit = { weights = [\"before.safetensors\"] }\n").unwrap();
    let run = trained_hiding(&key, &job, &folder.path().join("tuned"));
    passes(&run, &["--salt-key", file, "--data", data], &["the files of weights"]);
}

/// Trains a run whose commitments hide.
fn trained_hiding(salts: &SaltKey, job: &Path, out: &Path) -> Run {
    let (out, key) = (Folder::at(out), key());
    let key = Some(&key);
    let beginning =
        Beginning { job, data_root: None, out, key, challenge: None, logged: false, nonce: [3; 16] };
    let run = Prepared::hidden(&beginning, salts, &mut |_, _| {}).unwrap().create().unwrap();
    train(&run, &mut Cpu::new(2).unwrap(), key, &mut Silent).unwrap();
    run
}

#[test]
fn runs_of_every_identity_and_origin_pass() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let job = with(&gpt_job(folder.path(), "operator", ""), "short.toml", "steps = 8", "steps = 4");
    let first = trained_by(None, None, false, &job, &at("first"));
    passes(&first, &[], &[]);
    passes(&trained_by(Some(&key()), Some(Digest([7; 32])), false, &job, &at("challenged")), &[], &[]);
    passes(&trained_by(Some(&key()), None, true, &job, &at("logged")), &[], &[]);
    let rules =
        "[rounding]\npreset = \"paper\"\nthreshold = 4194303\nclass = { head = 5, conv = 9 }\n[checkpoint]";
    let paper = with(&job, "paper.toml", "[checkpoint]", rules);
    passes(&trained_by(Some(&key()), None, false, &paper, &at("paper")), &[], &[]);
    let other = with(
        &job,
        "other.toml",
        "kind = \"bytes\"",
        "kind = \"bytes\"\nsampling = \"with_replacement\"\ncopy = false\nvalidation_split = 0.1",
    );
    let run = trained_by(Some(&key()), None, false, &other, &at("elsewhere"));
    passes(&run, &[], &["data file 0", "the batches of steps"]);
    passes(&run, &["--data", folder.path().to_str().unwrap()], &[]);

    // Uncommitted files are files of the run all the same.
    fs::copy(first.layout.model(), at("weights.safetensors")).unwrap();
    fs::write(at("tokenizer.json"), "{}").unwrap();
    let evaluated = "[evaluation]\nevery = 2\nfiles = [\"text.txt\"]\n[checkpoint]";
    let run = trained(&with(&job, "evaluated.toml", "[checkpoint]", evaluated), &at("evaluated"), None);
    assert!(
        run.layout.evaluation_file(0).exists() && run.layout.companions().join("tokenizer.json").exists()
    );
    passes(&run, &[], &[]);
    fs::write(run.layout.companions().join("modeling.py"), "").unwrap();
    passes(&run, &[], &["companions/modeling.py, which is no file of a run"]);
    let drawn = "weights = [\"weights.safetensors\"]\nreinitialize = [\"final_norm.*\", \"block0.query.weight\", \"*_embedding\"]";
    for (name, init, left_out) in [
        ("tuned", "weights = [\"weights.safetensors\"]", &["the files of weights"][..]),
        ("redrawn", drawn, &["the files of weights", "init.reinitialize draws"]),
        ("continued", "run = \"first\"", &[]),
        ("resumed", "run = \"first\"\noptimizer_state = true", &[]),
    ] {
        let job =
            with(&job, &format!("{name}.toml"), "[checkpoint]", &format!("[init]\n{init}\n[checkpoint]"));
        passes(&trained(&job, &at(name), None), &[], left_out);
    }
}

/// Checkpoints after the first leave the frozen parameters out.
#[test]
fn a_run_of_adapters_passes() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let job = with(&gpt_job(folder.path(), "microbatch", ""), "short.toml", "steps = 8", "steps = 4");
    let first = trained_by(None, None, false, &job, &at("first"));
    fs::copy(first.layout.model(), at("weights.safetensors")).unwrap();
    let init = "[init]\nweights = [\"weights.safetensors\"]\nreinitialize = [\"*.lora_*\"]\n";
    let lora = "[model.lora]\nrank = 2\nalpha = 4.0\ntargets = [\"c_attn\"]\n[checkpoint]";
    let job = with(&job, "adapted.toml", "[checkpoint]", &format!("{init}{lora}"));
    let run = trained(&job, &at("adapted"), None);
    let [begun, last] = [0, 4].map(|step| fs::metadata(run.layout.checkpoint(step)).unwrap().len());
    assert!(last < begun / 4, "{last} bytes of {begun}");
    passes(&run, &[], &["the files of weights", "init.reinitialize draws"]);
    let mut bytes = fs::read(run.layout.checkpoint(0)).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(run.layout.checkpoint(0), bytes).unwrap();
    differs(&run);
}

#[test]
fn runs_on_tokens_and_arrays_pass() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let tokens: Vec<u8> = (0..400u16).flat_map(|i| (i % 97).to_le_bytes()).collect();
    fs::write(at("tokens.bin"), tokens).unwrap();
    let text = "kind = \"bytes\"\npath = \"text.txt\"";
    let ids = "kind = \"tokens\"\npath = \"tokens.bin\"\ndtype = \"u16\"";
    let job = with(&gpt_job(folder.path(), "operator", ""), "tokens.toml", text, ids);
    passes(&trained(&job, &at("tokens"), None), &[], &[]);

    // An array of `dims`, as NumPy writes it in format 1.0.
    let array = |name: &str, descr: &str, dims: &str, data: Vec<u8>| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {dims}, }}");
        let header = format!("\u{1}\0v\0{header:<117}\n");
        fs::write(at(name), [b"\x93NUMPY", header.as_bytes(), &data].concat()).unwrap();
    };
    let inputs = (0..40 * 64u16).flat_map(|i| (f32::from(i % 17) / 8.0).to_le_bytes());
    array("inputs.npy", "<f4", "(40, 64)", inputs.collect());
    array("labels.npy", "|u1", "(40,)", (0..40).map(|i| i % 10).collect());
    let images = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"";
    let arrays = "kind = \"arrays\"\ninputs = \"inputs.npy\"\nlabels = \"labels.npy\"\ndtype = \"f32\"";
    let job = with(&mlp_job(folder.path(), "microbatch", 2, 1), "arrays.toml", images, arrays);
    passes(&trained(&job, &at("arrays"), None), &[], &[]);
}

#[test]
fn runs_in_order_pass() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let in_order = "kind = \"bytes\"\nsampling = \"in_order\"";
    let job = with(&gpt_job(folder.path(), "microbatch", ""), "order.toml", "kind = \"bytes\"", in_order);
    passes(&trained(&job, &folder.path().join("plain"), None), &[], &[]);
    let split = with(&job, "split.toml", in_order, &format!("{in_order}\nvalidation_split = 0.995"));
    passes(&trained(&split, &folder.path().join("split"), None), &[], &[]);
    let elsewhere = with(&job, "elsewhere.toml", in_order, &format!("{in_order}\ncopy = false"));
    let hides = with(&elsewhere, "hides.toml", "head_every = 3", "head_every = 3\nscheme = 1");
    let (key, file) = (SaltKey::new([5; 32]), folder.path().join("salts"));
    fs::write(&file, key.to_text()).unwrap();
    let run = trained_hiding(&key, &hides, &folder.path().join("hiding"));
    passes(&run, &["--salt-key", file.to_str().unwrap(), "--data", folder.path().to_str().unwrap()], &[]);
    let images = "kind = \"idx\"\nsampling = \"in_order\"\naugment = { crop = 3, flip = true }";
    let job = with(&mlp_job(folder.path(), "operator", 2, 7), "images.toml", "kind = \"idx\"", images);
    passes(&trained(&job, &folder.path().join("moved"), None), &[], &[]);
}

#[test]
fn an_edited_byte_of_any_kind_of_file_is_found() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = Vec::new();
    let plain = with(&program_job(folder.path(), "operator", ""), "plain.toml", "steps = 8", "steps = 2");
    let logged =
        with(&gpt_job(folder.path(), "operator", "\n[rounding]\n"), "logged.toml", "steps = 8", "steps = 2");
    for (job, name) in [(plain, "plain"), (logged, "logged")] {
        let run = trained(&job, &folder.path().join(name), None);
        passes(&run, &[], &[]);
        for (path, bytes) in files(&run.layout.root) {
            // The first file of a folder stands for the others.
            let kind = match path.parent().unwrap().to_str().unwrap() {
                "" | "data" => path.clone(),
                folder => PathBuf::from(folder),
            };
            if kinds.contains(&kind) || kind == Path::new("lock") {
                continue;
            }
            for place in [bytes.len() / 2, bytes.len() - 1] {
                let mut edited = bytes.clone();
                edited[place] ^= 1;
                fs::write(run.layout.root.join(&path), &edited).unwrap();
                let error = differs(&run);
                eprintln!("{} {place}: {error}", path.display());
            }
            fs::write(run.layout.root.join(&path), &bytes).unwrap();
            kinds.push(kind);
        }
    }
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}

/// The example at the end of docs/RUN-FORMAT.md.
#[test]
fn the_pages_example_is_what_the_code_writes() {
    let computation = Digest([0x11; 32]);
    let initial = Record::Initial { computation, state: Digest([0x22; 32]) };
    let step = StepRecord {
        step: 1,
        state: Digest([0x33; 32]),
        batch: Digest([0x44; 32]),
        gradients: Some(Digest([0x55; 32])),
        trace: None,
        log: None,
        learning_rate: 0x3a83_126f,
        clip: 0x3f80_0000,
        loss: 0x40b1_7218,
        cursor: 6,
    };
    let records = [initial, Record::Step { computation, step }].map(|record| record.encode());
    let leaves = records.each_ref().map(|record| merkle::leaf(record));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/RUN-FORMAT.md")).unwrap();
    let (_, example) = page.split_once("## Example").expect("the page has an example");
    // Lines are broken and fields set apart where a reader wants it.
    let example: String = example.split_whitespace().collect();
    let digests = [leaves[0], leaves[1], merkle::root(&leaves)].map(|digest| digest.to_string());
    for text in [hex(&records[0]), hex(&records[1])].iter().chain(&digests) {
        assert!(example.contains(text), "the page has no {text}");
    }
}

/// A run whose step 5 a faulty device computed, and the corrected run; the correction lies in both.
fn corrected(folder: &Path) -> ([Run; 2], Correction) {
    let (job, key) = (gpt_job(folder, "step", ""), key());
    let old = faulty_at(&job, &folder.join("old"), [8; 16], 5);
    let out = Folder::at(&folder.join("new"));
    let new = again(&Again { run: &old, step: 5, out, key: Some(&key), nonce: [9; 16] }).unwrap();
    train(&new, &mut Cpu::new(2).unwrap(), Some(&key), &mut Silent).unwrap();
    let read = |run: &Run| transcript::read(run.at(names::TRANSCRIPT)).unwrap().0;
    let side = |run: &Run| {
        let (records, note) = (read(run), fs::read_to_string(run.layout.head(10)).unwrap());
        History::new(&note, &key.public(), &records.leaves, (5, &records.records[5])).unwrap()
    };
    let shared = read(&old);
    let last = (&shared.records[4], &shared.leaves[..5]);
    let made = Correction::new([side(&old), side(&new)], last, (Reason::Software, "größe")).unwrap();
    let bytes = made.to_bytes(&key);
    old.at(names::correction(5)).replace(&bytes).unwrap();
    new.at(names::CORRECTS).replace(&bytes).unwrap();
    ([old, new], made)
}

#[test]
fn corrections_pass_on_both_sides_and_an_edited_byte_is_found() {
    if !common::has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ([old, new], made) = corrected(folder.path());
    for run in [&old, &new] {
        passes(run, &[], &[]);
        let found: serde_json::Value = serde_json::from_slice(&script(run, &["--json"]).stdout).unwrap();
        assert_eq!(found["correction"], made.digest().to_string());
    }
    let file = old.layout.root.join(names::correction(5));
    let bytes = fs::read(&file).unwrap();
    for place in [0, 22, 40, bytes.len() / 3, bytes.len() / 2, bytes.len() - 70, bytes.len() - 1] {
        let mut edited = bytes.clone();
        edited[place] ^= 1;
        fs::write(&file, edited).unwrap();
        differs(&old);
    }
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    differs(&old);
    // Another key signs the same.
    let other = PrivateKey::generate("trainer.example", [6; 32]).unwrap();
    fs::write(&file, made.to_bytes(&other)).unwrap();
    assert!(differs(&old).contains("the signature does not verify"));
}
