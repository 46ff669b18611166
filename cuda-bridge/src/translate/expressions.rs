//! Values: constants, and the values of a function's expressions.

use naga::{Expression, Handle, Type, TypeInner, VectorSize};

use super::error::{Group, Refusal, refuse};
use super::literals::literal;
use super::statements::Body;
use super::types::{Piece, plain_name, scalar};
use super::writer::SourceWriter;

/// A component of a composite and, if it is a vector, its size.
pub struct Component(pub String, pub Option<VectorSize>);

impl SourceWriter<'_> {
    /// A vector, array or struct of these components.
    pub fn compose(&mut self, ty: Handle<Type>, components: &[Component]) -> Result<String, Refusal> {
        let name = self.types.name(ty)?;
        let texts = || components.iter().map(|Component(text, _)| text.clone());
        let parts: Vec<String> = match self.types.inner(ty) {
            // A vector may be composed of shorter ones.
            TypeInner::Vector { .. } => components
                .iter()
                .flat_map(|Component(text, size)| match size {
                    None => vec![text.clone()],
                    Some(size) => (0..*size as u32).map(|i| format!("{text}.v[{i}]")).collect(),
                })
                .collect(),
            TypeInner::Array { base, stride, .. } => match self.types.rest(*base, *stride) {
                0 => texts().collect(),
                _ => texts().map(|text| format!("{{{text}, {{}}}}")).collect(),
            },
            TypeInner::Struct { .. } => {
                let (_, pieces) = self.types.structure(ty)?;
                let text = |piece: &Piece| match piece {
                    Piece::Padding => "{}".to_string(),
                    Piece::Member(i) => components.get(*i).map_or_else(String::new, |c| c.0.clone()),
                };
                return Ok(format!("{name}{{{}}}", pieces.iter().map(text).collect::<Vec<_>>().join(", ")));
            }
            other => return refuse(Group::Type, other, "only vectors, arrays and structs are composed"),
        };
        Ok(format!("{name}{{{{{}}}}}", parts.join(", ")))
    }

    /// The value of a module's constant: its text, or the name of its table.
    pub fn constant(&mut self, handle: Handle<naga::Constant>) -> Result<String, Refusal> {
        if let Some(name) = self.tables.get(&handle) {
            return Ok(name.clone());
        }
        let constant = &self.module.constants[handle];
        let text = self.global_expression(constant.init)?;
        if !matches!(self.types.inner(constant.ty), TypeInner::Array { .. } | TypeInner::Struct { .. }) {
            return Ok(text);
        }
        let name = format!("c{}_{}", handle.index(), plain_name(constant.name.as_deref()));
        let ty = self.types.name(constant.ty)?;
        self.constants.push_str(&format!("__constant__ const {ty} {name} = {text};\n"));
        self.tables.insert(handle, name.clone());
        Ok(name)
    }

    /// An expression of the module's scope.
    pub fn global_expression(&mut self, handle: Handle<Expression>) -> Result<String, Refusal> {
        match &self.module.global_expressions[handle] {
            Expression::Literal(value) => literal(*value),
            Expression::Constant(constant) => self.constant(*constant),
            Expression::ZeroValue(ty) => Ok(format!("{}{{}}", self.types.name(*ty)?)),
            Expression::Compose { ty, components } => {
                let mut parts = Vec::new();
                for component in components {
                    let size = vector_size(self.info[*component].inner_with(&self.module.types));
                    parts.push(Component(self.global_expression(*component)?, size));
                }
                self.compose(*ty, &parts)
            }
            Expression::Splat { size, value } => {
                let TypeInner::Scalar(kind) = self.info[*value].inner_with(&self.module.types) else {
                    return refuse(Group::Expression, "Splat", "it is not of a scalar");
                };
                splat(scalar(*kind)?, *size, &self.global_expression(*value)?)
            }
            other => refuse(Group::Expression, other, "constants are literals and composites of them"),
        }
    }
}

fn vector_size(inner: &TypeInner) -> Option<VectorSize> {
    match inner {
        TypeInner::Vector { size, .. } => Some(*size),
        _ => None,
    }
}

/// A vector of equal components, as an aggregate, so that it may be a constant.
fn splat(scalar: &str, size: VectorSize, value: &str) -> Result<String, Refusal> {
    let size = size as usize;
    Ok(format!("tb::vec<{scalar}, {size}u>{{{{{}}}}}", vec![value; size].join(", ")))
}

impl Body<'_, '_> {
    /// The C++ expression for a value: the variable that holds it, or its text if it needs no evaluation.
    pub fn value(&mut self, handle: Handle<Expression>) -> Result<String, Refusal> {
        if self.baked.contains(&handle) {
            return Ok(format!("e{}", handle.index()));
        }
        self.text(handle)
    }

    /// The C++ text that computes a value.
    pub fn text(&mut self, handle: Handle<Expression>) -> Result<String, Refusal> {
        let function = self.function;
        match &function.expressions[handle] {
            Expression::Literal(value) => literal(*value),
            Expression::Constant(constant) => self.writer.constant(*constant),
            Expression::ZeroValue(ty) => Ok(format!("{}{{}}", self.writer.types.name(*ty)?)),
            Expression::Compose { ty, components } => {
                let mut parts = Vec::new();
                for component in components {
                    let size = vector_size(self.inner(*component));
                    parts.push(Component(self.value(*component)?, size));
                }
                self.writer.compose(*ty, &parts)
            }
            Expression::Splat { size, value } => {
                let TypeInner::Scalar(kind) = self.inner(*value) else {
                    return refuse(Group::Expression, "Splat", "it is not of a scalar");
                };
                let name = scalar(*kind)?;
                splat(name, *size, &self.value(*value)?)
            }
            Expression::Swizzle { size, vector, pattern } => {
                let TypeInner::Vector { scalar: kind, .. } = self.inner(*vector) else {
                    return refuse(Group::Expression, "Swizzle", "it is not of a vector");
                };
                let (name, text) = (scalar(*kind)?, self.value(*vector)?);
                let size = *size as usize;
                let parts: Vec<String> =
                    pattern.iter().take(size).map(|&c| format!("{text}.v[{}]", c as u32)).collect();
                Ok(format!("tb::vec<{name}, {size}u>{{{{{}}}}}", parts.join(", ")))
            }
            Expression::FunctionArgument(index) => Ok(format!("a{index}")),
            Expression::Access { base, index } => {
                let (text, index) = (self.value(*base)?, self.value(*index)?);
                let inner = self.inner(*base);
                self.element(&text, inner, &index)
            }
            Expression::AccessIndex { base, index } => {
                let (text, inner) = (self.value(*base)?, self.inner(*base));
                self.part(&text, inner, *index)
            }
            Expression::Load { pointer } => self.place(*pointer),
            Expression::ArrayLength(pointer) => self.length(*pointer),
            Expression::Unary { op, expr } => self.unary(*op, *expr),
            Expression::Binary { op, left, right } => self.binary(*op, *left, *right),
            Expression::Select { condition, accept, reject } => {
                let (condition, accept) = (self.value(*condition)?, self.value(*accept)?);
                Ok(format!("tb::select({condition}, {accept}, {})", self.value(*reject)?))
            }
            Expression::Relational { fun, argument } => self.relational(*fun, *argument),
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let arguments: Vec<_> = [Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten().collect();
                self.math(*fun, &arguments)
            }
            Expression::As { expr, kind, convert } => self.conversion(*expr, *kind, *convert),
            other => refuse(Group::Expression, other, "it has no counterpart here"),
        }
    }
}
