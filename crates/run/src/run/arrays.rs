//! Arrays that people bring: NumPy's .npy files (format 1.0 to 3.0) and safetensors, with floats of 32 and 16 bits, and integers.
//! Source: numpy.lib.format; safetensors' README.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::disk::{self, Disk};
use super::error::RunError;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_job::data::npy;
use tiebreak_job::data::safetensors::{PREAMBLE, header_len};

/// The most bytes of a file.
const FILE_MAX: u64 = 1 << 34;

/// An array: F32 for any floats in the file, or U32 for any integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The array's name in a safetensors file; empty for .npy.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// Canonical bytes.
    pub bytes: Vec<u8>,
}

/// Reads the arrays of a file, by its extension.
///
/// # Errors
/// If it is neither .npy nor .safetensors, is malformed, or holds other types than floats of 32 or 16 bits and integers that fit
/// u32.
pub fn read(path: &Path) -> Result<Vec<Array>, RunError> {
    let bytes = disk::read(path, FILE_MAX)?;
    parse(extension(path), &bytes).map_err(|why| RunError::invalid(path, why))
}

/// The arrays of a file with this extension and contents.
///
/// # Errors
/// If the extension is another one, the contents are malformed, or hold other types than floats of 32 or 16 bits and integers that fit 32 bits.
pub fn parse(extension: &str, bytes: &[u8]) -> Result<Vec<Array>, String> {
    match extension {
        "npy" => from_npy(bytes).map(|array| vec![array]),
        "safetensors" => from_safetensors(bytes),
        other => {
            let other: String = other.chars().take(20).collect();
            Err(format!("arrays are .npy or .safetensors files, and its name ends in {other:?}"))
        }
    }
}

/// The element type that floats are written as. Integers keep their type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatType {
    /// Binary32, as they are.
    #[default]
    F32,
    /// Binary16, rounded to nearest, ties to even.
    F16,
    /// bfloat16, rounded to nearest, ties to even.
    Bf16,
}

/// Writes arrays, by the path's extension.
///
/// # Errors
/// If a .npy file is to hold more than one array, or bfloat16, which .npy has no name for.
pub fn write(path: &Path, arrays: &[Array], floats: FloatType) -> Result<(), RunError> {
    let bytes = match (extension(path), arrays) {
        ("npy", [array]) => to_npy(array, floats).map_err(RunError::Refused)?,
        ("npy", _) => {
            let names: Vec<&str> = arrays.iter().map(|a| a.name.as_str()).collect();
            let why = format!("there are several outputs ({}): name a .safetensors file", names.join(", "));
            return Err(RunError::Refused(why));
        }
        ("safetensors", _) => to_safetensors(arrays, floats).map_err(RunError::Refused)?,
        _ => {
            let why = format!("the output is a .npy or a .safetensors file, not {}", path.display());
            return Err(RunError::Refused(why));
        }
    };
    let absolute: PathBuf = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&absolute, &bytes)
}

/// The bytes of an array as a file holds it, with a type that each of the two formats names in its own way.
fn narrowed(array: &Array, floats: FloatType) -> (Dtype, Vec<u8>) {
    let narrow = |to: fn(f32) -> u16| {
        let words = words_from_bytes(DType::F32, &array.bytes).into_iter();
        words.flat_map(|word| to(f32::from_bits(word)).to_le_bytes()).collect()
    };
    match (array.ty.dtype, floats) {
        (DType::F32, FloatType::F32) => (Dtype::F32, array.bytes.clone()),
        (DType::F32, FloatType::F16) => (Dtype::F16, narrow(|x| half::f16::from_f32(x).to_bits())),
        (DType::F32, FloatType::Bf16) => (Dtype::BF16, narrow(|x| half::bf16::from_f32(x).to_bits())),
        _ => (Dtype::U32, array.bytes.clone()),
    }
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
        "f2" | "bf16" | "u2" => 2,
        "f4" | "i4" | "u4" => 4,
        "i8" | "u8" => 8,
        _ => {
            return Err(format!(
                "{name}: elements of type {ty}; wanted are little-endian f4 or f2, bf16, or integers u1, u2, i4, u4, i8, u8"
            ));
        }
    };
    if data.len() as u64 != count * size {
        return Err(format!("{name}: {} bytes of data, the shape wants {}", data.len(), count * size));
    }
    let negative = || format!("{name}: integers must be at least 0 and below 2^32");
    let halves = || data.as_chunks().0.iter().map(|c| u16::from_le_bytes(*c));
    let words: Vec<u32> = match ty {
        "f4" => data.as_chunks().0.iter().map(|c| float::canonical(f32::from_le_bytes(*c))).collect(),
        "f2" => halves().map(|x| float::canonical(half::f16::from_bits(x).to_f32())).collect(),
        "bf16" => halves().map(|x| float::canonical(half::bf16::from_bits(x).to_f32())).collect(),
        "u1" => data.iter().map(|&x| u32::from(x)).collect(),
        "u2" => halves().map(u32::from).collect(),
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
    let dtype = if ["f4", "f2", "bf16"].contains(&ty) { DType::F32 } else { DType::U32 };
    let bytes = bytes_of(&words);
    Ok(Array { name: name.into(), ty: TensorType { dtype, shape }, bytes })
}

fn from_safetensors(bytes: &[u8]) -> Result<Vec<Array>, String> {
    // The crate would accept a header of any length, and keep all of it.
    let preamble = bytes.first_chunk().ok_or_else(|| {
        let found = bytes.len();
        format!(
            "it is no safetensors file: it has {found} bytes, and the header's length alone has {PREAMBLE}"
        )
    })?;
    header_len(*preamble)?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut names = file.names();
    names.sort_unstable();
    let mut arrays = Vec::new();
    for name in names {
        let view = file.tensor(name).map_err(|error| error.to_string())?;
        let ty = match view.dtype() {
            Dtype::F32 => "f4",
            Dtype::F16 => "f2",
            Dtype::BF16 => "bf16",
            Dtype::U8 => "u1",
            Dtype::U16 => "u2",
            Dtype::U32 => "u4",
            Dtype::I32 => "i4",
            Dtype::U64 => "u8",
            Dtype::I64 => "i8",
            other => {
                return Err(format!("{name}: {other:?} elements; F32, F16, BF16 and integers are wanted"));
            }
        };
        let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
        arrays.push(array(name, ty, &shape, view.data())?);
    }
    Ok(arrays)
}

fn to_safetensors(arrays: &[Array], floats: FloatType) -> Result<Vec<u8>, String> {
    let narrowed: Vec<(Dtype, Vec<u8>)> = arrays.iter().map(|array| narrowed(array, floats)).collect();
    let mut views = Vec::new();
    for (a, (dtype, bytes)) in arrays.iter().zip(&narrowed) {
        let shape = a.ty.shape.iter().map(|&d| d as usize).collect();
        let view = TensorView::new(*dtype, shape, bytes).map_err(|error| error.to_string())?;
        views.push((a.name.as_str(), view));
    }
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

fn from_npy(bytes: &[u8]) -> Result<Array, String> {
    let preamble = &bytes[..bytes.len().min(npy::PREAMBLE_MAX)];
    let place = npy::header_bytes(preamble)?;
    let data = place.end;
    let header = bytes.get(place).ok_or("it is no .npy file: its header is cut short")?;
    let npy::Header { descr, shape } = npy::Header::parse(header)?;
    let ty = match descr.split_at_checked(1) {
        Some(("<", ty)) => ty,
        Some(("|", "u1")) => "u1",
        _ => descr,
    };
    array("", ty, &shape, &bytes[data..])
}

fn to_npy(array: &Array, floats: FloatType) -> Result<Vec<u8>, String> {
    let (dtype, data) = narrowed(array, floats);
    let descr = match dtype {
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::BF16 => return Err(".npy files have no bfloat16: name a .safetensors file".into()),
        _ => "<u4",
    };
    let shape: Vec<u64> = array.ty.shape.iter().map(|&d| d.into()).collect();
    Ok([npy_header(descr, &shape), data].concat())
}

/// The bytes before the elements of a .npy file, in format 1.0. `shape` has one dimension or a few.
pub fn npy_header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The data begin at a multiple of 64 bytes.
    while !(npy::MAGIC.len() + 4 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let len = u16::try_from(header.len()).expect("a shape of a few numbers is short");
    [npy::MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes()].concat()
}
