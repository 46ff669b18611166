//! Runs that a command line names by an address.

use std::fs;
use std::path::Path;

use crate::common::served::{Lie, Manner, Served};
use crate::common::{files, gpt_job, npy, trained};
use crate::{output, path, tiebreak};

/// Commands say of a run at an address what they say of the same run in a folder. What writes to a run needs a folder.
#[test]
fn commands_read_a_run_at_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "run");
    trained(&gpt_job(folder.path(), "operator", ""), Path::new(&out), None);
    let (code, _, stderr) = output(&["publish", &out, &format!("{out}/public")]);
    assert!(code == 2 && stderr.contains("is in the folder of the run itself"), "{code}: {stderr}");
    let (code, stdout, stderr) = output(&["publish", &out]);
    assert_eq!((code, stdout.contains("index lists ")), (0, true), "{stdout}{stderr}");
    let name = |name: std::path::PathBuf| name.to_str().unwrap().replace('\\', "/");
    let served = files(Path::new(&out)).into_iter().map(|(file, bytes)| (name(file), bytes));
    let server = Served::new(served, Manner::default());
    let url = server.address.as_str();
    let (here, there) = (path(folder.path(), "here"), path(folder.path(), "there"));
    for (command, rest) in [
        ("verify", vec![]),
        ("inspect", vec![]),
        ("replay", vec!["--step", "5", "--engine", "cpu", "-q"]),
        ("compare", vec![out.as_str()]),
        ("export", vec!["--format", "safetensors", "--output"]),
    ] {
        let [found, due] = [(url, &there), (out.as_str(), &here)].map(|(run, to)| {
            let to = (command == "export").then_some(to.as_str());
            let (code, stdout, stderr) =
                output(&[command, run].into_iter().chain(rest.clone()).chain(to).collect::<Vec<_>>());
            assert_eq!(code, 0, "{command} {run}: {stderr}");
            stdout.replace(run, "RUN").replace(to.unwrap_or("no file"), "TO")
        });
        assert_eq!(found, due, "{command}");
    }
    assert_eq!(files(Path::new(&there)), files(Path::new(&here)));
    let inputs = path(folder.path(), "tokens.npy");
    fs::write(&inputs, npy("<u4", "(1, 2)", &[1, 0, 0, 0, 2, 0, 0, 0])).unwrap();
    let logits = |run: &str, name: &str| {
        let to = path(folder.path(), name);
        let (code, _, stderr) = output(&["logits", run, "--inputs", &inputs, "--output", &to]);
        assert_eq!(code, 0, "{stderr}");
        fs::read(&to).unwrap()
    };
    assert!(logits(url, "there.npy") == logits(&out, "here.npy"));
    server.sent();
    let (code, stdout, stderr) =
        output(&["audit", url, "--steps", "5..6", "--only-part", "--engine", "cpu", "--jobs", "1"]);
    assert_eq!(code, 0, "{stderr}");
    assert!((stdout + &stderr).contains("and the released model: only the files of the part were read"));
    let sent = server.sent();
    let asked = |part: &str| sent.keys().filter(|name| name.contains(part)).count();
    assert_eq!((asked("checkpoints/"), asked("traces/"), asked("model")), (1, 2, 0), "{sent:?}");
    for (args, code, says) in [
        (&["audit", url, "--only-part"][..], 2, "name a part by --steps, --sample or --shard"),
        (&["publish", url], 3, "copy the run to a folder here"),
        (&["verify", "http://127.0.0.1:9/no"], 3, "check the network and the server"),
        (&["verify", "gopher://127.0.0.1/no"], 2, "begins with http://"),
    ] {
        let (found, _, stderr) = output(args);
        assert!(found == code && stderr.contains(says), "{args:?}: {found}: {stderr}");
    }
    for (lie, says) in [
        (Lie::Forbidden, "whoever publishes the run has to let everybody read"),
        (Lie::Shifted, "run the same command again; if the error stays"),
        (Lie::Redirects, "copy the run to a folder here"),
    ] {
        server.lie("job.toml", lie);
        let (code, _, stderr) = output(&["verify", url]);
        assert!(code == 3 && stderr.contains(says), "{lie:?}: {code} {stderr}");
    }
}

/// The signature makes the head longer than the index says.
#[test]
fn a_signature_after_the_index_asks_for_another_index() {
    let folder = tempfile::tempdir().unwrap();
    let (job, out, key) =
        (gpt_job(folder.path(), "microbatch", ""), path(folder.path(), "run"), path(folder.path(), "key"));
    let done = |args: &[&str]| {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout
    };
    done(&["train", job.to_str().unwrap(), "--out", &out]);
    done(&["key", "new", &key, "--name", "trainer.example"]);
    done(&["publish", &out]);
    let index = || fs::read_to_string(Path::new(&out).join("index")).unwrap();
    let before = index();
    let said = done(&["sign", &out, "--key", &key]);
    assert!(
        said.contains("the index is older than the signature: write it again with: tiebreak publish "),
        "{said}"
    );
    done(&["publish", &out]);
    assert_ne!(index(), before);
}

/// A served run of four kinds of files, with its index.
fn served(folder: &Path, out: &str) -> Served {
    trained(&gpt_job(folder, "operator", ""), Path::new(out), None);
    let (code, _, stderr) = output(&["publish", out]);
    assert_eq!(code, 0, "{stderr}");
    let name = |name: std::path::PathBuf| name.to_str().unwrap().replace('\\', "/");
    let files = files(Path::new(out)).into_iter().map(|(file, bytes)| (name(file), bytes));
    Served::new(files, Manner::default())
}

/// Files that a digest decides and that a server sent, by their names.
fn promised(server: &Served) -> Vec<String> {
    let is_promised = |name: &String| {
        ["data/", "checkpoints/", "traces/", "model"].iter().any(|beginning| name.starts_with(beginning))
    };
    server.sent().into_keys().filter(is_promised).collect()
}

/// Two processes at once fill a cache; later commands read what a digest decides from there, and say so.
#[test]
fn commands_that_share_a_cache_read_a_run_once() {
    let folder = tempfile::tempdir().unwrap();
    let (out, cache) = (path(folder.path(), "run"), path(folder.path(), "cache"));
    let server = served(folder.path(), &out);
    let url = server.address.as_str();
    let audit = ["audit", url, "--engine", "cpu", "--cache", &cache];
    let both = [(); 2].map(|()| {
        let mut command = tiebreak(&audit);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    });
    for process in both {
        let done = process.wait_with_output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success() && stderr.contains(" were read from it, "), "{stderr}");
        assert!(!stderr.contains("damaged") && !stderr.contains("takes no more"), "{stderr}");
    }
    assert!(!promised(&server).is_empty());
    for args in [
        &audit[..],
        &["audit", url, "--engine", "cpu", "--cache", &cache, "--steps", "5..6", "--only-part"],
        &["replay", url, "--step", "5", "--engine", "cpu", "--cache", &cache],
        &["verify", url, "--cache", &cache],
        &["watch", url, "--engine", "cpu", "--cache", &cache],
    ] {
        let (code, stdout, stderr) = output(args);
        assert!(
            code == 0 && stderr.contains("were read from it, 0 B came from the address"),
            "{args:?}: {stderr}"
        );
        assert!(stdout.contains("not checked: what the address has of "), "{args:?}: {stdout}");
        assert_eq!(promised(&server), Vec::<String>::new(), "{args:?}");
    }
    for args in [
        &["verify", url, "--cache", &cache][..],
        &["replay", url, "--step", "5", "--engine", "cpu", "--cache", &cache],
        &["replay", url, "--step", "5", "--microbatch", "0", "--engine", "cpu", "--cache", &cache],
        &["watch", url, "--engine", "cpu", "--cache", &cache],
    ] {
        let not_checked = |cached: bool| {
            let args = if cached { args } else { &args[..args.len() - 2] };
            let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
            assert_eq!(code, 0, "{args:?}: {stderr}");
            let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            found["not_checked"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|what| what.to_string().contains("cache"))
                .count()
        };
        assert_eq!([true, false].map(not_checked), [1, 0], "{args:?}");
    }
    server.sent();
    // A damaged block is fetched again, and said.
    let block = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    fs::write(&block, "no block").unwrap();
    let (code, _, stderr) = output(&audit);
    assert!(
        code == 0 && stderr.contains("1 blocks in it were damaged, so the address was asked"),
        "{stderr}"
    );
    let (code, _, stderr) = output(&["audit", &out, "--cache", &cache]);
    assert!(code == 2 && stderr.contains("--cache is for a run or data at an address"), "{code}: {stderr}");
    fs::write(path(folder.path(), "file"), "").unwrap();
    let (code, _, stderr) = output(&["verify", url, "--cache", &path(folder.path(), "file")]);
    assert!(code != 0 && stderr.contains("file"), "{code}: {stderr}");
    // A block of 1 MiB and its checksum have no room in 1 MiB.
    for least in ["0", "1"] {
        let (code, _, stderr) = output(&["verify", url, "--cache", &cache, "--cache-size", least]);
        assert!(code == 2 && stderr.contains("--cache-size"), "{code}: {stderr}");
    }
}

/// The least bound has room for a part of the run alone.
#[test]
fn a_small_cache_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "run");
    let server = served(folder.path(), &out);
    let mib = 1 << 20;
    let size = |cache: &str| -> u64 {
        let blocks = fs::read_dir(cache).unwrap();
        blocks.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let audited = |cache: &str, most: &str| {
        let args = ["audit", &server.address, "--engine", "cpu", "--jobs", "1", "--cache", cache];
        let (code, _, stderr) = output(&[&args[..], &["--cache-size", most]].concat());
        assert_eq!(code, 0, "{stderr}");
        size(cache)
    };
    let [large, small] = ["large", "small"].map(|name| path(folder.path(), name));
    // Filled beforehand with blocks of another run, which go first.
    fs::create_dir(&small).unwrap();
    for number in 0..8 {
        let name = format!("{}-l{number:010x}", "0".repeat(64));
        fs::write(path(Path::new(&small), &name), vec![0; mib as usize]).unwrap();
    }
    assert!(audited(&large, "1000") > 800_000);
    let kept = audited(&small, "2");
    assert!((400_000..=2 * mib).contains(&kept), "{kept}");
}

/// What a run hides is no bytes for a cache.
#[test]
fn nothing_of_a_run_that_hides_is_cached() {
    let hiding = crate::hidden::Hiding::new();
    let run = hiding.train("run");
    let name = |name: std::path::PathBuf| name.to_str().unwrap().replace('\\', "/");
    let all = files(Path::new(&run)).into_iter().map(|(file, bytes)| (name(file), bytes));
    let server = Served::new(all, Manner::default());
    let (salts, data, cache) = (format!("{run}.salt-key"), hiding.at("private"), hiding.at("cache"));
    let args = ["audit", &server.address, "--engine", "cpu", "--salt-key", &salts, "--data", &data];
    let (code, _, stderr) = output(&[&args[..], &["--cache", &cache]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 0);
}

/// Weights at an address are held to the digests that a run names, and give what the same file here gives.
#[test]
fn weights_are_read_at_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "microbatch", "");
    let seeded = trained(&job, Path::new(&at("seeded")), None);
    fs::copy(seeded.layout.model(), at("weights.safetensors")).unwrap();
    let text = fs::read_to_string(&job).unwrap();
    fs::write(at("tuned.toml"), format!("{text}\n[init]\nweights = [\"weights.safetensors\"]\n")).unwrap();
    let tuned = at("tuned");
    trained(Path::new(&at("tuned.toml")), Path::new(&tuned), None);
    let file = fs::read(at("weights.safetensors")).unwrap();
    let mut other = file.clone();
    *other.last_mut().unwrap() ^= 0x10;
    let longer = [&file[..], b" "].concat();
    let files = [("weights.safetensors", file), ("other.safetensors", other), ("longer.safetensors", longer)];
    let files = files.map(|(name, bytes)| (format!("public/{name}"), bytes));
    let server = Served::new(files, Manner::default());
    let url = |name: &str| format!("{}/public/{name}", server.address);
    let audit = |weights: &str| output(&["audit", &tuned, "--engine", "cpu", "--weights", weights]);
    let (code, stdout, stderr) = audit(&url("weights.safetensors"));
    assert!(
        code == 0 && stdout.contains("record 0 is the initial state that the weights' files give"),
        "{stdout}{stderr}"
    );
    for name in ["other.safetensors", "longer.safetensors"] {
        let (code, _, stderr) = audit(&url(name));
        assert!(
            code == 4 && stderr.contains("it is not the file of weights that the run names"),
            "{code}: {stderr}"
        );
    }
    let asked = server.sent();
    assert!(!asked.contains_key("public/longer.safetensors"), "its length is enough: {asked:?}");
    let (code, _, stderr) = audit(&url("none.safetensors"));
    assert!(code == 3 && stderr.contains("none.safetensors"), "{code}: {stderr}");
    let (code, _, stderr) = audit(&url(""));
    assert!(code == 2 && stderr.contains("a file is wanted"), "{code}: {stderr}");
    let (code, _, stderr) = audit("http://127.0.0.1:1");
    assert!(code == 2 && stderr.contains("http://127.0.0.1:1: a file is wanted"), "{code}: {stderr}");
    let (code, stdout, stderr) =
        output(&["watch", &tuned, "--engine", "cpu", "--weights", &url("weights.safetensors")]);
    assert!(code == 0 && stdout.contains("the weights' files give"), "{stdout}{stderr}");
    // A model with its job: the same figures as of the file here.
    let (here, there) = (at("weights.safetensors"), url("weights.safetensors"));
    for args in [
        &["eval", "MODEL", "--job", &at("job.toml"), "--samples", "3", "--engine", "cpu"][..],
        &["generate", "MODEL", "--job", &at("job.toml"), "--length", "3", "--seed", "1", "--engine", "cpu"],
    ] {
        let [due, found] = [&here, &there].map(|model| {
            let args: Vec<&str> = args.iter().map(|arg| if *arg == "MODEL" { model } else { *arg }).collect();
            let (code, stdout, stderr) = output(&args);
            assert_eq!(code, 0, "{args:?}: {stderr}");
            stdout.replace(model, "MODEL")
        });
        assert_eq!(due, found, "{args:?}");
    }
}
