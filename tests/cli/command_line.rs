//! The command line as people meet it: help, completions, man pages, the reference, colour, suggestions, versions, the doctor.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::options::World;
use crate::{output, path, tiebreak};

/// The most lines of `-h`.
const SCREEN: usize = 40;
/// The columns for which it is measured.
const COLUMNS: usize = 100;
/// The most words of a sentence.
const WORDS: usize = 30;
/// Words with which no sentence of a help text begins.
const NEVER: [&str; 8] = ["Of", "What", "Who", "Whom", "Whose", "Whoever", "Whatever", "Whether"];
/// Pronouns, with which no help text begins.
const PRONOUNS: [&str; 20] = [
    "It", "Its", "They", "Their", "Them", "This", "That", "These", "Those", "Such", "None", "He", "She",
    "We", "Our", "You", "Your", "I", "My", "Nobody",
];

/// Every command, with the words that lead to it.
fn commands() -> Vec<(String, clap::Command)> {
    fn collect(path: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
        found.push((path.to_string(), command.clone().term_width(COLUMNS)));
        let subs = command.get_subcommands().filter(|sub| sub.get_name() != "help");
        subs.for_each(|sub| collect(&format!("{path} {}", sub.get_name()), sub, found));
    }
    let (mut command, mut found) = (tiebreak::cli::command(), Vec::new());
    command.build();
    collect("tiebreak", &command, &mut found);
    assert!(found.len() > 40, "{}", found.len());
    found
}

/// The arguments of a command that it has itself.
fn arguments(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|argument| !matches!(argument.get_id().as_str(), "help" | "version"))
}

/// The examples in a help text: command lines.
fn examples(help: &str) -> Vec<String> {
    let Some(begin) = help.find("Example") else { return Vec::new() };
    let lines = help[begin..].lines().map(|line| line.trim().trim_start_matches("Example: "));
    let commands = lines.filter(|line| line.starts_with("tiebreak "));
    commands.map(|line| line.split(" # ").next().unwrap_or(line).trim().to_string()).collect()
}

/// The words of a command line, as a shell reads them.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.to_string()),
        }
    }
    words
}

/// The faults of a help text.
fn faults(at: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let begins = |sentence: &str, words: &[&str]| {
        let first = sentence.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default();
        words.contains(&first)
    };
    if text.trim().is_empty() {
        found.push(format!("{at}: there is no help"));
    }
    if begins(text, &PRONOUNS) {
        found.push(format!("{at}: begins with a pronoun: {text}"));
    }
    for paragraph in text.split("\n\n") {
        for sentence in paragraph.replace('\n', " ").split(". ") {
            let count =
                sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
            if count > WORDS {
                found.push(format!("{at}: {count} words: {sentence}"));
            }
            if begins(sentence, &NEVER) {
                found.push(format!("{at}: begins as no sentence does: {sentence}"));
            }
        }
    }
    found
}

/// The help texts of an argument: its own, and those of its values.
fn texts(argument: &clap::Arg) -> Vec<String> {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = argument.get_possible_values();
    let values = values.iter().filter_map(|value| value.get_help().map(ToString::to_string));
    [help].into_iter().chain(values).collect()
}

#[test]
fn every_command_and_option_has_a_help_text_in_plain_sentences() {
    let mut found = Vec::new();
    for (path, command) in commands() {
        let about =
            command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
        found.extend(faults(&path, &about));
        for argument in arguments(&command) {
            let at = format!("{path} {}", argument.get_id());
            texts(argument).iter().for_each(|text| found.extend(faults(&at, text)));
        }
        let after = command
            .get_after_long_help()
            .or(command.get_after_help())
            .map(ToString::to_string)
            .unwrap_or_default();
        let prose = &after[..after.find("Example").unwrap_or(after.len())];
        if !prose.is_empty() {
            found.extend(faults(&format!("{path}, after the options"), prose));
        }
        let last = after.trim_end().lines().last().unwrap_or_default();
        let long = command.clone().term_width(1000).render_long_help().to_string();
        let is_example =
            examples(last).len() == 1 || after.contains("Example") && last.starts_with("  tiebreak ");
        if !is_example || !long.trim_end().ends_with(last.trim()) {
            found.push(format!("{path} --help does not end with an example: {last}"));
        }
    }
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_short_help_of_every_command_fits_a_screen_with_common_options_first() {
    let mut found = Vec::new();
    for (path, mut command) in commands() {
        let short = command.render_help().to_string();
        let lines = short.trim_end().lines().count();
        let wide = short.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        if lines > SCREEN || wide > COLUMNS {
            found.push(format!("{path} -h: {lines} lines, the widest has {wide} columns"));
        }
        let long = command.render_long_help().to_string();
        let headings: Vec<&str> =
            long.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
        let place = |heading: &str| headings.iter().position(|line| *line == heading);
        let grouped = ["Engine:", "Limits:", "Output:"]
            .into_iter()
            .filter_map(place)
            .all(|at| place("Options:") < Some(at));
        // Options of several commands have a heading of their own.
        let shared = ["max_memory", "threads", "json", "quiet"];
        let mut bare = arguments(&command).filter(|argument| {
            shared.contains(&argument.get_id().as_str()) && argument.get_help_heading().is_none()
        });
        if !grouped || bare.next().is_some() {
            found.push(format!("{path} --help: headings {headings:?}"));
        }
        let hidden = arguments(&command)
            .filter_map(clap::Arg::get_long)
            .find(|long_name| !long.contains(&format!("--{long_name}")));
        if let Some(option) = hidden {
            found.push(format!("{path} --help leaves out --{option}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    // The program's own help names every command, with -h and with --help.
    let (code, short, _) = output(&["-h"]);
    let (_, long, _) = output(&["--help"]);
    assert_eq!(code, 0);
    let top = commands().into_iter().filter(|(path, _)| path.split(' ').count() == 2);
    for (path, command) in top {
        let name = &path["tiebreak ".len()..];
        assert!(short.contains(name) && long.contains(&format!("\n  {name} ")), "{name}");
        let about = command.get_about().unwrap().to_string();
        assert!(about.len() <= 84, "{name}: a row is one line: {about}");
    }
}

/// Examples that are only parsed, by a part of theirs: with the reason.
const ONLY_PARSED: [(&str, &str); 26] = [
    ("s3://", "no default build has object stores: .ci/full stores runs them"),
    ("wgpu", "needs an adapter"),
    ("llvmpipe", "needs this adapter"),
    ("cuda", "needs a GPU"),
    ("host0", "needs two machines"),
    ("http://", "needs parties that answer"),
    ("tiebreak serve", "goes on until it is stopped; tests/game/transport runs it"),
    ("runs/chat", "needs a model whose tokenizer has a chat template; chats.rs runs it"),
    ("tiebreak witness serve", "goes on until it is stopped; witness.rs runs it"),
    ("tiebreak monitor collector", "needs the feature `collector`; tests/collector runs it"),
    ("tiebreak monitor agent", "goes on until it is stopped; monitor_agent.rs runs it"),
    ("--agent chip.sock", "needs an agent; monitor_agent.rs runs it"),
    ("tiebreak demo", "the_demo_convicts_and_its_verdict_is_checked_from_the_file runs it"),
    ("tiebreak adapters", "engines_are_listed_tested_and_measured runs it"),
    ("tiebreak selftest --hostile", "hostile_runs_end_as_their_list_says runs it"),
    (
        "tiebreak selftest --exhaustive --function exp",
        "one_function_is_checked_from_an_input_on runs it from a late input",
    ),
    ("gpt2", "needs a released model"),
    ("--run-json", "the_commands_end_with_the_code_of_what_came_out covers terms without a run"),
    (
        "--receipt answer.json --job job.toml --party",
        "a_game_about_a_receipt_convicts_whoever_lies makes a receipt with traces",
    ),
    ("--network captured/network.json", "network_files.rs runs each"),
    ("tiebreak import", "released.rs imports what was exported"),
    ("--ranks 4", "ranks.rs runs ranks"),
    ("tiebreak correct", "corrections.rs runs each"),
    ("run.nonce --beacon round.json", "needs a promise of that round; promises.rs has one"),
    (
        "--chips 3 --beacon round.json",
        "needs chips that were there before the published round; beacons.rs draws",
    ),
    ("answer-verdict.json", "attacks/answers.rs makes and checks verdicts on receipts"),
];

/// A folder with what the examples name.
fn world() -> World {
    let world = World::new();
    for folder in ["runs", "private"] {
        fs::create_dir(world.path(folder)).unwrap();
    }
    for (from, to) in [
        ("run", "runs/mine"),
        ("elsewhere", "runs/other"),
        ("rate", "runs/cheated"),
        ("unsigned", "runs/unsigned"),
        ("logged", "runs/logged"),
        ("hiding", "runs/hidden"),
        ("hiding.salts", "runs/hidden.salt-key"),
        ("text.txt", "private/text.txt"),
        ("trainer", "trainer.key"),
        ("trainer", "registrar.key"),
        ("trainer.pub", "registrar.key.pub"),
        ("alice.pub", "chip.pub"),
        ("bob.pub", "new.pub"),
        ("chips.register", "last-year.register"),
        ("empty.register", "new.register"),
        ("long.seen", "may.seen"),
        ("trainer.pub", "trainer.key.pub"),
        ("alice", "auditor.key"),
        ("alice.pub", "auditor.key.pub"),
        ("alice.pub", "alice.key.pub"),
        ("bob.pub", "bob.key.pub"),
        ("bob.pub", "their.key.pub"),
        ("referee.pub", "referee.key.pub"),
        ("wide.json", "verdict.json"),
        ("game.json", "game-verdict.json"),
        ("one.json", "mine.json"),
        ("one.json", "auditor.json"),
        ("two.json", "theirs.json"),
        ("calibrated.toml", "logged.toml"),
        ("snapshots.log", "chip-1.log"),
        ("early.log", "chip-2.log"),
        ("rank.map", "rank-0.map"),
        ("alice.pub", "witness.key.pub"),
        ("alice", "inspector.key"),
        ("alice.pub", "inspector.key.pub"),
        ("stated.json", "run.dsse.json"),
        ("inspected.json", "a-1.json"),
        ("run.pack", "mine.pack"),
        ("run/heads/000000000001", "declared.head"),
        ("evaluated.json", "eval.json"),
        ("tokens.npy", "images.npy"),
        ("exported/model.safetensors", "model.safetensors"),
    ] {
        copied(&world.path(from), &world.path(to));
    }
    world
}

fn copied(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        return;
    }
    for (name, bytes) in crate::files(from) {
        let file = to.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
}

/// Takes away what an example writes, which an example before may have written too.
fn cleared(world: &World, words: &[String]) {
    if words.iter().any(|word| word == "--resume") {
        return;
    }
    for pair in words.windows(2).filter(|pair| ["--out", "--output", "--dump"].contains(&pair[0].as_str())) {
        let target = world.path(&pair[1]);
        let _ = if target.is_dir() { fs::remove_dir_all(target) } else { fs::remove_file(target) };
    }
}

#[test]
fn every_example_of_the_help_works() {
    let source = |command: &clap::Command| {
        let texts = [command.get_after_help(), command.get_after_long_help()];
        texts.into_iter().flatten().flat_map(|text| examples(&text.to_string())).collect::<Vec<_>>()
    };
    let mut whole: Vec<String> = commands().iter().flat_map(|(_, command)| source(command)).collect();
    whole.sort();
    whole.dedup();
    assert!(whole.len() > 50, "{}", whole.len());
    for line in &whole {
        let parsed = tiebreak::cli::command().try_get_matches_from(words(line));
        parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let unused = ONLY_PARSED.iter().find(|(part, _)| !whole.iter().any(|line| line.contains(part)));
    assert!(unused.is_none(), "{unused:?} is in no example");
    let world = world();
    let mut wrong = Vec::new();
    for line in whole.iter().filter(|line| !ONLY_PARSED.iter().any(|(part, _)| line.contains(part))) {
        let words = words(line);
        cleared(&world, &words);
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let mut command = tiebreak(&arguments);
        // A software adapter would compile the shaders of a calibration for half a minute.
        command.current_dir(world.path("")).env("VK_DRIVER_FILES", "/nonexistent");
        let done = command.output().unwrap();
        let code = done.status.code().unwrap();
        // What is compared or judged may end against a run, or undecided; a wrong command line or file is none that works.
        if !matches!(code, 0 | 1 | 3) {
            wrong.push(format!("exit {code}: {line}\n{}", String::from_utf8_lossy(&done.stderr)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[cfg(unix)]
fn completions_are_scripts_and_bash_completes_with_its_own() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, stderr) = output(&["completions", shell]);
        assert_eq!(code, 0, "{stderr}");
        assert!(script.contains("audit") && script.contains("trainer-key"), "{shell}: {script}");
        assert!(!script.contains("\\u{"), "{shell}: nothing is escaped");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = path(folder.path(), "tiebreak.bash");
    fs::write(&script, output(&["completions", "bash"]).1).unwrap();
    let bash = |code: &str| {
        let done = Command::new("bash").args(["--norc", "-c", code]).stdin(Stdio::null()).output();
        done.unwrap_or_else(|error| panic!("bash is needed: {error}"))
    };
    assert!(bash(&format!("bash -n '{script}'")).status.success());
    let completed = |words: &str| {
        let count = words.split(' ').count() - 1;
        let last = words.rsplit(' ').next().unwrap();
        let done = bash(&format!(
            "source '{script}' && COMP_WORDS=({words}) && COMP_CWORD={count} && _tiebreak tiebreak '{last}' tiebreak; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ));
        String::from_utf8(done.stdout).unwrap().lines().map(String::from).collect::<Vec<String>>()
    };
    assert_eq!(completed("tiebreak aud"), ["audit"]);
    assert_eq!(completed("tiebreak verdict nar"), ["narrow"]);
    assert_eq!(completed("tiebreak audit --trai"), ["--trainer-key"]);
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let man = path(folder.path(), "man1");
    let (code, stdout, stderr) = output(&["man", &man, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let written: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(written["pages"].as_array().unwrap().len(), commands().len());
    for (name, command) in commands() {
        let page = format!("{man}/{}.1", name.replace(' ', "-"));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH ") && text.contains(".SH NAME"), "{page}: {text}");
        for option in arguments(&command).filter_map(clap::Arg::get_long) {
            assert!(text.contains(&option.replace('-', "\\-")), "{page}: --{option}");
        }
    }
    // Where there is a reader of pages, it reads them.
    let page = format!("{man}/tiebreak-audit-merge.1");
    let read = Command::new("man").args(["-l", &page]).env("MANPAGER", "cat").env("MANWIDTH", "100").output();
    if let Ok(read) = read {
        let text = String::from_utf8_lossy(&read.stdout).into_owned();
        assert!(
            read.status.success() && text.contains("auditor"),
            "{text}{}",
            String::from_utf8_lossy(&read.stderr)
        );
    }
    assert!(output(&["man"]).1.contains(".TH tiebreak"));
}

#[test]
#[cfg(all(feature = "gpu", feature = "cuda"))]
fn the_page_of_the_command_line_is_what_the_command_prints() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/COMMAND-LINE.md")).unwrap();
    let (code, printed, stderr) = output(&["reference"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(printed == page, "docs/COMMAND-LINE.md is old: tiebreak reference > docs/COMMAND-LINE.md");
    for (path, command) in commands().iter().filter(|(path, _)| path != "tiebreak") {
        assert!(page.contains(&format!("## `{path}`\n")), "{path}");
        for option in arguments(command).filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("--{option}")), "{path} --{option}");
        }
    }
}

#[test]
fn outcomes_have_colour_where_it_is_asked_for_and_never_in_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let job = crate::gpt_job(folder.path(), "step", "");
    let run = path(folder.path(), "run");
    crate::trained(&job, Path::new(&run), None);
    let told = |more: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["audit", &run, "--steps", "1..1", "--engine", "cpu"], more].concat();
        let done = tiebreak(&arguments).envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap()
    };
    assert!(told(&["--color", "always"], &[]).contains("\u{1b}[1;32mMATCHES\u{1b}[0m: "));
    assert!(told(&["--color=always"], &[("NO_COLOR", "1")]).contains('\u{1b}'), "who asks for it gets it");
    for (more, variables) in [
        (&[][..], &[][..]),
        (&["--color", "auto"], &[("CLICOLOR_FORCE", "1")]),
        (&["--color", "never"], &[]),
        (&["--color", "always", "--json"], &[]),
    ] {
        let text = told(more, variables);
        assert!(!text.contains('\u{1b}') && text.to_lowercase().contains("matches"), "{more:?}: {text}");
    }
    for arguments in [["audit", "nowhere", "--color", "always"], ["audit", "--nothing", "--color", "always"]]
    {
        let (code, _, stderr) = output(&arguments);
        assert!(code == 2 && stderr.starts_with("\u{1b}[1;31merror:\u{1b}[0m "), "{stderr:?}");
    }
    assert!(output(&["--help", "--color", "always"]).1.contains('\u{1b}'));
    assert!(!output(&["--help"]).1.contains('\u{1b}'));
    assert_eq!(output(&["verify", &run, "--color", "sometimes"]).0, 2);
}

/// On a terminal: colour of its own accord, and none with NO_COLOR or on a dumb one.
#[test]
#[cfg(target_os = "linux")]
fn a_terminal_gets_colour_unless_no_color_is_set() {
    let on_terminal = |variables: &[(&str, &str)]| {
        let line = format!("{} audit nowhere", env!("CARGO_BIN_EXE_tiebreak"));
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .stdin(Stdio::null());
        let done = script.envs(variables.iter().copied()).output();
        let done = done.unwrap_or_else(|error| panic!("script of util-linux is needed: {error}"));
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(on_terminal(&[]).contains("\u{1b}[1;31merror:\u{1b}[0m "));
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = on_terminal(&[variable]);
        assert!(text.contains("error: ") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn a_mistyped_command_or_option_is_answered_with_the_one_that_was_meant() {
    for (arguments, meant) in [
        (&["adit"][..], "'audit'"),
        (&["verdict", "chek", "x"], "'check'"),
        (&["audit", "run", "--trainer-kye", "x"], "'--trainer-key'"),
        (&["op", "matmul", "a", "--engine", "wgup"], "'wgpu'"),
    ] {
        if meant == "'wgpu'" && cfg!(not(feature = "gpu")) {
            continue;
        }
        let (code, _, stderr) = output(arguments);
        assert!(code == 2 && stderr.contains("tip: ") && stderr.contains(meant), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_version_names_the_contract_and_the_formats() {
    let (code, short, _) = output(&["-V"]);
    assert_eq!((code, short.trim()), (0, &*format!("tiebreak {}", env!("CARGO_PKG_VERSION"))));
    let (code, long, _) = output(&["--version"]);
    assert!(code == 0 && long.starts_with(short.trim()), "{long}");
    let has = |name: &str, version: String| {
        let line =
            long.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {long}"));
        assert!(line.ends_with(&format!(" {version}")), "{line}");
    };
    let contract = tiebreak_job::identity::CONTRACT;
    has("contract", contract.into());
    has("run", format!("format {}", tiebreak_run::run::dir::RUN_FORMAT));
    has("verdict", format!("format {}", tiebreak_dispute::verdict::FORMAT));
    has("game terms", format!("format {}", tiebreak_dispute::game::terms::FORMAT));
    has("game verdict", format!("format {}", tiebreak_dispute::game::verdict::FORMAT));
    has("audit report", format!("format {}", tiebreak_audit::REPORT_FORMAT));
    has("wire", tiebreak_game::net::server::ANSWER.into());
    // The page of the format says the same.
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/RUN-FORMAT.md")).unwrap();
    assert!(
        page.contains(&format!("Format {}, of contract `{contract}`", tiebreak_run::run::dir::RUN_FORMAT))
    );
}

#[test]
fn the_doctor_says_what_is_here_and_never_fails_for_want_of_a_gpu() {
    let (code, text, stderr) = output(&["doctor"]);
    assert!(code == 0 && text.contains("can run here on the CPU; GPUs: "), "{text}{stderr}");
    for said in ["system ", "processor ", "engine     cpu", "slow ", "next       tiebreak demo"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // Neither a driver of Vulkan nor one of NVIDIA's.
    let bare = |arguments: &[&str]| {
        let mut command = tiebreak(arguments);
        for variable in [
            "VK_DRIVER_FILES",
            "VK_ICD_FILENAMES",
            "TIEBREAK_CUDA_DRIVER",
            "TIEBREAK_NVRTC",
            "TIEBREAK_CUBLAS",
        ] {
            command.env(variable, "/nowhere");
        }
        let done = command.output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, json) = bare(&["doctor", "--json"]);
    let health: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 0, "{json}");
    assert_eq!(health["formats"]["contract"], tiebreak_job::identity::CONTRACT);
    assert!(
        health["threads"].as_u64().unwrap() > 0 && health["memory_bytes"].as_u64().unwrap() > 0,
        "{json}"
    );
    let paths =
        ["AMX", "AVX-512 VNNI", "AVX-512", "AVX-VNNI", "AVX2", "NEON i8mm", "NEON dotprod", "portable"];
    assert!(paths.contains(&health["cpu_path"].as_str().unwrap()));
    for path in health["cpu_paths"].as_array().unwrap() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        let done =
            command.args(["doctor", "--json"]).env("TIEBREAK_CPU_PATH", path.as_str().unwrap()).output();
        assert!(done.unwrap().status.success(), "{path}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    let done = command.arg("doctor").env("TIEBREAK_CPU_PATH", "sse9").output().unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && error.contains("is sse9, and this machine has portable"), "{error}");
    assert_eq!(health["next"][0]["command"], "tiebreak demo", "{json}");
    let engines = health["engines"].as_array().unwrap();
    assert!(engines.iter().any(|engine| engine["engine"] == "cpu"), "{json}");
    for library in health["libraries"].as_array().unwrap() {
        let missing = library["found"] == false;
        assert!(
            !missing || library["remedy"].as_str().is_some_and(|remedy| remedy.contains("install")),
            "{library}"
        );
    }
    #[cfg(feature = "cuda")]
    for name in ["NVIDIA driver", "NVRTC", "cuBLAS"] {
        let library =
            health["libraries"].as_array().unwrap().iter().find(|library| library["name"] == name).unwrap();
        assert_eq!(library["found"], false, "{library}");
        assert!(bare(&["doctor"]).1.contains(&format!("to get     {name}: ")), "{name}");
    }
}
