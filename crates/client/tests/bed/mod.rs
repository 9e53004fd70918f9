//! What the tests run against: the relay that ships, on free loopback ports.

use canopy_node::{Command, NodeConfig, RunningRelay};
use canopy_session::SessionLimits;
use std::net::SocketAddr;
use std::time::Duration;

/// A relay for comtree 1. A session that is not left lasts longer than any test.
pub(crate) fn settings(threads: u16) -> NodeConfig {
    let lifetime = Duration::from_secs(3_600);
    NodeConfig {
        threads,
        max_sessions: 64,
        session_limits: SessionLimits { lifetime, ..SessionLimits::default() },
        // Nobody runs the clients while a test waits for the drain to end.
        drain: Duration::from_millis(50),
        ..NodeConfig::loopback()
    }
}

/// A relay; stops when it is dropped, without a word to its participants.
pub(crate) struct Relay {
    settings: NodeConfig,
    running: Option<RunningRelay>,
}

impl Relay {
    pub(crate) fn start(mut settings: NodeConfig) -> Relay {
        let running = RunningRelay::start(&settings).unwrap();
        settings.listen = running.address();
        Relay { settings, running: Some(running) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.settings.listen
    }

    /// Has it drain or stop; returns what another in its place needs.
    pub(crate) fn end(mut self, command: Command) -> NodeConfig {
        self.halt(command);
        self.settings.clone()
    }

    fn halt(&mut self, command: Command) {
        if let Some(running) = self.running.take() {
            running.watch().command(command);
            let ended = running.join();
            assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.halt(Command::Stop);
    }
}
