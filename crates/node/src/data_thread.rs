//! One data thread: receive batch → relay → send batch, on one straight way.
//!
//! It takes no lock for a packet, allocates nothing after its start, and waits for its socket only.
//! The clone engines ask the kernel for routes and
//! hardware addresses here too, once for each receiver every ten seconds or when they change. Other
//! data threads reach it through bounded rings.

use super::{Command, NodeConfig, Shared, ThreadStatus};
use canopy_engines::Engine;
use canopy_net::{
    Clock, Outlet, Receiver, Retry, SendEngine, SendReport, ThreadSockets, sleep_until,
    thread_cpu_time,
};
use canopy_relay::{Intake, Mode, Relay};
use canopy_wire::{DropReason, MAX_DATAGRAM, Path, Time};
use rtrb::{Consumer, Producer, RingBuffer};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// In periodic mode the socket is read at least this often, so that acks don't wait for the tick.
const READ_EVERY: Duration = Duration::from_millis(5);
/// Pieces of one receive call; with offload a piece is up to 64 KiB.
const RECEIVE_SLOTS: usize = 32;
const RECEIVE_SLOT_BYTES: usize = 65_535;
/// Receive calls of one turn: what they bring leaves together.
const MAX_RECEIVES: usize = 16;
/// The most packets of strangers that a turn takes, after all others.
const STRANGERS: usize = 64;
/// Datagrams that wait in a ring between two data threads, and that are taken from it in a turn.
const RING: usize = 4096;
/// How often to see whether a full send buffer has room again.
const WRITABLE_EVERY: Duration = Duration::from_micros(500);
const STATUS_EVERY: Duration = Duration::from_millis(200);

/// A datagram on its way to another data thread.
struct Passed {
    from: SocketAddr,
    len: u16,
    bytes: [u8; MAX_DATAGRAM],
}

/// The rings to and from the other data threads, and how to wake them.
pub(super) struct Handover {
    to: Vec<(Producer<Passed>, Arc<Shared>)>,
    from: Vec<Consumer<Passed>>,
    /// Whether something was passed on in this turn.
    passed: bool,
}

impl Handover {
    /// For each of the threads its ends of the rings between all of them.
    pub(super) fn mesh(shared: &[Arc<Shared>]) -> Vec<Handover> {
        let empty = || Handover { to: Vec::new(), from: Vec::new(), passed: false };
        let mut ends: Vec<Handover> = shared.iter().map(|_| empty()).collect();
        for from in 0..shared.len() {
            for to in (0..shared.len()).filter(|to| *to != from) {
                let (producer, consumer) = RingBuffer::new(RING);
                ends[from].to.push((producer, Arc::clone(&shared[to])));
                ends[to].from.push(consumer);
            }
        }
        ends
    }

    /// Copies a datagram to every other thread; returns how many had no room.
    fn pass(&mut self, from: SocketAddr, datagram: &[u8]) -> u64 {
        self.passed = true;
        let mut full = 0;
        for (ring, _) in &mut self.to {
            let len = datagram.len() as u16;
            let mut passed = Passed { from, len, bytes: [0; MAX_DATAGRAM] };
            passed.bytes[..datagram.len()].copy_from_slice(datagram);
            full += u64::from(ring.push(passed).is_err());
        }
        full
    }

    fn wake_others(&mut self) {
        if std::mem::take(&mut self.passed) {
            fence(Ordering::SeqCst);
            for (_, shared) in &self.to {
                if shared.waiting.load(Ordering::Relaxed) {
                    shared.waker.wake();
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.from.iter().all(Consumer::is_empty)
    }
}

/// One data thread and all that it owns.
pub(super) struct DataThread {
    relay: Relay,
    sockets: ThreadSockets,
    clock: Clock,
    outlet: Outlet<Engine>,
    receiver: Receiver,
    strangers: Receiver,
    handover: Handover,
    shared: Arc<Shared>,
    /// In periodic mode, with traffic: read at leisure instead of at every arrival.
    leisurely: bool,
    /// How often at leisure; None in immediate mode.
    read_every: Option<Duration>,
    drain_limit: Duration,
    drain_until: Option<Time>,
    sent: SendReport,
    /// Time spent in the send engine.
    sending: Duration,
    /// What the socket had lost when it was last counted.
    lost: u32,
    /// The same of the socket for strangers.
    strangers_lost: u32,
    longest_turn: Duration,
    /// When the turn began.
    turn_at: Time,
    status_at: Time,
    /// Whether something has happened since the status was told.
    untold: bool,
}

impl DataThread {
    pub(super) fn new(
        relay: Relay,
        sockets: ThreadSockets,
        clock: Clock,
        engine: Engine,
        settings: &NodeConfig,
        shared: Arc<Shared>,
        handover: Handover,
    ) -> DataThread {
        DataThread {
            relay,
            sockets,
            clock,
            outlet: Outlet::new(engine),
            receiver: Receiver::new(RECEIVE_SLOTS, RECEIVE_SLOT_BYTES),
            strangers: Receiver::new(STRANGERS, MAX_DATAGRAM + 1),
            handover,
            shared,
            leisurely: false,
            read_every: match settings.mode {
                Mode::Immediate => None,
                Mode::Periodic { tick } => Some(tick.min(READ_EVERY)),
            },
            drain_limit: settings.drain,
            drain_until: None,
            sent: SendReport::default(),
            sending: Duration::ZERO,
            lost: 0,
            strangers_lost: 0,
            longest_turn: Duration::ZERO,
            turn_at: Time::ZERO,
            status_at: Time::ZERO,
            untold: true,
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        loop {
            self.wait()?;
            let now = self.clock.now();
            self.turn_at = now;
            // 1. receive batch → check → table → pending
            let received = self.receive(now)?;
            // 2. what other data threads accepted
            self.take_handovers(now);
            // 3. time
            self.relay.handle_timeout(now);
            // 4. pending → fan-out → send batch
            let (outlet, socket, sent) = (&mut self.outlet, &self.sockets.data, &mut self.sent);
            let (clock, sending) = (&self.clock, &mut self.sending);
            let before = *sent;
            if outlet.wants().is_some() {
                let began = clock.now();
                sent.add(outlet.retry(socket, now));
                *sending += clock.now().since(began);
            }
            self.relay.transmit(now, |batch| {
                let began = clock.now();
                sent.add(outlet.send(socket, now, batch));
                *sending += clock.now().since(began);
            });
            let after = self.sent;
            self.relay.count_drops(DropReason::SendFailed, after.failed - before.failed);
            self.relay.count_drops(DropReason::SendQueueFull, after.dropped - before.dropped);
            self.handover.wake_others();
            // 5. now and then: commands and status
            self.leisurely = self.read_every.is_some() && (received || self.relay.is_collecting());
            let done = self.clock.now();
            self.longest_turn = self.longest_turn.max(done.since(now));
            if self.attend(done) {
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let due = self.relay.poll_timeout();
        let retry = self.outlet.wants().map(|wants| match wants {
            Retry::At(at) => at,
            Retry::Writable => self.clock.now() + WRITABLE_EVERY,
        });
        if let Some(read_every) = self.read_every.filter(|_| self.leisurely) {
            // Counted from when this turn began: one that took longer is followed by the next at once.
            let read_at = self.turn_at.next_multiple(read_every);
            let until = [due, retry, Some(read_at)].into_iter().flatten().min();
            sleep_until(&self.clock, until.unwrap_or(read_at));
            return Ok(());
        }
        // An empty relay that has told how it stands sleeps until it is woken.
        let status = self.untold.then_some(self.status_at);
        let until = [due, retry, status, self.drain_until].into_iter().flatten().min();
        self.shared.waiting.store(true, Ordering::Relaxed);
        // Either this thread sees what was passed, or the passing thread sees that this one waits.
        fence(Ordering::SeqCst);
        if self.handover.is_empty() {
            self.sockets.wait_readable(&self.shared.waker, &self.clock, until)?;
        }
        self.shared.waiting.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn receive(&mut self, now: Time) -> anyhow::Result<bool> {
        let (relay, handover) = (&mut self.relay, &mut self.handover);
        let mut received = false;
        let mut take = |from: Path, datagram: &[u8]| {
            received = true;
            if relay.handle_datagram(now, from.remote, datagram) == Intake::Shared {
                let full = handover.pass(from.remote, datagram);
                relay.count_drops(DropReason::HandoverFull, full);
            }
        };
        for _ in 0..MAX_RECEIVES {
            if !self.receiver.receive(&self.sockets.data, &mut take)? {
                break;
            }
        }
        self.strangers.receive(&self.sockets.strangers, &mut take)?;
        let newly = |lost: u32, counted: &mut u32| lost.wrapping_sub(mem::replace(counted, lost));
        let lost = newly(self.sockets.data.lost(), &mut self.lost);
        relay.count_drops(DropReason::ReceiveQueueFull, lost.into());
        let lost = newly(self.sockets.strangers.lost(), &mut self.strangers_lost);
        relay.count_drops(DropReason::StrangersQueueFull, lost.into());
        Ok(received)
    }

    fn take_handovers(&mut self, now: Time) {
        for ring in &mut self.handover.from {
            for _ in 0..RING {
                let Ok(passed) = ring.pop() else { break };
                self.relay.handle_handover(now, passed.from, &passed.bytes[..passed.len.into()]);
            }
        }
    }

    /// Follows commands and tells the status. Returns whether to stop.
    fn attend(&mut self, now: Time) -> bool {
        let command = self.shared.command();
        if command == Command::Drain && self.drain_until.is_none() {
            self.relay.drain(now);
            self.drain_until = Some(now + self.drain_limit);
        }
        let drained =
            self.drain_until.is_some_and(|until| now >= until || self.relay.sessions() == 0);
        let stop = command == Command::Stop || drained;
        self.untold = true;
        if stop || now >= self.status_at {
            self.status_at = now + STATUS_EVERY;
            self.tell_status(stop);
        }
        stop
    }

    fn tell_status(&mut self, at_any_cost: bool) {
        let slot = if at_any_cost {
            self.shared.status.lock().ok()
        } else {
            // Someone is reading: tell it next time.
            self.shared.status.try_lock().ok()
        };
        if let Some(mut slot) = slot {
            self.untold = false;
            *slot = ThreadStatus {
                at: self.clock.now(),
                counters: self.relay.counters().clone(),
                sessions: self.relay.sessions(),
                subscriptions: self.relay.subscriptions(),
                groups: self.relay.groups(),
                sent: self.sent,
                sending: self.sending,
                cpu: thread_cpu_time(),
                longest_turn: std::mem::take(&mut self.longest_turn),
                engines_stopped: self.outlet.engine().has_stopped().into(),
            };
        }
    }
}
