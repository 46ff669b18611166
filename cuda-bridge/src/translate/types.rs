//! WGSL's types in C++, with WGSL's memory layout.

use std::collections::HashMap;
use std::fmt::Write;

use naga::proc::{Layouter, TypeResolution};
use naga::valid::{ModuleInfo, TypeFlags};
use naga::{ArraySize, Handle, Module, Scalar, ScalarKind, Type, TypeInner};

use super::error::{Group, Refusal, refuse};

/// A part of a C++ struct.
#[derive(Clone, Copy)]
pub enum Piece {
    /// Bytes that keep the next member at its offset.
    Padding,
    Member(usize),
}

/// The C++ name of a 32-bit scalar or bool.
pub fn scalar(scalar: Scalar) -> Result<&'static str, Refusal> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Uint, 4) => Ok("u32"),
        (ScalarKind::Sint, 4) => Ok("i32"),
        (ScalarKind::Float, 4) => Ok("f32"),
        (ScalarKind::Bool, _) => Ok("bool"),
        (kind, width) => {
            let name = match kind {
                ScalarKind::Uint => format!("u{}", width * 8),
                ScalarKind::Sint => format!("i{}", width * 8),
                ScalarKind::Float => format!("f{}", width * 8),
                _ => format!("{kind:?}"),
            };
            let reason = "scalars are u32, i32, f32 and bool";
            Err(Refusal { place: None, group: Group::Type, construct: name, reason })
        }
    }
}

/// The types of one kernel; used types are declared as they are met.
pub struct Types<'a> {
    module: &'a Module,
    info: &'a ModuleInfo,
    layouter: Layouter,
    /// C++ declarations, in an order that compiles.
    pub declarations: String,
    structs: HashMap<Handle<Type>, (String, Vec<Piece>)>,
}

impl<'a> Types<'a> {
    pub fn new(module: &'a Module, info: &'a ModuleInfo) -> Result<Types<'a>, Refusal> {
        let mut layouter = Layouter::default();
        if layouter.update(module.to_ctx()).is_err() {
            return refuse(Group::Type, "layout", "the module has a type without one: it was not validated");
        }
        Ok(Types { module, info, layouter, declarations: String::new(), structs: HashMap::new() })
    }

    pub fn inner(&self, handle: Handle<Type>) -> &'a TypeInner {
        &self.module.types[handle].inner
    }

    /// Bytes of a type of known size.
    pub fn size(&self, handle: Handle<Type>) -> u32 {
        self.layouter[handle].size
    }

    fn shared_with_host(&self, handle: Handle<Type>) -> bool {
        self.info[handle].contains(TypeFlags::HOST_SHAREABLE)
    }

    /// Bytes between the end of an array's element and the next.
    pub fn rest(&self, base: Handle<Type>, stride: u32) -> u32 {
        if self.shared_with_host(base) { stride.saturating_sub(self.size(base)) } else { 0 }
    }

    /// An array's element with its padding.
    pub fn element(&mut self, base: Handle<Type>, stride: u32) -> Result<String, Refusal> {
        let name = self.name(base)?;
        Ok(match self.rest(base, stride) {
            0 => name,
            rest => format!("tb::cell<{name}, {rest}u>"),
        })
    }

    /// The C++ name of a type, which is declared if necessary.
    pub fn name(&mut self, handle: Handle<Type>) -> Result<String, Refusal> {
        match self.inner(handle) {
            TypeInner::Array { base, size: ArraySize::Constant(count), stride } => {
                Ok(format!("tb::arr<{}, {count}u>", self.element(*base, *stride)?))
            }
            TypeInner::Struct { .. } => Ok(self.structure(handle)?.0),
            inner => self.plain(inner),
        }
    }

    /// The C++ name of an expression's type.
    pub fn resolved(&mut self, resolution: &TypeResolution) -> Result<String, Refusal> {
        match resolution {
            TypeResolution::Handle(handle) => self.name(*handle),
            TypeResolution::Value(inner) => self.plain(inner),
        }
    }

    fn plain(&self, inner: &TypeInner) -> Result<String, Refusal> {
        match inner {
            TypeInner::Scalar(kind) => Ok(scalar(*kind)?.into()),
            TypeInner::Vector { size, scalar: kind } => {
                Ok(format!("tb::vec<{}, {}u>", scalar(*kind)?, *size as u32))
            }
            TypeInner::Array { .. } => {
                refuse(Group::Type, "runtime_sized_array", "it may only be a whole storage buffer")
            }
            other => refuse(Group::Type, other, "values are scalars, vectors, arrays and structs"),
        }
    }

    /// A struct's C++ name and parts.
    pub fn structure(&mut self, handle: Handle<Type>) -> Result<(String, Vec<Piece>), Refusal> {
        if let Some(known) = self.structs.get(&handle) {
            return Ok(known.clone());
        }
        let ty = &self.module.types[handle];
        let TypeInner::Struct { members, span } = &ty.inner else {
            return refuse(Group::Type, &ty.inner, "it is no struct");
        };
        let name = format!("S{}_{}", handle.index(), plain_name(ty.name.as_deref()));
        let padded = self.shared_with_host(handle);
        let (mut pieces, mut body, mut end) = (Vec::new(), String::new(), 0);
        let pad = |pieces: &mut Vec<Piece>, body: &mut String, from: u32, to: u32| {
            if padded && to > from {
                // Writing to a string cannot fail.
                let _ = writeln!(body, "    unsigned char p{}[{}];", pieces.len(), to - from);
                pieces.push(Piece::Padding);
            }
        };
        let mut offsets = String::new();
        for (i, member) in members.iter().enumerate() {
            let ty = self.name(member.ty)?;
            pad(&mut pieces, &mut body, end, member.offset);
            let _ = writeln!(body, "    {ty} m{i};");
            pieces.push(Piece::Member(i));
            end = member.offset + self.size(member.ty);
            if padded {
                let _ = writeln!(offsets, "TB_MEMBER_AT({name}, m{i}, {});", member.offset);
            }
        }
        pad(&mut pieces, &mut body, end, *span);
        let _ = writeln!(self.declarations, "struct {name} {{\n{body}}};");
        if padded {
            let _ = writeln!(self.declarations, "static_assert(sizeof({name}) == {span}, \"layout\");");
            self.declarations.push_str(&offsets);
        }
        self.structs.insert(handle, (name.clone(), pieces.clone()));
        Ok((name, pieces))
    }
}

/// A name reduced to characters that C++ accepts anywhere; the caller puts a unique prefix before it.
pub fn plain_name(name: Option<&str>) -> String {
    let mut out = String::new();
    for c in name.unwrap_or("").chars().take(40) {
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if !(c == '_' && out.ends_with('_')) {
            out.push(c);
        }
    }
    out
}
