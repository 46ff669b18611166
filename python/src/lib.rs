//! The native module of the Python package: commands as functions, and what a run's files hold.
//!
//! No function here prints, and none keeps the interpreter's lock while it computes. A panic ends a function with `Panic`, which the
//! package turns into `tiebreak.BugError`.

mod call;
mod kernel;
mod module;
mod panics;
mod recording;
mod run;

use pyo3::prelude::*;

/// The functions that the package `tiebreak` calls; see its docstrings.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    panics::remember();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Failed", module.py().get_type::<run::Failed>())?;
    module.add("Panic", module.py().get_type::<panics::Panic>())?;
    module.add_class::<module::Pass>()?;
    module.add_class::<recording::Recording>()?;
    module.add_function(wrap_pyfunction!(call::call, module)?)?;
    module.add_function(wrap_pyfunction!(panics::panics, module)?)?;
    module.add_function(wrap_pyfunction!(run::read, module)?)?;
    module.add_function(wrap_pyfunction!(run::records, module)?)?;
    module.add_function(wrap_pyfunction!(run::losses, module)?)?;
    module.add_function(wrap_pyfunction!(run::tensors, module)?)
}
