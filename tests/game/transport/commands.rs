//! Real parties, one of which lies, and the commands.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use super::*;
use crate::common::{gpt_job, mlp_job, trained};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::Party as RunParty;
use tiebreak_run::run::dir::Run;

pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }
    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(args.split(' ')).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }
    /// The exit code, stdout and stderr.
    pub fn run(&self, args: &str) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }
    pub fn json(&self, args: &str, wanted: i32) -> serde_json::Value {
        let (code, stdout, stderr) = self.run(&format!("{args} --json"));
        assert_eq!(code, wanted, "{args}: {stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
    /// A party that serves, and its own output.
    pub fn serve(&self, args: &str) -> (Child, serde_json::Value) {
        let mut command = self.command(&format!("serve {args} --json --log-format json"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !text.ends_with("}\n") {
            match lines.next() {
                Some(line) => text.push_str(&format!("{}\n", line.unwrap())),
                None => panic!("{:?}", child.wait_with_output()),
            }
        }
        (child, serde_json::from_str(&text).unwrap())
    }
    pub fn terms(&self, other: &str, clocks: &str, out: &str) -> serde_json::Value {
        let parties = format!("--party alice.pub --party {other}.pub --referee referee.pub");
        self.json(&format!("referee new --run honest {parties} {clocks} --out {out}"), 0)
    }
}

/// Ends a process as a service manager does; returns its log.
pub fn terminated(child: Child) -> String {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{log}");
    log
}

pub fn made() -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    let job = mlp_job(folder.0.path(), "step", 3, 1);
    trained(&job, &folder.0.path().join("honest"), None);
    trained(&job, &folder.0.path().join("lying"), Some("weight-before@2"));
    for name in ["alice", "bob", "referee"] {
        assert_eq!(folder.run(&format!("key new {name} --name {name}")).0, 0);
    }
    folder
}

/// A party (its key's name, its run, its cheat) that lies as its run does, in a folder.
pub fn liar(
    folder: &Folder,
    [name, run, cheat]: [&'static str; 3],
    [terms, questions]: [&str; 2],
) -> (Arc<Desk>, Vec<JoinHandle<()>>) {
    let journal = folder.path(&format!("{terms}.{name}.answers"));
    let terms = Terms::from_bytes(&std::fs::read(folder.path(terms)).unwrap()).unwrap();
    let key = PrivateKey::from_text(&std::fs::read_to_string(folder.path(name)).unwrap()).unwrap();
    let referee = terms.keys().unwrap().1;
    let desk = Desk::open(terms.game(), &key, referee, Path::new(&journal), Disk::default());
    let desk = Arc::new(desk.unwrap());
    let (run, questions) = (folder.path(run), folder.path(questions));
    let (one, other) = (desk.clone(), desk.clone());
    let works = thread::spawn(move || {
        let run = Run::open(Path::new(&run)).unwrap();
        let data = run.layout.root.parent().map(Path::to_path_buf);
        let run = run.with_data(data);
        let cpu = Box::new(Cpu::new(1).unwrap());
        let cheat = cheat.parse().unwrap();
        one.work(&mut RunParty::open_cheating(terms, run, key, cpu, cheat).unwrap());
    });
    let mut answers = Answers::new(Path::new(&questions)).unwrap();
    let looks = thread::spawn(move || answers.serve(&other));
    (desk, vec![works, looks])
}

/// True if a command prints the bound on a game, and for a logged run the bound on the supply of logs.
fn bounds(said: &str, messages: u64, logged: bool) -> bool {
    let game = format!("  a game of two takes at most {messages} answers, ");
    let lines: Vec<&str> = said.lines().collect();
    let says =
        |begin: &str, what: &str| lines.iter().any(|line| line.starts_with(begin) && line.contains(what));
    says(&game, "there are at most 1")
        && says("  a party has ", " for its replays")
        && says(&game, "of rounding logs") == logged
        && says("  before it a challenger gets the rounding logs that it lacks, ", "to replay the run")
            == logged
        && says("    the log of a step is of ", "so that all logs take at most ") == logged
}

#[test]
fn the_commands_convict_a_liar_and_nobody_else() {
    let folder = made();
    let new = folder.terms("bob", "--step-time 30", "terms.json");
    // Checkpoints are two steps apart.
    assert_eq!(new["clocks"]["replay"], 3 * 30_000 * 4);
    let messages = new["bound"]["messages"].as_u64().unwrap();
    assert!(messages > 10, "{new}");
    let serve = "honest --key alice --terms terms.json --referee-key referee.pub --listen 127.0.0.1:0";
    let (alice, said) = folder.serve(serve);
    let (desk, threads) = liar(&folder, ["bob", "lying", "weight-before@2"], ["terms.json", "bob-folder"]);
    let address = said["address"].as_str().unwrap();
    let play = format!("referee terms.json --key referee alice={address} bob=bob-folder --out v.json");
    let result = folder.json(&play, 1);
    let losses = result["result"]["games"][0]["losses"].as_array().unwrap();
    assert_eq!((losses.len(), &losses[0]["party"]), (1, &1.into()), "{result}");
    assert_eq!(
        (&losses[0]["reason"], &losses[0]["kind"]),
        (&"wrong_value".into(), &"element".into()),
        "{result}"
    );
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]));
    assert!(result["messages"].as_u64() <= result["bound"]["messages"].as_u64(), "{result}");
    // The same command again: the journal has the whole game. The bound is printed before the game.
    let (code, _, said) = folder.run(&play);
    assert_eq!((code, bounds(&said, messages, false)), (1, true), "{said}");
    assert_eq!(folder.json(&play, 1)["verdict_file"], "v.json");
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let log = terminated(alice);
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "question"), "{log}");

    verdict_is_about_keys(&folder);
    assert_eq!(
        folder.run("verdict report v.json -o report.html --party-key bob.pub --party-key alice.pub").0,
        0
    );
    let html = std::fs::read_to_string(folder.path("report.html")).unwrap();
    for said in [
        " is convicted, by what it signed itself",
        "bob, key ",
        "The path of hashes",
        "tiebreak verdict check v.json",
    ] {
        assert!(html.contains(said), "{said}: {html}");
    }
    let text = std::fs::read_to_string(folder.path("v.json")).unwrap();
    std::fs::write(folder.path("w.json"), text.replacen("\"party\":1", "\"party\":0", 1)).unwrap();
    assert_eq!(folder.run("verdict check w.json").0, 4);
}

/// The result for the verdict v.json against bob depends on the keys that the checker names: anybody can have a name.
fn verdict_is_about_keys(folder: &Folder) {
    let (code, stdout, _) = folder.run("verdict check v.json");
    assert!(
        code == 3 && stdout.starts_with("no conviction of anybody known: this is about keys"),
        "{stdout}"
    );
    assert!(stdout.contains("which you did not name and which calls itself bob"), "{stdout}");
    assert_eq!(folder.json("verdict check v.json", 3)["convicts"], false);
    for known in ["--party-key bob.pub", "--trainer-key bob.pub", "--party-key alice.pub --party-key bob.pub"]
    {
        let (code, stdout, _) = folder.run(&format!("verdict check v.json {known}"));
        assert!(code == 1 && stdout.contains("party 1 (bob, key "), "{stdout}");
        assert!(stdout.contains("): CONVICTED, wrong value"), "{stdout}");
    }
    let told = folder.json("verdict check v.json --party-key bob.pub", 1);
    assert_eq!((&told["kind"], &told["convicts"]), (&"game".into(), &true.into()));
    let named = [0, 1].map(|party: usize| told["parties"][party]["named"].as_bool().unwrap());
    assert_eq!(named, [false, true]);
    assert_eq!(folder.run("verdict check v.json --party-key alice.pub").0, 3, "alice lost nothing");
    // Another key of the same name.
    assert_eq!(folder.run("key new namesake --name bob").0, 0);
    for option in ["--party-key", "--trainer-key"] {
        for command in ["verdict check v.json", "verdict report v.json -o none.html"] {
            let (code, _, why) = folder.run(&format!("{command} {option} namesake.pub"));
            assert!(code == 4 && why.contains("a party has the same name and another key"), "{why}");
        }
    }
    for option in ["--run honest", "--data .", "--weights terms.json"] {
        let (code, _, why) = folder.run(&format!("verdict check v.json {option}"));
        assert!(code == 2 && why.contains("is for verdicts on a run"), "{why}");
    }
    let new = "referee new --run honest --party bob.pub --party namesake.pub --referee referee.pub --replay 9 --out n.json";
    assert!(folder.run(new).1.contains("parties 0 and 1 call themselves bob alike"));
}

#[test]
fn the_commands_end_with_the_code_of_what_came_out() {
    let folder = made();
    folder.terms("bob", "--replay 60", "terms.json");
    let serve = |name: &str| {
        folder.serve(&format!(
            "honest --key {name} --terms terms.json --referee-key referee.pub --files {name}-dir"
        ))
    };
    let parties = ["alice", "bob"].map(|name| serve(name).0);
    let play = "referee terms.json --key referee 0=alice-dir 1=bob-dir";
    let result = folder.json(play, 0);
    assert_eq!(result["result"]["losses"], serde_json::Value::Null);
    assert_eq!(result["result"]["remaining"], serde_json::json!([0, 1]));
    assert_eq!(folder.run("verdict check game-verdict.json").0, 0);
    assert_eq!(folder.run("verdict report game-verdict.json -o r.html").0, 0);
    std::fs::write(folder.path("identity.json"), "{}").unwrap();
    for (args, code, why) in [
        (
            "referee new --job honest/job.toml --run-json identity.json --party alice.pub --party bob.pub --referee referee.pub --replay 9 --out n.json",
            4,
            "identity.json: ",
        ),
        ("referee terms.json --key referee 0=alice-dir", 2, "say where party bob is"),
        ("referee terms.json --key referee 0=alice-dir 1=https://x", 2, "http://"),
        ("referee terms.json --key referee 0=alice-dir carol=x", 2, "name no party"),
        ("referee terms.json --key alice 0=alice-dir 1=bob-dir", 2, "not the referee's key"),
        ("referee honest/run.json --key referee 0=alice-dir 1=bob-dir", 4, "run.json"),
        ("referee", 2, "Usage"),
        ("serve --key alice --terms terms.json --referee-key referee.pub", 2, "<RUN>"),
        (
            "serve --challenge mine --key alice --terms terms.json --referee-key referee.pub --journal j",
            2,
            "exact profile",
        ),
        ("serve honest --key alice --terms terms.json --referee-key bob.pub", 2, "another referee"),
        ("serve honest --key referee --terms terms.json --referee-key referee.pub", 2, "name no party"),
    ] {
        let (found, _, stderr) = folder.run(args);
        assert!(found == code && stderr.contains(why), "{args}: {found} {stderr}");
    }
    parties.into_iter().for_each(|party| drop(terminated(party)));

    // The command refuses clocks so short that anybody could make a party late; terms written by hand can have them.
    let new = "referee new --run honest --party alice.pub --party bob.pub --referee referee.pub --out s.json";
    for (clocks, why) in [
        ("--replay 60 --moves 4.9 --increment 2", "5 to 10000000000 seconds"),
        ("--replay 60 --moves 20 --increment 0.9", "1 to 10000000000 seconds"),
        ("--replay 0.5", "1 to 10000000000 seconds"),
    ] {
        let (code, _, stderr) = folder.run(&format!("{new} {clocks}"));
        assert!(code == 2 && stderr.contains(why), "{clocks}: {stderr}");
    }
    folder.terms("bob", "--replay 60", "short.json");
    let mut short: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path("short.json")).unwrap()).unwrap();
    short["clocks"] = serde_json::json!({ "moves": 500, "increment": 500, "replay": 60_000 });
    let short: Terms = serde_json::from_value(short).unwrap();
    std::fs::write(folder.path("short.json"), short.to_bytes()).unwrap();
    let serve = "serve honest --key alice --terms short.json --referee-key referee.pub";
    let (code, _, why) = folder.run(serve);
    assert!(code == 2 && why.contains("clocks.moves of the terms is 500 ms"), "{why}");
    let play = "referee short.json --key referee alice=nobody-a bob=http://127.0.0.1:9 --out f.json";
    let result = folder.json(play, 5);
    assert_eq!(result["result"]["absent"].as_array().unwrap().len(), 2, "{result}");
    // A forfeit is a referee's word, which counts where the referee is known. The verdict says how each party was asked.
    let check = "verdict check f.json --party-key alice.pub";
    let (code, stdout, _) = folder.run(check);
    assert!(code == 3 && stdout.starts_with("no conviction: forfeits are the word of a referee"), "{stdout}");
    assert_eq!(folder.run("verdict check f.json --referee-key bob.pub").0, 4);
    let known = "--party-key alice.pub --party-key bob.pub --referee-key referee.pub";
    let (code, stdout, _) = folder.run(&format!("verdict check f.json {known}"));
    assert!(code == 5 && stdout.contains("FORFEITED, timeout: its time was up; asked "), "{stdout}");
    assert!(stdout.contains(" x no answer in the folder") && stdout.contains(" x no connection"), "{stdout}");
    assert_eq!(folder.run("verdict report f.json -o f.html").0, 0);
    assert!(std::fs::read_to_string(folder.path("f.html")).unwrap().contains(" x no connection"));
    // Another account of the forfeit is not what the referee signed.
    let text = std::fs::read_to_string(folder.path("f.json")).unwrap();
    assert!(text.contains("no_connection"), "{text}");
    std::fs::write(folder.path("g.json"), text.replace("no_connection", "slow")).unwrap();
    assert_eq!(folder.run("verdict check g.json").0, 4);
}

/// A challenger without any file of the trainer gets its logs over HTTP; a decision that they lack leaves the claim undecided.
#[test]
fn a_challenger_without_the_trainers_folder_plays() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let job = gpt_job(folder.0.path(), "step", "\n[rounding]\n");
    trained(&job, &folder.0.path().join("trainer"), Some("decisions-dropped@4"));
    for name in ["alice", "bob", "referee"] {
        assert_eq!(folder.run(&format!("key new {name} --name {name}")).0, 0);
    }
    let parties = "--party alice.pub --party bob.pub --referee referee.pub";
    let new = folder.json(&format!("referee new --run trainer {parties} --step-time 30 --out terms.json"), 0);
    assert!(new["claim"]["root"].is_string() && new["claim"]["head"].is_null(), "{new}");
    // Checkpoints are two steps apart, and the run has eight.
    assert_eq!(new["bound"]["supply"]["replay"], 8 * 30_000 * 4);
    let (desk, threads) =
        liar(&folder, ["alice", "trainer", "decisions-dropped@4"], ["terms.json", "alice-folder"]);
    let serve = "--challenge mine --data . --key bob --terms terms.json --referee-key referee.pub";
    let (bob, said) = folder.serve(&format!("{serve} --listen 127.0.0.1:0"));
    let address = said["address"].as_str().unwrap();
    let play = format!("referee terms.json --key referee alice=alice-folder bob={address} --out v.json");
    let result = folder.json(&play, 3);
    assert_eq!(result["result"]["games"][0]["incomplete_log_kind"], "no_decision", "{result}");
    // The same again: the journal has everything but the parts.
    let (code, _, told) = folder.run(&play);
    assert_eq!((code, bounds(&told, new["bound"]["messages"].as_u64().unwrap(), true)), (3, true), "{told}");
    assert_eq!(folder.json(&play, 3)["result"], result["result"]);
    assert_eq!(folder.run("verdict check v.json").0, 3);
    for step in 1..=8 {
        let [mine, theirs] = ["mine", "trainer"].map(|run| folder.path(run));
        let log = |run: &str| std::fs::read(Run::open(Path::new(run)).unwrap().layout.log(step)).unwrap();
        assert_eq!(log(&mine), log(&theirs));
    }
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(terminated(bob).contains("replayed under"));
    let args = format!(
        "referee new --job job.toml --run-json trainer/run.json {parties} --step-time 1 --out t.json"
    );
    let (code, _, stderr) = folder.run(&args);
    assert!(code == 2 && stderr.contains("--head or --root"), "{stderr}");
    let root = new["claim"]["root"].as_str().unwrap();
    assert_eq!(folder.json(&format!("{args} --root {root}"), 0)["claim"]["root"], root);
}
