//! A collector, agents and trainings as processes in one folder, and what they say.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tiebreak_monitor::chip::chain::Chain;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};
use tiebreak_record::commit::keys::PublicKey;

/// A day's most snapshots: one in 86 milliseconds, on average.
pub const FAST: &str = "1000000";
const LIMIT: Duration = Duration::from_secs(240);

/// Waits until something is there.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with a registrar, a collector's key, and the key of chip-1, which the register has.
pub struct World(tempfile::TempDir);

/// A command line with other values of options, or with options that it does not have.
fn with(all: &[&str], more: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = all.iter().map(ToString::to_string).collect();
    for pair in more.chunks(2) {
        match words.iter().position(|word| word == pair[0]) {
            Some(at) => words[at + 1] = pair[1].to_string(),
            None => words.extend(pair.iter().map(ToString::to_string)),
        }
    }
    words
}

pub fn command(world: &World, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(args).stdin(Stdio::null()).current_dir(world.0.path());
    command
}

/// The exit code of a command, and everything that it said.
pub fn output(world: &World, args: &[&str]) -> (i32, String) {
    let output = command(world, args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

pub fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

impl World {
    pub fn new() -> World {
        let world = World(tempfile::tempdir().unwrap());
        for name in ["registrar", "collector", "chip", "trainer", "other"] {
            let key = format!("{name}.key");
            assert_eq!(output(&world, &["key", "new", &key, "--name", &format!("{name}.example")]).0, 0);
        }
        let new =
            ["monitor", "register", "new", "chips.register", "--name", "made", "--key", "registrar.key"];
        assert_eq!(output(&world, &new).0, 0);
        let enter = [
            "monitor",
            "register",
            "add",
            "chips.register",
            "--key",
            "registrar.key",
            "--serial",
            "chip-1",
            "--chip-key",
            "chip.key.pub",
            "--model",
            "h100",
            "--owner",
            "Alice",
            "--site",
            "north",
        ];
        let (code, said) = output(&world, &enter);
        assert_eq!(code, 0, "{said}");
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The report of a command that ends well.
    pub fn done(&self, args: &[&str]) -> Value {
        let done = command(self, args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(done.status.code(), Some(0), "{args:?}: {}{}", text(&done.stdout), text(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    }

    pub fn collector_args(&self, database: &str, more: &[&str]) -> Vec<String> {
        let all = [
            "monitor",
            "collector",
            "serve",
            "--database",
            database,
            "--key",
            "collector.key",
            "--register",
            "chips.register",
            "--listen",
            "127.0.0.1:0",
            "--json",
        ];
        with(&all, more)
    }

    /// Starts a collector and waits until it listens.
    pub fn collector(&self, database: &str, more: &[&str]) -> Collector {
        let args = self.collector_args(database, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let process = Process::start(command(self, &args));
        let told: Value =
            until("the collector does not listen", || serde_json::from_str(&process.text()).ok());
        Collector { process, address: told["address"].as_str().unwrap().to_string(), told }
    }

    pub fn agent_args(&self, collector: &Collector, more: &[&str]) -> Vec<String> {
        let all = [
            "monitor",
            "agent",
            "--socket",
            "chip.sock",
            "--collector",
            &collector.address,
            "--collector-key",
            "collector.key.pub",
            "--key",
            "chip.key",
            "--serial",
            "chip-1",
            "--json",
        ];
        with(&all, more)
    }

    /// Starts an agent and waits until it listens.
    pub fn agent(&self, collector: &Collector, more: &[&str]) -> Process {
        let args = self.agent_args(collector, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let process = Process::start(command(self, &args));
        until("no agent listens", || {
            process.said().first().map(|said| assert_eq!(said["event"], "listening"))
        });
        process
    }

    pub fn train(&self, out: &str, more: &[&str]) -> Child {
        let args = ["train", "--out", out, "--key", "trainer.key", "--engine", "cpu", "--threads", "1"];
        let mut command = command(self, &[&args[..], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The same run, trained without an agent, has the same records and heads.
    pub fn same_bits(&self, run: &str) {
        let whole = self.path("whole");
        for name in ["data", "heads", "checkpoints", "traces"] {
            fs::create_dir_all(whole.join(name)).unwrap();
        }
        for name in ["run.json", "job.toml", "program.bin", "data/data-0.bin", "data/data-0.tree"] {
            fs::copy(self.path(run).join(name), whole.join(name)).unwrap();
        }
        let (code, said) = ended(self.train("whole", &["--resume"]));
        assert_eq!(code, 0, "{said}");
        let name = tiebreak_run::run::names::TRANSCRIPT;
        assert_eq!(fs::read(self.path(run).join(name)).unwrap(), fs::read(whole.join(name)).unwrap());
    }

    /// A log, every rule of which is checked.
    /// Exports the log of chip-1 to out.log, and returns what the command says.
    pub fn export(&self) -> Value {
        let from = ["--database", "chips.sqlite", "--serial", "chip-1", "-o", "out.log", "--json"];
        self.done(&[&["monitor", "collector", "export"], &from[..]].concat())
    }

    pub fn checked_log(&self, name: &str) -> Vec<SignedRecord> {
        let log = ChipLog::read(&fs::read(self.path(name)).unwrap()).unwrap();
        assert_eq!(log.torn, 0);
        let key = PublicKey::from_text(&fs::read_to_string(self.path("chip.key.pub")).unwrap()).unwrap();
        let mut chain = Chain::new(Serial::new("chip-1").unwrap(), key);
        log.records.iter().for_each(|signed| chain.check(signed).unwrap());
        log.records
    }
}

pub struct Collector {
    pub process: Process,
    pub address: String,
    pub told: Value,
}

impl Collector {
    /// The port, so that another collector can take this one's place.
    pub fn port(&self) -> String {
        self.address.rsplit(':').next().unwrap().to_string()
    }
}

/// A process that is killed when this is dropped, and what it has said so far.
pub struct Process {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collected(from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let lines = text.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            lines.lock().unwrap().push_str(&format!("{line}\n"));
        }
    });
    text
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Process { child, out: collected(out), err: collected(err) }
    }

    pub fn text(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    pub fn errors(&self) -> String {
        self.err.lock().unwrap().clone()
    }

    /// The lines of JSON that it has said so far.
    pub fn said(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn count(&self, event: &str) -> usize {
        self.said().iter().filter(|said| said["event"] == event).count()
    }

    /// Waits until so many records with this event are said.
    pub fn until_said(&self, event: &str, count: usize) {
        until(event, || (self.count(event) >= count).then_some(()));
    }

    pub fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }

    /// Ends it as a user does.
    pub fn terminate(mut self) {
        self.signal("-TERM");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}: {}", self.errors());
    }

    /// Ends an agent as a user does, and returns the number of records that its log has.
    pub fn stop(mut self) -> usize {
        self.signal("-TERM");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}: {}", self.errors());
        // The reader's thread has the last lines soon.
        let last = until("the last line", || {
            let text = self.text();
            text.ends_with('\n').then(|| self.said().last().cloned()).flatten()
        });
        last["record"].as_u64().unwrap() as usize + 1
    }
}
