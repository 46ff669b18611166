//! Keys that a checker of a dispute game's verdict knows.

use crate::cli::args::key;
use crate::cli::view::parties::Parties;
use crate::cli::view::report::Failure;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::shell;

/// Keys that a checker of a game's verdict knows.
#[derive(clap::Args)]
#[command(next_help_heading = "Dispute games")]
pub struct KnownKeys {
    /// Public key of a party that you know: a file or its text.
    ///
    /// Give the option once for each party. Without the option the result is about keys, and about nobody's name.
    #[arg(long = "party-key", value_name = "KEY")]
    pub party_key: Vec<String>,
    /// Public key of the referee: a file or its text.
    ///
    /// Only a referee's word shows that a party did not answer.
    #[arg(long, value_name = "KEY")]
    pub referee_key: Option<String>,
}

impl KnownKeys {
    /// The options that say the same to another command, as a shell takes them.
    pub fn options(&self) -> Vec<String> {
        let parties = self.party_key.iter().map(|key| format!("--party-key {}", shell::word(key)));
        let referee = self.referee_key.iter().map(|key| format!("--referee-key {}", shell::word(key)));
        parties.chain(referee).collect()
    }

    /// The parties of a game that somebody else tells of, and which of them are known. `trainer`: the key that is known to be the trainer's.
    ///
    /// # Errors
    /// If a key is not the one that the terms name in its role: then the file is about somebody else (exit 4). If a key cannot be read.
    pub fn parties(&self, rules: &Rules, trainer: Option<&PublicKey>) -> Result<Parties, Failure> {
        let mut parties = Parties::told(rules);
        for party in &self.party_key {
            parties.know(&key::read_public(party)?)?;
        }
        if let Some(trainer) = trainer {
            parties.know_trainer(rules, trainer)?;
        }
        if let Some(referee) = &self.referee_key {
            parties.know_referee(&key::read_public(referee)?)?;
        }
        Ok(parties)
    }
}
