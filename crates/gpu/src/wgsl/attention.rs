//! The description of a graph for a device's kernel of rows between two products: sizes, and the nodes over the rows, whose
//! bodies become functions of a WGSL module.

use std::fmt::Write;

use cuda_bridge::attention::{Attention, Operand, Operation, Step};

use super::map::{constants, includes, operation};
use crate::device::kernel::{Kernel, Limits};
use crate::rows::access::RowAccess;
use crate::rows::attention::AttentionFusion;
use crate::rows::fusion::Role;
use crate::rows::layout::{RowLayout, RowOperand};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, View};

/// The kernel that computes a fusion; `None` where a node has an operand that such kernels do not take.
pub(crate) fn kernel(graph: &Graph, found: &AttentionFusion, limits: &Limits) -> Option<Kernel> {
    let digits = |tensor: TensorId| match graph.tensor(tensor).dtype {
        DType::Q(digits) => u32::from(digits),
        _ => unreachable!("products take quantised operands"),
    };
    let [[a1, _, b1, _], [a2, _, b2, _]] = found.operands;
    let (left, right) = (&graph.tensor(a1).shape, &graph.tensor(b2).shape);
    let layout = RowLayout::of(graph, &found.rows, limits)?;
    let members = || found.rows.members.iter().map(|member| &graph.nodes[member.node]);
    let mut functions = String::new();
    let steps =
        (0..found.rows.members.len()).map(|number| step(graph, found, &layout, number, &mut functions));
    let steps = steps.collect::<Option<Vec<_>>>()?;
    let bodies: Vec<&Body> = members()
        .filter_map(|node| match &node.primitive {
            Primitive::Map { body, .. } => Some(body),
            _ => None,
        })
        .collect();
    let text = includes(&bodies) + "//!include shared/scale_back.wgsl\n" + &functions;
    let text = tiebreak_shaders::compose_text("attention", &text).expect("its includes are there");
    let kernel = Attention {
        samples: left[0],
        rows: left[1],
        len: found.rows.len,
        places: left[2],
        columns: right[1],
        digits: [[digits(a1), digits(b1)], [digits(a2), digits(b2)]],
        causal: found.causal,
        steps,
        result: found.result,
        reads: found.reads.len(),
        writes: found.writes.len(),
    };
    Some(Kernel::Attention { kernel, text })
}

/// The kernel's step for a member. If the member is a map, its function is appended to `functions`.
fn step(
    graph: &Graph,
    found: &AttentionFusion,
    layout: &RowLayout,
    number: usize,
    functions: &mut String,
) -> Option<Step> {
    let node = &graph.nodes[found.rows.members[number].node];
    let scores = graph.nodes[found.first].output;
    let take = |taken: &RowOperand| operand(found, layout, node, scores, *taken);
    let operands = layout.operands[number].iter().map(take).collect::<Option<Vec<_>>>()?;
    let operation = match (&node.primitive, found.rows.members[number].role) {
        (Primitive::Map { body, dims, .. }, role) => {
            let function = format!("step_{number}");
            write_function(functions, &function, body);
            let takes_scores = node.primitive.inputs().contains(&scores);
            let by_place = body.code.contains(&Instr::Index(3)) && !(found.causal && takes_scores);
            let (each_place, constants) = (role == Role::Wide, constants(body).collect());
            Operation::Map { function, each_place, by_place, dims: *dims, constants }
        }
        (_, Role::Max) => Operation::Max,
        _ => Operation::Sum,
    };
    let write = found.writes.iter().position(|write| *write == node.output);
    Some(Step { operation, operands, write })
}

/// The kernel's operand for an operand of a node; `None` if the kernel does not take it.
fn operand(
    found: &AttentionFusion,
    layout: &RowLayout,
    node: &Node,
    scores: TensorId,
    taken: RowOperand,
) -> Option<Operand> {
    let read = |tensor: TensorId| found.reads.iter().position(|read| *read == tensor);
    let views: &[View] = if let Primitive::Map { inputs, .. } = &node.primitive { inputs } else { &[] };
    Some(match taken {
        RowOperand::Member(of) => Operand::Step(of),
        RowOperand::Load(load) if layout.loads[load].tensor == scores => Operand::Product,
        RowOperand::Load(load) => {
            let load = &layout.loads[load];
            Operand::Element { tensor: read(load.tensor)?, offset: load.offset }
        }
        RowOperand::Outside { input, access } => {
            let View { tensor, offset, .. } = views[input];
            let tensor = read(tensor)?;
            match access {
                RowAccess::Uniform => Operand::One { tensor, offset },
                RowAccess::PerRow | RowAccess::Element => Operand::OfRow { tensor, offset },
                RowAccess::Column => Operand::OfPlace { tensor, offset },
                RowAccess::Strided => return None,
            }
        }
    })
}

/// A body as a function of its inputs, the four indices and its constants.
fn write_function(text: &mut String, name: &str, body: &Body) {
    let inputs = (0..body.inputs()).map(|k| format!("x{k}: u32"));
    let indices = (0..4).map(|d| format!("i{d}: u32"));
    let words = (0..constants(body).count()).map(|c| format!("c{c}: u32"));
    let parameters: Vec<String> = inputs.chain(indices).chain(words).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "// {}\nfn {name}({}) -> u32 {{", body.name, parameters.join(", "));
    let mut constant = 0;
    for (n, instr) in body.code.iter().enumerate() {
        let value = operation(instr, "r", |leaf| match leaf {
            Instr::Input(k) => format!("x{k}"),
            Instr::Index(d) => format!("i{d}"),
            _ => {
                constant += 1;
                format!("c{}", constant - 1)
            }
        });
        let _ = writeln!(text, "    let r{n} = {value};");
    }
    let _ = writeln!(text, "    return r{};\n}}\n", body.code.len() - 1);
}
