//! `tiebreak reference`: every command, argument and option as a page (`docs/COMMAND-LINE.md`), from the parser itself.

use serde_json::{Value, json};

use crate::cli::view::escape::Lines;
use crate::cli::view::report::{CommandResult, Exit, Printer};

/// Print the reference of every command: arguments, options, defaults, exit codes.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak reference")]
pub struct Args {}

const INTRODUCTION: &str = "# The command line

`tiebreak reference` prints this page, and a test compares the two. [COMMANDS.md](COMMANDS.md) says which command to take
for which task. `tiebreak completions SHELL` prints a script by which a shell completes commands and options.
`tiebreak man DIR` writes man pages.

## Exit codes

| exit code | meaning |
|---|---|
| 0 | match, or the work is done |
| 1 | diverges, convicted, or other than ordered |
| 2 | usage: the command line or a job file is wrong |
| 3 | could not decide, or could not write the result |
| 4 | a file is malformed, or badly signed |
| 5 | somebody forfeited a dispute game, and nobody was convicted |

Every command may end with 0, 2, 3 or 4. The section of a command says where 1 and 5 are possible too. With
`--decided-is-success` a command ends with 0 in their place, for schedulers that start a failed command again.
";

/// Commands that decide games, and so may end with 5.
const GAMES: [&str; 2] = ["tiebreak referee", "tiebreak verdict check"];
/// The most characters of a line of text.
const WIDTH: usize = 118;
/// The option of commands that decide.
const DECIDED: &str = "decided_is_success";

pub fn run(printer: Printer, command: clap::Command) -> CommandResult {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    printer.document(Lines::split(page(&command).trim_end()), &json(&command));
    Ok(Exit::Match)
}

/// The page.
fn page(command: &clap::Command) -> String {
    let mut page = INTRODUCTION.to_string();
    page += "\n## Options of every command\n\n| option | default | meaning |\n|---|---|---|\n";
    let global: Vec<&clap::Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).collect();
    global.iter().for_each(|arg| page += &row(arg));
    page += "| `-h` | | Print the common options. |\n| `--help` | | Print all of a command's help. |\n";
    page += "| `-V` | | Print the version; `tiebreak` alone takes this option. |\n";
    page += "| `--version` | | Print the version of the program, the contract and the formats. |\n";
    for (heading, place) in SHARED {
        page += &format!("\n## {place}\n\n| option | default | meaning |\n|---|---|---|\n");
        shared_rows(command, heading).iter().for_each(|row| page += row);
    }
    let shared = SHARED.map(|(heading, place)| (place, shared_rows(command, heading)));
    for sub in command.get_subcommands() {
        section(sub, &format!("tiebreak {}", sub.get_name()), &shared, &mut page);
    }
    page
}

/// Groups of options that many commands have alike: the heading in their help, and the section of this page.
const SHARED: [(&str, &str); 2] = [("Engine", "Options of engines"), ("Limits", "Limits of memory and time")];

/// The options of a group, as the command that trains has them.
fn shared_rows(command: &clap::Command, heading: &str) -> Vec<String> {
    let train = command.find_subcommand("train");
    let arguments = train.into_iter().flat_map(clap::Command::get_arguments);
    arguments.filter(|arg| arg.get_help_heading() == Some(heading)).map(row).collect()
}

/// A link to a section of this page.
fn link(title: &str) -> String {
    format!("[{}](#{})", title.to_lowercase(), title.to_lowercase().replace(' ', "-"))
}

/// The section of a command, and those of its subcommands.
fn section(command: &clap::Command, path: &str, shared: &[(&str, Vec<String>)], page: &mut String) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    *page += &format!("\n## `{path}`\n\n{}", paragraphs(&about));
    let usage = command.clone().render_usage().to_string();
    *page += &format!("\n```\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    let own: Vec<&clap::Arg> = own_arguments(command).collect();
    let (positionals, options): (Vec<&clap::Arg>, Vec<&clap::Arg>) =
        own.iter().partition(|arg| arg.is_positional());
    if !positionals.is_empty() {
        *page += "\n| argument | default | meaning |\n|---|---|---|\n";
        positionals.iter().for_each(|arg| *page += &row(arg));
    }
    let common = |arg: &&clap::Arg| shared.iter().any(|(_, rows)| rows.contains(&row(arg)));
    if options.iter().any(|arg| !common(arg)) {
        *page += "\n| option | default | meaning |\n|---|---|---|\n";
        options.iter().filter(|arg| !common(arg)).for_each(|arg| *page += &row(arg));
    }
    let has = |rows: &[String]| options.iter().any(|arg| rows.contains(&row(arg)));
    let groups: Vec<String> =
        shared.iter().filter(|(_, rows)| has(rows)).map(|(place, _)| link(place)).collect();
    if !groups.is_empty() {
        *page += &format!("\nAlso: {}.\n", groups.join(", "));
    }
    if let Some(exits) = exits(path, &own) {
        *page += &format!("\n{exits}\n");
    }
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let after = after.unwrap_or_default();
    let begin = after.find("Example").unwrap_or(after.len());
    if !after[..begin].trim().is_empty() {
        *page += &format!("\n{}", paragraphs(after[..begin].trim()));
    }
    let examples: Vec<&str> = after[begin..].lines().filter_map(example).collect();
    if !examples.is_empty() {
        *page += &format!("\n```\n{}\n```\n", examples.join("\n"));
    }
    command
        .get_subcommands()
        .for_each(|sub| section(sub, &format!("{path} {}", sub.get_name()), shared, page));
}

/// The arguments of a command that are not those of all commands.
fn own_arguments(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let is_own =
        |arg: &&clap::Arg| !arg.is_global_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    command.get_arguments().filter(is_own)
}

/// The exit codes of a command beside those of all commands.
fn exits(path: &str, own: &[&clap::Arg]) -> Option<&'static str> {
    let decides = own.iter().any(|arg| arg.get_id() == DECIDED);
    match (decides, GAMES.contains(&path)) {
        (true, true) => Some("Exit codes 1 and 5 are possible too."),
        (true, false) => Some("Exit code 1 is possible too."),
        (false, _) => None,
    }
}

/// The command of a line of examples.
fn example(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches("Example: ");
    line.starts_with("tiebreak ").then_some(line)
}

/// An argument as a row.
fn row(arg: &clap::Arg) -> String {
    format!("| {} | {} | {} |\n", name(arg), default(arg), meaning(arg))
}

fn name(arg: &clap::Arg) -> String {
    let values: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect();
    let values = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    if arg.is_positional() {
        return cell(&format!("`{values}`"));
    }
    let short = arg.get_short().map_or(String::new(), |short| format!("-{short}, "));
    let long = arg.get_long().map_or(String::new(), |long| format!("--{long}"));
    cell(format!("`{short}{long} {values}").trim_end()) + "`"
}

fn default(arg: &clap::Arg) -> String {
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let is_flag = !arg.get_action().takes_values();
    match values.join(" ") {
        _ if arg.is_required_set() => "required".into(),
        text if text.is_empty() || is_flag => String::new(),
        text => cell(&format!("`{}`", text.escape_debug())),
    }
}

/// The help of an argument, with the values that it may have.
fn meaning(arg: &clap::Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    if !text.ends_with('.') {
        text.push('.');
    }
    let values: Vec<String> = match arg.get_action().takes_values() {
        true => {
            arg.get_possible_values().iter().filter(|value| !value.is_hide_set()).map(value_text).collect()
        }
        false => Vec::new(),
    };
    if !values.is_empty() {
        text += &format!(" Values: {}", values.join(" "));
    }
    cell(&text)
}

fn value_text(value: &clap::builder::PossibleValue) -> String {
    let help = value.get_help().map(ToString::to_string);
    let help = help.map_or(String::new(), |help| format!(": {}", help.trim_end_matches('.')));
    format!("`{}`{help}.", value.get_name())
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    // An address that nobody can follow is code, or checkers of links take it for one.
    text.replace('|', "\\|").replace("http://HOST:PORT", "`http://HOST:PORT`")
}

/// Paragraphs, in lines that are not too long.
fn paragraphs(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let mut lines = vec![String::new()];
        for word in paragraph.split_whitespace() {
            let last = lines.len() - 1;
            if !lines[last].is_empty() && lines[last].chars().count() + 1 + word.chars().count() > WIDTH {
                lines.push(word.into());
            } else {
                let space = if lines[last].is_empty() { "" } else { " " };
                lines[last] += &format!("{space}{word}");
            }
        }
        let text = lines.join("\n");
        let end = if text.ends_with(['.', ':']) { "" } else { "." };
        format!("{text}{end}\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n")
}

/// The same for programs.
fn json(command: &clap::Command) -> Value {
    let arguments: Vec<Value> = own_arguments(command)
        .map(|arg| {
            let values: Vec<String> = match arg.get_action().takes_values() {
                true => arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect(),
                false => Vec::new(),
            };
            let defaults: Vec<String> =
                arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            json!({
                "name": arg.get_id().as_str(), "long": arg.get_long(), "short": arg.get_short(), "required": arg.is_required_set(),
                "default": defaults, "values": values,
                "help": arg.get_long_help().or(arg.get_help()).map(ToString::to_string),
            })
        })
        .collect();
    let commands: Vec<Value> = command.get_subcommands().map(json).collect();
    json!({
        "name": command.get_name(),
        "about": command.get_long_about().or(command.get_about()).map(ToString::to_string),
        "arguments": arguments,
        "commands": commands,
    })
}
