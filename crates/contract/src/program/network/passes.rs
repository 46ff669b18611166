//! The graphs of a module that PyTorch calls: a network's forward pass in evaluation mode up to any of its nodes, and the gradient of that
//! pass. Contract: `docs/NETWORKS.md`, Modules of PyTorch.

use super::{File, NetworkError, Read, Result, read_text, wrong};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::graph::{Graph, TensorId};
use crate::program::models::nodes::Source;
use crate::program::models::{Network, Statistic};
use crate::program::step::port;
use crate::program::validate;

/// A part of a network that is asked for.
#[doc(hidden)] // for the layers above
pub struct Asked<'a> {
    /// The nodes, or parameters, whose values are the outputs.
    pub outputs: &'a [String],
    /// The parameters that have rows of each sample, one sample after another: the module's inputs.
    pub activations: &'a [String],
    /// The parameters whose gradients are wanted in place of the outputs.
    pub gradients: Option<&'a [String]>,
}

/// The graph that a network file gives for what is asked, and the bound of the token ids; 0 if the network has none.
///
/// The inputs are `param/*`, `buffer/*` and the batch tensor. The outputs are `output/N`. A gradient has the inputs `upstream/N`, one
/// of the shape of each output, and the outputs `grad/*`: the gradients of the sum of all outputs times their upstreams.
///
/// # Errors
/// If the text is no network file, what is asked is no part of it, a row would depend on other samples, or a tensor is too large.
#[doc(hidden)] // for the layers above
pub fn pass(text: &str, asked: &Asked) -> Result<(Graph, u32)> {
    let read = read_text(text, Some(asked.outputs))?;
    if read.file.grid.is_some() {
        return Err(NetworkError(
            "grid: a pass has exact products, so its network file names digits alone".into(),
        ));
    }
    let products = read.products();
    let Read { file, mut nodes, .. } = read;
    nodes.activations = asked.activations.iter().map(|name| file.parameter(name)).collect::<Result<_>>()?;
    let mut b = Builder::new(products);
    let parameters: Vec<TensorId> = (file.parameters.iter())
        .map(|parameter| b.input(port::parameter(&parameter.name), DType::F32, &parameter.shape))
        .collect();
    let average = |statistic: Statistic| {
        statistic.running().map(|name| b.input(port::buffer(&name), DType::F32, &[statistic.channels]))
    };
    let averages: Vec<[TensorId; 2]> = nodes.statistics().into_iter().map(average).collect();
    let batch = nodes.batch(file.micro_batch).swap_remove(0);
    let tokens = b.input(port::batch(&batch.name), batch.dtype, &batch.shape);
    let made =
        nodes.values(&mut b, file.micro_batch, &parameters, &averages, tokens).map_err(NetworkError)?;
    let of = |name: &String| {
        Ok(match file.named(name)? {
            Source::Parameter(number) => parameters[number],
            Source::Node(number) => made[number],
            Source::Inputs => tokens,
        })
    };
    let outputs = asked.outputs.iter().map(of).collect::<Result<Vec<TensorId>>>()?;
    match asked.gradients {
        None => outputs.iter().enumerate().for_each(|(number, &output)| {
            // Equal outputs are one tensor, an output may be an input, and no two ports name one tensor.
            let output = b.duplicate(output);
            b.output(format!("output/{number}"), output);
        }),
        Some(wanted) => {
            let mut seed = |(number, &output): (usize, &TensorId)| {
                let shape = b.shape(output);
                (output, b.input(format!("upstream/{number}"), DType::F32, &shape))
            };
            let seeds: Vec<_> = outputs.iter().enumerate().map(&mut seed).collect();
            let gradients = b.backward_of(&seeds);
            for name in wanted {
                let Some(&gradient) = gradients.get(&parameters[file.parameter(name)?]) else {
                    return wrong(format!("parameter {name}: no gradient reaches it"));
                };
                let gradient = b.duplicate(gradient);
                b.output(port::gradient(name), gradient);
            }
        }
    }
    let graph = b.finish();
    validate::sizes(&graph).map_err(NetworkError)?;
    Ok((graph, batch.below))
}

impl File {
    /// The tensor of this name that an output may be: a node's or a parameter.
    pub(super) fn named(&self, name: &str) -> Result<Source> {
        match self.nodes.iter().position(|node| node.name == name) {
            Some(number) => Ok(Source::Node(number)),
            None => Ok(Source::Parameter(self.parameter(name)?)),
        }
    }

    /// The number of a parameter.
    fn parameter(&self, name: &str) -> Result<usize> {
        let number = self.parameters.iter().position(|parameter| parameter.name == name);
        number.ok_or_else(|| NetworkError(format!("{}: there is no such parameter", super::short(name))))
    }
}
