//! Verdicts, reports and messages of a game of many small parts: the memory of their readers is a small multiple of the files' bytes.

use std::ffi::OsString;
use std::fs;
use std::time::Instant;

use tiebreak_dispute::answer::{
    AnswerClaim, AnswerTile, AnswerVerdict, ClassClaim, LogitsClaim, RowClaim, TokenizerParts, TracedWindow,
};
use tiebreak_dispute::game::message::{Answer, Answered, Asked, Fold, Need, Question, Sealed, Subject, Tree};
use tiebreak_dispute::verdict::{Base64, Claim, DataSlices, Fork, ProvenInput, ProvenTensor, Verdict};
use tiebreak_job::identity::{CONTRACT, RunSummary};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::Hashes;

use crate::{alone, peak};

/// The most bytes that a reader takes for each byte of its file, but for lists of short entries.
const TIMES: usize = 8;
/// What readers take beside the file: for small buffers, and for the command line.
const BESIDE: usize = 1 << 20;

/// A verdict of no run with this claim, as bytes.
fn verdict(claim: Claim) -> Vec<u8> {
    let digest = Digest([1; 32]);
    let run = RunSummary {
        contract: CONTRACT.into(),
        trainer_key: None,
        challenge: None,
        nonce: "0".repeat(32),
        program: digest,
        data: digest,
        initial: digest,
        origin: InitialOrigin::Seed,
    };
    Verdict::new(run, ("steps = 1".into(), None), "no head".into(), None, claim).to_bytes()
}

/// Verdicts of all kinds of lists that a claim has, and the most bytes for each of theirs. A list that grows has twice its length
/// in all for a moment, and half of that beside it: the lengths are those behind which it is longest.
fn verdicts() -> Vec<(&'static str, usize, Vec<u8>)> {
    let none = || (Base64(Vec::new()), Hashes(Vec::new()));
    let slices = |slices: Vec<usize>| {
        let (bytes, siblings) = none();
        DataSlices { file: 0, slices, bytes, siblings }
    };
    let batch = |slices| Claim::Batch { files: Vec::new(), slices };
    let kept = ProvenTensor { digest: Digest([2; 32]), proof: Vec::new() };
    let step = |micro_batches, tensors| Claim::Step { micro_batches, tensors };
    let files = vec![FileManifest { bytes: 0, root: Digest([3; 32]) }; 10_000];
    let evidence = Fork::Prefix { proof: Vec::new() };
    let binding = |outputs, kept| Claim::Binding { outputs, siblings: none().1, before: None, kept };
    let claims = [
        ("micro-batches", TIMES, step(vec![0; (1 << 19) + 1], Vec::new())),
        ("names of tensors", 24, step(Vec::new(), vec![String::new(); (1 << 18) + 1])),
        ("slices of one file", 12, batch(vec![slices(vec![0; (1 << 19) + 1])])),
        ("slices of many files", TIMES, batch(vec![slices(Vec::new()); (1 << 14) + 1])),
        ("manifests of files", TIMES, Claim::Batch { files, slices: Vec::new() }),
        ("digests", TIMES, binding(vec![Digest([4; 32]); (1 << 14) + 1], Vec::new())),
        ("tensors", TIMES, binding(Vec::new(), vec![kept; (1 << 14) + 1])),
        ("another head", TIMES, Claim::Fork { other: "x".repeat(1_500_000), evidence }),
    ];
    claims.into_iter().map(|(what, times, claim)| (what, times, verdict(claim))).collect()
}

/// A verdict is parsed without a copy in values of any kind, and compared with its one encoding as it is written.
#[test]
fn verdicts_are_read_in_a_few_times_their_bytes() {
    let _alone = alone();
    for (what, most, bytes) in verdicts() {
        let (read, taken) = peak(|| Verdict::from_bytes(&bytes).map(drop));
        let times = taken as f64 / bytes.len() as f64;
        println!("{what}: {} bytes, {times:.1} times as many taken", bytes.len());
        read.unwrap();
        assert!(taken <= most * bytes.len() + BESIDE, "{what}: {times:.1} times the bytes of the verdict");
    }
    // Objects as arrays are not the one encoding, which is seen behind them.
    let text = String::from_utf8(verdict(Claim::Batch { files: Vec::new(), slices: Vec::new() })).unwrap();
    let many = r#"[0,[],"",""],"#.repeat(1 << 17);
    let bytes = text.replace(r#""slices":[]"#, &format!(r#""slices":[{many}[0,[],"",""]]"#));
    assert_ne!(bytes, text);
    let (read, taken) = peak(|| Verdict::from_bytes(bytes.as_bytes()).map(drop));
    let times = taken as f64 / bytes.len() as f64;
    println!("slices as arrays: {} bytes, {times:.1} times as many taken", bytes.len());
    assert!(read.is_err() && times < 24.0, "{times:.1} times the bytes of the verdict");
}

/// Nothing under a digest.
fn no_tensor() -> ProvenTensor {
    ProvenTensor { digest: Digest([2; 32]), proof: Vec::new() }
}

/// Slices of an input with these numbers, and without bytes.
fn input(slices: Vec<usize>) -> ProvenInput {
    let (bytes, siblings) = (Base64(Vec::new()), Hashes(Vec::new()));
    ProvenInput { tensor: 0, commitment: no_tensor(), slices, bytes, siblings }
}

/// Claims about receipts with all kinds of lists that they have, and the most bytes for each of theirs.
fn answer_claims() -> Vec<(&'static str, usize, AnswerClaim)> {
    let window = |proof| TracedWindow { number: 0, root: Digest([5; 32]), proof };
    let digests = || vec![Digest([6; 32]); (1 << 14) + 1];
    let tile = |inputs| AnswerTile {
        job: String::new(),
        window: window(Vec::new()),
        node: 0,
        output: no_tensor(),
        tile: 0,
        value: Digest([3; 32]),
        siblings: Hashes(Vec::new()),
        disclosed: None,
        inputs,
    };
    let tokenizer = |files, ends| TokenizerParts { files, ends };
    let of_tile = |inputs| AnswerClaim::Tile(Box::new(tile(inputs)));
    let class = |slices| {
        let (bytes, siblings) = (Base64(Vec::new()), Hashes(Vec::new()));
        AnswerClaim::Class(Box::new(ClassClaim { sample: 0, row: 0, slices, bytes, siblings }))
    };
    let row = |logits| {
        let (job, window, row) = (String::new(), window(digests()), no_tensor());
        AnswerClaim::Row(Box::new(RowClaim { job, window, number: 0, row, logits }))
    };
    let logits = LogitsClaim { job: "x".repeat(1_500_000), window: window(Vec::new()), logits: no_tensor() };
    let file = (String::new(), Digest([8; 32]));
    let ends = tokenizer(Vec::new(), vec![0; (1 << 19) + 1]);
    let files = tokenizer(vec![file; (1 << 14) + 1], Vec::new());
    vec![
        ("a proof", TIMES, AnswerClaim::Token { number: 0, row: Base64(Vec::new()), proof: digests() }),
        ("ids that end texts", TIMES, AnswerClaim::Ended { number: 0, tokenizer: ends }),
        ("files of a tokenizer", TIMES, AnswerClaim::Stopped { tokenizer: Some(files) }),
        ("slices of an input", 12, of_tile(vec![input(vec![0; (1 << 19) + 1])])),
        ("inputs", TIMES, of_tile(vec![input(Vec::new()); (1 << 14) + 1])),
        ("slices of logits", 12, class(vec![0; (1 << 19) + 1])),
        ("a window", TIMES, row(input(Vec::new()))),
        ("a job", TIMES, AnswerClaim::Logits(Box::new(logits))),
    ]
}

/// Answers of a game with all kinds of lists that they have, and the most bytes for each of theirs.
fn game_answers() -> Vec<(&'static str, usize, Answer)> {
    let digests = vec![Digest([6; 32]); (1 << 14) + 1];
    let binding = |outputs, kept| Answer::Binding { outputs, siblings: Hashes(Vec::new()), kept };
    let slices =
        DataSlices { file: 0, slices: Vec::new(), bytes: Base64(Vec::new()), siblings: Hashes(Vec::new()) };
    let files = vec![FileManifest { bytes: 0, root: Digest([3; 32]) }; 10_000];
    let numbers = input(vec![0; (1 << 19) + 1]);
    vec![
        ("outputs", TIMES, binding(digests, Vec::new())),
        ("kept tensors", TIMES, binding(Vec::new(), vec![no_tensor(); (1 << 14) + 1])),
        ("operands", TIMES, Answer::Operands { inputs: vec![input(Vec::new()); (1 << 14) + 1] }),
        ("slices of operands", 12, Answer::Operands { inputs: vec![numbers.clone()] }),
        ("slices of a product", 12, Answer::Rounding { inputs: vec![numbers], log: None }),
        ("files", TIMES, Answer::Samples { files, slices: Vec::new() }),
        (
            "slices of files",
            TIMES,
            Answer::Samples { files: Vec::new(), slices: vec![slices; (1 << 14) + 1] },
        ),
        ("children", TIMES, Answer::Children { values: Base64(vec![7; 1_500_000]) }),
    ]
}

/// Reads bytes that a reader takes, and holds its memory to so many times their length.
fn taken_by(what: &str, most: usize, bytes: &[u8], read: Read) {
    let (is_read, taken) = peak(|| read(bytes));
    let times = taken as f64 / bytes.len() as f64;
    println!("{what}: {} bytes, {times:.1} times as many taken", bytes.len());
    assert!(is_read, "{what} is refused");
    assert!(taken <= most * bytes.len() + BESIDE, "{what}: {times:.1} times the bytes");
}

/// A reader, which says whether it took the bytes.
type Read = fn(&[u8]) -> bool;

fn is_verdict(bytes: &[u8]) -> bool {
    AnswerVerdict::from_bytes(bytes).is_ok()
}

fn is_answer(bytes: &[u8]) -> bool {
    Sealed::<Answered>::from_bytes(bytes, u64::MAX, &player().public()).is_ok()
}

fn is_question(bytes: &[u8]) -> bool {
    Sealed::<Asked>::from_bytes(bytes, u64::MAX, &player().public()).is_ok()
}

/// The key of a party, and of a referee.
fn player() -> PrivateKey {
    PrivateKey::generate("alice", [9; 32]).unwrap()
}

/// An answer to no question.
fn sealed(answer: Answer) -> Vec<u8> {
    let (game, question) = (Digest([1; 32]), Digest([2; 32]));
    Sealed::new(Answered { game, turn: 0, question, answer }, &player()).to_bytes()
}

#[test]
fn verdicts_on_receipts_are_read_in_a_few_times_their_bytes() {
    let _alone = alone();
    for (what, most, claim) in answer_claims() {
        let bytes = AnswerVerdict::new("no receipt".into(), claim).to_bytes();
        taken_by(what, most, &bytes, is_verdict);
    }
}

/// A message takes memory for its values and for the bytes that are signed.
#[test]
fn messages_of_a_game_are_read_in_a_few_times_their_bytes() {
    let _alone = alone();
    for (what, most, answer) in game_answers() {
        taken_by(what, most, &sealed(answer), is_answer);
    }
    // Objects as arrays are not the one encoding, which is seen behind them.
    let text = String::from_utf8(sealed(Answer::Samples { files: Vec::new(), slices: Vec::new() })).unwrap();
    let many = r#"[0,[],"",""],"#.repeat(1 << 17);
    let bytes = text.replace(r#""slices":[]"#, &format!(r#""slices":[{many}[0,[],"",""]]"#));
    assert_ne!(bytes, text);
    let (is_read, taken) = peak(|| is_answer(bytes.as_bytes()));
    let times = taken as f64 / bytes.len() as f64;
    assert!(!is_read && times < 24.0, "{times:.1} times the bytes of the message");
}

/// Fields that nothing has are refused where they stand: in claims, in answers, and in the parts of questions.
#[test]
fn fields_of_no_claim_and_of_no_message_take_no_memory() {
    let _alone = alone();
    let many = "{},".repeat(300_000);
    let subject = Subject::Batch { step: 1, micro: 0, tensor: 0 };
    let fold = Fold::Rank { position: 1 };
    let asked = |question| Sealed::new(Asked::new(Digest([1; 32]), 0, question), &player()).to_bytes();
    let children = |tree| Question::Children { tree, first: 0, count: 1 };
    let terms = Tree::Terms { subject, element: 0, fold };
    let stopped = AnswerVerdict::new(String::new(), AnswerClaim::Stopped { tokenizer: None }).to_bytes();
    let evidence = Question::Evidence { subject, element: 0, need: Need::Frame { fold } };
    for (own, place, read) in [
        (stopped, r#""kind":"stopped""#, is_verdict as Read),
        (sealed(Answer::Decline), r#""is":"decline""#, is_answer),
        (asked(Question::Root { subject }), r#""ask":"root""#, is_question),
        (asked(Question::Root { subject }), r#""of":"batch""#, is_question),
        (asked(children(terms)), r#""tree":"terms""#, is_question),
        (asked(children(terms)), r#""kind":"rank""#, is_question),
        (asked(evidence), r#""need":"frame""#, is_question),
    ] {
        let own = String::from_utf8(own).unwrap();
        assert!(own.contains(place) && read(own.as_bytes()), "{own}");
        for other in [format!(r#"{place},"others":[{many}0]"#), format!(r#""others":[{many}0],{place}"#)] {
            let bytes = own.replace(place, &other);
            let (is_read, taken) = peak(|| read(bytes.as_bytes()));
            assert!(!is_read && taken <= BESIDE, "{place}: {taken} bytes are taken");
        }
    }
}

/// What no verdict and no report has is refused, or skipped, without a copy of it.
#[test]
fn fields_that_do_not_belong_take_no_memory() {
    let _alone = alone();
    let many = "{},".repeat(300_000);
    let text = String::from_utf8(verdict(Claim::Cursor)).unwrap();
    for (place, other) in [
        (r#"{"kind":"seed"}"#, format!(r#"{{"kind":"weights","files":[{many}{{}}]}}"#)),
        (r#"{"kind":"seed"}"#, format!(r#"{{"kind":"seed","others":[{many}0]}}"#)),
        (r#"{"kind":"cursor"}"#, format!(r#"{{"kind":"cursor","others":[{many}0]}}"#)),
        (r#"{"kind":"cursor"}"#, format!(r#"{{"others":[{many}0],"kind":"cursor"}}"#)),
        (r#"{"kind":"cursor"}"#, format!(r#"{{"kind":"step","others":[{many}0]}}"#)),
    ] {
        assert!(text.contains(place));
        let bytes = text.replace(place, &other);
        let (read, taken) = peak(|| Verdict::from_bytes(bytes.as_bytes()).map(drop));
        assert!(read.is_err());
        assert!(taken <= BESIDE, "{}: {taken} bytes are taken", &other[..40]);
    }
    let text = report(9, &[], &[], &[]);
    let other = format!(r#""result":"matches","others":[{many}0]"#);
    let bytes = text.replace(r#""result":"matches""#, &other);
    assert_ne!(bytes, text);
    let (read, taken) = peak(|| tiebreak_audit::report_file::decode(bytes.as_bytes()).map(drop));
    read.unwrap();
    assert!(taken <= BESIDE, "{taken} bytes are taken");
}

/// A report that nobody signed, of a run of so many steps, with these ranges as replayed, as planned and as left out.
fn report(steps: usize, replayed: &[usize], segments: &[usize], omitted: &[usize]) -> String {
    let digest = Digest([7; 32]);
    let ranges = |first: &[usize]| {
        let ranges: Vec<String> = first.iter().map(|first| format!("[{first},{first}]")).collect();
        format!("[{}]", ranges.join(","))
    };
    let plan = format!(
        r#"{{"choice":"all","segments":{},"of":{},"omitted":{},"unreachable":null,"seed":null,"detection":[0,0,0],"bytes":0,"memory":0}}"#,
        ranges(segments),
        segments.len(),
        ranges(omitted)
    );
    let digests = format!(r#""run":"{digest}","computation":"{digest}","job":"{digest}","data":"{digest}""#);
    let rest = r#""end_checked":true,"native":false,"outcome":{"result":"matches"},"auditor":null"#;
    let head =
        format!(r#""format":2,"steps":{steps},"signed":"","head_size":{},"head_root":"{digest}""#, steps + 2);
    format!("{{{head},{digests},{rest},\"replayed\":{},\"plan\":{plan}}}\n", ranges(replayed))
}

/// Merging reports takes a small multiple of the bytes of the files, in whichever list these are.
#[test]
fn reports_are_merged_in_a_few_times_their_bytes() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let few: Vec<usize> = vec![1; 200_000];
    let apart: Vec<usize> = (1..200_000).step_by(2).collect();
    for (what, texts) in [
        ("steps again and again", vec![report(9, &few, &[], &[])]),
        ("steps apart", vec![report(200_000, &apart, &[], &[])]),
        ("segments", vec![report(200_000, &[], &apart, &[])]),
        ("segments left out", vec![report(200_000, &[], &[], &apart)]),
        ("all of it twice", vec![report(200_000, &apart, &apart, &apart); 2]),
    ] {
        let bytes: usize = texts.iter().map(String::len).sum();
        let files: Vec<_> = (0..texts.len()).map(|i| folder.path().join(format!("{i}.json"))).collect();
        files.iter().zip(&texts).for_each(|(file, text)| fs::write(file, text).unwrap());
        let words =
            ["tiebreak", "audit", "merge", "-q", "--unsigned", "--require", "0.01"].map(OsString::from);
        let words: Vec<OsString> = words.into_iter().chain(files.into_iter().map(Into::into)).collect();
        let started = Instant::now();
        let (code, taken) = peak(|| tiebreak::cli::run(&words));
        let times = taken as f64 / bytes as f64;
        println!("{what}: {bytes} bytes, {times:.1} times as many taken, exit {code}");
        assert!(
            matches!(code, 0 | 3) && started.elapsed().as_secs() < 20,
            "{what}: {code} in {:.0?}",
            started.elapsed()
        );
        assert!(taken <= TIMES * bytes + BESIDE, "{what}: {times:.1} times the bytes of the reports");
    }
}
