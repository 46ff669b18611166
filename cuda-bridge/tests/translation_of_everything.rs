//! Every shader that the wgpu engine can produce translates; with NVRTC, each compiles for one of three architectures, or for all of
//! them if `TIEBREAK_EVERY_VARIANT` is set.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_bridge::nvrtc::NvrtcError;
use cuda_bridge::translate::{Kernel, Options};
use tiebreak_gpu::{TextLimits, texts};
use tiebreak_run::run::read_job;
use tiebreak_shaders as shaders;
use tiebreak_shaders::product::Choice;

/// Texts by name: what `tiebreak shaders --dump` writes for each example job, every shader file, and every completion of the
/// products' templates that a K of 32 bits needs.
fn shader_texts() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut add = |name: String, text: String| {
        if !found.values().any(|known| *known == text) {
            found.insert(name, text);
        }
    };
    for job in ["demo", "shakespeare", "cifar-mlp"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../assets/jobs/{job}.toml"));
        let program = read_job(&path).unwrap().1.program(None).unwrap();
        for graph in [&program.micro, &program.accumulate, &program.update] {
            for (i, (name, text)) in texts(graph, TextLimits::All).into_iter().enumerate() {
                add(format!("{job}-{name}-{i}"), text);
            }
        }
    }
    for (name, text) in shaders::all() {
        // The templates are not valid WGSL yet.
        if !text.contains("//@") {
            add((*name).to_string(), (*text).to_string());
        }
    }
    add("native_product".into(), shaders::native_source("native_product").unwrap().to_string());
    for choice in Choice::all().filter(|c| !c.wide || c.digits_a + c.digits_b > 4) {
        let template = shaders::source(choice.variant.file()).unwrap();
        add(format!("{choice:?}"), choice.complete(template));
    }
    found
}

fn kernels() -> Vec<(String, Kernel)> {
    let mut found = Vec::new();
    for (name, text) in shader_texts() {
        for native in [false, true] {
            let kernel = common::try_kernel(&text, Options { native });
            let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
            found.push((format!("{name}, native: {native}"), kernel));
        }
    }
    found
}

#[test]
fn every_shader_translates() {
    let kernels = kernels();
    // 78 products, the other shader files, and maps.
    assert!(kernels.len() > 2 * 120, "{} kernels", kernels.len());
    for (name, kernel) in &kernels {
        assert!(kernel.source.contains("extern \"C\" __global__ void"), "{name}");
        assert!(kernel.block.iter().product::<u32>() <= 256, "{name}");
        let bindings: Vec<u32> = kernel.parameters.iter().map(|p| p.binding).collect();
        assert_eq!(bindings, (0..bindings.len() as u32).collect::<Vec<_>>(), "{name}");
        assert!(kernel.parameters.last().is_some_and(|p| p.writable), "{name}");
    }
}

#[test]
fn every_kernel_compiles_to_machine_code() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let kernels = kernels();
    // Products have almost no native functions, and take seconds: once is enough.
    let once = |name: &str| name.contains("Choice") || name.contains("product");
    let mut work = Vec::new();
    // The engine uses digit planes and `dot4I8Packed`; the other variants are the verifier's, for adapters. Each takes up to a
    // minute, so two digits stand for them, and TIEBREAK_EVERY_VARIANT asks for all.
    let elsewhere = |name: &str| name.contains("Float") || name.contains("Words");
    let every = std::env::var_os("TIEBREAK_EVERY_VARIANT").is_some();
    let taken = |name: &str| every || !elsewhere(name) || name.contains("digits_a: 2, digits_b: 2");
    let wanted = |name: &str| taken(name) && (!once(name) || name.ends_with("native: true"));
    // Each kernel for the three architectures, or for one of them in turn.
    for (i, (name, kernel)) in kernels.iter().filter(|(name, _)| wanted(name)).enumerate() {
        let architectures = ["sm_90a", "sm_89", "sm_80"];
        let chosen = match (elsewhere(name), every) {
            (true, _) => &architectures[..1],
            (false, true) => &architectures[..],
            (false, false) => &architectures[i % 3..][..1],
        };
        work.extend(chosen.iter().map(|architecture| (name, kernel, *architecture)));
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, kernel, architecture)) = work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let cubin = nvrtc.compile(&kernel.name, &kernel.source, architecture);
                    let cubin = cubin.unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert!(cubin.starts_with(b"\x7fELF"), "{name} for {architecture} is no cubin");
                }
            });
        }
    });
    let version = nvrtc.version().unwrap();
    eprintln!("{} kernels of {} shaders compiled by NVRTC {version}", work.len(), kernels.len() / 2);
}

#[test]
fn nvrtc_says_what_it_rejects() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let error = nvrtc.compile("k", "extern \"C\" __global__ void k() { nothing; }", "sm_80").unwrap_err();
    assert!(matches!(&error, NvrtcError::Rejected { log, .. } if log.contains("nothing")), "{error}");
    assert!(nvrtc.compile("k", "", "sm_1").is_err(), "there is no such architecture");
}
