//! The engines by name.

use std::fmt;
use std::str::FromStr;

/// A send engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineName {
    /// One `sendto` for each datagram: the baseline.
    Sendto,
    /// `sendmmsg`: many datagrams in one system call.
    Sendmmsg,
    /// `sendmmsg` with segmentation offload (`UDP_SEGMENT`) where a receiver gets several datagrams.
    Gso,
    /// `io_uring`: many sends in one system call.
    Uring,
    /// The kernel clones one datagram for each receiver, on the device's own way out. Needs
    /// programs that were installed on the device.
    TcBpf,
    /// The kernel broadcasts one frame to the device's driver, past its queues. Needs programs that
    /// were installed on the device.
    Xdp,
}

impl EngineName {
    /// Every engine, the baseline first.
    pub const ALL: [EngineName; 6] = [
        EngineName::Sendto,
        EngineName::Sendmmsg,
        EngineName::Gso,
        EngineName::Uring,
        EngineName::TcBpf,
        EngineName::Xdp,
    ];
    /// What [`EngineChoice::Auto`] tries, in this order.
    pub(crate) const BEST_FIRST: [EngineName; 3] =
        [EngineName::TcBpf, EngineName::Gso, EngineName::Sendmmsg];

    /// Whether the kernel makes the copies.
    pub fn clones(self) -> bool {
        matches!(self, EngineName::TcBpf | EngineName::Xdp)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Sendto => "sendto",
            EngineName::Sendmmsg => "sendmmsg",
            EngineName::Gso => "gso",
            EngineName::Uring => "uring",
            EngineName::TcBpf => "tc-bpf",
            EngineName::Xdp => "xdp",
        }
    }
}

/// Which engine is wanted: one by name, or the best that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// The cheapest that works here.
    Auto,
    /// This one or none.
    Named(EngineName),
}

/// The name of no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no send engine named {name:?}; choose {choices}")]
pub struct UnknownEngine {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub choices: String,
}

impl FromStr for EngineName {
    type Err = UnknownEngine;
    fn from_str(name: &str) -> Result<EngineName, UnknownEngine> {
        let known = EngineName::ALL.into_iter().find(|engine| engine.name() == name);
        known.ok_or_else(|| {
            let choices: Vec<&str> = EngineName::ALL.iter().map(|engine| engine.name()).collect();
            UnknownEngine { name: name.to_owned(), choices: choices.join(", ") }
        })
    }
}

impl FromStr for EngineChoice {
    type Err = UnknownEngine;
    fn from_str(name: &str) -> Result<EngineChoice, UnknownEngine> {
        match name {
            "auto" => Ok(EngineChoice::Auto),
            _ => name.parse().map(EngineChoice::Named).map_err(|unknown: UnknownEngine| {
                UnknownEngine { choices: format!("auto, {}", unknown.choices), ..unknown }
            }),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineChoice::Auto => f.pad("auto"),
            EngineChoice::Named(engine) => engine.fmt(f),
        }
    }
}
