//! Network files: those of the built-in models give the built-in programs, and hostile ones are refused by name.

use super::*;
use crate::program::decoding::decode;
use crate::program::encoding::encode;
use crate::program::graph::Graph;

pub(super) const MLP: &str = include_str!("../../../../../assets/networks/mlp.json");
pub(super) const RESNET: &str = include_str!("../../../../../assets/networks/resnet.json");
pub(super) const GPT: &str = include_str!("../../../../../assets/networks/gpt.json");
pub(super) const ENCODER: &str = include_str!("../../../../../assets/networks/encoder.json");

/// The program of a model with the numbers that the network files have.
fn built_in_spec(table: &str) -> StepSpec {
    StepSpec {
        model: toml::from_str(table).unwrap(),
        optimizer: Optimizer::Adamw { beta1: 0.5, beta2: 0.95, epsilon: 1.0, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        loss: LossRule::default(),
        micro_batch: 2,
        micro_batches: 3,
        products: ProductTable::preset(),
    }
}

fn built_in(table: &str) -> Program {
    Program::new(built_in_spec(table))
}

/// The tables of the built-in models of [`MLP`] and [`RESNET`].
pub(super) const MLP_TABLE: &str = "kind = 'mlp'\ninputs = 7\nhidden = [5]\nclasses = 3\ndropout = 0.25";
pub(super) const RESNET_TABLE: &str =
    "kind = 'resnet'\nheight = 6\nwidth = 6\nplanes = 2\nstages = [3, 5]\nblocks = 1\nclasses = 4
norm = 'batch'\norder = 'post'\nconvolution = 2";

/// A graph without its names of operators, which decide no bit.
pub(super) fn unnamed(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    graph.nodes.iter_mut().for_each(|node| node.operator.clear());
    graph
}

#[test]
fn networks_of_built_in_models_give_their_programs() {
    for (text, table) in [(MLP, MLP_TABLE), (RESNET, RESNET_TABLE)] {
        let program = compile(text).unwrap();
        assert!(encode(&program) == encode(&built_in(table)), "{table}");
        assert_eq!(decode(&encode(&program)).unwrap(), program);
    }
    let two = format!("{{\"digits\": 2, {}", MLP.trim_start_matches('{'));
    let due = Program::new(StepSpec { products: ProductTable::uniform(2), ..built_in_spec(MLP_TABLE) });
    assert!(compile(&two).unwrap() == due);
    for (bits, floor, more, mut products) in [
        (16, 14, "", logged_digits()),
        (32, 0, "", logged_digits()),
        (16, 0, "\"digits\": 4, ", ProductTable::uniform(4)),
    ] {
        ProductClass::ALL.into_iter().for_each(|class| products.set_logged(class, GridRule { bits, floor }));
        let grid = format!("\"grid\": {{\"bits\": {bits}, \"floor\": {floor}}}");
        for (network, table) in [(MLP, MLP_TABLE), (RESNET, RESNET_TABLE)] {
            let text = format!("{{{grid}, {more}{}", network.trim_start_matches('{'));
            let due = Program::new(StepSpec { products: products.clone(), ..built_in_spec(table) });
            // The last layer is of the class `head` there, and of `linear` here.
            let (own, due) = (compile(&text).unwrap().micro, due.micro);
            assert!(unnamed(&own).nodes == unnamed(&due).nodes, "{table} with {bits} bits");
            let rules = |graph: &Graph| graph.logged.iter().map(|l| (l.rule, l.output)).collect::<Vec<_>>();
            assert!(!own.logged.is_empty() && rules(&own) == rules(&due));
        }
    }
    // The two tables of a GPT are read by one operator there, and by two nodes here.
    let table = "kind = 'gpt'\nvocabulary = 19\ncontext = 5\nlayers = 2\nheads = 2\nwidth = 8\ndropout = 0.1";
    let (program, due) = (compile(GPT).unwrap(), built_in(table));
    assert!(unnamed(&program.micro) == unnamed(&due.micro));
    let same = Program { micro: due.micro.clone(), ..program };
    assert!(same == due);
}

/// The error of a file with the first `from` made `to`.
fn refused(text: &str, from: &str, to: &str) -> String {
    let changed = text.replacen(from, to, 1);
    assert!(changed != text, "{from}");
    compile(&changed).err().map_or("none".into(), |error| error.0)
}

/// The file in one line, as changes are written.
fn line(text: &str) -> String {
    serde_json::from_str::<Value>(text).unwrap().to_string()
}

/// A text is a network file from its first byte on, so that everybody reads the same in it.
#[test]
fn only_objects_are_network_files() {
    let array = r#"["tiebreak network 1", 2, 3, {"name": "values", "shape": [2, 7]}]"#;
    for text in [&format!("\n{MLP}"), &format!("\u{feff}{MLP}"), array, ""] {
        let error = compile(text).unwrap_err().to_string();
        assert!(error.contains("begins with {"), "{error}");
    }
}

#[test]
fn wrong_networks_are_refused_by_name() {
    let (mlp, resnet, gpt) = (line(MLP), line(RESNET), line(GPT));
    let mut others = Vec::new();
    for (text, from, to, why) in [
        (&mlp, "network 1", "network 2", "format: must be \"tiebreak network 1\", is \"tiebreak network 2\""),
        (&mlp, "\"micro_batch\":2", "\"micro_batch\":0", "micro_batch: a step has 1 to 2^24 samples"),
        (&mlp, "\"micro_batches\":3", "\"micro_batches\":65537", "micro_batch: a step has"),
        (&mlp, "\"micro_batch\":2", "\"micro_batch\":3", "inputs: the first dimension must be a multiple"),
        (
            &mlp,
            "\"micro_batch\":2",
            "\"grid\":{\"bits\":31,\"floor\":0},\"micro_batch\":2",
            "grid: 16 bits with a floor of 0 or 4 to 40, or 26 to 30 or 32 bits with a floor of 0, is 31 bits with 0",
        ),
        (
            &mlp,
            "\"micro_batch\":2",
            "\"grid\":{\"bits\":32,\"floor\":14},\"micro_batch\":2",
            "grid: 16 bits with a floor of 0 or 4 to 40, or 26 to 30 or 32 bits with a floor of 0, is 32 bits with 14",
        ),
        (
            &mlp,
            "\"micro_batch\":2",
            "\"grid\":[16,14],\"micro_batch\":2",
            "invalid type: sequence, expected grid as {\"bits\": 16, \"floor\": 14}, or no grid for exact products",
        ),
        (
            &mlp,
            "\"micro_batch\":2",
            "\"grid\":null,\"micro_batch\":2",
            "invalid type: null, expected grid as {",
        ),
        (&mlp, "\"micro_batch\":2", "\"grid\":{\"bits\":16},\"micro_batch\":2", "missing field `floor`"),
        (&mlp, "\"micro_batch\":2", "\"digits\":5,\"micro_batch\":2", "digits: digits must be 1 to 4, is 5"),
        (&mlp, "\"below\":256", "\"below\":0", "below: must be above 0"),
        (&mlp, "\"clip_norm\":1.0", "\"clip_norm\":0", "clip_norm: must be a finite number above 0, is 0"),
        (
            &mlp,
            "\"beta1\":0.5",
            "\"beta1\":1",
            "optimizer.beta1: must be a finite number at least 0 and below 1",
        ),
        (&mlp, "\"epsilon\":1.0", "\"epsilon\":1.0,\"rho\":1", "unknown field `rho`"),
        (&mlp, "\"nodes\":[", "\"norm_momentum\":0.1,\"nodes\":[", "norm_momentum: a network has it if"),
        (&resnet, "\"norm_momentum\":0.1,", "", "norm_momentum: a network has it if"),
        (&mlp, "\"shape\":[5,7]", "\"shape\":[5,8]", "node layer0 (linear): weight has shape [5, 8]"),
        (&mlp, "\"shape\":[5,7]", "\"shape\":[5,0]", "parameter layer0.weight: the shape is not of"),
        (&mlp, "\"shape\":[5,7]", "\"shape\":[65536,65536]", "parameter layer0.weight: the shape is not of"),
        (&mlp, "\"shape\":[5,7]", "\"shape\":[1,1,1,1,1]", "parameter layer0.weight: the shape is not of"),
        (
            &mlp,
            "\"weight_decay\":0.1",
            "\"weight_decay\":-1",
            "parameter layer0.weight: weight_decay: must be",
        ),
        (
            &mlp,
            "\"weight_decay\":0.1",
            "\"weight_decay\":1e39",
            "parameter layer0.weight: weight_decay: must be",
        ),
        (
            &mlp,
            "\"name\":\"layer0.bias\"",
            "\"name\":\"layer0 bias\"",
            "parameter layer0 bias: a name has 1 to 128",
        ),
        (
            &mlp,
            "\"name\":\"layer0.bias\"",
            "\"name\":\"layer0.weight\"",
            "parameter layer0.weight: two tensors",
        ),
        (&mlp, "\"name\":\"layer0.relu\"", "\"name\":\"layer0\"", "node layer0: two tensors have this name"),
        (
            &mlp,
            "\"operator\":\"relu\"",
            "\"operator\":\"elu\"",
            "node layer0.relu: there is no operator \"elu\"; here",
        ),
        (
            &mlp,
            "\"inputs\":[\"layer0\"]",
            "\"inputs\":[]",
            "node layer0.relu: relu takes 1 inputs: x; it has 0",
        ),
        // A node cannot read itself or one behind it, so there are no cycles.
        (
            &mlp,
            "\"inputs\":[\"layer0\"]",
            "\"inputs\":[\"layer1\"]",
            "node layer0.relu: it reads \"layer1\", which is",
        ),
        (
            &mlp,
            "\"inputs\":[\"layer0\"]",
            "\"inputs\":[\"layer0.relu\"]",
            "node layer0.relu: it reads \"layer0.relu\"",
        ),
        (
            &mlp,
            "\"operator\":\"pixels\"",
            "\"operator\":\"relu\"",
            "node pixels (relu): x holds U32, and F32",
        ),
        (
            &mlp,
            "\"inputs\":[\"layer0.relu\"]",
            "\"inputs\":[\"layer0\"]",
            "node layer0.relu: the last node does not",
        ),
        (
            &mlp,
            "{\"p\":0.25}",
            "{\"p\":1.0}",
            "node layer0.dropout: p: must be a number, at least 0 and below 1",
        ),
        (&mlp, "{\"p\":0.25}", "{\"p\":\"half\"}", "node layer0.dropout: p: must be a number"),
        (&mlp, "{\"p\":0.25}", "{}", "node layer0.dropout: the attribute p is missing"),
        (&mlp, "{\"p\":0.25}", "{\"p\":0.25,\"p\":0.5}", "node layer0.dropout: the attribute p stands twice"),
        (&mlp, "{\"p\":0.25}", "{\"p\":0.25,\"q\":1}", "node layer0.dropout: dropout has no attribute \"q\""),
        (
            &mlp,
            "\"below\":3",
            "\"below\":4",
            "node layer1, the last, makes the logits [2, 3], which must be [N, V]",
        ),
        (&resnet, "\"stride\":1", "\"stride\":0", "node stem: stride: must be an integer, 1 to 32767"),
        (
            &resnet,
            "\"padding\":1",
            "\"padding\":3",
            "node stem (conv2d_v2): padding (3) must be below the kernel's",
        ),
        (&resnet, "\"padding\":1", "\"padding\":-1", "node stem: padding: must be an integer, 0 to 32767"),
        (
            &gpt,
            "\"heads\":2",
            "\"heads\":3",
            "node block0.attention (attention): the samples (2) must divide N = 10",
        ),
        (
            &gpt,
            "\"shape\":[5,8]",
            "\"shape\":[4,8]",
            "node embedding (position_embedding): 2 samples of T = 4",
        ),
        (&gpt, "\"below\":19", "\"below\":20", "micro graph: "),
    ] {
        if why == "unreachable" {
            continue;
        }
        let error = refused(text, from, to);
        if !error.starts_with(why) {
            others.push(format!("{from} as {to}: {error}, not {why}"));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn huge_sizes_are_refused_before_anything_is_made_of_them() {
    let file = |inputs: &str, parameter: &str, node: &str, labels: u32| {
        format!(
            r#"{{"format": "{FORMAT}", "micro_batch": 1, "inputs": {{"name": "values", "shape": {inputs}}},
"labels": {{"shape": [{labels}], "below": 2}}, "parameters": [{{"name": "w", "shape": {parameter}}}],
"nodes": [{node}], "optimizer": {{"kind": "sgd", "momentum": 0}}}}"#
        )
    };
    let linear = r#"{"name": "out", "operator": "matmul", "inputs": ["inputs", "w"]}"#;
    assert!(compile(&file("[3, 4]", "[2, 4]", linear, 3)).is_ok());
    let big = compile(&file("[1000000, 4]", "[100000, 4]", linear, 1_000_000)).unwrap_err().0;
    assert_eq!(big, "node out (matmul): a tensor has more than 2147483648 elements: [1000000, 100000]");
    let conv = r#"{"name": "c", "operator": "conv2d", "inputs": ["i", "w"], "attributes": {"stride": 1, "padding": 100}}"#;
    let image = r#"{"name": "i", "operator": "image", "inputs": ["inputs"]}, "#;
    let big = compile(&file("[2, 1, 9, 9]", "[100000, 101, 101, 1]", &format!("{image}{conv}"), 1));
    assert_eq!(
        big.unwrap_err().0,
        "node c (conv2d): a tensor has more than 2147483648 elements: [2, 109, 109, 100000]"
    );
    let many = vec![linear; NODES_MAX + 1].join(",");
    let many = compile(&file("[3, 4]", "[2, 4]", &many, 3)).unwrap_err().0;
    assert_eq!(many, format!("nodes: a network has 1 to {NODES_MAX}"));
    let deep = format!("{{\"nodes\": [{{\"attributes\": {{\"p\": {}", "[".repeat(100_000));
    assert!(compile(&deep).unwrap_err().0.contains("recursion limit"));
    assert!(
        compile(&" ".repeat(NETWORK_MAX as usize + 1))
            .unwrap_err()
            .0
            .starts_with("a network file has at most")
    );
}

#[test]
fn heads_are_normalised_as_whole_rows_are() {
    let file = |operator: &str, gain: u32, attributes: &str| {
        compile(&format!(
            r#"{{"format": "{FORMAT}", "micro_batch": 1, "inputs": {{"name": "values", "shape": [3, 6]}},
"labels": {{"shape": [3], "below": 6}}, "parameters": [{{"name": "g", "shape": [{gain}]}}],
"nodes": [{{"name": "out", "operator": "{operator}", "inputs": ["inputs", "g"], "attributes": {{{attributes}}}}}],
"optimizer": {{"kind": "sgd", "momentum": 0}}}}"#
        ))
    };
    let rows = file("rms_norm", 6, r#""epsilon": 0.5"#).unwrap();
    assert!(file("head_rms_norm", 6, r#""heads": 1, "epsilon": 0.5"#).unwrap() == rows);
    // Two heads have a sum of squares each.
    let heads = file("head_rms_norm", 3, r#""heads": 2, "epsilon": 0.5"#).unwrap();
    assert!(
        heads.micro.nodes.iter().any(|node| node.operator == "out"),
        "{:?}",
        heads.micro.nodes[0].operator
    );
    assert_eq!(decode(&encode(&heads)).unwrap(), heads);
    for (gain, count) in [(6, 2), (2, 2), (3, 1), (4, 65536)] {
        let error =
            file("head_rms_norm", gain, &format!(r#""heads": {count}, "epsilon": 0.5"#)).unwrap_err().0;
        let due = format!("node out (head_rms_norm): heads ({count}) of D = {gain} channels are not C = 6");
        assert_eq!(error, due);
    }
}

/// A network over tokens [2, 3] with these nodes behind `e`, rows [6, 4], and parameters `p` [4] and `t` [V, 4].
fn over_tokens(table: u32, nodes: &str, labels: u32) -> Result<Program> {
    compile(&format!(
        r#"{{"format": "{FORMAT}", "micro_batch": 2, "inputs": {{"name": "ids", "shape": [2, 3], "below": 5}},
"labels": {{"shape": [{labels}], "below": 4}}, "parameters": [{{"name": "e", "shape": [5, 4]}}, {{"name": "p", "shape": [4]}},
{{"name": "t", "shape": [{table}, 4]}}], "nodes": [{nodes}], "optimizer": {{"kind": "sgd", "momentum": 0}}}}"#
    ))
}

#[test]
fn encoders_are_compiled_and_their_sizes_checked() {
    let made = |operator: &str, inputs: &str, attributes: &str| {
        let name = operator.split('.').next().unwrap();
        format!(
            r#"{{"name": "{operator}", "operator": "{name}", "inputs": [{inputs}], "attributes": {{{attributes}}}}}"#
        )
    };
    let encoder = |padding: &str, heads: u32| {
        [
            made("padded_embedding", r#""e", "inputs""#, padding),
            made("position_embedding", r#""padded_embedding", "t""#, ""),
            made("first_row", r#""position_embedding", "t""#, ""),
            made("class_token", r#""first_row", "p""#, ""),
            made(
                "bidirectional_attention",
                r#""class_token", "class_token", "class_token""#,
                &format!(r#""heads": {heads}, "p": 0.5"#),
            ),
            made("first_position", r#""bidirectional_attention""#, ""),
            made("tanh", r#""first_position""#, ""),
        ]
        .join(", ")
    };
    let two_embeddings = |operator: &str, padding: &str| {
        [
            made(&format!("{operator}.1"), r#""e", "inputs""#, padding),
            made("padded_embedding", r#""e", "inputs""#, r#""ignore": 0"#),
            made("residual", &format!(r#""{operator}.1", "padded_embedding""#), ""),
            made("position_embedding", r#""residual", "t""#, ""),
            made("first_row", r#""position_embedding", "t""#, ""),
            made("class_token", r#""first_row", "p""#, ""),
            made("first_position", r#""class_token""#, ""),
        ]
        .join(", ")
    };
    assert!(over_tokens(3, &two_embeddings("padded_embedding", r#""ignore": 0"#), 2).is_ok());
    let nodes = encoder(r#""ignore": 0"#, 2);
    for table in [3, 7] {
        let program = over_tokens(table, &nodes, 2).unwrap();
        assert_eq!(decode(&encode(&program)).unwrap(), program);
    }
    for kind in ["last_position", "mean_positions"] {
        let program = over_tokens(3, &nodes.replace("first_position", kind), 2).unwrap();
        assert_eq!(decode(&encode(&program)).unwrap(), program);
    }
    let without = nodes.replace("padded_embedding", "embedding").replace(r#""ignore": 0"#, "");
    assert!(over_tokens(3, &without, 2).unwrap() != over_tokens(3, &nodes, 2).unwrap());
    for (table, nodes, why) in [
        (
            3,
            encoder(r#""ignore": 5"#, 2),
            "node padded_embedding (padded_embedding): ignore (5) must be below the table's rows, 5",
        ),
        (3, encoder("", 2), "node padded_embedding: the attribute ignore is missing"),
        (
            3,
            encoder(r#""ignore": 0"#, 3),
            "node bidirectional_attention (bidirectional_attention): the samples (2) must divide N = 8",
        ),
        (
            3,
            two_embeddings("embedding", ""),
            "node padded_embedding (padded_embedding): an earlier embedding of the same table and ids has ignore none, this one 0",
        ),
        (
            3,
            two_embeddings("padded_embedding", r#""ignore": 1"#),
            "node padded_embedding (padded_embedding): an",
        ),
        (
            2,
            encoder(r#""ignore": 0"#, 2),
            "node position_embedding (position_embedding): 2 samples of T = 2 positions, or fewer",
        ),
        (
            1 << 15,
            encoder(r#""ignore": 0"#, 2),
            "node position_embedding (position_embedding): a table with more rows than",
        ),
    ] {
        let error = over_tokens(table, &nodes, 2).unwrap_err().0;
        assert!(error.starts_with(why), "{error}");
    }
    // The sizes of images bound a class token's.
    let long = format!(
        r#"{{"format": "{FORMAT}", "micro_batch": 1, "inputs": {{"name": "values", "shape": [32767, 4]}}, "labels": {{"shape": [32768], "below": 4}},
"parameters": [{{"name": "p", "shape": [4]}}], "nodes": [{}], "optimizer": {{"kind": "sgd", "momentum": 0}}}}"#,
        made("class_token", r#""inputs", "p""#, "")
    );
    let error = compile(&long).unwrap_err().0;
    assert!(error.contains("a sample has 32767 rows of 4 channels; each is at most 32766"), "{error}");
    assert!(compile(&long.replace("32767", "32766").replace("32768", "32767")).is_ok());
}

#[test]
fn padding_is_hidden_by_an_id_and_its_attributes_are_checked() {
    let text = line(ENCODER);
    let program = compile(&text).unwrap();
    assert_eq!(decode(&encode(&program)).unwrap(), program);
    let bodies = |program: &Program, name: &str| {
        program.micro.nodes.iter().filter(|node| node.primitive.name() == name).count()
    };
    for (name, count) in
        [("padding_scale_mask.v1", 2), ("padding_softmax_backward.v1", 2), ("zero_padding.v1", 4)]
    {
        assert_eq!(bodies(&program, name), count, "{name}");
    }
    // Another id is another program.
    for id in ["1", "18"] {
        let other = text.replace("\"heads\":2,\"ignore\":0", &format!("\"heads\":2,\"ignore\":{id}"));
        assert!(compile(&other).unwrap() != program, "{id}");
    }
    let node = "node block0.attention";
    let of_positions = text.replacen("\"block0.value\",\"inputs\"", "\"block0.value\",\"positions\"", 1);
    let error = compile(&of_positions).unwrap_err().0;
    assert!(error.starts_with(node) && error.contains("ids holds F32, and U32 is wanted"), "{error}");
    for (from, to, why) in [
        ("\"heads\":2,\"ignore\":0", "\"heads\":2", "the attribute ignore is missing"),
        ("\"heads\":2,\"ignore\":0", "\"heads\":2,\"ignore\":-1", "ignore: must be an integer"),
        ("\"heads\":2,\"ignore\":0", "\"heads\":2,\"ignore\":0.5", "ignore: must be an integer"),
        ("\"heads\":2,\"ignore\":0", "\"heads\":2,\"ignore\":2147483648", "ignore: must be an integer"),
        ("\"heads\":2,\"ignore\":0", "\"heads\":0,\"ignore\":0", "heads: must be an integer"),
        ("\"heads\":2,\"ignore\":0", "\"heads\":3,\"ignore\":0", "the samples (2) must divide N = 12"),
        (
            "\"heads\":2,\"ignore\":0",
            "\"heads\":2,\"ignore\":19",
            "ignore (19) must be an id of the inputs, which are below 19",
        ),
        (
            "\"heads\":2,\"ignore\":0",
            "\"heads\":2,\"padding\":0",
            "padded_attention has no attribute \"padding\"",
        ),
        ("\"block0.value\",\"inputs\"", "\"block0.value\"", "padded_attention takes 4 inputs: q, k, v, ids"),
    ] {
        let error = refused(&text, from, to);
        assert!(error.starts_with(node) && error.contains(why), "{error}");
    }
    // A class token in front: there is no id for it.
    let mut token: Value = serde_json::from_str(ENCODER).unwrap();
    let nodes = token["nodes"].as_array_mut().unwrap();
    for part in &mut nodes[2..5] {
        part["inputs"][0] = "token".into();
    }
    let made = r#"{"name": "token", "operator": "class_token", "inputs": ["placed", "block0.query.bias"]}"#;
    nodes.insert(2, serde_json::from_str(made).unwrap());
    let error = compile(&token.to_string()).unwrap_err().0;
    assert!(error.contains("the ids (12) must be as many as N = 14 rows"), "{error}");
}

/// Changes leaf `at` of a value, counted in the order of the file.
fn change(value: &mut Value, at: &mut usize, to: &Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|inner| change(inner, at, to)),
        Value::Object(all) => all.values_mut().for_each(|inner| change(inner, at, to)),
        leaf => {
            if *at == 0 {
                *leaf = to.clone();
            }
            *at = at.wrapping_sub(1);
        }
    }
}

#[test]
fn changed_files_are_refused_or_give_programs_that_read_back() {
    let numbers = [0u32, 1, 2, 3, 4, 6, 8, 64, 32_767, 65_536, 1 << 24, (1 << 31) - 1, u32::MAX];
    let operators = NODE_KINDS.iter().map(|kind| Value::from(kind.name));
    let texts = ["inputs", "head", "layer0", "stem", "block0.query.bias", "zeros", "tiebreak network 1"];
    let others = texts.map(Value::from).into_iter().chain(operators).chain(numbers.map(Value::from));
    let others: Vec<Value> = others.chain([Value::from(0.5), Value::from(-1), Value::Null]).collect();
    let (mut word, mut compiled) = (1u32, 0);
    let mut draw = |below: usize| {
        // xorshift32 (Marsaglia, 2003).
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word as usize % below
    };
    for text in [MLP, RESNET, GPT, ENCODER] {
        let whole: Value = serde_json::from_str(text).unwrap();
        for _ in 0..120 {
            let mut changed = whole.clone();
            for _ in 0..1 + draw(3) {
                change(&mut changed, &mut draw(900), &others[draw(others.len())]);
            }
            if let Ok(program) = compile(&changed.to_string()) {
                assert_eq!(decode(&encode(&program)).unwrap(), program);
                compiled += 1;
            }
        }
    }
    assert!(compiled > 20, "{compiled}");
}
