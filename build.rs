//! Makes the table of shaders (`src/shaders/table.rs`), unless nothing is built that has any.

#[cfg(feature = "wgsl")]
#[path = "src/shaders/table.rs"]
mod table;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "wgsl")]
    table::build();
}
