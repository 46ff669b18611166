//! Requests to end the process: Ctrl-C, or SIGTERM from a service manager.

use std::io;

/// Calls `then` in a thread of its own at the first Ctrl-C or SIGTERM after this function returns. A second signal ends the
/// process at once, as if this function had not been called.
///
/// # Errors
/// If the system refuses.
pub fn on_stop(then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The handlers are installed before the thread runs, which may take a while on a busy machine.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    std::thread::Builder::new().name("stop".into()).spawn(move || {
        if runtime.block_on(signals.next()) {
            std::thread::spawn(then);
            if runtime.block_on(signals.next()) {
                std::process::exit(130);
            }
        }
    })?;
    Ok(())
}

/// The signals that request the end.
#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    fn listen() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Waits for the next signal; false if there can be none.
    async fn next(&mut self) -> bool {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            asked = interrupt.recv() => asked.is_some(),
            asked = terminate.recv() => asked.is_some(),
        }
    }
}

/// The signals that request the end.
#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals(tokio::signal::windows::ctrl_c()?))
    }

    /// Waits for the next signal; false if there can be none.
    async fn next(&mut self) -> bool {
        self.0.recv().await.is_some()
    }
}
