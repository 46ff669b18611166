//! The beginning of a process that works for another one.

use std::process::ExitCode;

use crate::{chat, process, worker};

/// Works for another process, if the command line asks for it; returns the exit code then. Each program whose commands render chats
/// or read tokenizers calls this first.
pub fn serve_if_asked() -> Option<ExitCode> {
    match &process::asked()?[..] {
        chat::ARGUMENT => Some(chat::serve()),
        worker::ARGUMENT => Some(worker::serve()),
        _ => None,
    }
}
