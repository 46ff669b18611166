//! Runs whose commitments hide: trained, verified, audited and opened by the command, and what their published files do not tell.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tiebreak_engine::cpu::Cpu;
use tiebreak_job::data::{batch_digest, batch_leaves};
use tiebreak_job::initial::seeded_digests;
use tiebreak_job::manifest::{GroupTree, files_root};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord, gradients_root};
use tiebreak_record::commit::salts::SaltKey;
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_record::commit::tensor::{piece_values, root};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::hidden::PUBLISHED;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{Folder, checkpoint, transcript};
use tiebreak_train::cheat::Cheat;
use tiebreak_train::{Beginning, Prepared, Silent, train_as};

use crate::common::edit::{edit, edited};
use crate::common::{self, files, gpt_job, key};
use crate::{output, path};

/// A folder with a job that hides, its data in a folder of their own, and keys.
pub struct Hiding(tempfile::TempDir);

impl Hiding {
    pub fn new() -> Hiding {
        let folder = tempfile::tempdir().unwrap();
        let hiding = Hiding(folder);
        let job = gpt_job(hiding.folder(), "microbatch", "");
        fs::create_dir(hiding.folder().join("private")).unwrap();
        fs::rename(hiding.folder().join("text.txt"), hiding.folder().join("private/text.txt")).unwrap();
        edit(
            &job,
            &[
                ("path = \"text.txt\"", "path = \"private/text.txt\"\ncopy = false"),
                ("head_every = 3", "head_every = 3\nscheme = 1"),
            ],
        );
        fs::write(hiding.folder().join("trainer"), key().to_text()).unwrap();
        fs::write(hiding.folder().join("trainer.pub"), key().public().to_text()).unwrap();
        hiding
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, name: &str) -> String {
        path(self.folder(), name)
    }

    /// Trains a run of this name by the command.
    pub fn train(&self, name: &str) -> String {
        let run = self.at(name);
        let (code, _, stderr) =
            output(&["train", &self.at("job.toml"), "--out", &run, "--key", &self.at("trainer")]);
        assert_eq!(code, 0, "{stderr}");
        assert!(stderr.contains(&format!("the run's salt key is {run}.salt-key")), "{stderr}");
        run
    }

    /// The published files of a run, in a folder of their own.
    pub fn publish(&self, run: &str, name: &str) -> String {
        let public = self.at(name);
        fs::create_dir(&public).unwrap();
        for name in PUBLISHED {
            let (from, to) = (Path::new(run).join(name), Path::new(&public).join(name));
            if from.is_dir() {
                fs::create_dir(&to).unwrap();
                for file in fs::read_dir(&from).unwrap().map(|file| file.unwrap().path()) {
                    fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
                }
            } else if from.exists() {
                fs::copy(&from, &to).unwrap();
            }
        }
        public
    }

    /// The run by its salt key, which lies beside it.
    pub fn opened(&self, run: &str) -> Run {
        let text = fs::read_to_string(format!("{run}.salt-key")).unwrap();
        let key = SaltKey::from_text(&text).unwrap();
        Run::open_by(Path::new(run), Salts::Key(key)).unwrap().with_data([self.folder().join("private")])
    }

    /// The root of the data that somebody guesses, as `tiebreak job check` prints it.
    pub fn guess(&self) -> String {
        let told = output(&["job", "check", &self.at("job.toml"), "--json"]).1;
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["data"].as_str().unwrap().to_string()
    }
}

fn steps(run: &Run) -> Vec<StepRecord> {
    let records = transcript::read(&run.layout.transcript()).unwrap().0.records;
    let step = |record| match record {
        Record::Step { step, .. } => Some(step),
        _ => None,
    };
    records.into_iter().filter_map(step).collect()
}

/// Runs the command: its exit code, and texts that it says.
#[track_caller]
pub fn ends(args: &[&str], code: i32, says: &[&str]) -> String {
    let (found, stdout, stderr) = output(args);
    let text = stdout + &stderr;
    assert_eq!(found, code, "{args:?}: {text}");
    says.iter().for_each(|says| assert!(text.contains(says), "{args:?}: no {says:?} in {text}"));
    text
}

#[test]
fn a_run_that_hides_is_verified_without_its_key_and_audited_with_it() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let (salts, data, public) = (format!("{run}.salt-key"), hiding.at("private"), hiding.at("trainer.pub"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&salts).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let secret = fs::read_to_string(&salts).unwrap();
    for (name, bytes) in files(Path::new(&run)) {
        let found = String::from_utf8_lossy(&bytes).contains(&secret[9..40]);
        assert!(!found, "{} has the key", name.display());
    }
    // The index needs no key, and has the files that everybody may have. A network file is none of a job that names none.
    let foreign = Path::new(&run).join("network.json");
    fs::write(&foreign, "{\"password\": \"secret\"}").unwrap();
    ends(&["publish", &run], 0, &["index lists "]);
    fs::remove_file(foreign).unwrap();
    let index = fs::read_to_string(Path::new(&run).join("index")).unwrap();
    assert!(!index.contains("network.json"), "{index}");
    let tops = index.lines().skip(1).map(|line| line.split([' ', '/']).nth(1).unwrap());
    assert!(index.contains(" heads/") && tops.clone().all(|top| PUBLISHED.contains(&top)), "{index}");
    fs::remove_file(Path::new(&run).join("index")).unwrap();
    let with_key = ["verify", &run, "--trainer-key", &public];
    ends(&with_key, 0, &["record 0 is the initial state that the seed gives", "the released model agree"]);
    let audit = ["audit", &run, "--trainer-key", &public, "--data", &data];
    let page = hiding.at("page.html");
    let audited = [&audit[..], &["--page", &page]].concat();
    ends(&audited, 0, &["MATCHES: run", "batches of all steps follow from seed and data"]);
    assert!(fs::read_to_string(&page).unwrap().contains("length hidden"));
    ends(
        &[&audit[..], &["--expect-data", &hiding.guess()]].concat(),
        0,
        &["the data are those of --expect-data"],
    );
    ends(&[&audit[..], &["--expect-data", &"1".repeat(64)]].concat(), 1, &["the run is of other data"]);
    ends(&["audit", &run, "--data", hiding.folder().to_str().unwrap()], 2, &["say where it is with --data"]);

    // The key in another place, and other keys.
    let moved = hiding.at("elsewhere");
    fs::rename(&salts, &moved).unwrap();
    let shows = "shows what the commitments hide, and is not for everybody: checkpoints, data";
    let text = ends(&["verify", &run], 0, &["consistent", "gradients of 8 steps", shows, "--salt-key FILE"]);
    assert!(!text.contains("the initial state that the seed gives"), "{text}");
    ends(&["audit", &run, "--data", &data], 2, &["its salt key is not at hand", "--salt-key FILE"]);
    ends(&["audit", &run, "--data", &data, "--salt-key", &moved], 0, &["MATCHES"]);
    let other = hiding.at("other");
    fs::write(&other, SaltKey::new([1; 32]).to_text()).unwrap();
    ends(&["verify", &run, "--salt-key", &other], 2, &["the salt key is not the one that run.json names"]);
    fs::write(&other, "SALT+KEY+12").unwrap();
    let text = ends(&["verify", &run, "--salt-key", &other], 4, &["it has 2 characters"]);
    assert!(!text.contains("SALT+KEY+12"), "{text}");
    fs::rename(&moved, &salts).unwrap();

    // A run in another folder has a key of its own; no key is written over.
    let job = hiding.at("job.toml");
    let begun = ["train", &job, "--out", &hiding.at("second"), "--salt-key", &salts];
    ends(&begun, 2, &["is there already, and each run has a salt key of its own"]);
    assert!(!Path::new(&hiding.at("second")).join("run.json").exists());
    assert_eq!(fs::read_to_string(&salts).unwrap(), secret);
    let inside = path(Path::new(&hiding.at("third")), "salts");
    ends(
        &["train", &job, "--out", &hiding.at("third"), "--salt-key", &inside],
        2,
        &["does not belong there"],
    );
    // A key is no data.
    let text = fs::read_to_string(&job).unwrap();
    let as_data = hiding.at("leak.toml");
    fs::write(&as_data, edited(&text, &[("private/text.txt", "run.salt-key")])).unwrap();
    ends(&["train", &as_data, "--out", &hiding.at("fourth")], 2, &["it holds a private key"]);
    assert!(!Path::new(&hiding.at("fourth.salt-key")).exists(), "a run that was not begun leaves no key");
}

#[test]
fn an_interrupted_run_that_hides_goes_on_to_the_same_bits() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let whole = files(Path::new(&run));
    let opened = hiding.opened(&run);
    for file in [opened.layout.model(), opened.layout.checkpoint(8), opened.layout.checkpoint(6)] {
        fs::remove_file(file).unwrap();
    }
    for size in [10, 7] {
        fs::remove_file(opened.layout.head(size)).unwrap();
    }
    let transcript = fs::read(opened.layout.transcript()).unwrap();
    fs::write(opened.layout.transcript(), &transcript[..transcript.len() - 400]).unwrap();
    let (trainer, data) = (hiding.at("trainer"), hiding.at("private"));
    let resume = ["train", "--out", &run, "--key", &trainer, "--resume", "--data", &data];
    let salts = format!("{run}.salt-key");
    fs::rename(&salts, hiding.at("away")).unwrap();
    ends(&resume, 2, &["its salt key is not at hand"]);
    fs::rename(hiding.at("away"), &salts).unwrap();
    ends(&resume, 0, &["trained 4 steps"]);
    assert_eq!(files(Path::new(&run)), whole);
}

/// All that somebody who guesses the data and knows the job computes from them.
fn guessed(run: &Run) -> BTreeSet<[u8; 32]> {
    let text = fs::read(run.layout.root.join("../private/text.txt")).unwrap();
    let (manifest, tree) = GroupTree::of(&mut text.as_slice()).unwrap();
    let mut digests: BTreeSet<[u8; 32]> = [root(&text), manifest.root.0, files_root(&[manifest]).0].into();
    digests.extend(tree.encode().as_chunks::<32>().0);
    digests.extend(piece_values(&text, 1024));
    digests.extend(text.chunks(1024).map(|slice| *blake3::hash(slice).as_bytes()));
    // Even with the seed, which a guesser has not.
    let (program, mut dataset) = (run.program(), run.dataset().unwrap());
    for step in 1..=run.job().steps {
        let batch = run.batch(&mut dataset, step).unwrap();
        digests.insert(batch_digest(program, &batch).0);
        digests.extend(batch_leaves(program, &batch).into_iter().map(|(_, digest)| digest.0));
    }
    let table = program.state();
    let mut states = vec![seeded_digests(program, run.key(), &mut |_| {})];
    for step in run.checkpoint_steps().unwrap() {
        let state = checkpoint::read(&run.layout.checkpoint(step), &table).unwrap();
        states.push(tensor_digests(&table, &state));
    }
    for state in states {
        let roots = StateRoots::of(&table, &state);
        digests.insert(roots.digest().0);
        digests.extend(roots.0.map(|root| root.0));
        digests.extend(state.into_iter().map(|digest| digest.0));
    }
    // A root over nothing is the same for everybody: of buffers, which this model lacks.
    digests.remove(&StateRoots::of(&[], &[]).0[0].0);
    digests
}

#[test]
fn a_guess_of_the_data_is_nowhere_in_the_published_files() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let public = hiding.publish(&run, "public");
    let opened = hiding.opened(&run);
    let published = files(Path::new(&public));
    assert!(published.len() > 6, "{published:?}");
    let guessed = guessed(&opened);
    assert!(guessed.len() > 100, "{}", guessed.len());
    // A search that finds what is there: the digests that the run does commit.
    let finds = |digest: &[u8; 32]| {
        let hex = Digest(*digest).to_string();
        let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        published.iter().any(|(_, bytes)| has(bytes, digest) || has(bytes, hex.as_bytes()))
    };
    assert!(finds(&opened.file.initial.0) && finds(&opened.file.data[0].root.0));
    assert!(steps(&opened).iter().all(|step| finds(&step.state.0) && finds(&step.batch.0)));
    for digest in &guessed {
        assert!(!finds(digest), "{}", Digest(*digest));
    }
    // Nor are the scalars of a step in its record, nor the length of the file anywhere.
    let shown = opened.shown(&transcript::read(&opened.layout.transcript()).unwrap().0.records);
    for (record, hidden) in shown.iter().zip(steps(&opened)) {
        let Record::Step { step, .. } = record else { panic!("{record:?}") };
        assert!(step.loss != hidden.loss && step.clip != hidden.clip);
        assert!(f32::from_bits(step.loss).is_finite() && step.learning_rate == hidden.learning_rate);
        let roots = opened.gradient_roots(&hidden).unwrap();
        assert_eq!(hidden.gradients, Some(gradients_root(&roots)));
    }
    assert_eq!(opened.file.data[0].bytes, 0);

    // The command tells a right guess and a wrong one alike, in every word.
    let said =
        |guess: &str| ends(&["verify", &public, "--expect-data", guess], 3, &[]).replace(guess, "GUESS");
    let (right, wrong) = (said(&hiding.guess()), said(&"1".repeat(64)));
    assert_eq!(right, wrong);
    assert!(right.contains("--expect-data cannot be decided: the run hides its data"), "{right}");
}

/// The digests in `run.json`, records and gradients of a run.
fn digests(run: &Run) -> BTreeSet<Digest> {
    let json: serde_json::Value = serde_json::from_str(&run.file.text()).unwrap();
    let mut found = BTreeSet::new();
    let mut values = vec![&json];
    while let Some(value) = values.pop() {
        match value {
            serde_json::Value::String(text) => found.extend(text.parse::<Digest>().ok()),
            serde_json::Value::Array(items) => values.extend(items),
            serde_json::Value::Object(fields) => values.extend(fields.values()),
            _ => {}
        }
    }
    for record in transcript::read(&run.layout.transcript()).unwrap().0.records {
        found.insert(*record.computation());
        match record {
            Record::Initial { state, .. } => drop(found.insert(state)),
            Record::Step { step, .. } => {
                found.extend([step.state, step.batch].into_iter().chain(step.gradients));
                found.extend(run.gradient_roots(&step).unwrap());
            }
            Record::Final { roots, .. } => found.extend(roots.0),
        }
    }
    found
}

#[test]
fn two_runs_of_the_same_data_share_no_digest() {
    let hiding = Hiding::new();
    let [first, second] = ["first", "second"].map(|name| hiding.opened(&hiding.train(name)));
    let shared: Vec<Digest> = digests(&first).intersection(&digests(&second)).copied().collect();
    // The program and a root over no buffers say nothing of the data.
    let none = StateRoots::of(&[], &[]).0[0];
    assert!(
        shared.len() == 2 && shared.contains(&first.file.program) && shared.contains(&none),
        "{shared:?}"
    );
    let scalars = |run: &Run| steps(run).into_iter().map(|step| (step.loss, step.clip)).collect::<Vec<_>>();
    assert!(scalars(&first).iter().zip(scalars(&second)).all(|(a, b)| a.0 != b.0 && a.1 != b.1));
    // Within one run: no digest of a batch or a state stands twice, though a learning rate of nothing would keep the state.
    let states: BTreeSet<Digest> = steps(&first).iter().map(|step| step.state).collect();
    assert_eq!(states.len(), 8);
}

#[test]
fn equal_states_of_one_run_look_unequal() {
    let hiding = Hiding::new();
    let job = PathBuf::from(hiding.at("job.toml"));
    let rates = "peak = 1e-2\nwarmup = 3\nfloor = 1e-3";
    edit(
        &job,
        &[(rates, "peak = 1e-30\nwarmup = 0\nfloor = 1e-30"), ("weight_decay = 0.1", "weight_decay = 0.0")],
    );
    edit(
        &job,
        &[(
            "kind = \"adamw\"\nbeta1 = 0.9\nbeta2 = 0.95\nepsilon = 1e-8\nweight_decay = 0.0",
            "kind = \"sgd\"\nmomentum = 0.0\nweight_decay = 0.0",
        )],
    );
    let run = hiding.opened(&hiding.train("still"));
    let table = run.program().state();
    let [one, other] = [2, 4]
        .map(|step| tensor_digests(&table, &checkpoint::read(&run.layout.checkpoint(step), &table).unwrap()));
    let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(same > 0, "the parameters do not move");
    let states: BTreeSet<Digest> = steps(&run).iter().map(|step| step.state).collect();
    assert_eq!(states.len(), 8);
}

#[test]
fn a_cheat_in_a_run_that_hides_is_caught_without_a_verdict() {
    let hiding = Hiding::new();
    let salts = SaltKey::new([3; 32]);
    for (granularity, cheat, step, what) in [
        ("microbatch", "operator@5", 5, "state"),
        ("step", "operator@5", 5, "state"),
        ("microbatch", "learning-rate@4", 4, "state"),
        ("step", "weight-after@5", 5, "state"),
        ("microbatch", "reorder@3", 3, "batch"),
        ("microbatch", "init@1", 0, "initial state"),
    ] {
        let job = hiding.at(&format!("{granularity}.toml"));
        let text = fs::read_to_string(hiding.at("job.toml")).unwrap();
        fs::write(&job, text.replace("\"microbatch\"", &format!("\"{granularity}\""))).unwrap();
        let run = hiding.at(&format!("{granularity}-{cheat}"));
        let (out, key) = (Folder::at(Path::new(&run)), key());
        let (job, key) = (Path::new(&job), Some(&key));
        let beginning =
            Beginning { job, data_root: None, out, key, challenge: None, logged: false, nonce: [9; 16] };
        let begun = Prepared::hidden(&beginning, &salts, &mut |_, _| {}).unwrap().create().unwrap();
        let mut played = cheat.parse::<Cheat>().unwrap();
        train_as(&begun, &mut Cpu::new(2).unwrap(), key, &mut played, &mut Silent).unwrap();
        fs::write(format!("{run}.salt-key"), salts.to_text()).unwrap();
        let verdict = hiding.at("verdict.json");
        let args = ["audit", &run, "--data", &hiding.at("private"), "--verdict", &verdict, "--engine", "cpu"];
        let text = ends(&args, 1, &["no verdict is written", &format!("step {step}"), what]);
        assert!(text.contains("DIVERGES") || text.contains("INCONSISTENT"), "{text}");
        assert!(!Path::new(&verdict).exists(), "{cheat}");
    }
}

/// A change of an opening.
type Change<'a> = &'a dyn Fn(&mut serde_json::Value);

#[test]
fn a_sample_is_opened_and_anybody_checks_it() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let public = hiding.publish(&run, "public");
    let (data, opening) = (hiding.at("private"), hiding.at("opening.json"));
    let text = fs::read(format!("{data}/text.txt")).unwrap();
    let open = |more: &[&str]| {
        let args = [&["reveal", &run, "--data", &data, "--output", &opening], more].concat();
        ends(&args, 0, &["anybody can check it"]);
    };
    open(&["--sample", "3"]);
    let shown = hiding.at("shown");
    let trainer = hiding.at("trainer.pub");
    let check = ["reveal", &public, "--check", &opening, "--trainer-key", &trainer, "--output", &shown];
    ends(&check, 0, &["signed by trainer.example", "bytes 3..16 of data file 0", "OPENS"]);
    assert_eq!(fs::read(&shown).unwrap(), text[3..16]);
    let last = text.len() - 1;
    open(&["--bytes", &format!("{last}..{}", text.len())]);
    ends(&check, 0, &["OPENS"]);
    assert_eq!(fs::read(&shown).unwrap(), text[last..]);
    // A second implementation, from the page alone, finds the same bytes.
    let script = || common::opened_by_script(&public, &opening);
    assert!(script().is_none_or(|found| found.as_deref() == Ok(&text[last..])));
    // No salt but those of its slices is told.
    let told: serde_json::Value = serde_json::from_str(&fs::read_to_string(&opening).unwrap()).unwrap();
    assert_eq!(told["parts"][0]["salts"].as_array().unwrap().len(), 1);

    let honest = fs::read_to_string(&opening).unwrap();
    let edited = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut told = serde_json::from_str(&honest).unwrap();
        change(&mut told);
        fs::write(&opening, told.to_string()).unwrap();
    };
    let forged: [(Change, i32, &str); 7] = [
        (&|told| told["parts"][0]["first"] = 0.into(), 4, "opening: "),
        (&|told| told["parts"][0]["length"] = (text.len() + 1).into(), 4, "opening: "),
        (&|told| told["parts"][0]["salts"][0] = "1".repeat(64).into(), 4, "opening: it gives the file root"),
        (&|told| told["parts"][0]["file"] = 1.into(), 4, "it opens data file 1; the run has 1"),
        (&|told| told["parts"] = serde_json::json!([]), 4, "it has 0 parts"),
        (&|told| told["format"] = "tiebreak opening 2".into(), 4, "its format is \"tiebreak opening 2\""),
        (&|told| told["run"] = "1".repeat(64).into(), 1, "the opening is of another run"),
    ];
    for (change, code, says) in forged {
        edited(change);
        ends(&check, code, &[says]);
        assert!(script().is_none_or(|found| found.is_err()), "{says}");
    }
    fs::write(&opening, &honest[..honest.len() / 2]).unwrap();
    ends(&check, 4, &["opening: "]);
    // Who has no key opens nothing, and a public folder has no data.
    let args = ["reveal", &public, "--data", &data, "--sample", "3", "--output", &opening];
    ends(&args, 2, &["its salt key is not at hand"]);
    let args = ["reveal", &run, "--data", &data, "--sample", "1000000", "--output", &opening];
    ends(&args, 2, &["there is no sample 1000000"]);
}

#[test]
fn what_is_not_for_runs_that_hide_is_refused() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let out = hiding.at("out");
    for args in [
        &["inspect", &run][..],
        &["export", &run, "--output", &out],
        &["compare", &run, &run],
        &["replay", &run, "--step", "1"],
        &["plot", &run, "--output", &out],
        &["eval", &run],
        &["predict", &run],
        &["generate", &run],
        &["monitor", "index", &run, "--out", &out],
        &["monitor", "screen", &run],
    ] {
        let (code, stdout, stderr) = output(args);
        let text = stdout + &stderr;
        assert!(
            code == 2 && text.contains("commit.scheme is 1: the run's commitments hide"),
            "{args:?}: {code} {text}"
        );
    }
    let job = hiding.at("job.toml");
    let train = |more: &[&str], says: &str| {
        let run = hiding.at("refused");
        ends(&[&["train", &job, "--out", &run], more].concat(), 2, &[says]);
        assert!(!Path::new(&run).exists() && !Path::new(&format!("{run}.salt-key")).exists());
    };
    train(&["--ranks", "3"], "train with one rank");
    train(&["--profile", "logged"], "a rounding log shows decisions");
    train(&["--agent", &hiding.at("chip.sock")], "a chip's log has plain digests");
    // A promise is published, and would have what a guess can be tested against.
    let (promises, key) = (hiding.at("promises"), hiding.at("trainer"));
    let promise = ["monitor", "promise", "add", &promises, &job, "--key", &key, "--nonce", &"1".repeat(64)];
    ends(&[&promise[..], &["--round", "7"]].concat(), 2, &["a promise has the plain digest of the data"]);
    assert!(!Path::new(&promises).exists());
    let text = fs::read_to_string(&job).unwrap();
    for (from, to, says) in [
        ("copy = false\n", "", "add copy = false to [data]"),
        ("\"microbatch\"", "\"operator\"", "set commit.granularity to \"microbatch\" or \"step\""),
        ("[checkpoint]", "[rounding]\n[checkpoint]", "leave [rounding] and --profile logged out"),
        ("[checkpoint]", "[init]\nrun = \"run\"\n[checkpoint]", "begin from init.weights, or the seed"),
        ("scheme = 1", "scheme = 2", "commit.scheme"),
    ] {
        fs::write(&job, edited(&text, &[(from, to)])).unwrap();
        train(&[], says);
    }
    // A run that hides nothing has no salt key.
    let plain = edited(&text, &[("scheme = 1", "scheme = 0")]);
    fs::write(&job, plain).unwrap();
    train(&["--salt-key", &hiding.at("salts")], "the job's commitments do not hide");
    let open = hiding.at("open");
    ends(&["train", &job, "--out", &open], 0, &[]);
    let salts = format!("{run}.salt-key");
    ends(&["verify", &open, "--salt-key", &salts], 2, &["the run hides nothing, and has no salt key"]);
    ends(&["reveal", &open, "--sample", "1", "--output", &out], 2, &["the run's commitments do not hide"]);

    // Edited: a run that claims to hide without a key, one that names a key and hides nothing, one that tells a length.
    let json = fs::read_to_string(Path::new(&run).join("run.json")).unwrap();
    let without = json.split(",\n  \"salts\"").next().unwrap().to_string() + "\n}";
    for (text, says) in [
        (without, "it names no salt key, and the job's commit.scheme is 1"),
        (edited(&json, &[("\"bytes\": 0", "\"bytes\": 7")]), "a run that hides tells 0 of each"),
    ] {
        fs::write(Path::new(&run).join("run.json"), text).unwrap();
        ends(&["verify", &run], 4, &[says]);
    }
    let plain = Path::new(&open).join("run.json");
    let json = fs::read_to_string(&plain).unwrap();
    let named = json.strip_suffix("\n}").unwrap().to_string()
        + &format!(",\n  \"salts\": \"{}\"\n}}", "1".repeat(64));
    fs::write(&plain, named).unwrap();
    ends(&["verify", &open], 4, &["commit.scheme is 0; 1 is wanted where a salt key is"]);
}
