//! Send engines: ways of getting datagrams to many receivers.
//!
//! All do the same through [`SendEngine`]; they differ in what it costs and in what it needs.
//! User space is authoritative: an engine that cannot serve a receiver in its own way serves it
//! with plain sends, and counts it.

mod messages;
mod mmsg;
mod name;
mod retry;
mod sendto;
mod uring;

pub(crate) use messages::{SEGMENT_CONTROL_LEN, write_segment_control};
pub use mmsg::Mmsg;
pub use name::{EngineChoice, EngineName, UnknownEngine};
pub(crate) use retry::{Retries, may_be_reported};
pub use sendto::Sendto;
pub use uring::Uring;

use crate::Socket;
use crate::clone::{Cloner, ENGINE_FOLDER, SMALLEST_SET};
use crate::group::{Burst, Group, Refused};
use canopy_batch::SendBatch;
use std::io;
use std::path::Path;

/// What became of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it refused for good.
    pub failed: u64,
    /// How often a full queue was waited out.
    pub waits: u64,
    /// Of the datagrams sent, those that were copied in the kernel.
    pub cloned: u64,
    /// Datagrams that were sent one by one instead of in the engine's own way.
    pub fallbacks: u64,
}

impl SendReport {
    /// Adds another send's report.
    pub fn add(&mut self, other: SendReport) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.waits += other.waits;
        self.cloned += other.cloned;
        self.fallbacks += other.fallbacks;
    }
}

/// A way of getting datagrams to many receivers.
pub trait SendEngine {
    /// Sends the whole batch. A full queue is waited out on the socket; a receiver that the kernel
    /// refuses is counted and the others are served.
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport;

    /// Sends the burst to every member of the group, each member's datagrams in order.
    ///
    /// # Errors
    /// If the engine cannot serve this burst or this group at all; then nothing was sent.
    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused>;

    /// Whether it has come to send everything in another way than its own: what it was opened with
    /// is no longer there.
    fn has_stopped(&self) -> bool {
        false
    }
}

/// The engine that was chosen.
pub struct Engine {
    name: EngineName,
    why: String,
    inner: Box<dyn SendEngine + Send>,
}

/// An engine that does not work here, and what would make it.
#[derive(Debug, thiserror::Error)]
#[error("the send engine {engine} does not work here: {reason}")]
pub struct EngineUnavailable {
    /// Which.
    pub engine: EngineName,
    /// Why not, and the remedy.
    pub reason: String,
}

impl Engine {
    /// Opens the chosen engine for what `socket` sends, or with [`EngineChoice::Auto`] the
    /// cheapest that works. From now on the socket is told of a device queue that is full, where
    /// the kernel would say that it sent and drop the datagram.
    ///
    /// # Errors
    /// If the engine was named and does not work here.
    pub fn open(choice: EngineChoice, socket: &Socket) -> Result<Engine, EngineUnavailable> {
        Engine::open_in(Path::new(ENGINE_FOLDER), choice, socket)
    }

    /// [`Engine::open`] with the folder in which clone engines were installed.
    ///
    /// # Errors
    /// If the engine was named and does not work here.
    pub fn open_in(
        folder: &Path,
        choice: EngineChoice,
        socket: &Socket,
    ) -> Result<Engine, EngineUnavailable> {
        socket.report_errors();
        match choice {
            EngineChoice::Named(name) => {
                let inner = open(name, socket, folder)?;
                Ok(Engine { name, why: "asked for".to_owned(), inner })
            }
            EngineChoice::Auto => Ok(Engine::best(socket, folder)),
        }
    }

    fn best(socket: &Socket, folder: &Path) -> Engine {
        let mut passed_over = Vec::new();
        for name in EngineName::BEST_FIRST {
            match open(name, socket, folder) {
                Ok(inner) => {
                    let why = if passed_over.is_empty() {
                        "the cheapest there is".to_owned()
                    } else {
                        format!("the cheapest that works here; {}", passed_over.join("; "))
                    };
                    return Engine { name, why, inner };
                }
                Err(EngineUnavailable { engine, reason }) => {
                    passed_over.push(format!("{engine}: {reason}"));
                }
            }
        }
        let inner = Box::new(Sendto::new());
        Engine { name: EngineName::Sendto, why: passed_over.join("; "), inner }
    }

    /// Which it is.
    pub fn name(&self) -> EngineName {
        self.name
    }

    /// From how many receivers on it pays to send all of them the same bytes. None if it never does.
    pub fn smallest_set(&self) -> Option<u32> {
        self.name.clones().then_some(SMALLEST_SET as u32)
    }

    /// Why it was chosen.
    pub fn why(&self) -> &str {
        &self.why
    }
}

fn open(
    engine: EngineName,
    socket: &Socket,
    folder: &Path,
) -> Result<Box<dyn SendEngine + Send>, EngineUnavailable> {
    let unavailable = |error: io::Error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
            _ => "",
        };
        EngineUnavailable { engine, reason: format!("{error}{remedy}") }
    };
    Ok(match engine {
        EngineName::Sendto => Box::new(Sendto::new()),
        EngineName::Sendmmsg => Box::new(Mmsg::plain()),
        EngineName::Gso => Box::new(Mmsg::with_segments(socket).map_err(unavailable)?),
        EngineName::Uring => Box::new(Uring::new(socket).map_err(unavailable)?),
        EngineName::TcBpf | EngineName::Xdp => {
            Box::new(Cloner::open(engine, socket, folder).map_err(unavailable)?)
        }
    })
}

impl SendEngine for Engine {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        self.inner.send(socket, batch)
    }

    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused> {
        self.inner.send_to_group(socket, group, burst)
    }

    fn has_stopped(&self) -> bool {
        self.inner.has_stopped()
    }
}
