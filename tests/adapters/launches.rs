//! A launch list in the form of docs/PORTABILITY.md, executed on every adapter by a program that knows only that page: it shares
//! no code with the engine. The page for browsers holds the same list.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command as Process;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tiebreak_gpu::wgpu::{self, BufferUsages};

use crate::common;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "what the list says for people is read, so that it is there")]
struct List {
    format: String,
    version: String,
    contract: String,
    about: String,
    fingerprint: String,
    recorded_on: String,
    needs: Needs,
    data: Data,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Needs {
    storage_buffers: u32,
    buffer_bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    file: String,
    bytes: usize,
    sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    products: String,
    shaders: Vec<String>,
    commands: Vec<Command>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Create { buffer: u32, usage: String, bytes: u64, data: Option<(usize, usize)> },
    Write { buffer: u32, data: (usize, usize) },
    Submit(Vec<Dispatch>),
    Read { buffer: u32, bytes: u64, sha256: String },
    Free { buffer: u32 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dispatch {
    shader: usize,
    uniform: (u32, u64, u64),
    buffers: Vec<(u32, u64)>,
    groups: [u32; 3],
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An adapter with only WebGPU's default limits.
struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Gpu {
    fn open(name: &str) -> Gpu {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        let named = |adapter: &&wgpu::Adapter| {
            let info = adapter.get_info();
            format!("{} ({:?})", info.name, info.backend) == name
        };
        let adapter = adapters.iter().find(named).unwrap();
        let (device, queue) = pollster::block_on(adapter.request_device(&Default::default())).unwrap();
        Gpu { device, queue }
    }

    fn pipeline(&self, text: &str) -> wgpu::ComputePipeline {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        })
    }

    fn submit(
        &self,
        dispatches: &[Dispatch],
        pipelines: &[wgpu::ComputePipeline],
        buffers: &HashMap<u32, wgpu::Buffer>,
    ) {
        let part = |id: u32, offset: u64, bytes: u64| {
            let size = std::num::NonZeroU64::new(bytes);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &buffers[&id], offset, size })
        };
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for dispatch in dispatches {
            let (uniform, offset, bytes) = dispatch.uniform;
            let storage = dispatch.buffers.iter().map(|&(id, bytes)| part(id, 0, bytes));
            let entries: Vec<_> = (0..)
                .zip([part(uniform, offset, bytes)].into_iter().chain(storage))
                .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
                .collect();
            let pipeline = &pipelines[dispatch.shader];
            let layout = &pipeline.get_bind_group_layout(0);
            let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
            let group = self.device.create_bind_group(&descriptor);
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = dispatch.groups;
            pass.dispatch_workgroups(x, y, z);
        }
        self.queue.submit([encoder.finish()]);
    }

    fn read(&self, buffer: &wgpu::Buffer, bytes: u64) -> Vec<u8> {
        let size = bytes.next_multiple_of(4);
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let copy = self.device.create_buffer(&descriptor);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &copy, 0, size);
        self.queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let view = copy.get_mapped_range(..).unwrap();
        view[..bytes as usize].to_vec()
    }

    /// Executes a run: returns the number of reads, and those that gave other bytes.
    fn carry_out(&self, run: &Run, texts: &BTreeMap<String, String>, data: &[u8]) -> (usize, Vec<usize>) {
        let pipelines: Vec<_> = run.shaders.iter().map(|name| self.pipeline(&texts[name])).collect();
        let mut buffers: HashMap<u32, wgpu::Buffer> = HashMap::new();
        let (mut reads, mut wrong) = (0, Vec::new());
        let write = |buffer: &wgpu::Buffer, (first, length): (usize, usize)| {
            self.queue.write_buffer(buffer, 0, &data[first..first + length]);
        };
        for command in &run.commands {
            match command {
                Command::Create { buffer, usage, bytes, data } => {
                    let kind = match usage.as_str() {
                        "storage" => BufferUsages::STORAGE | BufferUsages::COPY_SRC,
                        "uniform" => BufferUsages::UNIFORM,
                        other => panic!("usage {other}"),
                    };
                    let made = self.device.create_buffer(&wgpu::BufferDescriptor {
                        label: None,
                        size: *bytes,
                        usage: kind | BufferUsages::COPY_DST,
                        mapped_at_creation: false,
                    });
                    data.iter().for_each(|&span| write(&made, span));
                    assert!(buffers.insert(*buffer, made).is_none());
                }
                Command::Write { buffer, data } => write(&buffers[buffer], *data),
                Command::Submit(dispatches) => self.submit(dispatches, &pipelines, &buffers),
                Command::Read { buffer, bytes, sha256: expected } => {
                    if sha256(&self.read(&buffers[buffer], *bytes)) != *expected {
                        wrong.push(reads);
                    }
                    reads += 1;
                }
                Command::Free { buffer } => drop(buffers.remove(buffer).unwrap()),
            }
        }
        (reads, wrong)
    }
}

/// The contents of one of the page's scripts.
fn script<'a>(page: &'a str, id: &str) -> &'a str {
    let tag = format!(" id=\"{id}\">");
    let begin = page.find(&tag).unwrap() + tag.len();
    &page[begin..begin + page[begin..].find("</script>").unwrap()]
}

/// A step that the first adapter ran gives the same tensors on all of them, and other tensors from another input.
#[test]
fn a_launch_list_is_carried_out_by_another_program() {
    let names = common::adapter_names();
    let Some(first) = names.first() else { return common::not_tested("no adapter is here") };
    let folder = tempfile::tempdir().unwrap();
    let job = common::mlp_job(folder.path(), "step", 3, 2);
    let (out, page) = (folder.path().join("out"), folder.path().join("page.html"));
    let output = Process::new(env!("CARGO_BIN_EXE_tiebreak"))
        .arg("shaders")
        .arg(job)
        .arg("--dump")
        .arg(&out)
        .arg("--launches")
        .arg("--page")
        .arg(&page)
        .args(["--adapter", first])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = |name: &str| std::fs::read_to_string(Path::new(&out).join(name)).unwrap();

    let text = file("launches.json");
    let list: List = serde_json::from_str(&text).unwrap();
    assert_eq!(list.format, "tiebreak launches, version 1");
    let data = std::fs::read(out.join(&list.data.file)).unwrap();
    assert_eq!((data.len(), sha256(&data)), (list.data.bytes, list.data.sha256.clone()));
    assert!(list.needs.storage_buffers <= 8 && list.needs.buffer_bytes <= 128 << 20);
    let named = list.runs.iter().flat_map(|run| &run.shaders);
    let texts: BTreeMap<String, String> = named.map(|name| (name.clone(), file(name))).collect();
    let products: Vec<&str> = list.runs.iter().map(|run| run.products.as_str()).collect();
    assert_eq!(products, ["dot", "f32", "words"]);

    let page = std::fs::read_to_string(page).unwrap();
    assert!(script(&page, "launches") == text, "the page has another list");
    let shaders: BTreeMap<String, String> = serde_json::from_str(script(&page, "shaders")).unwrap();
    assert!(shaders == texts, "the page has other shaders");
    assert!(BASE64_STANDARD.decode(script(&page, "data")).unwrap() == data, "the page has other data");

    // The state is uploaded first: its first number gets the other sign.
    let first_write = list.runs[0].commands.iter().find_map(|command| match command {
        Command::Write { data, .. } => Some(data.0),
        _ => None,
    });
    let mut changed = data.clone();
    changed[first_write.unwrap() + 3] ^= 0x80;
    for name in &names {
        let gpu = Gpu::open(name);
        for run in &list.runs {
            let (reads, wrong) = gpu.carry_out(run, &texts, &data);
            assert!(reads > 4 && wrong.is_empty(), "{name}, {}: {wrong:?} of {reads} reads", run.products);
        }
        let (_, wrong) = gpu.carry_out(&list.runs[0], &texts, &changed);
        assert!(!wrong.is_empty(), "{name}: another state gives the same tensors");
    }
}
