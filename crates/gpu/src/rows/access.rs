//! The way in which views find their elements: by an element's own number, by its row's number, or by its
//! indices.

use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::View;

/// Indices along up to four dimensions, the outermost first: the begin of a part, or its length.
pub(crate) type Index = [u32; 4];

/// The way in which an input is indexed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The output element's own number, from an offset.
    Contiguous,
    /// One element for all output elements.
    Uniform,
    Strided,
}

/// The element that a view reads for element j of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowAccess {
    /// The row's own element: the view is the whole index space in order.
    Element,
    /// One element for all rows.
    Uniform,
    /// One element for each row.
    PerRow,
    /// Element j of one vector for all rows.
    Column,
    Strided,
}

/// The way in which a view's elements are found from the number of the output's element.
pub(crate) fn access(view: &View) -> Access {
    if view.strides == [0; 4] {
        Access::Uniform
    } else if view.is_contiguous() {
        Access::Contiguous
    } else {
        Access::Strided
    }
}

/// True if a map has to know its indices one by one.
pub(crate) fn is_indexed(body: &Body, inputs: &[View]) -> bool {
    let strided = inputs.iter().any(|view| access(view) == Access::Strided);
    strided || body.code.iter().any(|instr| matches!(instr, Instr::Index(_)))
}

/// The element that a view of a map over rows of `len` elements reads.
pub(crate) fn row_access(view: &View, len: u32) -> RowAccess {
    let [d0, d1, d2, last] = view.dims;
    let outer = |strides: [u32; 3]| {
        let mut view = View { dims: [1, d0, d1, d2], ..view.clone() };
        view.strides = [0, strides[0], strides[1], strides[2]];
        view
    };
    let [s0, s1, s2, s3] = view.strides;
    match access(view) {
        Access::Uniform => RowAccess::Uniform,
        Access::Contiguous => RowAccess::Element,
        Access::Strided if last != len => RowAccess::Strided,
        Access::Strided if s3 == 0 && outer([s0, s1, s2]).is_contiguous() => RowAccess::PerRow,
        Access::Strided if s3 == 1 && [s0, s1, s2] == [0; 3] => RowAccess::Column,
        Access::Strided => RowAccess::Strided,
    }
}
