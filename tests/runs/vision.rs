//! Vision transformers: audits of runs on pixels and on numbers, exact and logged, and a trainer who changes a label or a pixel.

use std::fs;

use crate::common::{audited, edit::edited, encoders::images_job, trained};
use crate::masked_tokens::convicted_of_batch;
use tiebreak_audit::Outcome;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_job::data::batch_digest;

#[test]
fn runs_match_and_whoever_changes_a_pixel_or_a_label_is_convicted() {
    let pixels = ", image_mean = [0.5, 0.25], image_std = [0.25, 0.5]";
    let numbers = [(pixels, ""), ("pixels.npy", "numbers.npy"), ("\"u8\"", "\"f32\"")];
    let logged =
        [("commit = {", "rounding = {}\ncommit = {"), (", attention_dropout = 0.2", ", qkv_bias = false")];
    for edits in [&[][..], &numbers, &logged] {
        let folder = tempfile::tempdir().unwrap();
        let path = images_job(folder.path());
        fs::write(&path, edited(&fs::read_to_string(&path).unwrap(), edits)).unwrap();
        let run = trained(&path, &folder.path().join("run"), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
        }
        let program = run.program();
        let honest = run.dataset().unwrap().batch(program, run.key(), 3).unwrap();
        for tensor in [1, 0] {
            let mut wrong = honest.clone();
            wrong[1].tensors[tensor][8] ^= 1;
            convicted_of_batch(&run, batch_digest(program, &wrong));
        }
    }
}

#[test]
fn jobs_that_do_not_fit_are_refused_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(images_job(folder.path())).unwrap();
    for (edits, wanted) in [
        (&[("height = 4", "height = 5")][..], "model.height: must be a multiple of patch (2), is 5"),
        (&[("width = 6", "width = 7")], "model.width: must be a multiple of patch (2), is 7"),
        (&[("heads = 2", "heads = 3")], "model.channels: must be a multiple of heads (3)"),
        (
            &[("height = 4", "height = 4096"), ("width = 6", "width = 4096"), ("patch = 2", "patch = 16")],
            "model.patch: an image has 65536 patches of this size, and at most 32766 are possible",
        ),
        (
            &[
                ("height = 4", "height = 4096"),
                ("width = 6", "width = 4096"),
                ("patch = 2", "patch = 4096"),
                ("planes = 2", "planes = 256"),
            ],
            "model.patch: a patch of 4096 x 4096 pixels in 256 planes has 2^31 numbers or more",
        ),
        // The class token is put before the patches by way of 2^31 elements: 16384 samples of 16 rows of 8192 numbers.
        (
            &[
                ("height = 4", "height = 3"),
                ("width = 6", "width = 5"),
                ("patch = 2", "patch = 1"),
                ("heads = 2", "heads = 1"),
                ("channels = 8", "channels = 8191"),
                ("micro_batch = 3", "micro_batch = 16384"),
            ],
            "batch.micro_batch: a tensor would have more than 2147483647 elements",
        ),
        (&[("image_mean = [0.5, 0.25]", "image_mean = [0.5]")], "model.image_std: a plane has a mean"),
        (&[("\"u8\"", "\"f32\"")], "model.image_mean: only bytes are pixels"),
        (&[("\"u8\", augment = { crop = 1, flip = true }", "\"u16\"")], "u16 and u32 are token ids"),
        (&[("channels = 8", "width = 8, channels = 8")], "duplicate key"),
        (&[("channels = 8, ", "")], "model.channels: the key is missing"),
    ] {
        let said = Job::parse("job.toml", &edited(&text, edits)).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}
