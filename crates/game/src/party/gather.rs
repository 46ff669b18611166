//! A challenger without the trainer's folder: gets the rounding logs through the game, replays the run under them, and then
//! plays.
//!
//! The question alone decides which part comes next, and it carries the part before. So a challenger that was stopped gives the
//! same answer again. Parts are on disk before the next one is requested.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::challenger::replay;
use super::error::PartyError;
use super::{Party, QUESTION_MAX, agreement};
use tiebreak_contract::program::encoding::encode;
use tiebreak_dispute::game::logs::{Unfit, verified};
use tiebreak_dispute::game::message::{
    Answer, Answered, Asked, LogPlace, Question, SUPPLY_SLICES, Sealed, Supplied,
};
use tiebreak_dispute::game::moves::CARRIED_MAX;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::run_rules::RunRules;
use tiebreak_dispute::game::terms::{Claim, Terms};
use tiebreak_engine::Engine;
use tiebreak_engine::reference::Reference;
use tiebreak_job::computation::Computation;
use tiebreak_job::identity::RunSummary;
use tiebreak_job::initial::{Drawn, InitialOrigin};
use tiebreak_job::manifest::{GroupTree, files_root};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::state::{state_digest, tensor_digests};
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::rounding::codec::unreadable;
use tiebreak_record::rounding::log::{Log, elements, misplaced, parts, root as log_root};
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::create::{NewRun, check_unused, create};
use tiebreak_run::run::data::manifest;
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::{RunError, Store, Stored, initial, names};

/// The inputs of a challenger.
pub struct Gathering {
    /// The terms of the game.
    pub terms: Terms,
    /// The store of the challenger's own run.
    pub out: Arc<dyn Store>,
    /// Folders with the job's data files.
    pub data: Vec<PathBuf>,
    /// The files of weights that the run begins from, in the job's order.
    pub weights: Vec<PathBuf>,
    /// The earlier run that the disputed one continues, as somebody replayed it; its last state is used.
    pub earlier: Option<PathBuf>,
    /// The challenger's key.
    pub key: PrivateKey,
    /// The engine that replays run on.
    pub engine: Box<dyn Engine>,
    /// Receives each step that was replayed.
    pub progress: Box<dyn FnMut(u32) + Send>,
}

/// Why terms about a receipt are refused.
const NO_RUN: &str = "the terms are about a receipt, and a challenger of a run was started";

/// A challenger that gets the trainer's logs through the game.
pub struct Gatherer {
    rules: Rules,
    run: Run,
    with: Gathering,
    party: Option<Party>,
}

impl Gatherer {
    /// A challenger for these terms: its run is new, or as an interruption left it.
    ///
    /// # Errors
    /// If the terms are malformed or of the exact profile, the data or weights are not those of the terms or are not there, or
    /// the run cannot be written.
    pub fn open(with: Gathering) -> Result<Gatherer, PartyError> {
        agreement::names(&with.terms, &with.key.public())?;
        let rules = Rules::new(&with.terms)?;
        // The run is made from the terms, so the terms' statements on the initial state are derived again.
        rules.check_initial()?;
        if !rules.is_logged() {
            let why =
                "these terms are of the exact profile, in which a party trains by itself: `tiebreak train`";
            return Err(PartyError::Refused(why.into()));
        }
        let run = begun(&with)?;
        Ok(Gatherer { rules, run, with, party: None })
    }

    /// The signed answer to a question in its received bytes, as from [`Party::reply`]. The answer to [`Question::Commit`] takes
    /// a replay of the run.
    ///
    /// # Errors
    /// As [`Party::reply`]; or if a question carries a part that is not the trainer's, or the folder cannot be written.
    pub fn reply(&mut self, sealed_question: &[u8]) -> Result<Vec<u8>, PartyError> {
        let asked = Asked::read(sealed_question, CARRIED_MAX, &self.rules.referee, &self.rules.game)?;
        let Question::Logs { .. } = asked.question else {
            if sealed_question.len() as u64 > QUESTION_MAX {
                return Err(Malformed::TooLarge { what: "question", limit: QUESTION_MAX }.into());
            }
            return self.party()?.reply(sealed_question);
        };
        let answer = match &asked.carried {
            None => Answer::Logs { lacks: Some(LogPlace { step: 1, first: 0 }) },
            Some(part) => self.take(part)?,
        };
        let (game, turn, question) = (asked.game, asked.turn, asked.digest());
        Ok(Sealed::new(Answered { game, turn, question, answer }, &self.with.key).to_bytes())
    }

    /// Stores a part, and returns the answer that names the next missing part.
    fn take(&mut self, part: &Supplied) -> Result<Answer, PartyError> {
        let step = u32::try_from(part.record.index).unwrap_or(0);
        let place = LogPlace { step, first: part.log.slices.first().map_or(0, |slice| *slice as u64) };
        let (root, count) = verified(self.disputed()?, place, part).map_err(|unfit| match unfit {
            Unfit::Committed(why) => Malformed::invalid("supply of a log", why.to_string()),
            Unfit::Other(why) => why,
        })?;
        let log = self.run.at(names::log(step));
        let partial = self.run.at(names::partial(&names::log(step)));
        if log.is_here() && self.run.rounding_log(step).map_or(true, |log| log.root() != root) {
            let why = "holds logs of other records than those that the terms dispute: choose another folder";
            return Err(PartyError::Refused(format!("{} {why}", self.with.out.place())));
        }
        if !log.is_here() {
            append(&partial, place.first * SLICE_BYTES as u64, &part.log.bytes.0)?;
        }
        let next = place.first + SUPPLY_SLICES;
        if next < count {
            return Ok(Answer::Logs { lacks: Some(LogPlace { step, first: next }) });
        }
        if !log.is_here() {
            let bytes = partial.read(self.disputed()?.log_max())?;
            let found = log_root(&bytes);
            if found != root {
                let roots = found.not(&root);
                let why = format!(
                    "the parts do not give the log that the trainer commits, but {roots}: remove the folder and begin again"
                );
                return Err(RunError::invalid(partial.path(), why).into());
            }
            let program = self.disputed()?.program();
            if let Some(part) = misplaced(&bytes, parts(program)) {
                return Ok(Answer::Unreadable { step, part: part as u32, block: 0 });
            }
            let opened = Log::open(bytes, parts(program))?;
            let odd = |part: usize| Some((part, unreadable(opened.part(part), elements(program, part))?));
            if let Some((part, block)) = (0..parts(program)).find_map(odd) {
                return Ok(Answer::Unreadable { step, part: part as u32, block });
            }
            log.replace(opened.bytes())?;
            if partial.is_here() {
                partial.remove()?;
            }
        }
        let steps = self.run.job().steps;
        Ok(Answer::Logs { lacks: (step < steps).then_some(LogPlace { step: step + 1, first: 0 }) })
    }

    /// The rules of the disputed run.
    fn disputed(&self) -> Result<&RunRules, PartyError> {
        self.rules.run().ok_or_else(|| PartyError::Refused(NO_RUN.into()))
    }

    /// The party, after a replay of the run.
    fn party(&mut self) -> Result<&mut Party, PartyError> {
        if self.party.is_none() {
            let run = open(&self.with)?;
            let progress = &mut self.with.progress;
            let run = replay(run, self.with.engine.as_mut(), |_, _| Ok(()), progress)?;
            // A party has an engine of its own; the gatherer's engine is not needed any more.
            let engine = std::mem::replace(&mut self.with.engine, Box::new(Reference));
            let Gathering { terms, key, .. } = &self.with;
            self.party = Some(Party::open(terms.clone(), run, key.clone(), engine)?);
        }
        self.party.as_mut().ok_or_else(|| PartyError::Refused("there is no party".into()))
    }
}

/// Appends to a file that has at least `at` bytes; bytes beyond `at` are cut off first.
fn append(file: &Stored, at: u64, bytes: &[u8]) -> Result<(), PartyError> {
    let length = file.length_or_0()?;
    if length < at {
        let why = format!(
            "it has {length} bytes, and the parts before have {at}: remove the folder and begin again"
        );
        return Err(RunError::invalid(file.path(), why).into());
    }
    if length > at {
        file.truncate(at)?;
    }
    file.append(bytes)?;
    Ok(file.sync()?)
}

/// The challenger's run, with its data.
fn open(with: &Gathering) -> Result<Run, PartyError> {
    Ok(Run::of(with.out.clone())?.with_data(with.data.clone()))
}

/// The challenger's run, made from the terms and the data.
fn begun(with: &Gathering) -> Result<Run, PartyError> {
    let out = &with.out;
    let refused = |why: &str| Err(PartyError::Refused(why.into()));
    if !Stored::new(out, Path::new(&out.place()), names::RUN_JSON).is_here() {
        check_unused(&**out, false)?;
        make(with)?;
    }
    let run = open(with)?;
    if with.terms.claim.as_ref().and_then(|claim| with.terms.claimed(claim)) != Some(run.file.summary()) {
        return refused(&format!("{} is of another run: choose another folder", out.place()));
    }
    Ok(run)
}

fn make(with: &Gathering) -> Result<(), PartyError> {
    let terms = &with.terms;
    let refused = |why: String| PartyError::Refused(why);
    let bytes = terms.program.as_ref().map(|program| program.0.as_slice());
    let summary = terms.computation.clone().ok_or_else(|| refused(NO_RUN.into()))?;
    let named = summary.data;
    let computation = Computation::derive("the job of the terms", &terms.job, bytes, summary)
        .map_err(|why| refused(why.to_string()))?;
    let Computation { job, program, .. } = &computation;
    let mut sources: Vec<(PathBuf, GroupTree)> = Vec::new();
    let mut data = Vec::new();
    for name in job.data.files.paths() {
        let path = found(name, &with.data)?;
        let (file, tree) = manifest(&path)?;
        data.push(file);
        sources.push((path, tree));
    }
    let claim = terms.claim.as_ref().ok_or_else(|| refused("the terms have no claim".into()))?;
    let root = files_root(&data);
    if root != named {
        let roots = root.not(&named);
        return Err(refused(format!(
            "the data files are others than those of the disputed run: their root is {roots}"
        )));
    }
    let (table, state) = (program.state(), initial_state(with, &computation, claim)?);
    let RunSummary { contract, trainer_key, challenge, nonce, program: digest, initial, origin, .. } =
        terms.claimed(claim).ok_or_else(|| refused(NO_RUN.into()))?;
    let file = RunFile {
        contract,
        trainer_key,
        challenge,
        nonce,
        program: digest,
        initial,
        origin,
        data,
        salts: None,
    };
    let trees: Vec<Vec<u8>> = sources.iter().map(|(_, tree)| tree.encode()).collect();
    let new = NewRun {
        named: names::RUN_JSON,
        file: &file,
        job_text: &terms.job,
        program: &encode(program),
        network: None,
        logged: true,
        trees: &trees,
        copied: sources.iter().map(|(path, _)| path.into()).filter(|_| job.data.copy).collect(),
        initial: state.as_ref().map(|state| (&table[..], &state[..])),
        companions: &Companions::default(),
    };
    Ok(create(&with.out, &new)?)
}

/// The initial state that files of weights or an earlier run give, after checking that the terms name it; `None` for the seed's.
fn initial_state(
    with: &Gathering,
    computation: &Computation,
    claim: &Claim,
) -> Result<Option<Vec<Vec<u8>>>, PartyError> {
    let Gathering { weights, .. } = with;
    let Computation { job, program, .. } = computation;
    let refused = |why: String| PartyError::Refused(why);
    let state = match &claim.run.origin {
        InitialOrigin::Seed => None,
        InitialOrigin::Weights { files } => {
            let given =
                weights.iter().map(|path| Ok(manifest(path)?.0)).collect::<Result<Vec<_>, RunError>>()?;
            if given != *files {
                let first = (0..).find(|&number| given.get(number) != files.get(number)).unwrap_or(0);
                return Err(refused(format!(
                    "the files of weights are others than those of the disputed run: {} are given, it has {}, and number {first} is another",
                    given.len(),
                    files.len()
                )));
            }
            let drawn = Drawn::of(job, computation.key());
            Some(initial::from_weights(weights, job, program, &drawn)?)
        }
        InitialOrigin::Run(of) => {
            let folder = with.earlier.as_ref().ok_or_else(|| {
                let why = "the disputed run goes on from an earlier one, whose last state the game does not supply: replay that one and name its folder with --earlier-run";
                refused(why.into())
            })?;
            Some(initial::after(&Run::open(folder)?, program, of.optimizer_state)?)
        }
    };
    let table = program.state();
    let due = computation.summary.initial;
    let found = state.as_ref().map(|state| state_digest(&table, &tensor_digests(&table, state)));
    if let Some(found) = found.filter(|found| *found != due) {
        let why = match claim.run.origin {
            InitialOrigin::Run(_) => {
                "the earlier run's last state is another than that which the disputed run goes on from"
            }
            _ => {
                "the files of weights are those of the disputed run, and give another initial state than it names: its trainer did not begin from them"
            }
        };
        return Err(refused(format!("{why} ({})", found.not(&due))));
    }
    Ok(state)
}

/// A data file by its name, in one of the folders.
fn found(name: &str, folders: &[PathBuf]) -> Result<PathBuf, PartyError> {
    let last = Path::new(name).file_name().unwrap_or_default();
    let places = folders.iter().map(|folder| folder.join(last));
    let there = places.into_iter().find(|path| Stored::from(path).is_here());
    there.ok_or_else(|| {
        PartyError::Refused(format!(
            "the data file {name} is not there: say in which folder with --data FOLDER"
        ))
    })
}
