//! Attacks on answers: signers who lie in a receipt, and accusers who forge a verdict.

use std::fs;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::receipt::{Receipt, answer_leaf};

use super::{Files, World, played, witness};
use crate::answers::small;
use crate::{output, path};

impl World {
    /// A run, a signed receipt of eight tokens that `lie` changes, and the verdict on it if there is one. `lie` has the row digests.
    fn answered(&self, name: &str, lie: impl FnOnce(&mut Receipt, &[Digest])) -> Files {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let [receipt, trace, verdict] =
            ["receipt.json", "trace", "verdict.json"].map(|name| path(&folder, name));
        let run = small(&folder, "0.01");
        let asked =
            ["--prompt", "The", "--length", "8", "--seed", "3", "--receipt", &receipt, "--trace", &trace];
        assert_eq!(output(&[&["generate", &run], &asked[..]].concat()).0, 0);
        let (mut said, _) = Receipt::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap();
        let bytes = fs::read(&trace).unwrap();
        let rows = bytes[4..].chunks(32).take(8).map(|row| Digest(row.try_into().unwrap()));
        said.traces = None;
        lie(&mut said, &rows.collect::<Vec<_>>());
        let key: PrivateKey = witness();
        fs::write(&receipt, said.to_text(Some(&key))).unwrap();
        output(&["receipt", "check", &receipt, &run, "--verdict", &verdict]);
        vec![("RUN", run), ("RECEIPT", receipt), ("VERDICT", verdict)]
    }
}

/// Another last token, over the rows that the model gives.
fn another_token(said: &mut Receipt, rows: &[Digest]) {
    said.answer[7] ^= 1;
    let tokens = (0..).zip(&said.answer).zip(rows);
    said.root =
        merkle::root(&tokens.map(|((number, id), row)| answer_leaf(number, *id, row)).collect::<Vec<_>>());
}

#[test]
fn every_attack_on_answers_ends_as_the_page_says() {
    played(
        "Attacks on answers",
        &[
            ("another token, with the model", |world| world.answered("token", another_token)),
            ("another token, without the model", |world| world.answered("alone", another_token)),
            ("answer cut short, without the model", |world| {
                world.answered("short", |said, _| said.answer.truncate(5))
            }),
            ("rows of another model", |world| world.answered("rows", |said, _| said.root = Digest([7; 32]))),
            ("verdict against an honest signer", |world| {
                let files = world.answered("forged", another_token);
                let text = fs::read_to_string(&files[2].1).unwrap();
                fs::write(&files[2].1, text.replacen("\"number\":7", "\"number\":6", 1)).unwrap();
                files
            }),
        ],
    );
}
