//! The parties of a dispute game as people know them: a name is whatever its owner says, so a key stands beside it, and a checker says whose keys it
//! knows.

use serde_json::{Value, json};

use crate::cli::view::report::{Exit, Failure};
use tiebreak_dispute::game::breach::Unsettled;
use tiebreak_dispute::game::result::{GameResult, Loss};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_record::commit::keys::PublicKey;

/// The parties and the referee of a game, and which of them are known to whoever reads this.
pub struct Parties {
    keys: Vec<PublicKey>,
    known: Vec<bool>,
    referee: PublicKey,
    referee_known: bool,
    /// True if the game is about a receipt.
    of_receipt: bool,
    /// What parties claim, and compare, in the plural.
    claimed: &'static str,
}

impl Parties {
    /// The parties of a game whose terms are one's own.
    pub fn own(rules: &Rules) -> Parties {
        let (keys, of_receipt) = (rules.parties.clone(), rules.traces().is_some());
        let (known, referee) = (vec![true; keys.len()], rules.referee.clone());
        let claimed = match (of_receipt, rules.is_of_predictions()) {
            (false, _) => "records",
            (true, false) => "passes and rows of the answer",
            (true, true) => "passes and logits of the samples",
        };
        Parties { keys, known, referee, referee_known: true, of_receipt, claimed }
    }

    /// The parties of a game that somebody else tells of: nobody is known yet.
    pub fn told(rules: &Rules) -> Parties {
        let mut parties = Parties::own(rules);
        parties.known.fill(false);
        parties.referee_known = false;
        parties
    }

    /// Knows a party by its key.
    ///
    /// # Errors
    /// If no party has it: then the file is about somebody else (exit 4).
    pub fn know(&mut self, key: &PublicKey) -> Result<(), Failure> {
        match self.keys.iter().position(|party| party.bytes() == key.bytes()) {
            Some(party) => self.known[party] = true,
            None => return Err(self.another("party", key)),
        }
        Ok(())
    }

    /// Knows the trainer by its key: in the logged profile the first party.
    ///
    /// # Errors
    /// As [`know`](Parties::know), and if the game is about a receipt, which no trainer signed.
    pub fn know_trainer(&mut self, rules: &Rules, key: &PublicKey) -> Result<(), Failure> {
        if self.of_receipt {
            let why = "--trainer-key is for verdicts on a run; this game is about a receipt: name the parties by --party-key";
            return Err(Failure::new(Exit::Usage, why));
        }
        if rules.is_logged() && self.keys.first().is_none_or(|first| first.bytes() != key.bytes()) {
            return Err(self.another("trainer", key));
        }
        self.know(key)
    }

    /// Knows the signer of the receipt by its key: the first party.
    ///
    /// # Errors
    /// As [`know`](Parties::know), and if the game is about a run.
    pub fn know_signer(&mut self, key: &PublicKey) -> Result<(), Failure> {
        if !self.of_receipt {
            let why = "--signer-key is for verdicts on a receipt; this game is about a run: name the parties by --party-key";
            return Err(Failure::new(Exit::Usage, why));
        }
        if self.keys.first().is_none_or(|first| first.bytes() != key.bytes()) {
            return Err(self.another("signer", key));
        }
        self.know(key)
    }

    /// What parties claim, and compare, in the plural.
    pub fn claimed(&self) -> &'static str {
        self.claimed
    }

    /// Knows the referee by its key.
    ///
    /// # Errors
    /// If the terms name another referee (exit 4).
    pub fn know_referee(&mut self, key: &PublicKey) -> Result<(), Failure> {
        if key.bytes() != self.referee.bytes() {
            let (named, given) = (self.referee.identified(), key.identified());
            let why = format!("the terms name another referee, {named}; the one that is given is {given}");
            return Err(Failure::new(Exit::Malformed, why));
        }
        self.referee_known = true;
        Ok(())
    }

    fn another(&self, role: &str, key: &PublicKey) -> Failure {
        let named: Vec<String> = self.keys.iter().map(PublicKey::identified).collect();
        let namesake = match self.keys.iter().any(|party| party.name() == key.name()) {
            true => "; a party has the same name and another key",
            false => "",
        };
        let why = format!(
            "the terms name no {role} with the key of {}; the parties are {}{namesake}",
            key.identified(),
            named.join(", ")
        );
        Failure::new(Exit::Malformed, why)
    }

    /// A party for people: its name only where its key is known.
    pub fn name(&self, party: usize) -> String {
        match (self.keys.get(party), self.known.get(party)) {
            (Some(key), Some(true)) => key.identified(),
            (Some(key), _) => format!(
                "key {}, which you did not name and which calls itself {}",
                key.fingerprint(),
                key.name()
            ),
            (None, _) => String::new(),
        }
    }

    fn is_known(&self, party: usize) -> bool {
        self.known.get(party) == Some(&true)
    }

    /// True if a loss says something of somebody known: a conviction follows from what the party signed, a forfeit from the word of a known referee.
    pub fn counts(&self, loss: &Loss) -> bool {
        self.is_known(loss.party) && (loss.reason.convicts() || self.referee_known)
    }

    /// True if somebody known is convicted.
    pub fn convicts(&self, result: &GameResult) -> bool {
        result.losses().any(|loss| loss.reason.convicts() && self.is_known(loss.party))
    }

    /// The exit code of a result.
    pub fn exit(&self, result: &GameResult) -> Exit {
        let losses: Vec<&Loss> = result.losses().collect();
        if self.convicts(result) {
            Exit::Diverges
        } else if losses.iter().any(|loss| self.counts(loss)) {
            Exit::Forfeit
        } else if losses.is_empty() && result.upheld.is_some() && result.games.is_empty() {
            Exit::Match
        } else {
            Exit::Undecided
        }
    }

    /// A result for people; the first line says it.
    pub fn lines(&self, result: &GameResult) -> Vec<String> {
        let name = |party: usize| format!("party {party} ({})", self.name(party));
        let mut lines = Vec::new();
        let losses: Vec<&Loss> = result.losses().collect();
        if !losses.is_empty() && !losses.iter().any(|loss| self.counts(loss)) {
            lines.push(match losses.iter().any(|loss| self.is_known(loss.party)) {
                true => {
                    "no conviction: forfeits are the word of a referee that you did not name (--referee-key)"
                        .into()
                }
                false => {
                    "no conviction of anybody known: this is about keys that you did not name (--party-key)"
                        .into()
                }
            });
        }
        for loss in losses {
            let lost = match (loss.reason.convicts(), self.counts(loss)) {
                (true, true) => "CONVICTED",
                (false, true) => "FORFEITED",
                (true, false) => "shown wrong",
                (false, false) => "said to have forfeited",
            };
            lines.push(format!("{}: {lost}, {}: {}", name(loss.party), loss.reason.name(), loss.what));
        }
        for game in &result.games {
            if let Some(why) = &game.incomplete_log {
                let [a, b] = game.parties.map(name);
                lines.push(format!("{a} against {b} is not decided: {why}"));
            }
        }
        if lines.is_empty() {
            lines.push(format!("nobody lost: the parties agree on all {}", self.claimed()));
        }
        let remaining: Vec<String> = result.remaining.iter().map(|party| name(*party)).collect();
        lines.push(match (remaining.is_empty(), result.upheld) {
            (true, _) => "  nobody remains".into(),
            (false, Some(root)) => {
                format!("  nothing was found against {}; root {root}", remaining.join(", "))
            }
            (false, None) => {
                let claimed = self.claimed();
                format!("  nothing was found against {}, who claim different {claimed}", remaining.join(", "))
            }
        });
        lines.extend(self.namesakes().iter().map(|line| format!("  {line}")));
        lines
    }

    /// Parties that have one name and different keys, a line each.
    pub fn namesakes(&self) -> Vec<String> {
        let same = |i: usize| (0..i).find(|&j| self.keys[j].name() == self.keys[i].name());
        let line = |(j, i): (usize, usize)| {
            format!(
                "parties {j} and {i} call themselves {} alike: tell them apart by their keys, {} and {}",
                self.keys[i].name(),
                self.keys[j].fingerprint(),
                self.keys[i].fingerprint()
            )
        };
        (1..self.keys.len()).filter_map(|i| Some((same(i)?, i))).map(line).collect()
    }

    /// The referee's signature, in a line.
    pub fn referee_line(&self, events: usize) -> String {
        let known = if self.referee_known { "" } else { ", which you did not name" };
        format!(
            "signed by the referee {}{known}; {events} events played again give this result",
            self.referee.identified()
        )
    }

    /// Parties and referee for scripts.
    pub fn json(&self) -> Value {
        let of = |key: &PublicKey, known: bool| json!({ "name": key.name(), "key": key.to_text(), "fingerprint": key.fingerprint(), "named": known });
        let parties: Vec<Value> =
            self.keys.iter().zip(&self.known).map(|(key, known)| of(key, *known)).collect();
        json!({ "parties": parties, "referee": of(&self.referee, self.referee_known) })
    }
}

/// A result for programs: as a verdict's file holds it, with the kind of each loss and of what is not decided.
pub fn result_json(result: &GameResult) -> Value {
    let kinds = |told: &mut Value, losses: &[Loss]| {
        for (told, loss) in told.as_array_mut().into_iter().flatten().zip(losses) {
            told["kind"] = json!(loss.what.kind());
        }
    };
    let mut value = json!(result);
    kinds(&mut value["absent"], &result.absent);
    for (told, game) in value["games"].as_array_mut().into_iter().flatten().zip(&result.games) {
        kinds(&mut told["losses"], &game.losses);
        told["incomplete_log_kind"] = json!(game.incomplete_log.as_ref().map(Unsettled::kind));
    }
    value
}
