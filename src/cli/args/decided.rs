//! `--decided-is-success`: an exit code of 0 for whatever was decided.

use crate::cli::view::report::{CommandResult, Exit, Failure};

/// An option of commands that decide something.
#[derive(clap::Args, Clone, Copy, Default)]
#[command(next_help_heading = "Output")]
pub struct Decided {
    /// End with 0 also where the result is against a run or a party.
    ///
    /// Schedulers that start a failed command again would repeat one that ends with 1 or 5. The output is the same, so read the outcome
    /// there. Other exit codes stay.
    #[arg(long, hide_short_help = true)]
    decided_is_success: bool,
}

impl Decided {
    /// The result of a command, as the option asks for it. An error that decides is printed all the same.
    pub fn applied(self, result: CommandResult) -> CommandResult {
        let code = |exit: Exit| match exit {
            Exit::Diverges | Exit::Forfeit if self.decided_is_success => Exit::Match,
            exit => exit,
        };
        match result {
            Ok(exit) => Ok(code(exit)),
            Err(failure) => Err(Failure { exit: code(failure.exit), ..failure }),
        }
    }
}
