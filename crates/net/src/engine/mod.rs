//! Send engines: ways of getting datagrams to many receivers.
//!
//! All of them do the same through [`SendEngine`]; they differ in what it costs and in what it
//! needs. User space is authoritative: an engine that cannot serve a receiver in its own way serves
//! it with plain sends, and counts it. No engine waits for anything.

mod errors;
mod messages;
mod mmsg;
mod sendto;
mod unsegmented;

pub use errors::{Errors, Verdict, may_be_reported};
pub use messages::{MESSAGES, Messages};
pub use mmsg::Mmsg;
pub use sendto::Sendto;
pub use unsegmented::Unsegmented;

use crate::socket::Socket;
use canopy_batch::{SendBatch, Unsent};

/// What became of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it refused for good.
    pub failed: u64,
    /// Datagrams that had to wait and for which there was no room to wait in.
    pub dropped: u64,
    /// How often a queue was full.
    pub waits: u64,
    /// How many of the datagrams sent were copied in the kernel.
    pub cloned: u64,
    /// Datagrams that were sent one by one instead of in the engine's own way.
    pub fallbacks: u64,
}

impl SendReport {
    /// Adds another send's report.
    pub fn add(&mut self, other: SendReport) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.dropped += other.dropped;
        self.waits += other.waits;
        self.cloned += other.cloned;
        self.fallbacks += other.fallbacks;
    }
}

/// Why the kernel takes no more at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The socket's send buffer is full; the socket becomes writable again.
    Buffer,
    /// The device's queue is full; nothing tells when it is not.
    Device,
}

/// What one call of [`SendEngine::send`] did.
#[must_use = "what was not taken must be offered again"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// What became of the datagrams that the kernel took or refused.
    pub report: SendReport,
    /// Why the others were not taken; None if there are none.
    pub full: Option<Full>,
}

impl Sent {
    /// Notes that nothing more is taken.
    pub fn stop(&mut self, full: Full) {
        self.full = Some(full);
        self.report.waits += 1;
    }
}

/// A way of getting datagrams to many receivers.
pub trait SendEngine {
    /// Sends as much of the batch as the kernel takes at once, and appends to `rest` what it did not
    /// take, in the order of the batch. It never waits.
    ///
    /// What a receiver gets is sent in order: nothing is sent to a receiver behind something that is
    /// in the rest. A receiver that the kernel refuses for good is counted and the others are served.
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent;

    /// Whether it has come to send everything in another way than its own, because what it was opened
    /// with is no longer there.
    fn has_stopped(&self) -> bool {
        false
    }
}
