//! What this machine has, where nobody sets a limit.

use std::sync::LazyLock;

/// The memory of a machine that does not say how much it has, in bytes.
const UNKNOWN: u64 = 8 << 30;

/// The most bytes that reading a run or a verdict may take unless somebody says otherwise: the machine's memory, or 8 GiB if that is
/// not known.
pub fn machine_memory() -> u64 {
    static MEMORY: LazyLock<u64> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        total(&text).unwrap_or(UNKNOWN)
    });
    *MEMORY
}

/// The line `MemTotal: N kB` of Linux's `/proc/meminfo`, in bytes.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_is_read() {
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
}
