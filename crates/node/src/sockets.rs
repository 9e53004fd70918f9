//! What a data thread's turn reads from and sends through: its sockets.

use canopy_engines::Engine;
use canopy_net::{
    Clock, Outlet, Receiver, Retry, SendEngine, SendReport, Socket, ThreadSockets, wait_readable,
};
use canopy_relay::{Inlet, Lanes, Losses, Medium, Ready, Received, SendBatch};
use canopy_wire::{Lane, MAX_DATAGRAM, Time};
use std::io;
use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pieces of one receive call; with offload a piece is up to 64 KiB.
const RECEIVE_SLOTS: usize = 32;
const RECEIVE_SLOT_BYTES: usize = 65_535;
/// The most datagrams of strangers that one call brings.
const STRANGERS: usize = 64;

/// What is believed at most of how long a datagram has waited to be read.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How often to see whether a full send buffer has room again.
const WRITABLE_EVERY: Duration = Duration::from_micros(500);

/// The sockets of one data thread, with what they need for a turn.
pub(crate) struct Sockets {
    pub(crate) sockets: ThreadSockets,
    outlet: Outlet<Engine>,
    clock: Clock,
    /// By inlet: what was received there and not handed out yet.
    receivers: Vec<Receiver>,
    /// By inlet: what the socket had lost when it was last counted.
    lost: [u32; Inlet::COUNT],
    /// Which sockets have something, if that was looked at since the last turn.
    ready: Option<u32>,
    /// What was sent, since the start.
    pub(crate) sent: SendReport,
    /// Time spent in the send engine.
    pub(crate) sending: Duration,
    /// The part of `sent` that has been counted already.
    counted: SendReport,
    /// When the turn began.
    now: Time,
}

impl Sockets {
    /// # Errors
    /// If the kernel cannot tell when datagrams arrive.
    pub(crate) fn new(sockets: ThreadSockets, engine: Engine, clock: Clock) -> io::Result<Sockets> {
        // For the round trips of links.
        sockets.lane(Lane::CONTROL).stamp_arrivals()?;
        // The memory of a lane that is not used is never touched.
        let of_lanes = Lane::all().map(|_| Receiver::new(RECEIVE_SLOTS, RECEIVE_SLOT_BYTES));
        let of_strangers = Receiver::new(STRANGERS, MAX_DATAGRAM + 1);
        let receivers = of_lanes.chain([of_strangers]).collect();
        Ok(Sockets {
            sockets,
            outlet: Outlet::new(engine),
            clock,
            receivers,
            lost: [0; Inlet::COUNT],
            ready: None,
            sent: SendReport::default(),
            sending: Duration::ZERO,
            counted: SendReport::default(),
            now: Time::ZERO,
        })
    }

    /// A turn begins: what waits for a full queue is tried again.
    pub(crate) fn begin(&mut self, now: Time) {
        self.now = now;
        if self.outlet.wants().is_some() {
            let before = self.clock.now();
            self.sent.add(self.outlet.retry(self.sockets.sending(), now));
            self.sending += self.clock.now().since(before);
        }
    }

    /// Waits until a socket has something to read, the waker was used, or `until` is reached.
    pub(crate) fn wait(&mut self, until: Option<Time>) -> io::Result<()> {
        self.ready = Some(self.sockets.wait_readable(&self.clock, until)?);
        Ok(())
    }

    /// Waits until someone sends something who has no session, the waker was used, or `until` is reached.
    pub(crate) fn wait_for_stranger(&self, until: Time) -> io::Result<()> {
        let ThreadSockets { strangers, .. } = &self.sockets;
        wait_readable(strangers, self.sockets.waker(), &self.clock, Some(until)).map(drop)
    }

    fn socket(&self, inlet: Inlet) -> &Socket {
        socket_of(&self.sockets, inlet)
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

    fn ready(&mut self) -> io::Result<Ready> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => self.sockets.look()?,
        };
        let has_some = |inlet: Inlet| ready & 1 << inlet.index() != 0;
        let lanes = Lane::all().filter(|lane| has_some(Inlet::Lane(*lane)));
        let lanes = lanes.fold(Lanes::NONE, Lanes::with);
        Ok(Ready { lanes, strangers: has_some(Inlet::Strangers) })
    }

    fn receive(&mut self, inlet: Inlet) -> io::Result<bool> {
        self.receivers[inlet.index()].fill(socket_of(&self.sockets, inlet))
    }

    fn next(&mut self, inlet: Inlet) -> Option<Received<'_>> {
        let (receivers, socket) = (&mut self.receivers, socket_of(&self.sockets, inlet));
        let (from, arrived, bytes) = receivers[inlet.index()].next_stamped(socket)?;
        let waited = arrived.map_or(Duration::ZERO, |arrived| unix_now().saturating_sub(arrived));
        Some(Received { from, waited: waited.min(LONGEST_WAIT), bytes })
    }

    fn send(&mut self, batch: &SendBatch) {
        let before = self.clock.now();
        self.sent.add(self.outlet.send(self.sockets.sending(), self.now, batch));
        self.sending += self.clock.now().since(before);
    }

    fn losses(&mut self) -> Losses {
        let newly = |lost: u32, counted: &mut u32| lost.wrapping_sub(mem::replace(counted, lost));
        let counted = mem::replace(&mut self.counted, self.sent);
        let mut lost = self.lost;
        let mut lost_at =
            |inlet: Inlet| u64::from(newly(self.socket(inlet).lost(), &mut lost[inlet.index()]));
        let strangers_queue_full = lost_at(Inlet::Strangers);
        let receive_queue_full = Lane::all().map(|lane| lost_at(Inlet::Lane(lane))).sum();
        self.lost = lost;
        Losses {
            receive_queue_full,
            strangers_queue_full,
            send_queue_full: self.sent.dropped - counted.dropped,
            send_failed: self.sent.failed - counted.failed,
        }
    }
}

/// Unix time. It may be set while the relay runs.
fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn socket_of(sockets: &ThreadSockets, inlet: Inlet) -> &Socket {
    match inlet {
        Inlet::Lane(lane) => sockets.lane(lane),
        Inlet::Strangers => &sockets.strangers,
    }
}
