//! The command blocks of docs/tutorials/ and docs/how-to/ do what these pages show.
//!
//! A block `sh` runs, in order with the others of its page, by one `sh -e` in a folder that holds what a clone's root
//! holds for it. A block `text` behind it is what it printed to stdout. `sh no-run` needs what no test machine has;
//! `sh llvmpipe` needs that adapter.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common;
use crate::demo::{copy, demo};

/// The longest that a page may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// The address that pages listen at; a test takes a free one.
const ADDRESS: &str = "127.0.0.1:8707";

/// A fenced block of a page.
struct Block {
    /// Its first line in the page.
    line: usize,
    tag: String,
    text: String,
}

/// The fenced blocks of a page, in order.
fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(tag)) => {
                open = Some(Block { line: number + 2, tag: tag.to_string(), text: String::new() })
            }
            (Some(block), None) => writeln!(block.text, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    found
}

/// True if a page's block runs here.
fn runs(block: &Block, adapters: &[String]) -> bool {
    match block.tag.as_str() {
        "sh" => true,
        "sh llvmpipe" => adapters.iter().any(|name| name.contains("llvmpipe")),
        "sh no-run" | "text" | "toml" | "json" | "python" | "python no-run" => false,
        other => panic!("line {}: {other:?} is no tag of a block on these pages", block.line),
    }
}

/// A line with each figure of time replaced: a number before a unit.
fn without_times(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_number =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.parse::<f64>().is_ok();
    let is_unit =
        |word: &str| ["s", "ms", "min", "h"].contains(&word.trim_end_matches([',', ';', ':', '.', ')']));
    let timed = |i: usize| is_number(words[i]) && words.get(i + 1).is_some_and(|next| is_unit(next));
    let plain: Vec<&str> = (0..words.len()).map(|i| if timed(i) { "#" } else { words[i] }).collect();
    plain.join(" ")
}

/// True if a line is the shown one, in which `...` stands for anything.
fn line_matches(shown: &str, line: &str) -> bool {
    let (shown, line) = (without_times(shown), without_times(line));
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The first shown line that the output does not have; a line `...` stands for any number of lines.
fn first_missing<'a>(shown: &'a str, output: &str) -> Option<&'a str> {
    let lines: Vec<&str> = output.lines().collect();
    let (mut at, mut any) = (0, false);
    for wanted in shown.lines() {
        if wanted == "..." {
            any = true;
            continue;
        }
        let here = lines[at..].iter().position(|line| line_matches(wanted, line));
        match here {
            Some(0) => at += 1,
            Some(further) if any => at += further + 1,
            _ => return Some(wanted),
        }
        any = false;
    }
    (!any && at < lines.len()).then_some("(the output has more lines)")
}

/// Makes the `tiebreak` that pages run. Several pages begin with the same demo or the same hostile runs, so the command makes
/// the folder `$3` of these once, and other pages get a copy of it and of what the command printed. One page at a time makes them.
fn remembering(commands: &Path) {
    let script = r#"#!/bin/sh -e
case "$1 $2" in
'demo --dir' | 'selftest --hostile') ;;
*) exec 'TIEBREAK' "$@" ;;
esac
[ ! -e "$3" ] || exec 'TIEBREAK' "$@"
# The folder's name is in no file, and -q prints nothing.
made="$(dirname "$0")/$(command="$1 $2"; shift 3; echo "$command folder $*" | tr ' /' '_')"
until mkdir "$made.lock" 2>/dev/null; do sleep 0.1; done
trap 'rmdir "$made.lock"' EXIT
if [ ! -e "$made" ]; then
  'TIEBREAK' "$@" >"$made.printed"
  cp -R "$3" "$made"
else
  cp -R "$made" "$3"
fi
cat "$made.printed"
"#;
    let command = commands.join("tiebreak");
    fs::write(&command, script.replace("TIEBREAK", env!("CARGO_BIN_EXE_tiebreak"))).unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a script to its end in a folder, with the programs of `commands` before others, and ends what it has left behind. Returns
/// true if it succeeded.
fn run(script: &str, folder: &Path, commands: &Path) -> bool {
    let path = format!("{}:{}", commands.display(), std::env::var("PATH").unwrap());
    let errors = File::create(folder.join(".stderr")).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", script]).current_dir(folder).env("PATH", path).process_group(0);
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begin.elapsed() > PATIENCE => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    // The group may be empty; then this fails.
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().unwrap();
    child.wait().unwrap();
    status.is_some_and(|status| status.success())
}

/// The fault of a page as a text for people, if it has one. `commands` is a folder with the page's `tiebreak`.
fn try_page(text: &str, adapters: &[String], commands: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for part in ["assets/jobs", "assets/verdicts"] {
        copy(&root.join(part), &folder.path().join(part));
    }
    fs::copy(root.join("README.md"), folder.path().join("README.md")).unwrap();
    let blocks = blocks(text);
    let output = |number: usize| folder.path().join(format!(".block-{number}"));
    let mut script = String::new();
    let mut shown: BTreeMap<usize, &Block> = BTreeMap::new();
    for (number, block) in blocks.iter().enumerate() {
        if runs(block, adapters) {
            write!(script, "exec >'{}'\n{}", output(number).display(), block.text).unwrap();
        } else if block.tag == "text" {
            assert!(
                number > 0 && blocks[number - 1].tag.starts_with("sh"),
                "line {}: of no command",
                block.line
            );
            if runs(&blocks[number - 1], adapters) {
                shown.insert(number - 1, block);
            }
        }
    }
    // Somebody else may have the address that the page names.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let succeeded = run(&script.replace(ADDRESS, &free), folder.path(), commands);
    let errors = fs::read_to_string(folder.path().join(".stderr")).unwrap();
    for (number, block) in shown {
        let printed = fs::read_to_string(output(number)).unwrap_or_default().replace(&free, ADDRESS);
        if let Some(line) = first_missing(&block.text, &printed) {
            let line_number = block.line;
            return Err(format!("line {line_number}: shown: {line}\nprinted:\n{printed}\nstderr:\n{errors}"));
        }
    }
    if succeeded { Ok(()) } else { Err(format!("a command failed, or took too long:\n{errors}")) }
}

/// The pages of a folder of docs/.
fn pages(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(found.len() > 3, "{found:?}");
    found
}

/// Every page of the tutorials and of the how-tos, two at a time.
#[test]
fn pages_do_what_they_show() {
    #[cfg(feature = "gpu")]
    let adapters = common::adapter_names();
    #[cfg(not(feature = "gpu"))]
    let adapters = Vec::new();
    if !adapters.iter().any(|name| name.contains("llvmpipe")) {
        common::not_tested("blocks of tutorials that need llvmpipe");
    }
    let commands = tempfile::tempdir().unwrap();
    remembering(commands.path());
    // The demo of these pages is that of another test.
    let made = commands.path().join("demo_--dir_folder_--engine_cpu_-q");
    let demo = demo();
    copy(&demo.folder, &made);
    fs::write(made.with_extension("printed"), "").unwrap();
    let left = Mutex::new([pages("docs/tutorials"), pages("docs/how-to")].concat());
    let failures = Mutex::new(String::new());
    let next = || left.lock().unwrap().pop();
    let work = || {
        while let Some(page) = next() {
            let begin = Instant::now();
            if let Err(why) = try_page(&fs::read_to_string(&page).unwrap(), &adapters, commands.path()) {
                write!(failures.lock().unwrap(), "\n{}: {why}\n", page.display()).unwrap();
            }
            println!("{}: {:.1} s", page.display(), begin.elapsed().as_secs_f64());
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn a_page_that_lies_is_found() {
    let commands = tempfile::tempdir().unwrap();
    remembering(commands.path());
    let try_page = |text: &str, adapters: &[String]| try_page(text, adapters, commands.path());
    let page = |shown: &str| {
        format!("```sh\necho 'a 5.2 s'\necho b; echo c\n```\n\nPrints:\n\n```text\n{shown}\n```\n")
    };
    for right in ["a 7 s\nb\nc", "a ...\n...", "...\nc", "a 1.0 s\n...\nc", "... s\nb\n..."] {
        assert_eq!(try_page(&page(right), &[]), Ok(()), "{right}");
    }
    for wrong in
        ["a 7 s\nb", "a 7 s\nc\nb", "a 7 s\n...\nd", "a 7 min\nb\nc", "b\nc", "a 7 m\n...", "a 7 s\nb\nc\nd"]
    {
        assert!(try_page(&page(wrong), &[]).is_err(), "{wrong}");
    }
    let failing = "```sh\nx=1\n```\n```sh\n[ $x = 1 ]; echo yes\nfalse\n```\n```text\nyes\n```\n";
    assert!(try_page(failing, &[]).unwrap_err().starts_with("a command failed"));
    assert_eq!(try_page(&failing.replace("false", "tiebreak --version >version"), &[]), Ok(()));
    assert_eq!(try_page("```sh no-run\nfalse\n```\n```sh llvmpipe\nfalse\n```\n", &[]), Ok(()));
    assert!(try_page("```sh llvmpipe\nfalse\n```\n", &["llvmpipe (LLVM)".to_string()]).is_err());
}
