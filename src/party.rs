//! Parties of a dispute game: answer from a run, challenge, play in one process.
//!
//! Two parties that hold one run end a game without a loser:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! # use std::sync::Arc;
//! # use tiebreak::commit::keys::PrivateKey;
//! # use tiebreak::engine::cpu::Cpu;
//! # use tiebreak::run::Memory;
//! # use tiebreak::train::{Beginning, begin, train};
//! # let folder = tempfile::tempdir()?;
//! # let job = folder.path().join("job.toml");
//! # std::fs::write(&job, job_text)?;
//! # std::fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question")?;
//! # let key = PrivateKey::generate("trainer.example", [7; 32])?;
//! # let memory = Memory::default();
//! # let out = Arc::new(memory.clone());
//! # let beginning = Beginning { job: &job, data_root: None, out, key: Some(&key), challenge: None, logged: false, nonce: [1; 16] };
//! # let run = begin(&beginning)?;
//! # let mut engine = Cpu::new(1)?;
//! # train(&run, &mut engine, Some(&key), &mut tiebreak::train::Silent)?;
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::dispute::game::terms::{Clocks, INCREMENT_MIN, MOVES_MIN, Terms};
//! use tiebreak::engine::reference::Reference;
//! use tiebreak::party::{Party, play};
//! use tiebreak::run::dir::Run;
//!
//! let other = PrivateKey::generate("challenger.example", [8; 32])?;
//! let referee = PrivateKey::generate("referee.example", [9; 32])?;
//! let clocks = Clocks { moves: MOVES_MIN, increment: INCREMENT_MIN, replay: 1 };
//! let job = (run.job_text.clone(), run.program_file.clone());
//! let keys = [key.public(), other.public()];
//! let terms = Terms::new(run.file.summary().computation(), job, &keys, &referee.public(), clocks, Digest([3; 32]));
//! let again = || Run::of(Arc::new(memory.clone()));
//! let mut parties = [
//!     Party::open(terms.clone(), again()?, key, Box::new(Cpu::new(1)?))?,
//!     Party::open(terms.clone(), again()?, other, Box::new(Reference))?,
//! ];
//! let verdict = play(&terms, &referee, &mut parties, |_| {})?;
//! let referee = verdict.check()?;
//! assert_eq!(referee.result().ok_or("the game has ended")?.remaining, [0, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_game::party::{Gatherer, Gathering, Party, PartyError, challenger, play};
