//! Whose keys somebody knows who checks the verdict of a dispute game.

use crate::cli::args::key;
use crate::cli::view::parties::Parties;
use crate::cli::view::report::Failure;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_record::commit::keys::PublicKey;

/// Whose keys a checker of a game's verdict knows.
#[derive(clap::Args)]
pub struct KnownKeys {
    /// Of a dispute game: the public key of a party that you know, a file or its text; once for each. Without it the result is about keys, and about
    /// nobody's name.
    #[arg(long = "party-key")]
    pub party_key: Vec<String>,
    /// Of a dispute game: the public key of the referee whose word you take that a party did not answer, a file or its text.
    #[arg(long)]
    pub referee_key: Option<String>,
}

impl KnownKeys {
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
