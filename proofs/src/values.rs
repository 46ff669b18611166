//! Expressions as terms, scalar by scalar.

use naga::{
    BinaryOperator, Expression, Handle, Literal, MathFunction, RelationalFunction, ScalarKind, TypeInner,
    UnaryOperator,
};

use crate::body::Body;
use crate::refusal::Refusal;
use crate::term::{Sort, Term, WORD};
use crate::types::{kind, part, scalars};

fn refuse<T>(text: impl std::fmt::Debug) -> Result<T, Refusal> {
    Err(Refusal(format!("{text:?}")))
}

impl Body<'_, '_> {
    /// The type of an expression.
    pub fn inner(&self, handle: Handle<Expression>) -> &TypeInner {
        self.info[handle].ty.inner_with(&self.module.types)
    }

    /// The scalars of an expression that has a value.
    pub fn value(&mut self, handle: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        match self.values.get(&handle) {
            Some(known) => Ok(known.clone()),
            None => self.compute(handle),
        }
    }

    /// A value of one scalar.
    pub fn scalar(&mut self, handle: Handle<Expression>) -> Result<Term, Refusal> {
        match self.value(handle)?.as_slice() {
            [term] => Ok(*term),
            _ => refuse("a vector where a scalar is wanted"),
        }
    }

    fn literal(&mut self, literal: Literal) -> Result<Vec<Term>, Refusal> {
        Ok(vec![match literal {
            Literal::U32(value) => self.terms.word(value),
            Literal::I32(value) => self.terms.word(value as u32),
            Literal::F32(value) => self.terms.word(value.to_bits()),
            Literal::Bool(value) => self.terms.bool(value),
            other => return refuse(other),
        }])
    }

    /// Zero of each of these sorts.
    pub fn zero(&mut self, sorts: &[Sort]) -> Vec<Term> {
        let zero = |sort: &Sort| match sort {
            Sort::Bool => self.terms.bool(false),
            Sort::Bits(_) => self.terms.word(0),
        };
        sorts.iter().map(zero).collect()
    }

    /// The value of a constant expression of the module.
    pub fn global_expression(&mut self, handle: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        let module = self.module;
        match &module.global_expressions[handle] {
            Expression::Literal(value) => self.literal(*value),
            Expression::Constant(constant) => self.global_expression(module.constants[*constant].init),
            Expression::ZeroValue(ty) => {
                let sorts = scalars(module, &module.types[*ty].inner)?;
                Ok(self.zero(&sorts))
            }
            Expression::Compose { components, .. } => {
                let parts: Result<Vec<_>, Refusal> =
                    components.iter().map(|c| self.global_expression(*c)).collect();
                Ok(parts?.concat())
            }
            Expression::Splat { size, value } => {
                let value = self.global_expression(*value)?;
                Ok(value.repeat(*size as usize))
            }
            other => refuse(other),
        }
    }

    fn compute(&mut self, handle: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        let (function, module) = (self.function, self.module);
        match &function.expressions[handle] {
            Expression::Literal(value) => self.literal(*value),
            Expression::Constant(constant) => self.global_expression(module.constants[*constant].init),
            Expression::ZeroValue(ty) => {
                let sorts = scalars(module, &module.types[*ty].inner)?;
                Ok(self.zero(&sorts))
            }
            Expression::Compose { components, .. } => {
                let parts: Result<Vec<_>, Refusal> = components.iter().map(|c| self.value(*c)).collect();
                Ok(parts?.concat())
            }
            Expression::Splat { size, value } => Ok(self.value(*value)?.repeat(*size as usize)),
            Expression::Swizzle { size, vector, pattern } => {
                let vector = self.value(*vector)?;
                Ok(pattern.iter().take(*size as usize).map(|c| vector[*c as usize]).collect())
            }
            Expression::FunctionArgument(index) => Ok(self.arguments[*index as usize].clone()),
            Expression::AccessIndex { base, index } => {
                let (from, count) = part(module, self.inner(*base), *index as usize)?;
                Ok(self.value(*base)?[from..from + count].to_vec())
            }
            Expression::Access { base, index } => {
                let index = self.constant_index(*index)?;
                let (from, count) = part(module, self.inner(*base), index)?;
                Ok(self.value(*base)?[from..from + count].to_vec())
            }
            Expression::Load { pointer } => self.load(*pointer),
            Expression::Unary { op, expr } => self.unary(*op, *expr),
            Expression::Binary { op, left, right } => self.binary(*op, *left, *right),
            Expression::Select { condition, accept, reject } => {
                let (condition, yes, no) =
                    (self.value(*condition)?, self.value(*accept)?, self.value(*reject)?);
                let choose = |i: usize| self.terms.ite(condition[i % condition.len()], yes[i], no[i]);
                Ok((0..yes.len()).map(choose).collect())
            }
            Expression::Relational { fun, argument } => {
                let parts = self.value(*argument)?;
                let start = self.terms.bool(*fun == RelationalFunction::All);
                match fun {
                    RelationalFunction::All => {
                        Ok(vec![parts.into_iter().fold(start, |a, b| self.terms.and(a, b))])
                    }
                    RelationalFunction::Any => {
                        Ok(vec![parts.into_iter().fold(start, |a, b| self.terms.or(a, b))])
                    }
                    other => refuse(other),
                }
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let arguments: Vec<_> = [Some(*arg), *arg1, *arg2].into_iter().flatten().collect();
                self.math(*fun, &arguments)
            }
            Expression::As { expr, kind, convert } => self.conversion(*expr, *kind, *convert),
            other => refuse(other),
        }
    }

    /// An index that is constant after unrolling.
    pub fn constant_index(&mut self, handle: Handle<Expression>) -> Result<usize, Refusal> {
        let index = self.scalar(handle)?;
        match self.terms.as_word(index) {
            Some(index) => Ok(index as usize),
            None => refuse("an index that is no constant"),
        }
    }

    fn unary(&mut self, op: UnaryOperator, operand: Handle<Expression>) -> Result<Vec<Term>, Refusal> {
        if kind(self.inner(operand))? == ScalarKind::Float {
            return refuse("arithmetic on floats");
        }
        let parts = self.value(operand)?;
        let one = |part: Term| match op {
            UnaryOperator::Negate => self.terms.apply("bvneg", &[part], WORD),
            UnaryOperator::BitwiseNot => self.terms.apply("bvnot", &[part], WORD),
            UnaryOperator::LogicalNot => self.terms.not(part),
        };
        Ok(parts.into_iter().map(one).collect())
    }

    fn binary(
        &mut self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<Vec<Term>, Refusal> {
        let kind = kind(self.inner(left))?;
        if kind == ScalarKind::Float {
            return refuse("arithmetic on floats");
        }
        let (left, right) = (self.value(left)?, self.value(right)?);
        let count = left.len().max(right.len());
        (0..count)
            .map(|i| self.binary_of_scalars(op, kind, left[i % left.len()], right[i % right.len()]))
            .collect()
    }

    fn binary_of_scalars(
        &mut self,
        op: BinaryOperator,
        kind: ScalarKind,
        a: Term,
        b: Term,
    ) -> Result<Term, Refusal> {
        use BinaryOperator as B;
        let signed = kind == ScalarKind::Sint;
        let terms = &mut self.terms;
        if kind == ScalarKind::Bool {
            return Ok(match op {
                B::And | B::LogicalAnd => terms.and(a, b),
                B::InclusiveOr | B::LogicalOr => terms.or(a, b),
                B::Equal => terms.apply("=", &[a, b], Sort::Bool),
                B::NotEqual => terms.apply("xor", &[a, b], Sort::Bool),
                other => return refuse(other),
            });
        }
        let (less, at_most) = if signed { ("bvslt", "bvsle") } else { ("bvult", "bvule") };
        // A shift takes its amount modulo 32.
        let amount = |terms: &mut crate::term::Terms| {
            let mask = terms.word(31);
            terms.apply("bvand", &[b, mask], WORD)
        };
        Ok(match op {
            B::Add => terms.apply("bvadd", &[a, b], WORD),
            B::Subtract => terms.apply("bvsub", &[a, b], WORD),
            B::Multiply => terms.apply("wgsl.mul", &[a, b], WORD),
            B::Divide if !signed => terms.apply("wgsl.udiv", &[a, b], WORD),
            B::Modulo if !signed => terms.apply("wgsl.urem", &[a, b], WORD),
            B::Equal => terms.apply("=", &[a, b], Sort::Bool),
            B::NotEqual => {
                let equal = terms.apply("=", &[a, b], Sort::Bool);
                terms.not(equal)
            }
            B::Less => terms.apply(less, &[a, b], Sort::Bool),
            B::LessEqual => terms.apply(at_most, &[a, b], Sort::Bool),
            B::Greater => terms.apply(less, &[b, a], Sort::Bool),
            B::GreaterEqual => terms.apply(at_most, &[b, a], Sort::Bool),
            B::And => terms.apply("bvand", &[a, b], WORD),
            B::ExclusiveOr => terms.apply("bvxor", &[a, b], WORD),
            B::InclusiveOr => terms.apply("bvor", &[a, b], WORD),
            B::ShiftLeft => {
                let amount = amount(terms);
                terms.apply("bvshl", &[a, amount], WORD)
            }
            B::ShiftRight => {
                let amount = amount(terms);
                terms.apply(if signed { "bvashr" } else { "bvlshr" }, &[a, amount], WORD)
            }
            other => return refuse(other),
        })
    }

    fn math(
        &mut self,
        function: MathFunction,
        arguments: &[Handle<Expression>],
    ) -> Result<Vec<Term>, Refusal> {
        use MathFunction as F;
        let kind = kind(self.inner(arguments[0]))?;
        let parts: Result<Vec<Vec<Term>>, Refusal> = arguments.iter().map(|a| self.value(*a)).collect();
        let parts = parts?;
        let less = match kind {
            ScalarKind::Sint => "bvslt",
            ScalarKind::Uint => "bvult",
            _ => return refuse(function),
        };
        let terms = &mut self.terms;
        let mut choose = |function: F, a: Term, b: Term| {
            let below = terms.apply(less, &[a, b], Sort::Bool);
            if function == F::Min { terms.ite(below, a, b) } else { terms.ite(below, b, a) }
        };
        let each = 0..parts[0].len();
        Ok(match function {
            F::Min | F::Max => each.map(|i| choose(function, parts[0][i], parts[1][i])).collect(),
            F::Clamp => each
                .map(|i| {
                    let raised = choose(F::Max, parts[0][i], parts[1][i]);
                    choose(F::Min, raised, parts[2][i])
                })
                .collect(),
            F::CountLeadingZeros => each.map(|i| terms.apply("wgsl.clz", &[parts[0][i]], WORD)).collect(),
            F::Dot => {
                let mut sum = terms.word(0);
                for i in each {
                    let product = terms.apply("wgsl.mul", &[parts[0][i], parts[1][i]], WORD);
                    sum = if i == 0 { product } else { terms.apply("bvadd", &[sum, product], WORD) };
                }
                vec![sum]
            }
            F::Dot4I8Packed => vec![terms.apply("wgsl.dot4i8", &[parts[0][0], parts[1][0]], WORD)],
            other => return refuse(other),
        })
    }

    fn conversion(
        &mut self,
        operand: Handle<Expression>,
        to: ScalarKind,
        convert: Option<u8>,
    ) -> Result<Vec<Term>, Refusal> {
        let from = kind(self.inner(operand))?;
        let parts = self.value(operand)?;
        let (zero, one) = (self.terms.word(0), self.terms.word(1));
        Ok(match (convert, from, to) {
            (None, _, ScalarKind::Uint | ScalarKind::Sint | ScalarKind::Float) => parts,
            (Some(4), ScalarKind::Uint | ScalarKind::Sint, ScalarKind::Uint | ScalarKind::Sint) => parts,
            (Some(4), ScalarKind::Bool, ScalarKind::Uint | ScalarKind::Sint) => {
                parts.into_iter().map(|part| self.terms.ite(part, one, zero)).collect()
            }
            (Some(_), ScalarKind::Uint | ScalarKind::Sint, ScalarKind::Bool) => parts
                .into_iter()
                .map(|part| {
                    let none = self.terms.apply("=", &[part, zero], Sort::Bool);
                    self.terms.not(none)
                })
                .collect(),
            other => return refuse(other),
        })
    }
}
