//! The `tiebreak` command: see [`tiebreak::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    // Mesa's Vulkan layer that reorders adapters prints errors of its own on a machine without a desktop session, which look like
    // ours. Adapters are chosen by name here, so nothing is lost without it.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    tiebreak::cli::main()
}
