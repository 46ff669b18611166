//! The choice of the instructions by which the CPU engine computes: the best ones of the machine, or those that the environment names.

use std::ffi::OsString;
use std::sync::LazyLock;

/// The variable that names a path, by [`Path::name`].
const VARIABLE: &str = "TIEBREAK_CPU_PATH";

/// The instructions that the CPU engine may use, narrowest first. The choice never changes a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Loops compiled for the target's baseline. (The `gemm` crate detects its own instructions.)
    Portable,
    /// The same loops, and products of 64-bit Arm's dot products of bytes.
    NeonDotprod,
    /// As above, and products of Arm's products of matrices of bytes.
    NeonI8mm,
    /// Loops compiled for AVX2, and products by 16-bit dot products (AVX2 and FMA).
    Avx2,
    /// As above, and products by AVX-VNNI.
    AvxVnni,
    /// As [`Path::Avx2`], the loops compiled for AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// As above, and products by AVX-512 VNNI.
    Avx512Vnni,
    /// As above, and products by the tile registers of AMX.
    AmxInt8,
}

/// Every path, narrowest first, with its name.
const PATHS: [(Path, &str); 8] = [
    (Path::Portable, "portable"),
    (Path::NeonDotprod, "neon-dotprod"),
    (Path::NeonI8mm, "neon-i8mm"),
    (Path::Avx2, "avx2"),
    (Path::AvxVnni, "avx-vnni"),
    (Path::Avx512, "avx512"),
    (Path::Avx512Vnni, "avx512-vnni"),
    (Path::AmxInt8, "amx-int8"),
];

/// The paths of this machine: bit i stands for the path with number i.
static MACHINE: LazyLock<u32> = LazyLock::new(|| {
    let bits = PATHS.iter().filter(|(path, _)| path.detected()).map(|(path, _)| 1 << *path as u32);
    bits.sum()
});
static CHOSEN: LazyLock<Result<Path, String>> = LazyLock::new(|| choose(std::env::var_os(VARIABLE)));

impl Path {
    /// The name that the environment variable `TIEBREAK_CPU_PATH` takes.
    pub fn name(self) -> &'static str {
        PATHS[self as usize].1
    }

    /// The paths of this machine, narrowest first.
    pub fn of_machine() -> impl Iterator<Item = Path> {
        PATHS.iter().map(|(path, _)| *path).filter(|path| path.supported() == *path)
    }

    /// The path that the environment names, or else the fastest one of this machine.
    pub fn fastest() -> Path {
        *CHOSEN.as_ref().unwrap_or(&best())
    }

    /// [`Path::fastest`], or the reason why the environment's choice cannot be used.
    pub(crate) fn chosen() -> Result<Path, String> {
        CHOSEN.clone()
    }

    /// This path, or the best path below it that the machine has.
    pub fn supported(self) -> Path {
        let up_to_this = (2 << self as u32) - 1;
        PATHS[(*MACHINE & up_to_this).ilog2() as usize].0
    }

    #[cfg(target_arch = "x86_64")]
    fn detected(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match self {
            Path::Portable => true,
            Path::NeonDotprod | Path::NeonI8mm => false,
            Path::Avx2 => avx2,
            Path::AvxVnni => avx2 && is_x86_feature_detected!("avxvnni"),
            Path::Avx512 => avx512,
            Path::Avx512Vnni => avx512 && is_x86_feature_detected!("avx512vnni"),
            Path::AmxInt8 => avx512 && is_x86_feature_detected!("avx512vnni") && tile_registers(),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn detected(self) -> bool {
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        match self {
            Path::Portable => true,
            Path::NeonDotprod => dotprod,
            Path::NeonI8mm => dotprod && std::arch::is_aarch64_feature_detected!("i8mm"),
            _ => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn detected(self) -> bool {
        self == Path::Portable
    }
}

/// True if the processor multiplies bytes in tile registers, and Linux allows this process to use them. Source: Intel 64 and IA-32
/// Architectures Software Developer's Manual, volume 1, section 18.2; the kernel's `Documentation/arch/x86/xstate.rst`.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tile_registers() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // The function is unsafe in older versions of Rust alone.
    #[allow(unused_unsafe)]
    // SAFETY: every 64-bit processor has the instruction.
    let [first, seventh] = [0, 7].map(|leaf| unsafe { __cpuid_count(leaf, 0) });
    let has = first.eax >= 7 && seventh.edx & AMX_TILE_AND_INT8 == AMX_TILE_AND_INT8;
    // SAFETY: the call takes two numbers, and changes nothing but which registers the process may use.
    has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tile_registers() -> bool {
    false
}

/// The best path of this machine.
fn best() -> Path {
    PATHS[PATHS.len() - 1].0.supported()
}

/// The path with the given name, if this machine has it. Without a name the best one.
fn choose(name: Option<OsString>) -> Result<Path, String> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(best()) };
    Path::of_machine().find(|path| name == path.name()).ok_or_else(|| {
        let paths: Vec<&str> = Path::of_machine().map(Path::name).collect();
        format!("{VARIABLE} is {}, and this machine has {}", name.to_string_lossy(), paths.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_paths_of_the_machine() {
        for (i, (path, name)) in PATHS.into_iter().enumerate() {
            assert_eq!((path as usize, path.name()), (i, name));
            let has = Path::of_machine().any(|of_machine| of_machine == path);
            assert_eq!(choose(Some(name.into())).ok(), has.then_some(path));
            assert!(path.supported() <= path && path.supported().detected());
        }
        assert_eq!(Path::of_machine().next(), Some(Path::Portable));
        for none in [None, Some("".into())] {
            assert_eq!(choose(none).ok(), Path::of_machine().last());
        }
        let error = choose(Some("avx1".into())).unwrap_err();
        assert!(error.starts_with("TIEBREAK_CPU_PATH is avx1, and this machine has portable"), "{error}");
    }
}
