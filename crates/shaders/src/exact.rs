//! The part of the lint that allows f32, for integers whose sum of absolute terms is proved to be at most 2^24. On
//! these integers `+`, `-`, `*` and `fma` are exact (WGSL 15.7.4: a correctly rounded x is x when it is
//! representable).
//!
//! Floats begin as digits, `vec4<f32>(unpack4xI8(word))`, so |x| <= 128. Floats are held in `let`s and in workgroup
//! arrays, never in a buffer, a variable or an argument. Floats end as `i32(x)`. Only straight-line code has to be
//! bounded: a sum that a loop carries has to leave f32 first.

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    BinaryOperator, Block, Expression, Function, GlobalVariable, Handle, MathFunction, Module, ScalarKind,
    Span, Statement, Type, TypeInner,
};
use std::collections::HashMap;

/// The greatest integer up to which binary32 has all integers.
const EXACT_MAX: u64 = 1 << 24;

/// A forbidden use of a float, and why it is forbidden.
pub type Finding = (Span, &'static str);

type Bounds = HashMap<Handle<GlobalVariable>, u64>;

/// True if values of a type hold floats. Pointers do not: they point to a variable, which has a type.
pub(crate) fn holds_floats(module: &Module, inner: &TypeInner) -> bool {
    let of = |ty: &Handle<Type>| holds_floats(module, &module.types[*ty].inner);
    match inner {
        TypeInner::Scalar(s) | TypeInner::Vector { scalar: s, .. } => s.kind == ScalarKind::Float,
        TypeInner::Array { base, .. } => of(base),
        TypeInner::Struct { members, .. } => members.iter().any(|member| of(&member.ty)),
        _ => false,
    }
}

/// Every span of a module where a float is not proved to be exact.
pub fn findings(module: &Module, info: &ModuleInfo) -> Vec<Finding> {
    let functions = || {
        let named = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
        named.chain(
            module.entry_points.iter().enumerate().map(|(i, e)| (&e.function, info.get_entry_point(i))),
        )
    };
    let mut found = Vec::new();
    // The values stored in a workgroup array bound its contents; loads from such arrays have no bound yet.
    let mut stored = Bounds::new();
    for (function, types) in functions() {
        let walk = Walk { module, function, types, loads: &Bounds::new() };
        let (bounds, _) = walk.expressions();
        walk.stores(&function.body, &bounds, &mut stored, &mut found);
    }
    for (function, types) in functions() {
        found.extend(Walk { module, function, types, loads: &stored }.expressions().1);
    }
    found
}

struct Walk<'a> {
    module: &'a Module,
    function: &'a Function,
    types: &'a FunctionInfo,
    loads: &'a Bounds,
}

impl Walk<'_> {
    fn inner(&self, handle: Handle<Expression>) -> &TypeInner {
        self.types[handle].ty.inner_with(&self.module.types)
    }

    fn is_float(&self, handle: Handle<Expression>) -> bool {
        holds_floats(self.module, self.inner(handle))
    }

    /// The variable that a pointer points into.
    fn root(&self, mut pointer: Handle<Expression>) -> Option<Handle<GlobalVariable>> {
        loop {
            match self.function.expressions[pointer] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
                Expression::GlobalVariable(variable) => return Some(variable),
                _ => return None,
            }
        }
    }

    /// A bound on |x| for every float expression that has one, in the arena's order, which is the order of evaluation;
    /// and the expressions that break the rules.
    fn expressions(&self) -> (Vec<Option<u64>>, Vec<Finding>) {
        let mut bounds: Vec<Option<u64>> = Vec::new();
        let mut found = Vec::new();
        for (handle, expression) in self.function.expressions.iter() {
            let span = self.function.expressions.get_span(handle);
            if !self.is_float(handle) {
                let operands: &[Handle<Expression>] = match expression {
                    Expression::Binary { left, right, .. } => &[*left, *right],
                    Expression::Unary { expr, .. } | Expression::Math { arg: expr, .. } => &[*expr],
                    Expression::Relational { argument, .. } => &[*argument],
                    Expression::As { expr, kind, convert } => match (kind, convert) {
                        (ScalarKind::Sint, Some(4)) => &[],
                        _ => &[*expr],
                    },
                    _ => &[],
                };
                if operands.iter().any(|operand| self.is_float(*operand)) {
                    let message = "floats are multiplied, added and turned back by i32(), nothing else";
                    found.push((span, message));
                }
                bounds.push(None);
                continue;
            }
            let bound = if matches!(self.inner(handle), TypeInner::Scalar(_) | TypeInner::Vector { .. }) {
                self.bound(expression, &bounds)
            } else {
                None
            };
            match bound {
                None => found.push((span, "nothing bounds this float")),
                Some(bound) if bound > EXACT_MAX => {
                    found.push((span, "its terms may add up to more than 2^24"))
                }
                Some(_) => {}
            }
            bounds.push(bound);
        }
        (bounds, found)
    }

    fn bound(&self, expression: &Expression, bounds: &[Option<u64>]) -> Option<u64> {
        let of = |handle: &Handle<Expression>| bounds[handle.index()];
        match expression {
            Expression::ZeroValue(_) => Some(0),
            Expression::As { expr, kind: ScalarKind::Float, convert: Some(4) } => self.integer_bound(*expr),
            Expression::Load { pointer } => self.loads.get(&self.root(*pointer)?).copied(),
            Expression::Access { base, .. }
            | Expression::AccessIndex { base, .. }
            | Expression::Swizzle { vector: base, .. }
            | Expression::Splat { value: base, .. } => of(base),
            Expression::Compose { components, .. } => {
                components.iter().map(of).try_fold(0, |most, bound| Some(bound?.max(most)))
            }
            Expression::Select { accept, reject, .. } => Some(of(accept)?.max(of(reject)?)),
            Expression::Binary { op: BinaryOperator::Add | BinaryOperator::Subtract, left, right } => {
                of(left)?.checked_add(of(right)?)
            }
            Expression::Binary { op: BinaryOperator::Multiply, left, right } => {
                of(left)?.checked_mul(of(right)?)
            }
            Expression::Math { fun: MathFunction::Fma, arg, arg1: Some(b), arg2: Some(c), .. } => {
                of(arg)?.checked_mul(of(b)?)?.checked_add(of(c)?)
            }
            _ => None,
        }
    }

    /// A bound on an integer that becomes a float.
    fn integer_bound(&self, handle: Handle<Expression>) -> Option<u64> {
        match &self.function.expressions[handle] {
            Expression::Math { fun: MathFunction::Unpack4xI8, .. } => Some(128),
            _ => None,
        }
    }

    /// Collects the bounds of values stored in workgroup arrays of floats; no other store has a float type.
    fn stores(&self, block: &Block, bounds: &[Option<u64>], stored: &mut Bounds, found: &mut Vec<Finding>) {
        for (statement, span) in block.span_iter() {
            match statement {
                Statement::Store { pointer, value } if self.is_float(*value) => {
                    match (self.root(*pointer), bounds[value.index()]) {
                        (Some(variable), Some(bound)) => {
                            let most = stored.entry(variable).or_default();
                            *most = bound.max(*most);
                        }
                        _ => found.push((*span, "what is stored here is not bounded by what was unpacked")),
                    }
                }
                Statement::Block(inner) => self.stores(inner, bounds, stored, found),
                Statement::If { accept, reject, .. } => {
                    self.stores(accept, bounds, stored, found);
                    self.stores(reject, bounds, stored, found);
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().for_each(|case| self.stores(&case.body, bounds, stored, found));
                }
                Statement::Loop { body, continuing, .. } => {
                    self.stores(body, bounds, stored, found);
                    self.stores(continuing, bounds, stored, found);
                }
                _ => {}
            }
        }
    }
}
