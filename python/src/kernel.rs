//! A Python function as the kernel of native products.
//!
//! The function gets addresses in place of objects: the buffer protocol needs Python 3.11, and one build serves Python 3.9 too. The
//! package's own code alone is such a function, and keeps none of the addresses.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTraceback;
use tiebreak_engine::cpu::kernel::{Kernel, Numbers, Sums};

/// A function `multiply(a, b, out)`, with the kernel's name. Each operand is (address of its tensor, words, offset, dims, strides), and
/// `out` is (address, whether the sums are binary64).
#[derive(FromPyObject)]
pub struct PythonKernel(String, Py<PyAny>);

impl PythonKernel {
    /// The kernel as engines take it.
    pub fn shared(self) -> Arc<dyn Kernel> {
        Arc::new(self)
    }
}

/// An operand as the function gets it.
fn operand(of: &Numbers) -> (usize, usize, usize, [usize; 4], [usize; 4]) {
    (of.words.as_ptr().expose_provenance(), of.words.len(), of.offset, of.dims, of.strides)
}

impl Kernel for PythonKernel {
    fn name(&self) -> String {
        self.0.clone()
    }

    fn product(&self, a: &Numbers, b: &Numbers, sums: Sums) -> Result<(), String> {
        let out = match sums {
            Sums::Binary32(sums) => (sums.as_mut_ptr().expose_provenance(), false),
            Sums::Binary64(sums) => (sums.as_mut_ptr().expose_provenance(), true),
        };
        let called = Python::try_attach(|py| match self.1.bind(py).call1((operand(a), operand(b), out)) {
            Ok(_) => Ok(()),
            Err(error) => Err(said(py, &error)),
        });
        called.unwrap_or_else(|| Err("Python ends".into()))
    }
}

/// The type and the text of an exception in one line, and its place in the innermost function.
fn said(py: Python<'_>, error: &PyErr) -> String {
    let place = error.traceback(py).and_then(|traceback| place(traceback).ok());
    let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{words}{}", place.unwrap_or_default())
}

/// The place at which an exception was raised.
fn place(traceback: Bound<'_, PyTraceback>) -> PyResult<String> {
    let mut last = traceback.into_any();
    while let Ok(next) = last.getattr("tb_next")
        && !next.is_none()
    {
        last = next;
    }
    let code = last.getattr("tb_frame")?.getattr("f_code")?;
    let (file, line): (String, u32) =
        (code.getattr("co_filename")?.extract()?, last.getattr("tb_lineno")?.extract()?);
    Ok(format!(" ({file}, line {line})"))
}
