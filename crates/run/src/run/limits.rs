//! This machine's limits, where nobody sets one.

use std::sync::LazyLock;

/// The assumed memory of a machine that does not say how much it has, in bytes.
const UNKNOWN: u64 = 8 << 30;

/// The most bytes that reading a run or a verdict may take unless somebody says otherwise: the machine's memory, or 8 GiB if that is
/// not known.
pub fn machine_memory() -> u64 {
    static MEMORY: LazyLock<u64> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        kilobytes(&text, "MemTotal:").unwrap_or(UNKNOWN)
    });
    *MEMORY
}

/// The bytes of memory that this process has filled, if the system tells (Linux does): heaps and stacks, without mapped files.
pub fn memory_in_use() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// The number of a line `NAME N kB` of Linux's `/proc` files, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{kilobytes, memory_in_use};

    #[test]
    fn the_total_is_read() {
        let total = |text: &str| kilobytes(text, "MemTotal:");
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       24607936 kB\nx"), Some(24_607_936 << 10));
        for text in [
            "",
            "MemTotal: many kB",
            "MemTotal: 99999999999999999999 kB",
            "MemTotal: 18446744073709551615 kB",
        ] {
            assert_eq!(total(text), None);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_filled_is_counted() {
        let before = memory_in_use().unwrap();
        let filled = vec![1u8; 64 << 20];
        let after = memory_in_use().unwrap();
        assert!(after >= before + (60 << 20), "{before} and {after} with {} bytes more", filled.len());
    }
}
