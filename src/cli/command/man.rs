//! `tiebreak man`.

use std::path::PathBuf;

use clap_mangen::Man;
use serde_json::json;

use crate::cli::view::escape::Lines;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;

/// Write man pages, one for each command, or print the main one.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak man man1")]
pub struct Args {
    /// Folder for the pages; without it the main page is printed.
    ///
    /// `man -M` finds them in a folder that is called man1.
    dir: Option<PathBuf>,
}

/// The pages of a command and those below it: name of the file, and text.
fn pages(command: &clap::Command, found: &mut Vec<(String, String)>) -> Result<(), Failure> {
    let mut text = Vec::new();
    let man = Man::new(command.clone());
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Undecided, error);
    man.render(&mut text).map_err(|error| failed(&error))?;
    let text = String::from_utf8(text).map_err(|error| failed(&error))?;
    found.push((man.get_filename(), text));
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).try_for_each(|sub| pages(sub, found))
}

pub fn run(printer: Printer, args: &Args, command: clap::Command) -> CommandResult {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut found = Vec::new();
    pages(&command, &mut found)?;
    let Some(folder) = &args.dir else {
        let (file, text) = &found[0];
        printer.document(Lines::split(text.trim_end()), &json!({ "page": file, "text": text }));
        return Ok(Exit::Match);
    };
    let disk = Disk::default();
    let whole = std::path::absolute(folder).map_err(RunError::io(folder))?;
    disk.create_folder(&whole)?;
    for (file, text) in &found {
        disk.replace(&whole.join(file), text.as_bytes())?;
    }
    let files: Vec<&String> = found.iter().map(|(file, _)| file).collect();
    printer.result(
        format!("{} man pages in {}", files.len(), folder.display()),
        &json!({ "folder": folder, "pages": files }),
    );
    Ok(Exit::Match)
}
