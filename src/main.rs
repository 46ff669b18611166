//! The `tiebreak` command: see [`tiebreak::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tiebreak::cli::main()
}
