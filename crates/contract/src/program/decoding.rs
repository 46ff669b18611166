//! Programs from bytes: the strict reader of [`super::encoding`]'s layout.
//!
//! A decoded program has passed `validate`, so an engine can run it like a program of our own. Encoding the program gives
//! the same bytes. Lengths are checked against the remaining bytes before anything is allocated. Layout and limits:
//! `docs/ARITHMETIC.md`, section 9.

use std::borrow::Cow;

use super::encoding::{PROGRAM_MAX, VERSION, encode};
use super::expr::{Body, Instr, Reg};
use super::graph::{Graph, LoggedProduct, Node, Port, Primitive, TensorId, TensorType, View};
use super::im2col::{ConvGeometry, DigitPatches};
use super::models::{BatchTensor, Init};
use super::products::ProductClass;
use super::step::{Buffer, Parameter, Program};
use super::validate;
use crate::arith::DType;
use crate::arith::digits::ProductPart;
use crate::arith::rounding_grid::GridRule;

/// The most bytes of a name.
pub(crate) const NAME_MAX: usize = 256;
/// The most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 4;

/// Why bytes are not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProgramError(pub String);

type Result<T> = std::result::Result<T, ProgramError>;

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(ProgramError(why.into()))
}

/// The program with this encoding.
///
/// # Errors
/// If the bytes are not the encoding of a program that engines can run: the message names the graph and the node.
///
/// ```
/// use tiebreak_contract::program::decoding::decode;
/// use tiebreak_contract::program::encoding::encode;
/// # use tiebreak_contract::program::models::Model;
/// # use tiebreak_contract::program::operators::LossRule;
/// # use tiebreak_contract::program::optimizer::Optimizer;
/// # use tiebreak_contract::program::products::ProductTable;
/// # use tiebreak_contract::program::step::{Program, StepSpec};
/// # let model: Model = serde_json::from_str(r#"{"kind": "mlp", "inputs": 6, "hidden": [], "classes": 3}"#)?;
/// # let program = Program::new(StepSpec {
/// #     model,
/// #     optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
/// #     clip_norm: None,
/// #     loss: LossRule::default(),
/// #     micro_batch: 2,
/// #     micro_batches: 1,
/// #     products: ProductTable::preset(),
/// # });
///
/// let mut bytes = encode(&program);
/// assert!(decode(&bytes)? == program);
/// // A program has one encoding, and nothing follows it.
/// bytes.push(0);
/// assert!(decode(&bytes).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decode(bytes: &[u8]) -> Result<Program> {
    if bytes.len() as u64 > PROGRAM_MAX {
        return wrong(format!("a program has at most {PROGRAM_MAX} bytes"));
    }
    let mut d = Decoder { rest: bytes };
    let program = d.program()?;
    if !d.rest.is_empty() {
        return wrong(format!("{} bytes follow the program", d.rest.len()));
    }
    validate::program(&program).map_err(ProgramError)?;
    // Every field has one form, so the check holds for all decoded programs; the digest rests on that.
    if encode(&program) != bytes {
        return wrong("the bytes are not the one encoding of their program");
    }
    Ok(program)
}

struct Decoder<'a> {
    rest: &'a [u8],
}

impl Decoder<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let Some((head, tail)) = self.rest.split_at_checked(len) else {
            return wrong("the bytes end before the program does");
        };
        self.rest = tail;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        let mut word = [0; 4];
        word.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(word))
    }

    fn words<const N: usize>(&mut self) -> Result<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u32()?;
        }
        Ok(words)
    }

    fn id(&mut self) -> Result<TensorId> {
        Ok(TensorId(self.u32()?))
    }

    /// A list of items that take at least `least` bytes each.
    fn list<T>(&mut self, least: usize, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / least {
            return wrong("a list is longer than the bytes that are left");
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A name: 1 to [`NAME_MAX`] printing characters of ASCII, so that it can be shown and used as a key anywhere.
    fn name(&mut self) -> Result<String> {
        let len = self.u32()? as usize;
        if len == 0 || len > NAME_MAX {
            return wrong(format!("a name has {len} bytes, 1 to {NAME_MAX} are allowed"));
        }
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(name) if bytes.iter().all(u8::is_ascii_graphic) => Ok(name.to_string()),
            _ => wrong("a name has a character that is not a printing one of ASCII"),
        }
    }

    /// A shape. One of more dimensions would be copied for each slot before it is checked.
    fn shape(&mut self) -> Result<Vec<u32>> {
        let shape = self.list(4, Self::u32)?;
        match shape.len() <= DIMENSIONS_MAX {
            true => Ok(shape),
            false => {
                wrong(format!("a shape has {} dimensions, 1 to {DIMENSIONS_MAX} are allowed", shape.len()))
            }
        }
    }

    fn dtype(&mut self) -> Result<DType> {
        let code = self.u8()?;
        let known = [DType::F32, DType::U32, DType::Q(1), DType::Q(2), DType::Q(3), DType::Q(4)];
        match known.into_iter().find(|dtype| dtype.code() == code) {
            Some(dtype) => Ok(dtype),
            None => wrong(format!("{code} is no type of a program's tensors")),
        }
    }

    fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => wrong(format!("a flag is 0 or 1, not {other}")),
        }
    }

    fn init(&mut self) -> Result<Init> {
        match (self.u8()?, self.u32()?) {
            (0, 0) => Ok(Init::Zeros),
            (1, 0) => Ok(Init::Ones),
            (2, word) => Ok(Init::Normal { std: f32::from_bits(word) }),
            (3, word) => Ok(Init::Uniform { bound: f32::from_bits(word) }),
            (kind, _) => {
                wrong(format!("{kind} is no kind of initial values, or has a word that it does not take"))
            }
        }
    }

    fn program(&mut self) -> Result<Program> {
        let version = self.u32()?;
        if version != VERSION {
            return wrong(format!("it has version {version}; version {VERSION} is read here"));
        }
        let [micro_batch, micro_batches, labels_per_sample] = self.words()?;
        let corrections = self.list(4, Self::u32)?;
        let batch = self.list(13, |d| {
            let (name, dtype) = (d.name()?, d.dtype()?);
            Ok(BatchTensor { name, dtype, shape: d.shape()?, below: d.u32()? })
        })?;
        let parameters = self.list(14, |d| {
            let (name, shape, init) = (d.name()?, d.shape()?, d.init()?);
            Ok(Parameter { name, shape, init, frozen: d.flag()? })
        })?;
        let buffers =
            self.list(13, |d| Ok(Buffer { name: d.name()?, shape: d.shape()?, init: d.init()? }))?;
        let slots = self.list(5, Self::name)?;
        let (micro, accumulate, update) = (self.graph()?, self.graph()?, self.graph()?);
        Ok(Program {
            micro_batch,
            micro_batches,
            labels_per_sample,
            corrections,
            batch,
            parameters,
            buffers,
            slots,
            micro,
            accumulate,
            update,
        })
    }

    fn graph(&mut self) -> Result<Graph> {
        let port = |d: &mut Self| Ok(Port { name: d.name()?, tensor: d.id()? });
        let tensors = self.list(5, |d| Ok(TensorType { dtype: d.dtype()?, shape: d.shape()? }))?;
        let inputs = self.list(9, port)?;
        let nodes = self.list(19, Self::node)?;
        let outputs = self.list(9, port)?;
        let logged = self.list(99, Self::logged)?;
        Ok(Graph { tensors, inputs, nodes, outputs, logged })
    }

    fn node(&mut self) -> Result<Node> {
        let (operator, name) = (self.name()?, self.name()?);
        let primitive = self.primitive(&name)?;
        if primitive.name() != name {
            return wrong(format!("a node of {operator} is named {name}, but is {}", primitive.name()));
        }
        Ok(Node { operator, primitive, output: self.id()? })
    }

    fn primitive(&mut self, name: &str) -> Result<Primitive> {
        Ok(match self.u8()? {
            0 => {
                let body = Body { name: Cow::Owned(name.to_string()), code: self.list(2, Self::instr)? };
                Primitive::Map { body, dims: self.words()?, inputs: self.list(40, Self::view)? }
            }
            1 => {
                let (table, indices) = (self.id()?, self.id()?);
                let [bound, stride_index, stride_row, stride_column] = self.words()?;
                Primitive::Gather { table, indices, bound, stride_index, stride_row, stride_column }
            }
            2 => Primitive::RowMax { input: self.id()?, block: self.u32()? },
            3 => {
                let input = self.id()?;
                let [outer, len, inner, block] = self.words()?;
                Primitive::TreeSum { input, outer, len, inner, block }
            }
            4 => Primitive::SegmentSum { input: self.id()?, order: self.id()?, offsets: self.id()? },
            5 => Primitive::GroupOrder { classes: self.id()?, bound: self.u32()? },
            6 => Primitive::GroupOffsets { classes: self.id()?, bound: self.u32()? },
            7 => Primitive::Absmax { input: self.view()?, block: self.u32()? },
            8 => {
                let (input, absmaxes) = (self.view()?, self.id()?);
                Primitive::Quantise { input, absmaxes, digits: self.u8()?, block: self.u32()? }
            }
            9 => self.product(ProductPart::Rounded)?,
            10 => self.product(ProductPart::RoundingError)?,
            11 => {
                let input = self.id()?;
                Primitive::Im2col { input, geometry: self.geometry()? }
            }
            12 => {
                let (input, image) = (self.id()?, self.words()?);
                let patches = DigitPatches { image, geometry: self.geometry()?, by_channel: self.flag()? };
                Primitive::DigitPatches { input, patches }
            }
            kind => return wrong(format!("{kind} is no kind of node")),
        })
    }

    fn geometry(&mut self) -> Result<ConvGeometry> {
        let [down, across, kernel_down, kernel_across, stride, padding] = self.words()?;
        let (size, kernel) = ([down, across], [kernel_down, kernel_across]);
        Ok(ConvGeometry { size, kernel, stride, padding, transposed: self.flag()? })
    }

    fn product(&mut self, part: ProductPart) -> Result<Primitive> {
        let (a, absmaxes_a, b, absmaxes_b) = (self.id()?, self.id()?, self.id()?, self.id()?);
        Ok(Primitive::Product { a, absmaxes_a, b, absmaxes_b, block: self.u32()?, part })
    }

    fn view(&mut self) -> Result<View> {
        let (tensor, offset) = (self.id()?, self.u32()?);
        Ok(View { tensor, offset, dims: self.words()?, strides: self.words()? })
    }

    fn logged(&mut self) -> Result<LoggedProduct> {
        let class = self.u8()?;
        let Some(&class) = ProductClass::ALL.get(usize::from(class)) else {
            return wrong(format!("{class} is no class of products"));
        };
        let (a, b, absmaxes_a, absmaxes_b) = (self.view()?, self.view()?, self.id()?, self.id()?);
        let rule = GridRule { bits: self.u8()?, floor: self.u8()? };
        let (product, output) = (self.id()?, self.id()?);
        let exact = self.list(4, Self::id)?;
        Ok(LoggedProduct { class, a, b, absmaxes_a, absmaxes_b, rule, product, output, exact })
    }

    fn reg(&mut self) -> Result<Reg> {
        Ok(Reg(self.u8()?))
    }

    fn regs<const N: usize>(&mut self) -> Result<[Reg; N]> {
        let mut regs = [Reg(0); N];
        for reg in &mut regs {
            *reg = self.reg()?;
        }
        Ok(regs)
    }

    fn instr(&mut self) -> Result<Instr> {
        use Instr::*;
        let code = self.u8()?;
        let mut two = |make: fn(Reg, Reg) -> Instr| self.regs().map(|[a, b]| make(a, b));
        Ok(match code {
            3 => two(FAdd)?,
            4 => two(FSub)?,
            5 => two(FMul)?,
            6 => two(FDiv)?,
            13 => two(FLt)?,
            15 => two(UAdd)?,
            16 => two(UMul)?,
            17 => two(UAnd)?,
            18 => two(UShr)?,
            19 => two(ULt)?,
            20 => two(UEq)?,
            0 => Input(self.u8()?),
            1 => Const(self.u32()?),
            2 => Index(self.u8()?),
            7 => FSqrt(self.reg()?),
            8 => FNeg(self.reg()?),
            9 => FExp(self.reg()?),
            10 => FLog(self.reg()?),
            11 => FTanh(self.reg()?),
            12 => FErf(self.reg()?),
            14 => FFromU(self.reg()?),
            21 => {
                let [condition, yes, no] = self.regs()?;
                Select(condition, yes, no)
            }
            22 => Philox { key: self.regs()?, counter: self.regs()?, word: self.reg()? },
            code => return wrong(format!("{code} is no opcode")),
        })
    }
}
