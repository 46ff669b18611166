//! The end that somebody asks for: Ctrl-C, or SIGTERM from a service manager.

use std::io;

/// Calls `then` in a thread of its own at the first Ctrl-C or SIGTERM. A second one ends the process at once, as it would have without this.
///
/// # Errors
/// If the system refuses.
pub fn on_stop(then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("stop".into()).spawn(move || {
        if runtime.block_on(asked()).is_ok() {
            std::thread::spawn(then);
            if runtime.block_on(asked()).is_ok() {
                std::process::exit(130);
            }
        }
    })?;
    Ok(())
}

#[cfg(unix)]
async fn asked() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn asked() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
