//! Runs in object stores: two S3 servers of others on loopback, and a server that lies.

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tiebreak_run::run::index::Index;
use tiebreak_run::run::{Folder, names};

use common::served::{Lie, Manner, Served};
use common::{files, gpt_job};

/// A process that ends with the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct World {
    folder: tempfile::TempDir,
    endpoint: String,
}

/// A run of eight steps in the folder `run`.
fn world(endpoint: &str) -> World {
    let world = World { folder: tempfile::tempdir().unwrap(), endpoint: endpoint.to_string() };
    gpt_job(world.folder.path(), "operator", "");
    world.done("key new trainer.key --name trainer.example");
    world.done("train job.toml --out run --key trainer.key -q");
    world
}

impl World {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(line.split(' ')).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", "the-key-id"),
            ("AWS_SECRET_ACCESS_KEY", "the-secret"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ENDPOINT_URL", &self.endpoint),
        ] {
            command.env(name, value);
        }
        command
    }

    fn ends(&self, mut command: Command) -> (i32, String) {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(!text.contains("the-secret") && !text.contains("the-key-id"), "{text}");
        (status.code().unwrap(), text)
    }

    fn done(&self, line: &str) -> String {
        let (code, text) = self.ends(self.command(line));
        assert_eq!(code, 0, "{line}: {text}");
        text
    }

    fn fails(&self, command: Command, code: i32, why: &str) {
        let (found, text) = self.ends(command);
        assert!(found == code && text.contains(why), "exit {found}, {code} is due: {text}");
    }

    /// The counts of a publication.
    fn published(&self, run: &str, to: &str) -> (u64, u64) {
        let report: Value = serde_json::from_str(&self.done(&format!("publish {run} {to} --json"))).unwrap();
        (report["sent"].as_u64().unwrap(), report["there"].as_u64().unwrap())
    }
}

/// The requests of a reader of S3 are judged as those of a plain server: the server that lies to one lies to the other.
#[test]
fn nothing_that_a_store_makes_up_is_used_and_a_segment_is_all_that_is_read() {
    let mut world = world("");
    let run = Folder::at(&world.at("run"));
    let index = Index::of(&*run, |_| true).unwrap();
    let name = |name: PathBuf| name.to_str().unwrap().to_string();
    let served = files(&world.at("run")).into_iter().map(|(file, bytes)| (name(file), bytes));
    let all: u64 = index.size().1;
    let server = Served::new(
        served.chain([(names::INDEX.to_string(), index.text().as_bytes().to_vec())]),
        Manner::default(),
    );
    world.endpoint = server.address.trim_end_matches("/runs/mine").to_string();
    let line = "audit s3://runs/mine --trainer-key trainer.key.pub --engine cpu --jobs 1 -q";
    assert!(world.done(&format!("{line} --steps 5..6 --only-part")).contains("MATCHES: 2 of 8 steps"));
    let sent = server.sent();
    let asked = |part: &str| sent.keys().filter(|name| name.contains(part)).count();
    let bytes: u64 = sent.values().map(|(_, bytes)| bytes).sum();
    assert_eq!((asked("checkpoints/"), asked("traces/"), asked("model")), (1, 2, 0), "{sent:?}");
    assert!(3 * bytes < all, "{bytes} of {all} bytes");
    let file = names::checkpoint(4);
    for (lie, why) in [
        (Lie::Shifted, "the answer says that it has"),
        (Lie::OtherTotal, "changed between two reads"),
        (Lie::Huge, "changed between two reads"),
        (Lie::Cut, "were due, "),
        (Lie::Twice, "more than one header \"content-range\""),
        (Lie::Long, "the answer says that it has"),
        (Lie::Zeros, ""),
        (Lie::OtherPlace, ""),
        (Lie::Redirects, "redirects are not followed"),
        (Lie::Compressed, "encoded as \"gzip\""),
        (Lie::Forbidden, "the store forbids it (status 403)"),
        (Lie::Unavailable, "status 503"),
    ] {
        server.lie(&file, lie);
        let (code, text) = world.ends(world.command("verify s3://runs/mine"));
        assert!(
            [3, 4].contains(&code) && text.contains(&file) && text.contains(why),
            "{lie:?}: {code} {text}"
        );
        assert!(!text.contains("/private"), "{text}");
    }
    // Nobody is asked without TLS, or at another address, unless the environment says so.
    let mut without = world.command("verify s3://runs/mine");
    without.env_remove("AWS_ALLOW_HTTP");
    world.fails(without, 3, "set AWS_ALLOW_HTTP=true");
    let mut google = world.command("verify gs://runs/mine");
    google.env("GOOGLE_BASE_URL", "https://elsewhere.example");
    world.fails(google, 3, "only the store itself is asked");
    world.fails(world.command("verify s3://runs/mine?x"), 2, "without a user, a query");
    world.fails(world.command("publish run s3://run%73/mine"), 2, "a bucket's name has letters");
}

/// A port of this machine that nobody has.
fn port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Starts a server, and waits until it takes connections.
fn started(mut command: Command, port: &str) -> (Kept, String) {
    let kept = Kept(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the server starts"));
    let begin = Instant::now();
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server does not start");
        thread::sleep(Duration::from_millis(50));
    }
    (kept, format!("http://127.0.0.1:{port}"))
}

/// A program that a variable names: `.ci/full stores` installs it.
fn program(variable: &str) -> Command {
    Command::new(std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names the server")))
}

/// What holds at every server.
fn holds(world: &World, to: &str) {
    let address = format!("s3://bucket/{to}");
    let (sent, there) = world.published("run", &address);
    assert!(sent > 20 && there == 0, "{sent} {there}");
    assert_eq!(world.published("run", &address), (0, sent - 1));
    let audit = format!("audit {address} --trainer-key trainer.key.pub --engine cpu --jobs 1 -q");
    assert!(world.done(&audit).contains("MATCHES"));
    // Another run, and a file with other bytes of the same length.
    world.done("train job.toml --out other --key trainer.key -q");
    world.fails(world.command(&format!("publish other {address}")), 2, "another run is published there");
    let state = world.at(&format!("run/{}", names::checkpoint(4)));
    let right = fs::read(&state).unwrap();
    let mut wrong = right.clone();
    wrong[900] ^= 1;
    fs::write(&state, wrong).unwrap();
    world.fails(world.command(&format!("publish run {address}")), 2, "another file is there");
    fs::write(&state, right).unwrap();
    world.fails(world.command(&format!("verify s3://bucket/{to}-none")), 2, "is not a run");
    // A run that holds no data is audited with those of the store.
    let job = fs::read_to_string(world.at("job.toml")).unwrap();
    let lean = job.replacen("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false", 1);
    assert_ne!(lean, job);
    fs::write(world.at("lean.toml"), lean).unwrap();
    world.done("train lean.toml --out lean -q");
    fs::rename(world.at("text.txt"), world.at("text.moved")).unwrap();
    world.fails(world.command("audit lean -q"), 2, "say where it is with --data FOLDER (or its address)");
    let data = |data: &str| format!("audit lean --data s3://bucket/{data} -q");
    assert!(world.done(&data(&format!("{to}/data"))).contains("MATCHES"));
    world.fails(world.command(&data("none")), 2, "nor does s3://bucket/none");
    fs::rename(world.at("text.moved"), world.at("text.txt")).unwrap();
    // A key in the run's folder goes nowhere.
    fs::copy(world.at("trainer.key"), world.at("run/trainer.key")).unwrap();
    world.fails(world.command(&format!("publish run {address}-2")), 2, "trainer.key is no file of a run");
    fs::remove_file(world.at("run/trainer.key")).unwrap();
}

/// A run that is published again and again while it trains, by two publishers, one of whom is killed, is watched to its end.
fn grows(world: &World) {
    let address = "s3://bucket/growing";
    let mut train = world.command("train job.toml --out growing --key trainer.key -q");
    let mut train = train.spawn().unwrap();
    let watch = format!("watch {address} --trainer-key trainer.key.pub --engine cpu --every 1 --idle 100 -q");
    let watch = world.command(&watch).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let publish =
        || world.command(&format!("publish growing {address} -q")).stderr(Stdio::null()).spawn().unwrap();
    let mut ended = false;
    while !ended {
        ended = train.try_wait().unwrap().is_some();
        let (mut one, mut two) = (publish(), publish());
        thread::sleep(Duration::from_millis(60));
        let _ = one.kill();
        one.wait().unwrap();
        two.wait().unwrap();
    }
    assert!(train.wait().unwrap().success());
    world.done(&format!("publish growing {address}"));
    let watched = watch.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&watched.stdout).into_owned();
    assert!(
        watched.status.success() && text.contains("MATCHES"),
        "{text}{}",
        String::from_utf8_lossy(&watched.stderr)
    );
}

#[test]
#[ignore = "needs PyPI's moto, which .ci/full stores installs"]
fn a_run_in_a_store_of_moto_is_published_watched_and_audited() {
    let port = port();
    let mut server = program("TIEBREAK_MOTO");
    server.args(["-H", "127.0.0.1", "-p", &port]);
    let (_server, endpoint) = started(server, &port);
    let world = world(&endpoint);
    make_bucket(&endpoint);
    holds(&world, "runs/mine");
    world.fails(world.command("verify s3://nobody/run"), 3, "the store has no such bucket");
    world.fails(world.command("publish run s3://nobody/run"), 3, "the store has no such bucket");
    grows(&world);
}

/// Makes the bucket `bucket`.
fn make_bucket(endpoint: &str) {
    let host = endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "PUT /bucket HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[test]
#[ignore = "needs crates.io's s3s-fs, which .ci/full stores installs"]
fn a_run_in_a_store_of_s3s_is_published_watched_and_audited_by_its_credentials() {
    let (folder, port) = (tempfile::tempdir().unwrap(), port());
    fs::create_dir(folder.path().join("bucket")).unwrap();
    let mut server = program("TIEBREAK_S3S_FS");
    server.args([
        "--access-key",
        "the-key-id",
        "--secret-key",
        "the-secret",
        "--host",
        "127.0.0.1",
        "--port",
        &port,
    ]);
    server.arg(folder.path());
    let (_server, endpoint) = started(server, &port);
    let world = world(&endpoint);
    holds(&world, "runs/mine");
    for (name, value) in [("AWS_SECRET_ACCESS_KEY", "another"), ("AWS_ACCESS_KEY_ID", "another")] {
        for line in ["verify s3://bucket/runs/mine", "publish run s3://bucket/runs/mine"] {
            let mut command = world.command(line);
            command.env(name, value);
            world.fails(command, 3, "the store does not take the credentials");
        }
    }
    grows(&world);
    assert!(Path::new(&folder.path().join("bucket/growing/index")).exists());
}
