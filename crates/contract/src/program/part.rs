//! The part of a graph that makes some of its outputs.

use super::graph::{Graph, Node, Port, TensorId};

/// A graph of some nodes of another one, which is called the whole here. Each node computes the same bits in both.
#[doc(hidden)] // for the layers above
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphPart {
    /// The part. Its tensors have numbers of their own.
    pub graph: Graph,
    /// For each input of the part, its place among the inputs of the whole.
    pub inputs: Vec<usize>,
}

/// For each node of a graph, true if one of `tensors` is computed from the node's output, or is that output.
#[doc(hidden)] // for the layers above
pub fn needed(graph: &Graph, tensors: impl IntoIterator<Item = TensorId>) -> Vec<bool> {
    let mut wanted = vec![false; graph.tensors.len()];
    tensors.into_iter().for_each(|id| wanted[id.0 as usize] = true);
    let mut needed = vec![false; graph.nodes.len()];
    for (node, needed) in graph.nodes.iter().zip(&mut needed).rev() {
        *needed = wanted[node.output.0 as usize];
        if *needed {
            node.primitive.inputs().into_iter().for_each(|id| wanted[id.0 as usize] = true);
        }
    }
    needed
}

impl GraphPart {
    /// The part of `whole` that has these nodes, and these outputs, which the nodes make. `nodes` has an entry for each node, and
    /// `outputs` one for each output. The whole has no logged products.
    ///
    /// # Panics
    /// If a node or an output is of the part, and a node that it needs is not.
    pub fn of(whole: &Graph, nodes: &[bool], outputs: &[bool]) -> GraphPart {
        assert!(whole.logged.is_empty(), "logged products belong to whole graphs");
        let picked = || whole.nodes.iter().zip(nodes).filter(|(_, picked)| **picked).map(|(node, _)| node);
        let ports = || whole.outputs.iter().zip(outputs).filter(|(_, picked)| **picked).map(|(port, _)| port);
        let mut read = vec![false; whole.tensors.len()];
        let tensors =
            picked().flat_map(|node| node.primitive.inputs()).chain(ports().map(|port| port.tensor));
        tensors.for_each(|id| read[id.0 as usize] = true);
        let mut graph = Graph::default();
        let mut numbers: Vec<Option<TensorId>> = vec![None; whole.tensors.len()];
        let mut number = |graph: &mut Graph, id: TensorId| {
            let own = TensorId(graph.tensors.len() as u32);
            graph.tensors.push(whole.tensor(id).clone());
            numbers[id.0 as usize] = Some(own);
            own
        };
        let mut inputs = Vec::new();
        for (place, port) in whole.inputs.iter().enumerate().filter(|(_, port)| read[port.tensor.0 as usize])
        {
            inputs.push(place);
            let tensor = number(&mut graph, port.tensor);
            graph.inputs.push(Port { name: port.name.clone(), tensor });
        }
        let outputs_of: Vec<(&Node, TensorId)> =
            picked().map(|node| (node, number(&mut graph, node.output))).collect();
        let own = |id: TensorId| numbers[id.0 as usize].expect("a part has what its nodes read");
        graph.nodes = outputs_of
            .into_iter()
            .map(|(node, output)| Node {
                operator: node.operator.clone(),
                primitive: node.primitive.map_inputs(own),
                output,
            })
            .collect();
        graph.outputs =
            ports().map(|port| Port { name: port.name.clone(), tensor: own(port.tensor) }).collect();
        GraphPart { graph, inputs }
    }
}
