//! The referee's own computations: elements of a batch, parts of an element from verified operands, and the right values of a
//! record's fields.

use super::breach::{Leeway, LegalRange};
use super::element::{self, Frame, LoggedTotal, Part};
use super::message::{Answer, Field, LogBlock, Need, Subject, Tree};
use super::rules::Rules;
use super::stage::{DisputedElement, Folded, Side};
use crate::answer::TracedWindow;
use crate::evidence::binding::{self, state_nodes};
use crate::evidence::cone::{Judged, Unlogged, judged_from_slices, operands, unlogged_from_slices};
use crate::evidence::context::Context;
use crate::evidence::fold::{LoggedElement, logged_product};
use crate::evidence::leaf::{LeafError, Slices, Verified};
use crate::evidence::proven::{ProvenInput, wrong};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Primitive, TensorId};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_job::data::{Place, Within};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::gradient_leaf;
use tiebreak_record::commit::{Malformed, table};

/// The result of evidence.
pub(super) enum Evidence {
    /// The element.
    Word(u32),
    /// The frame of its fold.
    Frame(Frame),
    /// The value of some of its terms.
    Subtotal(Vec<u8>),
    /// The operator of this name is not defined for these operands.
    Undefined { operator: String },
    /// The operator of this name is not defined for a number of the sample, which the receipt names.
    Sample { operator: String },
    /// A rounding of the logged profile.
    Rounding(RoundedElement),
}

/// A logged product's element.
pub(super) struct RoundedElement {
    /// The exact product and its bound; `None` where no decision can be about the element, so that only the nearest value is
    /// legal.
    judged: Option<Judged>,
    /// The value of the log's decision, if the log has one.
    pub logged: Option<u32>,
    /// The element, and its legal values.
    pub leeway: Leeway,
}

impl RoundedElement {
    /// True if an honest kernel's result can have been rounded to this binary32.
    pub fn legal(&self, pattern: u32) -> bool {
        pattern == self.leeway.nearest || self.judged.as_ref().is_some_and(|judged| judged.allows(pattern))
    }
}

/// The number of terms of a count, or of an element of a logged product.
pub(super) fn terms(graph: &Graph, node: usize) -> u64 {
    if let Some(logged) = logged_product(graph, node) {
        return logged.dims()[3] as u64;
    }
    match graph.nodes[node].primitive {
        Primitive::GroupOffsets { classes, .. } | Primitive::GroupOrder { classes, .. } => {
            graph.tensor(classes).len() as u64
        }
        _ => 0,
    }
}

/// The micro-batch and the number of the logged product whose rounded output is the subject.
pub(super) fn logged(rules: &Rules, subject: Subject) -> Option<(u32, usize)> {
    let Subject::Node { phase, node, .. } = subject else { return None };
    let Phase::Micro(micro) = Phase::from(phase) else { return None };
    let graph = &rules.run()?.program().micro;
    let output = graph.nodes.get(node)?.output;
    Some((micro, graph.logged.iter().position(|logged| logged.output == output)?))
}

/// The result of one side's evidence, after a check of all of it against that side's commitments.
///
/// # Errors
/// If the evidence contradicts itself or the commitments: then the side has not supplied the operands.
pub(super) fn evidence(
    rules: &mut Rules,
    side: &Side,
    disputed: &DisputedElement,
    need: Need,
    folded: Option<&Folded>,
    answer: Answer,
) -> Result<Evidence, Malformed> {
    let element = disputed.element;
    let frame = folded.map(|folded| &folded.frame);
    if let Subject::Pass { pass, node } = disputed.subject {
        return of_pass(rules, side, (pass, node, element), need, frame, answer);
    }
    if let Subject::Row { number } = disputed.subject {
        return of_row(rules, side, (number, element), answer);
    }
    let rounding = logged(rules, disputed.subject);
    let context = rules.run_mut().ok_or_else(|| wrong("the game is about no run"))?.under(&side.root);
    match (disputed.subject, answer) {
        (Subject::Batch { step, micro, tensor }, Answer::Samples { files, slices }) => {
            let program = &context.computation.program;
            let width = disputed.ty.len() / (program.micro_batch as usize).max(1);
            let place = micro * program.micro_batch + (element / width.max(1)) as u32;
            let mut data = context.data_in(&files, &slices)?;
            let at = Place { step, batch: program.samples(), place };
            let within = Within { tensor, element: (element % width.max(1)) as u64 };
            let word = data.element_of(context.computation.key(), at, within);
            word.map(Evidence::Word).map_err(|error| wrong(error.to_string()))
        }
        (Subject::Node { phase, node, .. }, Answer::Operands { inputs })
            if rounding.is_none() || matches!(need, Need::Terms { .. }) =>
        {
            let phase = Phase::from(phase);
            let graph = graph_of(&context.computation.program, phase);
            let slices = verified(context, side, phase, &element::reads(graph, node, need), &inputs)?;
            let source = Verified { graph, slices: &slices };
            decided(graph, node, element::part(graph, node, element, need, frame, source))
        }
        (Subject::Node { phase, node, .. }, Answer::Rounding { inputs, log }) => {
            let (micro, number) = rounding.ok_or_else(|| wrong("the element is not rounded by a log"))?;
            let made = match folded.and_then(|folded| Some((&folded.frame, folded.total.as_ref()?))) {
                Some(_) if !inputs.is_empty() => {
                    return Err(wrong("it carries operands that nobody asked for"));
                }
                Some((frame, total)) => from_total(context, number, element, frame, total),
                None => {
                    let graph = &context.computation.program.micro;
                    let reads: Vec<TensorId> = operands(graph, &graph.logged[number]).into_iter().collect();
                    let slices = verified(context, side, Phase::from(phase), &reads, &inputs)?;
                    from_slices(context, number, element, &slices)
                }
            };
            match made {
                Ok(made) => rounded(context, side, (micro, number, element), made, log),
                Err(error) => decided(&context.computation.program.micro, node, Err(error)),
            }
        }
        _ => Err(wrong("it answers another question")),
    }
}

/// [`evidence`] about an element of a pass of a receipt.
fn of_pass(
    rules: &Rules,
    side: &Side,
    (pass, node, element): (u32, usize, usize),
    need: Need,
    frame: Option<&Frame>,
    answer: Answer,
) -> Result<Evidence, Malformed> {
    let Answer::Operands { inputs } = answer else { return Err(wrong("it answers another question")) };
    let receipt = rules.receipt().ok_or_else(|| wrong("the game is about no receipt"))?;
    let count = rules.shape(Tree::Passes).0;
    let pass =
        receipt.pass(pass).ok_or_else(|| wrong(format!("it is about pass {pass}, and there are {count}")))?;
    let root = side.trace.ok_or_else(|| wrong("the side opened no pass"))?;
    let slices = pass.inputs(&root, &element::reads(&pass.graph, node, need), &inputs)?;
    let part = element::part(&pass.graph, node, element, need, frame, pass.known(&slices));
    Ok(match decided(&pass.graph, node, part)? {
        Evidence::Undefined { operator } if pass.indexes_by_sample(node) => Evidence::Sample { operator },
        evidence => evidence,
    })
}

/// [`evidence`] about an element of a row of a receipt: the logits of its window have it.
fn of_row(rules: &Rules, side: &Side, place: (u32, usize), answer: Answer) -> Result<Evidence, Malformed> {
    let Answer::Logits { pass, root, proof, logits } = answer else {
        return Err(wrong("it answers another question"));
    };
    let receipt = rules.receipt().ok_or_else(|| wrong("the game is about no receipt"))?;
    let traces = side.passes.ok_or_else(|| wrong("the side opened no root over passes"))?;
    let window = TracedWindow { number: pass as usize, root, proof };
    receipt.logit(&traces, place, &window, logits).map(Evidence::Word)
}

/// The slices of operands, after a check of each against the side's commitment.
fn verified(
    context: &Context,
    side: &Side,
    phase: Phase,
    reads: &[TensorId],
    inputs: &[ProvenInput],
) -> Result<Slices, Malformed> {
    let step = side.step().ok_or_else(|| wrong("the record is not a step's"))?;
    let before = side.before.as_ref().ok_or_else(|| wrong("there is no record before"))?;
    context.inputs(&step, before, phase, &reads.iter().copied().collect(), inputs)
}

/// Operands that contradict their commitments count as not supplied; operands that no honest step has are evidence.
fn decided(graph: &Graph, node: usize, part: Result<Part, LeafError>) -> Result<Evidence, Malformed> {
    match part {
        Ok(Part::Word(word)) => Ok(Evidence::Word(word)),
        Ok(Part::Frame(frame)) => Ok(Evidence::Frame(frame)),
        Ok(Part::Subtotal(value)) => Ok(Evidence::Subtotal(value)),
        Err(LeafError::Domain { .. } | LeafError::Outside { .. }) => {
            Ok(Evidence::Undefined { operator: graph.nodes[node].operator.clone() })
        }
        Err(error @ (LeafError::Missing { .. } | LeafError::TooLarge { .. })) => {
            Err(wrong(error.to_string()))
        }
    }
}

/// The contract's result for an element of a logged product, and its legal values where a decision can be about it.
type Made = (Unlogged, Option<Judged>);

/// Judges an element from slices of its whole row and column.
fn from_slices(context: &Context, number: usize, element: usize, slices: &Slices) -> Result<Made, LeafError> {
    let graph = &context.computation.program.micro;
    let logged = &graph.logged[number];
    let of = unlogged_from_slices(graph, logged, element, slices)?;
    let Some(rounding) = context.computation.job.rounding.as_ref().filter(|_| of.finite) else {
        return Ok((of, None));
    };
    let judged = judged_from_slices(graph, logged, element, rounding.accumulation(), slices)?;
    Ok((of, Some(judged)))
}

/// Judges an element from the totals of its terms that both parties claim.
fn from_total(
    context: &Context,
    number: usize,
    element: usize,
    frame: &Frame,
    total: &[u8],
) -> Result<Made, LeafError> {
    let graph = &context.computation.program.micro;
    let logged = &graph.logged[number];
    let outside = || LeafError::Outside { tensor: logged.output };
    let node = graph.nodes.iter().position(|node| node.output == logged.output).ok_or_else(outside)?;
    let said = LoggedTotal::of(graph, node, element, total);
    let sums = said.and_then(|said| said.integers(logged)).ok_or_else(outside)?;
    let of = LoggedElement::of(graph, node, element).ok_or_else(outside)?;
    let rounding = context.computation.job.rounding.as_ref().ok_or_else(outside)?;
    of.judged(rounding.accumulation(), &frame.words, &sums)
}

/// The contract's value, the proved bound and the log's decision for one element of a logged product.
fn rounded(
    context: &Context,
    side: &Side,
    (micro, number, element): (u32, usize, usize),
    (of, judged): Made,
    log: Option<LogBlock>,
) -> Result<Evidence, Malformed> {
    let graph = &context.computation.program.micro;
    let logged: &LoggedProduct = &graph.logged[number];
    let node = graph.nodes.iter().find(|node| node.output == logged.output);
    let step = side.step().ok_or_else(|| wrong("the record is not a step's"))?;
    let Some(LogBlock { block, log }) = log else {
        return Err(wrong("it does not carry a block of the log"));
    };
    let decision =
        context.logged_decision(&step, (micro, number, element), (block, &log), &mut Vec::new())?;
    let operator = node.map_or(String::new(), |node| node.operator.clone());
    let range = judged.as_ref().map(|judged| {
        let [least, greatest] = judged.range();
        LegalRange { exact: judged.exact.value, bound: judged.bound, least, greatest }
    });
    let leeway = Leeway { operator, element, nearest: of.rounded, range };
    let logged = judged.as_ref().and_then(|judged| {
        decision.map(|decision| judged.grid.pattern(decision.index(judged.grid, of.value)))
    });
    Ok(Evidence::Rounding(RoundedElement { judged, logged, leeway }))
}

/// The right value of a field of a step's record, by the operators' outputs that one side supplies. A clip factor and a loss are
/// given as the digest of a tensor of one element. A micro-batch's gradient is given as its leaf among all gradients.
///
/// # Errors
/// If the side stated other outputs.
pub(super) fn implied(
    rules: &mut Rules,
    side: &Side,
    field: Field,
    answer: Answer,
) -> Result<Digest, Malformed> {
    let Answer::Binding { outputs, siblings, kept } = answer else {
        return Err(wrong("it answers another question"));
    };
    let run = rules.run_mut().ok_or_else(|| wrong("the game is about no run"))?;
    let places = run.outputs(field);
    if outputs.len() != places.len() || outputs.is_empty() {
        return Err(wrong("it lists another number of outputs"));
    }
    let trace = side.trace.ok_or_else(|| wrong("the side stated no operators"))?;
    let context = run.under(&side.root);
    let program = &context.computation.program;
    // One node may make several tensors.
    let mut opened: Vec<((Phase, usize), &Digest)> = places.into_iter().zip(&outputs).collect();
    opened.sort_unstable();
    opened.dedup();
    if context.traced(opened.into_iter(), &siblings.0)? != trace {
        return Err(wrong("the outputs are not what it stated"));
    }
    match field {
        Field::Clip | Field::Loss => Ok(outputs[0]),
        Field::Gradient { micro } => {
            let table = program.gradients();
            let root = table::root(table.iter().map(|t| t.name.as_str()).zip(&outputs));
            Ok(gradient_leaf(micro, &root))
        }
        Field::State => {
            let step = side.step().ok_or_else(|| wrong("the record is not a step's"))?;
            let nodes = state_nodes(program);
            if kept.len() != nodes.iter().filter(|node| node.is_none()).count() {
                return Err(wrong("it lists another number of frozen parameters"));
            }
            let before = side.before.as_ref().filter(|_| !kept.is_empty());
            context.kept(&step, &nodes, before, &kept)?;
            binding::state(program, &outputs, &kept)
        }
    }
}
