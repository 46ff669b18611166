//! The host's stand-ins for a warp's common operations and for asynchronous copies: they find mistakes that hardware may hide.

mod common;

use cuda_bridge::host::{Buffer, Checks, HostError};
use cuda_bridge::translate::{Kernel, PRELUDE, Parameter, ParameterKind};

/// Runs the body of a kernel of one block, which reads 64 words `in` and writes 64 words `out`, with 1 KB `tile` and `lane`.
fn run(threads: u32, body: &str) -> Result<Vec<u32>, HostError> {
    let parameter = |binding: u32, name: &str, writable| Parameter {
        group: 0,
        binding,
        name: name.into(),
        kind: ParameterKind::Elements { stride: 4 },
        writable,
    };
    let source = format!(
        "{PRELUDE}\n{}\nstruct alignas(128) Tile {{ u32 words[256]; }};\n\
         extern \"C\" __global__ void __launch_bounds__(64) k(const u32* in, u32 in_n, u32* out, u32 out_n) {{\n\
         __shared__ Tile tile; u32 lane = threadIdx.x; warp::Address at = warp::address(tile.words);\n{body}\n}}\n",
        include_str!("../kernels/warp.cuh")
    );
    let parameters = vec![parameter(0, "in", false), parameter(1, "out", true)];
    let kernel = Kernel {
        name: "k".into(),
        source,
        parameters,
        block: [threads, 1, 1],
        barriers: true,
        dynamic_shared: 0,
    };
    let (words, mut out) = ((0..64).collect::<Vec<u32>>(), vec![0; 64]);
    common::host(&kernel, Checks::default())
        .run([1, 1, 1], &mut [Buffer::Read(&words), Buffer::Write(&mut out)])
        .map(|()| out)
}

fn fault(threads: u32, body: &str) -> String {
    run(threads, body).expect_err(body).to_string()
}

const COPY: &str = "warp::copy_16(at + 16u * lane, in + 4u * (lane % 16u), lane < 16u); warp::close_group();";

#[test]
fn copies_arrive_when_they_are_waited_for() {
    let wait = |pending: u32| {
        format!("{COPY} warp::wait_groups<{pending}>(); __syncthreads(); out[lane] = tile.words[lane * 4u];")
    };
    let arrived: Vec<u32> = (0..64).map(|lane| if lane < 16 { lane * 4 } else { 0 }).collect();
    assert_eq!(run(64, &wait(0)).unwrap(), arrived);
    // One group may still be under way: the last one. Neither its bytes nor the old bytes are there.
    let rest = "warp::wait_groups<0>();";
    assert_eq!(run(64, &format!("{} {rest}", wait(1))).unwrap(), vec![0xa5a5_a5a5; 64]);
    // An empty group counts.
    let empty = format!(
        "{COPY} warp::close_group(); warp::wait_groups<1>(); __syncthreads(); out[lane] = tile.words[lane * 4u];"
    );
    assert_eq!(run(64, &empty).unwrap(), arrived);
    assert!(fault(64, COPY).contains("ended with copies"));
    assert!(fault(64, "warp::copy_16(at + 4u, in, true); warp::wait_groups<0>();").contains("aligned"));
}

#[test]
fn lanes_that_part_are_found() {
    let parted = "lanes of a warp part";
    assert!(fault(32, "if (lane != 7u) TB_WARP_SYNC();").contains(parted));
    assert!(
        fault(32, "if (lane < 9u) TB_WARP_SYNC(); else { out[lane] = 1u;\n TB_WARP_SYNC(); }")
            .contains(parted)
    );
    assert!(fault(32, "for (u32 i = 0; i < 2u + lane % 2u; i++) TB_WARP_SYNC();").contains(parted));
    assert!(fault(32, "if (lane < 31u) TB_WARP_SYNC(); else __syncthreads();").contains(parted));
    let multiply = "i32 c[4] = {0, 0, 0, 0}; u32 a[4] = {0u, 0u, 0u, 0u}; if (lane % 2u == 0u) TB_MULTIPLY(c, a, 0u, 0u);";
    assert!(fault(64, multiply).contains(parted));
    // Half a warp has no such operations.
    assert!(fault(16, "TB_WARP_SYNC();").contains(parted));
    // Warps need not agree, and barriers of the block work beside those of warps.
    let apart = "if (lane < 32u) TB_WARP_SYNC(); tile.words[lane] = lane; __syncthreads(); out[lane] = tile.words[63u - lane];";
    assert_eq!(run(64, apart).unwrap(), (0..64).rev().collect::<Vec<u32>>());
}

/// A warp's lanes see what the others wrote before they met, and no other operation orders them.
#[test]
fn warps_meet() {
    let body = "tile.words[lane] = in[lane] * 3u; TB_WARP_SYNC(); out[lane] = tile.words[lane ^ 31u];";
    let want: Vec<u32> = (0..64u32).map(|lane| (lane ^ 31) * 3).collect();
    assert_eq!(run(64, body).unwrap(), want);
}

#[test]
fn matrices_come_as_fragments() {
    // Rows of 16 bytes one after the other; word i of them holds i.
    let load = |place: &str| {
        format!(
            "for (u32 i = lane; i < 256u; i += 32u) tile.words[i] = i; __syncthreads(); u32 r[4];\n\
             TB_LOAD_MATRICES(r, at + {place}); out[lane] = r[1]; out[lane + 32u] = r[3];"
        )
    };
    let want: Vec<u32> = (32..64).chain(96..128).collect();
    assert_eq!(run(32, &load("16u * lane")).unwrap(), want);
    assert!(fault(32, &load("32u * (lane % 16u)")).contains("meet in a bank"));
    assert!(fault(32, &load("16u * lane + 4u")).contains("not aligned"));
}

#[test]
fn products_wrap_and_read_signed_bytes() {
    let multiply = "i32 c[4] = {2147483647, 0, -1, (i32)lane}; u32 a[4] = {0x80808080u, 0u, 0x80808080u, 0u};\n\
                    TB_MULTIPLY(c, a, 0x80808080u, 0x7f7f7f7fu); out[lane] = (u32)c[lane % 4u];";
    let out = run(32, multiply).unwrap();
    // Rows 0 to 7 hold -128 everywhere, the others 0: 16 places of -128 and 16 of 127 in each column.
    let sum = 16 * (128 * 128 - 128 * 127);
    for (lane, word) in (0u32..32).zip(out) {
        let want = [(i32::MAX as u32).wrapping_add(sum), sum, u32::MAX, lane][(lane % 4) as usize];
        assert_eq!(word, want, "lane {lane}");
    }
}

#[test]
fn lanes_exchange_words() {
    let out = run(32, "out[lane] = TB_SHUFFLE_XOR(in[lane] + 7u, 5u);").unwrap();
    assert_eq!(out[..32], (0..32).map(|lane: u32| (lane ^ 5) + 7).collect::<Vec<_>>());
    assert!(fault(32, "out[lane] = TB_SHUFFLE_XOR(lane, lane % 2u);").contains("by different numbers"));
    assert!(
        fault(32, "if (lane < 16u) out[lane] = TB_SHUFFLE_XOR(lane, 1u);").contains("lanes of a warp part")
    );
}

/// A compiler moves an instruction that is not volatile into the branch that uses it, where lanes are missing.
#[test]
fn no_instruction_of_a_warp_may_be_moved() {
    let text = include_str!("../kernels/warp.cuh");
    let said = text.lines().map(|line| line.split("//").next().unwrap()).collect::<String>();
    let (all, volatile) = (said.matches("asm ").count(), said.matches("asm volatile(").count());
    assert!(all >= 7 && all == volatile && !said.contains("asm("), "{volatile} of {all} are volatile");
}
