//! Send engines: ways of getting one batch to its receivers.

use crate::{Mmsg, Sendto, Socket};
use canopy_relay::SendBatch;
use std::fmt;
use std::str::FromStr;

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it refused for good.
    pub failed: u64,
    /// How often a full queue was waited out.
    pub waits: u64,
}

impl SendReport {
    /// Adds another batch's report.
    pub fn add(&mut self, other: SendReport) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.waits += other.waits;
    }
}

/// A way of getting a batch to its receivers.
pub trait SendEngine {
    /// Sends the whole batch. A full queue is waited out on the socket; a receiver that the kernel
    /// refuses is counted and the others are served.
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport;
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineName {
    /// One `sendto` a datagram: the baseline.
    Sendto,
    /// `sendmmsg`, with segmentation offload (`UDP_SEGMENT`) where a receiver gets several
    /// datagrams.
    Sendmmsg,
}

/// The name of no engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEngine(String);

impl fmt::Display for UnknownEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no send engine named {:?}; choose sendmmsg or sendto", self.0)
    }
}

impl std::error::Error for UnknownEngine {}

impl FromStr for EngineName {
    type Err = UnknownEngine;
    fn from_str(name: &str) -> Result<EngineName, UnknownEngine> {
        match name {
            "sendto" => Ok(EngineName::Sendto),
            "sendmmsg" => Ok(EngineName::Sendmmsg),
            _ => Err(UnknownEngine(name.to_owned())),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineName::Sendto => "sendto",
            EngineName::Sendmmsg => "sendmmsg",
        })
    }
}

/// The engine that was chosen by name.
pub enum Engine {
    /// The baseline.
    Sendto(Sendto),
    /// The portable default.
    Mmsg(Box<Mmsg>),
}

impl Engine {
    /// The engine with this name.
    pub fn new(name: EngineName) -> Engine {
        match name {
            EngineName::Sendto => Engine::Sendto(Sendto::new()),
            EngineName::Sendmmsg => Engine::Mmsg(Box::default()),
        }
    }
}

impl SendEngine for Engine {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        match self {
            Engine::Sendto(engine) => engine.send(socket, batch),
            Engine::Mmsg(engine) => engine.send(socket, batch),
        }
    }
}
