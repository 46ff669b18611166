//! The two clocks of a chip: the time of day, which records carry, and a time that nobody sets.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clocks that an agent reads.
pub trait Clock {
    /// Milliseconds since 1970. Somebody may set this clock, also back.
    fn wall(&self) -> u64;

    /// Microseconds since some moment before. This clock never goes back, and nobody sets it.
    fn elapsed(&self) -> u64;
}

/// The machine's clocks.
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock whose elapsed time counts from now.
    pub fn start() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
