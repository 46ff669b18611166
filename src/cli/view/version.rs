//! The version of the program, and of the contract and the formats that it reads and writes.

use std::sync::LazyLock;

use tiebreak_audit::REPORT_FORMAT;
use tiebreak_dispute::game::{terms, verdict as game_verdict};
use tiebreak_dispute::verdict;
use tiebreak_game::net::server;
use tiebreak_job::identity::CONTRACT;
use tiebreak_run::evaluate;
use tiebreak_run::run::dir::RUN_FORMAT;

/// The version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The contract and the formats: name and version.
pub fn formats() -> [(&'static str, String); 8] {
    [
        ("contract", CONTRACT.to_string()),
        ("run", format!("format {RUN_FORMAT}")),
        ("verdict", format!("format {}", verdict::FORMAT)),
        ("game terms", format!("format {}", terms::FORMAT)),
        ("game verdict", format!("format {}", game_verdict::FORMAT)),
        ("audit report", format!("format {REPORT_FORMAT}")),
        ("evaluation", evaluate::Report::FORMAT.to_string()),
        ("wire", server::ANSWER.to_string()),
    ]
}

/// The version with the contract and the formats, a line each.
pub fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let line = |(name, version): &(&str, String)| format!("\n{name:<13} {version}");
        let lines: String = formats().iter().map(line).collect();
        format!("{VERSION}{lines}")
    });
    LONG.as_str()
}
