//! When the process is asked to stop.

use std::io;

use tokio::sync::oneshot;

/// Listens from now on; what it returns resolves at the first ctrl-c or SIGTERM. The second one ends the process at
/// once, whatever it does: nothing that was acknowledged is lost by that.
///
/// # Errors
/// When the system lets nobody listen.
pub(crate) fn asked_to_stop() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = Signals::new()?;
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(async move {
        signals.next().await;
        eprintln!("outlast: stopping once running work has had a few seconds to end; again to stop at once");
        // Refused when the server is stopping already, because its client left.
        let _ = stop.send(());
        signals.next().await;
        std::process::exit(130);
    });
    Ok(async {
        let _ = stopped.await;
    })
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}
