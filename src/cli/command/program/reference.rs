//! What a program's bytes name, as a page (`docs/PROGRAMS.md`): classes of products, bodies, the nodes of logged products, and those of small models.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};

use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::program::expr::{Body, Instr, Reg};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, View};
use tiebreak_contract::program::known_bodies::{KnownBody, all, product_on_grid, small_programs};
use tiebreak_contract::program::logged::round_body;
use tiebreak_contract::program::products::ProductClass;

/// The most characters of a line of a listing.
const LINE: usize = 130;

const INTRODUCTION: &str = "# What programs name

This page gives the meaning of the numbers and names in a program's bytes (ARITHMETIC.md, section 9), for tools that
read or write them. `tiebreak program reference` prints this page, and a test compares the two.

## Classes of products

The class of a logged product is its number in this table. A job's `[digits]` and `rounding.class` use the names.

| number | class |
|---|---|
";

const BODIES: &str = "
## Bodies

A body is a list of instructions; instruction i writes register i. A line of a listing is
`number: instruction operands`.

| instruction | operands |
|---|---|
| `Input` | the number of a view |
| `Index` | the number of a dimension |
| `Const` | a word in eight hexadecimal digits |
| `Select` | three registers: condition, then, else |
| `Philox` | seven registers: two of the key, four of the counter, one of the word |
| any other | registers |

`Const *` may be any word in a program that is read. The word depends on the sizes, rates and numbers of the program,
and ARITHMETIC.md, section 8, says which word a model kind has there.

A body of a program has a name of this list only if it is one of the bodies that stand under that name:

1. Compare the two last instructions.
2. Two instructions are alike if four things hold. Their names are equal. The numbers of `Input` and `Index` are equal.
   The words of `Const` are equal, or the list has `*`. Their operands are registers of instructions that are alike, in
   order.
3. Nothing else is compared: not the numbers of registers, and no instruction that the last one does not depend on.

A body of another name is free. `round_to_grid.v1` is below, since logged products are compared whole.

```
";

const LOGGED: &str = "```

## Logged products

An entry of `logged` stands for the nodes of one product: those that make its absmaxes, its *product*, its *exact*
tensors and its output. The listings are for an operand a of [2, 3, 5, 11] and an operand b of [2, 3, 7, 11], so M = 5,
N = 7, K = 11. The class has the default digits of the logged profile, 3 and 3.

A line is `tensor = primitive (fields) -> type [shape]`; `t0` and `t1` are a and b. A view is
`tensor+offset [dims] [strides]`. Other products have the same nodes:

1. Sizes and strides follow from the operands' views in the same way. An absmax of more than the leaf's bound has a
   partial node before it (ARITHMETIC.md, section 8.5).
2. With 16 bits, digits are the class's. Each operand is made by `to_bf16.v1`, a view as wide as its tensor.
3. With more bits, the digits of high parts are the class's, at most 3; those of rests are 4. `split_high.v1` and
   `split_low.v1` have the constant max(24 - (8 d - 2), 2) + 1 for d digits of the high part.
4. A node that is equal to one before it is that node.
5. The product is *product*; with 16 bits it is also the one tensor of *exact*. With more bits *exact* is the rounded
   product of the high parts, then that of the rests.
6. The output is the last node, `round_to_grid.v1`.

In the bodies of `round_to_grid.v1` constants follow from bits, floor F and K, with
f = floor(floor(log2 K) / 2) - F - 252. The listings have K = 11.

- With fewer than 32 bits the constants are 32 - bits, 2^(31 - bits) - 1, and the mask of all bits but the last
  32 - bits. With 32 bits there are none of these.
- With a floor there are also f + 1174, 1057 - bits and 1278.
";

const MODELS: &str = "
## Nodes of models

The nodes of a micro-batch of 2 samples and of the update for a small model of each kind, in their order. Each listing
has its model and its optimizer above it. A line is an operator and its primitives; \"x n\" is n in a row. More layers,
blocks or stages repeat the operators with their own numbers. ARITHMETIC.md, sections 8.1 to 8.4, says what they
compute; a run's program.bin has all of it.
";

const EXAMPLE: &str = "
## A program's bytes

The program learns one weight w by squared error. A sample is a number x and a label y, and the loss is
(w x - y) (w x - y). A step subtracts the learning rate times (w x - y) x from w. A line has bytes in hexadecimal, then
what they are. A script without code of ours makes them (`assets/vectors/program_example.py`), and
`cargo test --test engine vectors::` reads them.

```
";

/// The examples that scripts make.
const EXAMPLES: &str = include_str!("../../../../assets/vectors/examples.json");

/// The worked example of a program.
#[derive(Deserialize)]
struct Examples {
    program: Vec<[String; 2]>,
    program_digest: String,
}

/// Words with commas and blanks, in lines.
fn lines(words: &[String]) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in words {
        if width > 0 && width + word.len() + 2 > LINE {
            text += "\n";
            width = 0;
        }
        let before = if width == 0 { "  " } else { "; " };
        text += before;
        text += word;
        width += before.len() + word.len();
    }
    text + "\n"
}

/// The instruction's name and what stands behind it.
fn instruction(number: usize, instr: &Instr, free: bool) -> String {
    let debug = format!("{instr:?}");
    let name = debug.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let operands: Vec<String> = match instr {
        Instr::Const(_) if free => vec!["*".into()],
        Instr::Const(word) => vec![format!("{word:08x}")],
        Instr::Input(number) | Instr::Index(number) => vec![number.to_string()],
        other => other.operands().iter().map(|Reg(register)| register.to_string()).collect(),
    };
    format!("{number}: {name} {}", operands.join(" "))
}

fn body(name: &str, code: &[Instr], free: &[bool]) -> String {
    let instructions =
        code.iter().zip(free).enumerate().map(|(i, (instr, free))| instruction(i, instr, *free));
    format!("{name}\n{}", lines(&instructions.collect::<Vec<_>>()))
}

fn view(view: &View) -> String {
    let View { tensor: TensorId(tensor), offset, dims, strides } = view;
    format!("t{tensor}+{offset} {dims:?} {strides:?}")
}

/// The fields of a primitive that a logged product has.
fn fields(primitive: &Primitive) -> String {
    match primitive {
        Primitive::Map { dims, inputs, .. } => {
            let inputs: Vec<String> = inputs.iter().map(view).collect();
            format!("dims {dims:?}; {}", inputs.join("; "))
        }
        Primitive::Absmax { input, block } => format!("{}; block {block}", view(input)),
        Primitive::Quantise { input, absmaxes: TensorId(absmaxes), digits, block } => {
            format!("{}; absmaxes t{absmaxes}; digits {digits}; block {block}", view(input))
        }
        other => {
            other.inputs().iter().map(|TensorId(tensor)| format!("t{tensor}")).collect::<Vec<_>>().join(", ")
        }
    }
}

fn node(graph: &Graph, node: &Node) -> String {
    let ty = graph.tensor(node.output);
    let (TensorId(output), name) = (node.output, node.primitive.name());
    format!("t{output} = {name} ({}) -> {:?} {:?}\n", fields(&node.primitive), ty.dtype, ty.shape)
}

/// The nodes of a product on a grid, and the body that ends it.
fn logged(rule: GridRule) -> String {
    let graph = product_on_grid(rule);
    let GridRule { bits, floor } = rule;
    let nodes: String = graph.nodes.iter().map(|n| node(&graph, n)).collect();
    let [entry] = &graph.logged[..] else { unreachable!("one product was made") };
    let ids =
        |ids: &[TensorId]| ids.iter().map(|TensorId(id)| format!("t{id}")).collect::<Vec<_>>().join(", ");
    let Body { name, code } = round_body(rule, 11);
    format!(
        "\n**{bits} bits, floor {floor}.** Entry: a {}, b {};\nabsmaxes {}, {}; product {}; output {}; exact {}.\n\n```\n{nodes}{}```\n",
        view(&entry.a),
        view(&entry.b),
        ids(&[entry.absmaxes_a]),
        ids(&[entry.absmaxes_b]),
        ids(&[entry.product]),
        ids(&[entry.output]),
        ids(&entry.exact),
        body(&name, &code, &vec![false; code.len()]),
    )
}

/// The operators of a graph with their primitives, in the order of the nodes.
fn operators(graph: &Graph) -> String {
    let mut found: Vec<(&str, Vec<(&str, usize)>)> = Vec::new();
    for node in &graph.nodes {
        let (operator, primitive) = (node.operator.as_str(), node.primitive.name());
        if found.last().is_none_or(|(last, _)| *last != operator) {
            found.push((operator, Vec::new()));
        }
        let Some((_, primitives)) = found.last_mut() else { continue };
        match primitives.last_mut() {
            Some((last, count)) if *last == primitive => *count += 1,
            _ => primitives.push((primitive, 1)),
        }
    }
    let times = |(name, count): &(&str, usize)| match count {
        1 => name.to_string(),
        n => format!("{name} x {n}"),
    };
    let line = |(operator, primitives): (&str, Vec<(&str, usize)>)| {
        format!("{operator}\n{}", lines(&primitives.iter().map(times).collect::<Vec<_>>()))
    };
    found.into_iter().map(line).collect()
}

/// The page.
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_string();
    for (number, class) in ProductClass::ALL.iter().enumerate() {
        page += &format!("| {number} | {} |\n", class.name());
    }
    page += BODIES;
    // Bodies that differ in the constants of the example programs alone are one.
    let bodies = all().into_iter().map(|KnownBody { name, code, free }| body(&name, &code, &free));
    let mut seen = HashSet::new();
    page.extend(bodies.filter(|body| seen.insert(body.clone())));
    page += LOGGED;
    for rule in [(16, 0), (16, 14), (27, 0), (32, 0)].map(|(bits, floor)| GridRule { bits, floor }) {
        page += &logged(rule);
    }
    page += MODELS;
    for (model, optimizer, program) in small_programs() {
        let [model, optimizer] = [json!(model), json!(optimizer)];
        page += &format!("\n```json\n{model}\n{optimizer}\n```\n");
        for (name, graph) in [("micro", &program.micro), ("update", &program.update)] {
            page += &format!("\n```\n# {name}\n{}```\n", operators(graph));
        }
    }
    page += EXAMPLE;
    let Examples { program, program_digest } =
        serde_json::from_str(EXAMPLES).expect("a script wrote the examples, and a test reads them");
    for [bytes, meaning] in program {
        page += format!("{bytes}  {meaning}").trim_start();
        page += "\n";
    }
    page + &format!("```\n\nThe program digest is `{program_digest}`.\n")
}

/// The same names as JSON.
pub fn names() -> Value {
    let bodies: Vec<Value> =
        all().iter().map(|body| json!({ "name": body.name, "instructions": body.code.len() })).collect();
    json!({ "classes": ProductClass::ALL.map(ProductClass::name), "bodies": bodies })
}
