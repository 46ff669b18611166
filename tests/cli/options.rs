//! No option is accepted and then ignored: for each one that the parser has, options.txt gives a command line without it, one with it,
//! and a result that only the second one has. An option without a row fails, and so does a row without an option.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use tiebreak_dispute::evidence::binding::state_nodes;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::verdict::{Claim, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{Party, play};
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::promise::log::Promises;
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_record::commit::cosignature::cosigned;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::tensor::tile_range;
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_train::cheat::Cheat;
use tiebreak_train::{Beginning, Silent, begin_with_any_thresholds, train_as};

use crate::common::{edit::edited, gpt_job, key, npy, trained};
use crate::{beacons, chips, matches, tiebreak};

/// The options that all commands have.
const OF_ALL: [&str; 3] = ["json", "quiet", "color"];
/// Commands whose output is a text, which `--quiet` leaves whole.
const DOCUMENTS: [&str; 11] = [
    "adapters",
    "completions",
    "generate",
    "job reference",
    "log calibrate",
    "man",
    "op",
    "program networks",
    "program reference",
    "program show",
    "reference",
];
/// Commands that read no foreign file, though they name one: with the reason.
const OWN_FILES: [(&str, &str); 10] = [
    ("demo", "the folder is written"),
    ("man", "the folder is written"),
    ("selftest", "the folder is written"),
    ("key new", "the files are written"),
    ("monitor nonce", "the file is written"),
    ("job new", "the file is written"),
    ("monitor collector serve", "the database is written, and every request is bounded"),
    ("monitor collector export", "the file is written"),
    ("monitor collector heads", "the file is written"),
    ("witness serve", "the folder is written, and every request is bounded"),
];

/// A command, with the words that lead to it, and its options.
struct Known {
    path: String,
    options: BTreeSet<String>,
    reads_files: bool,
}

/// Every command that does something, by the parser.
fn known() -> Vec<Known> {
    fn collect(path: &str, command: &clap::Command, found: &mut Vec<Known>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            collect(&format!("{path} {}", sub.get_name()), sub, found);
        }
        let arguments = || {
            command
                .get_arguments()
                .filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
        };
        let own = arguments().any(|argument| !OF_ALL.contains(&argument.get_id().as_str()));
        if own || !command.has_subcommands() {
            let is_path = |argument: &clap::Arg| {
                argument.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>()
            };
            found.push(Known {
                path: path.trim_start().to_string(),
                options: arguments().filter_map(clap::Arg::get_long).map(String::from).collect(),
                reads_files: arguments().any(is_path),
            });
        }
    }
    let (mut command, mut found) = (tiebreak::cli::command(), Vec::new());
    command.build();
    collect("", &command, &mut found);
    found
}

/// The proof that an option has an effect.
enum Shown {
    /// Only the second of the two command lines has this result.
    By { without: String, with: String, says: String },
    /// A test of this name.
    Test(String),
}

/// The section of options.txt on a command.
struct Section {
    /// A command line without the options of the section.
    base: String,
    rows: BTreeMap<String, Shown>,
}

/// Reads options.txt. A section begins with `[command] arguments`; `*` stands for them.
fn sections() -> BTreeMap<String, Section> {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/options.txt")).unwrap();
    let mut sections = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((path, arguments)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            current = path.to_string();
            let base = format!("{path} {}", arguments.trim()).trim_end().to_string();
            assert!(
                sections.insert(current.clone(), Section { base, rows: BTreeMap::new() }).is_none(),
                "{line}"
            );
            continue;
        }
        let section: &mut Section = sections.get_mut(&current).expect("a section comes first");
        let (option, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let option = option.strip_prefix("--").unwrap_or_else(|| panic!("{line}")).to_string();
        let shown = match rest.strip_prefix("test ") {
            Some(name) => Shown::Test(name.trim().to_string()),
            None => {
                let (lines, says) = rest.split_once(" ## ").unwrap_or_else(|| panic!("{line}"));
                let (without, with) = lines.split_once(" => ").unwrap_or(("*", lines));
                let whole = |line: &str| match line.trim().strip_prefix('*') {
                    Some(more) => format!("{}{more}", section.base),
                    None => format!("{current} {}", line.trim()),
                };
                Shown::By { without: whole(without), with: whole(with), says: says.trim().to_string() }
            }
        };
        assert!(section.rows.insert(option, shown).is_none(), "{line}: a second row");
    }
    sections
}

/// The proof for options that several commands share, unless the command's section has one.
fn shared(base: &str, option: &str) -> Option<Shown> {
    let by = |more: &str, says: &str| {
        let (without, with) = (base.to_string(), format!("{base} {more}"));
        Some(Shown::By { without, with, says: says.into() })
    };
    match option {
        "max-time" => by("--max-time 0", "--max-time was reached"),
        "max-memory" => by("--max-memory 1", "--max-memory"),
        "engine" => Some(Shown::By {
            without: format!("{base} --threads 1"),
            with: format!("{base} --threads 1 --engine reference"),
            says: "--threads is for the CPU engine".into(),
        }),
        "threads" => by("--threads 99999", "cores; give no more"),
        "adapter" => by("--adapter any", "--adapter names a GPU"),
        "native" => by("--native gemm", "--native is for"),
        _ => None,
    }
}

/// A folder of small jobs, runs, keys and verdicts, in which command lines run.
pub struct World(tempfile::TempDir);

impl World {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command line: exit code, output, and the files that it wrote to OUT, a folder of its own.
    fn outcome(&self, line: &str) -> (Output, String) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let out = format!("out-{}", NUMBER.fetch_add(1, Relaxed));
        fs::create_dir(self.path(&out)).unwrap();
        let id = fs::read_to_string(self.path("run.id")).unwrap_or_default();
        let line = line.replace("OUT", &out).replace("RUNID", &id);
        let arguments: Vec<&str> = line.split_whitespace().collect();
        // No row needs a GPU. Software adapters would compile the shaders of each calibration for half a minute.
        let mut command = tiebreak(&arguments);
        let output = command.current_dir(self.0.path()).env("VK_DRIVER_FILES", "/nowhere").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // How long work has gone on is said from two seconds on, so it depends on the machine; so do the times of an answer.
        let goes_on = |line: &&str| {
            line.contains(" ... ") && (line.ends_with(" s") || line.ends_with(" left"))
                || line.starts_with("the first token after ")
        };
        let steady = |said: String| {
            said.lines().filter(|line| !goes_on(line)).map(|line| format!("{line}\n")).collect::<String>()
        };
        let code = output.status.code().unwrap();
        let mut told = format!("exit {code}\n{}\n{}\n", text(&output.stdout), steady(text(&output.stderr)));
        assert!(!told.contains("panicked"), "{line}: {told}");
        for (name, bytes) in crate::files(&self.path(&out)) {
            told += &format!("file {}\n{}\n", name.display(), text(&bytes[..bytes.len().min(20_000)]));
        }
        fs::remove_dir_all(self.path(&out)).unwrap();
        (output, told.replace(&out, "OUT"))
    }

    fn done(&self, line: &str, code: i32) {
        let (output, told) = self.outcome(line);
        assert_eq!(output.status.code(), Some(code), "{line}: {told}");
    }

    /// A job of eight steps with changes, and a run of it.
    fn trained(&self, name: &str, changes: &[(&str, &str)], cheat: Option<&str>) -> Run {
        let job = self.path(&format!("{name}.toml"));
        fs::write(&job, edited(&fs::read_to_string(self.path("job.toml")).unwrap(), changes)).unwrap();
        trained(&job, &self.path(name), cheat)
    }

    pub fn new() -> World {
        let world = World(tempfile::tempdir().unwrap());
        let at = |name: &str| world.path(name);
        gpt_job(world.0.path(), "operator", "");
        for name in ["trainer", "alice", "bob", "referee"] {
            match name {
                "trainer" => {
                    fs::write(at(name), key().to_text()).unwrap();
                    fs::write(at("trainer.pub"), key().public().to_text()).unwrap();
                }
                name => world.done(&format!("key new {name} --name {name}.example"), 0),
            }
        }
        let (run, cheat) = (world.trained("run", &[], None), world.trained("cheat", &[], Some("operator@5")));
        let by_step = ("\"operator\"", "\"step\"");
        world.trained("step", &[by_step], Some("weight-before@5"));
        let logged = [by_step, ("[checkpoint]", "[rounding]\n[checkpoint]")];
        world.trained("logged", &logged, None);
        world.trained("skipped", &logged, Some("skip@5"));
        world.forged();
        world.trained("elsewhere", &[by_step, ("\"text.txt\"", "\"text.txt\"\ncopy = false")], None);
        world.hiding();
        world.trained("beginning", &[by_step], None);
        for head in ["000000000007", "000000000010"] {
            fs::remove_file(at("beginning/heads").join(head)).unwrap();
        }
        world.trained("unheaded", &[by_step, ("head_every = 3", "head_every = 9")], None);
        fs::remove_file(at("unheaded/heads/000000000010")).unwrap();
        world.done("export run --format safetensors --output exported", 0);
        world.done("export run --output released", 0);
        let weights = "[init]\nweights = [\"exported/model.safetensors\"]\n[checkpoint]";
        world.trained("weights", &[by_step, ("[checkpoint]", weights)], None);
        world.done("audit cheat --verdict tile.json", 1);
        world.done("audit step --verdict step.json", 1);
        world.tile();
        world.files();
        world.reports();
        world.snapshots(&run);
        world.game(&run, &cheat);
        world.chips();
        world.sealed(&run);
        world
    }

    /// Two runs that hide, with their salt keys, and an opening of one.
    fn hiding(&self) {
        let job = fs::read_to_string(self.path("job.toml")).unwrap();
        let hides =
            [("\"operator\"", "\"step\"\nscheme = 1"), ("\"text.txt\"", "\"text.txt\"\ncopy = false")];
        fs::write(self.path("hiding.toml"), edited(&job, &hides)).unwrap();
        for name in ["hiding", "hiding-too"] {
            self.done(&format!("train hiding.toml --out {name} --key trainer --salt-key {name}.salts"), 0);
        }
        self.done("reveal hiding --salt-key hiding.salts --data . --sample 3 --output opening.json", 0);
    }

    /// An unsigned run that begins from another state than its seed gives.
    fn forged(&self) {
        let (job, out) = (&self.path("job.toml"), Folder::at(&self.path("forged")));
        let beginning = Beginning {
            job,
            data_root: None,
            out,
            key: None,
            challenge: None,
            logged: false,
            nonce: [9; 16],
        };
        let run = begin_with_any_thresholds(&beginning).unwrap();
        let mut cheat = "init@1".parse::<Cheat>().unwrap();
        train_as(&run, &mut Cpu::new(2).unwrap(), None, &mut cheat, &mut Silent).unwrap();
    }

    /// A verdict on a tile whose bytes the trainer has, and these bytes.
    fn tile(&self) {
        let run = self.trained("rate", &[], Some("learning-rate@4"));
        let checkpoint = run.layout.checkpoint(4);
        let state = tiebreak_run::run::checkpoint::read(&checkpoint, &run.program().state()).unwrap();
        fs::remove_file(checkpoint).unwrap();
        self.done("audit rate --verdict wide.json", 1);
        let verdict = Verdict::from_bytes(&fs::read(self.path("wide.json")).unwrap()).unwrap();
        let Claim::Tile(claim) = verdict.claim else { panic!("no tile: {:?}", verdict.claim) };
        let tensor = state_nodes(run.program()).iter().position(|&node| node == Some(claim.node)).unwrap();
        let bytes = &state[tensor];
        fs::write(self.path("tile.bin"), &bytes[tile_range(bytes.len(), claim.tile)]).unwrap();
    }

    /// Jobs without a run, data in other folders, and arrays.
    fn files(&self) {
        let job = fs::read_to_string(self.path("job.toml")).unwrap();
        let changed = |name: &str, from: &str, to: &str| {
            fs::write(self.path(name), edited(&job, &[(from, to)])).unwrap();
        };
        changed("other.toml", "steps = 8", "steps = 9");
        changed("nan.toml", "peak = 1e-2\nwarmup = 3\nfloor = 1e-3", "peak = 1e38\nwarmup = 0\nfloor = 1e38");
        changed("calibrated.toml", "[checkpoint]", "[rounding]\n[checkpoint]");
        changed("clocked.toml", "[checkpoint]", "[dispute]\nstep_seconds = 1\n[checkpoint]");
        fs::create_dir_all(self.path("deep/inner")).unwrap();
        fs::copy(self.path("text.txt"), self.path("deep/text.txt")).unwrap();
        changed("deep/inner/job.toml", "\"text.txt\"", "\"../text.txt\"");
        fs::create_dir(self.path("tiebreak-demo")).unwrap();
        fs::write(self.path("network.json"), include_str!("../../assets/networks/mlp.json")).unwrap();
        fs::write(self.path("catalogue.toml"), "[[run]]\nname = \"mine\"\nflop = 2e25\n").unwrap();
        let floats = |count: u32| -> Vec<u8> {
            (0..count).flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes()).collect()
        };
        for (name, shape) in [
            ("a", &[4u32, 8][..]),
            ("b", &[6, 8]),
            ("dy", &[4, 6]),
            ("long", &[4, 128]),
            ("image", &[2, 6, 6, 4]),
            ("kernels", &[4, 3, 3, 4]),
            ("grouped", &[4, 3, 3, 2]),
            ("row", &[8]),
        ] {
            let text: Vec<String> = shape.iter().map(u32::to_string).collect();
            let file = npy("<f4", &format!("({},)", text.join(", ")), &floats(shape.iter().product()));
            fs::write(self.path(&format!("{name}.npy")), file).unwrap();
        }
        let same = |count: usize, value: f32| value.to_le_bytes().repeat(count);
        fs::write(self.path("one.npy"), npy("<f4", "(1,)", &same(1, 0.5))).unwrap();
        fs::write(self.path("halves.npy"), npy("<f4", "(8,)", &same(8, 0.5))).unwrap();
        fs::write(self.path("seed.npy"), npy("<u4", "(2,)", &[7; 8])).unwrap();
        fs::write(self.path("count.npy"), npy("<u4", "(1,)", &[1, 0, 0, 0])).unwrap();
        let labels: Vec<u8> = (0..4u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("labels.npy"), npy("<u4", "(4,)", &labels)).unwrap();
        let tokens: Vec<u8> = (0..12u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("tokens.npy"), npy("<u4", "(1, 12)", &tokens)).unwrap();
    }

    /// A register of chips, the log of one of them, and the draw of others.
    fn chips(&self) {
        let write = |name: &str, bytes: &[u8]| fs::write(self.path(name), bytes).unwrap();
        write("chips.register", to_text(&chips::register(), &key()).as_bytes());
        self.done("monitor register new empty.register --name empty --key trainer", 0);
        beacons::chain(self.0.path());
        write("round.json", beacons::QUICKNET_1000.as_bytes());
        write("more.jsonl", (chips::enter("B-1", 9, 99, None).line() + "\n").as_bytes());
        write("none.jsonl", b"");
        let long = chips::honest();
        write("long.log", &chips::bytes(&long));
        write("chip.log", &chips::bytes(&long[..12]));
        write("heads.txt", chips::closed(&long).to_text().as_bytes());
        write("none.txt", ClosedLogs::default().to_text().as_bytes());
        let until = "--register chips.register --until 2025-04-01";
        self.done(&format!("monitor inspect long.log {until} --seen-out long.seen"), 0);
        write("inspected.json", &self.outcome(&format!("monitor inspect long.log {until} --json")).0.stdout);
        let draw = "monitor draw --register chips.register --closed heads.txt --chips 2 --round 7";
        let beacon = "--beacon 000102030405060708090a0b0c0d0e0f";
        self.done(&format!("{draw} {beacon}"), 0);
        self.done(&format!("{draw} {beacon} --run run --segments 1 --out drawn.json"), 0);
        self.promises();
    }

    /// Two promises of the run's job, the second one cosigned.
    fn promises(&self) {
        for name in ["run.nonce", "again.nonce"] {
            self.done(&format!("monitor nonce {name}"), 0);
            let nonce = format!("--nonce {name} --round 7");
            self.done(&format!("monitor promise add trainer.promises job.toml --key trainer {nonce}"), 0);
        }
        let alice = PrivateKey::from_text(&fs::read_to_string(self.path("alice")).unwrap()).unwrap();
        let at = self.path("trainer.promises");
        let mut log = Promises::from_text(&fs::read_to_string(&at).unwrap()).unwrap();
        let note = cosigned(log.newest().unwrap(), &alice, 1_700_000_000).unwrap();
        log.cosign(note).unwrap();
        fs::write(at, log.to_text()).unwrap();
    }

    /// A box, and packs for it.
    fn sealed(&self, run: &Run) {
        fs::write(self.path("run.id"), run.id.to_string()).unwrap();
        for identity in ["box.identity", "other.identity"] {
            self.done(&format!("monitor box --new-identity {identity}"), 0);
        }
        for (pack, more) in [("run.pack", ""), ("part.pack", "--steps 1..2")] {
            self.done(&format!("monitor pack run --to box.identity.pub --out {pack} {more}"), 0);
        }
    }

    /// Reports of audits, and of evaluations.
    fn reports(&self) {
        for (report, more) in [("one.json", "--steps 1..1 --key alice"), ("two.json", "--steps 2..8")] {
            self.done(&format!("audit run {more} --report {report}"), 0);
        }
        self.done("audit cheat --report bad.json --key alice --verdict bad-verdict.json", 1);
        self.done("eval run --samples 3 --report evaluated.json", 0);
        self.done("generate run --length 3 --seed 1 --receipt receipt.json --key alice", 0);
        self.done("train job.toml --out unsigned -q", 0);
    }

    /// Logs of chips, and a witness's cosignature of a run that a chip saw five seconds before.
    fn snapshots(&self, run: &Run) {
        let elsewhere = Run::open(&self.path("elsewhere")).unwrap();
        let (whole, slices) = (ShardMap::Whole, matches::rank(&elsewhere));
        fs::write(self.path("rank.map"), slices.to_text()).unwrap();
        let log = |name: &str, map: &ShardMap, run: &Run, step, digest| {
            let told = run.computation.id;
            let events = [matches::attach(map, told), matches::snapshot(map, step, digest)];
            matches::write_log(&self.path(name), name, &events);
        };
        log("snapshots.log", &whole, run, 3, matches::states(run)[3]);
        log("early.log", &whole, &elsewhere, 3, matches::states(&elsewhere)[3]);
        log("rank.log", &slices, &elsewhere, 2, matches::shard_digest(&elsewhere, 2, &slices));
        log("wrong.log", &slices, &elsewhere, 3, run.id);
        let (head, alice) = (elsewhere.layout.head(1), fs::read_to_string(self.path("alice")).unwrap());
        let alice = PrivateKey::from_text(&alice).unwrap();
        for (name, text) in [
            ("rules.toml", "[steps]\nmost = 8\n".to_string()),
            ("data.toml", "[[data]]\nname = \"z\"\nmost = 0.9\nsamples = 10\npattern = \"Z\"\n".to_string()),
            ("broken.toml", "[steps]\nmost = 7\n".to_string()),
            ("results.toml", format!("[loss]\nmost = 9\ndata = \"{}\"\n", run.file.summary().data)),
        ] {
            fs::write(self.path(name), text).unwrap();
        }
        for (name, line) in [
            ("rules.json", "monitor rules run rules.toml --json"),
            ("matched.json", "monitor match snapshots.log --run run --json"),
        ] {
            fs::write(self.path(name), self.outcome(line).0.stdout).unwrap();
        }
        self.done("monitor index run elsewhere --out declared.index", 0);
        self.done("monitor statement --report one.json --key alice --out stated.json", 0);
        let note = fs::read_to_string(&head).unwrap();
        fs::write(&head, cosigned(&note, &alice, matches::time(1) / 1000 + 5).unwrap()).unwrap();
    }

    /// Terms, the verdict of a game between an honest run and one that cheats, and the journal of a game that nobody answered.
    fn game(&self, run: &Run, cheat: &Run) {
        let parties = "--party alice.pub --party bob.pub --referee referee.pub";
        self.done(&format!("referee new --run run {parties} --step-time 30 --out terms.json"), 0);
        let clocks = "--replay 1 --moves 5 --increment 1";
        self.done(&format!("referee new --run run {parties} {clocks} --out short.json"), 0);
        fs::create_dir(self.path("nobody")).unwrap();
        fs::create_dir(self.path("no-one")).unwrap();
        self.done("referee short.json --key referee 0=nobody 1=no-one --out forfeits.json", 5);
        let read = |name: &str| PrivateKey::from_text(&fs::read_to_string(self.path(name)).unwrap()).unwrap();
        let terms = Terms::from_bytes(&fs::read(self.path("terms.json")).unwrap()).unwrap();
        let open = |run: &Run| Run::open(&run.layout.root).unwrap();
        let cpu = || Box::new(Cpu::new(1).unwrap());
        let mut parties = [
            Party::open(terms.clone(), open(run), read("alice"), cpu()).unwrap(),
            Party::open_cheating(
                terms.clone(),
                open(cheat),
                read("bob"),
                cpu(),
                "operator@5".parse().unwrap(),
            )
            .unwrap(),
        ];
        let verdict = play(&terms, &read("referee"), &mut parties, |_| {}).unwrap();
        fs::write(self.path("game.json"), verdict.to_bytes()).unwrap();
    }
}

/// True if one of a command line's words is the option.
fn has(line: &str, option: &str) -> bool {
    let short = match option {
        "quiet" => "-q",
        "output" | "out" => "-o",
        _ => "",
    };
    line.split_whitespace().any(|word| word == format!("--{option}") || word == short)
}

/// What command lines without their options had as outcomes, so that those of several rows run once.
type Outcomes = BTreeMap<String, String>;

/// The defect of an option's row, if it has one.
fn wrong(world: &World, known: &mut Outcomes, command: &str, option: &str, shown: &Shown) -> Option<String> {
    let (without, with, says) = match shown {
        Shown::By { without, with, says } => (without, with, says),
        Shown::Test(name) => {
            return (!is_test(name)).then(|| format!("{command} --{option}: there is no test {name}"));
        }
    };
    // An option that is always needed has two values.
    if !has(with, option) || without == with {
        return Some(format!("{command} --{option}: the row does not use it: {with}"));
    }
    let before = known.entry(without.clone()).or_insert_with(|| world.outcome(without).1).clone();
    let after = world.outcome(with).1;
    let shows = match says.as_str() {
        "*" => after != before && world.outcome(without).1 == before,
        _ => after.contains(says) && !before.contains(says),
    };
    (!shows).then(|| format!("{command} --{option}: {says:?} is to be said with it alone\n$ {without}\n{before}$ {with}\n{after}"))
}

/// True if a file of the tests has a function of this name.
fn is_test(name: &str) -> bool {
    static TESTS: LazyLock<String> = LazyLock::new(|| {
        let files = crate::files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
        let rust =
            files.into_iter().filter(|(path, _)| path.extension().is_some_and(|ending| ending == "rs"));
        rust.map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect()
    });
    TESTS.contains(&format!("#[test]\nfn {name}()"))
}

/// The defects of the options that all commands have.
fn wrong_of_all(world: &World, section: &Section, command: &str) -> Vec<String> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let is_json = |output: &Output| {
        let all = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        serde_json::from_slice::<serde_json::Value>(all).is_ok()
    };
    let (plain, _) = world.outcome(&section.base);
    let (json, told) = world.outcome(&format!("{} --json", section.base));
    if is_json(&plain) || !is_json(&json) || plain.status != json.status {
        found.push(format!("{command} --json: {told}"));
    }
    let (quiet, told) = world.outcome(&format!("{} -q", section.base));
    let (said, errors) = (text(&quiet.stdout), text(&quiet.stderr));
    let whole = DOCUMENTS.contains(&command);
    let is_short =
        whole || said.lines().count() <= 1 && (said.is_empty() || text(&plain.stdout).lines().count() >= 1);
    if !is_short || errors.lines().any(|line| !line.starts_with("error: ")) || plain.status != quiet.status {
        found.push(format!("{command} --quiet: {told}"));
    }
    found
}

#[test]
fn every_option_changes_something_or_is_refused() {
    let (known, mut sections) = (known(), sections());
    if cfg!(not(feature = "gpu")) {
        sections.remove("shaders");
    }
    let mut problems: Vec<String> = Vec::new();
    for path in sections.keys().filter(|path| !known.iter().any(|known| known.path == **path)) {
        problems.push(format!("there is no command {path}"));
    }
    let mut work: Vec<(&Known, &Section)> = Vec::new();
    for command in &known {
        let Some(section) = sections.get(&command.path) else {
            problems.push(format!("options.txt has no section of {}", command.path));
            continue;
        };
        let gone = section.rows.keys().filter(|option| !command.options.contains(*option));
        problems.extend(gone.map(|option| format!("{} has no option --{option}", command.path)));
        work.push((command, section));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let world = World::new();
    let next = AtomicUsize::new(0);
    let each = || {
        let (mut found, mut outcomes) = (Vec::new(), Outcomes::new());
        while let Some((command, section)) = work.get(next.fetch_add(1, Relaxed)) {
            found.extend(wrong_of_all(&world, section, &command.path));
            for option in command.options.iter().filter(|option| !OF_ALL.contains(&option.as_str())) {
                let common = shared(&section.base, option);
                found.extend(match section.rows.get(option).or(common.as_ref()) {
                    Some(shown) => wrong(&world, &mut outcomes, &command.path, option, shown),
                    None => Some(format!("{} --{option}: options.txt has no row of it", command.path)),
                });
            }
        }
        found
    };
    let found: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(each)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.is_empty(), "{} options:\n{}", found.len(), found.join("\n\n"));
}

#[test]
fn every_command_that_reads_files_takes_limits() {
    for command in known() {
        let has_both = ["max-time", "max-memory"].iter().all(|limit| command.options.contains(*limit));
        let is_own = OWN_FILES.iter().any(|(path, _)| *path == command.path);
        assert!(has_both != is_own || !command.reads_files, "{}: limits {has_both}", command.path);
    }
    for (path, why) in OWN_FILES {
        assert!(known().iter().any(|command| command.path == path), "{path}: {why}");
    }
}
