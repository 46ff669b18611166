//! Begins a run: everything about it is derived first, then the run is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::step::Program;
use tiebreak_job::Job;
use tiebreak_job::computation::hidden_seed;
use tiebreak_job::data::Vocabulary;
use tiebreak_job::identity::{CONTRACT, hidden_data, philox_key, program_digest, seed};
use tiebreak_job::initial::{InitialOrigin, seeded_digests};
use tiebreak_job::manifest::files_root;
use tiebreak_job::spec::DataFiles;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::salts::{Kind, SaltKey};
use tiebreak_record::commit::state::{state_digest, tensor_digests};
use tiebreak_run::run::checked::{Checked, Watch};
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::create::{NewRun, check_unused, create};
use tiebreak_run::run::data::{JobData, contents};
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::job_files::refuse_private_key;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{
    JobFiles, RunError, Store, Stored, check_thresholds, evaluation, initial, names, network, read_job,
    read_logged_job, read_program,
};

/// The inputs of a new run.
pub struct Beginning<'a> {
    /// The job file.
    pub job: &'a Path,
    /// A folder whose files the job may name too, besides those in its own.
    pub data_root: Option<&'a Path>,
    /// The store that will keep the run.
    pub out: Arc<dyn Store>,
    /// The key that signs the heads; absent for an unsigned run.
    pub key: Option<&'a PrivateKey>,
    /// Randomness that the trainer did not choose, part of the seed.
    pub challenge: Option<Digest>,
    /// True to train in the logged profile with default thresholds although the job has no `[rounding]`, which is then added to
    /// the run's job.
    pub logged: bool,
    /// A nonce from the system's randomness.
    pub nonce: [u8; 16],
}

/// A run that is derived but not made yet; nothing is written.
pub struct Prepared {
    store: Arc<dyn Store>,
    file: RunFile,
    job: Job,
    job_text: String,
    program: Program,
    data: JobData,
    /// The initial state, if it does not follow from the seed.
    state: Option<Vec<Vec<u8>>>,
    /// The files to evaluate with.
    evaluation: Vec<PathBuf>,
    /// The text of the network file that gave the program.
    network: Option<String>,
    /// The companion files of the model.
    companions: Companions,
    /// The bytes of the trees of the data files.
    trees: Vec<Vec<u8>>,
    /// The key of the salts, of a run that hides.
    salts: Option<SaltKey>,
}

impl Prepared {
    /// Derives a run from its job and reads the files that the job names.
    ///
    /// # Errors
    /// If the folder is in use, the job is wrong, or its thresholds are beyond what native kernels need. Also if the job names
    /// files that it may not reach, its data do not fit, or a file cannot be read.
    pub fn new(beginning: &Beginning) -> Result<Prepared, RunError> {
        Prepared::watched(beginning, &mut |_, _| {})
    }

    /// [`Prepared::new`]; `watch` sees the progress of the pass over ids and labels.
    ///
    /// # Errors
    /// As [`Prepared::new`].
    pub fn watched(beginning: &Beginning, watch: Watch) -> Result<Prepared, RunError> {
        Prepared::of(beginning, None, None, check_thresholds, watch)
    }

    /// [`Prepared::watched`] for a job that reaches these files, with the run's own salt key if its commitments hide.
    ///
    /// # Errors
    /// As [`Prepared::hidden`].
    #[doc(hidden)] // the command's alone
    pub fn reaching(
        beginning: &Beginning,
        files: &JobFiles,
        salts: Option<&SaltKey>,
        watch: Watch,
    ) -> Result<Prepared, RunError> {
        Prepared::of(beginning, Some(files), salts, check_thresholds, watch)
    }

    /// [`Prepared::watched`] for a job whose commitments hide, with the run's own salt key, which no other run has.
    ///
    /// # Errors
    /// As [`Prepared::new`]; also if the commitments of the job do not hide.
    pub fn hidden(beginning: &Beginning, salts: &SaltKey, watch: Watch) -> Result<Prepared, RunError> {
        Prepared::of(beginning, None, Some(salts), check_thresholds, watch)
    }

    fn of(
        beginning: &Beginning,
        reaching: Option<&JobFiles>,
        salts: Option<&SaltKey>,
        check: impl FnOnce(&Path, &Job, &Program) -> Result<(), RunError>,
        watch: Watch,
    ) -> Result<Prepared, RunError> {
        let Beginning { job: job_path, out, key, challenge, logged, nonce, .. } = beginning;
        if Stored::new(out, Path::new(&out.place()), names::RUN_JSON).is_here() {
            let why = "is a run already: go on with --resume, or choose another folder";
            return Err(RunError::Refused(format!("{} {why}", out.place())));
        }
        let (job_text, job) = if *logged { read_logged_job(job_path) } else { read_job(job_path) }?;
        check_unused(&**out, job.network.is_some())?;
        check_salts(job_path, &job, salts)?;
        let files = &reach(beginning, reaching)?;
        let (program, _) = read_program(files, &job)?;
        check(job_path, &job, &program)?;
        let network = network::of_job(files, &job, &program)?;
        let mut data = JobData::open(files, &job, &program)?;
        let companions = Companions::of_job(&job, files)?;
        data.dataset.hold_to(tokenizer(&job, &companions));
        let checked = Checked::of_this_user();
        checked.check(&mut data.dataset, &files_root(&data.manifest), None, watch)?;
        let digest = program_digest(&program);
        let (manifest, trees) = data.committed(salts)?;
        let files_root = files_root(&manifest);
        let seed = match salts {
            None => seed(&job, &digest, &files_root, challenge.as_ref()),
            Some(salts) => {
                let data = hidden_data(&salts.commitment(), &files_root);
                hidden_seed(salts, &job, &digest, &data, challenge.as_ref())
            }
        };
        data.sample(&job, &program, philox_key(&seed))?;
        let table = program.state();
        let (digests, origin, state) = first_state(&job, &program, files, philox_key(&seed))?;
        let digests = salts.map_or(digests.clone(), |salts| salts.each(Kind::State, 0, &digests));
        let file = RunFile {
            contract: CONTRACT.into(),
            trainer_key: key.map(|key| key.public().to_text()),
            challenge: *challenge,
            nonce: nonce.iter().map(|b| format!("{b:02x}")).collect(),
            program: digest,
            initial: state_digest(&table, &digests),
            origin,
            data: manifest,
            salts: salts.map(SaltKey::commitment),
        };
        let evaluation = evaluation_files(files, &job, &program, &companions, watch)?;
        let (store, salts) = (out.clone(), salts.cloned());
        Ok(Prepared {
            store,
            file,
            job,
            job_text,
            program,
            data,
            state,
            evaluation,
            network,
            companions,
            trees,
            salts,
        })
    }

    /// The files that the run will copy, with the number of bytes of each.
    pub fn copied(&self) -> Vec<(&Path, u64)> {
        let data = self.data.copied(&self.job).into_iter().map(|(file, bytes)| (file.path(), bytes));
        data.chain(self.companions.sources()).collect()
    }

    /// Makes the run: job, data and identity.
    ///
    /// # Errors
    /// If a file cannot be read or written. Then no new file is left.
    pub fn create(&self) -> Result<Run, RunError> {
        if self.job.data.copy {
            evaluation::copy(&self.store, &self.evaluation)?;
        }
        let table = self.program.state();
        let new = NewRun {
            named: names::RUN_JSON,
            file: &self.file,
            job_text: &self.job_text,
            program: &encode(&self.program),
            network: self.network.as_deref(),
            logged: self.job.rounding.is_some(),
            trees: &self.trees,
            copied: self.data.copied(&self.job).into_iter().map(|(file, _)| file.clone()).collect(),
            initial: self.state.as_ref().map(|state| (&table[..], &state[..])),
            companions: &self.companions,
        };
        create(&self.store, &new)?;
        let evaluation = self.evaluation.iter().map(|path| Stored::from(path).store());
        let stores = self.data.sources.iter().map(|(file, _)| file.store()).chain(evaluation);
        let salts = self.salts.clone().map_or(Salts::Refused, Salts::Key);
        Ok(Run::of_by(self.store.clone(), salts)?.with_data_at(stores))
    }
}

/// The files that the job of a new run may reach: these, or those that the beginning says.
pub(crate) fn reach(beginning: &Beginning, files: Option<&JobFiles>) -> Result<JobFiles, RunError> {
    files.map_or_else(|| JobFiles::new(beginning.job, beginning.data_root), |files| Ok(files.clone()))
}

/// The digests of the initial state's tensors, the state's origin, and the state itself, if it does not follow from the seed.
pub(crate) type FirstState = (Vec<Digest>, InitialOrigin, Option<Vec<Vec<u8>>>);

/// The initial state of a job.
pub(crate) fn first_state(
    job: &Job,
    program: &Program,
    files: &JobFiles,
    key: [u32; 2],
) -> Result<FirstState, RunError> {
    Ok(match initial::of_job(job, program, files, key)? {
        None => (seeded_digests(program, key, &mut |_| {}), InitialOrigin::Seed, None),
        Some((state, origin)) => (tensor_digests(&program.state(), &state), origin, Some(state)),
    })
}

/// Refuses another key than the one that the run was begun with.
pub(crate) fn check_key(run: &Run, key: Option<&PrivateKey>) -> Result<(), RunError> {
    let given = key.map(|key| key.public().to_text());
    if given != run.file.trainer_key {
        let [given, named] = [&given, &run.file.trainer_key].map(|key| key.as_deref().unwrap_or("no key"));
        let why = format!(
            "the run was begun with another key, or with none: it names {named}, not {given}; give the same --key"
        );
        return Err(RunError::Refused(why));
    }
    Ok(())
}

/// Checks that there is a salt key if the commitments of a job hide, and none otherwise.
fn check_salts(path: &Path, job: &Job, salts: Option<&SaltKey>) -> Result<(), RunError> {
    let why = match (job.hides(), salts) {
        (true, None) => {
            "commit.scheme is 1, and no salt key is given; `tiebreak train` makes one for each run"
        }
        (false, Some(_)) => {
            "commit.scheme is 0, which has no salt key: leave the key out, or set the scheme to 1"
        }
        _ => return Ok(()),
    };
    Err(RunError::Refused(format!("{}: {why}", path.display())))
}

/// The tokenizer that a job's token ids have to fit.
pub fn tokenizer(job: &Job, companions: &Companions) -> Option<Vocabulary> {
    matches!(job.data.files, DataFiles::Tokens { .. }).then(|| companions.vocabulary())?
}

/// The paths of the files that a job names for evaluations, after checking that they fit its model.
///
/// # Errors
/// If one cannot be read, is malformed, does not fit the model, or has an id or a label that the model does not have.
pub fn evaluation_files(
    files: &JobFiles,
    job: &Job,
    program: &Program,
    companions: &Companions,
    watch: Watch,
) -> Result<Vec<PathBuf>, RunError> {
    let Some(names) = job.evaluation.as_ref().and_then(|evaluation| evaluation.files.as_ref()) else {
        return Ok(Vec::new());
    };
    let paths = names.iter().map(|name| files.path("evaluation.files", name));
    let paths = paths.collect::<Result<Vec<PathBuf>, RunError>>()?;
    for path in &paths {
        refuse_private_key(path, contents(path)?)?;
    }
    let spec = job.data.in_files(names).map_err(RunError::Refused)?;
    let mut data = evaluation::open_named(&spec, &paths, &program.sample())?;
    data.dataset.hold_to(tokenizer(job, companions));
    Checked::of_this_user().check(&mut data.dataset, &data.root, None, watch)?;
    Ok(paths)
}

/// Begins a run: job, data and identity.
///
/// # Errors
/// As [`Prepared::new`] and [`Prepared::create`].
pub fn begin(beginning: &Beginning) -> Result<Run, RunError> {
    Prepared::new(beginning)?.create()
}

/// [`begin`] without limits on the job's thresholds: tests use it to play trainers who give themselves too much freedom.
///
/// # Errors
/// As [`begin`].
#[cfg(feature = "testing")]
pub fn begin_with_any_thresholds(beginning: &Beginning) -> Result<Run, RunError> {
    Prepared::of(beginning, None, None, |_, _, _| Ok(()), &mut |_, _| {})?.create()
}
