//! The demo's dispute: two providers of one computation, one of whom lied, before a referee that computes one element.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::args::random::random;
use crate::cli::view::escape::one_line;
use crate::cli::view::parties::result_json;
use crate::cli::view::report::{Exit, Failure, Printer, bytes_text};
use tiebreak_dispute::game::terms::{Clocks, Terms};
use tiebreak_dispute::game::verdict::{GAME_VERDICT_MAX, GameVerdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{Party, play};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_train::cheat::Cheat;

/// What the dispute came to.
pub struct GameShown {
    /// Whether the provider who cheated, and nobody else, was convicted.
    pub convicted: bool,
    /// The verdict's file.
    pub file: PathBuf,
    /// The result for scripts.
    pub json: Value,
}

/// Plays the honest run against the one that cheats, and checks the verdict from its file.
///
/// # Errors
/// If a party cannot answer from its run, or the file cannot be written.
pub fn dispute(
    printer: Printer,
    folder: &std::path::Path,
    honest: &Run,
    cheated: &Run,
    cheat: Cheat,
) -> Result<GameShown, Failure> {
    let key = |name: &str| Ok::<_, Failure>(PrivateKey::generate(name, random()?)?);
    let (keys, referee) = ([key("honest.demo")?, key("cheat.demo")?], key("referee.demo")?);
    let public = keys.each_ref().map(PrivateKey::public);
    let clocks = Clocks { moves: 600_000, increment: 10_000, replay: 600_000 };
    let nonce = Digest(random()?);
    let job = (honest.job_text.clone(), honest.program_file.clone());
    let terms =
        Terms::new(honest.file.summary().computation(), job, &public, &referee.public(), clocks, nonce);
    let open = |run: &Run| Run::open(&run.layout.root);
    let [a, b] = keys;
    let mut parties = [
        Party::open(terms.clone(), open(honest)?, a, Box::new(Cpu::new(0)?))?,
        Party::open_cheating(terms.clone(), open(cheated)?, b, Box::new(Cpu::new(0)?), cheat)?,
    ];
    let start = Instant::now();
    let verdict = play(&terms, &referee, &mut parties, |_| {})?;
    let file = folder.join("game-verdict.json");
    Disk::default().replace(&file, &verdict.to_bytes())?;
    let verdict = GameVerdict::from_bytes(&disk::read(&file, GAME_VERDICT_MAX)?)?;
    let again = verdict.check()?;
    let result = again.result().ok_or_else(|| Failure::new(Exit::Undecided, "the game has no result"))?;
    for found in result.games.iter().flat_map(|game| &game.found) {
        printer.say(format!("  {}", one_line(found)));
    }
    let messages: u64 =
        verdict.events.iter().filter_map(|event| Some(event.message.as_ref()?.0.len() as u64)).sum();
    printer.say(format!(
        "  {} answers of {} in {:.1} s",
        verdict.events.len(),
        bytes_text(messages),
        start.elapsed().as_secs_f64()
    ));
    let losses: Vec<_> = result.losses().collect();
    let convicted =
        result.remaining == [0] && losses.iter().all(|loss| loss.party == 1 && loss.reason.convicts());
    for loss in &losses {
        let who = if loss.party == 0 { "THE HONEST PROVIDER LOST" } else { "CONVICTED: the other provider" };
        printer.say(format!("  {who}, {}: {}", loss.reason.name(), one_line(&loss.what.to_string())));
    }
    let json = json!({ "result": result_json(result), "verdict": file, "answers": verdict.events.len(), "bytes": messages });
    Ok(GameShown { convicted, file, json })
}
