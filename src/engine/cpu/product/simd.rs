//! Which instructions this machine has, and loops compiled once for each vector width.

use std::sync::LazyLock;

/// The instructions that digitising and rounding back may use, narrowest first. Never changes a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Loops compiled for the target's baseline. (The `gemm` crate detects its own instructions.)
    Portable,
    /// As above, the loops compiled for AVX2, and products by 16-bit dot products.
    Avx2,
    /// As above, the loops compiled for AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// As above, and products by int8 dot products (AVX-512 VNNI).
    Vnni,
}

impl Path {
    /// All paths, narrowest first.
    pub const ALL: [Path; 4] = [Path::Portable, Path::Avx2, Path::Avx512, Path::Vnni];

    /// The fastest path of this machine and build.
    pub fn fastest() -> Path {
        static FASTEST: LazyLock<Path> = LazyLock::new(detect);
        *FASTEST
    }

    /// This path, or the best one below it that the machine has.
    pub(crate) fn supported(self) -> Path {
        self.min(Path::fastest())
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Path {
    let avx2 = cfg!(not(feature = "no-avx2")) && is_x86_feature_detected!("avx2");
    let avx512 = cfg!(not(feature = "no-avx512"))
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) if is_x86_feature_detected!("avx512vnni") => Path::Vnni,
        (true, true) => Path::Avx512,
        (true, false) => Path::Avx2,
        _ => Path::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Path {
    Path::Portable
}

/// Defines `fn name(path, args..)`, whose body is compiled once for each vector width and chosen by `path`. The body
/// calls nothing but `#[inline(always)]` functions, or those would keep the narrowest width.
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name(path: $crate::engine::cpu::product::simd::Path, $($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                use $crate::engine::cpu::product::simd::Path;
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                match path.supported() {
                    // SAFETY: `supported` returns only paths whose instructions were detected.
                    Path::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above; every path above Avx2 has these AVX-512 features.
                    path if path > Path::Avx2 => return unsafe { avx512($($arg),*) },
                    _ => {}
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = path;
            body($($arg),*)
        }
    };
}
pub(crate) use vectorised;
