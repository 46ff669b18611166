//! The time of a game. The clock runs while the referee waits for answers; it stands still while no referee runs or the referee
//! is held up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most by which the system may wake a wait too late for the delay to count. A machine that slept or a process that was
/// stopped wakes later than that.
pub(crate) const JUMP: Duration = Duration::from_millis(500);

/// The milliseconds of a game. The time of day does not move this clock: it counts waits, by the system's monotonic clock.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// A clock that shows `at`.
    pub fn at(at: u64) -> Clock {
        Clock(AtomicU64::new(at))
    }

    /// The time that the clock shows.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The time until the clock shows `at`, if it is not held up.
    pub fn until(&self, at: u64) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()))
    }

    /// Adds a wait for `wanted` that took `took`. The clock advances by that time without a jump, and not past `last`.
    pub fn waited(&self, wanted: Duration, took: Duration, last: u64) {
        let counts = took.min(wanted.saturating_add(JUMP));
        let milliseconds = u64::try_from(counts.as_millis()).unwrap_or(u64::MAX);
        self.not_before(self.now().saturating_add(milliseconds).min(last));
    }

    /// Sets the clock to `at`, unless it shows a later time.
    pub(crate) fn not_before(&self, at: u64) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_does_not_count() {
        let ms = Duration::from_millis;
        let clock = Clock::at(7);
        clock.waited(ms(50), ms(30), u64::MAX);
        clock.waited(ms(50), ms(60), 1000);
        assert_eq!(clock.now(), 97);
        clock.waited(ms(50), ms(3_600_000), u64::MAX);
        clock.waited(ms(50), ms(60), 0);
        assert_eq!(clock.now(), 97 + 50 + 500);
        assert_eq!(clock.until(1000), ms(353));
        clock.not_before(600);
        clock.not_before(2000);
        assert_eq!((clock.now(), clock.until(1000)), (2000, ms(0)));
    }
}
