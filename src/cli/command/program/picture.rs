//! A graph as a picture: a box for each operator, in layers from top to bottom, and gradients beside what they are of.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use tiebreak_contract::program::graph::{Graph, TensorId};

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

/// The operators of a graph, and which reads which. An operator stands one layer below the lowest of those before it that it reads.
fn layers(graph: &Graph) -> (Vec<Operator<'_>>, BTreeSet<(usize, usize)>) {
    let mut operators: Vec<Operator> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut makers: HashMap<TensorId, usize> = HashMap::new();
    let mut edges = BTreeSet::new();
    for node in &graph.nodes {
        let sources: Vec<usize> =
            node.primitive.inputs().iter().filter_map(|id| makers.get(id).copied()).collect();
        let place = *places.entry(&node.operator).or_insert_with(|| {
            operators.push(Operator { name: &node.operator, nodes: 0, layer: 0 });
            operators.len() - 1
        });
        operators[place].nodes += 1;
        makers.insert(node.output, place);
        edges.extend(sources.into_iter().filter(|&source| source != place).map(|source| (source, place)));
    }
    for place in 0..operators.len() {
        let above = edges.iter().filter(|&&(source, reader)| reader == place && source < place);
        operators[place].layer = above.map(|&(source, _)| operators[source].layer + 1).max().unwrap_or(0);
    }
    (operators, edges)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Where a box stands: its corner, and whether it is among the gradients.
#[derive(Clone, Copy)]
struct Place {
    x: usize,
    y: usize,
    is_gradient: bool,
}

/// The places of operators: a gradient stands beside the operator that it is of, to the right of all forward operators, so that the
/// picture is read down on the left and up on the right.
fn places(operators: &[Operator]) -> Vec<Place> {
    let layer_of: HashMap<&str, usize> = operators.iter().map(|o| (o.name, o.layer)).collect();
    let mut filled: HashMap<(bool, usize), usize> = HashMap::new();
    let mut columns = Vec::new();
    for operator in operators {
        let forward = operator.name.strip_suffix(".backward").and_then(|name| layer_of.get(name));
        let (is_gradient, layer) = (forward.is_some(), *forward.unwrap_or(&operator.layer));
        let column = filled.entry((is_gradient, layer)).or_insert(0);
        columns.push((is_gradient, layer, *column));
        *column += 1;
    }
    let forward = filled.iter().filter(|((is_gradient, _), _)| !is_gradient);
    let right = forward.map(|(_, columns)| *columns).max().unwrap_or(0) * (WIDTH + GAP) + 2 * GAP;
    let place = |(is_gradient, layer, column): (bool, usize, usize)| Place {
        x: GAP + column * (WIDTH + GAP) + if is_gradient { right } else { 0 },
        y: GAP + layer * (HEIGHT + GAP),
        is_gradient,
    };
    columns.into_iter().map(place).collect()
}

/// The line from a box to one that reads it.
fn line(from: Place, to: Place) -> String {
    if from.is_gradient != to.is_gradient {
        let (left, right) = ([from.x + WIDTH, from.y + HEIGHT / 2], [to.x, to.y + HEIGHT / 2]);
        let middle = (left[0] + right[0]) / 2;
        return format!(
            "M{} {} C{middle} {} {middle} {} {} {}",
            left[0], left[1], left[1], right[1], right[0], right[1]
        );
    }
    let down = to.y > from.y;
    let start = if down { from.y + HEIGHT } else { from.y };
    let end = if down { to.y } else { to.y + HEIGHT };
    let (x, to_x, middle) = (from.x + WIDTH / 2, to.x + WIDTH / 2, (start + end) / 2);
    format!("M{x} {start} C{x} {middle} {to_x} {middle} {to_x} {end}")
}

/// The picture of a graph.
pub fn svg(graph: &Graph) -> String {
    let (operators, edges) = layers(graph);
    let places = places(&operators);
    let width = places.iter().map(|place| place.x).max().unwrap_or(0) + WIDTH + GAP;
    let height = places.iter().map(|place| place.y).max().unwrap_or(0) + HEIGHT + GAP;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (from, to) in edges {
        // What a gradient reads of the forward pass is drawn lighter than what flows on.
        let stroke = if places[from].is_gradient == places[to].is_gradient { "#777" } else { "#ddd" };
        let line = line(places[from], places[to]);
        let _ = writeln!(text, "<path d=\"{line}\" fill=\"none\" stroke=\"{stroke}\"/>");
    }
    for (operator, Place { x, y, is_gradient }) in operators.iter().zip(places) {
        let fill = if is_gradient { "#fde9d9" } else { "#dbe8f6" };
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
