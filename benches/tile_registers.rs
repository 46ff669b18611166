//! How long an instruction of AMX's takes in the loop of `crates/engine/src/cpu/product/dots/tiles.rs`, while the four registers beside
//! it are zero, and while they are not. Samples of both are interleaved, and their spread is shown: other work on a core's second
//! hardware thread changes both.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn main() {
    amx::main();
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn main() {
    println!("AMX is for x86-64, and the engine uses it on Linux");
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;
    use std::time::Instant;

    use tiebreak_engine::cpu::product::Path;

    /// Loops of a sample, and samples.
    const LOOPS: usize = 2000;
    const SAMPLES: usize = 400;
    /// Tiles that a loop multiplies, of each operand.
    const TILES: usize = 12;

    #[repr(C, align(64))]
    struct Bytes([u8; TILES * 1024]);

    /// Nanoseconds of an instruction in a loop that multiplies two strips of a and a panel of b, by four registers. The other four are
    /// zero, or hold bytes.
    fn sample(a: &Bytes, b: &Bytes, is_zero: bool) -> f64 {
        let mut configuration = Bytes([0; TILES * 1024]);
        configuration.0[0] = 1;
        for register in 0..8 {
            configuration.0[16 + 2 * register] = 64;
            configuration.0[48 + register] = 16;
        }
        let begin = Instant::now();
        // SAFETY: AMX was detected and allowed. Each load reads a tile of an operand, and the registers are freed at the end.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly));
            if !is_zero {
                asm!(
                    "tileloadd tmm4, [{a} + {row}]", "tileloadd tmm5, [{a} + {row}]",
                    "tileloadd tmm6, [{a} + {row}]", "tileloadd tmm7, [{a} + {row}]",
                    a = in(reg) a, row = in(reg) 64usize, options(nostack, readonly),
                );
            }
            for _ in 0..LOOPS {
                asm!(
                    "2:",
                    "tileloadd tmm3, [{b} + {row}]",
                    "tileloadd tmm2, [{a} + {row}]",
                    "tdpbssd tmm0, tmm2, tmm3",
                    "tileloadd tmm2, [{a} + {row} + 1024]",
                    "tdpbssd tmm1, tmm2, tmm3",
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    a = inout(reg) a => _, b = inout(reg) b => _, steps = inout(reg) TILES / 2 => _, row = in(reg) 64usize,
                    options(nostack, readonly),
                );
            }
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
        begin.elapsed().as_secs_f64() * 1e9 / (LOOPS * TILES) as f64
    }

    pub fn main() {
        if Path::fastest() != Path::AmxInt8 {
            println!(
                "this machine has no AMX, the system does not allow it, or TIEBREAK_CPU_PATH names another path"
            );
            return;
        }
        println!(
            "nanoseconds of a tdpbssd: the least, a tenth, the median and nine tenths of {SAMPLES} samples a thread"
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for threads in [1, cores] {
            let work = || {
                let (a, b) = (Bytes([3; TILES * 1024]), Bytes([5; TILES * 1024]));
                let mut found = [Vec::new(), Vec::new()];
                for _ in 0..SAMPLES {
                    found[0].push(sample(&a, &b, true));
                    found[1].push(sample(&a, &b, false));
                }
                found
            };
            let found = std::thread::scope(|scope| {
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                all.into_iter().map(|thread| thread.join().expect("it measures")).collect::<Vec<_>>()
            });
            for (i, others) in ["zero", "not zero"].into_iter().enumerate() {
                let mut all: Vec<f64> = found.iter().flat_map(|found| &found[i]).copied().collect();
                all.sort_by(f64::total_cmp);
                let [tenth, median, most] = [1, 5, 9].map(|tenths| all[all.len() * tenths / 10]);
                println!(
                    "{threads} threads, other registers {others}: {:.1}, {tenth:.1}, {median:.1}, {most:.1}",
                    all[0]
                );
            }
        }
    }
}
