//! The bytes of samples at a constant stride of a file: the columns of inputs and labels, and the mask of the labels that count.

use crate::element::{ArrayPlace, Element};
use tiebreak_contract::program::models::BatchTensor;

/// One batch tensor of a part's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The file.
    pub file: usize,
    /// The byte at which the first sample's elements begin.
    pub(super) first: u64,
    /// Bytes from one sample to the next.
    pub(super) stride: u64,
    /// The type of the elements.
    pub element: Element,
    /// Elements of a sample.
    pub(super) elements: u64,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub first: u64,
    /// The number of bytes.
    pub len: usize,
}

impl Column {
    /// The bytes of the part's sample `index`.
    pub(crate) fn bytes(&self, index: u64) -> Span {
        let len = (self.elements * self.element.size()) as usize;
        Span { first: self.first + index * self.stride, len }
    }

    /// The bytes of element `element` of the part's sample `index`; `None` if a sample has no such element.
    pub(crate) fn element_bytes(&self, index: u64, element: u64) -> Option<Span> {
        let size = self.element.size();
        let first = || self.first + index * self.stride + element * size;
        (element < self.elements).then(|| Span { first: first(), len: size as usize })
    }

    /// The distance, in samples, to the next sample that shares no element with a sample.
    pub(super) fn apart(&self) -> u64 {
        (self.elements * self.element.size()).div_ceil(self.stride.max(1)).max(1)
    }
}

/// Samples at a constant stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub(super) samples: u64,
    /// The number of samples directly before a sample that share an element of it or of its labels.
    pub(super) overlap: u64,
    /// True if samples are windows of tokens.
    pub(super) is_window: bool,
    /// Tokens from a window's inputs to its labels: 1, or 0 if the model has to find masked ones.
    pub(super) shift: u64,
    /// The columns of the inputs, and of the labels.
    pub columns: [Column; 2],
    /// The bytes that say which labels count; `None` if all do.
    pub mask: Option<Column>,
    /// Rows and columns of the planes of a sample's inputs, if the inputs are planes.
    pub planes: Option<[u64; 2]>,
}

impl Part {
    /// The number of its samples, among the first `drawn` ones, that have no element in common, labels included.
    pub(super) fn separate(&self, drawn: u64) -> u64 {
        self.samples.min(drawn).div_ceil(self.overlap + 1)
    }

    /// The tokens that windows are of, from the file's first.
    pub(super) fn tokens(&self) -> u64 {
        match self.overlap {
            0 => self.samples * (self.columns[0].elements + self.shift),
            overlap => self.samples + overlap,
        }
    }

    /// True if a token of [`Part::tokens`] is a target of a sample.
    pub(super) fn is_target(&self, token: u64) -> bool {
        match self.overlap {
            0 => !token.is_multiple_of(self.columns[0].elements + 1),
            _ => token > 0,
        }
    }

    /// The number of samples, from this one on, that share no elements with each other.
    pub(super) fn apart_from(&self, first: u64) -> u64 {
        self.samples.saturating_sub(first).div_ceil(self.columns[0].apart())
    }
}

/// Windows of tokens: a run of tokens that a model takes, and the run that begins `shift` tokens later, whose labels a mask may
/// take out. No token is in two `separate` windows.
pub(super) fn cut(
    separate: bool,
    shift: u64,
    (file, array): (usize, &ArrayPlace),
    mask: Option<(usize, ArrayPlace)>,
    tensors: &[BatchTensor],
) -> Part {
    let context = elements(&tensors[0]);
    // Tokens of a window.
    let span = context + shift;
    let (samples, overlap, apart) = match separate {
        false => ((array.shape[0] + 1).saturating_sub(span), span - 1, 1),
        true => (array.shape[0] / span, 0, span),
    };
    let column = |file, array: &ArrayPlace, skipped: u64| {
        let (element, size) = (array.element, array.element.size());
        Column { file, first: array.first + skipped * size, stride: apart * size, element, elements: context }
    };
    Part {
        samples,
        overlap,
        is_window: true,
        shift,
        columns: [column(file, array, 0), column(file, array, shift)],
        mask: mask.map(|(file, mask)| column(file, &mask, 1)),
        planes: None,
    }
}

/// Elements of a sample of a batch tensor.
pub(super) fn elements(tensor: &BatchTensor) -> u64 {
    tensor.shape.iter().map(|&d| u64::from(d)).product()
}
