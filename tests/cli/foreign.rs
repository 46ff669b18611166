//! Folders of released weights in the forms that people have: pointers and pages in place of files, other formats, wrapped
//! models, other configurations, heads that differ.

use std::fs;
use std::path::Path;

use tiebreak_run::run::architectures;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::disk::Disk;

use crate::common::edit::{edit, edited};
use crate::common::{begin_run, trained};
use crate::output;
use crate::released::{GPT2_CONFIG, command, gpt2_tensors, imported, stored};

const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\n\
    oid sha256:248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707\nsize 548105171\n";
const PAGE: &[u8] = b"\n<!DOCTYPE html>\n<html class=\"\"><head><title>Sign in</title></head></html>\n";

#[test]
fn files_in_place_of_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = stored(&gpt2_tensors());
    let mut number = 0;
    let mut refused = |files: &[(&str, &[u8])], wanted: [&str; 3]| {
        number += 1;
        let said = imported(&folder.path().join(number.to_string()), files).unwrap_err();
        assert!(wanted.iter().all(|wanted| said.contains(wanted)), "{wanted:?}: {said}");
    };
    let config = ("config.json", GPT2_CONFIG.as_bytes());
    let pull = ["pointer of Git LFS", "git lfs pull"];
    let again = ["a web page (HTML)", "download the file again"];
    let save = "safetensors.torch.save_file(torch.load(";
    for (bytes, [is, advice]) in [
        (LFS, pull),
        (PAGE, again),
        (b"PK\x03\x04\x00\x00archive/data.pkl", ["a zip file, as torch.save writes it", save]),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", ["a pickle", save]),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", ["a gzip file", "unpack it first"]),
        (b"GGUF\x03\x00\x00\x00\x22\x01\x00\x00", ["a GGUF file", "safetensors"]),
        (b"\x89HDF\r\n\x1a\n\x00\x00\x00", ["an HDF5 file", "safetensors"]),
        (b"{\"error\":\"Repository not found\"}", ["a text of JSON", "download"]),
        (b"Invalid username or password.", ["a text", "download"]),
        (b"", ["empty", "download"]),
        (&[0; 4096], ["zeros", "download"]),
    ] {
        refused(&[config, ("model.safetensors", bytes)], ["model.safetensors", is, advice]);
    }
    for (bytes, [is, advice]) in [(LFS, pull), (PAGE, again), (b"", ["empty", "download"])] {
        refused(&[("config.json", bytes), ("model.safetensors", &file)], ["config.json", is, advice]);
        refused(&[config, ("model.safetensors.index.json", bytes)], ["index.json", is, advice]);
    }
    for name in ["tokenizer.json", "vocab.json", "generation_config.json"] {
        refused(&[config, ("model.safetensors", &file), (name, LFS)], [name, pull[0], pull[1]]);
    }
    // Only weights of other libraries, no weights, and an index without its files.
    refused(
        &[config, ("pytorch_model.bin", b"PK\x03\x04")],
        ["pytorch_model.bin", "as torch.save writes it", save],
    );
    refused(&[config, ("model.gguf", b"GGUF\x03")], ["model.gguf", "a GGUF file", "safetensors"]);
    refused(&[config], ["neither model.safetensors nor", "save_pretrained", ""]);
    refused(
        &[config, ("a.safetensors", &file), ("b.safetensors", &file)],
        ["several other", "a folder of its own", ""],
    );
    let index = br#"{"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-3.safetensors"}}"#;
    let shards: [(&str, &[u8]); 3] =
        [config, ("model.safetensors.index.json", index), ("x-2.safetensors", &file)];
    refused(&shards, ["of the 3 files", "x-1.safetensors, x-3.safetensors", "download them too"]);
    // The only file is used, whatever its name is.
    imported(&folder.path().join("named"), &[config, ("gpt2-tuned.safetensors", &file)]).unwrap();
    let path = folder.path().join("named/gpt2-tuned.safetensors");
    let (code, said) = command(&["import", path.to_str().unwrap()]);
    assert!(code == 2 && said.contains("name the folder"), "{said}");
    let (code, said) = command(&["import", "openai-community/gpt2"]);
    assert!(code == 2 && said.contains("hf download NAME --local-dir"), "{said}");
}

/// torch.compile, DataParallel and the like put a prefix before every name: the import finds it.
#[test]
fn prefixes_of_wrapped_models_are_taken_off() {
    let folder = tempfile::tempdir().unwrap();
    let import = |name: &str, prefix: &str| {
        let mut tensors = gpt2_tensors();
        tensors.iter_mut().for_each(|tensor| tensor.0 = format!("{prefix}{}", tensor.0));
        let files = [("config.json", GPT2_CONFIG.as_bytes()), ("model.safetensors", &stored(&tensors)[..])];
        imported(&folder.path().join(name), &files)
    };
    let plain = import("plain", "").unwrap();
    let run = trained(&plain, &folder.path().join("plain/run"), None);
    let state = |run: &tiebreak_run::run::dir::Run| {
        checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap()
    };
    for (name, prefix) in [
        ("compiled", "_orig_mod."),
        ("parallel", "module."),
        ("both", "_orig_mod.module."),
        ("turned", "module._orig_mod."),
        ("lightning", "model."),
    ] {
        let job = import(name, prefix).unwrap();
        let text = fs::read_to_string(&job).unwrap();
        assert!(text.contains(&format!("prefix = \"{prefix}\"\n")), "{text}");
        let wrapped = begin_run(&Disk::default(), &job, &folder.path().join(name).join("run")).unwrap();
        assert!(state(&wrapped) == state(&run), "{name}");
        fs::remove_file(&job).unwrap();
        let (_, stdout, _) = output(&["import", folder.path().join(name).to_str().unwrap()]);
        assert!(stdout.contains(&format!("every tensor's name begins with {prefix},")), "{stdout}");
        // Without the key the error names the prefix.
        fs::write(&job, edited(&text, &[(&format!("prefix = \"{prefix}\"\n"), "")])).unwrap();
        let begun = begin_run(&Disk::default(), &job, &folder.path().join(name).join("again"));
        let error = begun.map(|run| run.id).unwrap_err().to_string();
        assert!(error.contains(&format!("init.prefix = \"{prefix}\"")), "{error}");
    }
    // An export has the library's own names.
    let job = folder.path().join("both/job.toml");
    edit(&job, &[("names = \"hf\"\n", "names = \"hf\"\nprefix = \"_orig_mod.module.\"\n")]);
    trained(&job, &folder.path().join("both/trained"), None);
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (code, said) = command(&["export", &at("both/trained"), "--step", "0", "--output", &at("out")]);
    assert_eq!(code, 0, "{said}");
    assert!(fs::read(folder.path().join("out/model.safetensors")).unwrap() == stored(&gpt2_tensors()));

    // A prefix of only some names belongs to these names.
    let mut tensors = gpt2_tensors();
    tensors[3].0 = format!("module.{}", tensors[3].0);
    let files = [("config.json", GPT2_CONFIG.as_bytes()), ("model.safetensors", &stored(&tensors)[..])];
    let said = imported(&folder.path().join("some"), &files).unwrap_err();
    assert!(said.contains("no file has the parameters transformer.h.0.ln_1.bias"), "{said}");
    let long = format!("names = \"hf\"\nprefix = \"{}\"\n", "m".repeat(257));
    edit(&plain, &[("names = \"hf\"\n", &long)]);
    let (code, said) = command(&["job", "check", plain.to_str().unwrap()]);
    assert!(code == 2 && said.contains("at most 256 bytes"), "{code} {said}");
}

/// The import compares a head beside tied weights before there is a job.
#[test]
fn a_head_that_differs_from_the_tied_table_is_refused_at_import() {
    let folder = tempfile::tempdir().unwrap();
    let import = |name: &str, config: &str, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut tensors = gpt2_tensors();
        let mut head = tensors[0].clone();
        head.0 = "lm_head.weight".into();
        edit(&mut head.3);
        tensors.push(head);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &stored(&tensors)[..])];
        imported(&folder.path().join(name), &files)
    };
    import("same", GPT2_CONFIG, &|_| {}).unwrap();
    // The last bit of one element, and a zero of the other sign.
    let one = |head: &mut Vec<u8>| head[4 * (5 * 16 + 3)] ^= 1;
    let said = import("bit", GPT2_CONFIG, &one).unwrap_err();
    for wanted in [
        "lm_head.weight differs from transformer.wte.weight",
        "element [5, 3] is",
        "(3ca60001)",
        "(3ca60000)",
        "tie_word_embeddings",
        "leave lm_head.weight out",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let said = import("sign", GPT2_CONFIG, &|head| head[3] ^= 0x80).unwrap_err();
    assert!(said.contains("element [0, 0] is -0 (80000000), and 0 (00000000) there"), "{said}");
    // The error's advice works.
    let untied = GPT2_CONFIG.replacen('{', "{ \"tie_word_embeddings\": false,", 1);
    let job = import("untied", &untied, &one).unwrap();
    begin_run(&Disk::default(), &job, &folder.path().join("run")).unwrap();
}

/// The header of a file of a torchvision network, without its data.
fn network(folder: &Path, name: &str, classes: u64, prefix: &str) {
    let model =
        architectures::of_shapes(name, |tensor| (tensor == "fc.weight").then(|| vec![classes, 0])).unwrap();
    let mut end = 0u64;
    let mut header = serde_json::Map::new();
    for released in model.released().unwrap() {
        let (dtype, size) = if released.parts().is_empty() { ("I64", 8) } else { ("F32", 4) };
        let begin = end;
        end += released.shape.iter().map(|&d| u64::from(d)).product::<u64>() * size;
        let entry =
            serde_json::json!({ "dtype": dtype, "shape": released.shape, "data_offsets": [begin, end] });
        header.insert(format!("{prefix}{}", released.name), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    fs::create_dir_all(folder).unwrap();
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

/// timm's residual networks are torchvision's; without a configuration the error names the option to give.
#[test]
fn networks_are_imported_by_timms_configuration_or_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let released = folder.path().join("resnet34");
    network(&released, "resnet34", 7, "module.");
    let mut number = 0;
    let mut import = |config: Option<&str>, flags: &[&str]| {
        number += 1;
        let _ = fs::remove_file(released.join("config.json"));
        config.iter().for_each(|text| fs::write(released.join("config.json"), text).unwrap());
        let out = folder.path().join(number.to_string());
        let paths = ["import", released.to_str().unwrap(), "--output", out.to_str().unwrap()];
        let (code, said) = command(&[&paths[..], flags].concat());
        let job = fs::read_to_string(out.join("job.toml")).unwrap_or_default();
        if code == 0 { Ok((job, said)) } else { Err((code, said)) }
    };
    let timm = r#"{"architecture":"resnet34","num_classes":7,"num_features":512,"global_pool":"avg","pretrained_cfg":{"tag":"a1_in1k",
        "input_size":[3,160,160],"interpolation":"bicubic","mean":[0.5,0.25,0.5],"std":[0.5,0.5,0.5],"num_classes":7,"first_conv":"conv1","classifier":"fc"}}"#;
    let (job, said) = import(Some(timm), &[]).unwrap();
    for line in [
        "blocks = [3,4,6,3]",
        "classes = 7",
        "height = 160",
        "image_mean = [0.5,0.25,0.5]",
        "prefix = \"module.\"",
    ] {
        assert!(job.contains(line), "{line}: {job}");
    }
    assert!(said.contains("as config.json says"), "{said}");
    let (job, said) =
        import(Some(timm), &["--image-size", "64", "--classes", "3", "--normalize", "half"]).unwrap();
    for line in
        ["classes = 3", "height = 64", "width = 64", "normalize = \"half\"", "reinitialize = [\"head.*\"]"]
    {
        assert!(job.contains(line), "{line}: {job}");
    }
    assert!(said.contains("\"config.json\""), "{said}");

    let (code, said) = import(None, &[]).unwrap_err();
    assert!(
        code == 2 && said.contains("names and shapes of resnet34: give --architecture resnet34"),
        "{said}"
    );
    let (job, said) = import(None, &["--architecture", "resnet34"]).unwrap();
    assert!(
        job.contains("classes = 7")
            && job.contains("height = 224")
            && job.contains("normalize = \"imagenet\""),
        "{job}"
    );
    assert!(
        said.contains("as --architecture says") && said.contains("as torchvision's weights expect"),
        "{said}"
    );
    // The option takes precedence over a configuration that this program does not read.
    for config in ["{ \"family\": \"resnet\" }", "no JSON", GPT2_CONFIG] {
        assert!(import(Some(config), &["--architecture", "resnet34"]).is_ok(), "{config}");
    }
    for (config, flags, wanted) in [
        (
            None,
            &["--architecture", "resnet50"][..],
            "module.layer1.0.conv1.weight is F32 [64, 64, 3, 3], the program has F32 [64, 64, 1, 1]",
        ),
        (
            Some(edited(timm, &[("resnet34", "resnet34d")])),
            &[],
            "is timm's \\\"resnet34d\\\"; of timm's networks these can be imported: resnet18",
        ),
        (Some(edited(timm, &[("\"avg\"", "\"\"")])), &[], "global_pool"),
        (
            Some(edited(timm, &[("\"num_features\"", "\"model_args\":{\"stem_type\":\"deep\"},\"n\"")])),
            &[],
            "stem_type",
        ),
        (Some("{ \"family\": \"resnet\" }".into()), &[], "neither model_type"),
    ] {
        let (_, said) = import(config.as_deref(), flags).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let gpt2 = folder.path().join("gpt2");
    fs::create_dir(&gpt2).unwrap();
    fs::write(gpt2.join("model.safetensors"), stored(&gpt2_tensors())).unwrap();
    let (code, said) = command(&["import", gpt2.to_str().unwrap()]);
    assert!(
        code == 2 && said.contains("of a GPT-2 get the file") && said.contains("--architecture NAME"),
        "{said}"
    );
    fs::write(gpt2.join("config.json"), GPT2_CONFIG).unwrap();
    let (code, said) = command(&["import", gpt2.to_str().unwrap(), "--image-size", "64"]);
    assert!(code == 2 && said.contains("--image-size: only models of images"), "{said}");
}
