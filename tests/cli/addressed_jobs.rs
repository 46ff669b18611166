//! Jobs that name data, weights and an earlier run by addresses.

use std::fs;
use std::path::Path;
use std::thread;

use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_run::run::arrays::{self, Array, FloatType};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::names;

use crate::common::edit::edited;
use crate::common::forged::forge;
use crate::common::served::{Lie, Manner, Served};
use crate::common::{files, gpt_job, trained};
use crate::{output, path};

/// A folder with a finished run, its model, and data; a server has the same.
struct World {
    folder: tempfile::TempDir,
    server: Served,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let first = path(folder.path(), "first");
        trained(&gpt_job(folder.path(), "microbatch", ""), Path::new(&first), None);
        let (code, _, stderr) = output(&["publish", &first]);
        assert_eq!(code, 0, "{stderr}");
        fs::create_dir_all(format!("{first}/companions")).unwrap();
        let model = fs::read(format!("{first}/model.safetensors")).unwrap();
        fs::write(path(folder.path(), "w.safetensors"), &model).unwrap();
        let text = fs::read(path(folder.path(), "text.txt")).unwrap();
        let name = |name: std::path::PathBuf| name.to_str().unwrap().replace('\\', "/");
        let of_run = files(Path::new(&first))
            .into_iter()
            .map(|(file, bytes)| (format!("first/{}", name(file)), bytes));
        let array = Array {
            name: "other".into(),
            ty: TensorType { dtype: DType::F32, shape: vec![1 << 20] },
            bytes: vec![0; 4 << 20],
        };
        let large = folder.path().join("large.safetensors");
        arrays::write(&large, &[array], FloatType::F32).unwrap();
        let others = [
            ("w/w.safetensors", model),
            ("w/large.safetensors", fs::read(large).unwrap()),
            ("w/config.json", b"{}".to_vec()),
            ("d/text.txt", text),
        ];
        let others = others.map(|(name, bytes)| (name.to_string(), bytes));
        let server = Served::new(of_run.chain(others), Manner::default());
        World { folder, server }
    }

    fn at(&self, name: &str) -> String {
        path(self.folder.path(), name)
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.server.address)
    }

    /// A short job with these changes, and an `[init]` table.
    fn job(&self, name: &str, changes: &[(&str, &str)], init: &str) -> String {
        let text = fs::read_to_string(self.at("job.toml")).unwrap();
        let text = edited(&edited(&text, &[("steps = 8", "steps = 2")]), changes);
        let init = if init.is_empty() { String::new() } else { format!("\n[init]\n{init}\n") };
        fs::write(self.at(name), text + &init).unwrap();
        self.at(name)
    }

    /// Trains a job that may name files at these addresses.
    fn train(&self, job: &str, out: &str, roots: &[&str]) -> (i32, String) {
        let roots = roots.iter().flat_map(|root| ["--data-root", root]);
        let args =
            ["train", job, "--out", out, "--engine", "cpu"].into_iter().chain(roots).collect::<Vec<_>>();
        let (code, stdout, stderr) = output(&args);
        (code, stdout + &stderr)
    }

    /// Trains a job that has to be right, and audits the run.
    fn run(&self, job: &str, out: &str, roots: &[&str], audit: &[&str]) -> Run {
        let (code, said) = self.train(job, out, roots);
        assert_eq!(code, 0, "{said}");
        let (code, stdout, stderr) = output(&[&["audit", out, "--engine", "cpu"], audit].concat());
        assert!(code == 0 && stdout.starts_with("MATCHES"), "{stdout}{stderr}");
        Run::open(Path::new(out)).unwrap()
    }
}

/// The state and its origin are those of the same files here.
#[test]
fn a_job_begins_from_weights_and_from_a_run_at_addresses() {
    let world = World::new();
    for (name, key, here, there, root) in [
        (
            "weights",
            "weights",
            r#"["w.safetensors"]"#.to_string(),
            format!("[{:?}]", world.url("w/w.safetensors")),
            "w",
        ),
        (
            "run",
            "optimizer_state = true\nrun",
            r#""first""#.into(),
            format!("{:?}", world.url("first")),
            "first/",
        ),
    ] {
        let root = world.url(root);
        let [due, found] = [("here", here), ("there", there)].map(|(place, source)| {
            let job = world.job(&format!("{name}-{place}.toml"), &[], &format!("{key} = {source}"));
            let weights = world.url("w/w.safetensors");
            let audit = if name == "weights" { &["--weights", &weights][..] } else { &[] };
            let roots = if place == "there" { &[root.as_str()][..] } else { &[] };
            let run = world.run(&job, &world.at(&format!("{name}-{place}")), roots, audit);
            (run.file.initial, run.file.origin)
        });
        assert_ne!(due.1, InitialOrigin::Seed);
        assert_eq!(due, found, "{name}");
        // The job alone opens no address.
        let job = world.at(&format!("{name}-there.toml"));
        let requests = world.server.requests();
        let elsewhere = world.url("elsewhere");
        for roots in [&[][..], &[elsewhere.as_str()]] {
            let (code, said) = world.train(&job, &world.at("refused"), roots);
            assert!(code == 2 && said.contains("is an address that nobody allowed"), "{code}: {said}");
        }
        // An address that leads out of the one that is allowed is none below it.
        let out_of = format!("{}/../w/w.safetensors", world.url("d"));
        let leaving = world.job("leaving.toml", &[], &format!("weights = [{out_of:?}]"));
        let (code, said) = world.train(&leaving, &world.at("refused"), &[&world.url("d")]);
        assert!(code == 2 && said.contains("is an address that nobody allowed"), "{code}: {said}");
        assert_eq!(world.server.requests(), requests, "nothing was asked");
        let (code, stdout, stderr) = output(&["job", "check", &job, "--data-root", &root]);
        assert!(code == 0 && stdout.contains(&world.server.address), "{stdout}{stderr}");
        assert!(stdout.contains(&format!(" --data-root {root}")), "{stdout}");
    }
    assert!(!Path::new(&world.at("refused")).exists());
}

/// A job over data at an address has the run of a job over the same file here, and later reads need no word of the server.
#[test]
fn a_job_has_data_at_an_address() {
    let world = World::new();
    let address = world.url("d/text.txt");
    let root = world.url("d");
    let named = format!("path = {address:?}");
    world.server.sent();
    let copied = world.job("copied.toml", &[("path = \"text.txt\"", &named)], "");
    let run = world.run(&copied, &world.at("copied"), &[&root], &[]);
    // The copy is the last read, and one request asked for the length.
    let requests = 1 + world.server.sent()["d/text.txt"].0;
    assert_eq!(fs::read(run.layout.data_file(0)).unwrap(), fs::read(world.at("text.txt")).unwrap());
    // So many steps draw the file's last byte, which is the one that a lie changes.
    let named = named + "\ncopy = false";
    let lean = world.job("lean.toml", &[("path = \"text.txt\"", &named), ("steps = 2", "steps = 24")], "");
    let run = world.run(&lean, &world.at("lean"), &[&root], &["--data", &root]);
    assert!(!run.layout.data_file(0).exists());
    let (code, _, stderr) = output(&["train", "--out", &world.at("lean"), "--resume", "--data", &root]);
    assert_eq!(code, 0, "{stderr}");
    for from in 2..=requests {
        world.server.lie("d/text.txt", Lie::Swaps(from));
        for (job, name) in [(&copied, "copied"), (&lean, "lean")] {
            let out = world.at(&format!("{name}-{from}"));
            let (code, said) = world.train(job, &out, &[&root]);
            match code {
                // Nothing was read any more, or all of it was the other file.
                0 => {
                    assert_eq!(output(&["verify", &out]).0, 0);
                    let here = world.folder.path().to_str().unwrap();
                    let audited = |data: &str| output(&["audit", &out, "--engine", "cpu", "--data", data]).0;
                    assert!(
                        name != "lean" || (audited(here) == 0) != (audited(&root) == 0),
                        "{from}: {said}"
                    );
                }
                _ => {
                    assert!((3..=4).contains(&code) && said.contains("text.txt"), "{code}: {said}");
                    // A copy that would be another file than the manifest's begins no run.
                    let begun = Path::new(&out).join("run.json").exists();
                    assert!(!begun || name == "lean", "{from}: {said}");
                }
            }
        }
    }
    // Evaluation files and programs are files here, and so is the job.
    let text = fs::read_to_string(world.at("job.toml")).unwrap()
        + &format!("[evaluation]\nevery = 2\nfiles = [{address:?}]");
    fs::write(world.at("other.toml"), text).unwrap();
    let (code, said) = world.train(&world.at("other.toml"), &world.at("other"), &[&root]);
    let here_alone = "from a folder alone: copy it here";
    assert!(code == 2 && said.contains("evaluation.files") && said.contains(here_alone), "{code}: {said}");
    let (code, said) = world.train(&world.url("job.toml"), &world.at("other"), &[]);
    assert!(code == 2 && said.contains("a job is a file here"), "{code}: {said}");
}

/// No lie of a server begins a run that says something else than it is.
#[test]
fn lies_about_weights_and_runs_begin_no_run() {
    // A read that fails is tried again for eight seconds: three worlds, each with a third of the lies, wait at once.
    thread::scope(|scope| {
        for first in 0..3 {
            scope.spawn(move || lies_begin_no_run(first));
        }
    });
    let world = World::new();
    let weights = world.job("weights.toml", &[], &format!("weights = [{:?}]", world.url("w/w.safetensors")));
    let run = world.job("run.toml", &[], &format!("run = {:?}", world.url("first")));
    let (w, first) = (world.url("w"), world.url("first"));
    // Whichever read gets other bytes: a run that begins has the state of the file that it names.
    let mut refused = 0;
    for from in 1..9 {
        world.server.lie("w/w.safetensors", Lie::Swaps(from));
        let out = world.at(&format!("swapped-{from}"));
        let (code, said) = world.train(&weights, &out, &[&w]);
        if code != 0 {
            assert!(code == 4 && said.contains("are others than before"), "{from}: {code}: {said}");
            refused += 1;
            continue;
        }
        let other = world.at("other.safetensors");
        let mut bytes = fs::read(world.at("w.safetensors")).unwrap();
        *bytes.last_mut().unwrap() ^= 0x10;
        fs::write(&other, bytes).unwrap();
        let matches = [&world.at("w.safetensors"), &other].map(|file| {
            output(&[
                "audit",
                &out,
                "--engine",
                "cpu",
                "--weights",
                file,
                "--verdict",
                &world.at("verdict.json"),
            ])
            .0 == 0
        });
        assert!(matches[0] != matches[1], "{from}: {matches:?}");
    }
    assert!(refused > 0);
    // A file of other tensors is refused by its header.
    world.server.sent();
    let text = fs::read_to_string(&weights).unwrap().replace("w/w.safetensors", "w/large.safetensors");
    fs::write(&weights, text).unwrap();
    let (code, said) = world.train(&weights, &world.at("lied"), &[&w]);
    assert!(code == 4 && said.contains("no file has the parameters"), "{code}: {said}");
    let (_, bytes) = world.server.sent()["w/large.safetensors"];
    // One piece of a long read, of a file of 4 MiB.
    assert!(bytes < 2 << 20, "{bytes}");
    // An unfinished run, and one whose end no server shows.
    world.server.lie("first/heads/000000000010", Lie::Forbidden);
    let (code, said) = world.train(&run, &world.at("lied"), &[&first]);
    assert!(code == 3 && said.contains("status 403"), "{code}: {said}");
}

/// Every third lie from this one on, told in a world of its own.
fn lies_begin_no_run(from: usize) {
    let world = World::new();
    let weights = world.job("weights.toml", &[], &format!("weights = [{:?}]", world.url("w/w.safetensors")));
    let run = world.job("run.toml", &[], &format!("run = {:?}", world.url("first")));
    let (w, first) = (world.url("w"), world.url("first"));
    let last = format!("first/{}", names::checkpoint(8));
    let mut wrong = Vec::new();
    let lies = [
        (&weights, &w, "w/w.safetensors", Lie::Zeros, 4),
        (&weights, &w, "w/w.safetensors", Lie::Huge, 3),
        (&weights, &w, "w/w.safetensors", Lie::Changes, 3),
        (&weights, &w, "w/w.safetensors", Lie::Cut, 3),
        (&weights, &w, "w/w.safetensors", Lie::Forbidden, 3),
        (&weights, &w, "w/w.safetensors", Lie::Redirects, 3),
        (&weights, &w, "w/config.json", Lie::Forbidden, 3),
        (&weights, &w, "w/w.safetensors", Lie::Slow, 0),
        (&run, &first, &last, Lie::Zeros, 4),
        (&run, &first, &last, Lie::Swaps(1), 4),
        (&run, &first, &last, Lie::Cut, 3),
        (&run, &first, &last, Lie::OtherTotal, 3),
        (&run, &first, "first/transcript", Lie::Swaps(1), 4),
        (&run, &first, "first/heads/000000000010", Lie::Swaps(1), 4),
        (&run, &first, "first/run.json", Lie::Forbidden, 3),
        (&run, &first, "first/index", Lie::Zeros, 4),
        (&run, &first, "first/transcript", Lie::Slow, 0),
    ];
    for (job, root, file, lie, wanted) in lies.into_iter().skip(from).step_by(3) {
        world.server.lie(file, lie);
        let out = world.at("lied");
        let (code, said) = world.train(job, &out, &[root]);
        let is_there = Path::new(&out).join("run.json").exists();
        if code != wanted || is_there != (wanted == 0) {
            wrong.push(format!("{file} {lie:?}: {code}, not {wanted}: {said}"));
        }
        // A run that is refused leaves nothing.
        if is_there {
            fs::remove_dir_all(&out).unwrap();
        }
        assert!(!Path::new(&out).join("checkpoints").exists());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The blocks in a cache's folder.
fn blocks(cache: &str) -> Vec<std::path::PathBuf> {
    fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The cache has what a digest decides, and a run is the same with it, without it, and with one that lies.
#[test]
fn training_reads_again_from_a_cache_and_believes_nothing_in_it() {
    let world = World::new();
    let named = format!("path = {:?}", world.url("d/text.txt"));
    let copied = world.job("copied.toml", &[("path = \"text.txt\"", &named)], "");
    let data = named + "\ncopy = false";
    let lean = world.job("lean.toml", &[("path = \"text.txt\"", &data)], "");
    let weights = world.job("weights.toml", &[], &format!("weights = [{:?}]", world.url("w/w.safetensors")));
    let run = world.job("run.toml", &[], &format!("run = {:?}", world.url("first")));
    let size = |name: &str| fs::metadata(world.at(name)).unwrap().len();
    let checkpoint = format!("first/{}", names::checkpoint(8));
    for (name, job, root, audit) in [
        ("lean", &lean, world.url("d"), vec!["--data".to_string(), world.url("d")]),
        ("copied", &copied, world.url("d"), vec![]),
        ("weights", &weights, world.url("w"), vec!["--weights".into(), world.url("w/w.safetensors")]),
        ("run", &run, world.url("first"), vec![]),
    ] {
        let cache = world.at(&format!("cache-{name}"));
        let train = |number: u32, cached: bool| {
            let out = world.at(&format!("{name}-{number}"));
            let (roots, options) = (["--data-root", &root], ["--cache", &cache]);
            let mut args = vec!["train", job, "--out", &out, "--engine", "cpu"];
            args.extend(roots);
            args.extend(options.into_iter().filter(|_| cached));
            world.server.sent();
            let (code, stdout, stderr) = output(&args);
            assert_eq!(code, 0, "{name}: {stdout}{stderr}");
            assert_eq!(stderr.contains(&format!("cache {cache}: ")), cached, "{stderr}");
            let run = Run::open(Path::new(&out)).unwrap();
            let transcript = fs::read(Path::new(&out).join(names::TRANSCRIPT)).unwrap();
            let sent = world.server.sent();
            // Records have no word of the run's nonce, so equal runs have equal transcripts.
            ((run.file.initial, run.file.origin, transcript), sent, stderr, out)
        };
        let (due, uncached, ..) = train(0, false);
        assert_eq!(train(1, true).0, due, "{name}");
        let (again, sent, said, out) = train(2, true);
        assert_eq!(again, due, "{name}");
        assert!(said.contains(" were read from it, ") && !said.contains(": 0 B were read"), "{name}: {said}");
        // A look at the beginning and the tree come before there is a digest; all later reads are the cache's.
        match name {
            "lean" | "copied" => {
                let (data, without) = (sent["d/text.txt"].1, uncached["d/text.txt"].1);
                assert!(data == 2 * size("text.txt") && data < without, "{sent:?} {uncached:?}");
            }
            "weights" => {
                let (file, without) = (sent["w/w.safetensors"].1, uncached["w/w.safetensors"].1);
                assert!(file == 2 * size("w.safetensors") && file < without, "{sent:?} {uncached:?}");
            }
            _ => {
                assert!(!sent.contains_key(&checkpoint) && uncached.contains_key(&checkpoint), "{sent:?}");
                assert_eq!(
                    [sent["first/index"].0, uncached["first/index"].0],
                    [1, 1],
                    "the index is asked for once"
                );
            }
        }
        let audit: Vec<&str> = audit.iter().map(String::as_str).collect();
        let (code, stdout, stderr) = output(&[&["audit", &out, "--engine", "cpu"][..], &audit].concat());
        assert!(code == 0 && stdout.starts_with("MATCHES"), "{stdout}{stderr}");
        // Blocks that lie, and blocks that are damaged.
        for (number, says) in [(3, "files in it were not those that"), (4, "blocks in it were damaged")] {
            assert!(!blocks(&cache).is_empty());
            for block in blocks(&cache) {
                match number {
                    3 => forge(&block, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x55)),
                    _ => fs::write(&block, "no block").unwrap(),
                }
            }
            let (found, _, said, _) = train(number, true);
            assert_eq!(found, due, "{name}: {said}");
            assert!(said.contains(says), "{name}: {said}");
            // The lies are gone, and what came is kept.
            train(10 + number, true);
        }
    }
    // A bound is kept, and blocks of another run go first.
    let cache = world.at("cache");
    fs::create_dir(&cache).unwrap();
    for number in 0..8 {
        let name = format!("{}-l{number:010x}", "0".repeat(64));
        fs::write(Path::new(&cache).join(name), vec![0; 1 << 20]).unwrap();
    }
    let (out, root) = (world.at("bounded"), world.url("w"));
    let cached = ["--cache", &cache, "--cache-size", "2"];
    let new = ["train", &weights, "--out", &out, "--engine", "cpu", "--data-root", &root];
    let (code, stdout, stderr) = output(&[&new[..], &cached].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let kept: u64 = blocks(&cache).iter().map(|block| fs::metadata(block).unwrap().len()).sum();
    assert!(kept <= 2 << 20, "{kept}");
    // A run that is gone on with takes the same options.
    let (out, root) = (world.at("lean-0"), world.url("d"));
    let resume = ["train", "--out", &out, "--resume", "--data", &root];
    let (code, stdout, stderr) = output(&[&resume[..], &cached].concat());
    assert!(code == 0 && stderr.contains(&format!("cache {cache}: ")), "{stdout}{stderr}");
}

/// No cache is named in vain, and no run begins before that is known.
#[test]
fn a_cache_of_nothing_is_refused() {
    let world = World::new();
    let (cache, out) = (world.at("cache"), world.at("out"));
    let job = world.job("here.toml", &[], "");
    for (args, says) in [
        (&["train", &job, "--out", &out, "--cache", &cache][..], "the job names files in folders alone"),
        (&["train", "--out", &world.at("first"), "--resume", "--cache", &cache], "both are in folders here"),
        (
            &["train", "--ranks", "2", "--rank", "1", "--coordinator", "127.0.0.1:1", "--cache", &cache],
            "give --cache to rank 0 alone",
        ),
    ] {
        let (code, _, stderr) = output(args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {code}: {stderr}");
    }
    assert!(!Path::new(&cache).exists() && !Path::new(&out).join("run.json").exists());
    // What a run hides is no bytes for a cache.
    let data = [("path = \"text.txt\"", format!("path = {:?}\ncopy = false", world.url("d/text.txt")))];
    let changes = data.each_ref().map(|(from, to)| (*from, to.as_str()));
    let hiding = world.job("hiding.toml", &changes, "");
    let text = fs::read_to_string(&hiding).unwrap();
    fs::write(&hiding, edited(&text, &[("[commit]", "[commit]\nscheme = 1")])).unwrap();
    let (code, _, stderr) =
        output(&["train", &hiding, "--out", &out, "--data-root", &world.url("d"), "--cache", &cache]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(blocks(&cache).len(), 0);
}

/// The command's last lines name the address of the data that the run does not hold.
#[test]
fn a_run_says_where_its_data_are() {
    let world = World::new();
    let (root, here) = (world.url("d"), world.folder.path().to_str().unwrap().to_string());
    for (name, path, place) in
        [("there", world.url("d/text.txt"), root.as_str()), ("here", "text.txt".to_string(), here.as_str())]
    {
        let data = format!("path = {path:?}\ncopy = false");
        let job = world.job(&format!("{name}.toml"), &[("path = \"text.txt\"", &data)], "");
        let out = world.at(name);
        let (code, said) = world.train(&job, &out, &[&root]);
        let command = said.lines().find_map(|line| line.split_once("tiebreak audit ")).unwrap().1;
        assert!(code == 0 && command.ends_with(&format!(" --data {place}")), "{said}");
        let (code, stdout, stderr) = output(&["audit", &out, "--engine", "cpu", "--data", place]);
        assert!(code == 0 && stdout.starts_with("MATCHES"), "{stdout}{stderr}");
        // A run that is gone on with knows what its command line says.
        let (code, stdout, stderr) = output(&["train", "--out", &out, "--resume", "--data", place]);
        assert!(code == 0 && stdout.contains(&format!(" --data {place}")), "{stdout}{stderr}");
    }
}
