//! How long a reader waits for a server: the time of a request, and the pauses before it is sent again.

use std::time::Duration;

/// Limits of time. By the defaults a reader gives up after 8 seconds on a server that refuses
/// connections, and after two minutes on one that accepts them and does not answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The number of times that a request is sent until somebody answers it.
    pub tries: u32,
    /// The pause after the first failed try. Each pause is twice as long as the one before.
    pub pause: Duration,
    /// The time that a server has to accept a connection.
    pub connect: Duration,
    /// The time that a server has for an answer without contents.
    pub answer: Duration,
    /// The contents that a server has to send in a second, in bytes, beyond that time.
    pub rate: u64,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience {
            tries: 6,
            pause: Duration::from_millis(250),
            connect: seconds(5),
            answer: seconds(20),
            rate: 1 << 16,
        }
    }
}

impl Patience {
    /// The time of a request whose answer has at most so many bytes.
    pub(crate) fn time(&self, bytes: u64) -> Duration {
        self.answer + Duration::from_secs(bytes / self.rate.max(1))
    }

    /// The pause after a failed try, from 0; `None` if it was the last one.
    pub(crate) fn pause_after(&self, tried: u32) -> Option<Duration> {
        (tried + 1 < self.tries).then(|| self.pause.saturating_mul(1 << tried.min(16)))
    }
}
