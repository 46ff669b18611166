//! The dispute game: terms, messages and verdicts from bytes; a referee that is told any bytes, and any answers under right signatures, ends and
//! convicts nobody who did not contradict itself.
#![no_main]

use std::sync::LazyLock;

use tiebreak::commit::digest::Digest;
use tiebreak::commit::keys::PrivateKey;
use tiebreak::dispute::game::message::{Answer, Answered, Asked, Question, Sealed, Statement, from_bytes, to_bytes};
use tiebreak::dispute::game::referee::Referee;
use tiebreak::dispute::game::terms::{Clocks, Terms};
use tiebreak::dispute::game::verdict::GameVerdict;
use tiebreak::job::Job;
use tiebreak::job::identity::{CONTRACT, RunSummary, program_digest};
use tiebreak::job::initial::InitialOrigin;

const JOB: &str = r#"steps = 2
model = { kind = "mlp", inputs = 3, hidden = [], classes = 2 }
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "f32" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 1e-2 }
schedule = { peak = 0.5 }
batch = { micro_batch = 2, micro_batches = 2 }
"#;

fn key(number: u8) -> PrivateKey {
    PrivateKey::generate("party", [number; 32]).unwrap()
}

static TERMS: LazyLock<Terms> = LazyLock::new(|| {
    let program = program_digest(&Job::parse("job", JOB).unwrap().program(None).unwrap());
    let run = RunSummary {
        contract: CONTRACT.into(),
        trainer_key: None,
        challenge: None,
        nonce: "0".repeat(32),
        program,
        data: Digest([1; 32]),
        initial: Digest([2; 32]),
        origin: InitialOrigin::Seed,
    };
    let clocks = Clocks { moves: 1000, increment: 10, replay: 1000 };
    let parties = [key(1).public(), key(2).public()];
    Terms::new(run, (JOB.into(), None), &parties, &key(3).public(), clocks, Digest([4; 32]))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(terms) = Terms::from_bytes(bytes) {
        assert_eq!(terms.to_bytes(), bytes);
        let _ = Referee::new(&terms);
    }
    if let Ok(verdict) = GameVerdict::from_bytes(bytes) {
        assert!(verdict.check().is_err(), "random bytes are no referee's verdict");
    }
    let _ = Sealed::<Asked>::from_bytes(bytes, 1 << 16, &key(3).public());
    for parsed in [from_bytes::<Question>("question", bytes, 1 << 16).map(|q| to_bytes(&q)), from_bytes::<Statement>("statement", bytes, 1 << 16).map(|s| to_bytes(&s))] {
        assert!(parsed.is_err() || parsed.is_ok_and(|again| again == bytes));
    }
    // Pieces between zeros are what arrives: answers, which get their signatures here, or anything.
    let mut referee = Referee::new(&TERMS).unwrap();
    referee.start(0);
    let mut now = 0;
    for (i, piece) in bytes.split(|&byte| byte == 0).take(64).enumerate() {
        now += 7;
        let party = i % 2;
        let ask = referee.pending().into_iter().find(|ask| ask.party == party);
        let message = match (from_bytes::<Answer>("answer", piece, 1 << 16), ask) {
            (Ok(answer), Some(ask)) => {
                let Asked { game, turn, .. } = ask.asked;
                Sealed::new(Answered { game, turn, question: ask.asked.digest(), answer }, &key(party as u8 + 1)).to_bytes()
            }
            _ => piece.to_vec(),
        };
        referee.receive(party, &message, now);
    }
    referee.tick(u64::MAX);
    assert!(referee.result().is_some(), "time ends every game");
});
