//! A verdict on a run as a page.

use super::path::{Leaf, inclusion, single};
use super::{Page, Tone, key_option};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::word_from_bytes;
use tiebreak_contract::program::graph::{TensorId, TensorType};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::leaf::{self, Slices};
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_dispute::verdict::{Claim, Fork, ProvenInput, Ruling, TileClaim, Verdict};
use tiebreak_job::computation::Computation;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::multiproof::blake3;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::{
    SLICE_BYTES, TILE_BYTES, digest_from_root, tile_count, tile_range, tile_value,
};
use tiebreak_record::commit::trace::{leaf_count, leaf_name, leaf_place};
use tiebreak_record::commit::tree_head::{Head, Signed};
use tiebreak_record::commit::{Malformed, merkle, table};
use tiebreak_run::run::shell;

/// The number of a tile's elements that are shown.
const SHOWN: usize = 8;

/// The subject of a verdict, derived from it after it was checked.
struct Subject<'v> {
    verdict: &'v Verdict,
    computation: Computation,
    head: Head,
    record: Option<Record>,
}

/// An element for people.
pub fn element_text(dtype: DType, word: u32) -> String {
    match dtype {
        DType::F32 => format!("{:e} (pattern {word:08x})", f32::from_bits(word)),
        DType::Bf16 => format!("{:e} (pattern {word:04x})", f32::from_bits(word << 16)),
        DType::U32 | DType::U8 => word.to_string(),
        DType::Q(_) => (word as i32).to_string(),
    }
}

/// A tensor's type for people.
pub fn type_text(ty: &TensorType) -> String {
    let dtype = match ty.dtype {
        DType::F32 => "binary32".into(),
        DType::U32 => "u32".into(),
        DType::U8 => "u8".into(),
        DType::Bf16 => "bfloat16".into(),
        DType::Q(digits) => format!("integers of {digits} bytes"),
    };
    format!("{:?} {dtype}", ty.shape)
}

/// The page of a verdict that lies in `file`; `key`: whom the reader knows to be the trainer.
///
/// # Errors
/// If the verdict does not hold together.
pub fn page(verdict: &Verdict, key: Option<&PublicKey>, file: &str) -> Result<String, Malformed> {
    let examination = verdict.examine(key);
    let outcome = examination.outcome?;
    let subject = Subject::of(verdict)?;
    let (title, tone, what, why) = match &outcome {
        Ruling::Convicts(finding) => {
            let who = verdict.run.trainer_key.as_deref().unwrap_or("a trainer without a key");
            let whose = match finding.signed {
                Signed::By => "",
                Signed::Unknown => " Whether this key is the trainer's is for the reader to know.",
            };
            let (what, why) =
                ("Convicted, by this file alone.", format!("{}. Signed by {who}.{whose}", finding.what));
            (format!("Step {} of a training run is wrong", finding.step), Tone::Bad, what, why)
        }
        Ruling::DoesNotConvict(why) => {
            ("A verdict that shows nothing".into(), Tone::Neutral, "Nobody is convicted.", why.to_string())
        }
        Ruling::NeedsReplay { step, .. } => {
            let why =
                format!("It names step {step} as a whole, which has to be replayed from the run's folder.");
            (
                format!("Step {step} of a training run is in question"),
                Tone::Neutral,
                "Not decided by this file.",
                why,
            )
        }
    };
    let mut page = Page::new(&title);
    page.outcome(tone, what, &why);
    subject.about(&mut page);
    if let Claim::Tile(claim) = &verdict.claim {
        subject.tile(&mut page, claim);
    } else {
        subject.values(&mut page);
    }
    page.heading("What was checked, in order");
    page.steps(&examination.steps);
    subject.hashes(&mut page);
    page.heading("Check it again");
    page.say("The file holds all that the check needs. It takes a second on any machine and asks nobody:");
    let trainer = key_option(verdict.run.trainer_key.as_deref(), key.map(PublicKey::to_text).as_deref());
    let run = if matches!(outcome, Ruling::NeedsReplay { .. }) { " --run FOLDER" } else { "" };
    page.commands(&[format!("tiebreak verdict check {}{trainer}{run}", shell::word(file))]);
    page.remark("Give, as KEY, the public key that you know to be the trainer's: a file or its text. The exit code is 1 if the file convicts, 0 if not, 4 if it does not hold together.");
    Ok(page.finish())
}

impl Subject<'_> {
    fn of(verdict: &Verdict) -> Result<Subject<'_>, Malformed> {
        let computation = verdict.computation()?;
        let (head, _) = Head::from_note(&verdict.head, None)?;
        let record = verdict.record.as_ref().map(|record| record.under(&head)).transpose()?;
        Ok(Subject { verdict, computation, head, record })
    }

    fn step(&self) -> Option<&StepRecord> {
        match &self.record {
            Some(Record::Step { step, .. }) => Some(step),
            _ => None,
        }
    }

    fn about(&self, page: &mut Page) {
        page.heading("What it is about");
        let kind = self.verdict.claim.kind().replace('_', " ");
        let mut facts = vec![("kind", kind)];
        if let Some(record) = &self.verdict.record {
            facts.push(("record", format!("{} of {}", record.index, self.head.size)));
        }
        let parameters = self.computation.program.parameter_count();
        facts.extend([
            ("job", format!("{} steps, {parameters} parameters", self.computation.job.steps)),
            ("program", self.verdict.run.program.to_string()),
            ("computation", self.computation.id.to_string()),
            ("run", self.head.run.to_string()),
        ]);
        page.facts(&facts);
    }

    /// The tile or element, by whom it is claimed and what it has to be.
    fn tile(&self, page: &mut Page, claim: &TileClaim) {
        let phase = Phase::from(claim.phase);
        let graph = graph_of(&self.computation.program, phase);
        let (Some(node), Some(step)) = (graph.nodes.get(claim.node), self.step()) else { return };
        let ty = graph.tensor(node.output);
        let tiles = tile_count(ty.bytes());
        page.heading("The operator");
        page.facts(&[
            ("step", step.step.to_string()),
            ("operator", format!("{} ({})", node.operator, node.primitive.name())),
            ("where", format!("{}, node {} of {}", phase_text(phase), claim.node, graph.nodes.len())),
            ("its output", type_text(ty)),
            (
                "tile",
                format!(
                    "{} of {tiles}: bytes {:?} of the output",
                    claim.tile,
                    tile_range(ty.bytes(), claim.tile)
                ),
            ),
        ]);
        page.heading("Both values");
        let slices = self.slices(step, phase, &claim.inputs);
        let elements = leaf::tile_elements(ty, claim.tile);
        match &claim.disclosed {
            Some(disclosed) => {
                let (element, size) = (disclosed.element, ty.dtype.size());
                let at = (element * size).checked_sub(tile_range(ty.bytes(), claim.tile).start);
                let bytes = at.and_then(|at| disclosed.bytes.0.get(at..at + size));
                let claimed = bytes.map_or("it lies in two tiles".into(), |bytes| {
                    element_text(ty.dtype, word_from_bytes(ty.dtype, bytes))
                });
                let words =
                    leaf::expected(graph, claim.node, element..element + 1, &slices).unwrap_or_default();
                let right = words.first().map_or(String::new(), |word| element_text(ty.dtype, *word));
                page.say(&format!(
                    "Element {element} of the output, {:?} by rows:",
                    index_of(&ty.shape, element)
                ));
                page.sides(&[("The trainer's", claimed, Some(false)), ("Computed again", right, Some(true))]);
            }
            None => {
                let words = leaf::expected(graph, claim.node, elements.clone(), &slices).unwrap_or_default();
                let bytes = leaf::tile_bytes(ty, claim.tile, &words);
                let right = Digest(tile_value(&bytes, claim.tile, tiles));
                page.say("The trainer published the hash of the tile, and not its bytes. Of the tile computed again the hash is another:");
                page.sides(&[
                    ("The trainer's hash of the tile", claim.value.to_string(), Some(false)),
                    ("Hash of the tile computed again", right.to_string(), Some(true)),
                ]);
                let shown: Vec<Vec<String>> = elements
                    .zip(&words)
                    .take(SHOWN)
                    .map(|(element, word)| vec![element.to_string(), element_text(ty.dtype, *word)])
                    .collect();
                page.fold(&format!(
                    "The first {} of {} elements that were computed",
                    shown.len(),
                    words.len()
                ));
                page.table(&["element", "value"], &shown);
                page.unfold();
            }
        }
        self.operands(page, step, phase, &claim.inputs);
    }

    /// The verified slices that a tile verdict carries.
    fn slices(&self, step: &StepRecord, phase: Phase, inputs: &[ProvenInput]) -> Slices {
        let mut slices = Slices::default();
        for id in (0..).map(TensorId).take(graph_of(&self.computation.program, phase).tensors.len()) {
            if let Some(Origin::Words(words)) = origin(
                &self.computation.program,
                &self.computation.job,
                &self.computation.seed,
                step.step,
                phase,
                id,
            ) {
                slices.insert_words(id, &words);
            }
        }
        for input in inputs {
            for (&slice, bytes) in input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES)) {
                slices.insert(TensorId(input.tensor), slice, bytes.to_vec());
            }
        }
        slices
    }

    /// The inputs of the recomputation.
    fn operands(&self, page: &mut Page, step: &StepRecord, phase: Phase, inputs: &[ProvenInput]) {
        let graph = graph_of(&self.computation.program, phase);
        page.heading("The recomputation");
        page.say("The scalar reference, which follows the contract of the arithmetic to the last bit, computed the operator from what the trainer itself has committed to:");
        let rows: Vec<Vec<String>> = inputs
            .iter()
            .map(|input| {
                let from = origin(
                    &self.computation.program,
                    &self.computation.job,
                    &self.computation.seed,
                    step.step,
                    phase,
                    TensorId(input.tensor),
                );
                let from = from.map_or(String::new(), |from| self.origin_text(&from));
                let read = format!("{} bytes", input.bytes.0.len());
                let ty = type_text(graph.tensor(TensorId(input.tensor)));
                vec![from, ty, read, input.commitment.digest.to_string()]
            })
            .collect();
        page.table(&["input", "type", "read", "digest"], &rows);
    }

    /// The origin of an input, in words.
    fn origin_text(&self, from: &Origin) -> String {
        match from {
            Origin::State { index } => {
                let name = self.computation.program.state().get(*index).map(|tensor| tensor.name.clone());
                format!("{} of the state before the step", name.unwrap_or_default())
            }
            Origin::Batch { micro, tensor } => {
                let name =
                    self.computation.program.batch.get(*tensor).map_or("", |tensor| tensor.name.as_str());
                format!("{name} of the batch of micro-batch {micro}")
            }
            Origin::Words(_) => "follows from the job".into(),
            Origin::Node { phase, node } => {
                let node = graph_of(&self.computation.program, *phase).nodes.get(*node);
                format!("output of {}", node.map_or("", |node| node.operator.as_str()))
            }
        }
    }

    /// The value in the record, and the value that has to be there, where that is a value and not a tile.
    fn values(&self, page: &mut Page) {
        let mut sides: Vec<(&str, String, Option<bool>)> = Vec::new();
        let float = |word| element_text(DType::F32, word);
        match (&self.verdict.claim, &self.record) {
            (Claim::LearningRate, Some(Record::Step { step, .. })) => {
                let right =
                    self.computation.job.schedule.learning_rate(step.step, self.computation.job.steps);
                sides.push(("Learning rate of the record", float(step.learning_rate), None));
                sides.push(("Learning rate of the schedule", float(right), Some(true)));
            }
            (Claim::Cursor, Some(Record::Step { step, .. })) => {
                let right = u64::from(step.step) * u64::from(self.computation.program.samples());
                sides.push(("Samples drawn, by the record", step.cursor.to_string(), None));
                sides.push(("Samples drawn, by the job", right.to_string(), Some(true)));
            }
            (Claim::Scalar { scalar, output }, Some(Record::Step { step, .. })) => {
                let word = if scalar.name() == "loss" { step.loss } else { step.clip };
                sides.push(("Value of the record", format!("{}: {}", scalar.name(), float(word)), None));
                let right = match output {
                    Some(output) => format!("digest {}", output.digest),
                    None => "1, for the job does not clip".into(),
                };
                sides.push(("The step's own operators", right, Some(true)));
            }
            (Claim::Binding { .. }, Some(Record::Step { step, .. })) => {
                sides.push(("State of the record", step.state.to_string(), None));
                sides.push((
                    "Its own operators",
                    "give another state, from the outputs that the file carries".into(),
                    None,
                ));
            }
            (Claim::Final { last }, Some(Record::Final { roots, .. })) => {
                let state =
                    Record::decode(&last.record.0).map_or(String::new(), |record| record.state().to_string());
                sides.push(("State of the final record", roots.digest().to_string(), None));
                sides.push(("State after the last step", state, Some(true)));
            }
            (Claim::Initial, Some(record)) => {
                sides.push(("State of record 0", record.state().to_string(), None));
                sides.push(("It has to follow from", self.verdict.run.origin.source().into(), None));
            }
            (Claim::Batch { slices, .. }, Some(Record::Step { step, .. })) => {
                let bytes: usize = slices.iter().map(|slices| slices.bytes.0.len()).sum();
                sides.push(("Batch of the record", step.batch.to_string(), None));
                sides.push((
                    "Drawn again",
                    format!("from {bytes} bytes of the run's data, which the file carries"),
                    None,
                ));
            }
            (Claim::Fork { other, evidence }, _) => self.fork(&mut sides, other, evidence),
            (Claim::Step { micro_batches, tensors }, _) => {
                sides.push(("Micro-batches that come out differently", format!("{micro_batches:?}"), None));
                sides.push(("State tensors that come out differently", tensors.join(", "), None));
            }
            _ => return,
        }
        page.heading("Both values");
        page.sides(&sides);
    }

    fn fork(&self, sides: &mut Vec<(&str, String, Option<bool>)>, other: &str, evidence: &Fork) {
        let Ok((other, _)) = Head::from_note(other, None) else { return };
        let head = |head: &Head| format!("{} records, root {}", head.size, head.root);
        sides.push(("One signed head", head(&self.head), None));
        sides.push(("Another signed head of the same run", head(&other), None));
        if let (Fork::Record { record: there }, Some(here)) = (evidence, &self.verdict.record) {
            sides.push(("Record under the one", merkle::leaf(&here.record.0).to_string(), None));
            sides.push(("Record under the other", merkle::leaf(&there.record.0).to_string(), None));
        }
    }

    /// The ways from the value in question to the signed root.
    fn hashes(&self, page: &mut Page) {
        let Some(record) = &self.verdict.record else { return };
        page.heading("The path of hashes");
        page.say("Each hash is made of the two below it, so the signed root at the end admits one value at the beginning.");
        if let (Claim::Tile(claim), Some(step)) = (&self.verdict.claim, self.step()) {
            let phase = Phase::from(claim.phase);
            let graph = graph_of(&self.computation.program, phase);
            let ty = graph.tensor(graph.nodes[claim.node].output);
            let tile = Leaf { place: claim.tile, value: claim.value.0 };
            let levels = single(blake3, tile_count(ty.bytes()), tile, &claim.siblings.0);
            page.path(
                &format!("tile of {TILE_BYTES} bytes"),
                claim.value,
                &levels,
                "BLAKE3 root of the output",
            );
            let root = levels.last().map_or(claim.value.0, |level| level.above());
            let digest = digest_from_root(ty, &root);
            page.facts(&[("with its type, the output's digest", digest.to_string())]);
            let (name, size) = (leaf_name(phase, claim.node), leaf_count(&self.computation.program));
            if let Some(place) = leaf_place(&self.computation.program, phase, claim.node) {
                let leaf = table::leaf(&name, &claim.output.digest);
                let levels = inclusion(leaf, place as u64, size as u64, &claim.output.proof);
                page.path(&format!("leaf {name} of the step's operators"), leaf, &levels, "their root");
            }
            let trace = step.trace.map_or(String::new(), |trace| trace.to_string());
            page.facts(&[("root of operators in the record", trace)]);
        }
        let leaf = merkle::leaf(&record.record.0);
        let levels = inclusion(leaf, record.index, self.head.size, &record.proof);
        page.path(&format!("leaf of record {}", record.index), leaf, &levels, "root of all records");
        page.facts(&[("root of the signed head", self.head.root.to_string())]);
        page.fold("The signed head");
        page.commands(&self.verdict.head.lines().map(String::from).collect::<Vec<_>>());
        page.unfold();
    }
}

/// A phase in words.
pub fn phase_text(phase: Phase) -> String {
    match phase {
        Phase::Micro(i) => format!("gradient of micro-batch {i}"),
        Phase::Accumulate(i) => format!("addition {i} of gradients"),
        Phase::Update => "update".into(),
    }
}

/// The index of an element, by rows.
pub fn index_of(shape: &[u32], element: usize) -> Vec<usize> {
    let mut rest = element;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let size = (size as usize).max(1);
            let at = rest % size;
            rest /= size;
            at
        })
        .collect();
    index.reverse();
    index
}
