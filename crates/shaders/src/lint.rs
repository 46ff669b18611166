//! The lint: an allow-list over naga's IR. Integer arithmetic passes that every conforming implementation must compute
//! to the same bits. Everything else is an error that names shader, line and expression.
//!
//! Floats appear only as integers that are proved to be small enough for exact arithmetic (`exact.rs`), so no float
//! instruction can round. Rules and their sources: `docs/LINT.md`.

#[path = "exact.rs"]
mod exact;

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{
    Arena, BinaryOperator, Expression, Function, Handle, Literal, MathFunction, Module, ScalarKind, Span,
    Statement, Type, TypeInner,
};

/// The rules, by the use that each forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The text does not parse or validate without extra capabilities.
    Invalid,
    /// A type other than 32-bit integers, bool, and vectors, arrays and structs of them.
    Type,
    /// A float value: literal, bitcast, or a conversion of anything but unpacked bytes.
    Float,
    /// A float that is not proved to be an integer of at most 2^24, or is used for more than sums of products.
    Exact,
    /// A built-in function that is not on the list.
    Builtin,
    /// A shift whose amount is not provably below 32.
    Shift,
    /// A division whose divisor is not provably nonzero, or a signed one.
    Division,
    /// A statement or expression that is not on the list (atomics, textures, subgroups, ...).
    Construct,
    /// A construct that naga and Tint do not share: directives, overrides, pointers to buffers as parameters.
    Dialect,
}

/// A place in the source that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The shader's name.
    pub shader: String,
    /// The line, from 1.
    pub line: u32,
    /// The rule that it breaks.
    pub rule: Rule,
    /// The source text of the expression, cut short.
    pub expression: String,
    /// The way in which it breaks the rule.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Violation { shader, line, rule, expression, message } = self;
        write!(f, "{shader}:{line}: {rule:?}: {message}: {expression}")
    }
}

/// Checks a complete shader.
///
/// # Errors
/// If any place breaks a rule; the error has all of them.
pub fn check(shader: &str, source: &str) -> Result<(), Vec<Violation>> {
    let mut lint = Lint { shader, source, found: Vec::new(), unpacked: 0 };
    lint.text();
    let module = match naga::front::wgsl::parse_str(source) {
        Ok(module) => module,
        Err(error) => {
            let line = error.location(source).map_or(1, |l| l.line_number);
            lint.violation(Rule::Invalid, line, error.message(), "it does not parse");
            return Err(lint.found);
        }
    };
    let info = match Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module) {
        Ok(info) => info,
        Err(error) => {
            let line = error.location(source).map_or(1, |l| l.line_number);
            lint.violation(Rule::Invalid, line, &format!("{error:?}"), "it does not validate in plain WGSL");
            return Err(lint.found);
        }
    };
    lint.module(&module);
    lint.floats(&module, &info);
    if lint.found.is_empty() { Ok(()) } else { Err(lint.found) }
}

/// The source with comments replaced by spaces, so that lines and columns stay. Block comments nest in WGSL.
fn without_comments(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let (mut at, mut depth) = (0, 0usize);
    while at < bytes.len() {
        let two = &bytes[at..bytes.len().min(at + 2)];
        let len = match two {
            b"//" if depth == 0 => bytes[at..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - at),
            b"/*" => {
                depth += 1;
                2
            }
            b"*/" if depth > 0 => {
                out[at..at + 2].fill(b' ');
                depth -= 1;
                at += 2;
                continue;
            }
            _ if depth > 0 => 1,
            _ => {
                at += 1;
                continue;
            }
        };
        out[at..at + len].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        at += len;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// True if a word of the source is a float type or literal. The check is on the text because constants are folded
/// before the IR is built.
fn is_float_word(word: &str) -> bool {
    let types = ["f16", "f32", "f64"];
    let type_name = types.contains(&word)
        || (word.starts_with("vec") || word.starts_with("mat")) && word.ends_with(['f', 'h']);
    let digits = word.starts_with(|c: char| c.is_ascii_digit());
    let hexadecimal = word.starts_with("0x") || word.starts_with("0X");
    let literal = digits && (word.contains('.') || !hexadecimal && word.contains(['f', 'h', 'e', 'E']));
    type_name || literal || hexadecimal && word.contains(['p', 'P'])
}

/// The conversion that floats begin with, and the two other texts that may name their type.
const UNPACK: &str = "vec4<f32>(unpack4xI8(";
const FLOAT_TEXTS: [&str; 3] = [UNPACK, "vec4<f32>()", "array<vec4<f32>,"];

struct Lint<'a> {
    shader: &'a str,
    source: &'a str,
    found: Vec<Violation>,
    /// The number of conversions of unpacked bytes to floats in the text.
    unpacked: usize,
}

impl Lint<'_> {
    /// The checks of the words alone, before constants are folded.
    fn text(&mut self) {
        let text = without_comments(self.source);
        self.unpacked = text.matches(UNPACK).count();
        for (number, line) in text.lines().enumerate() {
            let line = FLOAT_TEXTS.iter().fold(line.to_string(), |line, known| line.replace(known, " "));
            for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')) {
                let number = number as u32 + 1;
                if ["enable", "requires", "diagnostic", "override"].contains(&word) {
                    self.violation(
                        Rule::Dialect,
                        number,
                        line.trim(),
                        "directives and overrides are not allowed",
                    );
                } else if is_float_word(word) {
                    self.violation(Rule::Float, number, word, "floats are not even constants here");
                }
            }
        }
    }

    fn violation(&mut self, rule: Rule, line: u32, expression: &str, message: &str) {
        let expression = expression.chars().take(120).collect();
        let (shader, message) = (self.shader.to_string(), message.to_string());
        self.found.push(Violation { shader, line, rule, expression, message });
    }

    fn at(&mut self, rule: Rule, span: Span, message: &str) {
        let text = span.to_range().and_then(|range| self.source.get(range)).unwrap_or("").to_string();
        self.violation(rule, span.location(self.source).line_number, &text, message);
    }

    /// The checks of floats: their types, and the computations with them.
    fn floats(&mut self, module: &Module, info: &ModuleInfo) {
        let floats = |ty: Handle<Type>| exact::holds_floats(module, &module.types[ty].inner);
        for (handle, variable) in module.global_variables.iter() {
            if floats(variable.ty) && variable.space != naga::AddressSpace::WorkGroup {
                let span = module.global_variables.get_span(handle);
                self.at(Rule::Type, span, "floats live in workgroup memory and lets only");
            }
        }
        let functions = module.functions.iter().map(|(_, function)| function);
        let functions: Vec<&Function> =
            functions.chain(module.entry_points.iter().map(|entry| &entry.function)).collect();
        let mut conversions = 0;
        for function in functions {
            for (_, expression) in function.expressions.iter() {
                let float = matches!(expression, Expression::As { kind: ScalarKind::Float, .. });
                conversions += usize::from(float);
            }
            let passed = function.arguments.iter().map(|a| a.ty).chain(function.result.iter().map(|r| r.ty));
            if passed.into_iter().any(floats) {
                let name = function.name.clone().unwrap_or_default();
                let mut lines = self.source.lines().zip(1..);
                let line = lines.find(|(text, _)| text.contains(&format!("fn {name}"))).map_or(1, |l| l.1);
                self.violation(Rule::Type, line, &name, "floats are no arguments and no results");
            }
            for (handle, _) in function.local_variables.iter().filter(|(_, local)| floats(local.ty)) {
                let span = function.local_variables.get_span(handle);
                self.at(Rule::Type, span, "floats live in workgroup memory and lets only");
            }
        }
        // The front end folds a conversion away if its operand is constant, and so its result is constant too.
        if conversions != self.unpacked {
            self.violation(Rule::Float, 1, UNPACK, "bytes to unpack come from memory, never from constants");
        }
        for (span, message) in exact::findings(module, info) {
            self.at(Rule::Exact, span, message);
        }
    }

    fn module(&mut self, module: &Module) {
        for (handle, ty) in module.types.iter() {
            self.ty(&ty.inner, module.types.get_span(handle));
        }
        self.expressions(module, &module.global_expressions);
        for (handle, variable) in module.global_variables.iter() {
            use naga::AddressSpace::*;
            let span = module.global_variables.get_span(handle);
            if !matches!(variable.space, Private | WorkGroup | Uniform | Storage { .. } | Function) {
                self.at(Rule::Construct, span, "only buffers, workgroup and private variables are allowed");
            }
        }
        for (_, function) in module.functions.iter() {
            self.function(module, function);
        }
        for entry in &module.entry_points {
            if entry.stage != naga::ShaderStage::Compute {
                let mut lines = self.source.lines().zip(1..);
                let line =
                    lines.find(|(text, _)| text.contains(&format!("fn {}", entry.name))).map_or(1, |l| l.1);
                self.violation(Rule::Construct, line, &entry.name, "only compute shaders are allowed");
            }
            self.function(module, &entry.function);
        }
    }

    fn ty(&mut self, inner: &TypeInner, span: Span) {
        let scalar = |s: &naga::Scalar| match s.kind {
            ScalarKind::Sint | ScalarKind::Uint => s.width == 4,
            ScalarKind::Bool => true,
            ScalarKind::Float => s.width == 4, // `floats` checks where
            ScalarKind::AbstractInt | ScalarKind::AbstractFloat => false,
        };
        let fine = match inner {
            TypeInner::Scalar(s)
            | TypeInner::Vector { scalar: s, .. }
            | TypeInner::ValuePointer { scalar: s, .. } => scalar(s),
            TypeInner::Array { .. } | TypeInner::Struct { .. } | TypeInner::Pointer { .. } => true, // checked by their parts
            _ => false,
        };
        if !fine {
            let message = "only 32-bit scalars, bool, and vectors, arrays and structs of them are allowed";
            self.at(Rule::Type, span, message);
        }
    }

    fn function(&mut self, module: &Module, function: &Function) {
        for argument in &function.arguments {
            if let TypeInner::Pointer { space, .. } | TypeInner::ValuePointer { space, .. } =
                module.types[argument.ty].inner
                && space != naga::AddressSpace::Function
            {
                let name = argument.name.clone().unwrap_or_default();
                let span = module.types.get_span(argument.ty);
                let line = span.location(self.source).line_number;
                self.violation(
                    Rule::Dialect,
                    line,
                    &name,
                    "pointers to buffers cannot be parameters in Tint and naga alike",
                );
            }
        }
        self.expressions(module, &function.expressions);
        self.block(&function.body);
    }

    fn block(&mut self, block: &naga::Block) {
        for (statement, span) in block.span_iter() {
            match statement {
                Statement::Emit(_)
                | Statement::Break
                | Statement::Continue
                | Statement::Return { .. }
                | Statement::ControlBarrier(_)
                | Statement::MemoryBarrier(_)
                | Statement::Store { .. }
                | Statement::Call { .. } => {}
                Statement::Block(inner) => self.block(inner),
                Statement::If { accept, reject, .. } => {
                    self.block(accept);
                    self.block(reject);
                }
                Statement::Switch { cases, .. } => cases.iter().for_each(|case| self.block(&case.body)),
                Statement::Loop { body, continuing, .. } => {
                    self.block(body);
                    self.block(continuing);
                }
                _ => self.at(Rule::Construct, *span, "this statement is not on the list"),
            }
        }
    }

    fn expressions(&mut self, module: &Module, arena: &Arena<Expression>) {
        let context = Context { module, arena };
        for (handle, expression) in arena.iter() {
            let span = arena.get_span(handle);
            match expression {
                Expression::Literal(Literal::U32(_) | Literal::I32(_) | Literal::Bool(_)) => {}
                Expression::Literal(_) => self.at(Rule::Float, span, "only integer literals are allowed"),
                Expression::As { kind: ScalarKind::Sint | ScalarKind::Uint | ScalarKind::Bool, .. } => {}
                Expression::As { expr, convert, .. } => {
                    let unpacked =
                        matches!(arena[*expr], Expression::Math { fun: MathFunction::Unpack4xI8, .. });
                    if !unpacked || convert.is_none() {
                        self.at(Rule::Float, span, "only unpacked bytes are converted to floats");
                    }
                }
                Expression::Math { fun, .. } => {
                    if !LISTED.contains(fun) {
                        self.at(Rule::Builtin, span, "this built-in function is not on the list");
                    }
                }
                Expression::Binary {
                    op: BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight,
                    right,
                    ..
                } => {
                    if !context.below_32(*right) {
                        let message = "the shift amount is not provably below 32: mask it with & 31u";
                        self.at(Rule::Shift, span, message);
                    }
                }
                Expression::Binary { op: BinaryOperator::Divide | BinaryOperator::Modulo, right, .. } => {
                    if !context.at_least_one(*right) {
                        let message = "the divisor is not provably a nonzero unsigned integer: max(x, 1u)";
                        self.at(Rule::Division, span, message);
                    }
                }
                Expression::Binary { .. } => {}
                Expression::Constant(_)
                | Expression::ZeroValue(_)
                | Expression::Compose { .. }
                | Expression::Access { .. }
                | Expression::AccessIndex { .. }
                | Expression::Splat { .. }
                | Expression::Swizzle { .. }
                | Expression::FunctionArgument(_)
                | Expression::GlobalVariable(_)
                | Expression::LocalVariable(_)
                | Expression::Load { .. }
                | Expression::Unary { .. }
                | Expression::Select { .. }
                | Expression::Relational { .. }
                | Expression::CallResult(_)
                | Expression::ArrayLength(_) => {}
                _ => self.at(Rule::Construct, span, "this expression is not on the list"),
            }
        }
    }
}

/// The built-in functions that a shader may call.
const LISTED: [MathFunction; 14] = [
    MathFunction::Min,
    MathFunction::Max,
    MathFunction::Clamp,
    MathFunction::CountLeadingZeros,
    MathFunction::CountTrailingZeros,
    MathFunction::CountOneBits,
    MathFunction::FirstLeadingBit,
    MathFunction::FirstTrailingBit,
    MathFunction::ReverseBits,
    MathFunction::Dot,
    MathFunction::Dot4I8Packed,
    MathFunction::Dot4U8Packed,
    MathFunction::Unpack4xI8,
    MathFunction::Fma,
];

/// Follows expressions to the known facts about their values.
struct Context<'a> {
    module: &'a Module,
    arena: &'a Arena<Expression>,
}

impl Context<'_> {
    /// The value of an unsigned constant.
    fn constant(&self, handle: Handle<Expression>) -> Option<u32> {
        match self.arena[handle] {
            Expression::Literal(Literal::U32(value)) => Some(value),
            Expression::Constant(constant) => {
                match self.module.global_expressions[self.module.constants[constant].init] {
                    Expression::Literal(Literal::U32(value)) => Some(value),
                    _ => None,
                }
            }
            Expression::Splat { value, .. } => self.constant(value),
            _ => None,
        }
    }

    fn below_32(&self, handle: Handle<Expression>) -> bool {
        if let Some(value) = self.constant(handle) {
            return value < 32;
        }
        match &self.arena[handle] {
            Expression::Binary { op: BinaryOperator::And, left, right } => {
                [left, right].into_iter().any(|side| self.constant(*side).is_some_and(|mask| mask < 32))
            }
            Expression::Compose { components, .. } => components.iter().all(|c| self.below_32(*c)),
            Expression::Splat { value, .. } => self.below_32(*value),
            _ => false,
        }
    }

    fn at_least_one(&self, handle: Handle<Expression>) -> bool {
        if let Some(value) = self.constant(handle) {
            return value > 0;
        }
        match &self.arena[handle] {
            Expression::Math { fun: MathFunction::Max, arg, arg1: Some(other), .. } => {
                [arg, other].into_iter().any(|side| self.constant(*side).is_some_and(|value| value > 0))
            }
            _ => false,
        }
    }
}
