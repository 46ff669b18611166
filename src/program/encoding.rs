//! The canonical serialization of a program: little-endian, lengths before contents, nothing optional left out.
//! The program digest is a hash of these bytes. Layout: `docs/ARITHMETIC.md`, section 9.

use super::expr::{Body, Instr};
use super::graph::{Graph, Port, Primitive, TensorId, View};
use super::im2col::ConvGeometry;
use super::models::Init;
use super::step::Program;
use crate::arith::digits::ProductPart;

/// The version of this layout, the first word of every encoding.
pub const VERSION: u32 = 1;

/// The canonical bytes of a program: its parameter table and its three graphs.
pub fn encode(program: &Program) -> Vec<u8> {
    let mut e = Encoder(Vec::new());
    e.u32(VERSION);
    e.u32(program.spec.micro_batch);
    e.u32(program.spec.micro_batches);
    e.list(&program.parameters, |e, p| {
        e.text(&p.name);
        e.list(&p.shape, |e, &d| e.u32(d));
        let (kind, word) = match p.init {
            Init::Zeros => (0, 0),
            Init::Ones => (1, 0),
            Init::Normal { std } => (2, std.to_bits()),
        };
        e.u8(kind);
        e.u32(word);
    });
    for graph in [&program.micro, &program.accumulate, &program.update] {
        e.graph(graph);
    }
    e.0
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    fn u32(&mut self, x: u32) {
        self.0.extend(x.to_le_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Encoder, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            each(self, item);
        }
    }

    fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
    }

    fn id(&mut self, id: TensorId) {
        self.u32(id.0);
    }

    fn graph(&mut self, graph: &Graph) {
        self.list(&graph.tensors, |e, t| {
            e.u8(t.dtype.code());
            e.list(&t.shape, |e, &d| e.u32(d));
        });
        let port = |e: &mut Encoder, p: &Port| {
            e.text(&p.name);
            e.id(p.tensor);
        };
        self.list(&graph.inputs, port);
        self.list(&graph.nodes, |e, node| {
            e.text(&node.operator);
            e.text(node.primitive.name());
            e.primitive(&node.primitive);
            e.id(node.output);
        });
        self.list(&graph.outputs, port);
    }

    fn primitive(&mut self, primitive: &Primitive) {
        match primitive {
            Primitive::Map { body, dims, inputs } => {
                self.u8(0);
                self.body(body);
                dims.iter().for_each(|&d| self.u32(d));
                self.list(inputs, Encoder::view);
            }
            Primitive::Gather { table, indices, bound, stride_index, stride_row, stride_column } => {
                self.u8(1);
                self.id(*table);
                self.id(*indices);
                for x in [bound, stride_index, stride_row, stride_column] {
                    self.u32(*x);
                }
            }
            Primitive::RowMax { input, block } => {
                self.u8(2);
                self.id(*input);
                self.u32(*block);
            }
            Primitive::TreeSum { input, outer, len, inner, block } => {
                self.u8(3);
                self.id(*input);
                for x in [outer, len, inner, block] {
                    self.u32(*x);
                }
            }
            Primitive::SegmentSum { input, order, offsets } => {
                self.u8(4);
                [input, order, offsets].into_iter().for_each(|&t| self.id(t));
            }
            Primitive::GroupOrder { classes, bound } => {
                self.u8(5);
                self.id(*classes);
                self.u32(*bound);
            }
            Primitive::GroupOffsets { classes, bound } => {
                self.u8(6);
                self.id(*classes);
                self.u32(*bound);
            }
            Primitive::Absmax { input, block } => {
                self.u8(7);
                self.view(input);
                self.u32(*block);
            }
            Primitive::Quantise { input, absmaxes, digits, block } => {
                self.u8(8);
                self.view(input);
                self.id(*absmaxes);
                self.u8(*digits);
                self.u32(*block);
            }
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, part } => {
                self.u8(match part {
                    ProductPart::Rounded => 9,
                    ProductPart::RoundingError => 10,
                });
                [a, absmaxes_a, b, absmaxes_b].into_iter().for_each(|&t| self.id(t));
                self.u32(*block);
            }
            Primitive::Im2col { input, geometry } => {
                self.u8(11);
                self.id(*input);
                let ConvGeometry { size, kernel, stride, padding, transposed } = geometry;
                size.iter().chain(kernel).chain([stride, padding]).for_each(|&x| self.u32(x));
                self.u8(u8::from(*transposed));
            }
            Primitive::Native { .. } => unreachable!("programs have no native products"),
        }
    }

    fn view(&mut self, view: &View) {
        self.id(view.tensor);
        self.u32(view.offset);
        view.dims.iter().chain(&view.strides).for_each(|&x| self.u32(x));
    }

    fn body(&mut self, body: &Body) {
        self.text(body.name);
        self.list(&body.code, |e, instr| {
            e.u8(instr.opcode());
            match instr {
                Instr::Input(k) | Instr::Index(k) => e.u8(*k),
                Instr::Const(word) => e.u32(*word),
                other => other.operands().iter().for_each(|r| e.u8(r.0)),
            }
        });
    }
}
