//! The wgpu engine's matrix product by each variant, digitising and rounding back included, against plain f32 products on the
//! same adapter: `cargo bench --bench gpu_product [-- ADAPTER]`. The peers are products that a shader writer would tune. The
//! first computes 8 x 4 outputs an invocation straight from memory, which suits software adapters; the second 8 x 8 through
//! workgroup memory, which suits GPUs. Ratios are to the faster one. Every run ends with its result on the host.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use tiebreak_contract::arith::DType;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_engine::Engine;
use tiebreak_gpu::{Gpu, Variant, adapters, wgpu};

const SIDE: u32 = 1024;
const RUNS: usize = 5;

const BINDINGS: &str = "@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> o: array<f32>;
";

/// c = a b^T: the whole workgroup shares its rows of a, and columns are 16 apart. Returns the text and the groups.
fn direct() -> (String, [u32; 2]) {
    let (rows, columns) = (8, 4);
    let k4 = SIDE / 4;
    let mut text = format!(
        "{BINDINGS}@compute @workgroup_size(16)\nfn main(@builtin(workgroup_id) g: vec3<u32>, \
         @builtin(local_invocation_index) lane: u32) {{\n"
    );
    let cells = || (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    let mut line = |l: String| writeln!(text, "{l}").expect("writing to a string");
    cells().for_each(|(r, c)| line(format!("var s{r}_{c} = 0.0;")));
    line(format!("for (var k = 0u; k < {k4}u; k++) {{"));
    (0..rows).for_each(|r| line(format!("let a{r} = a[(g.y * {rows}u + {r}u) * {k4}u + k];")));
    (0..columns).for_each(|c| line(format!("let b{c} = b[(g.x * 64u + {}u + lane) * {k4}u + k];", c * 16)));
    for (r, c) in cells() {
        "xyzw".chars().for_each(|i| line(format!("s{r}_{c} = fma(a{r}.{i}, b{c}.{i}, s{r}_{c});")));
    }
    line("}".into());
    for (r, c) in cells() {
        line(format!("o[(g.y * {rows}u + {r}u) * {SIDE}u + g.x * 64u + {}u + lane] = s{r}_{c};", c * 16));
    }
    line("}".into());
    (text, [SIDE / 64, SIDE / rows])
}

/// c = a b^T: tiles of 64 x 64 outputs and 16 places of K, K first.
fn tiled() -> (String, [u32; 2]) {
    let k4 = SIDE / 4;
    let mut text = format!(
        "{BINDINGS}var<workgroup> ta: array<f32, 1024>;\nvar<workgroup> tb: array<f32, 1024>;\n\
         @compute @workgroup_size(8, 8)\nfn main(@builtin(workgroup_id) g: vec3<u32>, \
         @builtin(local_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) index: u32) {{\n"
    );
    let cells = || (0..8).flat_map(|r| (0..8).map(move |c| (r, c)));
    let mut line = |l: String| writeln!(text, "{l}").expect("writing to a string");
    cells().for_each(|(r, c)| line(format!("var s{r}_{c} = 0.0;")));
    line(format!("for (var k = 0u; k < {k4}u; k += 4u) {{"));
    for (side, group) in [("a", "y"), ("b", "x")] {
        for i in 0..4 {
            line(format!("let {side}{i} = {side}[(g.{group} * 64u + index) * {k4}u + k + {i}u];"));
            for (j, part) in "xyzw".chars().enumerate() {
                line(format!("t{side}[{}u + index] = {side}{i}.{part};", (4 * i + j) * 64));
            }
        }
    }
    line("workgroupBarrier();\nfor (var j = 0u; j < 1024u; j += 64u) {".into());
    (0..8).for_each(|r| line(format!("let x{r} = ta[j + id.y * 8u + {r}u];")));
    (0..8).for_each(|c| line(format!("let y{c} = tb[j + id.x + {}u];", c * 8)));
    cells().for_each(|(r, c)| line(format!("s{r}_{c} = fma(x{r}, y{c}, s{r}_{c});")));
    line("}\nworkgroupBarrier();\n}".into());
    for (r, c) in cells() {
        line(format!(
            "o[(g.y * 64u + id.y * 8u + {r}u) * {SIDE}u + g.x * 64u + id.x + {}u] = s{r}_{c};",
            c * 8
        ));
    }
    line("}".into());
    (text, [SIDE / 64, SIDE / 64])
}

/// The median seconds of some runs after a warm-up run.
fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// Seconds of a plain f32 product on an adapter, checked at a few places.
fn plain(adapter: &wgpu::Adapter, (text, groups): (String, [u32; 2]), a: &[f32], b: &[f32]) -> f64 {
    use wgpu::BufferUsages as Usage;
    let (device, queue) = pollster::block_on(adapter.request_device(&Default::default())).expect("it opens");
    let size = u64::from(SIDE * SIDE) * 4;
    let buffer = |usage| {
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let inputs = [buffer(Usage::STORAGE | Usage::COPY_DST), buffer(Usage::STORAGE | Usage::COPY_DST)];
    let output = buffer(Usage::STORAGE | Usage::COPY_SRC);
    queue.write_buffer(&inputs[0], 0, bytemuck::cast_slice(a));
    queue.write_buffer(&inputs[1], 0, bytemuck::cast_slice(b));
    let source = wgpu::ShaderSource::Wgsl(text.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let buffers = [&inputs[0], &inputs[1], &output];
    let entries: Vec<wgpu::BindGroupEntry> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    let layout = &pipeline.get_bind_group_layout(0);
    let group =
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });
    let mut copy = vec![0f32; (SIDE * SIDE) as usize];
    let seconds = median(|| {
        let staging = buffer(Usage::MAP_READ | Usage::COPY_DST);
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], 1);
        drop(pass);
        encoder.copy_buffer_to_buffer(&output, 0, &staging, 0, size);
        queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        device.poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
        copy.copy_from_slice(bytemuck::cast_slice(&staging.get_mapped_range(..).expect("it is mapped")));
    });
    let side = SIDE as usize;
    for at in (0..side * side).step_by(99_991) {
        let (row, column) = (&a[at / side * side..][..side], &b[at % side * side..][..side]);
        let right: f64 = row.iter().zip(column).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
        assert!((f64::from(copy[at]) - right).abs() < 1e-2, "the peer is wrong at {at}");
    }
    seconds
}

/// Seconds of the engine's product.
fn ours(gpu: &mut Gpu, digits: u8, a: &[f32], b: &[f32]) -> f64 {
    let mut builder = Builder::new(ProductTable::uniform(digits));
    let [a_id, b_id] = ["a", "b"].map(|name| builder.input(name, DType::F32, &[SIDE, SIDE]));
    let (view_a, view_b) = (builder.whole(a_id), builder.whole(b_id));
    let output = builder.product(ProductClass::Linear, view_a, view_b, &[SIDE, SIDE]);
    builder.output("product", output);
    let compiled = gpu.compile(Arc::new(builder.finish())).expect("it compiles");
    let ty = TensorType { dtype: DType::F32, shape: vec![SIDE, SIDE] };
    let mut upload = |x: &[f32]| gpu.upload(&ty, bytemuck::cast_slice(x)).expect("it fits");
    let inputs = [upload(a), upload(b)];
    let mut copy = Vec::new();
    median(|| {
        let outputs = gpu.run(&compiled, &inputs, None).expect("it runs");
        copy = gpu.download(&outputs[0]).expect("it can be read");
    })
}

fn main() {
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut matrix = || (0..SIDE * SIDE).map(|_| random()).collect::<Vec<f32>>();
    let (a, b) = (matrix(), matrix());
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let raw = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::all()));
    let named = |name: &str| raw.iter().find(|a| name.starts_with(&a.get_info().name));
    for adapter in adapters().iter().filter(|a| a.refused.is_none() && a.name.contains(&wanted)) {
        let peer = named(&adapter.name).expect("both lists are of this machine");
        let peers = [plain(peer, direct(), &a, &b), plain(peer, tiled(), &a, &b)];
        let best = peers[0].min(peers[1]);
        println!(
            "{}, {SIDE}^3: plain f32 direct {:.1} ms, tiled {:.1} ms",
            adapter.name,
            peers[0] * 1e3,
            peers[1] * 1e3
        );
        for variant in Variant::ALL {
            let begin = Instant::now();
            let mut gpu = Gpu::open_with(Some(&adapter.name), variant).expect("it passes its self-test");
            println!("  {variant:?} products: opened and tested in {:.1} s", begin.elapsed().as_secs_f64());
            for digits in 1..=3 {
                let seconds = ours(&mut gpu, digits, &a, &b);
                let ratio = seconds / best;
                println!("    d = {digits}: {:.1} ms, {ratio:.2}x", seconds * 1e3);
            }
        }
    }
}
