//! A command that a program calls, in place of a person: the output goes to the caller, who may ask the command to stop.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiebreak_engine::cpu::kernel::Kernel;

/// The most lines that wait for a caller who fetches none.
const SAID_MAX: usize = 1 << 10;

/// The progress of work that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The amount that is done.
    pub done: u64,
    /// The whole; 0 until that is known.
    pub all: u64,
    /// The unit, or the name of the work.
    pub what: String,
    /// The news beside the amount, such as the loss.
    pub message: String,
}

/// The output of a command so far, and the wish that it stops. One thread runs the command, and others watch it.
#[derive(Default)]
pub struct Heard {
    stop: Arc<AtomicBool>,
    amount: Mutex<Option<Amount>>,
    said: Mutex<Vec<String>>,
    result: Mutex<Option<String>>,
    kernel: Option<Arc<dyn Kernel>>,
}

thread_local! {
    /// The caller of the command that this thread runs, if a program called it.
    static CALLER: RefCell<Option<Arc<Heard>>> = const { RefCell::new(None) };
}

/// The caller of the command that this thread runs; nothing for a command line.
pub fn caller() -> Option<Arc<Heard>> {
    CALLER.with(|caller| caller.borrow().clone())
}

/// The kernel of native products that the caller of this thread's command has, if it has one.
pub fn kernel() -> Option<Arc<dyn Kernel>> {
    caller().and_then(|caller| caller.kernel.clone())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the thread's caller back when it is dropped, also in a panic.
struct Before(Option<Arc<Heard>>);

impl Drop for Before {
    fn drop(&mut self) {
        CALLER.with(|caller| caller.replace(self.0.take()));
    }
}

impl Heard {
    /// A caller whose kernel computes the native products of the CPU engine in training.
    pub fn with_kernel(kernel: Option<Arc<dyn Kernel>>) -> Heard {
        Heard { kernel, ..Heard::default() }
    }

    /// Does work whose output this thread passes to the caller.
    pub(crate) fn during<T>(self: &Arc<Heard>, work: impl FnOnce() -> T) -> T {
        let _before = Before(CALLER.with(|caller| caller.replace(Some(self.clone()))));
        work()
    }

    /// The flag by which the caller asks for the end.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Asks for the end. Training ends after the step at hand with a checkpoint, and an audit with a report.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True if the caller asked for the end.
    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Takes a line for people.
    pub(crate) fn say(&self, line: String) {
        let mut said = locked(&self.said);
        if said.len() < SAID_MAX {
            said.push(line);
        }
    }

    /// Takes the result, as JSON. The last one counts.
    pub(crate) fn take_result(&self, json: String) {
        *locked(&self.result) = Some(json);
    }

    /// Notes how far the work is.
    pub(crate) fn note(&self, done: u64, all: u64, what: &str) {
        let mut amount = locked(&self.amount);
        match amount.as_mut().filter(|amount| amount.what == what) {
            Some(amount) => (amount.done, amount.all) = (done, all),
            None => *amount = Some(Amount { done, all, what: what.into(), message: String::new() }),
        }
    }

    /// Notes news beside the amount.
    pub(crate) fn note_message(&self, message: &str) {
        if let Some(amount) = locked(&self.amount).as_mut() {
            amount.message = message.into();
        }
    }

    /// The progress of the work, if it is counted.
    pub fn amount(&self) -> Option<Amount> {
        locked(&self.amount).clone()
    }

    /// The lines for people since the last call of this function.
    pub fn said(&self) -> Vec<String> {
        std::mem::take(&mut *locked(&self.said))
    }

    /// The result, if there is one by now.
    pub(crate) fn result(&self) -> Option<String> {
        locked(&self.result).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_there_during_the_work_and_gone_after_a_panic() {
        let heard = Arc::new(Heard::default());
        assert!(caller().is_none());
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            heard.during(|| {
                caller().unwrap().note(1, 2, "steps");
                caller().unwrap().note_message("loss 3");
                panic!("as planned");
            })
        }));
        assert!(worked.is_err() && caller().is_none());
        let amount = heard.amount().unwrap();
        assert_eq!((amount.done, amount.all, amount.message.as_str()), (1, 2, "loss 3"));
    }

    #[test]
    fn a_caller_who_fetches_nothing_costs_no_memory() {
        let heard = Heard::default();
        (0..2 * SAID_MAX).for_each(|line| heard.say(line.to_string()));
        assert_eq!((heard.said().len(), heard.said().len()), (SAID_MAX, 0));
    }
}
