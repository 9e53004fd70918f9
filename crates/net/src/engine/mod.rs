//! Send engines: ways of getting datagrams to many receivers.
//!
//! All do the same through [`SendEngine`]; they differ in what it costs and in what it needs.
//! User space is authoritative: an engine that cannot serve a receiver in its own way serves it
//! with plain sends, and counts it.

mod control;
mod messages;
mod mmsg;
mod retry;
mod sendto;

pub use messages::{
    MESSAGES, Messages, SEGMENT_CONTROL_LEN, empty_message, segment_control, vector_of,
    write_segment_control,
};
pub use mmsg::Mmsg;
pub use retry::{Retries, is_full, may_be_reported};
pub use sendto::Sendto;

use crate::Socket;
use crate::group::{Burst, Group, Refused};
use canopy_batch::SendBatch;

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
