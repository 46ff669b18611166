//! Models of network files in evaluation mode: those of the built-in models have their graphs, and samples that would depend on one
//! another are refused.

use super::tests::{ENCODER, GPT, MLP, MLP_TABLE, RESNET, RESNET_TABLE, unnamed};
use super::*;
use crate::program::evaluation::evaluation_graph;
use crate::program::inference::{self, Writer, inference_step};
use crate::program::models::Model;
use crate::program::step::inference_graph;

#[test]
fn networks_of_built_in_models_have_their_graphs() {
    let gpt = "kind = 'gpt'\nvocabulary = 19\ncontext = 5\nlayers = 2\nheads = 2\nwidth = 8\ndropout = 0.1";
    for (text, table) in [(MLP, MLP_TABLE), (RESNET, RESNET_TABLE), (GPT, gpt)] {
        let built_in: Model = toml::from_str(table).unwrap();
        let two = format!("{{\"digits\": 2, {}", text.trim_start_matches('{'));
        for (text, digits) in [(text, 3), (&two, 2)] {
            let (program, model) = model(text).unwrap();
            assert!(program == compile(text).unwrap());
            let products = ProductTable::uniform(digits);
            for samples in [1, 2, 5] {
                assert_eq!(model.network().batch(samples), built_in.batch(samples));
                assert_eq!(model.error(samples), None);
                let much = model.error(1 << 31).unwrap();
                assert!(much.ends_with("samples have more than 2^31 - 1 elements"), "{much}");
                for graph in [inference_graph, evaluation_graph] {
                    let own = unnamed(&graph(model.network(), &model.products, samples));
                    assert!(own == unnamed(&graph(&*built_in, &products, samples)), "{table} {samples}");
                }
            }
        }
    }
}

const DECODER: &str = include_str!("../../../../../assets/networks/decoder.json");

/// The step over caches, too: so an answer of such a network has the bits of the built-in model's.
#[test]
fn a_network_of_a_built_in_decoder_has_its_steps() {
    let gpt = "kind = 'gpt'\nvocabulary = 19\ncontext = 5\nlayers = 2\nheads = 2\nwidth = 8";
    let built_in: Model = toml::from_str(gpt).unwrap();
    let (_, network) = model(GPT).unwrap();
    let products = ProductTable::uniform(3);
    let [own, theirs] = [Writer::Network(&network), Writer::Job(&built_in, &products)];
    assert_eq!([own, theirs].map(Writer::vocabulary), [Some(19); 2]);
    assert_eq!([own, theirs].map(Writer::context), [5; 2]);
    for shape in [[1, 1], [1, 5], [3, 2]] {
        let [own, theirs] = [own, theirs].map(|writer| unnamed(&inference_step(writer, shape).unwrap()));
        assert!(own == theirs, "{shape:?}");
    }
    // A receipt says by which keys the model is named.
    assert_ne!(inference::settings(own), inference::settings(theirs));
    let (_, decoder) = model(DECODER).unwrap();
    assert_eq!(decoder.attentions(), Ok(&[[4, 2], [8, 1]][..]));
    assert_eq!(inference::settings(Writer::Network(&decoder)), Some(decoder.settings()));
}

/// A network of so many positions, with an attention of so many heads.
fn sized(positions: u32, heads: Option<u32>) -> String {
    let attention = heads.map_or(String::new(), |heads| {
        format!(
            r#"{{"name": "a", "operator": "attention", "inputs": ["e", "e", "e"], "attributes": {{"heads": {heads}, "p": 0}}}},"#
        )
    });
    let last = if heads.is_some() { "a" } else { "e" };
    format!(
        r#"{{"format": "{FORMAT}", "micro_batch": 1, "inputs": {{"name": "tokens", "shape": [{positions}], "below": 2}},
"labels": {{"shape": [{positions}], "below": 2}},
"parameters": [{{"name": "t", "shape": [2, 5]}}, {{"name": "h", "shape": [2, 5]}}],
"nodes": [{{"name": "e", "operator": "embedding", "inputs": ["t", "inputs"]}}, {attention}
{{"name": "l", "operator": "matmul", "inputs": ["{last}", "h"]}}], "optimizer": {{"kind": "sgd", "momentum": 0}}}}"#
    )
}

/// A network writes text only if its rows depend on no later position. Others evaluate all the same.
#[test]
fn networks_that_write_no_text_are_refused_by_name() {
    let own = |text: &str| {
        let (_, model) = model(text).unwrap();
        let writer = Writer::Network(&model);
        let refused = model.attentions().err().map(str::to_string);
        let found = Writer::of_network(&model).err();
        assert!(refused.is_none() || refused == found);
        assert_eq!(writer.vocabulary().is_none(), refused.is_some());
        assert_eq!(inference_step(writer, [1, 1]).is_none(), refused.is_some());
        assert_eq!(inference::caches(writer, 1).is_none(), refused.is_some());
        assert_eq!(inference::settings(writer).is_none(), refused.is_some());
        found.unwrap_or("none".into())
    };
    let decoder = serde_json::from_str::<Value>(DECODER).unwrap().to_string();
    assert_eq!(own(&decoder), "none");
    let node = |from: &str, to: &str| decoder.replace(from, to);
    let behind = |last: &str| decoder.replace("}],\"optimizer\"", &format!("}},{last}],\"optimizer\""));
    for (text, why) in [
        (
            node("\"operator\":\"attention\"", "\"operator\":\"bidirectional_attention\""),
            "node again (bidirectional_attention): its positions attend to those behind them",
        ),
        (
            behind(r#"{"inputs":["logits"],"name":"end","operator":"last_position"}"#).replace("[14]", "[2]"),
            "node end (last_position): it leaves one row of each text",
        ),
        (
            behind(r#"{"inputs":["logits"],"name":"end","operator":"mean_positions"}"#)
                .replace("[14]", "[2]"),
            "node end (mean_positions): it leaves one row of each text",
        ),
        (
            behind(
                r#"{"inputs":["logits"],"name":"turn","operator":"exchange"},{"inputs":["turn"],"name":"end","operator":"exchange"}"#,
            ),
            "node turn (exchange): it makes the positions of a text its channels",
        ),
        (
            behind(r#"{"inputs":["logits"],"name":"end","operator":"slice_positions","attributes":{"first":0,"step":1,"count":1}}"#)
                .replace("[14]", "[2]"),
            "node end (slice_positions): it puts positions in other places",
        ),
        (
            node("\"below\":11,\"name\"", "\"below\":10,\"name\""),
            "node logits (matmul): it makes logits of 11 classes, and the inputs are below 10",
        ),
        (
            ENCODER.into(),
            "node block0.attention (padded_attention): its positions attend to those behind them",
        ),
        (MLP.into(), "node pixels (pixels): it is for images and numbers"),
    ] {
        let found = own(&text);
        assert!(found.starts_with(why), "{why}: {found}");
    }
    for (positions, why) in [
        (46_340, "none"),
        (
            65_537,
            "a sample has 65537 ids and 65537 labels; a text needs a label for each id, and at most 65536",
        ),
    ] {
        assert_eq!(own(&sized(positions, None)), why);
    }
    // Five heads have fewer than 2^31 scores of 20,724 positions, and with a place more they have too many.
    let too_many = "a step of all 20724 positions has a tensor of 2^31 elements or more";
    assert_eq!([20_723, 20_724].map(|t| own(&sized(t, Some(5)))), ["none", too_many]);
    let (_, numbers) = small("a matmul inputs p").unwrap();
    assert!(numbers.attentions().unwrap_err().starts_with("its inputs are binary32"));
}

/// A network over `inputs` [4, 4] of 2 samples, two rows each, with a parameter `p` [4, 4], a vector `v` [4] and a table `t` [2, 4].
fn small(nodes: &str) -> Result<(Program, NetworkModel)> {
    let node = |words: &str| {
        let (head, attributes) = words.split_once(" | ").unwrap_or((words, ""));
        let words: Vec<&str> = head.split(' ').collect();
        let inputs: Vec<String> = words[2..].iter().map(|input| format!("{input:?}")).collect();
        format!(
            r#"{{"name": "{}", "operator": "{}", "inputs": [{}], "attributes": {{{attributes}}}}}"#,
            words[0],
            words[1],
            inputs.join(", ")
        )
    };
    let nodes: Vec<String> = nodes.split("; ").map(node).collect();
    let own = |name: &str| nodes.iter().any(|node| node.contains(&format!("\"{name}\"")));
    let parameters =
        [("p", "[4, 4]"), ("v", "[4]"), ("t", "[2, 4]")].into_iter().filter(|(name, _)| own(name));
    let parameters: Vec<String> =
        parameters.map(|(name, shape)| format!(r#"{{"name": "{name}", "shape": {shape}}}"#)).collect();
    model(&format!(
        r#"{{"format": "{FORMAT}", "micro_batch": 2, "inputs": {{"name": "values", "shape": [4, 4]}},
"labels": {{"shape": [4], "below": 4}}, "parameters": [{}], "nodes": [{}], "optimizer": {{"kind": "sgd", "momentum": 0}}}}"#,
        parameters.join(", "),
        nodes.join(", ")
    ))
}

#[test]
fn samples_that_depend_on_one_another_are_refused() {
    let attention = "\"heads\": 2, \"p\": 0.5";
    // Constants that parameters make may be weights, with dropout too; a sample has two rows.
    for nodes in [
        "a matmul inputs p",
        "w residual p p; d dropout w | \"p\": 0.5; a matmul inputs d",
        "w matmul p p; n layer_norm w v v | \"epsilon\": 1; a matmul inputs n",
        "a position_embedding inputs t",
        "x exchange inputs; y exchange x; a matmul y p",
        "s slice_positions inputs | \"first\": 1, \"step\": 1, \"count\": 1; x place_positions s | \"first\": 0, \"step\": 1, \"count\": 2; a matmul x p",
        "s slice_channels inputs | \"first\": 1, \"step\": 2, \"count\": 2; x place_channels s | \"first\": 0, \"step\": 3, \"count\": 4; a matmul x p",
        "s slice_rows p | \"first\": 1, \"step\": 2, \"count\": 2; t2 place_rows s | \"first\": 0, \"step\": 3, \"count\": 4; a matmul inputs t2",
        "m mul inputs inputs; g gain m v; s sigmoid g; r rows s; a matmul r p",
    ] {
        let (_, model) = small(nodes).unwrap();
        assert_eq!(model.network().batch(3)[0].shape, [6, 4], "{nodes}");
        assert_eq!(model.network().batch(3)[1].shape, [6], "{nodes}");
    }
    for (nodes, why) in [
        ("m matmul inputs p; a matmul m inputs", "node a (matmul): weight depends on the inputs"),
        ("m matmul inputs p; a matmul p m", "node a (matmul): weight depends on the inputs"),
        ("m matmul inputs p; a first_row m m", "node a (first_row): table depends on the inputs"),
        ("a residual inputs p", "node a (residual): y has no rows of samples"),
        ("a swiglu p inputs", "node a (swiglu): x has no rows of samples"),
        ("a mul inputs p", "node a (mul): y has no rows of samples"),
        (
            "u last_position p; m matmul inputs u; w matmul p u; a matmul m w",
            "node u (last_position): its inputs have no rows of samples",
        ),
        (
            "u mean_positions p; m matmul inputs u; w matmul p u; a matmul m w",
            "node u (mean_positions): its inputs have no rows of samples",
        ),
        (
            "u exchange p; y exchange u; w matmul p y; a matmul inputs w",
            "node u (exchange): its inputs have no rows of samples",
        ),
        (
            "u slice_positions p | \"first\": 0, \"step\": 1, \"count\": 2; a matmul inputs u",
            "node u (slice_positions): its inputs have no rows of samples",
        ),
        (
            "m matmul inputs p; a slice_rows m | \"first\": 0, \"step\": 1, \"count\": 4",
            "node a (slice_rows): table depends on the inputs",
        ),
        (
            &format!("m matmul inputs p; a attention m p m | {attention}"),
            "node a (attention): k has no rows of samples",
        ),
        (
            &format!("w attention p p p | {attention}; a matmul inputs w"),
            "node w (attention): its inputs have no rows of samples",
        ),
        (
            "w position_embedding p t; a matmul inputs w",
            "node w (position_embedding): its inputs have no rows of samples",
        ),
        (
            "w rotary p | \"heads\": 2, \"theta\": 2; a matmul inputs w",
            "node w (rotary): its inputs have no rows of samples",
        ),
    ] {
        let error = small(nodes).err().map_or("none".into(), |error| error.0);
        assert!(error.starts_with(why), "{nodes}: {error}");
    }
    // The channels of a vector would be samples.
    let token = r#"{"name": "a", "operator": "class_token", "inputs": ["inputs", "v"]}"#;
    let of_vector = format!(
        r#"{{"format": "{FORMAT}", "micro_batch": 1, "inputs": {{"name": "values", "shape": [4]}},
"labels": {{"shape": [2], "below": 4}}, "parameters": [{{"name": "v", "shape": [4]}}], "nodes": [{token}],
"optimizer": {{"kind": "sgd", "momentum": 0}}}}"#
    );
    compile(&of_vector).unwrap();
    let error = model(&of_vector).err().unwrap().0;
    assert!(error.starts_with("node a (class_token): x has shape [4], so that"), "{error}");
}

/// Each input of each operator is one of rows, or one that all samples share.
#[test]
fn every_input_of_an_operator_is_known() {
    let shared: HashSet<&str> = ["weight", "bias", "gain", "table", "token"].into();
    let rows: HashSet<&str> = ["x", "y", "q", "k", "v", "tokens", "ids"].into();
    let names: HashSet<&str> =
        NODE_KINDS.iter().flat_map(|kind| kind.inputs.iter().map(|input| input.name)).collect();
    assert_eq!(names, &shared | &rows);
}

#[test]
fn settings_are_what_acts_in_an_evaluation() {
    let settings = |text: &str| model(text).unwrap().1.settings();
    let line = |text: &str| serde_json::from_str::<Value>(text).unwrap().to_string();
    let mlp = line(MLP);
    let found: Vec<String> =
        settings(&mlp).into_iter().map(|(key, value)| format!("{key} {value}")).collect();
    assert_eq!(
        found,
        [
            "network.digits 3",
            "network.inputs 256 1 7",
            "network.rows 1",
            "node.0 pixels pixels inputs",
            "node.1 layer0 linear pixels layer0.weight layer0.bias",
            "node.2 layer0.relu relu layer0",
            "node.3 layer0.dropout dropout layer0.relu",
            "node.4 layer1 linear layer0.dropout layer1.weight layer1.bias",
            "parameter.layer0.bias 5",
            "parameter.layer0.weight 5 7",
            "parameter.layer1.bias 3",
            "parameter.layer1.weight 3 5",
        ]
    );
    let (encoder, resnet) = (line(ENCODER), line(RESNET));
    assert!(
        settings(&resnet).iter().any(|(_, text)| text.ends_with("stem_norm.gain stem_norm.bias 3727c5ac"))
    );
    for (text, from, to, same) in [
        (&mlp, "\"p\":0.25", "\"p\":0.5", true),
        (&mlp, "\"beta1\":0.5", "\"beta1\":0.25", true),
        (&mlp, "\"micro_batches\":3", "\"micro_batches\":2", true),
        (&resnet, "\"norm_momentum\":0.1", "\"norm_momentum\":0.2", true),
        (&mlp, "\"micro_batch\":2", "\"digits\":2,\"micro_batch\":2", false),
        (&mlp, "\"micro_batch\":2", "\"grid\":{\"bits\":32,\"floor\":0},\"micro_batch\":2", false),
        (&resnet, "\"stride\":2", "\"stride\":1", false),
        (&encoder, "\"heads\":2,\"ignore\":0", "\"heads\":1,\"ignore\":0", false),
        (&encoder, "\"heads\":2,\"ignore\":0", "\"heads\":2,\"ignore\":1", false),
        (&encoder, "[\"placed\",\"block0.out\"]", "[\"block0.out\",\"placed\"]", false),
    ] {
        let changed = text.replace(from, to);
        assert!(changed != *text, "{from}");
        assert_eq!(settings(&changed) == settings(text), same, "{from} as {to}");
    }
}
