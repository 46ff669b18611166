//! A graph as a picture: a box for each operator, in layers from top to bottom.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use crate::program::graph::{Graph, TensorId};

/// A box's size, and the space around it.
const WIDTH: usize = 230;
const HEIGHT: usize = 40;
const GAP: usize = 26;

/// An operator: what is written in its box.
struct Operator<'g> {
    name: &'g str,
    nodes: usize,
    layer: usize,
}

/// The operators of a graph, and which reads which. An operator stands one layer below the lowest of those that it first read.
fn layers(graph: &Graph) -> (Vec<Operator<'_>>, BTreeSet<(usize, usize)>) {
    let mut operators: Vec<Operator> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut makers: HashMap<TensorId, usize> = HashMap::new();
    let mut edges = BTreeSet::new();
    for node in &graph.nodes {
        let sources: Vec<usize> =
            node.primitive.inputs().iter().filter_map(|id| makers.get(id).copied()).collect();
        let place = *places.entry(&node.operator).or_insert_with(|| {
            let above = sources.iter().map(|&source| operators[source].layer + 1).max();
            operators.push(Operator { name: &node.operator, nodes: 0, layer: above.unwrap_or(0) });
            operators.len() - 1
        });
        operators[place].nodes += 1;
        makers.insert(node.output, place);
        edges.extend(sources.into_iter().filter(|&source| source != place).map(|source| (source, place)));
    }
    (operators, edges)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture of a graph.
pub fn svg(graph: &Graph) -> String {
    let (operators, edges) = layers(graph);
    let mut filled: HashMap<usize, usize> = HashMap::new();
    let corners: Vec<[usize; 2]> = operators
        .iter()
        .map(|operator| {
            let column = filled.entry(operator.layer).or_insert(0);
            *column += 1;
            [GAP + (*column - 1) * (WIDTH + GAP), GAP + operator.layer * (HEIGHT + GAP)]
        })
        .collect();
    let [width, height] = [0, 1].map(|axis| corners.iter().map(|corner| corner[axis]).max().unwrap_or(0));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"11\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width + WIDTH + GAP,
        height + HEIGHT + GAP
    );
    for (from, to) in edges {
        let ([x, y], [to_x, to_y]) = (corners[from], corners[to]);
        let (x, to_x) = (x + WIDTH / 2, to_x + WIDTH / 2);
        let (start, middle) = (y + HEIGHT, (y + HEIGHT + to_y) / 2);
        let _ = writeln!(
            text,
            "<path d=\"M{x} {start} C{x} {middle} {to_x} {middle} {to_x} {to_y}\" fill=\"none\" stroke=\"#999\"/>"
        );
    }
    for (operator, [x, y]) in operators.iter().zip(&corners) {
        // What computes gradients is told from what computes the loss.
        let fill = if operator.name.ends_with(".backward") { "#fde9d9" } else { "#dbe8f6" };
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"5\" fill=\"{fill}\" stroke=\"#555\"/>\
             <text x=\"{}\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" fill=\"#555\">{} nodes</text>",
            x + 8,
            y + 17,
            escaped(operator.name),
            x + 8,
            y + 32,
            operator.nodes
        );
    }
    text.push_str("</svg>\n");
    text
}
