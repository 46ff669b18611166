//! The files that a command writes: none of them is one that the command reads, another one that it writes, or a run's own.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use tiebreak_run::run::{is_run_file, shell};

/// The options that name a file to write, by their ids in the parser. Some commands read a file under one of these options. To give them
/// one file twice is a mistake as well.
const OUTPUTS: [&str; 14] = [
    "draw_out", "logits", "opening", "out", "output", "page", "picture", "plan_out", "receipt", "report",
    "seen_out", "svg", "trace", "verdict",
];

/// An argument with a path, as the command line has it.
struct Named<'a> {
    argument: &'a Arg,
    path: &'a PathBuf,
}

impl Named<'_> {
    fn is_output(&self) -> bool {
        OUTPUTS.contains(&self.argument.get_id().as_str()) && self.argument.get_long().is_some()
    }

    fn name(&self) -> String {
        match self.argument.get_long() {
            Some(long) => format!("--{long}"),
            None => self
                .argument
                .get_value_names()
                .and_then(|names| names.first())
                .map_or("FILE", |v| v)
                .to_string(),
        }
    }
}

/// True if two paths name one file, whether it is there or is still to be written. Folders are no files.
fn is_same(one: &Path, other: &Path) -> bool {
    let absolute = |path| std::path::absolute(path).ok();
    let real = |path: &Path| path.canonicalize().ok();
    !one.is_dir()
        && (absolute(one) == absolute(other) || real(one).is_some_and(|one| real(other) == Some(one)))
}

/// The error if an output of a command line is also another of its files, or a file of a run.
pub fn refused(mut command: &Command, mut matches: &ArgMatches) -> Option<String> {
    while let Some((name, inner)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name)?, inner);
    }
    // A check reads what the other commands write. Its verdict replaces nothing.
    if command.get_name() == "check" {
        return None;
    }
    // A name by default is not the user's: a command that checks such a file does not write it.
    let given =
        |argument: &&Arg| matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
    let paths = command.get_arguments().filter(given).flat_map(|argument| {
        let paths = matches.try_get_many::<PathBuf>(argument.get_id().as_str()).ok().flatten();
        paths.into_iter().flatten().map(move |path| Named { argument, path })
    });
    let paths: Vec<Named> = paths.collect();
    for output in paths.iter().filter(|named| named.is_output()) {
        if is_run_file(output.path) {
            let (option, path) = (output.name(), shell::path(output.path));
            return Some(format!("{option} {path} is a file of the run in its folder: name another file"));
        }
        let others = paths.iter().filter(|other| {
            let ids = [output, *other].map(|named| named.argument.get_id().as_str());
            // A register that gets an entry is replaced by the longer one anyway.
            ids[0] != ids[1] && ids != ["out", "register"]
        });
        if let Some(other) = others.into_iter().find(|other| is_same(output.path, other.path)) {
            let (option, path) = (output.name(), shell::path(output.path));
            return Some(format!("{option} and {} are one file, {path}: name two files", other.name()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name of the list is that of an option which takes a path.
    #[test]
    fn outputs_are_options_of_some_command() {
        fn has(command: &Command, id: &str) -> bool {
            let takes_path = |argument: &Arg| {
                argument.get_id() == id
                    && argument.get_value_parser().type_id()
                        == clap::builder::ValueParser::path_buf().type_id()
            };
            command.get_arguments().any(takes_path) || command.get_subcommands().any(|inner| has(inner, id))
        }
        let command = crate::cli::command();
        let unknown: Vec<_> = OUTPUTS.iter().filter(|id| !has(&command, id)).collect();
        assert!(unknown.is_empty(), "no command has {unknown:?}");
    }
}
