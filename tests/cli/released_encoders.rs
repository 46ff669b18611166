//! BERT and DistilBERT in the names and layouts of transformers: import, export, and refusals.

use std::fs;

use tiebreak_run::run::checkpoint;

use crate::common::edit::{edit, edited};
use crate::common::trained;
use crate::released::{Stored, command, imported, stored};

pub const BERT: &str = r#"{
  "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.2, "classifier_dropout": null, "gradient_checkpointing": false,
  "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 10, "is_decoder": false,
  "layer_norm_eps": 1e-12, "max_position_embeddings": 12, "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2,
  "pad_token_id": 3, "position_embedding_type": "absolute", "torch_dtype": "float32", "type_vocab_size": 2, "use_cache": true, "vocab_size": 128
}
"#;
pub const DISTILBERT: &str = r#"{
  "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.2, "dim": 16, "dropout": 0.1, "hidden_dim": 10,
  "initializer_range": 0.02, "max_position_embeddings": 12, "model_type": "distilbert", "n_heads": 4, "n_layers": 2, "pad_token_id": 3,
  "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true, "torch_dtype": "float32", "vocab_size": 128
}
"#;

/// The names of a linear layer's or a normalisation's tensors.
pub fn pair(name: &str, weight: Vec<usize>) -> [(String, Vec<usize>); 2] {
    let bias = weight[..1].to_vec();
    [(format!("{name}.weight"), weight), (format!("{name}.bias"), bias)]
}

/// An encoder of two blocks with the head that finds masked tokens, as its class of transformers stores it.
pub fn tensors(is_bert: bool) -> Vec<Stored> {
    let [transform, norm, bias] = match is_bert {
        true => {
            ["transform.dense", "transform.LayerNorm", "bias"].map(|part| format!("cls.predictions.{part}"))
        }
        false => ["transform", "layer_norm", "projector.bias"].map(|part| format!("vocab_{part}")),
    };
    let head = pair(&transform, vec![16, 16]).into_iter().chain(pair(&norm, vec![16]));
    with_head(is_bert, head.chain([(bias, vec![128])]))
}

/// An encoder of two blocks with a head of these names and shapes. Every element is another number.
pub fn with_head(is_bert: bool, head: impl IntoIterator<Item = (String, Vec<usize>)>) -> Vec<Stored> {
    let base = if is_bert { "bert" } else { "distilbert" };
    let embedding =
        |name: &str, rows| (format!("{base}.embeddings.{name}_embeddings.weight"), vec![rows, 16]);
    let mut shapes = vec![embedding("word", 128), embedding("position", 12)];
    shapes.extend(is_bert.then(|| embedding("token_type", 2)));
    shapes.extend(pair(&format!("{base}.embeddings.LayerNorm"), vec![16]));
    let (blocks, modules) = match is_bert {
        true => (
            "bert.encoder.layer",
            "attention.self.query attention.self.key attention.self.value attention.output.dense attention.output.LayerNorm \
             intermediate.dense output.dense output.LayerNorm",
        ),
        false => (
            "distilbert.transformer.layer",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm",
        ),
    };
    for layer in 0..2 {
        for (number, module) in modules.split_whitespace().enumerate() {
            let shape = [vec![16, 16], vec![16], vec![10, 16], vec![16, 10]];
            let shape = shape[[0, 0, 0, 0, 1, 2, 3, 1][number]].clone();
            shapes.extend(pair(&format!("{blocks}.{layer}.{module}"), shape));
        }
    }
    shapes.extend(head);
    let mut next = 0u16..;
    let mut stored = |(name, shape): (String, Vec<usize>)| {
        let values = next.by_ref().take(shape.iter().product());
        let bytes = values.flat_map(|n| (f32::from(n) / 8192.0).to_le_bytes()).collect();
        (name, safetensors::Dtype::F32, shape, bytes)
    };
    shapes.into_iter().map(&mut stored).collect()
}

#[test]
fn encoders_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let unpadded = ("\"pad_token_id\": 3", "\"pad_token_id\": null");
    let tanh = ("\"gelu\"", "\"gelu_new\"");
    let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nx\n[MASK]\n";
    let bert_lines = "form = \"bert\"\ntoken_types = 2\nnorm_epsilon = 1e-12";
    for (name, is_bert, config, lines) in [
        ("bert", true, BERT.to_string(), bert_lines),
        ("unpadded", true, edited(BERT, &[unpadded]), "ignore = 5\n"),
        ("tanh", true, edited(BERT, &[tanh, ("1e-12", "0.001")]), "gelu = \"tanh\"\nnorm_epsilon = 0.001"),
        ("distilbert", false, DISTILBERT.into(), "form = \"distilbert\"\nignore = 3\n"),
        (
            "sines",
            false,
            edited(DISTILBERT, &[unpadded, ("embds\": false", "embds\": true")]),
            "ignore = 5\n",
        ),
    ] {
        let path = |part: &str| folder.path().join(name).join(part);
        let text = |part: &str| path(part).to_str().unwrap().to_string();
        let tensors = tensors(is_bert);
        let file = stored(&tensors);
        let files = [
            ("config.json", config.as_bytes()),
            ("model.safetensors", &file[..]),
            ("vocab.txt", vocabulary.as_bytes()),
        ];
        let job = imported(&path(""), &files).unwrap();
        let said = fs::read_to_string(&job).unwrap();
        let all = "kind = \"bert\"\ndropout = 0.1\nattention_dropout = 0.2\ntoken = 5\nnever = [0,1,2,3,5]";
        for line in all.lines().chain(lines.lines()) {
            assert!(said.lines().any(|own| own == line), "{name}, {line}: {said}");
        }
        let padding = said.lines().any(|line| line == "padding = 3");
        assert_eq!(padding, config.contains("\"pad_token_id\": 3"), "{said}");
        let run = trained(&job, &path("run"), None);
        // The files' tensors are listed in the order of the program's parameters, and layouts are the same on both sides.
        let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
        assert_eq!(run.program().parameters.len(), tensors.len());
        for ((theirs, .., bytes), ours) in tensors.iter().zip(&state) {
            assert!(ours == bytes, "{name}: {theirs}");
        }
        let export = |step: &str, out: &str| {
            let (code, said) = command(&["export", &text("run"), "--step", step, "--output", &text(out)]);
            assert_eq!(code, 0, "{said}");
        };
        export("0", "first");
        for (part, bytes) in files {
            assert!(fs::read(path("first").join(part)).unwrap() == bytes, "{name}: {part}");
        }
        export("1", "second");
        assert!(fs::read(path("second/model.safetensors")).unwrap() != file);
        assert_eq!(command(&["import", &text("second")]).0, 0);
    }
}

/// A file as old versions wrote BERT's: other names of normalisations, copies of tied tensors, and another head's layers.
#[test]
fn old_files_are_read_and_copies_compared() {
    let folder = tempfile::tempdir().unwrap();
    let import = |name: &str, tensors: &[Stored]| {
        let files = [("config.json", BERT.as_bytes()), ("model.safetensors", &stored(tensors)[..])];
        imported(&folder.path().join(name), &files)
    };
    let mut old = tensors(true);
    for (name, ..) in &mut old {
        *name = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta");
    }
    for (from, to) in [
        ("bert.embeddings.word_embeddings.weight", "decoder.weight"),
        ("cls.predictions.bias", "decoder.bias"),
    ] {
        let (_, dtype, shape, bytes) = old.iter().find(|(name, ..)| name == from).unwrap().clone();
        old.push((format!("cls.predictions.{to}"), dtype, shape, bytes));
    }
    let copies = old.len() - 2;
    let number = (safetensors::Dtype::I64, vec![1, 12], vec![0; 96]);
    old.push(("bert.embeddings.position_ids".into(), number.0, number.1, number.2));
    for (name, shape) in
        pair("bert.pooler.dense", vec![16, 16]).into_iter().chain(pair("cls.seq_relationship", vec![2, 16]))
    {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        old.push((name, safetensors::Dtype::F32, shape, bytes));
    }
    let job = import("old", &old).unwrap();
    // No tokenizer says which token stands for a masked one.
    assert!(fs::read_to_string(&job).unwrap().contains("\ntoken = 127\nnever = []\n"));
    fs::remove_file(&job).unwrap();
    let (code, said) = command(&["import", folder.path().join("old").to_str().unwrap()]);
    assert_eq!(code, 0);
    for part in [
        "the job has 127, the last",
        "bert.pooler.dense.weight, bert.pooler.dense.bias, cls.seq_relationship.weight",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("position_ids"), "{said}");
    for (copy, name) in
        [(copies, "cls.predictions.decoder.weight"), (copies + 1, "cls.predictions.decoder.bias")]
    {
        let mut other = old.clone();
        other[copy].3[400] ^= 1;
        let said = import(name, &other).unwrap_err();
        assert!(said.contains(name), "{said}");
    }
    let mut twice = old.clone();
    twice.push(("bert.embeddings.LayerNorm.weight".into(), safetensors::Dtype::F32, vec![16], vec![0; 64]));
    let said = import("twice", &twice).unwrap_err();
    assert!(said.contains("is there twice, once as bert.embeddings.LayerNorm.gamma"), "{said}");
}

#[test]
fn what_is_not_computed_is_refused_by_key_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let files = [true, false].map(|is_bert| stored(&tensors(is_bert)));
    let mut number = 0;
    for (is_bert, from, to, wanted) in [
        (
            true,
            "\"absolute\"",
            "\"relative_key\"",
            r#"position_embedding_type is \"relative_key\"; this version computes"#,
        ),
        (
            true,
            "\"is_decoder\": false",
            "\"is_decoder\": true",
            "is_decoder is true; this version computes false only",
        ),
        (true, "\"is_decoder\": false", "\"add_cross_attention\": true", "add_cross_attention is true"),
        (true, "\"is_decoder\": false", "\"tie_word_embeddings\": false", "tie_word_embeddings is false"),
        (true, "\"is_decoder\": false", "\"pruned_heads\": {\"0\": [1]}", "pruned_heads is {"),
        (
            true,
            "\"is_decoder\": false",
            "\"embedding_size\": 8",
            "embedding_size is 8; this version does not know",
        ),
        (true, "\"gelu\"", "\"relu\"", r#"hidden_act is \"relu\"; this version computes \"gelu\" and"#),
        (true, "\"gelu\"", "7", "hidden_act is 7"),
        (true, "BertForMaskedLM", "BertForTokenClassification", r#"ForTokenClassification\"]; this version"#),
        (true, "[\"BertForMaskedLM\"]", "7", "architectures is 7"),
        (true, "\"bert\"", "\"roberta\"", r#"model_type is \"roberta\""#),
        (true, "\"hidden_size\": 16, ", "", "hidden_size is missing"),
        (true, "\"hidden_size\": 16", "\"hidden_size\": -16", "hidden_size is -16; a number is wanted"),
        (true, "prob\": 0.1", "prob\": 1.0", "the model's dropout: must be"),
        (true, "prob\": 0.2", "prob\": \"0.2\"", "attention_probs_dropout_prob is"),
        (
            true,
            "\"pad_token_id\": 3",
            "\"pad_token_id\": 128",
            "the model's padding: must be below vocabulary (128)",
        ),
        (true, "\"pad_token_id\": 3", "\"pad_token_id\": -1", "pad_token_id is -1"),
        (true, "\"type_vocab_size\": 2", "\"type_vocab_size\": 3", "token_type_embeddings.weight is F32"),
        (true, "\"type_vocab_size\": 2", "\"type_vocab_size\": 0", "the model's token_types: must be"),
        (
            true,
            "\"num_attention_heads\": 4",
            "\"num_attention_heads\": 3",
            "the model's width: must be a multiple of heads (3)",
        ),
        (true, "1e-12", "0", "the model's norm_epsilon: must be"),
        (false, "\"gelu\"", "\"silu\"", r#"activation is \"silu\"; this version computes \"gelu\" and"#),
        (false, "\"tie_weights_\": true", "\"tie_weights_\": false", "tie_weights_ is false"),
        (
            false,
            "\"tie_weights_\": true",
            "\"layer_norm_eps\": 0.5",
            "layer_norm_eps is 0.5; this version does not",
        ),
        (
            false,
            "\"tie_weights_\": true",
            "\"type_vocab_size\": 2",
            "type_vocab_size is 2; this version does not",
        ),
        (false, "DistilBertForMaskedLM", "DistilBertModel", r#"architectures is [\"DistilBertModel\"]"#),
        (
            false,
            "\"n_layers\": 2",
            "\"n_layers\": 3",
            "no file has the parameters distilbert.transformer.layer.2.",
        ),
        (false, "\"n_layers\": 2", "\"n_layers\": 1", "has no parameters distilbert.transformer.layer.1."),
    ] {
        let config = edited(if is_bert { BERT } else { DISTILBERT }, &[(from, to)]);
        number += 1;
        let files =
            [("config.json", config.as_bytes()), ("model.safetensors", &files[usize::from(!is_bert)][..])];
        let said = imported(&folder.path().join(number.to_string()), &files).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // Positions are a table of weights, so a job cannot have fewer.
    fs::write(folder.path().join("1/config.json"), BERT).unwrap();
    let (code, said) = command(&["import", folder.path().join("1").to_str().unwrap(), "--context", "8"]);
    assert!(code != 0 && said.contains("no other context than its weights have"), "{said}");
}

/// A model that was trained from its seed has a configuration that `import` reads as the same model; a BERT without types is none
/// of transformers'.
#[test]
fn a_model_of_ones_own_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |part: &str| folder.path().join(part);
    let text = |part: &str| path(part).to_str().unwrap().to_string();
    fs::write(path("text.txt"), "a text of bytes. ".repeat(20)).unwrap();
    let job = "steps = 1\nloss = { ignore = 256 }\nbatch = { micro_batch = 1, micro_batches = 1 }\n\
        optimizer = { kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }\nschedule = { peak = 1e-2 }\n\
        data = { kind = \"bytes\", path = \"text.txt\", masking = { token = 256 } }\n\
        model = { kind = \"bert\", vocabulary = 257, context = 6, layers = 1, heads = 2, width = 8, hidden = 5, OWN }\n";
    for (name, own, config) in [
        ("bert", "token_types = 3, padding = 0, norm_epsilon = 1e-6", Some("\"model_type\": \"bert\"")),
        ("distilbert", "form = \"distilbert\", gelu = \"tanh\"", Some("\"activation\": \"gelu_new\"")),
        ("other", "form = \"distilbert\", norm_epsilon = 1e-6", Some("\"model_type\": \"tiebreak\"")),
        ("typeless", "padding = 1", None),
    ] {
        let file = path(&format!("{name}.toml"));
        fs::write(&file, job.replace("OWN", own)).unwrap();
        trained(&file, &path(name), None);
        let out = format!("{name}-out");
        let (code, said) = command(&["export", &text(name), "--output", &text(&out)]);
        let Some(config) = config else {
            assert!(code == 2 && said.contains("--format safetensors"), "{said}");
            continue;
        };
        let written = fs::read_to_string(path(&out).join("config.json")).unwrap();
        assert!(written.contains(config), "{config}: {written}");
        assert_eq!(command(&["import", &text(&out)]).0, 0);
        let imported = fs::read_to_string(path(&out).join("job.toml")).unwrap();
        for setting in own.split(", ") {
            assert!(imported.lines().any(|line| line == setting), "{name}, {setting}: {imported}");
        }
    }
    // Another padding than the configuration's that the run keeps.
    let (out, job) = ("bert-out", path("bert-out/job.toml"));
    let tokens = "kind = \"tokens\"\npath = \"tokens.npy\"\ndtype = \"u16\"";
    edit(
        &job,
        &[
            ("padding = 0", "padding = 2"),
            ("ignore = 0", "ignore = 2"),
            ("steps = 100", "steps = 1"),
            (tokens, "kind = \"bytes\"\npath = \"text.txt\""),
        ],
    );
    fs::copy(path("text.txt"), path(out).join("text.txt")).unwrap();
    trained(&job, &path("again"), None);
    assert_eq!(command(&["export", &text("again"), "--output", &text("again-out")]).0, 0);
    assert!(fs::read_to_string(path("again-out/config.json")).unwrap().contains("\"pad_token_id\": 2"));
}
