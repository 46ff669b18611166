//! Arrays that people bring: NumPy's .npy files (format 1.0 to 3.0) and safetensors. Binary32 and integers only.
//! Source: numpy.lib.format; safetensors' README.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::disk::{self, Disk};
use super::error::RunError;
use crate::arith::words::bytes_of;
use crate::arith::{DType, float};
use crate::program::graph::TensorType;

/// The most bytes of a file, and of a .npy header.
const FILE_MAX: u64 = 1 << 34;
const HEADER_MAX: usize = 1 << 16;
const MAGIC: &[u8] = b"\x93NUMPY";

/// An array: F32, or U32 for any integers in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Of a safetensors file; empty otherwise.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// Canonical bytes.
    pub bytes: Vec<u8>,
}

/// Reads the arrays of a file, by its extension.
///
/// # Errors
/// If it is neither .npy nor .safetensors, is malformed, or holds other types than 32-bit floats and integers that fit
/// u32.
pub fn read(path: &Path) -> Result<Vec<Array>, RunError> {
    let bytes = disk::read(path, FILE_MAX)?;
    parse(extension(path), &bytes).map_err(|why| RunError::invalid(path, why))
}

/// The arrays of a file with this extension and contents.
///
/// # Errors
/// If the extension is another one, the contents are malformed, or hold other types than 32-bit floats and integers that fit 32 bits.
pub fn parse(extension: &str, bytes: &[u8]) -> Result<Vec<Array>, String> {
    match extension {
        "npy" => from_npy(bytes).map(|array| vec![array]),
        "safetensors" => from_safetensors(bytes),
        _ => Err("arrays are .npy or .safetensors files".into()),
    }
}

/// Writes arrays, by the path's extension.
///
/// # Errors
/// If a .npy file is to hold more than one.
pub fn write(path: &Path, arrays: &[Array]) -> Result<(), RunError> {
    let bytes = match (extension(path), arrays) {
        ("npy", [array]) => to_npy(array),
        ("npy", _) => {
            let names: Vec<&str> = arrays.iter().map(|a| a.name.as_str()).collect();
            let why = format!("there are several outputs ({}): name a .safetensors file", names.join(", "));
            return Err(RunError::Refused(why));
        }
        ("safetensors", _) => to_safetensors(arrays).map_err(RunError::Refused)?,
        _ => return Err(RunError::Refused("the output is a .npy or a .safetensors file".into())),
    };
    let absolute: PathBuf = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&absolute, &bytes)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or("")
}

/// The array of elements of a type, as the file names it, in C order.
fn array(name: &str, ty: &str, shape: &[u64], data: &[u8]) -> Result<Array, String> {
    let shape32: Option<Vec<u32>> = shape.iter().map(|&d| u32::try_from(d).ok()).collect();
    let count = shape.iter().try_fold(1u64, |count, &d| count.checked_mul(d));
    let (Some(mut shape), Some(count)) = (shape32, count.filter(|&count| count < 1 << 31)) else {
        return Err(format!("{name}: the shape {shape:?} is too large: 2^31 - 1 elements at most"));
    };
    if shape.is_empty() {
        shape.push(1); // a scalar
    }
    let size: u64 = match ty {
        "u1" => 1,
        "f4" | "i4" | "u4" => 4,
        "i8" | "u8" => 8,
        _ => {
            return Err(format!(
                "{name}: elements of type {ty}; wanted are little-endian f4, or integers u1, i4, u4, i8, u8"
            ));
        }
    };
    if data.len() as u64 != count * size {
        return Err(format!("{name}: {} bytes of data, the shape wants {}", data.len(), count * size));
    }
    let negative = || format!("{name}: integers must be at least 0 and below 2^32");
    let words: Vec<u32> = match ty {
        "f4" => data.as_chunks().0.iter().map(|c| float::canonical(f32::from_le_bytes(*c))).collect(),
        "u1" => data.iter().map(|&x| u32::from(x)).collect(),
        "u4" => data.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c)).collect(),
        "i4" => {
            let words = data.as_chunks().0.iter().map(|c| u32::try_from(i32::from_le_bytes(*c)));
            words.collect::<Result<_, _>>().map_err(|_| negative())?
        }
        _ => {
            let words = data.as_chunks().0.iter().map(|c| u32::try_from(u64::from_le_bytes(*c)));
            words.collect::<Result<_, _>>().map_err(|_| negative())?
        }
    };
    let dtype = if ty == "f4" { DType::F32 } else { DType::U32 };
    let bytes = bytes_of(&words);
    Ok(Array { name: name.into(), ty: TensorType { dtype, shape }, bytes })
}

fn from_safetensors(bytes: &[u8]) -> Result<Vec<Array>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut names = file.names();
    names.sort_unstable();
    let mut arrays = Vec::new();
    for name in names {
        let view = file.tensor(name).map_err(|error| error.to_string())?;
        let ty = match view.dtype() {
            Dtype::F32 => "f4",
            Dtype::U8 => "u1",
            Dtype::U32 => "u4",
            Dtype::I32 => "i4",
            Dtype::U64 => "u8",
            Dtype::I64 => "i8",
            other => return Err(format!("{name}: {other:?} elements; F32 and integers are wanted")),
        };
        let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
        arrays.push(array(name, ty, &shape, view.data())?);
    }
    Ok(arrays)
}

fn to_safetensors(arrays: &[Array]) -> Result<Vec<u8>, String> {
    let mut views = Vec::new();
    for a in arrays {
        let shape = a.ty.shape.iter().map(|&d| d as usize).collect();
        let dtype = if a.ty.dtype == DType::F32 { Dtype::F32 } else { Dtype::U32 };
        let view = TensorView::new(dtype, shape, &a.bytes).map_err(|error| error.to_string())?;
        views.push((a.name.as_str(), view));
    }
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

fn from_npy(bytes: &[u8]) -> Result<Array, String> {
    let short = || "it is no .npy file: its header is cut short".to_string();
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no .npy file: its first bytes are others")?;
    let (version, rest) = rest.split_at_checked(2).ok_or_else(short)?;
    let (len, rest) = match version {
        [1, 0] => rest.split_at_checked(2).map(|(l, r)| (usize::from(u16::from_le_bytes([l[0], l[1]])), r)),
        [2 | 3, 0] => {
            rest.split_at_checked(4).map(|(l, r)| (u32::from_le_bytes([l[0], l[1], l[2], l[3]]) as usize, r))
        }
        _ => return Err(format!(".npy format {}.{} is unknown", version[0], version[1])),
    }
    .ok_or_else(short)?;
    if len > HEADER_MAX {
        return Err(format!("a header of {len} bytes; at most {HEADER_MAX} are read"));
    }
    let (header, data) = rest.split_at_checked(len).ok_or_else(short)?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is not text")?;
    let Header { descr, fortran_order, shape } = Header::parse(header)?;
    if fortran_order {
        return Err("the array is in Fortran order; save numpy.ascontiguousarray of it".into());
    }
    let ty = match descr.split_at_checked(1) {
        Some(("<", ty)) => ty,
        Some(("|", "u1")) => "u1",
        _ => descr,
    };
    array("", ty, &shape, data)
}

/// The dictionary of a .npy header: exactly three keys, as numpy writes it.
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Result<Header<'a>, String> {
        let wrong =
            || format!("the header is not understood: {:?}", text.chars().take(200).collect::<String>());
        let mut rest = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(wrong)?;
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        while !rest.trim().is_empty() {
            let (key, after) = quoted(rest).ok_or_else(wrong)?;
            let value = after.trim_start().strip_prefix(':').ok_or_else(wrong)?.trim_start();
            let end;
            match key {
                "descr" if descr.is_none() => {
                    let (text, after) = quoted(value).ok_or_else(wrong)?;
                    descr = Some(text);
                    end = after;
                }
                "fortran_order" if fortran_order.is_none() => {
                    let no = value.strip_prefix("False").map(|after| (false, after));
                    let (order, after) =
                        no.or_else(|| Some((true, value.strip_prefix("True")?))).ok_or_else(wrong)?;
                    fortran_order = Some(order);
                    end = after;
                }
                "shape" if shape.is_none() => {
                    let (inner, after) =
                        value.strip_prefix('(').and_then(|v| v.split_once(')')).ok_or_else(wrong)?;
                    let sizes = inner.split(',').map(str::trim).filter(|size| !size.is_empty());
                    let sizes: Result<Vec<u64>, _> = sizes.map(str::parse).collect();
                    shape = Some(sizes.ok().filter(|s| s.len() <= 4).ok_or_else(wrong)?);
                    end = after;
                }
                _ => return Err(wrong()),
            }
            let end = end.trim_start();
            rest = end.strip_prefix(',').unwrap_or(end);
            if rest.len() == end.len() && !end.is_empty() {
                return Err(wrong());
            }
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Header { descr, fortran_order, shape }),
            _ => Err(wrong()),
        }
    }
}

/// A quoted word at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    text[1..].split_once(quote)
}

fn to_npy(array: &Array) -> Vec<u8> {
    let descr = if array.ty.dtype == DType::F32 { "<f4" } else { "<u4" };
    let sizes: String = array.ty.shape.iter().map(|d| format!("{d}, ")).collect();
    let sizes = if array.ty.shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // Data begin at a multiple of 64 bytes.
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let len = u16::try_from(header.len()).expect("a shape of four numbers is short");
    [MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes(), &array.bytes].concat()
}
