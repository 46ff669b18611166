//! `tiebreak monitor pack` and `monitor box`: a sealed run is replayed from memory alone, and age's own tool reads and writes packs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use tiebreak_audit::report_file;
use tiebreak_monitor::pack::read::{Bounds, read};
use tiebreak_monitor::pack::seal::{Identity, Recipient, open, seal};
use tiebreak_monitor::pack::write::Writer;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;

use crate::common::edit::edit;
use crate::common::{files, gpt_job, key, not_tested, trained};
use crate::{output, path, tiebreak};

/// An operator's folder with a run and data that the run does not hold, and a box's folder with its keys.
struct World {
    operator: tempfile::TempDir,
    box_: tempfile::TempDir,
    run: Run,
    recipient: String,
}

impl World {
    fn new(steps: u32, granularity: &str, cheat: Option<&str>) -> World {
        let [operator, box_] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let job = gpt_job(operator.path(), granularity, "");
        let steps = format!("steps = {steps}\n");
        edit(&job, &[("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false"), ("steps = 8\n", &steps)]);
        let run = trained(&job, &operator.path().join("run"), cheat);
        let world = World { operator, box_, run, recipient: String::new() };
        done(&["key", "new", &world.inside("box.key"), "--name", "box.example"], 0);
        let recipient = done(&["monitor", "box", "--new-identity", &world.inside("identity"), "-q"], 0);
        World { recipient: recipient.trim().to_string(), ..world }
    }

    /// A path in the operator's folder.
    fn outside(&self, name: &str) -> String {
        path(self.operator.path(), name)
    }

    /// A path in the box's folder.
    fn inside(&self, name: &str) -> String {
        path(self.box_.path(), name)
    }

    /// Packs the run into the box's folder.
    fn pack(&self, name: &str, more: &[&str]) -> Value {
        let (run, data, out) = (self.outside("run"), self.outside(""), self.inside(name));
        let args =
            ["monitor", "pack", &run, "--to", &self.recipient, "--data", &data, "--out", &out, "--json"];
        serde_json::from_str(&done(&[&args, more].concat(), 0)).unwrap()
    }

    /// The command line of the box about a pack, for a report of this name.
    fn line(&self, pack: &str, report: &str, more: &[&str]) -> Vec<String> {
        let args = ["monitor", "box", &self.inside(pack), "--identity", &self.inside("identity"), "--run-id"];
        let args = args.map(str::to_string).into_iter().chain([self.run.id.to_string()]);
        let signed = ["--key".to_string(), self.inside("box.key"), "--report".into(), self.inside(report)];
        args.chain(signed).chain(more.iter().map(|more| more.to_string())).collect()
    }

    fn boxed(&self, pack: &str, report: &str, more: &[&str], wanted: i32) -> String {
        let line = self.line(pack, report, more);
        done(&line.iter().map(String::as_str).collect::<Vec<_>>(), wanted)
    }

    /// A report of the box as JSON, after its signature was checked.
    fn report(&self, name: &str) -> Value {
        let bytes = fs::read(self.inside(name)).unwrap();
        let (_, signer) = report_file::decode(&bytes).unwrap();
        let public = fs::read_to_string(self.inside("box.key.pub")).unwrap();
        assert_eq!(signer, Some(PublicKey::from_text(&public).unwrap()));
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Checks a report about a run that nobody asked for.
    #[track_caller]
    fn refused(&self, name: &str, why: &str) {
        let report = self.report(name);
        assert_eq!(report["run"], self.run.id.to_string());
        assert_eq!(report["outcome"]["result"], "incomplete");
        assert!(report["outcome"]["what"].as_str().unwrap().starts_with(why), "{report}");
        assert_eq!((&report["replayed"], &report["head_size"]), (&serde_json::json!([]), &0.into()));
        let said = done(&["audit", "merge", &self.inside(name)], 3);
        assert!(said.starts_with("UNDECIDED: 0 of 8 steps"), "{said}");
        let (key, out) = (self.inside("box.key"), self.inside("statement.json"));
        let args = ["monitor", "statement", "--report", &self.inside(name), "--key", &key, "--out", &out];
        let said = done(&args, 2);
        assert!(said.contains("a run that the auditor refused before reading its head"), "{said}");
    }

    fn identity(&self) -> Identity {
        Identity::from_text(&fs::read_to_string(self.inside("identity")).unwrap()).unwrap()
    }

    /// Texts and bytes of the run that nobody outside of the box may find.
    fn secrets(&self) -> Vec<Vec<u8>> {
        let text = fs::read(self.outside("text.txt")).unwrap();
        let state = fs::read(self.run.layout.checkpoint(2)).unwrap();
        vec![text[1000..1040].to_vec(), b"weight_decay = 0.1".to_vec(), state[state.len() - 64..].to_vec()]
    }
}

/// Runs a command, and gives its whole output.
#[track_caller]
fn done(args: &[&str], wanted: i32) -> String {
    let (code, stdout, stderr) = output(args);
    assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    format!("{stdout}{stderr}")
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The names and contents of a pack.
fn contents(pack: &[u8], identity: &Identity) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let bounds = Bounds { memory: 1 << 30, there: pack.len() as u64 };
    read(open(pack, identity).unwrap(), bounds, |name, bytes| drop(found.insert(name, bytes))).unwrap();
    found
}

/// Seals a pack of these files for a box.
fn sealed(recipient: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let recipient = Recipient::from_text(recipient).unwrap();
    let mut writer = Writer::new(seal(&[recipient], Vec::new()).unwrap()).unwrap();
    for (name, contents) in files {
        writer.add(name, contents.len() as u64, &mut &contents[..]).unwrap();
    }
    writer.finish().unwrap().finish().unwrap()
}

#[test]
fn a_sealed_run_is_replayed_by_the_box_and_the_report_is_that_of_an_audit() {
    let world = World::new(8, "operator", None);
    let packed = world.pack("run.pack", &[]);
    let pack = fs::read(world.inside("run.pack")).unwrap();
    for secret in world.secrets() {
        assert!(!holds(&pack, &secret));
    }
    // Everything that a replay needs, as it lies in the run, and the data from elsewhere.
    let found = contents(&pack, &world.identity());
    for (name, bytes) in &found {
        let path = if name == "data/data-0.bin" {
            world.outside("text.txt")
        } else {
            world.outside(&format!("run/{name}"))
        };
        assert!(fs::read(path).unwrap() == *bytes, "{name}");
    }
    assert_eq!(packed["files"].as_array().unwrap().len(), found.len());
    let left: Vec<String> = files(&world.operator.path().join("run"))
        .into_iter()
        .map(|(name, _)| name.to_str().unwrap().to_string())
        .filter(|name| !found.contains_key(name))
        .collect();
    assert_eq!(left, ["lock"]);

    let trainer = key().public().to_text();
    let said = world.boxed("run.pack", "report.json", &["--trainer-key", &trainer], 0);
    assert!(said.starts_with(&format!("PASS: run {}\n", world.run.id)), "{said}");
    let (mut report, audit) = (world.report("report.json"), world.outside("audit.json"));
    let data = world.outside("");
    let (run, key) = (world.outside("run"), world.inside("box.key"));
    let args = ["audit", &run, "--data", &data, "--trainer-key", &trainer, "--report", &audit, "--key", &key];
    done(&args, 0);
    let mut audited: Value = serde_json::from_slice(&fs::read(&audit).unwrap()).unwrap();
    for report in [&mut report, &mut audited] {
        for field in ["seconds", "signature"] {
            assert!(report.as_object_mut().unwrap().remove(field).is_some());
        }
        // The pack has the data, and so one check more.
        let checked = report["checked"].as_array_mut().unwrap();
        checked.retain(|line| !line.as_str().unwrap().contains("data file"));
    }
    assert_eq!(report, audited);
    // The report goes on as every other one does.
    done(&["audit", "merge", &world.inside("report.json")], 0);

    // Nothing is replaced, and other keys, runs and orders do not pass. What the box says about a run is not in its errors.
    let again = world.boxed("run.pack", "report.json", &[], 2);
    assert!(again.contains("a report replaces no file"), "{again}");
    let out = world.inside("run.pack");
    let said = done(&["monitor", "pack", &run, "--to", &world.recipient, "--data", &data, "--out", &out], 2);
    assert!(said.contains("a pack replaces no file"), "{said}");
    assert_eq!(fs::read(&out).unwrap(), pack);
    let stranger = fs::read_to_string(world.inside("box.key.pub")).unwrap();
    let said = world.boxed("run.pack", "none.json", &["--trainer-key", stranger.trim()], 4);
    assert!(
        said.contains("cannot be audited with these options") && !said.contains("trainer.example"),
        "{said}"
    );
    let other = path(world.box_.path(), "other.toml");
    let job = fs::read_to_string(world.outside("job.toml")).unwrap();
    fs::write(&other, job.replace("peak = 1e-2", "peak = 2e-2")).unwrap();
    fs::write(world.inside("text.txt"), "no data").unwrap();
    // A run that nobody asked for has a report as well, which accuses nobody, since anybody can send another pack.
    let said = world.boxed("run.pack", "order.json", &["--expect-job", &other], 1);
    assert!(
        said.starts_with("FAIL: the run in the pack was not ordered") && !said.contains("schedule"),
        "{said}"
    );
    world.refused("order.json", "the run is not of the job and the data that were ordered");
    let mut line = world.line("run.pack", "other.json", &["--steps", "8..99"]);
    line[6] = world.run.computation.id.to_string();
    let said = done(&line.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    assert!(said.starts_with(&format!("FAIL: the pack holds run {}", world.run.id)), "{said}");
    world.refused("other.json", &format!("the auditor was asked about run {}", world.run.computation.id));
    done(&["monitor", "box", "--new-identity", &world.inside("second")], 0);
    let mut line = world.line("run.pack", "none.json", &[]);
    line[4] = world.inside("second");
    let said = done(&line.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(said.contains("sealed for others"), "{said}");
    assert!(!Path::new(&world.inside("none.json")).exists());
}

#[test]
fn the_box_finds_a_cheat_and_hands_out_no_verdict() {
    let world = World::new(8, "operator", Some("operator@5"));
    world.pack("run.pack", &[]);
    let before = files(world.box_.path()).len();
    let said = world.boxed("run.pack", "report.json", &["--json"], 1);
    let said: Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!(said["pass"], false, "{said}");
    let report = world.report("report.json");
    assert_eq!((&report["outcome"]["result"], &report["outcome"]["step"]), (&"diverges".into(), &5.into()));
    assert_eq!(files(world.box_.path()).len(), before + 1);
    for secret in world.secrets() {
        assert!(!holds(&fs::read(world.inside("report.json")).unwrap(), &secret));
    }
}

#[test]
fn a_pack_of_some_steps_holds_the_files_of_these_steps() {
    let world = World::new(8, "operator", None);
    let packed = world.pack("part.pack", &["--steps", "5..6"]);
    let names: Vec<&str> =
        packed["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    let of = |folder: &str| names.iter().filter(|name| name.starts_with(folder)).copied().collect::<Vec<_>>();
    assert_eq!(of("traces/"), ["traces/step-000000005", "traces/step-000000006"]);
    let checkpoints = ["checkpoints/step-000000004.safetensors", "checkpoints/step-000000006.safetensors"];
    assert_eq!(of("checkpoints/"), checkpoints);
    assert!(!names.contains(&"model.safetensors") && names.contains(&"data/data-0.bin"), "{names:?}");
    world.boxed("part.pack", "part.json", &["--steps", "5..6", "--prefix"], 0);
    assert_eq!(world.report("part.json")["replayed"], serde_json::json!([[5, 6]]));
    // What is not in the pack cannot pass.
    world.boxed("part.pack", "all.json", &[], 3);
    let (run, data, out) = (world.outside("run"), world.outside(""), world.inside("none.pack"));
    let args = ["monitor", "pack", &run, "--to", &world.recipient, "--data", &data, "--out", &out];
    let said = done(&[&args[..], &["--steps", "5..9"]].concat(), 2);
    assert!(said.contains("steps 1 to 8"), "{said}");
    let said = done(&[&args[..5], &args[7..]].concat(), 2);
    assert!(said.contains("does not hold its data file 0"), "{said}");
    assert!(!Path::new(&out).exists());
    // Nothing half-written stays where the data turn out to be others.
    fs::write(world.outside("text.txt"), "short").unwrap();
    let said = done(&args, 4);
    assert!(said.contains("it has 5 bytes, and run.json says"), "{said}");
    assert!(files(world.box_.path()).iter().all(|(name, _)| !name.to_str().unwrap().contains("partial")));
}

#[test]
fn hostile_packs_are_refused_and_leave_nothing() {
    let world = World::new(8, "step", None);
    world.pack("run.pack", &[]);
    let pack = fs::read(world.inside("run.pack")).unwrap();
    let before = files(world.box_.path());
    let refused = |bytes: &[u8], more: &[&str], wanted: i32, why: &str| {
        fs::write(world.inside("hostile.pack"), bytes).unwrap();
        let said = world.boxed("hostile.pack", "none.json", more, wanted);
        assert!(said.contains(why), "{why}: {said}");
        fs::remove_file(world.inside("hostile.pack")).unwrap();
        assert_eq!(files(world.box_.path()), before);
    };
    // Names that the writer does not write.
    let raw = |name: &str, length: u64| {
        let header = [b"tiebreak pack 1\n", &[name.len() as u8][..], name.as_bytes(), &length.to_le_bytes()];
        let recipient = Recipient::from_text(&world.recipient).unwrap();
        let mut out = seal(&[recipient], Vec::new()).unwrap();
        out.write_all(&[&header.concat()[..], &[0]].concat()).unwrap();
        out.finish().unwrap()
    };
    for name in ["../escaped", "/tmp/escaped", "a/../../escaped"] {
        refused(&raw(name, 0), &[], 4, "no file of a pack may be called");
    }
    refused(&raw("run.json", 1 << 50), &[], 4, "has 1125899906842624 bytes by its length");
    refused(&pack[..pack.len() - 1], &[], 4, "hostile.pack");
    let mut changed = pack.clone();
    changed[pack.len() / 2] ^= 1;
    refused(&changed, &[], 4, "hostile.pack");
    refused(b"tiebreak pack 1\n\0", &[], 4, "age-encryption.org");
    refused(&sealed(&world.recipient, &[]), &[], 2, "cannot be audited");
    let secret: [(&str, &[u8]); 3] =
        [("job.toml", b"secret = 1"), ("program.bin", b"secret"), ("run.json", b"{\"secret\": 1}")];
    refused(&sealed(&world.recipient, &secret), &[], 4, "cannot be audited");
    // A pack that does not fit is refused before its bytes are taken.
    let large = vec![0; 64 << 20];
    refused(
        &sealed(&world.recipient, &[("data/data-0.bin", &large)]),
        &["--max-memory", "48"],
        3,
        "the pack's files need",
    );
}

#[test]
fn a_pack_without_records_or_heads_has_a_report_that_decides_nothing() {
    let world = World::new(8, "step", None);
    world.pack("run.pack", &[]);
    let found = contents(&fs::read(world.inside("run.pack")).unwrap(), &world.identity());
    for (missing, report, why) in
        [("transcript", "records.json", "its transcript"), ("heads/", "heads.json", "a head")]
    {
        let left = found.iter().filter(|(name, _)| !name.starts_with(missing));
        let left: Vec<(&str, &[u8])> = left.map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
        assert!(left.len() < found.len());
        fs::write(world.inside("less.pack"), sealed(&world.recipient, &left)).unwrap();
        let said = world.boxed("less.pack", report, &[], 3);
        let line = format!("NOT DECIDED: the pack holds run {} without {why}\n", world.run.id);
        assert!(said.starts_with(&line), "{said}");
        world.refused(report, &format!("the run comes without {why}, so nothing of it was checked"));
    }
    // Files that are there and are none.
    let broken = [
        ("transcript", "empty.json", &[][..]),
        ("transcript", "garbage.json", b"secret"),
        ("heads/", "junk.json", b"secret"),
    ];
    for (name, report, bytes) in broken {
        let changed = found.iter().map(|(own, kept)| match own.starts_with(name) {
            true => (own.as_str(), bytes),
            false => (own.as_str(), &kept[..]),
        });
        let changed: Vec<(&str, &[u8])> = changed.collect();
        fs::write(world.inside("broken.pack"), sealed(&world.recipient, &changed)).unwrap();
        let said = world.boxed("broken.pack", report, &[], 4);
        let line = format!("NOT DECIDED: a file of run {} in the pack breaks its format (", world.run.id);
        assert!(said.starts_with(&line) && !said.contains("secret"), "{said}");
        world.refused(report, "a file of the run breaks its format, so nothing of the run was replayed");
    }
}

/// Every file in the folders that a process may write to, by path.
fn all_files(folders: &[PathBuf]) -> BTreeMap<PathBuf, Vec<u8>> {
    let found = folders
        .iter()
        .flat_map(|folder| files(folder).into_iter().map(move |(name, bytes)| (folder.join(name), bytes)));
    found.collect()
}

/// The box at work, with every folder that programs write to in its hands.
#[cfg(unix)]
fn working(world: &World, folders: &[PathBuf], report: &str) -> std::process::Child {
    let line = world.line("run.pack", report, &["--threads", "1"]);
    let mut command = tiebreak(&line.iter().map(String::as_str).collect::<Vec<_>>());
    command.current_dir(&folders[0]).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (variable, folder) in
        ["TMPDIR", "HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "TIEBREAK_CACHE"].iter().zip(&folders[1..])
    {
        command.env(variable, folder);
    }
    command.spawn().unwrap()
}

#[cfg(unix)]
#[test]
fn no_plaintext_remains_wherever_the_box_is_killed() {
    let world = World::new(150, "microbatch", None);
    world.pack("run.pack", &[]);
    let made = ["tmp", "home", "runtime", "cache", "tiebreak"].map(|name| PathBuf::from(world.inside(name)));
    made.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let folders: Vec<PathBuf> = [world.box_.path().to_path_buf()].into_iter().chain(made).collect();
    let (before, secrets) = (all_files(&folders), world.secrets());
    let is_clean = |when: &str| {
        let after = all_files(&folders);
        let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
        assert!(new.is_empty(), "{when}: {new:?}");
        for (path, bytes) in &after {
            assert!(*bytes == before[path], "{when}: {} was changed", path.display());
            assert!(secrets.iter().all(|secret| !holds(bytes, secret)), "{when}: {}", path.display());
        }
    };
    // At moments of reading and decrypting.
    for milliseconds in [1, 5, 20] {
        let mut child = working(&world, &folders, "report.json");
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was done before {milliseconds} ms");
        is_clean(&format!("after {milliseconds} ms"));
    }
    // In the replay, when all is in memory.
    let mut child = working(&world, &folders, "report.json");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("replaying 150 steps")));
    assert!(said.is_some(), "the replay never began");
    #[cfg(target_os = "linux")]
    holds_no_file(child.id(), &folders);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the replay was done before it was killed");
    is_clean("in the replay");
    // The secrets are there to be found: the pack has them, and so would a file in the clear.
    let found = contents(&fs::read(world.inside("run.pack")).unwrap(), &world.identity());
    for secret in &secrets {
        assert!(found.values().any(|bytes| holds(bytes, secret)));
    }
}

/// Checks that a process has no file open that keeps bytes, not even one without a name, and that it leaves no core.
#[cfg(target_os = "linux")]
fn holds_no_file(id: u32, folders: &[PathBuf]) {
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    // Only a user who may trace the process sees its files; all others prove that it cannot be dumped.
    let Ok(open) = fs::read_dir(format!("/proc/{id}/fd")) else { return };
    for entry in open {
        let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
        let text = target.to_string_lossy();
        assert!(!text.contains("(deleted)") && !text.contains("memfd"), "{text}");
        assert!(folders.iter().all(|folder| !target.starts_with(folder)), "{text}");
    }
}

/// A tool of age's authors; without one the test says so, unless TIEBREAK_REQUIRE_AGE makes that a failure.
fn age() -> Option<[String; 2]> {
    let age = std::env::var("TIEBREAK_AGE").unwrap_or_else(|_| "age".into());
    let keygen = format!("{age}-keygen");
    let works =
        |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success());
    if works(&age) && works(&keygen) {
        return Some([age, keygen]);
    }
    let missing = format!("no {age} and {keygen} (TIEBREAK_AGE names the first)");
    assert!(std::env::var_os("TIEBREAK_REQUIRE_AGE").is_none(), "{missing}");
    not_tested(&format!("there is {missing}, so no other implementation reads packs"));
    None
}

#[test]
fn the_tool_of_ages_authors_opens_packs_and_the_box_opens_its_files() {
    let Some([age, keygen]) = age() else { return };
    let world = World::new(8, "step", None);
    world.pack("run.pack", &[]);
    let ran = |tool: &str, args: &[&str]| {
        let mut child =
            Command::new(tool).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
        assert!(child.wait().unwrap().success(), "{tool} {args:?}");
        out
    };
    let (pack, identity) = (world.inside("run.pack"), world.inside("identity"));
    let plain = ran(&age, &["--decrypt", "-i", &identity, &pack]);
    let mut found = BTreeMap::new();
    let bounds = Bounds { memory: 1 << 30, there: plain.len() as u64 };
    read(&plain[..], bounds, |name, bytes| drop(found.insert(name, bytes))).unwrap();
    assert_eq!(found, contents(&fs::read(&pack).unwrap(), &world.identity()));
    // The other way round: a key that the tool made, and a file that the tool encrypted.
    ran(&keygen, &["-o", &world.inside("theirs")]);
    let public = String::from_utf8(ran(&keygen, &["-y", &world.inside("theirs")])).unwrap();
    let (clear, theirs) = (world.outside("clear"), world.inside("theirs.pack"));
    fs::write(&clear, &plain).unwrap();
    ran(&age, &["-r", public.trim(), "-r", &world.recipient, "-o", &theirs, &clear]);
    for (identity, report) in [("theirs", "one.json"), ("identity", "two.json")] {
        let mut line = world.line("theirs.pack", report, &[]);
        line[4] = world.inside(identity);
        done(&line.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    }
}
