//! The kernels around a library's products, by the host's compiler: every element of a view, every kind of binary32 as an
//! operand, and binary64 results in two parts. NVRTC compiles them for the architectures that have them.

mod common;

use cuda_bridge::cublas::Precision;
use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::native::{pack, parts};
use tiebreak_contract::program::logged::bf16_body;

const CHECKS: Checks = Checks { undefined: true };

/// Operands that conversions could get wrong: all kinds of binary32, halfway cases of bfloat16, and mixed patterns.
fn operands() -> Vec<u32> {
    let special =
        [0, 1, 0x8000_0000, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000];
    let halfway = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0x7f7f_8000, 0x0000_8000, 0x0001_8000];
    special.into_iter().chain(halfway).chain((0..5000).map(common::word)).collect()
}

#[test]
fn operands_are_copied_in_their_format() {
    for precision in [Precision::Bfloat16, Precision::Binary32, Precision::Binary64] {
        let mut input = operands();
        if precision == Precision::Binary64 {
            // The NaN that a conversion gives depends on the processor.
            input.retain(|&x| !f32::from_bits(x).is_nan());
        }
        // A view of [7, 4, 5, 11] with gaps and an offset, contiguous rows, and a view that is one contiguous range.
        let (dims, strides, offset) = ([7u32, 4, 5, 11], [400u32, 11, 70, 1], 3);
        for (dims, strides, offset) in [(dims, strides, offset), ([1, 1, 1, 2901], [0, 0, 0, 1], 5)] {
            let count: u32 = dims.iter().product();
            let p: Vec<u32> = dims.into_iter().chain(strides).chain([count, offset]).collect();
            let each = precision.operand_bytes();
            let mut output = vec![0u32; (count as usize * each).div_ceil(4)];
            let groups = [count.div_ceil(256), 1, 1];
            let mut buffers = [Buffer::Read(&p), Buffer::Read(&input), Buffer::Write(&mut output)];
            common::execute(&pack(precision), CHECKS, groups, &mut buffers);
            let bytes: Vec<u8> = output.iter().flat_map(|word| word.to_le_bytes()).collect();
            for (i, element) in bytes.chunks_exact(each).take(count as usize).enumerate() {
                let (mut rest, mut at) = (i as u32, offset);
                for d in (0..4).rev() {
                    at += rest % dims[d] * strides[d];
                    rest /= dims[d];
                }
                let x = input[at as usize];
                let (have, want) = match precision {
                    Precision::Bfloat16 => {
                        let have = u16::from_le_bytes(element.try_into().unwrap());
                        (u64::from(have) << 16, u64::from(bf16_body().eval(&[x], [0; 4])))
                    }
                    Precision::Binary64 => {
                        let have = f64::from_le_bytes(element.try_into().unwrap());
                        (have.to_bits(), f64::from(f32::from_bits(x)).to_bits())
                    }
                    _ => (u64::from(u32::from_le_bytes(element.try_into().unwrap())), u64::from(x)),
                };
                assert_eq!(have, want, "{precision:?} of {x:08x}");
            }
        }
    }
}

#[test]
fn results_are_taken_apart_as_the_cpu_does() {
    let sums: Vec<f64> = (operands().iter())
        .zip(operands().iter().rev())
        .map(|(&x, &y)| f64::from(f32::from_bits(x)) + f64::from(f32::from_bits(y)) * 2f64.powi(-20))
        .filter(|sum| sum.is_finite() && sum.abs() < f64::from(f32::MAX))
        .collect();
    let words: Vec<u32> =
        sums.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]).collect();
    let p = [sums.len() as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut output = vec![0u32; 2 * sums.len()];
    let groups = [p[0].div_ceil(256), 1, 1];
    let mut buffers = [Buffer::Read(&p), Buffer::Read(&words), Buffer::Write(&mut output)];
    common::execute(&parts(), CHECKS, groups, &mut buffers);
    for (i, &sum) in sums.iter().enumerate() {
        let high = sum as f32;
        let low = (sum - f64::from(high)) as f32;
        assert_eq!([output[i], output[sums.len() + i]], [high.to_bits(), low.to_bits()], "{sum:e}");
    }
}

#[test]
fn nvrtc_compiles_them() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let kernels = [Precision::Bfloat16, Precision::Tf32, Precision::Binary64].map(pack);
    for kernel in kernels.into_iter().chain([parts()]) {
        for architecture in ["sm_80", "sm_89", "sm_90a"] {
            let cubin = nvrtc
                .compile(&kernel.name, &kernel.source, architecture)
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(!cubin.is_empty(), "{} for {architecture}", kernel.name);
        }
    }
}
