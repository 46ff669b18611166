//! Places in memory that pointers lead to, with every index in bounds.

use naga::{ArraySize, Expression, Handle, TypeInner};

use super::error::{Group, Refusal, refuse};
use super::statements::Body;

impl<'a> Body<'_, 'a> {
    /// The type that a pointer points to; a vector behind a pointer without a type of its own counts as that vector.
    fn pointee(&self, pointer: Handle<Expression>) -> TypeInner {
        match self.inner(pointer) {
            TypeInner::Pointer { base, .. } => self.writer.types.inner(*base).clone(),
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                TypeInner::Vector { size: *size, scalar: *scalar }
            }
            other => other.clone(),
        }
    }

    /// The C++ lvalue that a pointer points to.
    pub fn place(&mut self, pointer: Handle<Expression>) -> Result<String, Refusal> {
        match &self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => Ok(format!("v{}", variable.index())),
            Expression::FunctionArgument(index) => Ok(format!("a{index}")),
            Expression::GlobalVariable(variable) => self.writer.global_place(*variable),
            Expression::Access { base, index } => {
                let (text, index) = (self.place(*base)?, self.value(*index)?);
                let inner = self.pointee(*base);
                self.element(&text, &inner, &index)
            }
            Expression::AccessIndex { base, index } => {
                let text = self.place(*base)?;
                let inner = self.pointee(*base);
                self.part(&text, &inner, *index)
            }
            other => refuse(Group::Expression, other, "it is no pointer that can be followed here"),
        }
    }

    /// A component or element at a computed index, which is clamped into bounds.
    pub fn element(&mut self, text: &str, inner: &TypeInner, index: &str) -> Result<String, Refusal> {
        match inner {
            TypeInner::Vector { size, .. } => Ok(format!("{text}.v[tb::bound({index}, {}u)]", *size as u32)),
            TypeInner::Array { base, size, stride } => {
                let rest = self.writer.types.rest(*base, *stride);
                let value = if rest == 0 { "" } else { ".value" };
                match size {
                    ArraySize::Constant(count) => {
                        Ok(format!("{text}.v[tb::bound({index}, {count}u)]{value}"))
                    }
                    // Only whole buffers are of unknown length, and a variable beside them holds it.
                    ArraySize::Dynamic => Ok(format!("{text}[tb::bound({index}, {text}_n)]{value}")),
                    ArraySize::Pending(_) => {
                        refuse(Group::Type, "override_sized_array", "overrides are not resolved here")
                    }
                }
            }
            other => refuse(Group::Type, other, "only vectors and arrays are indexed"),
        }
    }

    /// A member, component or element at a known index.
    pub fn part(&mut self, text: &str, inner: &TypeInner, index: u32) -> Result<String, Refusal> {
        match inner {
            TypeInner::Struct { .. } => Ok(format!("{text}.m{index}")),
            TypeInner::Vector { .. } => Ok(format!("{text}.v[{index}]")),
            _ => self.element(text, inner, &format!("{index}u")),
        }
    }

    /// The length of a runtime-sized array.
    pub fn length(&mut self, pointer: Handle<Expression>) -> Result<String, Refusal> {
        match &self.function.expressions[pointer] {
            Expression::GlobalVariable(variable) => Ok(format!("{}_n", self.writer.global_place(*variable)?)),
            other => refuse(Group::Expression, other, "arrayLength takes a whole storage buffer"),
        }
    }

    /// The type of an expression.
    pub fn inner(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.writer.module.types)
    }
}
