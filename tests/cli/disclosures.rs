//! `tiebreak verdict disclose` of verdicts on receipts: the signer's bytes narrow the verdict, and an engine that computes another tile
//! writes nothing.

use std::fs;
use std::path::Path;

use tiebreak_audit::{answers, predictions};
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{AnswerClaim, AnswerRuling, AnswerVerdict, Origin, Pass};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use tiebreak_job::initial::Drawn;
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::tensor::{self, tile_range};
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::predict::{
    self,
    traced::{SamplePass, sample_leaves},
};
use tiebreak_run::run::{arrays, initial};

use super::answers::small;
use super::common::npy;
use super::predictions::logistic;
use super::{output, path};

/// An engine that shows other bytes of one node than it goes on with, as a trace that somebody edited has them.
struct Edited {
    cpu: Cpu,
    node: usize,
    bytes: Vec<u8>,
}

struct Shown<'a> {
    inner: Option<&'a mut dyn Observer>,
    node: usize,
    bytes: Vec<u8>,
}

impl Observer for Shown<'_> {
    fn node(
        &mut self,
        index: usize,
        node: &tiebreak_contract::program::graph::Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let bytes = if index == self.node { &self.bytes[..] } else { bytes };
        if let Some(inner) = &mut self.inner {
            inner.node(index, node, bytes, inputs)?;
        }
        Ok(None)
    }
}

impl Engine for Edited {
    tiebreak_engine::forward!(self => self.cpu; upload, read, compile);

    fn describe(&self) -> String {
        "edited trace".into()
    }
    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let shown = &mut Shown { inner: observer, node: self.node, bytes: self.bytes.clone() };
        self.cpu.run(compiled, inputs, Some(shown))
    }
}

/// A signer's files: the run, its job and weights, and the key.
struct Signer {
    folder: tempfile::TempDir,
    job_file: String,
    run: String,
    text: String,
    job: Job,
    table: Vec<StateTensor>,
    weights: Vec<Vec<u8>>,
    key: PrivateKey,
}

impl Signer {
    fn new(job: &str, trained: impl FnOnce(&Path) -> String) -> Signer {
        let folder = tempfile::tempdir().unwrap();
        let (run, job_file, key) =
            (trained(folder.path()), path(folder.path(), job), folder.path().join("key"));
        assert_eq!(output(&["key", "new", key.to_str().unwrap(), "--name", "me.example"]).0, 0);
        let key = PrivateKey::from_text(&fs::read_to_string(key).unwrap()).unwrap();
        let text = fs::read_to_string(&job_file).unwrap();
        let job = Job::parse("job", &text).unwrap();
        let program = job.program(None).unwrap();
        let model = [Path::new(&run).join("model.safetensors")];
        let mut weights = initial::from_weights(&model, &job, &program, &Drawn::default()).unwrap();
        weights.truncate(program.released());
        let mut table = program.state();
        table.truncate(program.released());
        Signer { folder, job_file, run, text, job, table, weights, key }
    }

    fn at(&self, name: &str) -> String {
        path(self.folder.path(), name)
    }

    /// The receipt's text and its trace, from a command.
    fn written(&self, command: &[&str]) -> (String, Vec<u8>) {
        let [receipt, trace, key] = ["receipt.json", "trace", "key"].map(|name| self.at(name));
        let files = ["--receipt", &receipt, "--trace", &trace, "--key", &key];
        assert_eq!(output(&[command, &files].concat()).0, 0);
        (fs::read_to_string(receipt).unwrap(), fs::read(trace).unwrap())
    }

    /// The verdict that a check of a receipt with an edited trace writes: on the first node that differs.
    fn accused(&self, receipt: &str, trace: &AnswerTrace, more: &[&str]) -> String {
        let [lie, edited, verdict] = ["lie.json", "edited.trace", "first.json"].map(|name| self.at(name));
        fs::write(&lie, receipt).unwrap();
        fs::write(&edited, trace.encode()).unwrap();
        let check = ["receipt", "check", &lie, &self.run, "--trace", &edited, "--verdict", &verdict];
        assert_eq!(output(&[&check, more].concat()).0, 1);
        verdict
    }

    fn disclosed(&self, verdict: &str, more: &[&str]) -> (i32, Result<Vec<u8>, String>) {
        let tile = self.at("tile.bin");
        let _ = fs::remove_file(&tile);
        let (code, _, stderr) = output(&[&["verdict", "disclose", verdict, "--out", &tile], more].concat());
        (code, fs::read(&tile).map_err(|_| stderr))
    }

    fn refuses(&self, verdict: &str, more: &[&str], code: i32, says: &str) {
        let (found, written) = self.disclosed(verdict, more);
        let why = written.expect_err("nothing is written");
        assert!(found == code && why.contains(says), "{more:?}: {found} {why}");
    }

    /// A claim about a tile that the signer's engine computed, though the trace shows other operands: the signer's bytes narrow it.
    fn narrows(&self, receipt: String, claim: AnswerClaim, (output_of, more): (&[u8], &[&str])) -> String {
        let AnswerClaim::Tile(claim) = claim else { panic!("a claim of kind {}", claim.kind()) };
        assert_eq!(claim.disclosed, None);
        let bytes = &output_of[tile_range(output_of.len(), claim.tile)];
        let wide = AnswerVerdict::new(receipt, AnswerClaim::Tile(claim));
        assert!(matches!(wide.examine(None).outcome, Ok(AnswerRuling::Convicts(_))));
        let [verdict, tile, small] = ["wide.json", "tile.bin", "small.json"].map(|name| self.at(name));
        fs::write(&verdict, wide.to_bytes()).unwrap();
        let model = self.at("run/model.safetensors");
        for of in [
            &["--run", &self.run][..],
            &["--run", &self.run, "--engine", "reference"],
            &["--run", &model, "--job", &self.job_file],
        ] {
            let found = self.disclosed(&verdict, &[of, more].concat());
            assert_eq!(found, (0, Ok(bytes.to_vec())), "{of:?}");
        }
        assert_eq!(output(&["verdict", "narrow", &verdict, "--tile", &tile, "--out", &small]).0, 0);
        let (code, stdout, _) = output(&["verdict", "check", &small]);
        assert!(code == 1 && stdout.contains(": element "), "{code} {stdout}");
        self.refuses(&small, &[&["--run", &self.run], more].concat(), 2, "has the tile's bytes already");
        self.refuses(&verdict, &[&["--run", &model], more].concat(), 2, "name their job with --job");
        let away = self.at("none/tile.bin");
        let args = ["verdict", "disclose", &verdict, "--run", &self.run, "--out", &away];
        assert!(output(&[&args, more].concat()).2.contains("there is no folder"));
        verdict
    }
}

/// The last node of a kind that reads the output of another node, and that node.
fn reader(pass: &Pass, primitive: &str) -> (usize, usize) {
    let nodes = pass.graph.nodes.iter().enumerate();
    let mut of_kind = nodes.rev().filter(|(_, node)| node.primitive.name().starts_with(primitive));
    let found = of_kind.find_map(|(place, node)| {
        let mut operands = node.primitive.inputs().into_iter().filter_map(|id| match pass.origin(id) {
            Some(Origin::Node(operand)) => Some(*operand),
            _ => None,
        });
        operands.next().map(|operand| (place, operand))
    });
    found.expect("a node reads another one's output")
}

/// A node's output with two bits of each element changed, which nobody guesses, and what a trace has of it.
fn edited(graph: &Graph, node: usize, output: &[u8]) -> (Vec<u8>, TracedNode) {
    let ty = graph.tensor(graph.nodes[node].output);
    let mut bytes = output.to_vec();
    for element in bytes.chunks_mut(ty.dtype.size()) {
        element[0] ^= 1;
        *element.last_mut().unwrap() ^= 0x80;
    }
    let traced = TracedNode::new(ty, tensor::tile_values(&bytes));
    (bytes, traced)
}

#[test]
fn a_signer_discloses_the_tile_of_an_answer() {
    let signer = Signer::new("job.toml", |folder| small(folder, "0.01"));
    let asked = ["--prompt", "The quick", "--length", "50", "--temperature", "2", "--seed", "9"];
    let (text, trace) = signer.written(&[&["generate", &signer.run], &asked[..]].concat());
    let (honest, _) = Receipt::from_text(&text).unwrap();
    let model = signer.job.model().unwrap();
    let answerer = Answerer {
        model: Writer::Job(&model.model, &model.products),
        parameters: (&signer.table, &signer.weights),
        known: &[true; 128],
        ends: &[],
    };
    let graphs = answerer.window_graphs(&honest);
    let mut trace = AnswerTrace::decode(&trace, 50, &graphs).unwrap();
    let pass = Pass::of(&honest, &signer.text, 1).unwrap();
    let (node, operand) = reader(&pass, "product.v1");
    let outputs = answerer.outputs(&mut Cpu::new(1).unwrap(), &honest, 1, [node, operand].into()).unwrap();
    let (bytes, traced) = edited(&pass.graph, operand, &outputs[&operand]);
    trace.windows[1][operand] = traced;
    let lie = Receipt { traces: Some(answerer.traces_root(&honest, &trace)), ..honest.clone() };
    let text = lie.to_text(Some(&signer.key));
    // The edited bytes are nothing that an engine computes.
    let first = signer.accused(&text, &trace, &[]);
    signer.refuses(&first, &["--run", &signer.run], 3, "this engine computes another tile 0");
    let mut engine = Edited { cpu: Cpu::new(1).unwrap(), node: operand, bytes };
    let accuser = answers::Accuser {
        answerer: &answerer,
        job: &signer.text,
        receipt: (&lie, &text),
        tokenizer: None,
        opening: None,
        trace: Some(&trace),
    };
    let claim = accuser.tile_claim(&mut engine, (1, node, 1)).unwrap().unwrap();
    let verdict = signer.narrows(text.clone(), claim, (&outputs[&node], &[]));
    let other = ["--run", &signer.run, "--step", "1"];
    signer.refuses(&verdict, &other, 2, "is another model than the receipt's");
    signer.refuses(
        &verdict,
        &["--run", &signer.run, "--inputs", &first],
        2,
        "--inputs is for verdicts on rec",
    );
    // A token of another window that the model lacks.
    let mut outside = lie.clone();
    outside.prompt[0] = 1000;
    let wide = AnswerVerdict::from_bytes(&fs::read(&verdict).unwrap()).unwrap();
    let outside = AnswerVerdict { receipt: outside.to_text(Some(&signer.key)), ..wide };
    fs::write(&first, outside.to_bytes()).unwrap();
    signer.refuses(&first, &["--run", &signer.run], 4, "it has a token 1000");
    // Nothing is wrong with the tile of an honest receipt.
    let text = honest.to_text(Some(&signer.key));
    let honest_trace = answerer.trace(&mut Cpu::new(1).unwrap(), &honest, None, &mut |_| {}).unwrap();
    let accuser = answers::Accuser { receipt: (&honest, &text), trace: Some(&honest_trace), ..accuser };
    let claim = accuser.tile_claim(&mut Cpu::new(1).unwrap(), (1, node, 1)).unwrap().unwrap();
    fs::write(&first, AnswerVerdict::new(text.clone(), claim).to_bytes()).unwrap();
    signer.refuses(&first, &["--run", &signer.run], 2, "only a tile verdict that convicts");
}

#[test]
fn a_signer_discloses_the_tile_of_a_prediction() {
    let signer = Signer::new("logistic.toml", logistic);
    let inputs = signer.at("inputs.npy");
    let (text, trace) = signer.written(&["predict", &signer.run, "--inputs", &inputs]);
    let (honest, _) = Predictions::from_text(&text).unwrap();
    let model = signer.job.model().unwrap();
    let mut trace = AnswerTrace::decode(&trace, 0, &SamplePass::graphs(model, 10)).unwrap();
    let pass = Pass::of_sample(&honest, &signer.text, 7).unwrap();
    let (node, operand) = reader(&pass, "");
    let mut data = {
        let [array] = <[_; 1]>::try_from(arrays::read(Path::new(&inputs)).unwrap()).unwrap();
        predict::Inputs::of_array(array, &model.network().batch(1)[0]).unwrap()
    };
    let mut cpu = Cpu::new(1).unwrap();
    let weights = signer.table.iter().zip(&signer.weights);
    let released: Vec<Tensor> =
        weights.map(|(tensor, bytes)| cpu.upload(&tensor.ty(), bytes).unwrap()).collect();
    let sample = SamplePass::new(&mut cpu, model).unwrap();
    let wanted = [node, operand].into();
    let outputs = sample.outputs(&mut cpu, &released, &mut data, (&honest, 7), wanted).unwrap().outputs;
    let (bytes, traced) = edited(&pass.graph, operand, &outputs[&operand]);
    trace.windows[7][operand] = traced;
    let root = merkle::root(&sample_leaves(&honest, &trace));
    let lie = Predictions { traces: Some(root), ..honest };
    let text = lie.to_text(Some(&signer.key));
    let named = ["--run", &signer.run, "--inputs", &inputs];
    let first = signer.accused(&text, &trace, &named[2..]);
    signer.refuses(&first, &named, 3, "this engine computes another tile 0");
    let accuser = predictions::Accuser {
        job: (model, &signer.text),
        model: (&signer.table, &signer.weights),
        receipt: (&lie, &text),
        opening: None,
        trace: Some(&trace),
    };
    let mut engine = Edited { cpu, node: operand, bytes };
    let claim = accuser.tile_claim(&mut engine, &mut data, (7, node, 0)).unwrap().unwrap();
    let verdict = signer.narrows(text.clone(), claim, (&outputs[&node], &named[2..]));
    // Other data, too few data, another checkpoint.
    let [few, others] = [(7, 0.7f32), (10, 0.8)].map(|(samples, step)| {
        let floats =
            (0..samples * 3).flat_map(|i| (i as f32 * step).sin().to_le_bytes()).collect::<Vec<u8>>();
        let file = signer.at(&format!("inputs-{samples}.npy"));
        fs::write(&file, npy("<f4", &format!("({samples}, 3)"), &floats)).unwrap();
        file
    });
    let of = |inputs| ["--run", &signer.run, "--inputs", inputs];
    signer.refuses(&verdict, &of(&few), 2, "the verdict is on sample 7, and the data have 7");
    signer.refuses(&verdict, &of(&others), 2, "sample 7 of the data has the digest");
    let step = [&named[..], &["--step", "0"]].concat();
    signer.refuses(&verdict, &step, 2, "is another model than the receipt's");
}
