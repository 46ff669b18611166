//! Openings of shards of a state: checked against a run's published files, for runs that hide and for others.

use std::fs;
use std::path::Path;

use tiebreak_job::shard_opening::ShardOpening;
use tiebreak_monitor::snapshot::shard_map::{ShardMap, Slice};
use tiebreak_record::commit::salts::{Kind, SaltKey};
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

use crate::common::{self, edit::edit};
use crate::hidden::{Hiding, ends};

/// A map of one chip: parts of a parameter, and of an optimizer's slot.
const MAP: &str =
    "tiebreak shard map 1\n3 20 param/token_embedding\n40 300 param/token_embedding\n5 9 v/token_embedding\n";

/// The bytes of a map's slices in a state.
fn bytes(run: &Run, map: &ShardMap, state: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let ShardMap::Slices(slices) = map else { panic!("{map:?}") };
    let table = run.program().state();
    let of = |slice: &Slice| {
        let tensor = table.iter().position(|tensor| tensor.name == slice.tensor).unwrap();
        let first = 4 * slice.first as usize;
        state[tensor][first..first + 4 * slice.count as usize].to_vec()
    };
    slices.iter().map(of).collect()
}

/// The state after a step that has a checkpoint.
fn state(run: &Run, step: u32) -> Vec<Vec<u8>> {
    checkpoint::read(&run.layout.checkpoint(step), &run.program().state()).unwrap()
}

#[test]
fn a_shard_of_a_run_that_hides_is_opened_and_anybody_checks_it() {
    let hiding = Hiding::new();
    let run = hiding.train("run");
    let public = hiding.publish(&run, "public");
    let [data, opening, shown, map] =
        ["private", "opening.json", "shown", "chip.map"].map(|name| hiding.at(name));
    fs::write(&map, MAP).unwrap();
    let opened = hiding.opened(&run);
    let salts = SaltKey::from_text(&fs::read_to_string(format!("{run}.salt-key")).unwrap()).unwrap();
    let table = opened.program().state();
    let parsed = ShardMap::from_text(MAP).unwrap();
    let open = |step: &str, more: &[&str]| {
        let args = ["reveal", &run, "--step", step, "--shards", &map, "--output", &opening];
        ends(&[&args[..], more].concat(), 0, &["anybody can check it"])
    };
    let trainer = hiding.at("trainer.pub");
    let check = ["reveal", &public, "--check", &opening, "--trainer-key", &trainer, "--output", &shown];
    open("2", &[]);
    let due = bytes(&opened, &parsed, &state(&opened, 2));
    let digest = parsed.shard_digest(|slice| {
        let ShardMap::Slices(all) = &parsed else { panic!() };
        Ok::<_, ()>(due[all.iter().position(|one| one == slice).unwrap()].clone())
    });
    let says = format!("shard map {}, shard digest {}", parsed.digest(), digest.unwrap().unwrap());
    ends(
        &check,
        0,
        &[
            "signed by trainer.example",
            "elements 40..340 of param/token_embedding",
            &says,
            "OPENS: the state after step 2",
        ],
    );
    assert_eq!(fs::read(&shown).unwrap(), due.concat());
    // A second implementation, from the page alone, finds the same bytes.
    let script = || common::opened_by_script(&public, &opening);
    assert!(script().is_none_or(|found| found == Ok(due.concat())));

    // The salts of the shown tensors at this step are told, and no digest of another tensor.
    let honest = fs::read_to_string(&opening).unwrap();
    let told = ShardOpening::from_text(&honest).unwrap();
    let plain = tensor_digests(&table, &state(&opened, 2));
    for range in &told.ranges {
        let index = table.iter().position(|tensor| tensor.name == range.tensor).unwrap();
        assert_eq!(range.salt.unwrap().0, salts.salt(Kind::State, 2, index as u64));
    }
    assert!(plain.iter().all(|digest| !honest.contains(&digest.to_string())));

    // A step without a checkpoint is replayed, with the data; the initial state follows from the seed.
    open("3", &["--data", &data]);
    ends(&check, 0, &["OPENS: the state after step 3"]);
    let third = fs::read_to_string(&opening).unwrap();
    fs::remove_file(&opening).unwrap();
    let without = ["reveal", &run, "--step", "3", "--shards", &map, "--output", &opening];
    ends(&without, 2, &["say where it is with --data"]);
    open("0", &[]);
    ends(&check, 0, &["OPENS: the state after step 0"]);

    // A wrong byte, another shard's opening, another step's, another run's.
    type Change<'a> = &'a dyn Fn(&mut ShardOpening);
    let other = ShardOpening::from_text(&third).unwrap();
    let forged: [(Change, i32, &str); 9] = [
        (&|told| told.ranges[1].bytes.0[5] ^= 1, 4, "param/token_embedding gives the state digest"),
        (&|told| told.ranges[0].tensor = "v/token_embedding".into(), 4, "line 3 names"),
        // Another range of the slice that is shown is an opening, too: of those elements.
        (&|told| told.ranges[0].first = 2, 0, "elements 2..22 of param/token_embedding"),
        (&|told| told.ranges[2] = other.ranges[2].clone(), 4, "v/token_embedding gives the state digest"),
        (&|told| told.step = 3, 4, "gives the state digest"),
        (&|told| told.step = 9, 4, "the head covers those after steps 0 to 8"),
        (&|told| told.ranges.clear(), 4, "it has 0 ranges"),
        (&|told| told.ranges[0].salt = None, 4, "comes with no salt; a salt is due"),
        (&|told| told.run.0[0] ^= 1, 1, "the opening is of another run"),
    ];
    for (change, code, says) in forged {
        let mut told = told.clone();
        change(&mut told);
        fs::write(&opening, told.to_text()).unwrap();
        ends(&check, code, &[says]);
        assert!(script().is_none_or(|found| found.is_ok() == (code == 0)), "{says}");
    }
    fs::write(&opening, &honest[..honest.len() / 2]).unwrap();
    ends(&check, 4, &["opening: "]);

    // Who has no key opens nothing; nor is a state opened that no head covers, or a map that is not of the state.
    let args = ["reveal", &public, "--step", "2", "--shards", &map, "--output", &opening];
    ends(&args, 2, &["its salt key is not at hand"]);
    let args = ["reveal", &run, "--step", "9", "--shards", &map, "--output", &opening];
    ends(&args, 2, &["the head covers the states after steps 0 to 8"]);
    fs::write(&map, MAP.replace("40 300", "22 300")).unwrap();
    let args = ["reveal", &run, "--step", "2", "--shards", &map, "--output", &opening];
    ends(&args, 4, &["line 3 begins at element 22; the line before ends at 23"]);
}

#[test]
fn a_shard_of_a_run_that_hides_nothing_is_opened_whole_and_in_part() {
    let hiding = Hiding::new();
    let job = hiding.at("job.toml");
    edit(Path::new(&job), &[("scheme = 1", "scheme = 0")]);
    let run = hiding.at("plain");
    ends(&["train", &job, "--out", &run], 0, &[]);
    let [opening, shown, map] = ["opening.json", "shown", "chip.map"].map(|name| hiding.at(name));
    let opened = Run::open(Path::new(&run)).unwrap();
    let parsed = ShardMap::from_text(MAP).unwrap();
    let part = bytes(&opened, &parsed, &state(&opened, 4)).concat();
    for (text, due) in [(MAP, part), ("tiebreak shard map 1\nwhole\n", state(&opened, 4).concat())] {
        fs::write(&map, text).unwrap();
        ends(&["reveal", &run, "--step", "4", "--shards", &map, "--output", &opening], 0, &["check it"]);
        ends(&["reveal", &run, "--check", &opening, "--output", &shown], 0, &["OPENS", "shard digest"]);
        assert_eq!(fs::read(&shown).unwrap(), due);
        assert!(common::opened_by_script(&run, &opening).is_none_or(|found| found == Ok(due)));
        let mut told = ShardOpening::from_text(&fs::read_to_string(&opening).unwrap()).unwrap();
        assert!(told.ranges.iter().all(|range| range.salt.is_none()));
        let last = told.ranges.last_mut().unwrap();
        *last.bytes.0.last_mut().unwrap() ^= 1;
        fs::write(&opening, told.to_text()).unwrap();
        ends(&["reveal", &run, "--check", &opening], 4, &["gives the state digest"]);
    }
}
