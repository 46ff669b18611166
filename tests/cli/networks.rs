//! Released networks over images: the pixels that they expect, and new heads.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{edit::edited, trained};
use crate::output;
use crate::released::{gpt2_tensors, stored};

/// The exit code of a command, and its output as JSON.
fn command(arguments: &[&str]) -> (i32, String) {
    let (code, stdout, stderr) = output(&[arguments, &["--json"]].concat());
    (code, if code == 0 { stdout } else { stderr })
}

/// A folder with torchvision's layout of a small residual network over images of three colours, and data for it in `data`.
fn resnet_folder(folder: &Path) -> PathBuf {
    let npy = |descr: &str, shape: &str, bytes: Vec<u8>| {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        header = format!("{header:<117}\n");
        [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), header.as_bytes(), &bytes].concat()
    };
    let pixels = (0..8 * 192u32).map(|i| (i * i % 251) as u8).collect();
    fs::write(folder.join("inputs.npy"), npy("|u1", "(8, 3, 8, 8)", pixels)).unwrap();
    fs::write(folder.join("labels.npy"), npy("|u1", "(8,)", (0..8).map(|i| i % 4).collect())).unwrap();
    let job = r#"steps = 1
model = { kind = "resnet", height = 8, width = 8, planes = 3, stages = [4, 6], blocks = 1, classes = 10, norm = "batch", order = "post" }
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "u8" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 4 }
"#;
    fs::write(folder.join("job.toml"), job).unwrap();
    trained(&folder.join("job.toml"), &folder.join("run"), None);
    let (run, out) = (folder.join("run"), folder.join("released"));
    let (code, said) = command(&["export", run.to_str().unwrap(), "--output", out.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    out
}

/// The pixels that the network was trained on are given by the flag, the configuration, the image processor, or the layout, in
/// this order.
#[test]
fn import_says_how_released_networks_expect_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let released = resnet_folder(folder.path());
    let config = fs::read_to_string(released.join("config.json")).unwrap();
    let unsaid = edited(&config, &[("\"normalize\": \"none\",", "")]);
    let own = edited(&config, &[("\"normalize\": \"none\"", "\"image_mean\": [0.5], \"image_std\": [0.25]")]);
    let processor =
        r#"{ "do_normalize": true, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": 8 }"#;
    let off = r#"{ "do_normalize": false }"#;
    let one = r#"{ "image_mean": [0.1, 0.2], "image_std": [0.4, 0.5] }"#;
    let preset = |name: &str| Ok(format!("normalize = \"{name}\"\n"));
    let mut number = 0;
    let mut try_import = |config: &str, processor: Option<&str>, flags: &[&str]| {
        number += 1;
        let out = folder.path().join(number.to_string());
        fs::write(released.join("config.json"), config).unwrap();
        let path = released.join("preprocessor_config.json");
        let _ = fs::remove_file(&path);
        processor.iter().for_each(|text| fs::write(&path, text).unwrap());
        let paths = [released.to_str().unwrap(), "--output", out.to_str().unwrap()];
        let (code, said) = command(&[&["import"], &paths[..], flags].concat());
        let text = fs::read_to_string(out.join("job.toml")).unwrap_or_default();
        if code == 0 { Ok((text, said, out)) } else { Err(said) }
    };
    // Configuration, image processor, options; the job's lines or the error; the reason.
    type Case<'a> = (&'a str, Option<&'a str>, &'a [&'a str], Result<String, &'a str>, &'a str);
    let cases: [Case; 9] = [
        (&unsaid, None, &[], preset("imagenet"), "as torchvision's weights expect"),
        (&unsaid, None, &["--normalize", "half"], preset("half"), "as --normalize says"),
        (&unsaid, Some(off), &[], preset("none"), "as preprocessor_config.json says"),
        (&config, Some(processor), &[], preset("none"), "as config.json says"),
        (&own, None, &[], Ok("image_mean = [0.5]\nimage_std = [0.25]\n".into()), "as config.json says"),
        (&own, None, &["--normalize", "cifar10"], preset("cifar10"), "as --normalize says"),
        (
            &unsaid,
            Some(processor),
            &[],
            Ok("image_mean = [0.1,0.2,0.3]\nimage_std = [0.4,0.5,0.6]\n".into()),
            "as preprocessor_config.json says",
        ),
        (&unsaid, Some(one), &[], Err("image_mean: it has 2 planes, and the images have 3"), ""),
        (&unsaid, Some("{ \"image_mean\": 3 }"), &[], Err("it is no configuration of pixels"), ""),
    ];
    for (config, processor, flags, wanted, why) in cases {
        match (try_import(config, processor, flags), wanted) {
            (Ok((text, said, _)), Ok(wanted)) => {
                assert!(said.contains(why), "{why}: {said}");
                let keys = ["normalize = ", "image_mean", "image_std"];
                let lines = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
                assert_eq!(lines.map(|line| format!("{line}\n")).collect::<String>(), wanted);
            }
            (Err(said), Err(wanted)) => assert!(said.contains(wanted), "{wanted}: {said}"),
            (found, wanted) => panic!("{wanted:?}: {found:?}"),
        }
    }
}

#[test]
fn a_released_network_is_tuned_for_other_classes() {
    let folder = tempfile::tempdir().unwrap();
    let released = resnet_folder(folder.path());
    let out = folder.path().join("tuned");
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let import = |flags: &[&str], out: &Path| {
        command(&[&["import", &text(&released), "--output", &text(out)], flags].concat())
    };
    let (code, said) = import(&["--classes", "10"], &folder.path().join("same"));
    assert!(code == 0 && said.contains("their head is kept"), "{said}");
    let (code, said) = import(&["--classes", "4", "--normalize", "imagenet"], &out);
    assert!(code == 0 && said.contains("a new head for 4 classes (head.*)"), "{said}");
    for name in ["inputs.npy", "labels.npy"] {
        fs::copy(folder.path().join(name), out.join(name)).unwrap();
    }
    let job = out.join("job.toml");
    let written = fs::read_to_string(&job).unwrap();
    assert!(
        written.contains("reinitialize = [\"head.*\"]\n") && written.contains("classes = 4\n"),
        "{written}"
    );
    let short = edited(&written, &[("steps = 100", "steps = 2"), ("warmup = 10", "warmup = 0")]);
    fs::write(&job, &short).unwrap();
    let (job, root) = (text(&job), text(folder.path()));
    let (code, stdout, stderr) = output(&["job", "check", &job, "--data-root", &root]);
    assert!(
        code == 0 && stdout.contains("drawn from the seed: param/head.weight, param/head.bias;"),
        "{stdout}{stderr}"
    );
    assert!(!stderr.contains("how pixels are normalised"), "{stderr}");
    // Without the key the check warns, and the program is another one.
    fs::write(out.join("job.toml"), edited(&short, &[("normalize = \"imagenet\"\n", "")])).unwrap();
    let (code, other, stderr) = output(&["job", "check", &job, "--data-root", &root]);
    assert!(code == 0 && stderr.contains("does not say how pixels are normalised"), "{stderr}");
    let program = |said: &str| said.lines().find(|line| line.starts_with("program ")).unwrap().to_string();
    assert_ne!(program(&stdout), program(&other));
    fs::write(out.join("job.toml"), &short).unwrap();

    let run = text(&folder.path().join("tuned-run"));
    let (code, _, stderr) = output(&["train", &job, "--data-root", &root, "--out", &run]);
    assert_eq!(code, 0, "{stderr}");
    let weights = text(&released.join("model.safetensors"));
    let (code, stdout, stderr) = output(&["audit", &run, "--weights", &weights]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    // The seed depends on the data, so a job alone has no logits; the run and its export have.
    let inputs = text(&out.join("inputs.npy"));
    let logits = |of: &str, name: &str| {
        let to = text(&folder.path().join(name));
        let (code, _, stderr) = output(&["logits", of, "--inputs", &inputs, "--output", &to]);
        (code, stderr, fs::read(&to).unwrap_or_default())
    };
    let (code, said, _) = logits(&job, "job.npy");
    assert!(code == 2 && said.contains("draws parameters from its seed"), "{said}");
    let (code, said, of_run) = logits(&run, "run.npy");
    assert_eq!(code, 0, "{said}");
    let exported = text(&folder.path().join("exported"));
    assert_eq!(output(&["export", &run, "--output", &exported]).0, 0);
    assert_eq!(output(&["import", &exported]).0, 0);
    let (code, said, of_export) = logits(&text(&folder.path().join("exported/job.toml")), "export.npy");
    assert!(code == 0 && of_export == of_run, "{said}");

    let gpt2 = folder.path().join("gpt2");
    fs::create_dir(&gpt2).unwrap();
    let config = r#"{ "model_type": "gpt2", "vocab_size": 8, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1 }"#;
    fs::write(gpt2.join("config.json"), config).unwrap();
    fs::write(gpt2.join("model.safetensors"), stored(&gpt2_tensors())).unwrap();
    for (flag, value, why) in [
        ("--classes", "4", "only classifiers and encoders have it"),
        ("--normalize", "imagenet", "only models of images have it"),
    ] {
        let (code, said) = command(&["import", gpt2.to_str().unwrap(), flag, value]);
        assert!(code == 2 && said.contains(why), "{said}");
    }
}
