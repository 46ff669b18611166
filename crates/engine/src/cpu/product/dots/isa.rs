//! The instructions that forms are made of, over vectors of sixteen lanes of 32 bits: one register, or as many as a processor needs.
//!
//! The methods are always inlined in functions that have the instructions ([`Isa::run`]), so their vectors stay in registers.

/// Lanes of a vector: columns of a register tile.
pub(super) const LANES: usize = 16;

/// The instructions of a processor.
///
/// # Safety
/// A `Vector` is sixteen i32 in memory, the first lane first.
pub(super) unsafe trait Isa: Sync + 'static {
    /// Sixteen lanes.
    type Vector: Copy;

    /// Runs `work`, which must be `#[inline(always)]`, compiled for these instructions.
    ///
    /// # Safety
    /// The machine has these instructions.
    unsafe fn run<R>(work: impl FnOnce() -> R) -> R;

    /// Zero in each lane.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn zero() -> Self::Vector;

    /// One word in each lane.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn load(words: &[u32; LANES]) -> Self::Vector;

    /// The same word in each lane.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn splat(word: i32) -> Self::Vector;

    /// The transpose of sixteen rows of up to sixteen integers, with zeros behind them.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn turned(rows: &[&[i32]; LANES]) -> [[i32; LANES]; LANES];
}

/// Dot products of four bytes in each lane.
pub(super) trait DotBytes: Isa {
    /// True if the bytes of the left vector are unsigned. The bytes of the right vector are signed.
    const UNSIGNED: bool;

    /// `sum` plus the dot product of the bytes in each lane.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn dot_bytes(sum: Self::Vector, left: Self::Vector, right: Self::Vector) -> Self::Vector;
}

/// Dot products of two signed integers of 16 bits in each lane.
#[cfg(target_arch = "x86_64")]
pub(super) trait DotHalves: Isa {
    /// The registers of a vector.
    const REGISTERS: usize;

    /// `sum` plus the dot product of the halves in each lane, modulo 2^32.
    ///
    /// # Safety
    /// As [`Isa::run`].
    unsafe fn dot_halves(sum: Self::Vector, left: Self::Vector, right: Self::Vector) -> Self::Vector;
}

/// The lanes of a vector in memory.
pub(super) fn lanes<I: Isa>(vector: &I::Vector) -> &[i32; LANES] {
    // SAFETY: implementations of `Isa` promise that a vector is sixteen i32.
    unsafe { &*std::ptr::from_ref(vector).cast() }
}
