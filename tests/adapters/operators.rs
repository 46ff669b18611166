//! Every operator of the catalogue, and its gradient, on every engine and adapter: random, extreme and subnormal inputs, equal
//! bits. Also the arrays that people bring: a written file is read back unchanged, and bad files are errors.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::gpus::{AnyEngine, at_once, gpus};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Appended, Attributes, OPERATORS, Operator};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_run::run::arrays::{self, Array, FloatType};

fn attributes() -> Attributes {
    Attributes {
        samples: 2,
        heads: 2,
        stride: 2,
        padding: 1,
        kernel: 3,
        windows: [3, 7],
        groups: 2,
        smoothing: 0.1,
        ignore: Some(3),
        window: Some(2),
        p: 0.25,
        number: 3,
        max_norm: 0.5,
        ..Attributes::default()
    }
}

/// Shapes for an operator's letters.
fn shapes(operator: &Operator) -> Vec<Vec<u32>> {
    let sizes = HashMap::from([
        ("N", 6),
        ("M", 10),
        ("K", 70),
        ("C", 8),
        ("D", 4),
        ("X", 4),
        ("V", 37),
        ("B", 2),
        ("H", 7),
        ("W", 5),
        ("R", 3),
        ("S", 2),
    ]);
    let size = |word: &str| sizes.get(word).copied().unwrap_or_else(|| word.parse().unwrap());
    let shape =
        |pattern: &str| if pattern == "*" { vec![5, 67] } else { pattern.split(' ').map(size).collect() };
    operator.inputs.iter().map(|input| shape(input.shape)).collect()
}

/// Inputs of a kind: 0 ordinary numbers, 1 any patterns and specials, 2 subnormals and close to them.
fn values(kind: u32, input: u32, dtype: DType, len: u32, bound: u32) -> Vec<u8> {
    let word = |i: u32| {
        let r = philox4x32_10([kind, input], [i, 7, 0, 0])[0];
        if dtype == DType::U32 {
            return r % bound;
        }
        let special = [0, 0x8000_0000, 1, 0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x8000_0001];
        match kind {
            0 => (r & 0x807f_ffff) | (122 + (r >> 23) % 7) << 23,
            1 if i.is_multiple_of(13) => special[(r % 8) as usize],
            1 => match r {
                nan if nan & 0x7fff_ffff > 0x7f80_0000 => 0x7fc0_0000,
                other => other,
            },
            _ => r & 0x80ff_ffff,
        }
    };
    (0..len).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// The outputs of an operator on an engine.
fn run(engine: &mut dyn Engine, operator: &Operator, kind: u32, gradient: bool) -> Vec<Vec<u8>> {
    let shapes = shapes(operator);
    let mut b = Builder::new(ProductTable::two_and_three());
    let Appended { inputs: ids, outputs } =
        operator.append(&mut b, &shapes, &attributes(), gradient).unwrap();
    let types: Vec<_> = ids.iter().map(|id| b.tensor(*id).clone()).collect();
    let compiled = engine.compile(Arc::new(b.finish())).unwrap();
    let bounds: HashMap<usize, u32> = operator.index_bounds(&shapes).into_iter().collect();
    let mut tensors = Vec::new();
    for (i, ty) in types.iter().enumerate() {
        // One id of six is that of padding.
        let ids = operator.inputs.get(i).is_some_and(|input| input.name == "ids");
        let bound = bounds.get(&i).copied().unwrap_or(if ids { 6 } else { 1 << 31 });
        let bytes = values(kind, i as u32, ty.dtype, ty.len() as u32, bound);
        tensors.push(engine.upload(ty, &bytes).unwrap());
    }
    let computed = engine.run(&compiled, &tensors, None).unwrap();
    assert_eq!(computed.len(), outputs.len());
    computed.iter().map(|tensor| engine.download(tensor).unwrap()).collect()
}

#[test]
fn every_operator_has_the_same_bits_on_every_engine() {
    let (mut cpus, mut gpus) = ([1, 2].map(|threads| Cpu::new(threads).unwrap()), gpus());
    let mut engines: Vec<&mut AnyEngine> = cpus.iter_mut().map(|cpu| cpu as &mut AnyEngine).collect();
    engines.extend(gpus.engines());
    let gradients = |operator: &Operator| if operator.differentiable { &[false, true][..] } else { &[false] };
    let forms = OPERATORS.iter().flat_map(|operator| gradients(operator).iter().map(move |g| (operator, *g)));
    let cases = forms.flat_map(|(operator, gradient)| (0..3).map(move |kind| (operator, gradient, kind)));
    let expected: Vec<_> = cases
        .map(|case @ (operator, gradient, kind)| (case, run(&mut Reference, operator, kind, gradient)))
        .collect();
    at_once(&mut engines, |engine| {
        let name = engine.describe();
        for ((operator, gradient, kind), expected) in &expected {
            assert!(expected.iter().all(|bytes| !bytes.is_empty()));
            let have = run(engine, operator, *kind, *gradient);
            assert!(have == *expected, "{} (gradient {gradient}) of kind {kind} on {name}", operator.name);
        }
    });
}

/// Runs the command; returns its exit code and its output.
fn tiebreak(folder: &Path, args: &[&str]) -> (i32, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).current_dir(folder).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn floats(name: &str, shape: &[u32], values: &[f32]) -> Array {
    let ty = tiebreak_contract::program::graph::TensorType { dtype: DType::F32, shape: shape.to_vec() };
    Array { name: name.into(), ty, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
}

#[test]
fn arrays_go_through_the_command_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    arrays::write(&path("a.npy"), &[floats("", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])], FloatType::F32)
        .unwrap();
    arrays::write(&path("b.npy"), &[floats("", &[1, 3], &[1.0, 0.5, 0.25])], FloatType::F32).unwrap();
    let (code, text) =
        tiebreak(folder.path(), &["op", "matmul", "a.npy", "b.npy", "-o", "c.npy", "--digits", "4"]);
    assert_eq!(code, 0, "{text}");
    let [product] = &arrays::read(&path("c.npy")).unwrap()[..] else { panic!() };
    assert_eq!(*product, floats("", &[2, 1], &[2.75, 8.0]));
    // The same by a safetensors file, by name, and a gradient with several outputs.
    let named = [
        floats("b", &[1, 3], &[1.0, 0.5, 0.25]),
        floats("a", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        floats("dy", &[2, 1], &[1.0, 0.0]),
    ];
    arrays::write(&path("in.safetensors"), &named, FloatType::F32).unwrap();
    let args =
        ["op", "matmul", "in.safetensors", "--gradient", "-o", "g.safetensors", "--engine", "reference"];
    let (code, text) = tiebreak(folder.path(), &args);
    assert_eq!(code, 0, "{text}");
    let gradients = arrays::read(&path("g.safetensors")).unwrap();
    assert_eq!(gradients[0], floats("da", &[2, 3], &[1.0, 0.5, 0.25, 0.0, 0.0, 0.0]));
    assert_eq!(gradients[1], floats("db", &[1, 3], &[1.0, 2.0, 3.0]));
    let (code, text) =
        tiebreak(folder.path(), &["op", "matmul", "in.safetensors", "--gradient", "-o", "g.npy"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("name a .safetensors file"), "{text}");
    for (args, why) in [
        (&["op", "nothing", "a.npy", "-o", "c.npy"][..], "op --list"),
        (&["op", "add", "a.npy", "-o", "c.npy"], "takes 2 inputs: a, b"),
        (&["op", "add", "a.npy", "b.npy", "-o", "c.npy"], "[*] is wanted, as the inputs before it are"),
        (&["op", "embedding", "a.npy", "b.npy", "-o", "c.npy"], "tokens must hold integers"),
        (&["op", "sum", "a.npy", "--gradient", "b.npy", "-o", "c.npy"], "has no gradient"),
        (&["op", "sum", "a.npy", "-o", "c.txt"], ".npy or a .safetensors file"),
    ] {
        let (code, text) = tiebreak(folder.path(), args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
    }
    let (code, text) = tiebreak(folder.path(), &["op", "--list"]);
    assert!(code == 0 && OPERATORS.iter().all(|o| text.contains(o.name)), "{text}");
}

/// Floats of 16 bits are read as the binary32 of the same value, and written rounded to nearest, ties to even.
#[test]
fn floats_of_16_bits_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let zeros = |name: &str| floats(name, &[5], &[0.0; 5]);
    let step = |bits: i32| 2f32.powi(-bits);
    let values = [1.0 + step(11), 1.0 + 3.0 * step(11), 65520.0, f32::NAN, -step(25)];
    let halves = [1.0, 1.0 + step(9), f32::INFINITY, f32::NAN, -0.0];
    let shorts = [1.0, 1.0, 65536.0, f32::NAN, -step(25)];
    arrays::write(&path("in.safetensors"), &[floats("a", &[5], &values), zeros("b")], FloatType::F32)
        .unwrap();
    for (dtype, out, expected) in [
        ("f16", "y.npy", halves),
        ("f16", "y.safetensors", halves),
        ("bf16", "y.safetensors", shorts),
        ("f32", "y.npy", values),
    ] {
        let args = ["op", "add", "in.safetensors", "-o", out, "--out-dtype", dtype, "--engine", "reference"];
        let (code, text) = tiebreak(folder.path(), &args);
        assert_eq!(code, 0, "{text}");
        let size = std::fs::metadata(path(out)).unwrap().len();
        let [sum] = &arrays::read(&path(out)).unwrap()[..] else { panic!() };
        let expected = expected.map(|x| if x.is_nan() { f32::from_bits(0x7fc0_0000) } else { x });
        assert_eq!(sum.bytes, floats("", &[5], &expected).bytes, "{dtype}");
        // The written file is narrow, and reads back the same.
        let narrow = if dtype == "bf16" { FloatType::Bf16 } else { FloatType::F16 };
        if dtype != "f32" {
            arrays::write(&path(out), std::slice::from_ref(sum), narrow).unwrap();
            assert_eq!(std::fs::metadata(path(out)).unwrap().len(), size);
        }
    }
    let args = ["op", "add", "in.safetensors", "-o", "y.npy", "--out-dtype", "bf16"];
    let (code, text) = tiebreak(folder.path(), &args);
    assert!(code == 2 && text.contains(".npy files have no bfloat16"), "{text}");
}

/// A .npy file with this header and data.
fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    [&bytes, header.as_bytes(), data].concat()
}

#[test]
fn npy_files_are_read_as_numpy_writes_them_and_bad_ones_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        arrays::read(&path).map(|mut arrays| arrays.remove(0)).map_err(|error| error.to_string())
    };
    // The header that numpy 1.26 writes for np.array([1, 2, 300]) and np.float32(1.5).
    let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }                                                          \n";
    let tokens: Vec<u8> = [1u64, 2, 300].iter().flat_map(|x| x.to_le_bytes()).collect();
    let array = read(&npy(1, header, &tokens)).unwrap();
    assert_eq!((array.ty.dtype, &array.ty.shape[..]), (DType::U32, &[3][..]));
    assert_eq!(array.bytes, [1u32, 2, 300].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let scalar = "{'descr': '<f4', 'fortran_order': False, 'shape': (), }";
    assert_eq!(read(&npy(2, scalar, &1.5f32.to_le_bytes())).unwrap(), floats("", &[1], &[1.5]));
    // A NaN of any pattern becomes the contract's one NaN.
    let nan = read(&npy(1, scalar, &[1, 0, 0x80, 0xff])).unwrap();
    assert_eq!(nan.bytes, 0x7fc0_0000u32.to_le_bytes());

    let refused = |bytes: &[u8], why: &str| {
        let error = read(bytes).unwrap_err();
        assert!(error.contains(why), "{error}, not {why}");
    };
    let with = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    refused(b"", "no .npy file");
    refused(b"\x93NUMPY\x01", "cut short");
    refused(&npy(9, scalar, &[]), "format 9.0 is unknown");
    refused(&npy(1, scalar, &[0; 3]), "3 bytes of data, the shape wants 4");
    refused(&npy(1, &with("<f8", "False", "(1,)"), &[0; 8]), "elements of type f8");
    refused(&npy(1, &with(">f4", "False", "(1,)"), &[0; 4]), "elements of type >f4");
    refused(&npy(1, &with("|O", "False", "(1,)"), &[0; 8]), "elements of type |O");
    refused(&npy(1, &with("<f4", "True", "(1, 1)"), &[0; 4]), "Fortran order");
    refused(&npy(1, &with("<i4", "False", "(1,)"), &[255; 4]), "at least 0");
    refused(&npy(1, &with("<f4", "False", "(4294967296, 4294967296, 4294967296)"), &[]), "too large");
    refused(&npy(1, &with("<f4", "False", "(99999999999999999999,)"), &[]), "not understood");
    refused(&npy(1, &with("<f4", "False", "(1,)").replace("descr", "other"), &[0; 4]), "not understood");
    refused(
        &npy(1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", &[]),
        "not understood",
    );
    refused(&npy(1, "{}", &[]), "not understood");
    refused(&npy(2, &" ".repeat(70_000), &[]), "at most 1012");
    // No change makes the parser panic.
    let good = npy(1, header, &tokens);
    for i in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[i] ^= 1 << bit;
            let _ = read(&bad);
        }
        let _ = read(&good[..i]);
    }
}
