//! Choosing an engine.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::cli::view::report::{Exit, Failure, callers_kernel};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::reference::Reference;
#[cfg(feature = "cuda")]
use tiebreak_gpu::Cublas;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// All cores.
    #[default]
    Cpu,
    /// A GPU (or a software adapter) through Vulkan, Metal or DX12.
    #[cfg(feature = "gpu")]
    Wgpu,
    /// An NVIDIA GPU through its driver, with kernels that are compiled for it at run time (needs NVRTC).
    #[cfg(feature = "cuda")]
    Cuda,
    /// The scalar reference: slow, and what every other engine must equal.
    Reference,
}

/// Kernels that a trainer of the logged profile calls native.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NativeKind {
    /// CPU: the `gemm` crate.
    Gemm,
    /// CPU: term by term.
    Sequential,
    /// CPU: term by term, fused.
    SequentialFma,
    /// CPU: sixteen partial sums.
    Interleaved,
    /// CPU: sixteen partial sums, fused.
    InterleavedFma,
    /// CUDA: cuBLAS, bfloat16 tensor cores on the bfloat16 grid, binary64 on finer ones.
    #[cfg(feature = "cuda")]
    Cublas,
    /// CUDA: cuBLAS, TF32 tensor cores; the bfloat16 grid only.
    #[cfg(feature = "cuda")]
    CublasTf32,
    /// CUDA: cuBLAS, binary32 without tensor cores; the bfloat16 grid only.
    #[cfg(feature = "cuda")]
    CublasBinary32,
}

/// The kernels of one engine.
enum Kernels {
    Cpu(Native),
    #[cfg(feature = "cuda")]
    Cuda(Cublas),
}

impl NativeKind {
    fn kernels(self) -> Kernels {
        match self {
            NativeKind::Gemm => Kernels::Cpu(Native::Gemm),
            NativeKind::Sequential => Kernels::Cpu(Native::Sequential { fused: false }),
            NativeKind::SequentialFma => Kernels::Cpu(Native::Sequential { fused: true }),
            NativeKind::Interleaved => Kernels::Cpu(Native::Interleaved { fused: false }),
            NativeKind::InterleavedFma => Kernels::Cpu(Native::Interleaved { fused: true }),
            #[cfg(feature = "cuda")]
            NativeKind::Cublas => Kernels::Cuda(Cublas::Fast),
            #[cfg(feature = "cuda")]
            NativeKind::CublasTf32 => Kernels::Cuda(Cublas::Tf32),
            #[cfg(feature = "cuda")]
            NativeKind::CublasBinary32 => Kernels::Cuda(Cublas::Binary32),
        }
    }
}

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Engine that computes.
    #[arg(long, value_enum, default_value_t = EngineKind::Cpu)]
    pub engine: EngineKind,
    /// GPU whose name contains this text; `tiebreak adapters` lists all.
    ///
    /// With `--engine cuda` the number of a device does too.
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
    /// Native kernels for the products of the logged profile.
    ///
    /// Each kernel sums in another order. The default is gemm on the CPU and a plain shader on a GPU. With this option an auditor takes
    /// the kernel's products in place of exact ones. That is for runs in the paper's preset only, and nothing is judged.
    #[arg(long, value_enum, hide_short_help = true)]
    pub native: Option<NativeKind>,
    /// Threads of the CPU engine; 0 is one for each core.
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub threads: usize,
}

impl EngineArgs {
    /// Checks that no option is about another engine, or more than this machine has.
    ///
    /// # Errors
    /// If one is, with the option that is missing or wrong.
    pub fn check(&self) -> Result<(), Failure> {
        let cores = cores();
        let engine = self.engine.to_possible_value().map_or(String::new(), |engine| engine.get_name().into());
        let (why, help) = match self.engine {
            EngineKind::Cpu | EngineKind::Reference if self.adapter.is_some() => {
                let named = self.adapter.as_deref().unwrap_or_default();
                let why = format!("--adapter names a GPU ({named:?}), and the engine is {engine}");
                (why, "give --engine wgpu or --engine cuda too; `tiebreak adapters` lists both".to_string())
            }
            EngineKind::Cpu if self.threads > cores => {
                let why = format!("--threads {}: this machine has {cores} cores; give no more", self.threads);
                (why, format!("give --threads {cores}, or leave it out for one a core"))
            }
            EngineKind::Cpu => return Ok(()),
            _ if self.threads > 0 => {
                let why = format!("--threads is for the CPU engine, and the engine is {engine}");
                (why, "leave --threads out, or give --engine cpu".to_string())
            }
            _ => return Ok(()),
        };
        Err(Failure::new(Exit::Usage, why).help(help))
    }

    /// True if the command line names native kernels, or the program that called the command has one.
    pub fn has_native(&self) -> bool {
        self.native.is_some() || callers_kernel().is_some()
    }

    /// True if tensors lie in the memory of this process.
    pub fn is_on_host(&self) -> bool {
        matches!(self.engine, EngineKind::Cpu | EngineKind::Reference)
    }

    /// The options that say the same to another process.
    pub fn options(&self) -> Vec<String> {
        let name =
            |value: Option<PossibleValue>| value.expect("every value has a name").get_name().to_string();
        let mut options = vec![format!("--engine={}", name(self.engine.to_possible_value()))];
        options.extend(self.adapter.iter().map(|adapter| format!("--adapter={adapter}")));
        options.extend(self.native.map(|native| format!("--native={}", name(native.to_possible_value()))));
        options.push(format!("--threads={}", self.threads));
        options
    }
}

/// The cores that the system gives this process.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Opens the engine that the arguments name, for what calls no native products.
pub fn open_exact(args: &EngineArgs) -> Result<Box<dyn Engine>, Failure> {
    if args.has_native() {
        let why = "--native is for training in the logged profile; nothing here would call native products";
        return Err(Failure::new(Exit::Usage, why));
    }
    open(args)
}

/// Opens the engine that the arguments name.
pub fn open(args: &EngineArgs) -> Result<Box<dyn Engine>, Failure> {
    args.check()?;
    let kernels = args.native.map(NativeKind::kernels);
    let elsewhere = || {
        let name = args.native.and_then(|native| native.to_possible_value());
        let name = name.map(|value| value.get_name().to_string()).unwrap_or_default();
        Failure::new(
            Exit::Usage,
            format!("--native {name} is of another engine; see --help for each engine's"),
        )
    };
    Ok(match (args.engine, kernels) {
        (EngineKind::Cpu, None) => {
            let cpu = Cpu::new(args.threads)?;
            Box::new(match callers_kernel() {
                None => cpu,
                Some(kernel) => cpu.with_kernel(kernel),
            })
        }
        (EngineKind::Cpu, Some(Kernels::Cpu(native))) => {
            Box::new(Cpu::new(args.threads)?.with_native(native))
        }
        #[cfg(feature = "gpu")]
        (EngineKind::Wgpu, None) => Box::new(tiebreak_gpu::Gpu::open(args.adapter.as_deref())?),
        #[cfg(feature = "cuda")]
        (EngineKind::Cuda, None) => Box::new(tiebreak_gpu::Cuda::open(args.adapter.as_deref())?),
        #[cfg(feature = "cuda")]
        (EngineKind::Cuda, Some(Kernels::Cuda(kernels))) => {
            Box::new(tiebreak_gpu::Cuda::open_with_cublas(args.adapter.as_deref(), kernels)?)
        }
        (EngineKind::Reference, None) => Box::new(Reference),
        _ => return Err(elsewhere()),
    })
}
