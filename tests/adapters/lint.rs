//! The lint: it rejects one shader for each rule, and accepts every shader that the engine can make.

use tiebreak_shaders::lint::{Rule, check};

/// A compute shader around a body over `a: array<u32>`.
fn shader(body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<u32>;\n@compute @workgroup_size(64)\n\
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n{body}\n}}\n"
    )
}

fn rejected(rule: Rule, source: &str, line: u32) {
    let violations = check("test", source).expect_err("the lint must reject this shader");
    let found = violations.iter().any(|v| v.rule == rule && v.line == line && v.shader == "test");
    assert!(found, "{rule:?} at line {line} is wanted, found {violations:?}\n{source}");
}

#[test]
fn every_rule_rejects() {
    let body = |rule, text: &str| rejected(rule, &shader(text), 4);
    body(Rule::Invalid, "a[0] = ;");
    body(Rule::Float, "a[0] = u32(f32(a[1]) * 0.5);");
    body(Rule::Float, "a[0] = bitcast<u32>(bitcast<f32>(a[1]) + 1.0);");
    body(Rule::Float, "let x = 0.1; a[0] = u32(x);");
    body(Rule::Float, "a[0] = select(0u, 1u, f32(a[1]) < f32(a[2]));");
    body(Rule::Float, "let v = vec2<f32>(f32(a[1]), 1.0); a[0] = u32(v.x);");
    // naga folds these constants to integers before the lint sees the IR.
    body(Rule::Float, "const k: u32 = u32(0.1f * 10f); a[0] = k;");
    body(Rule::Float, "a[0] = bitcast<u32>(0x1p-3f);");
    body(Rule::Float, "a[0] = u32(1e3);");
    body(Rule::Builtin, "a[0] = extractBits(a[1], a[2], a[3]);");
    body(Rule::Builtin, "a[0] = u32(abs(i32(a[1])));");
    body(Rule::Builtin, "a[0] = u32(sqrt(f32(a[1])));");
    body(Rule::Shift, "a[0] = a[1] << a[2];");
    body(Rule::Shift, "a[0] = a[1] >> (a[2] & 63u);");
    body(Rule::Shift, "let n = a[2] + 1u; a[0] = a[1] >> n;");
    body(Rule::Shift, "let v = vec2<u32>(a[1]) << vec2<u32>(a[2], 3u); a[0] = v.x;");
    body(Rule::Division, "a[0] = a[1] / a[2];");
    body(Rule::Division, "a[0] = a[1] % max(a[2], 0u);");
    body(Rule::Division, "a[0] = u32(i32(a[1]) / 3);");
}

#[test]
fn types_constructs_and_dialects_reject() {
    let floats = "@group(0) @binding(0) var<storage, read_write> a: array<f32>;\n\
                  @compute @workgroup_size(64)\nfn main() {\n    a[0] = a[1];\n}\n";
    assert!(check("test", floats).unwrap_err().iter().any(|v| v.rule == Rule::Type));
    let shared =
        "var<workgroup> t: array<f32, 4>;\n@compute @workgroup_size(64)\nfn main() {\n    t[0] = t[1];\n}\n";
    assert!(check("test", shared).unwrap_err().iter().any(|v| v.rule == Rule::Float));
    let passed = "fn half(x: f32) -> f32 {\n    return x;\n}\n@compute @workgroup_size(64)\nfn main() {}\n";
    assert!(check("test", passed).unwrap_err().iter().any(|v| v.rule == Rule::Type));
    let atomics = "@group(0) @binding(0) var<storage, read_write> a: array<atomic<u32>>;\n\
                   @compute @workgroup_size(64)\nfn main() {\n    let old = atomicAdd(&a[0], 1u);\n}\n";
    assert!(check("test", atomics).unwrap_err().iter().any(|v| v.rule == Rule::Type));
    assert!(check("test", atomics).unwrap_err().iter().any(|v| v.rule == Rule::Construct && v.line == 4));
    rejected(Rule::Dialect, &format!("enable f16;\n{}", shader("a[0] = 1u;")), 1);
    rejected(Rule::Dialect, &format!("/* /* */ */ enable f16;\n{}", shader("a[0] = 1u;")), 1);
    rejected(Rule::Dialect, &format!("diagnostic(off, derivative_uniformity);\n{}", shader("a[0] = 1u;")), 1);
    rejected(Rule::Dialect, &format!("\noverride n: u32 = 4u;\n{}", shader("a[0] = n;")), 2);
    let pointer = "var<private> t: array<u32, 4>;\nfn f(x: ptr<private, array<u32, 4>>) -> u32 {\n    return (*x)[0];\n}\n\
                   @compute @workgroup_size(64)\nfn main() {\n    t[0] = f(&t);\n}\n";
    assert!(
        check("test", pointer)
            .unwrap_err()
            .iter()
            .any(|v| v.rule == Rule::Dialect || v.rule == Rule::Invalid)
    );
    let texture = "@group(0) @binding(0) var t: texture_2d<u32>;\n@compute @workgroup_size(64)\nfn main() {\n    \
                   let v = textureLoad(t, vec2<i32>(0), 0);\n}\n";
    assert!(check("test", texture).unwrap_err().iter().any(|v| v.rule == Rule::Type));
    let fragment = "@fragment\nfn main() -> @location(0) vec4<u32> {\n    return vec4<u32>(1u);\n}\n";
    assert!(check("test", fragment).unwrap_err().iter().any(|v| v.rule == Rule::Construct && v.line == 2));
}

#[test]
fn includes_are_expanded_once_and_errors_name_their_line() {
    use tiebreak_shaders::compose::compose;
    let lookup = |name: &str| match name {
        "shared/a.wgsl" => Some("//!include shared/b.wgsl\nA"),
        "shared/b.wgsl" => Some("B"),
        "shared/loop.wgsl" => Some("x\n//!include shared/loop.wgsl"),
        _ => None,
    };
    let diamond = "//!include shared/b.wgsl\n//!include shared/a.wgsl\nmain";
    assert_eq!(compose("m.wgsl", diamond, &lookup).unwrap(), "B\nA\nmain\n");
    let error = |text: &str| compose("m.wgsl", text, &lookup).unwrap_err().to_string();
    assert_eq!(error("one\n//!include shared/none.wgsl"), "shaders/m.wgsl:2: there is no shared/none.wgsl");
    assert_eq!(
        error("//!include shared/loop.wgsl"),
        "shaders/shared/loop.wgsl:2: shared/loop.wgsl includes itself"
    );
}

#[test]
fn integer_arithmetic_passes() {
    let body = "let n = a[2] & 31u; a[0] = (a[1] << n) / max(a[3], 1u) + countLeadingZeros(a[4]);\n\
                a[5] = u32(dot4I8Packed(a[6], a[7])) % 7u;";
    assert_eq!(check("test", &shader(body)), Ok(()));
}

/// A shader that unpacks bytes to workgroup memory, computes `body` and stores `result`, an integer.
fn exact(body: &str, result: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<u32>;\n\
         var<workgroup> t: array<vec4<f32>, 64>;\n\
         @compute @workgroup_size(64)\nfn main(@builtin(local_invocation_index) i: u32) {{\n\
         t[i] = vec4<f32>(unpack4xI8(a[i]));\nworkgroupBarrier();\nlet x = t[i & 31u];\n\
         let y = t[i & 15u];\n{body}\na[i] = u32({result});\n}}\n"
    )
}

/// Floats that are integers of at most 2^24 pass; a shader one step beyond the proof does not.
#[test]
fn floats_are_exact_integers_or_rejected() {
    let terms = |count: u32| {
        let mut text = String::from("let s0 = x.x * y.x;");
        (1..count).for_each(|i| text += &format!(" let s{i} = fma(x.y, y.z, s{});", i - 1));
        (text, format!("i32(s{})", count - 1))
    };
    // 2^24 / 2^14 terms are exact, one more is not.
    let (text, sum) = terms(1024);
    assert_eq!(check("test", &exact(&text, &sum)), Ok(()));
    let (text, sum) = terms(1025);
    rejected(Rule::Exact, &exact(&text, &sum), 9);
    assert_eq!(check("test", &exact("let v = x + y - x; let z = v.w * y.x;", "i32(z)")), Ok(()));
    let body = |rule, text: &str, result: &str| rejected(rule, &exact(text, result), 9);
    body(Rule::Exact, "let z = x.x * x.y * x.z * x.w;", "i32(z)");
    body(Rule::Exact, "let z = x.x / y.x;", "i32(z)");
    body(Rule::Exact, "let z = -x.x;", "i32(z)");
    body(Rule::Exact, "let z = select(1, 2, x.x < y.x);", "z");
    body(Rule::Exact, "let z = dot(x, y);", "i32(z)");
    body(Rule::Exact, "let z = bitcast<u32>(x.x);", "z");
    body(Rule::Exact, "let z = u32(x.x);", "z");
    body(Rule::Exact, "t[i] = x;", "1");
    body(Rule::Exact, "let z = t;", "1");
    body(Rule::Builtin, "let z = sqrt(x.x);", "1");
    // A variable could carry a sum around a loop.
    body(Rule::Type, "var z = x.x; z += y.x;", "i32(z)");
    body(Rule::Float, "let z = x.x * 0.5;", "i32(z)");
    // Only unpacked bytes become floats.
    let other = exact("", "1").replace("unpack4xI8(a[i])", "vec4<i32>(i32(a[i]))");
    rejected(Rule::Float, &other, 5);
    let buffer = exact("", "1").replace("array<u32>", "array<vec4<f32>>");
    assert!(check("test", &buffer).is_err());
    let stored = "@group(0) @binding(0) var<storage, read_write> a: array<vec4<f32>, 4>;\n\
                  @compute @workgroup_size(64)\nfn main() {\n    a[0] = vec4<f32>();\n}\n";
    rejected(Rule::Type, stored, 1);
}

/// Engines lint each text before a driver gets it. A file that does not pass is found here, and not on somebody's GPU.
#[test]
fn every_file_passes() {
    use tiebreak_shaders::{all, native, product};
    for (name, text) in all() {
        // The product's files are templates: each completion is a shader.
        let completed: Vec<String> =
            product::Choice::all().filter(|c| c.variant.file() == *name).map(|c| c.complete(text)).collect();
        let sums: Vec<String> = completed.iter().map(|text| product::giving_sums(text)).collect();
        for text in completed.iter().chain(&sums) {
            assert_eq!(check(name, text), Ok(()));
        }
        if completed.is_empty() {
            assert_eq!(check(name, text), Ok(()));
        }
    }
    assert!(all().len() > 12, "{}", all().len());
    // A trainer's own kernels round, but they are WGSL.
    for (name, text) in native() {
        let violations = check(name, text).err().unwrap_or_default();
        assert!(violations.iter().all(|v| v.rule != Rule::Invalid), "{violations:?}");
    }
    assert!(!native().is_empty());
}

/// So do the texts that are made at run time, whatever a job needs.
#[test]
fn every_shader_of_every_program_passes() {
    use tiebreak_contract::program::models::{
        Block, Blocks, Gelu, Gpt, Input, Llama, Mlp, Model, Norm, Order, Resnet, Stem,
    };
    use tiebreak_contract::program::operators::ConvVersion;
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::{Program, StepSpec};
    use tiebreak_gpu::{TextLimits, texts};
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1 };
    let gpt = |gelu| {
        Model::Gpt(Gpt {
            vocabulary: 300,
            context: 300,
            layers: 1,
            heads: 2,
            width: 8,
            gelu,
            dropout: 0.1,
            ..Gpt::default()
        })
    };
    let llama = Model::Llama(Llama {
        vocabulary: 300,
        context: 300,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        width: 68,
        hidden: 9,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
        tied: false,
        head_width: Some(34),
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        qk_norm: true,
        ..Llama::default()
    });
    let mlp = Model::Mlp(Mlp {
        inputs: 300,
        hidden: vec![8],
        classes: 3,
        dropout: 0.1,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    });
    let resnet = |norm| {
        Model::Resnet(Resnet {
            height: 6,
            width: 5,
            planes: 3,
            stages: vec![4, 80],
            blocks: Blocks::Same(1),
            block: Block::Basic,
            groups: 1,
            width_per_group: 64,
            order: Order::Pre,
            stem: Stem::Cifar,
            classes: 3,
            norm,
            norm_epsilon: 1e-5,
            norm_momentum: 0.1,
            convolution: if norm == Norm::Layer { ConvVersion::V1 } else { ConvVersion::V2 },
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        })
    };
    let (layer, batch) = (resnet(Norm::Layer), resnet(Norm::Batch));
    let mut count = 0;
    for (model, optimizer) in [
        (gpt(Gelu::Tanh), adamw.clone()),
        (gpt(Gelu::Erf), sgd.clone()),
        (llama, adamw.clone()),
        (mlp, adamw),
        (layer, sgd.clone()),
        (batch, sgd),
    ] {
        let products = ProductTable::two_and_three();
        let clip_norm = Some(1.0);
        let program = Program::new(StepSpec {
            loss: Default::default(),
            model,
            optimizer,
            clip_norm,
            micro_batch: 2,
            micro_batches: 2,
            products,
        });
        for graph in [&program.micro, &program.accumulate, &program.update] {
            for (name, text) in texts(graph, TextLimits::All) {
                assert_eq!(check(&name, &text), Ok(()));
                count += 1;
            }
        }
    }
    assert!(count > 60, "only {count} shaders were seen");
}
