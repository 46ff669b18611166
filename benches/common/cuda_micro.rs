//! Ceilings of a GPU, measured by kernels that do one thing: the times of whole kernels are read against them.

use std::sync::Arc;
use std::time::Instant;

use cuda_bridge::device::{Call, Device, DeviceError, Memory};
use cuda_bridge::graphs::Graphs;
use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::translate::{Kernel, PRELUDE, Parameter};
use serde_json::json;

const WARP: &str = include_str!("../../cuda-bridge/kernels/warp.cuh");

/// Products of digits by `mma.sync` from registers, eight independent sums at a time.
const MMA: &str = r#"
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, u32* output, u32 output_n) {
    const u32 self = blockIdx.x * 256u + threadIdx.x;
    i32 sums[8][4];
    _Pragma("unroll") for (u32 s = 0; s < 8; s++) _Pragma("unroll") for (u32 i = 0; i < 4; i++) sums[s][i] = (i32)(self + s);
    u32 a[4], b[2];
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) a[i] = self * 0x9e3779b1u + i;
    _Pragma("unroll") for (u32 i = 0; i < 2; i++) b[i] = self * 0x85ebca6bu + i;
    _Pragma("unroll 1") for (u32 i = 0; i < p[0]; i++)
        _Pragma("unroll") for (u32 s = 0; s < 8; s++) TB_MULTIPLY(sums[s], a, b[0], b[1]);
    u32 all = 0u;
    _Pragma("unroll") for (u32 s = 0; s < 8; s++) _Pragma("unroll") for (u32 i = 0; i < 4; i++) all ^= (u32)sums[s][i];
    if (self < output_n) output[self] = all;
}
"#;

/// The same products by `wgmma` from shared memory: 64 x 256 sums of a warpgroup, 32 places of K each. Core matrices of 8 rows of
/// 16 bytes are contiguous, one after the other (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", no
/// swizzling).
const WGMMA: &str = r#"
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, u32* output, u32 output_n) {
    __shared__ __align__(128) u32 tile[4096];
    for (u32 i = threadIdx.x; i < 4096u; i += 256u) tile[i] = (i + blockIdx.x) * 0x9e3779b1u;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const unsigned long long strides = (unsigned long long)(128u >> 4) << 16 | (unsigned long long)(256u >> 4) << 32;
    const unsigned long long a = strides | (unsigned long long)(warp::address(tile) >> 4);
    const unsigned long long b = strides | (unsigned long long)(warp::address(tile + 1024) >> 4);
    i32 s[128];
    _Pragma("unroll") for (u32 i = 0; i < 128; i++) s[i] = (i32)threadIdx.x;
    _Pragma("unroll 1") for (u32 i = 0; i < p[0]; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        _Pragma("unroll") for (u32 j = 0; j < 8; j++)
            asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {SUMS}, %128, %129, 1;"
                         : OPERANDS : "l"(a), "l"(b));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    u32 all = 0u;
    _Pragma("unroll") for (u32 i = 0; i < 128; i++) all ^= (u32)s[i];
    if (blockIdx.x * 256u + threadIdx.x < output_n) output[blockIdx.x * 256u + threadIdx.x] = all;
}
"#;

/// Copies 16 bytes a thread and round.
const COPY: &str = r#"
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, const u32* __restrict__ input, u32 input_n, u32* __restrict__ output, u32 output_n) {
    typedef tb::vec<u32, 4u> Four;
    const u32 all = tb::min(input_n, output_n) / 4u;
    for (u32 i = blockIdx.x * 256u + threadIdx.x; i < all; i += gridDim.x * 256u) ((Four*)output)[i] = ((const Four*)input)[i];
}
"#;

const NOTHING: &str = r#"
extern "C" __global__ void __launch_bounds__(32) KERNEL(const u32* p, u32* output, u32 output_n) {}
"#;

fn kernel(name: &str, text: &str, buffers: &[(&str, u32, bool)], threads: u32) -> Kernel {
    let sums: Vec<String> = (0..128).map(|i| format!("%{i}")).collect();
    let operands: Vec<String> = (0..128).map(|i| format!("\"+r\"(s[{i}])")).collect();
    let text = text.replace("SUMS", &sums.join(", ")).replace("OPERANDS", &operands.join(", "));
    Kernel {
        name: name.into(),
        source: format!("{PRELUDE}\n{WARP}\n#define KERNEL {name}\n{text}"),
        parameters: Parameter::by_hand(1, buffers),
        block: [threads, 1, 1],
        barriers: true,
        dynamic_shared: 0,
    }
}

/// A GPU with its compiler.
struct Bench {
    device: Arc<Device>,
    nvrtc: Nvrtc,
    small: bool,
}

impl Bench {
    /// A launch of a kernel over these buffers; the first holds the number of rounds.
    fn call(&self, kernel: &Kernel, blocks: u32, buffers: &[&Memory]) -> Result<Call, String> {
        let cubin = self.nvrtc.compile(&kernel.name, &kernel.source, &self.device.architecture());
        let loaded = self.device.load(kernel, &cubin.map_err(|error| error.to_string())?);
        let loaded = Arc::new(loaded.map_err(|error| error.to_string())?);
        let slices: Vec<_> = buffers.iter().map(|memory| memory.whole()).collect();
        Call::new(&loaded, [blocks, 1, 1], &slices).map_err(|error| error.to_string())
    }

    /// The median seconds of a few runs.
    fn seconds(&self, mut run: impl FnMut() -> Result<(), DeviceError>) -> Result<f64, String> {
        let mut times = Vec::new();
        for round in 0..6 {
            let begin = Instant::now();
            let ran = run().and_then(|()| self.device.finish());
            ran.map_err(|error| error.to_string())?;
            if round > 0 {
                times.push(begin.elapsed().as_secs_f64());
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[2])
    }

    fn products(&self, name: &str, text: &str, work: u64) -> Result<f64, String> {
        let rounds: u32 = if self.small { 2 } else { 20_000 };
        let blocks = if self.small { 1 } else { 2 * self.device.description.processors };
        let memory = |bytes: usize| self.device.allocate(bytes).map_err(|error| error.to_string());
        let rounds_there = self.device.upload(&rounds.to_le_bytes()).map_err(|error| error.to_string())?;
        let output = memory(1024 * blocks as usize)?;
        let kernel = kernel(name, text, &[("output", 4, true)], 256);
        let call = self.call(&kernel, blocks, &[&rounds_there, &output])?;
        let seconds = self.seconds(|| call.launch())?;
        Ok(2.0 * (u64::from(rounds) * u64::from(blocks) * work) as f64 / seconds / 1e12)
    }

    fn copies(&self) -> Result<f64, String> {
        let bytes: usize = if self.small { 1 << 12 } else { 2 << 30 };
        let memory = |bytes: usize| self.device.allocate(bytes).map_err(|error| error.to_string());
        let (from, to, word) = (memory(bytes)?, memory(bytes)?, memory(16)?);
        let kernel = kernel("micro_copy", COPY, &[("input", 4, false), ("output", 4, true)], 256);
        let blocks = if self.small { 2 } else { 16 * self.device.description.processors };
        let call = self.call(&kernel, blocks, &[&word, &from, &to])?;
        Ok(2.0 * bytes as f64 / self.seconds(|| call.launch())? / 1e12)
    }

    /// Microseconds from one launch to the next: in a graph, and one by one.
    fn gaps(&self) -> Result<[f64; 2], String> {
        let memory = |bytes: usize| self.device.allocate(bytes).map_err(|error| error.to_string());
        let (word, output) = (memory(16)?, memory(16)?);
        let call =
            self.call(&kernel("micro_nothing", NOTHING, &[("output", 4, true)], 32), 1, &[&word, &output])?;
        let many = if self.small { 8 } else { 128 };
        let graphs = Graphs::new(&self.device);
        let run = |times: u32| (0..times).try_for_each(|_| graphs.run(vec![call.clone(); many]));
        let first = run(2); // the second one makes the graph
        first.map_err(|error| error.to_string())?;
        let in_graph = self.seconds(|| run(16))?;
        let alone = self.seconds(|| (0..16 * many).try_for_each(|_| call.launch()))?;
        Ok([in_graph, alone].map(|seconds| seconds * 1e6 / (16 * many) as f64))
    }
}

/// Measures each ceiling, and prints a line for it, or for the reason why there is none.
pub fn run(device: &Arc<Device>, small: bool) -> Result<(), String> {
    let nvrtc = device
        .driver_major()
        .map_err(|e| e.to_string())
        .and_then(|major| Nvrtc::load_for(major).map_err(|e| e.to_string()))?;
    let bench = Bench { device: device.clone(), nvrtc, small };
    let say = |name: &str, unit: &str, found: Result<f64, String>| match found {
        Ok(value) => println!("{}", json!({ "kind": "micro", "name": name, "value": value, "unit": unit })),
        Err(reason) => println!("{}", json!({ "kind": "micro", "name": name, "reason": reason })),
    };
    // The products in a round of a block: 8 warps of 8 products of 16 x 8 x 32; two warpgroups of 8 products of 64 x 256 x 32.
    say("mma.sync m16n8k32 s8", "TOPS", bench.products("micro_mma", MMA, 64 * 16 * 8 * 32));
    say("copy of 2 GiB, read and written", "TB/s", bench.copies());
    let [in_graph, alone] = match bench.gaps() {
        Ok(gaps) => gaps.map(Ok),
        Err(reason) => [Err(reason.clone()), Err(reason)],
    };
    say("an empty kernel in a graph", "us", in_graph);
    say("an empty kernel launched alone", "us", alone);
    // The last measurement: a kernel that has never run may lose the GPU for this process.
    let is_hopper = device.description.capability.0 == 9 && !small;
    let wgmma = if is_hopper {
        bench.products("micro_wgmma", WGMMA, 16 * 64 * 256 * 32)
    } else {
        Err("this GPU has no wgmma".into())
    };
    say("wgmma m64n256k32 s8", "TOPS", wgmma);
    Ok(())
}
