//! The layout of samples in files: the bytes of each sample, for every kind of data.
//!
//! Every kind has the same structure: files have parts. A part has an array of samples for each of the two batch tensors (inputs
//! and labels), from a first byte on, with a stride. The labels of a window are the window one token later.

use super::part::{Column, Part, cut, elements};
use super::{npy, safetensors};
use crate::element::{ArrayPlace, Element};
use crate::manifest::DataError;
use crate::manifest::DataFile;
use crate::spec::{DataFiles, Labelled};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::models::{BatchTensor, Input};

/// Planes, rows and columns of the images of CIFAR-10 and CIFAR-100.
pub(crate) const CIFAR: [u64; 3] = [3, 32, 32];
/// The most samples of a run's data.
pub(crate) const SAMPLES_MAX: u64 = 1 << 40;

/// Integers of a part that the model bounds, and their positions: runs of `elements` integers, `stride` bytes from one run to the
/// next.
#[derive(Debug)]
pub(super) struct Numbers {
    pub file: usize,
    pub first: u64,
    pub stride: u64,
    /// Integers of a run.
    pub elements: u64,
    /// The number of runs.
    pub count: u64,
    pub element: Element,
    /// The bound that every integer is below.
    pub below: u32,
    /// The name of the batch tensor.
    pub name: String,
    /// For the tokens of windows, and for a mask's bytes: the way they are cut.
    pub window: Option<Window>,
}

/// The way tokens are cut into windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The number of tokens that a sample takes after its first.
    pub context: u64,
    /// True if no token is in two windows.
    pub separate: bool,
    /// True if the numbers are those of a mask.
    pub is_mask: bool,
}

/// The samples of a share s of n, a binary32 number above 0 and below 1: floor(s n + 1/2), without intermediate rounding. `n` is
/// at most 2^40.
pub(crate) fn share_of(share: f32, n: u64) -> u64 {
    // s is mantissa / 2^shift.
    let (exponent, fraction) = (share.to_bits() >> 23, share.to_bits() & 0x7f_ffff);
    let mantissa = if exponent > 0 { fraction | 0x80_0000 } else { fraction };
    let shift = 150u32.saturating_sub(exponent.max(1));
    // The product is below 2^64, so a shift by more than 100 leaves nothing.
    if shift == 0 || shift > 100 {
        0
    } else {
        ((u128::from(mantissa) * u128::from(n) + (1 << (shift - 1))) >> shift) as u64
    }
}

/// The layout of a job's samples in its files.
#[derive(Debug)]
pub struct Layout {
    /// The parts, each with the number of samples before it.
    parts: Vec<(u64, Part)>,
    /// Samples of all parts.
    pub samples: u64,
    /// Files that hold no sample.
    pub empty: Vec<usize>,
}

impl Layout {
    /// The layout of these files, from their headers and lengths. `tensors` are the model's batch tensors of one sample; `shift`
    /// is the number of tokens from a window's inputs to its labels.
    ///
    /// # Errors
    /// If a file is malformed, the data do not fit the tensors, or there is no whole sample.
    pub(crate) fn of(
        files: &mut [DataFile],
        spec: &DataFiles,
        shift: u64,
        tensors: &[BatchTensor],
    ) -> Result<Layout, DataError> {
        if let Err(why) = fits(spec, tensors) {
            return Err(DataError::Job(format!("data.kind: {why}")));
        }
        let mut parts = Vec::new();
        match spec {
            DataFiles::Bytes { .. } => {
                for (number, file) in files.iter().enumerate() {
                    let array = raw(file, Element::U8)?;
                    parts.push(cut(false, shift, (number, &array), None, tensors));
                }
            }
            DataFiles::Tokens { paths, dtype, masks, separate } => {
                for (number, path) in paths.iter().enumerate() {
                    let array = row(&mut files[number], path, *dtype)?;
                    let mask = masks.get(number).map(|path| {
                        let file = paths.len() + number;
                        let mask = row(&mut files[file], path, Element::U8)?;
                        as_long(&files[file], &mask, &array).map(|()| (file, mask))
                    });
                    parts.push(cut(*separate, shift, (number, &array), mask.transpose()?, tensors));
                }
            }
            DataFiles::Cifar10 { .. } => {
                for (number, file) in files.iter().enumerate() {
                    parts.push(records(number, file, 1, 0)?);
                }
            }
            DataFiles::Cifar100 { labels, .. } => {
                for (number, file) in files.iter().enumerate() {
                    parts.push(records(number, file, 2, *labels as u64)?);
                }
            }
            DataFiles::Idx { .. } => {
                let [images, labels] = files else { return Err(two_files()) };
                let arrays = [idx(images, 3)?, idx(labels, 1)?];
                parts.push(labelled(files, arrays, tensors)?);
            }
            DataFiles::Arrays(spec) => parts.push(arrays(files, spec, tensors)?),
        }
        Layout::of_parts(files, parts)
    }

    fn of_parts(files: &[DataFile], parts: Vec<Part>) -> Result<Layout, DataError> {
        let mut layout = Layout { parts: Vec::new(), samples: 0, empty: Vec::new() };
        for part in parts {
            if part.samples == 0 {
                layout.empty.push(part.columns[0].file);
                continue;
            }
            let before = layout.samples;
            // A file has 2^40 bytes at most, and the number of files is bounded.
            layout.samples += part.samples;
            layout.parts.push((before, part));
        }
        let first = files[0].path();
        match layout.samples {
            0 => Err(DataError::invalid(first, "the file holds no whole sample")),
            n if n > SAMPLES_MAX => Err(DataError::invalid(
                first,
                format!("there are {n} samples; at most 2^40 can be drawn from"),
            )),
            _ => Ok(layout),
        }
    }

    /// The parts that have a mask.
    pub(super) fn masked(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().map(|(_, part)| part).filter(|part| part.mask.is_some())
    }

    /// The integers that a model bounds, without those whose type cannot exceed the bound.
    pub(super) fn numbers(&self, tensors: &[BatchTensor]) -> Vec<Numbers> {
        let numbers = |(_, part): &(u64, Part)| -> Vec<Numbers> {
            let of = |(column, tensor): (&Column, &BatchTensor)| {
                let Column { file, first, stride, element, elements } = *column;
                let BatchTensor { name, below, .. } = tensor.clone();
                (tensor.dtype == DType::U32).then_some(Numbers {
                    file,
                    first,
                    stride,
                    elements,
                    count: part.samples,
                    element,
                    below,
                    name,
                    window: None,
                })
            };
            let mut all: Vec<Numbers> = part.columns.iter().zip(tensors).filter_map(of).collect();
            if part.is_window
                && let [tokens, labels] = &mut all[..]
            {
                // Inputs and labels are the same tokens.
                tokens.below = tokens.below.min(labels.below);
                let context = part.columns[0].elements + part.shift - 1;
                let separate = part.overlap == 0;
                let window = Window { context, separate, is_mask: false };
                tokens.window = Some(window);
                tokens.stride = tokens.element.size();
                (tokens.elements, tokens.count) = (1, part.tokens());
                all.truncate(1);
                all.extend(part.mask.map(|mask| Numbers {
                    file: mask.file,
                    // The first byte is of no target.
                    first: mask.first - 1,
                    stride: 1,
                    elements: 1,
                    count: part.tokens(),
                    element: mask.element,
                    below: 2,
                    name: "mask".into(),
                    window: Some(Window { is_mask: true, ..window }),
                }));
            }
            all.retain(|n| n.element.largest().is_some_and(|largest| largest >= i64::from(n.below)));
            all
        };
        self.parts.iter().flat_map(numbers).collect()
    }

    /// The number of samples before the last `kept` ones, and the number of the first kept one. Samples that share elements with
    /// a kept one count as neither. `kept` is at most the number of samples, and not 0.
    pub(crate) fn split(&self, kept: u64) -> [u64; 2] {
        let first = self.samples - kept;
        let (part, place) = self.find(first);
        [first - place + place.saturating_sub(part.overlap), first]
    }

    /// The number of samples from sample `first` on that share no elements. A window that overlaps with the one counted before it
    /// does not count.
    pub(crate) fn samples_in_order(&self, first: u64) -> u64 {
        self.parts.iter().map(|(before, part)| part.apart_from(first.saturating_sub(*before))).sum()
    }

    /// The number of the sample at a position among those that share no elements, in file order, from sample `first` on. `place`
    /// is below the number of those.
    pub(crate) fn in_order(&self, first: u64, mut place: u64) -> u64 {
        for (before, part) in &self.parts {
            let start = first.saturating_sub(*before);
            let count = part.apart_from(start);
            if place < count {
                return before + start + place * part.columns[0].apart();
            }
            place -= count;
        }
        panic!("an evaluation has no such place");
    }

    /// The number of samples, among the first `drawn` ones, that have no element in common, labels included, in file order.
    pub(super) fn separate(&self, drawn: u64) -> u64 {
        self.parts.iter().map(|(before, part)| part.separate(drawn.saturating_sub(*before))).sum()
    }

    /// The number of sample `place` among those that [`Layout::separate`] counts. `place` is below their number.
    pub(super) fn separate_at(&self, drawn: u64, mut place: u64) -> u64 {
        for (before, part) in &self.parts {
            let count = part.separate(drawn.saturating_sub(*before));
            if place < count {
                return before + place * (part.overlap + 1);
            }
            place -= count;
        }
        panic!("an epoch has no such place");
    }

    /// True if every sample is planes of more than `crop` rows and columns.
    pub(crate) fn can_be_cropped(&self, crop: u32) -> bool {
        let larger = |planes: [u64; 2]| planes.into_iter().all(|size| size > u64::from(crop));
        self.parts.iter().all(|(_, part)| part.planes.is_some_and(larger))
    }

    /// The part of a sample, and the sample's number in the part. `number` is below the number of samples.
    pub(crate) fn find(&self, number: u64) -> (&Part, u64) {
        let part = self.parts.partition_point(|(before, _)| *before <= number) - 1;
        let (before, part) = &self.parts[part];
        (part, number - before)
    }
}

/// Checks that a kind of data gives a program's batch tensors of one sample; the error says which kinds fit. Inputs that are
/// named `tokens` are windows.
///
/// # Errors
/// If the kind does not give these tensors.
pub(crate) fn fits(spec: &DataFiles, tensors: &[BatchTensor]) -> Result<(), String> {
    let [inputs, labels] = tensors else {
        let found = tensors.len();
        return Err(format!("data files give two batch tensors, inputs and labels; the program has {found}"));
    };
    let tokens = inputs.name == "tokens";
    let rows = inputs.shape[0];
    if !tokens && rows != 1 {
        return Err(format!(
            "a sample of the program's inputs has {rows} rows; only those of windows, named tokens, may have several"
        ));
    }
    let (found, due) = (elements(labels), if tokens { elements(inputs) } else { 1 });
    if labels.dtype != DType::U32 || found != due {
        return Err(format!(
            "the program's labels of a sample are {found} of {:?}; {due} of U32 are wanted",
            labels.dtype
        ));
    }
    let fine = match spec {
        DataFiles::Bytes { .. } | DataFiles::Tokens { .. } => tokens,
        // IDX files of bytes have one plane.
        DataFiles::Idx { .. } => !tokens && (inputs.shape.len() < 4 || inputs.shape[1] == 1),
        DataFiles::Cifar10 { .. } | DataFiles::Cifar100 { .. } => {
            !tokens && shape_fits(&inputs.shape[1..], &CIFAR)
        }
        DataFiles::Arrays(_) => !tokens,
    };
    let dtype = if spec.input() == Input::Values { DType::F32 } else { DType::U32 };
    if fine && inputs.dtype == dtype {
        return Ok(());
    }
    let (found, shape) = (inputs.dtype, &inputs.shape);
    Err(format!(
        "this kind of data does not fit the model, whose inputs are {found:?} {shape:?}. A gpt, a llama or a bert without classes wants bytes or tokens; a bert with classes wants arrays of token ids. Every other model wants idx (one plane), cifar10 or cifar100 (3 planes of 32 x 32) or arrays"
    ))
}

/// True if samples of a shape fit a batch tensor: the same dimensions without leading dimensions of 1, or the same number of
/// elements where the tensor is a row.
fn shape_fits(wanted: &[u32], have: &[u64]) -> bool {
    if let [row] = wanted {
        let len = have.iter().try_fold(1u64, |len, &d| len.checked_mul(d));
        return len == Some(u64::from(*row));
    }
    let wanted = wanted.iter().map(|&d| u64::from(d)).skip_while(|&d| d == 1);
    wanted.eq(have.iter().copied().skip_while(|&d| d == 1))
}

/// A file as a row of elements, by its name.
fn row(file: &mut DataFile, path: &str, element: Element) -> Result<ArrayPlace, DataError> {
    if is_npy(path) { tokens(file, element) } else { raw(file, element) }
}

/// Checks that a mask has a byte for each token.
fn as_long(file: &DataFile, mask: &ArrayPlace, tokens: &ArrayPlace) -> Result<(), DataError> {
    let (have, wanted) = (mask.shape[0], tokens.shape[0]);
    if have == wanted {
        return Ok(());
    }
    let why =
        format!("the mask has {have} bytes, and its file of tokens {wanted} tokens: each token has one byte");
    Err(DataError::invalid(file.path(), why))
}

/// A whole file as an array.
fn raw(file: &DataFile, element: Element) -> Result<ArrayPlace, DataError> {
    let (bytes, size) = (file.bytes(), element.size());
    if !bytes.is_multiple_of(size) {
        let why = format!("{bytes} bytes are no whole number of tokens of {size} bytes");
        return Err(DataError::invalid(file.path(), why));
    }
    Ok(ArrayPlace { element, shape: vec![bytes / size], first: 0 })
}

/// Records of the binary versions of CIFAR-10 and CIFAR-100: `labels` labels, of which `learned` is used, and the image.
fn records(file: usize, data: &DataFile, labels: u64, learned: u64) -> Result<Part, DataError> {
    let pixels = CIFAR.iter().product::<u64>();
    let (bytes, stride) = (data.bytes(), labels + pixels);
    if !bytes.is_multiple_of(stride) {
        let why = format!("{bytes} bytes are no whole number of records of {stride} bytes");
        return Err(DataError::invalid(data.path(), why));
    }
    let column = |first, elements| Column { file, first, stride, element: Element::U8, elements };
    let columns = [column(labels, pixels), column(learned, 1)];
    let planes = Some([CIFAR[1], CIFAR[2]]);
    Ok(Part { samples: bytes / stride, overlap: 0, is_window: false, shift: 1, columns, mask: None, planes })
}

/// True if a path of a job names a .npy file, packed or not.
pub fn is_npy(path: &str) -> bool {
    path.strip_suffix(".gz").unwrap_or(path).ends_with(".npy")
}

/// True if a path of a job names a safetensors file, packed or not.
pub fn is_safetensors(path: &str) -> bool {
    path.strip_suffix(".gz").unwrap_or(path).ends_with(".safetensors")
}

/// The tokens of a .npy file.
fn tokens(file: &mut DataFile, element: Element) -> Result<ArrayPlace, DataError> {
    let array = npy_array(file)?;
    if array.shape.len() != 1 || array.element != element {
        let (shape, have) = (&array.shape, array.element);
        let why = format!("one row of {element:?} is wanted, the file has shape {shape:?} of {have:?}");
        return Err(DataError::invalid(file.path(), why));
    }
    Ok(array)
}

/// The array of an IDX file of bytes, by its header. Source: the description of the format on MNIST's page.
fn idx(file: &mut DataFile, dimensions: usize) -> Result<ArrayPlace, DataError> {
    let header = file.read(0, 4 * (dimensions + 1))?;
    let mut words = header.as_chunks().0.iter().map(|c| u64::from(u32::from_be_bytes(*c)));
    // The header has two zeros, 8 for bytes, and the number of dimensions.
    let (magic, wanted) = (words.next().unwrap_or_default(), 0x800 | dimensions as u64);
    if magic != wanted {
        let why = format!(
            "it is no IDX file of bytes in {dimensions} dimensions: it begins with {magic:08x}, and {wanted:08x} is expected"
        );
        return Err(DataError::invalid(file.path(), why));
    }
    whole(file, ArrayPlace { element: Element::U8, shape: words.collect(), first: header.len() as u64 })
}

/// The array of a .npy file, by its header.
pub(crate) fn npy_array(file: &mut DataFile) -> Result<ArrayPlace, DataError> {
    let len = file.bytes().min(npy::PREAMBLE_MAX as u64) as usize;
    let preamble = file.read(0, len)?;
    let bytes = npy::header_bytes(&preamble).map_err(|why| DataError::invalid(file.path(), why))?;
    let header = file.read(bytes.start as u64, bytes.len())?;
    let place = npy::Header::parse(&header).and_then(|header| header.place(bytes));
    whole(file, place.map_err(|why| DataError::invalid(file.path(), why))?)
}

/// The array of a tensor of a safetensors file, by its header.
pub(crate) fn safetensors_array(file: &mut DataFile, name: &str) -> Result<ArrayPlace, DataError> {
    let preamble = file.read(0, safetensors::PREAMBLE)?;
    let preamble = preamble.try_into().expect("as many bytes as were asked for");
    let len = safetensors::header_len(preamble).map_err(|why| DataError::invalid(file.path(), why))?;
    if safetensors::PREAMBLE + len > safetensors::DATA_HEADER_MAX {
        let most = safetensors::DATA_HEADER_MAX;
        let why = format!(
            "its header has {len} bytes; of data it has at most {most}: write the arrays into a file of their own"
        );
        return Err(DataError::invalid(file.path(), why));
    }
    let header = file.read(safetensors::PREAMBLE as u64, len)?;
    let place = safetensors::place(&header, name, file.bytes());
    place.map_err(|why| DataError::invalid(file.path(), why))
}

/// The array, if its file is exactly as long as the array needs.
fn whole(file: &DataFile, array: ArrayPlace) -> Result<ArrayPlace, DataError> {
    let (have, wanted) = (file.bytes(), array.bytes().and_then(|bytes| bytes.checked_add(array.first)));
    if wanted == Some(have) {
        return Ok(array);
    }
    let long = wanted.is_some_and(|wanted| wanted < have);
    let why = format!("the file is {} than its header says", if long { "longer" } else { "shorter" });
    Err(DataError::invalid(file.path(), why))
}

/// Inputs and labels in arrays of one file, or of two.
fn arrays(files: &mut [DataFile], spec: &Labelled, tensors: &[BatchTensor]) -> Result<Part, DataError> {
    let mut array = |number: usize, path: &str, tensor: &Option<String>| match tensor {
        Some(name) => safetensors_array(&mut files[number], name),
        None if is_npy(path) => npy_array(&mut files[number]),
        None => Err(DataError::Job(format!("data: {path} is no .npy file, and no tensor of it is named"))),
    };
    let inputs = array(0, &spec.inputs, &spec.inputs_tensor)?;
    let last = usize::from(spec.inputs != spec.labels);
    let labels = array(last, &spec.labels, &spec.labels_tensor)?;
    if inputs.element != spec.dtype {
        let why = format!("its elements are {:?}, the job's data.dtype is {:?}", inputs.element, spec.dtype);
        return Err(DataError::invalid(files[0].path(), why));
    }
    labelled(files, [inputs, labels], tensors)
}

fn two_files() -> DataError {
    DataError::Job("data: two files are wanted".into())
}

/// The part of an array of inputs (in the first file) and an array of labels (in the last file). A row of the first dimension is
/// a sample.
fn labelled(
    files: &[DataFile],
    [inputs, labels]: [ArrayPlace; 2],
    tensors: &[BatchTensor],
) -> Result<Part, DataError> {
    let last = files.len() - 1;
    let wanted = &tensors[0].shape[1..];
    let samples = match inputs.shape.split_first() {
        Some((samples, shape)) if shape_fits(wanted, shape) => *samples,
        _ => {
            let why = format!(
                "the samples have shape {:?}, the model wants [samples], then {wanted:?}",
                inputs.shape
            );
            return Err(DataError::invalid(files[0].path(), why));
        }
    };
    if labels.shape != [samples] || labels.element.dtype() != tensors[1].dtype {
        let (shape, have) = (&labels.shape, labels.element);
        let why =
            format!("one label for each of {samples} samples is wanted, there is {shape:?} of {have:?}");
        return Err(DataError::invalid(files[last].path(), why));
    }
    let column = |file, array: &ArrayPlace, elements: u64| {
        let element = array.element;
        Column { file, first: array.first, stride: elements * element.size(), element, elements }
    };
    let planes = match inputs.shape[1..] {
        [.., rows, columns] => Some([rows, columns]),
        _ => None,
    };
    let columns = [column(0, &inputs, elements(&tensors[0])), column(last, &labels, 1)];
    Ok(Part { samples, overlap: 0, is_window: false, shift: 1, columns, mask: None, planes })
}
