//! Checks terms against a party's own run: no field that decides a game is taken over from the author of the terms.

use std::time::Duration;

use super::error::PartyError;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, INCREMENT_MIN, MOVES_MIN, Terms, replay_clock};
use tiebreak_job::Job;
use tiebreak_job::canonical::settings_that_differ;
use tiebreak_job::identity::computation_settings;
use tiebreak_job::initial::Expected;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;

/// A refusal that names the field of the terms, and both values.
fn differs(field: &str, theirs: &str, ours: &str) -> PartyError {
    PartyError::Refused(format!(
        "{field} of the terms is {theirs}, and here it is {ours}: these terms are not of this run"
    ))
}

/// Checks that the terms name a party's key under its own name, and leave it time to answer.
///
/// # Errors
/// If they do not.
pub(super) fn names(terms: &Terms, own: &PublicKey) -> Result<(), PartyError> {
    let (parties, _) = terms.keys()?;
    let Some(named) = parties.iter().find(|party| party.bytes() == own.bytes()) else {
        return Err(PartyError::Refused(format!(
            "the terms name no party with the key {}; they name {}",
            own.to_text(),
            terms.parties.join(", ")
        )));
    };
    if named.name() != own.name() {
        return Err(differs("the name of your key among the parties", named.name(), own.name()));
    }
    let clocks =
        [("moves", terms.clocks.moves, MOVES_MIN), ("increment", terms.clocks.increment, INCREMENT_MIN)];
    match clocks.into_iter().find(|(_, given, least)| given < least) {
        Some((clock, given, least)) => Err(PartyError::Refused(format!(
            "clocks.{clock} of the terms is {given} ms, and a party that anybody can disturb needs at least {least} ms: ask for other terms"
        ))),
        None => Ok(()),
    }
}

/// Checks that the terms leave a party of a game about a receipt the time for its replays: four of its passes, and twice all passes
/// of the answer with the reading of samples, which a commitment takes. A party that is started again reads all samples and computes a
/// pass on the clock of moves.
///
/// # Errors
/// If they do not.
pub(super) fn leaves_time(terms: &Terms, [read, pass, all]: [Duration; 3]) -> Result<(), PartyError> {
    let clocks = [
        (
            "replay",
            terms.clocks.replay,
            pass.saturating_mul(4).max(all.saturating_mul(2)),
            "four passes, or all twice",
        ),
        (
            "moves",
            terms.clocks.moves,
            read.saturating_add(pass).saturating_mul(2),
            "two passes with the reading of samples",
        ),
    ];
    let short = clocks.into_iter().find(|(_, given, need, _)| Duration::from_millis(*given) < *need);
    let Some((clock, given, need, what)) = short else { return Ok(()) };
    let [pass, all, need] = [pass, all, need].map(|time| time.as_micros().div_ceil(1000));
    Err(PartyError::Refused(format!(
        "clocks.{clock} of the terms is {given} ms. This machine takes {pass} ms for a pass of the receipt and {all} ms for all, and needs at \
         least {need} ms ({what}): ask for other terms"
    )))
}

/// Derives every field of the terms that decides a game from the run, and compares it.
///
/// # Errors
/// If a field differs, with its name; if the terms do not hold together; or if the run's own initial state is not the one that
/// its origin gives.
pub(super) fn check(terms: &Terms, run: &Run) -> Result<(), PartyError> {
    let job = Job::of_run("the job of the terms", &terms.job).map_err(|why| PartyError::Refused(why.0))?;
    let Some(computation) = &terms.computation else {
        return Err(PartyError::Refused(
            "the terms are about a receipt, which they hold, and a run was given: give the model that the receipt is of".into(),
        ));
    };
    let theirs = computation_settings(&job, computation);
    let different = settings_that_differ(&theirs, &run.computation.settings());
    if let Some((key, theirs, ours)) = different.first() {
        return Err(differs(key, theirs, ours));
    }
    if let Some(replay) = replay_clock(run.job())
        && replay != terms.clocks.replay
    {
        return Err(differs(
            "clocks.replay",
            &format!("{} ms", terms.clocks.replay),
            &format!("{replay} ms"),
        ));
    }
    if let Some(Claim { run: claimed, .. }) = &terms.claim {
        let ClaimedRun { trainer_key, nonce, origin } = claimed;
        let text = |key: &Option<String>| key.clone().unwrap_or_else(|| "none".into());
        let job = |text: &str| blake3::hash(text.as_bytes()).to_string();
        let fields = [
            ("claim.run.trainer_key", text(trainer_key), text(&run.file.trainer_key)),
            ("claim.run.nonce", nonce.clone(), run.file.nonce.clone()),
            ("claim.run.origin", origin.digest().to_string(), run.file.origin.digest().to_string()),
            ("the text of the job", job(&terms.job), job(&run.job_text)),
        ];
        if let Some((field, theirs, ours)) = fields.into_iter().find(|(_, theirs, ours)| theirs != ours) {
            return Err(differs(field, &theirs, &ours));
        }
    }
    let rules = Rules::new(terms)?;
    if let Some(theirs) = rules.computation()
        && *theirs != run.computation.id
    {
        return Err(differs("the computation", &theirs.to_string(), &run.computation.id.to_string()));
    }
    let origin = &run.file.origin;
    let expected = origin.expected(run.program(), run.key())?;
    if let Expected::State(state) = expected
        && state != run.file.initial
    {
        return Err(PartyError::Refused(format!(
            "{}: its initial state is not the one that {} gives ({}): see `tiebreak verify`",
            run.layout.root.display(),
            origin.source(),
            run.file.initial.not(&state)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tiebreak_dispute::game::terms::{Clocks, DisputedReceipt, Terms};
    use tiebreak_record::commit::digest::Digest;
    use tiebreak_record::commit::keys::PrivateKey;

    use super::leaves_time;

    #[test]
    fn clocks_last_for_passes() {
        let key = PrivateKey::generate("referee.example", [1; 32]).unwrap().public();
        let times = |replay, moves, times: [u64; 3]| {
            let receipt = DisputedReceipt { text: String::new(), opening: None };
            let clocks = Clocks { moves, increment: 1000, replay };
            let terms = Terms::about_receipt(receipt, String::new(), &[], &key, clocks, Digest([0; 32]));
            leaves_time(&terms, times.map(Duration::from_millis))
        };
        for (replay, moves, passes) in [(40, 20, [0, 10, 15]), (100, 20, [0, 10, 50]), (100, 20, [7, 3, 50])]
        {
            assert!(times(replay, moves, passes).is_ok());
            let late = times(replay - 1, moves, passes).unwrap_err().to_string();
            assert!(
                late.starts_with("clocks.replay of the terms is ") && late.contains("at least"),
                "{late}"
            );
            let late = times(replay, moves - 1, passes).unwrap_err().to_string();
            assert!(late.starts_with("clocks.moves of the terms is 19 ms"), "{late}");
        }
    }
}
