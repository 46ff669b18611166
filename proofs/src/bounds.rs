//! The product's integer argument: a completed product shader, run on intervals. Control is concrete (one invocation, a K of some
//! flush lengths); data may be anything that the operands can hold. An i32 that may overflow or an f32 that may be rounded is an
//! error.

use std::collections::HashMap;

use naga::valid::FunctionInfo;
use naga::{
    AddressSpace, Block, Expression, Function, GlobalVariable, Handle, Literal, LocalVariable, MathFunction,
    Module, ScalarKind, Statement, Type, TypeInner,
};

use crate::interval::{Interval, binary, product, sum};
use crate::refusal::Refusal;
use crate::types::part;

/// The way a block was left.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
    Return,
}

/// A run.
pub struct Run<'a> {
    module: &'a Module,
    function: &'a Function,
    info: &'a FunctionInfo,
    /// The values of the uniform `p`: batch, M, N, words; blocks, words of a block, bits, first product.
    uniform: Vec<u32>,
    /// The magnitude of the integers in `a` and `b`, or their number of planes of packed digits.
    operands: HashMap<&'static str, i128>,
    values: HashMap<Handle<Expression>, Vec<Interval>>,
    locals: Vec<Vec<Interval>>,
    /// The values that an element of a workgroup array may have at any index, and true if it was read.
    shared: HashMap<(Handle<GlobalVariable>, usize), (Vec<Interval>, bool)>,
    /// The greatest magnitude that each signed variable may reach.
    greatest: Vec<i128>,
}

type Values = Result<Vec<Interval>, Refusal>;

impl<'a> Run<'a> {
    /// Runs the entry point: the greatest magnitude that each of its variables may reach, 0 for those that are not signed.
    ///
    /// # Errors
    /// If a signed integer may overflow, a float may be rounded, or control depends on data.
    pub fn of(
        module: &'a Module,
        info: &'a FunctionInfo,
        uniform: Vec<u32>,
        operands: HashMap<&'static str, i128>,
    ) -> Result<Vec<i128>, Refusal> {
        let function = &module.entry_points[0].function;
        let (values, shared) = (HashMap::new(), HashMap::new());
        let mut run = Run {
            module,
            function,
            info,
            uniform,
            operands,
            values,
            locals: Vec::new(),
            shared,
            greatest: Vec::new(),
        };
        for (_, variable) in function.local_variables.iter() {
            let init = match variable.init {
                Some(init) => run.value(init)?,
                None => run.zero(variable.ty)?,
            };
            run.locals.push(init);
            run.greatest.push(0);
        }
        run.block(&function.body)?;
        Ok(run.greatest)
    }

    fn inner(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.module.types)
    }

    /// The kinds of a type's scalars.
    fn kinds(&self, inner: &TypeInner) -> Result<Vec<ScalarKind>, Refusal> {
        match inner {
            TypeInner::Scalar(s) => Ok(vec![s.kind]),
            TypeInner::Vector { size, scalar } => Ok(vec![scalar.kind; *size as usize]),
            TypeInner::Array { base, size: naga::ArraySize::Constant(size), .. } => {
                Ok(self.kinds(&self.module.types[*base].inner)?.repeat(size.get() as usize))
            }
            other => Err(Refusal(format!("a type is {other:?}"))),
        }
    }

    fn zero(&self, ty: Handle<Type>) -> Values {
        let kinds = self.kinds(&self.module.types[ty].inner)?;
        Ok(kinds.into_iter().map(|kind| Interval::one(0, kind)).collect())
    }

    fn any(&self, inner: &TypeInner) -> Values {
        self.kinds(inner)?.into_iter().map(Interval::any).collect()
    }

    fn block(&mut self, block: &'a Block) -> Result<Flow, Refusal> {
        for statement in block.iter() {
            let flow = self.statement(statement)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<Flow, Refusal> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    if matches!(
                        self.inner(handle),
                        TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
                    ) {
                        continue;
                    }
                    let value = self.compute(handle)?;
                    self.values.insert(handle, value);
                }
            }
            Statement::Block(block) => return self.block(block),
            Statement::If { condition, accept, reject } => {
                let taken = self.concrete(*condition)? != 0;
                return self.block(if taken { accept } else { reject });
            }
            Statement::Loop { body, continuing, break_if } => loop {
                match self.block(body)? {
                    Flow::Break => break,
                    Flow::Return => return Ok(Flow::Return),
                    Flow::On | Flow::Continue => {}
                }
                self.block(continuing)?;
                if let Some(condition) = break_if
                    && self.concrete(*condition)? != 0
                {
                    break;
                }
            },
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Return { .. } => return Ok(Flow::Return),
            Statement::ControlBarrier(_) => {}
            Statement::Store { pointer, value } => self.store(*pointer, *value)?,
            Statement::Call { result, .. } => {
                // The sums beyond 32 bits and the way back to binary32 may give anything: other theorems cover them.
                if let Some(result) = result {
                    let value = self.any(self.inner(*result))?;
                    self.values.insert(*result, value);
                }
            }
            other => return Err(Refusal(format!("a statement is {other:?}"))),
        }
        Ok(Flow::On)
    }

    fn concrete(&mut self, handle: Handle<Expression>) -> Result<i128, Refusal> {
        let value = self.value(handle)?[0];
        value.only().ok_or_else(|| Refusal(format!("control or a place depends on data: {value:?}")))
    }

    fn value(&mut self, handle: Handle<Expression>) -> Values {
        match self.values.get(&handle) {
            Some(known) => Ok(known.clone()),
            None => self.compute(handle),
        }
    }

    fn literal(literal: Literal) -> Values {
        Ok(vec![match literal {
            Literal::U32(value) => Interval::one(value.into(), ScalarKind::Uint),
            Literal::I32(value) => Interval::one(value.into(), ScalarKind::Sint),
            Literal::Bool(value) => Interval::one(value.into(), ScalarKind::Bool),
            other => return Err(Refusal(format!("a literal is {other:?}"))),
        }])
    }

    /// The value of a module's constant.
    pub fn constant(module: &Module, handle: Handle<naga::Constant>) -> Values {
        match &module.global_expressions[module.constants[handle].init] {
            Expression::Literal(value) => Self::literal(*value),
            other => Err(Refusal(format!("a constant is {other:?}"))),
        }
    }

    fn compute(&mut self, handle: Handle<Expression>) -> Values {
        let function = self.function;
        match &function.expressions[handle] {
            Expression::Literal(value) => Self::literal(*value),
            Expression::Constant(constant) => Self::constant(self.module, *constant),
            Expression::ZeroValue(ty) => self.zero(*ty),
            Expression::Compose { components, .. } => {
                let parts: Result<Vec<_>, Refusal> = components.iter().map(|c| self.value(*c)).collect();
                Ok(parts?.concat())
            }
            Expression::Splat { size, value } => Ok(self.value(*value)?.repeat(*size as usize)),
            // The first invocation of the first workgroup: all invocations are at the same places of K.
            Expression::FunctionArgument(index) => self.zero(function.arguments[*index as usize].ty),
            Expression::AccessIndex { base, index } => {
                let (from, count) = part(self.module, self.inner(*base), *index as usize)?;
                Ok(self.value(*base)?[from..from + count].to_vec())
            }
            Expression::Load { pointer } => self.load(*pointer, self.inner(handle)),
            Expression::Binary { op, left, right } => {
                let (a, b) = (self.value(*left)?, self.value(*right)?);
                let count = a.len().max(b.len());
                (0..count).map(|i| binary(*op, a[i % a.len()], b[i % b.len()])).collect()
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let arguments: Vec<_> = [Some(*arg), *arg1, *arg2].into_iter().flatten().collect();
                let values: Result<Vec<_>, Refusal> = arguments.iter().map(|a| self.value(*a)).collect();
                math(*fun, &values?)
            }
            Expression::As { expr, kind: to, convert: Some(4) } => {
                self.value(*expr)?.into_iter().map(|value| value.convert(*to)).collect()
            }
            // A reinterpretation of an integer's bits as the other kind counts as a conversion.
            Expression::As { expr, kind: to @ (ScalarKind::Uint | ScalarKind::Sint), convert: None } => {
                let whole = |value: Interval| match value.kind {
                    ScalarKind::Uint | ScalarKind::Sint => value.convert(*to),
                    _ => Interval::any(*to),
                };
                self.value(*expr)?.into_iter().map(whole).collect()
            }
            Expression::Select { accept, reject, .. } => {
                let (yes, no) = (self.value(*accept)?, self.value(*reject)?);
                Ok(yes.iter().zip(&no).map(|(yes, no)| yes.join(*no)).collect())
            }
            Expression::Unary { .. } => self.any(self.inner(handle)),
            other => Err(Refusal(format!("an expression is {other:?}"))),
        }
    }

    /// The variable of a pointer, and the range of scalars that it refers to, if the index is known.
    fn place(&mut self, pointer: Handle<Expression>) -> Result<Place, Refusal> {
        let (base, index) = match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => {
                return Ok(Place::Local(variable, 0, self.locals[variable.index()].len()));
            }
            Expression::GlobalVariable(variable) => return Ok(Place::Global(variable, None)),
            Expression::AccessIndex { base, index } => (base, index as usize),
            Expression::Access { base, index } => (base, self.concrete(index)? as usize),
            ref other => return Err(Refusal(format!("a pointer to {other:?}"))),
        };
        let TypeInner::Pointer { base: ty, .. } = *self.inner(base) else {
            return Err(Refusal("a pointer into a scalar".into()));
        };
        Ok(match self.place(base)? {
            Place::Local(variable, from, _) => {
                let (offset, count) = part(self.module, &self.module.types[ty].inner, index)?;
                Place::Local(variable, from + offset, count)
            }
            Place::Global(variable, None) => Place::Global(variable, Some((index, None))),
            Place::Global(variable, Some((element, _))) => {
                Place::Global(variable, Some((element, Some(index))))
            }
        })
    }

    fn load(&mut self, pointer: Handle<Expression>, inner: &'a TypeInner) -> Values {
        let (variable, path) = match self.place(pointer)? {
            Place::Local(variable, from, count) => {
                return Ok(self.locals[variable.index()][from..from + count].to_vec());
            }
            Place::Global(variable, path) => (variable, path),
        };
        let global = &self.module.global_variables[variable];
        let name = global.name.as_deref().unwrap_or_default();
        match (global.space, path) {
            (AddressSpace::Uniform, Some((element, Some(word)))) => {
                Ok(vec![Interval::one(self.uniform[element * 4 + word].into(), ScalarKind::Uint)])
            }
            (AddressSpace::WorkGroup, Some((element, _))) => {
                let known = self.shared.get_mut(&(variable, element));
                let (value, read) =
                    known.ok_or_else(|| Refusal(format!("{name} is read before it is written")))?;
                *read = true;
                Ok(value.clone())
            }
            (AddressSpace::Storage { .. }, _) => {
                let kinds = self.kinds(inner)?;
                match self.operands.get(name) {
                    Some(magnitude) if kinds[0] == ScalarKind::Sint => {
                        Ok(kinds.into_iter().map(|kind| Interval::within(*magnitude, kind)).collect())
                    }
                    Some(planes) if kinds[0] == ScalarKind::Uint => {
                        let Some((index, _)) = path else { return self.any(inner) };
                        // A plane has 64 rows. |q| <= 2^(8 d - 2) leaves the last digit at most 64.
                        let plane = index as i128 / (64 * i128::from(self.uniform[3]));
                        Ok(vec![if plane + 1 < *planes { DIGITS } else { LAST_DIGITS }])
                    }
                    _ => self.any(inner),
                }
            }
            _ => Err(Refusal(format!("a load of {name}"))),
        }
    }

    fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<(), Refusal> {
        let value = self.value(value)?;
        let (variable, path) = match self.place(pointer)? {
            Place::Local(variable, from, count) => {
                let signed = value.iter().filter(|v| v.kind == ScalarKind::Sint);
                let greatest = &mut self.greatest[variable.index()];
                *greatest = signed.map(|v| v.magnitude()).fold(*greatest, i128::max);
                self.locals[variable.index()][from..from + count].copy_from_slice(&value);
                return Ok(());
            }
            Place::Global(variable, path) => (variable, path),
        };
        let global = &self.module.global_variables[variable];
        if global.space != AddressSpace::WorkGroup {
            return Ok(());
        }
        // Places that were never written are 0.
        let zero: Vec<Interval> = value.iter().map(|v| Interval::one(0, v.kind)).collect();
        let element = path.map_or(0, |(element, _)| element);
        let (known, read) = self.shared.entry((variable, element)).or_insert((zero, false));
        let joined: Vec<Interval> = known.iter().zip(&value).map(|(a, b)| a.join(*b)).collect();
        if *read && joined != *known {
            return Err(Refusal("workgroup memory takes larger numbers after it was read".into()));
        }
        *known = joined;
        Ok(())
    }
}

/// A word of four digits, which stands for the bounds of each: a word that is a number has a low end of at least 0.
const DIGITS: Interval = Interval { low: -128, high: 127, kind: ScalarKind::Uint };
const LAST_DIGITS: Interval = Interval { low: -64, high: 64, kind: ScalarKind::Uint };

/// The digits of a packed word.
fn digits(word: Interval) -> Interval {
    let known = if word.low < 0 { word } else { DIGITS };
    Interval { kind: ScalarKind::Sint, ..known }
}

/// The target of a pointer; for a module's variable, the element and the word in it.
enum Place {
    Local(Handle<LocalVariable>, usize, usize),
    Global(Handle<GlobalVariable>, Option<(usize, Option<usize>)>),
}

fn math(function: MathFunction, values: &[Vec<Interval>]) -> Values {
    use MathFunction as F;
    let first = &values[0];
    Ok(match function {
        F::Min | F::Max => first
            .iter()
            .zip(&values[1])
            .map(|(a, b)| {
                let least = function == F::Min;
                let pick = |x: i128, y: i128| if least { x.min(y) } else { x.max(y) };
                Interval { low: pick(a.low, b.low), high: pick(a.high, b.high), ..*a }
            })
            .collect(),
        F::Dot => {
            let mut total = Interval::one(0, first[0].kind);
            for (a, b) in first.iter().zip(&values[1]) {
                total = sum(total, product(*a, *b).checked()?).checked()?;
            }
            vec![total]
        }
        F::Fma => {
            let each = first.iter().zip(&values[1]).zip(&values[2]);
            return each.map(|((a, b), c)| sum(product(*a, *b), *c).checked()).collect();
        }
        F::Dot4I8Packed => {
            let term = product(digits(first[0]), digits(values[1][0]));
            vec![sum(sum(term, term), sum(term, term))]
        }
        F::Unpack4xI8 => vec![digits(first[0]); 4],
        other => return Err(Refusal(format!("a function is {other:?}"))),
    })
}
