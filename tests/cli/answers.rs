//! `tiebreak generate`: answers of a model over bytes or tokens, by the tokenizer that its run keeps or that an option names.

use std::fs;
use std::path::Path;

use super::{output, path};

/// The files of GPT-2's tokenizer, with the bytes as tokens, one merge ("he", 256) and an end of text (257).
pub fn tokenizer(folder: &Path) {
    fs::create_dir(folder).unwrap();
    // Source: bytes_to_unicode in encoder.py of openai/gpt-2.
    let shown = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..256u32).filter(|byte| !shown(byte)).zip(256..).map(|(_, letter)| letter);
    let letters =
        (0..256u32).filter(shown).chain(others).map(|letter| char::from_u32(letter).unwrap().to_string());
    let tokens = letters.chain(["he".to_string(), "<|endoftext|>".to_string()]);
    let ids: serde_json::Map<String, serde_json::Value> =
        tokens.zip((0..).map(serde_json::Value::from)).collect();
    fs::write(folder.join("vocab.json"), serde_json::Value::from(ids).to_string()).unwrap();
    fs::write(folder.join("merges.txt"), "#version: 0.2\nh e\n").unwrap();
}

/// Trains a model on a single id, with a vocabulary that is padded beyond the tokenizer's. Returns the run.
pub fn trained(folder: &Path, name: &str, id: u16) -> String {
    let file = format!("{name}.bin");
    fs::write(folder.join(&file), id.to_le_bytes().repeat(200)).unwrap();
    let job = path(folder, &format!("{name}.toml"));
    let text = format!(
        "steps = 30\nmodel = {{ kind = \"gpt\", vocabulary = 300, context = 4, layers = 1, heads = 1, width = 8 }}\n\
         data = {{ kind = \"tokens\", path = \"{file}\", dtype = \"u16\" }}\nbatch = {{ micro_batch = 4, micro_batches = 1 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 0.1 }}\n"
    );
    fs::write(&job, text).unwrap();
    let run = path(folder, &format!("{name}-run"));
    let (code, _, stderr) = output(&["train", &job, "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    run
}

/// Without any tokenizer the meaning of the ids is unknown, so the error names the option that helps.
#[test]
fn tokens_without_a_tokenizer_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(folder.path(), "bare", 7);
    let (code, stdout, stderr) = output(&["generate", &run, "--length", "3", "--engine", "cpu"]);
    assert!(code == 2 && stdout.is_empty() && stderr.contains("--tokenizer PATH"), "{code} {stderr}");
    #[cfg(not(feature = "tokenizer"))]
    {
        tokenizer(&folder.path().join("gpt2"));
        let named = path(folder.path(), "gpt2");
        let (code, stdout, stderr) = output(&["generate", &run, "--length", "3", "--tokenizer", &named]);
        assert!(code == 2 && stdout.is_empty() && stderr.contains("--features tokenizer"), "{code} {stderr}");
    }
}

/// The learned ids are written as the tokenizer's text, and the text ends where the model ends it.
#[cfg(feature = "tokenizer")]
#[test]
fn tokens_are_written_by_the_runs_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sampled = |run: &str, more: &[&str]| {
        let asked = [
            "generate",
            run,
            "--json",
            "--prompt",
            "\u{e9} he",
            "--length",
            "3",
            "--temperature",
            "0",
            "--seed",
            "1",
        ];
        let (code, stdout, stderr) = output(&[&asked, more].concat());
        assert_eq!(code, 0, "{stderr}");
        let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        (
            found["text"].as_str().unwrap().to_string(),
            found["tokens"].as_u64().unwrap(),
            found["ended"] == true,
        )
    };
    tokenizer(&at("he.bin.tokenizer"));
    let run = trained(folder.path(), "he", 256);
    assert_eq!(sampled(&run, &[]), ("\u{e9} hehehehe".into(), 3, false));
    let (code, stdout, _) =
        output(&["generate", &run, "--prompt", "x", "--length", "2", "--temperature", "0"]);
    assert_eq!((code, &stdout[..]), (0, "xhehe\n"));
    let (code, _, stderr) = output(&["generate", &run, "--prompt", ""]);
    assert!(
        code == 2 && stderr.contains("must have tokens below ") && stderr.contains("it has none"),
        "{stderr}"
    );

    tokenizer(&at("end.bin.tokenizer"));
    let run = trained(folder.path(), "end", 257);
    assert_eq!(sampled(&run, &[]), ("\u{e9} he".into(), 0, true));
    // The files of the model's maker can name another end.
    tokenizer(&at("other"));
    fs::write(at("other/generation_config.json"), "{\"eos_token_id\": [256]}").unwrap();
    let other = path(folder.path(), "other");
    let text = format!("\u{e9} he{}", "<|endoftext|>".repeat(3));
    assert_eq!(sampled(&run, &["--tokenizer", &other]), (text, 3, false));

    // 127 is the byte 0xc3: halves of characters are written when the text ends.
    let bare = trained(folder.path(), "half", 127);
    assert_eq!(sampled(&bare, &["--tokenizer", &other]).0, "\u{e9} he\u{fffd}\u{fffd}\u{fffd}");

    // A run is foreign: a file in it that is no tokenizer is an error.
    fs::write(path(Path::new(&run), "companions/vocab.json"), "{\"a\": 0}").unwrap();
    let (code, _, stderr) = output(&["generate", &run]);
    assert!(
        code == 4 && stderr.contains("vocab.json") && stderr.contains("--tokenizer PATH"),
        "{code} {stderr}"
    );
}

/// A run of two steps of a small GPT over bytes with a context of 40 tokens.
pub fn small(folder: &Path, peak: &str) -> String {
    let (code, run, stderr) = begun(folder, peak);
    assert_eq!(code, 0, "{stderr}");
    run
}

/// The same, whether it ends well or not: with the exit code and the errors.
fn begun(folder: &Path, peak: &str) -> (i32, String, String) {
    fs::write(folder.join("text.txt"), "The quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let job = path(folder, "job.toml");
    let text = format!(
        "steps = 2\n\
        model = {{ kind = \"gpt\", vocabulary = 128, context = 40, layers = 2, heads = 2, width = 8, tied = false, init_std = 0.9 }}\n\
        data = {{ kind = \"bytes\", path = \"text.txt\" }}\nbatch = {{ micro_batch = 2, micro_batches = 1 }}\n\
        optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = {peak} }}\ncheckpoint = {{ every = 1 }}\n"
    );
    fs::write(&job, text).unwrap();
    let run = path(folder, "run");
    let (code, _, stderr) = output(&["train", &job, "--out", &run, "--engine", "cpu"]);
    (code, run, stderr)
}

/// The whole text and the ids of an answer.
fn answer(run: &str, options: &[&str]) -> (String, Vec<u64>) {
    let (code, stdout, stderr) = output(&[&["generate", run, "--json"], options].concat());
    assert_eq!(code, 0, "{stderr}");
    let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let ids = found["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let [first, whole] = ["first_seconds", "seconds"].map(|key| found[key].as_f64().unwrap());
    assert!(0.0 < first && first <= whole, "{first} {whole}");
    (found["text"].as_str().unwrap().to_string(), ids)
}

/// A prompt is read in steps of 32 tokens, the last of which overlaps the one before, and a text token by token: the bytes that
/// follow are the same. A text may grow longer than the context, and the scalar reference writes the same one.
#[test]
fn a_prompt_and_a_text_are_read_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let written = |prompt: &str, length: usize, engine: &str| -> String {
        let length = length.to_string();
        answer(&run, &["--temperature", "0", "--engine", engine, "--prompt", prompt, "--length", &length]).0
    };
    let (code, _, stderr) =
        output(&["generate", &run, "--temperature", "0", "--prompt", "The quick", "--length", "4"]);
    assert!(code == 0 && stderr.contains(" s, behind a prompt of 9; 3 more in "), "{code} {stderr}");
    let whole = written("The quick", 31, "cpu");
    let letters: std::collections::BTreeSet<char> = whole[9..].chars().collect();
    assert!(whole.len() == 40 && letters.len() > 8, "the text tells little: {whole:?}");
    for begin in [31, 32, 33, 37] {
        assert_eq!(written(&whole[..begin], 40 - begin, "cpu"), whole, "{begin}");
    }
    let long = written("The quick", 80, "cpu");
    assert!(long.starts_with(&whole) && long.len() > 80, "{long:?}");
    assert_eq!(written("The quick", 80, "reference"), long);
    // A prompt that is longer than the context has the windows of the text.
    assert_eq!(written(&long[..61], 28, "cpu"), long);
}

/// The tokens are those of model, prompt, settings and seed: threads and engine change none, and each setting some.
#[test]
fn an_answer_is_the_seeds_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let of = |options: &[&str]| answer(&run, &[&["--prompt", "The", "--length", "50"], options].concat());
    let drawn = ["--temperature", "2.5", "--top-k", "30", "--top-p", "0.9", "--seed", "18446744073709551615"];
    let (text, ids) = of(&drawn);
    assert!(ids.len() == 50 && text.starts_with("The"));
    for engine in [&["--threads", "1"][..], &["--engine", "reference"]] {
        assert_eq!(of(&[&drawn, engine].concat()).1, ids, "{engine:?}");
    }
    let (base, greedy) = (["--temperature", "2.5", "--seed", "3"], of(&["--temperature", "0"]).1);
    let free = of(&base).1;
    for (option, value) in [("--top-k", "20"), ("--top-p", "0.7"), ("--seed", "4"), ("--temperature", "2.4")]
    {
        let mut options: Vec<&str> = base.to_vec();
        match options.iter().position(|known| *known == option) {
            Some(at) => options[at + 1] = value,
            None => options.extend([option, value]),
        }
        let found = of(&options).1;
        assert!(found != free && found != greedy, "{option}");
    }
    // One candidate leaves no choice, and neither does a greedy temperature, whatever the seed.
    for one in [&["--top-k", "1"][..], &["--top-p", "1e-30"]] {
        assert_eq!(of(&[&base, one].concat()).1, greedy);
    }
    for seed in ["1", "2"] {
        assert_eq!(of(&["--temperature=-0.0", "--seed", seed]).1, greedy);
    }
    for (wrong, why) in [
        (["--temperature=-1", "--seed=1"], "a temperature is a finite number"),
        (["--temperature", "NaN"], "a temperature is a finite number"),
        (["--top-p", "0"], "the share of top-p is above 0"),
        (["--top-p", "1.01"], "the share of top-p is above 0"),
        (["--temperature=0", "--top-p=0.5"], "change nothing"),
        (["--temperature=0", "--top-k=3"], "change nothing"),
    ] {
        let (code, _, stderr) = output(&["generate", &run, wrong[0], wrong[1]]);
        assert!(code == 2 && stderr.contains(why), "{code} {stderr}");
    }
}

/// A model whose logits are no numbers gives no token. Training stops there, and leaves a checkpoint.
#[test]
fn a_model_that_is_not_finite_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (code, run, stderr) = begun(folder.path(), "1e38");
    assert!(code == 3 && stderr.contains("not finite"), "{code} {stderr}");
    let (code, stdout, stderr) = output(&["generate", &run, "--step", "1", "--seed", "1", "--json"]);
    assert!(
        code == 3 && stdout.is_empty() && stderr.contains("which is no finite number"),
        "{code} {stderr}"
    );
}
