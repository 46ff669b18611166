//! `tiebreak program compile`: a network file as a program; and the page about such files (`docs/NETWORKS.md`).

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::catalogue::Input;
use tiebreak_contract::program::models::nodes::NODE_KINDS;
use tiebreak_contract::program::network::{ATTRIBUTES, NETWORK_MAX, compile};
use tiebreak_contract::program::step::Program;
use tiebreak_run::run::disk;

const INTRODUCTION: &str = r#"# Network files

A network file describes a training step by operators of the contract ([ARITHMETIC.md](ARITHMETIC.md), section 8).
`tiebreak program compile` derives a program from the file, with the contract's own gradients. Jobs name this program:
`program = "FILE"`. An audit of such a run needs neither the network file nor the tool that wrote it.
`tiebreak program networks` prints this page, and a test compares the two.

The file is one object of JSON, which begins with `{`, of at most 2^24 bytes:

```json
{
 "format": "tiebreak network 1",
 "micro_batch": 2,
 "micro_batches": 3,
 "inputs": {"name": "values", "shape": [2, 7]},
 "labels": {"shape": [2], "below": 3},
 "parameters": [
  {"name": "first.weight", "shape": [5, 7], "init": {"normal": 0.5}, "weight_decay": 0.1},
  {"name": "first.bias", "shape": [5]},
  {"name": "last.weight", "shape": [3, 5], "init": {"normal": 0.5}, "weight_decay": 0.1},
  {"name": "last.bias", "shape": [3]}
 ],
 "nodes": [
  {"name": "first", "operator": "linear", "inputs": ["inputs", "first.weight", "first.bias"]},
  {"name": "relu", "operator": "relu", "inputs": ["first"]},
  {"name": "drop", "operator": "dropout", "inputs": ["relu"], "attributes": {"p": 0.25}},
  {"name": "last", "operator": "linear", "inputs": ["drop", "last.weight", "last.bias"]}
 ],
 "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8},
 "clip_norm": 1.0
}
```

| key | meaning | without it |
|---|---|---|
| `format` | `tiebreak network 1` | required |
| `micro_batch` | samples of a micro-batch | required |
| `micro_batches` | micro-batches of a step | 1 |
| `inputs` | the inputs of a micro-batch: `name` (`tokens` for windows of a text, see [DATA.md](DATA.md)), `shape`, and for integers `below`, the bound of each number; without `below` they are binary32 | required |
| `labels` | the labels of a micro-batch, integers: `shape` of one dimension, and `below` | required |
| `parameters` | `name` and `shape`; `init` (`"zeros"`, `"ones"`, or `{"normal": STD}`; zeros without it); `weight_decay` (0); `rate_factor`, times the job's learning rate (1); `frozen` (false) | required |
| `nodes` | `name`; `operator`; `inputs`, which are names of parameters, of nodes before it, or `inputs`; `attributes` | required |
| `loss` | `smoothing` and `ignore`, as in a job's `[loss]` | the mean cross entropy of all labels |
| `norm_momentum` | the part by which a step moves running averages; a network with a `batch_norm` needs it, and no other may have it | |
| `optimizer` | `kind` `adamw` with `beta1`, `beta2` and `epsilon`, or `sgd` with `momentum`; `decay`: `decoupled` or `coupled` (`decoupled`) | required |
| `clip_norm` | the greatest norm of a step's gradient | no clipping |
| `digits` | digits of both operands of each product, 1 to 4 | 3; with a `grid` those of a logged job without `[digits]`, but 4 of the left operand of `linear_dx` and `linear_dw`, since the last layer is of the class `linear` |
| `grid` | the grid to which each product is rounded ([ROUNDING.md](ROUNDING.md), section 2): `bits`, and `floor`, 0 above 16 bits | exact products |

Rules:

1. A name has 1 to 128 printing characters of ASCII, without a space. Parameters and nodes have different names.
2. The last node makes the logits [N, V]. The labels are [N], and their `below` is at most V.
3. The last node depends on all other nodes, on all parameters and on the inputs.
4. A node gives each attribute of its operator, and no other.
5. Each product has one scale group for all of K. With a `grid` each is a logged product, and a job of the program has a
   table `[rounding]` with this grid.
6. Dropouts with `p` above 0 are numbered from 0 in the order of the nodes, those of attentions among them. A `p` of 0
   is no operator.
7. A `batch_norm` has the buffers `NODE.running_mean` and `NODE.running_var`.
8. A node's name is the name of its operators in traces and verdicts.
9. The parameters have the order of the file, in the program and in its state.
10. Nodes whose forward passes are the same primitives over the same tensors are one operator, in which their gradients
    meet: the first of them in the file, with its rule of gradients and its index. Such are two nodes of one operator
    with the same inputs and attributes; `silu` of x and `mul` of x and `sigmoid` of x; `first_position` and
    `last_position` of samples with one position.
11. A table and a tensor of ids have `embedding` nodes, or `padded_embedding` nodes with one `ignore`.

## Evaluation

A program says nothing of evaluations or answers. So evaluations, predictions, answers and their receipts take the
network file beside the program. The file must give the program of the job, to the digest. A receipt's digest of the
model also holds names and wording, which that digest leaves open. No record commits it.

| what | where the file is |
|---|---|
| `[evaluation]` of a job | named by the job: `network = "FILE"`; the run keeps a copy, `network.json` |
| `tiebreak eval`, `predict`, `logits`, `generate`, `serve-model`, `receipt check` and `verdict disclose` of a run | named by `--network FILE`; without the option the copy that the run keeps |
| the same of weights with `--job JOB` | named by `--network FILE`; without the option the file that the job names |

An evaluation is that of [ARITHMETIC.md](ARITHMETIC.md#86-evaluation):

1. Dropouts are no operators, and neither are those of attentions.
2. A `batch_norm` is batch_norm_eval over its buffers.
3. Labels are not smoothed. Labels that `loss` ignores count nowhere.
4. Products have the digits of the file. So a network with the operators of a built-in model has the logits of a
   job with these digits, to the bit.

An evaluation computes any number of samples at once. For B samples the first dimensions of `inputs` and `labels` are
those of the file, divided by `micro_batch` and multiplied by B. A *row of samples* is a row of a tensor that depends on
the inputs. The logits of a sample depend on this sample alone if these rules hold, and a network that breaks one cannot
be evaluated:

1. No input `weight`, `bias`, `gain`, `table` or `token` of a node depends on the inputs of the batch.
2. The other inputs of a node all have rows of samples, or none of them has any.
3. A node that cuts its rows into samples has rows of samples: `position_embedding`, `class_token`, `first_position`,
   `last_position`, `mean_positions`, `exchange`, `slice_positions`, `place_positions`, `as_image`, `rows_of`, `rotary`
   and the attentions.
4. A tensor with rows of samples has a dimension behind the first where an operator takes [.., C].

## Answers

A network of causal attention writes text by `tiebreak generate` and `tiebreak serve-model`, as the built-in decoders
do. [INFERENCE.md](INFERENCE.md#network-files) defines its pass over caches, and says which networks write text. The
others are refused by the name of the first node that stands against it. Among these are networks with attention to
later positions, with means over positions, with an `exchange` of positions and channels, with positions in other
places, and with a `batch_norm`.

## Modules of PyTorch

[`torch.compile(backend="tiebreak")`](how-to/compile.md) makes a network file of a graph, and asks for a pass over it.
The pass is an evaluation with these differences:

1. The outputs are any nodes and parameters, of any shape. Every node and every parameter must be one, or one of them
   must depend on it. There may be no parameter and no node.
2. The module's inputs of binary32 are parameters with rows of samples. They are rows [N, C], or images with their
   channels last.
3. The file has an input of the batch, labels, an optimizer and a loss, since the format does. Labels, optimizer and
   loss mean nothing.
4. A gradient is that of the sum of all outputs times a given tensor each, of the outputs' shapes. The gradients of two
   outputs that are one tensor are added in the order of the outputs.

## Operators

Letters stand for dimensions, and equal letters for equal dimensions. `*` is any shape, `..` any dimensions. Images have
their channels last, so kernels are [M, R, S, C]; PyTorch's are [M, C, R, S].

| operator | inputs | attributes | meaning |
|---|---|---|---|
"#;

const ATTRIBUTES_HEAD: &str = "
## Attributes

| attribute | value | meaning |
|---|---|---|
";

fn text(input: &Input) -> String {
    let integers = if input.dtype == DType::U32 { ", integers" } else { "" };
    format!("{} [{}]{integers}", input.name, input.shape.replace(' ', ", "))
}

/// The page about network files.
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_string();
    for kind in NODE_KINDS {
        let inputs: Vec<String> = kind.inputs.iter().map(text).collect();
        let attributes: Vec<String> = kind.attributes.iter().map(|name| format!("`{name}`")).collect();
        page += &format!(
            "| `{}` | {} | {} | {} |\n",
            kind.name,
            inputs.join("; "),
            attributes.join(", "),
            kind.about
        );
    }
    page += ATTRIBUTES_HEAD;
    for (name, ty, meaning) in ATTRIBUTES {
        page += &format!("| `{name}` | {ty} | {meaning} |\n");
    }
    page
}

/// The operators of nodes as JSON.
pub fn operators() -> Value {
    let operator = |kind: &tiebreak_contract::program::models::nodes::NodeKind| {
        let inputs: Vec<&str> = kind.inputs.iter().map(|input| input.name).collect();
        json!({ "name": kind.name, "inputs": inputs, "attributes": kind.attributes, "about": kind.about })
    };
    json!(NODE_KINDS.iter().map(operator).collect::<Vec<_>>())
}

/// The program of a network file.
pub fn program(path: &Path) -> Result<Program, Failure> {
    let bytes = disk::read(path, NETWORK_MAX).map_err(named)?;
    let refused = |why: String| Failure::new(Exit::Malformed, format!("{}: {why}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| refused("a network file is UTF-8".into()))?;
    compile(&text).map_err(|error| refused(error.to_string()))
}
