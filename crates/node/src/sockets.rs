//! What a data thread's turn reads from and sends through: its sockets.

use canopy_engines::Engine;
use canopy_net::{Clock, Receiver, SendEngine, SendReport, Socket};
use canopy_relay::{Losses, Medium, SendBatch};
use canopy_wire::Path;
use std::io;
use std::time::Duration;

/// Pieces of one receive call; with offload a piece is up to 64 KiB.
const RECEIVE_SLOTS: usize = 32;
const RECEIVE_SLOT_BYTES: usize = 65_535;

/// The sockets of one data thread, with what they need for a turn.
pub(crate) struct Sockets {
    pub(crate) socket: Socket,
    engine: Engine,
    clock: Clock,
    receiver: Receiver,
    /// What the socket had lost when it was last counted.
    lost: u32,
    /// What was sent, since the start.
    pub(crate) sent: SendReport,
    /// Time spent in the send engine.
    pub(crate) sending: Duration,
    /// Failed sends that were counted.
    failed: u64,
}

impl Sockets {
    pub(crate) fn new(socket: Socket, engine: Engine, clock: Clock) -> Sockets {
        Sockets {
            socket,
            engine,
            clock,
            receiver: Receiver::new(RECEIVE_SLOTS, RECEIVE_SLOT_BYTES),
            lost: 0,
            sent: SendReport::default(),
            sending: Duration::ZERO,
            failed: 0,
        }
    }

    /// Whether the engine sends in another way than its own.
    pub(crate) fn engine_has_stopped(&self) -> bool {
        self.engine.has_stopped()
    }
}

impl Medium for Sockets {
    type Error = io::Error;

    fn receive(&mut self, strangers: bool) -> io::Result<bool> {
        if strangers {
            return Ok(false);
        }
        self.receiver.fill(&self.socket)
    }

    fn next(&mut self) -> Option<(Path, &[u8])> {
        self.receiver.next(&self.socket)
    }

    fn send(&mut self, batch: &SendBatch) {
        let before = self.clock.now();
        self.sent.add(self.engine.send(&self.socket, batch));
        self.sending += self.clock.now().since(before);
    }

    fn losses(&mut self) -> Losses {
        let lost = self.socket.lost();
        let newly_lost = lost.wrapping_sub(std::mem::replace(&mut self.lost, lost));
        let failed = self.sent.failed - std::mem::replace(&mut self.failed, self.sent.failed);
        Losses { receive_queue_full: newly_lost.into(), send_failed: failed, ..Losses::default() }
    }
}
