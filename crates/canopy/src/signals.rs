//! The signals that tell a command to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT. From the moment of listening on none is missed.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens, in a tokio runtime.
    pub(crate) fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Returns on the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
