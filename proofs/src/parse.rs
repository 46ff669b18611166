//! Turns a file under `shaders/` into naga's module, as the engine does.

use std::path::Path;

use crate::refusal::Refusal;

#[path = "../../crates/shaders/src/compose.rs"]
mod compose;

/// The text of a shader with its includes expanded.
///
/// # Errors
/// If there is no such file, or an included file is missing.
pub fn composed(name: &str) -> Result<String, Refusal> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let text = read(name).ok_or_else(|| Refusal(format!("there is no file shaders/{name}")))?;
    // The files' texts live as long as this process, which ends after one shader.
    let lookup = |name: &str| read(name).map(|text| &*text.leak());
    compose::compose(name, &text, &lookup).map_err(|error| Refusal(error.to_string()))
}

/// A module, with naga's validation results.
///
/// # Errors
/// If the text is no valid WGSL.
pub fn validated(name: &str, text: &str) -> Result<(naga::Module, naga::valid::ModuleInfo), Refusal> {
    let module = naga::front::wgsl::parse_str(text)
        .map_err(|error| Refusal(error.emit_to_string_with_path(text, name)))?;
    let mut validator = naga::valid::Validator::new(Default::default(), naga::valid::Capabilities::all());
    let info = validator.validate(&module).map_err(|error| Refusal(format!("{:?}", error.into_inner())))?;
    Ok((module, info))
}
