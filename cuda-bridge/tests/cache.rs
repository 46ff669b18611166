//! The cache of machine code: it returns the stored code, notices damage, and never stands in the way.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cuda_bridge::cache::{Cache, Key, Origin};
use cuda_bridge::nvrtc::Version;

/// An empty folder of a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins").join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn version(major: i32, minor: i32) -> Version {
    Version { major, minor }
}

fn key(text: &str) -> Key {
    Key::new(text, version(12, 9), "sm_90a", &["--fmad=false"])
}

/// The cache's answer, with true if the code had to be made.
fn get(cache: &Cache, key: Key, made: &[u8]) -> (Vec<u8>, bool) {
    let Ok((cubin, origin)) = cache.get(key, || Ok::<_, Infallible>(made.to_vec()));
    (cubin, !matches!(origin, Origin::Disk))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_was_made_is_there() {
    let folder = folder("what_was_made");
    let cache = Cache::at(&folder, 1 << 20);
    assert_eq!(get(&cache, key("a"), b"first"), (b"first".to_vec(), true));
    assert_eq!(get(&cache, key("a"), b"other"), (b"first".to_vec(), false));
    // Another process would open it anew.
    assert_eq!(get(&Cache::at(&folder, 1 << 20), key("a"), b"other"), (b"first".to_vec(), false));
    // An empty result is a result.
    assert_eq!(get(&cache, key("empty"), b""), (Vec::new(), true));
    assert_eq!(get(&cache, key("empty"), b"other"), (Vec::new(), false));
    assert_eq!(files(&folder).len(), 2);
}

#[test]
fn all_that_decides_is_in_the_key() {
    let keys = [
        key("a"),
        key("b"),
        Key::new("a", version(12, 8), "sm_90a", &["--fmad=false"]),
        Key::new("a", version(1, 29), "sm_90a", &["--fmad=false"]),
        Key::new("a", version(12, 9), "sm_80", &["--fmad=false"]),
        Key::new("a", version(12, 9), "sm_90a", &[]),
        Key::new("a", version(12, 9), "sm_90a", &["--fmad=", "false"]),
        Key::new("a", version(12, 9), "sm_90a", &["--fmad=false", ""]),
    ];
    for (i, one) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|other| other != one), "{i}");
    }
    assert_eq!(key("a"), keys[0]);
}

#[test]
fn a_damaged_file_is_made_anew() {
    let folder = folder("damaged");
    let cache = Cache::at(&folder, 1 << 20);
    let cubin: Vec<u8> = (0..200).collect();
    get(&cache, key("a"), &cubin);
    let [path] = &files(&folder)[..] else { panic!("one file") };
    let whole = fs::read(path).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    damaged.extend((0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    }));
    damaged.push([&whole[..], &[0]].concat());
    for bytes in damaged {
        fs::write(path, &bytes).unwrap();
        assert_eq!(get(&cache, key("a"), b"anew"), (b"anew".to_vec(), true), "{} bytes", bytes.len());
        assert_eq!(get(&cache, key("a"), b"never"), (b"anew".to_vec(), false));
    }
    // A whole file under another key's name.
    get(&cache, key("b"), b"of b");
    let other = files(&folder).into_iter().find(|file| file != path).unwrap();
    fs::copy(&other, path).unwrap();
    assert_eq!(get(&cache, key("a"), b"of a"), (b"of a".to_vec(), true));
    assert_eq!(get(&cache, key("b"), b"never"), (b"of b".to_vec(), false));
}

#[test]
fn it_stays_within_bounds() {
    let folder = folder("bounds");
    let cache = Cache::at(&folder, 1000);
    let age = |name: &Path, seconds: u64| {
        let file = fs::File::options().append(true).open(name).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    // Four files of 240 bytes and their heads do not fit; those used last are kept.
    let mut names = Vec::new();
    for (i, text) in ["a", "b", "c"].into_iter().enumerate() {
        let before = if i == 0 { Vec::new() } else { files(&folder) };
        get(&cache, key(text), &[7; 240]);
        names.push(files(&folder).into_iter().find(|file| !before.contains(file)).unwrap());
    }
    for (name, hours) in names.iter().zip([30, 20, 10]) {
        age(name, hours * 3600);
    }
    // Reading the oldest makes it the youngest.
    assert!(!get(&cache, key("a"), b"").1);
    fs::write(folder.join("notes.txt"), "somebody's").unwrap();
    fs::write(folder.join("left.begun"), "by a process that ended").unwrap();
    age(&folder.join("left.begun"), 7200);
    fs::write(folder.join("fresh.begun"), "by one that runs").unwrap();
    get(&cache, key("d"), &[7; 240]);
    assert!(!get(&cache, key("a"), b"").1 && !get(&cache, key("c"), b"").1 && !get(&cache, key("d"), b"").1);
    assert!(!names[1].exists());
    assert!(folder.join("notes.txt").exists() && folder.join("fresh.begun").exists());
    assert!(!folder.join("left.begun").exists());
    // A file that was just stored stays, whatever its size.
    assert!(get(&cache, key("large"), &[1; 5000]).1);
    assert!(!get(&cache, key("large"), b"").1);
    assert_eq!(files(&folder).iter().filter(|file| file.extension().unwrap() == "cubin").count(), 1);
}

#[test]
fn a_cache_that_cannot_be_kept_is_none() {
    let folder = folder("none");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("file");
    fs::write(&file, "no folder").unwrap();
    for place in [file.clone(), file.join("below")] {
        let cache = Cache::at(&place, 1000);
        let Ok((cubin, origin)) = cache.get(key("a"), || Ok::<_, Infallible>(vec![1, 2]));
        assert_eq!(cubin, [1, 2]);
        assert!(matches!(origin, Origin::Compiler(Err(_))), "{}", place.display());
    }
    // A compiler's error is the caller's, and leaves nothing.
    let cache = Cache::at(&folder.join("kept"), 1000);
    assert_eq!(cache.get(key("a"), || Err("rejected")).unwrap_err(), "rejected");
    assert_eq!(get(&cache, key("a"), b"then"), (b"then".to_vec(), true));
}

#[test]
fn many_at_once() {
    let folder = folder("many");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = Cache::at(&folder, 1 << 20);
                for round in 0..20u8 {
                    for i in 0..5u8 {
                        assert_eq!(get(&cache, key(&i.to_string()), &[i; 3000]).0, [i; 3000], "{round}");
                    }
                }
            });
        }
    });
    assert_eq!(files(&folder).len(), 5, "five results, and nothing begun");
}
