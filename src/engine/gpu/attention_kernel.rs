//! What the bridge's kernel for rows between two products is told of a graph: sizes, and the region's nodes, whose bodies become
//! functions of a WGSL module.

use std::fmt::Write;

use cuda_bridge::attention::{Attention as Kernel, Operand, Operation, Step};
use cuda_bridge::translate::Options;
use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::attention::{Attention, Places, attention, operands};
use super::map::{includes, operation};
use super::regions::{Limits, Role, regions};
use super::row_kernel::has_words;
use super::row_layout::{Layout, Operand as Taken, Place};
use super::schedule::Uses;
use crate::arith::DType;
use crate::program::expr::{Body, Instr};
use crate::program::graph::{Graph, Primitive, TensorId, View};
use crate::shaders;

/// The kernel's description and the text of its module; none where a node takes something that the kernel does not.
pub fn describe(graph: &Graph, found: &Attention, limits: &Limits) -> Option<(Kernel, String)> {
    let product = |node: usize| operands(&graph.nodes[node]).expect("a product");
    let digits = |tensor: TensorId| match graph.tensor(tensor).dtype {
        DType::Q(digits) => u32::from(digits),
        _ => unreachable!("products take quantised operands"),
    };
    let ([a1, _, b1, _], [a2, _, b2, _]) = (product(found.first), product(found.second));
    let scores = graph.nodes[found.first].output;
    let (left, right) = (&graph.tensor(a1).shape, &graph.tensor(b2).shape);
    let members = &found.region.members;
    let layout = Layout::of(graph, &found.region, limits)?;
    let read = |tensor: TensorId| found.reads.iter().position(|read| *read == tensor);

    let mut steps = Vec::new();
    let mut text = String::new();
    let mut bodies: Vec<&Body> = Vec::new();
    for (number, member) in members.iter().enumerate() {
        let node = &graph.nodes[member.node];
        let views: &[View] = if let Primitive::Map { inputs, .. } = &node.primitive { inputs } else { &[] };
        let take = |taken: &Taken| {
            Some(match *taken {
                Taken::Member(of) => Operand::Step(of),
                Taken::Load(load) => {
                    let load = &layout.loads[load];
                    if load.tensor == scores {
                        Operand::Product
                    } else {
                        Operand::Element { tensor: read(load.tensor)?, offset: load.offset }
                    }
                }
                Taken::Outside { input, place } => {
                    let View { tensor, offset, .. } = views[input];
                    let tensor = read(tensor)?;
                    match place {
                        Place::Uniform => Operand::One { tensor, offset },
                        Place::Row | Place::Element => Operand::OfRow { tensor, offset },
                        Place::Column => Operand::OfPlace { tensor, offset },
                        Place::Strided => return None,
                    }
                }
            })
        };
        let operands = layout.operands[number].iter().map(take).collect::<Option<Vec<_>>>()?;
        let operation = match (&node.primitive, member.role) {
            (Primitive::Map { body, dims, .. }, role) => {
                bodies.push(body);
                let function = format!("step_{number}");
                let constants = write_function(&mut text, &function, body);
                let takes_scores = node.primitive.inputs().contains(&scores);
                let by_place = body.code.contains(&Instr::Index(3)) && !(found.causal && takes_scores);
                Operation::Map { function, each_place: role == Role::Wide, by_place, dims: *dims, constants }
            }
            (_, Role::Max) => Operation::Max,
            _ => Operation::Sum,
        };
        let write = found.writes.iter().position(|write| *write == node.output);
        steps.push(Step { operation, operands, write });
    }
    let text = includes(&bodies) + "//!include shared/scale_back.wgsl\n" + &text;
    let text = shaders::compose_text("attention", &text).expect("its includes are there");
    let kernel = Kernel {
        samples: left[0],
        rows: left[1],
        len: found.region.len,
        places: left[2],
        columns: right[1],
        digits: [[digits(a1), digits(b1)], [digits(a2), digits(b2)]],
        causal: found.causal,
        steps,
        result: found.result,
        reads: found.reads.len(),
        writes: found.writes.len(),
    };
    Some((kernel, text))
}

/// A body as a function of its inputs, the four indices and its constants, which it gives.
fn write_function(text: &mut String, name: &str, body: &Body) -> Vec<u32> {
    let constants: Vec<u32> = body
        .code
        .iter()
        .filter_map(|i| if let Instr::Const(word) = i { Some(*word) } else { None })
        .collect();
    let inputs = (0..body.inputs()).map(|k| format!("x{k}: u32"));
    let indices = (0..4).map(|d| format!("i{d}: u32"));
    let words = (0..constants.len()).map(|c| format!("c{c}: u32"));
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
    constants
}

/// The kernels for a graph's rows between products on a GPU with so many bytes of shared memory, for the bridge's tests.
pub fn kernels(graph: &Graph, shared: u32) -> Vec<cuda_bridge::translate::Kernel> {
    let (uses, runs_at) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
    let regions = regions(graph, &uses, &runs_at, &Limits::CUDA, &|node| has_words(graph, node));
    let places = Places { runs_at: &runs_at, regions: &regions };
    let found = attention(graph, &uses, &places, &Limits::CUDA).into_iter();
    let kernel = |found| {
        let (kernel, text) = describe(graph, &found, &Limits::CUDA)?;
        let module = naga::front::wgsl::parse_str(&text).expect("the text is WGSL");
        let info = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
        let options = Options { native: true };
        kernel.kernel(&module, &info.expect("the text is valid"), options, shared).expect("it is translated")
    };
    found.filter_map(kernel).collect()
}
