//! What a data thread's turn reads from and sends through: its sockets.

use canopy_engines::Engine;
use canopy_net::{Clock, Outlet, Receiver, Retry, SendEngine, SendReport, ThreadSockets};
use canopy_relay::{Losses, Medium, SendBatch};
use canopy_wire::{MAX_DATAGRAM, Path, Time};
use std::io;
use std::mem;
use std::time::Duration;

/// Pieces of one receive call; with offload a piece is up to 64 KiB.
const RECEIVE_SLOTS: usize = 32;
const RECEIVE_SLOT_BYTES: usize = 65_535;
/// The most datagrams of strangers that one call brings.
const STRANGERS: usize = 64;

/// How often to see whether a full send buffer has room again.
const WRITABLE_EVERY: Duration = Duration::from_micros(500);

/// The sockets of one data thread, with what they need for a turn.
pub(crate) struct Sockets {
    pub(crate) sockets: ThreadSockets,
    outlet: Outlet<Engine>,
    clock: Clock,
    receiver: Receiver,
    strangers: Receiver,
    /// Whose datagrams are being handed out.
    is_with_strangers: bool,
    /// What the sockets had lost when it was last counted.
    lost: u32,
    strangers_lost: u32,
    /// What was sent, since the start.
    pub(crate) sent: SendReport,
    /// Time spent in the send engine.
    pub(crate) sending: Duration,
    /// Of that, what was counted as lost.
    counted: SendReport,
    /// When the turn began.
    now: Time,
}

impl Sockets {
    pub(crate) fn new(sockets: ThreadSockets, engine: Engine, clock: Clock) -> Sockets {
        Sockets {
            sockets,
            outlet: Outlet::new(engine),
            clock,
            receiver: Receiver::new(RECEIVE_SLOTS, RECEIVE_SLOT_BYTES),
            strangers: Receiver::new(STRANGERS, MAX_DATAGRAM + 1),
            is_with_strangers: false,
            lost: 0,
            strangers_lost: 0,
            sent: SendReport::default(),
            sending: Duration::ZERO,
            counted: SendReport::default(),
            now: Time::ZERO,
        }
    }

    /// A turn begins: what waits for a full queue is tried again.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
        if self.outlet.wants().is_some() {
            let before = self.clock.now();
            self.sent.add(self.outlet.retry(&self.sockets.data, now));
            self.sending += self.clock.now().since(before);
        }
    }

    /// When what waits for a full queue should be tried again.
    pub(crate) fn retry_at(&self) -> Option<Time> {
        self.outlet.wants().map(|wants| match wants {
            Retry::At(at) => at,
            Retry::Writable => self.clock.now() + WRITABLE_EVERY,
        })
    }

    /// Whether the engine sends in another way than its own.
    pub(crate) fn engine_has_stopped(&self) -> bool {
        self.outlet.engine().has_stopped()
    }
}

impl Medium for Sockets {
    type Error = io::Error;

    fn receive(&mut self, strangers: bool) -> io::Result<bool> {
        self.is_with_strangers = strangers;
        if strangers {
            self.strangers.fill(&self.sockets.strangers)
        } else {
            self.receiver.fill(&self.sockets.data)
        }
    }

    fn next(&mut self) -> Option<(Path, &mut [u8])> {
        if self.is_with_strangers {
            self.strangers.next(&self.sockets.strangers)
        } else {
            self.receiver.next(&self.sockets.data)
        }
    }

    fn send(&mut self, batch: &SendBatch) {
        let before = self.clock.now();
        self.sent.add(self.outlet.send(&self.sockets.data, self.now, batch));
        self.sending += self.clock.now().since(before);
    }

    fn losses(&mut self) -> Losses {
        let newly = |lost: u32, counted: &mut u32| lost.wrapping_sub(mem::replace(counted, lost));
        let counted = mem::replace(&mut self.counted, self.sent);
        let strangers = newly(self.sockets.strangers.lost(), &mut self.strangers_lost);
        Losses {
            receive_queue_full: newly(self.sockets.data.lost(), &mut self.lost).into(),
            strangers_queue_full: strangers.into(),
            send_queue_full: self.sent.dropped - counted.dropped,
            send_failed: self.sent.failed - counted.failed,
        }
    }
}
