//! Attacks on what a run hides, and that fail.

use std::fs;
use std::sync::LazyLock;

use tiebreak_job::opening::Opening;
use tiebreak_job::shard_opening::ShardOpening;
use tiebreak_record::commit::salts::SaltKey;

use super::{Files, played};
use crate::hidden::Hiding;
use crate::output;

#[test]
fn attacks_on_what_a_run_hides_fail_as_the_page_says() {
    /// The published files of a run that hides, a guess of its data that is right, and the folder of the data.
    fn hidden() -> (Hiding, Files) {
        let hiding = Hiding::new();
        let run = hiding.train("run");
        let public = hiding.publish(&run, "public");
        let files = vec![("PUBLIC", public), ("GUESS", hiding.guess()), ("FOLDER", hiding.at("private"))];
        (hiding, files)
    }
    static HIDDEN: LazyLock<(Hiding, Files)> = LazyLock::new(hidden);
    played(
        "Attacks that fail",
        &[
            ("dictionary test on hidden data", |_| HIDDEN.1.clone()),
            ("a salt key of one's own", |world| {
                let own = world.write("own", SaltKey::new([1; 32]).to_text());
                [HIDDEN.1.clone(), vec![("OWN", own)]].concat()
            }),
            ("replay of a guess", |_| HIDDEN.1.clone()),
            ("bytes that the data do not have", |world| {
                let (run, data) = (HIDDEN.0.at("run"), HIDDEN.0.at("private"));
                let opening = world.at("opening.json");
                let args = ["reveal", &run, "--data", &data, "--sample", "3", "--output", &opening];
                assert_eq!(output(&args).0, 0);
                let mut opened = Opening::from_text(&fs::read_to_string(&opening).unwrap()).unwrap();
                opened.parts[0].bytes.0[3] ^= 1;
                let forged = world.write("forged.json", opened.to_text());
                [HIDDEN.1.clone(), vec![("FORGED", forged)]].concat()
            }),
            ("elements that the state does not have", |world| {
                let (run, opening) = (HIDDEN.0.at("run"), world.at("shard.json"));
                let map = "tiebreak shard map 1\n0 300 param/token_embedding\n".to_string();
                let map = world.write("chip.map", map);
                let args = ["reveal", &run, "--step", "2", "--shards", &map, "--output", &opening];
                assert_eq!(output(&args).0, 0);
                let mut opened = ShardOpening::from_text(&fs::read_to_string(&opening).unwrap()).unwrap();
                opened.ranges[0].bytes.0[3] ^= 1;
                let forged = world.write("forged-shard.json", opened.to_text());
                [HIDDEN.1.clone(), vec![("FORGED", forged)]].concat()
            }),
        ],
    );
}
