//! A network of relays: what `canopy lab net` starts, each relay a process of its own.

use super::Core;
use crate::Processors;
use crate::flag_value;
use crate::relay::cases::ModeName;
use crate::relay::server_command;
use anyhow::Context;
use canopy_net::{ask_to_end, end_with_parent, pin_thread};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout};
use std::time::Duration;

/// How many relays there are, and what they are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Joined to a line.
    pub(super) relays: u16,
    pub(super) core: Core,
    pub(super) mode: ModeName,
    /// Means nothing in immediate mode.
    pub(super) tick_ms: u16,
}

impl Layout {
    /// The tick, or zero in immediate mode.
    pub(super) fn tick(&self) -> Duration {
        match self.mode {
            ModeName::Immediate => Duration::ZERO,
            ModeName::Periodic => Duration::from_millis(self.tick_ms.into()),
        }
    }
}

/// Relays that are joined to a line, with one world over all of them. Ended when dropped.
pub(super) struct Network {
    lab: Child,
    /// Kept, so that what the lab says at its end does not fail.
    stdout: BufReader<ChildStdout>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) processes: Vec<u32>,
}

/// What the lab says when all links are up.
#[derive(Deserialize)]
struct Said {
    relays: Vec<SaidRelay>,
}

#[derive(Deserialize)]
struct SaidRelay {
    pid: u32,
    listen: SocketAddr,
}

impl Network {
    /// Starts the relays, all of them on one processor, and waits until their links are up.
    pub(super) fn start(layout: &Layout, processors: &Processors) -> anyhow::Result<Network> {
        let Layout { relays, core, mode, tick_ms } = *layout;
        let mut command = server_command()?;
        command.args(["lab", "net", "--json", "--shape", "line", "--threads", "1"]);
        command.args(["--relays", &relays.to_string(), "--core", &flag_value(core)]);
        command.args(["--mode", &flag_value(mode)]);
        if mode == ModeName::Periodic {
            command.args(["--tick-ms", &tick_ms.to_string()]);
        }
        // What a thread starts is where the thread is.
        pin_thread(processors.relay_on[0])?;
        let started = end_with_parent(&mut command).spawn();
        pin_thread(processors.load_on)?;
        let mut lab = started.context("cannot start the relays")?;
        let stdout = lab.stdout.take().context("the relays have no output")?;
        let mut network = Network {
            lab,
            stdout: BufReader::new(stdout),
            addresses: Vec::new(),
            processes: Vec::new(),
        };
        let mut line = String::new();
        network.stdout.read_line(&mut line)?;
        let said: Said = serde_json::from_str(&line)
            .context("the relays did not start; what they say above tells why")?;
        (network.addresses, network.processes) =
            said.relays.iter().map(|relay| (relay.listen, relay.pid)).unzip();
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It may have ended already. It ends its relays and leaves no file behind.
        let _ = ask_to_end(&self.lab);
        let _ = self.lab.wait();
    }
}
