//! When the process is asked to stop.

use std::io;

use tokio::sync::oneshot;

use crate::text;

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
        text::note(format_args!(
            "outlast: stopping once running work has had a few seconds to end; again to stop at once"
        ));
        // Refused when the server is stopping already, because its client left.
        let _ = stop.send(());
        signals.next().await;
        std::process::exit(130);
    });
    Ok(async {
        let _ = stopped.await;
    })
}

/// What the process is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// By the person at the terminal.
    Interrupt,
    /// By another process.
    Terminate,
}

/// The signals that end a process which does not listen to them.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system lets nobody listen.
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

/// The signals that end a process which does not listen to them.
#[cfg(windows)]
pub(crate) struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system lets nobody listen.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    pub(crate) async fn next(&mut self) -> Signal {
        self.0.recv().await;
        Signal::Interrupt
    }
}
