//! The canonical serialization of a program: little-endian, lengths before contents, optional fields always present. The
//! program digest is a hash of these bytes; [`super::decoding`] reads them. Layout: `docs/ARITHMETIC.md`, section 9.

use super::expr::{Body, Instr};
use super::graph::{Graph, Port, Primitive, TensorId, View};
use super::im2col::ConvGeometry;
use super::models::Init;
use super::step::Program;

/// The version of this layout, the first word of every encoding.
pub(crate) const VERSION: u32 = 2;
/// The most bytes of an encoding.
pub const PROGRAM_MAX: u64 = 1 << 26;

/// The canonical bytes of a program: its numbers, its tables and its three graphs.
pub fn encode(program: &Program) -> Vec<u8> {
    let Program { micro_batch, micro_batches, labels_per_sample, .. } = program;
    let mut e = Encoder(Vec::new());
    for word in [&VERSION, micro_batch, micro_batches, labels_per_sample] {
        e.u32(*word);
    }
    e.list(&program.corrections, |e, &beta| e.u32(beta));
    e.list(&program.batch, |e, t| {
        e.text(&t.name);
        e.u8(t.dtype.code());
        e.list(&t.shape, |e, &d| e.u32(d));
        e.u32(t.below);
    });
    e.list(&program.parameters, |e, p| {
        e.state(&p.name, &p.shape, p.init);
        e.u8(u8::from(p.frozen));
    });
    e.list(&program.buffers, |e, b| e.state(&b.name, &b.shape, b.init));
    e.list(&program.slots, |e, slot| e.text(slot));
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

    fn state(&mut self, name: &str, shape: &[u32], init: Init) {
        self.text(name);
        self.list(shape, |e, &d| e.u32(d));
        let (kind, word) = match init {
            Init::Zeros => (0, 0),
            Init::Ones => (1, 0),
            Init::Normal { std } => (2, std.to_bits()),
            Init::Uniform { bound } => (3, bound.to_bits()),
        };
        self.u8(kind);
        self.u32(word);
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
        self.list(&graph.logged, |e, l| {
            e.u8(l.class as u8);
            e.view(&l.a);
            e.view(&l.b);
            e.id(l.absmaxes_a);
            e.id(l.absmaxes_b);
            e.u8(l.rule.bits);
            e.u8(l.rule.floor);
            e.id(l.product);
            e.id(l.output);
            e.list(&l.exact, |e, &id| e.id(id));
        });
    }

    fn primitive(&mut self, primitive: &Primitive) {
        self.u8(primitive.kind());
        match primitive {
            Primitive::Map { body, dims, inputs } => {
                self.body(body);
                dims.iter().for_each(|&d| self.u32(d));
                self.list(inputs, Encoder::view);
            }
            Primitive::Gather { table, indices, bound, stride_index, stride_row, stride_column } => {
                self.id(*table);
                self.id(*indices);
                for x in [bound, stride_index, stride_row, stride_column] {
                    self.u32(*x);
                }
            }
            Primitive::RowMax { input, block } => {
                self.id(*input);
                self.u32(*block);
            }
            Primitive::TreeSum { input, outer, len, inner, block } => {
                self.id(*input);
                for x in [outer, len, inner, block] {
                    self.u32(*x);
                }
            }
            Primitive::SegmentSum { input, order, offsets } => {
                [input, order, offsets].into_iter().for_each(|&t| self.id(t));
            }
            Primitive::GroupOrder { classes, bound } => {
                self.id(*classes);
                self.u32(*bound);
            }
            Primitive::GroupOffsets { classes, bound } => {
                self.id(*classes);
                self.u32(*bound);
            }
            Primitive::Absmax { input, block } => {
                self.view(input);
                self.u32(*block);
            }
            Primitive::Quantise { input, absmaxes, digits, block } => {
                self.view(input);
                self.id(*absmaxes);
                self.u8(*digits);
                self.u32(*block);
            }
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, .. } => {
                [a, absmaxes_a, b, absmaxes_b].into_iter().for_each(|&t| self.id(t));
                self.u32(*block);
            }
            Primitive::Im2col { input, geometry } => {
                self.id(*input);
                self.geometry(geometry);
            }
            Primitive::DigitPatches { input, patches } => {
                self.id(*input);
                patches.image.into_iter().for_each(|x| self.u32(x));
                self.geometry(&patches.geometry);
                self.u8(u8::from(patches.by_channel));
            }
            Primitive::Native { .. } => unreachable!("programs have no native products"),
        }
    }

    fn geometry(&mut self, geometry: &ConvGeometry) {
        let ConvGeometry { size, kernel, stride, padding, transposed } = geometry;
        size.iter().chain(kernel).chain([stride, padding]).for_each(|&x| self.u32(x));
        self.u8(u8::from(*transposed));
    }

    fn view(&mut self, view: &View) {
        self.id(view.tensor);
        self.u32(view.offset);
        view.dims.iter().chain(&view.strides).for_each(|&x| self.u32(x));
    }

    fn body(&mut self, body: &Body) {
        // The node's name is the body's name, and is already written.
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
