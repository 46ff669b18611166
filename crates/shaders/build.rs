//! Makes the table of shaders (`src/table.rs`).

#[path = "src/table.rs"]
mod table;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    table::build();
}
