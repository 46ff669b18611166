//! The help of the program itself: common commands and the names of the others with `-h`, all commands with `--help`.

/// Commands that most people want, in the order of a first visit.
const COMMON: [&str; 12] = [
    "demo", "doctor", "key", "job", "train", "verify", "audit", "compare", "verdict", "eval", "export",
    "import",
];

/// Places the commands between usage and options; one heading for all of them is clap's own way.
const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

/// The most characters of a line.
const WIDTH: usize = 98;

/// The parser with the two lists of commands in its help.
pub fn added(command: clap::Command) -> clap::Command {
    let row = |sub: &clap::Command| {
        format!("  {:<12} {}", sub.get_name(), sub.get_about().map(ToString::to_string).unwrap_or_default())
    };
    let is_common = |sub: &&clap::Command| COMMON.contains(&sub.get_name());
    let common: Vec<String> = command.get_subcommands().filter(is_common).map(row).collect();
    let all: Vec<String> = command.get_subcommands().map(row).collect();
    let others = command.get_subcommands().filter(|sub| !is_common(sub)).map(clap::Command::get_name);
    let short = format!(
        "Common commands:\n{}\n\nOther commands (`tiebreak --help` describes all, `tiebreak COMMAND -h` one):\n{}",
        common.join("\n"),
        wrapped(others)
    );
    let long = format!("Commands:\n{}", all.join("\n"));
    command.help_template(TEMPLATE).before_help(short).before_long_help(long)
}

/// Names with commas, in lines.
fn wrapped<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut lines = vec![String::from(" ")];
    for name in names {
        if lines[lines.len() - 1].len() + name.len() + 2 > WIDTH {
            lines.push(String::from(" "));
        }
        let last = lines.len() - 1;
        lines[last] += &format!(" {name},");
    }
    lines.join("\n").trim_end_matches(',').to_string()
}
