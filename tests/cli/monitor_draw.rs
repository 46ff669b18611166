//! `tiebreak monitor register` and `tiebreak monitor draw`: what is kept, what is drawn, and what anybody finds who repeats it.

use std::fs;

use serde_json::Value;
use tiebreak_monitor::register::file::to_text;

use crate::common::key;
use crate::{chips, output, path};

#[track_caller]
fn done(args: &[&str]) -> String {
    let (code, stdout, stderr) = output(args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    stdout
}

#[test]
fn a_register_grows_and_a_rewritten_one_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let [register, registrar, chip, other, early] =
        ["chips.register", "registrar", "chip", "other", "early.register"]
            .map(|name| path(folder.path(), name));
    for key in [&registrar, &chip, &other] {
        done(&["key", "new", key, "--name", "example"]);
    }
    let [public, chip, other] = [&registrar, &chip, &other].map(|key| format!("{key}.pub"));
    done(&["monitor", "register", "new", &register, "--name", "treaty/1", "--key", &registrar]);
    let of = |command: &'static str, more: &[&str]| {
        let args = ["monitor", "register", command, &register, "--key", &registrar, "--serial", "A-1"];
        output(&[&args, more].concat())
    };
    let place = ["--model", "h100", "--owner", "Alice", "--site", "north"];
    let (code, stdout, _) = of("add", &[&["--chip-key", &chip, "--date", "2025-01-01"], &place[..]].concat());
    assert!(code == 0 && stdout.contains("1 entries, root"), "{stdout}");
    fs::copy(&register, &early).unwrap();
    let (code, _, stderr) =
        of("add", &[&["--chip-key", &other, "--date", "2025-01-02"], &place[..]].concat());
    assert!(code == 2 && stderr.contains("the chip is in the register already"), "{stderr}");
    assert_eq!(of("transfer", &["--owner", "Bob", "--date", "2025-02-01"]).0, 0);
    assert_eq!(of("replace-key", &["--chip-key", &other, "--why", "repair", "--date", "2025-03-01"]).0, 0);
    assert_eq!(of("retire", &["--why", "broken", "--date", "2025-04-01"]).0, 0);
    let (code, _, stderr) = of("transfer", &["--site", "south"]);
    assert!(code == 2 && stderr.contains("the register has no chip A-1"), "{stderr}");

    let show = ["monitor", "register", "show", &register, "--registrar", &public, "--json"];
    let of_date = |date: &str| -> Value {
        let said = done(&[&show[..], &["--date", date, "--serial", "A-1", "--since", &early]].concat());
        serde_json::from_str(&said).unwrap()
    };
    let [february, april] = ["2025-02-02", "2025-04-02"].map(of_date);
    assert_eq!(
        (&february["monitored"], &april["monitored"], &april["gone"]),
        (&1.into(), &0.into(), &1.into())
    );
    assert_eq!(
        (&february["chip"]["now"]["owner"], &february["chip"]["now"]["site"]),
        (&"Bob".into(), &"north".into())
    );
    assert_eq!((&april["chip"]["now"], &april["rewritten"]), (&Value::Null, &Value::Null));
    let alone = path(folder.path(), "early.head");
    fs::write(&alone, fs::read_to_string(&early).unwrap().split_once("\n\n").unwrap().1).unwrap();
    assert!(done(&["monitor", "register", "show", &register, "--since", &alone]).contains("continues"));

    // The registrar signs another history of the same name.
    let again = path(folder.path(), "again.register");
    done(&["monitor", "register", "new", &again, "--name", "treaty/1", "--key", &registrar]);
    let add =
        ["monitor", "register", "add", &again, "--key", &registrar, "--serial", "A-1", "--chip-key", &chip];
    done(&[&add[..], &place, &["--date", "2025-01-03"]].concat());
    let (code, stdout, _) = output(&["monitor", "register", "show", &again, "--since", &early]);
    assert!(
        code == 1 && stdout.starts_with("DIFFERS: ") && stdout.contains("the first difference is entry 0"),
        "{stdout}"
    );
    let (code, stdout, _) = output(&["monitor", "register", "show", &early, "--since", &register, "--json"]);
    let value: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &value["rewritten"]["kind"]), (1, &"shorter".into()));

    // A changed byte is no register.
    fs::write(&register, fs::read_to_string(&register).unwrap().replace("Bob", "Eve")).unwrap();
    let (code, _, stderr) = output(&["monitor", "register", "show", &register]);
    assert!(code == 4 && stderr.contains("another root"), "{stderr}");
}

/// Commands that extend a register at the same time lose nothing of each other.
#[cfg(unix)]
#[test]
fn entries_that_are_added_at_once_are_all_there() {
    let folder = tempfile::tempdir().unwrap();
    let [register, registrar] = ["chips.register", "registrar"].map(|name| path(folder.path(), name));
    done(&["key", "new", &registrar, "--name", "registrar.example"]);
    done(&["monitor", "register", "new", &register, "--name", "treaty/1", "--key", &registrar]);
    std::thread::scope(|scope| {
        for chip in 0..6u8 {
            let (register, registrar) = (&register, &registrar);
            scope.spawn(move || {
                let key = chips::chip_key(chip).public().to_text();
                let serial = format!("A-{chip}");
                let add = ["monitor", "register", "add", register, "--key", registrar, "--serial", &serial];
                let about = ["--chip-key", &key, "--model", "h100", "--owner", "Alice", "--site", "north"];
                done(&[&add[..], &about, &["--date", "2025-01-03"]].concat());
            });
        }
    });
    let shown = done(&["monitor", "register", "show", &register]);
    assert!(shown.contains("6 entries"), "{shown}");
}

#[test]
fn a_draw_by_nonces_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let [register, heads, draw] =
        ["chips.register", "heads.txt", "draw.json"].map(|name| path(folder.path(), name));
    fs::write(&register, to_text(&chips::register(), &key())).unwrap();
    fs::write(&heads, chips::closed(&chips::honest()).to_text()).unwrap();
    let nonces = ["inspector", "operator", "late"].map(|name| path(folder.path(), name));
    let [inspector, operator, _] =
        nonces.each_ref().map(|nonce| done(&["monitor", "nonce", nonce]).trim().to_string());
    assert_eq!(output(&["monitor", "nonce", &nonces[0]]).0, 2, "a nonce is not written over");
    #[cfg(unix)]
    for nonce in &nonces {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(nonce).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "others may not read a nonce");
    }
    let inputs = ["monitor", "draw", "--register", &register, "--closed", &heads];
    let asked =
        ["--chips", "3", "--date", "2025-03-01", "--out", &draw, "--committed", &inspector, &operator];
    let said = done(&[&inputs[..], &asked, &["--reveal", &nonces[0], &nonces[1]]].concat());
    assert!(said.starts_with("drew 3 of 5 monitored chips (1 exempt ones are never drawn)"), "{said}");
    assert!(said.contains("warning: 4 monitored chips") && !said.contains("chip X-1"), "{said}");
    // The operator has seen the inspector's nonce and likes another one of its own.
    let (code, _, stderr) = output(&[&inputs[..], &asked, &["--reveal", &nonces[0], &nonces[2]]].concat());
    assert!(
        code == 2 && stderr.contains("the operator's nonce is not the one of its commitment"),
        "{stderr}"
    );

    let check = [&inputs[..], &["--check", &draw]].concat();
    assert!(done(&check).starts_with("MATCHES: the draw of 3 chips follows from its inputs"));
    let (code, _, stderr) = output(&[&check[..], &["--round", "7"]].concat());
    assert!(code == 2 && stderr.contains("cannot be used with"), "{stderr}");
    let text = fs::read_to_string(&draw).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let drawn: Vec<&str> =
        value["chips"].as_array().unwrap().iter().map(|chip| chip.as_str().unwrap()).collect();
    let spared = (1..6).map(|chip| format!("A-{chip}")).find(|chip| !drawn.contains(&chip.as_str())).unwrap();
    fs::write(&draw, text.replace(&format!("\"{}\"", drawn[1]), &format!("\"{spared}\""))).unwrap();
    let (code, stdout, _) = output(&check);
    assert!(code == 1 && stdout.starts_with("DIFFERS: the rule gives another choice of chips"), "{stdout}");
    fs::write(&draw, &text).unwrap();
    fs::write(&heads, "tiebreak log heads 1\n").unwrap();
    let (code, stdout, _) = output(&check);
    assert!(code == 1 && stdout.contains("another list of log heads"), "{stdout}");
}
