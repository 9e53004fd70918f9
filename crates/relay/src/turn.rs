//! One turn of a data thread: in which order it reads, thinks and sends, and how long it waits
//! afterwards. Pure: the daemon's threads and the simulator run the same.

use crate::relay::{Mode, Relay};
use canopy_batch::SendBatch;
use canopy_wire::{DropReason, Path, Time};
use core::time::Duration;

/// In periodic mode sockets are read at least this often, so that acks don't wait for the tick.
const READ_EVERY: Duration = Duration::from_millis(5);
/// Receive calls of one turn, whose datagrams leave together. Also how often a turn takes what other
/// data threads passed, if that is more than can wait for one flush.
const MAX_RECEIVES: usize = 16;

/// What a turn needs from outside.
pub trait Medium {
    /// Why it cannot go on.
    type Error;

    /// Receives what waits, as much as fits; [`Medium::next`] then hands it out. `strangers`
    /// chooses the socket of those who have no session, of which one call brings a few dozen at
    /// most. Returns whether more may wait.
    ///
    /// # Errors
    /// If nothing can be received any more.
    fn receive(&mut self, strangers: bool) -> Result<bool, Self::Error>;

    /// The next datagram that was received, which is opened where it lies, and where it came from.
    fn next(&mut self) -> Option<(Path, &mut [u8])>;

    /// Sends a batch. Never waits: what is not taken now is kept for later, or lost and counted.
    fn send(&mut self, batch: &SendBatch);

    /// Called before and after each datagram is handled, for whoever keeps books on the relay.
    fn observe(&mut self, _relay: &Relay) {}

    /// What was lost since the last call.
    fn losses(&mut self) -> Losses;
}

/// Datagrams that were lost outside the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Never read: the receive buffer was full.
    pub receive_queue_full: u64,
    /// The same, of those who have no session.
    pub strangers_queue_full: u64,
    /// Not sent: as much as can was waiting for the device already.
    pub send_queue_full: u64,
    /// Refused by the kernel for good.
    pub send_failed: u64,
}

/// What a data thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until then, whatever arrives.
    Until(Time),
    /// Until something arrives, or until then, if there is a then.
    Arrival(Option<Time>),
}

/// A relay in the rhythm of its turns.
pub struct Turn {
    relay: Relay,
    /// How often to read at leisure; `None` in immediate mode.
    read_every: Option<Duration>,
    /// Whether to read at leisure instead of at every arrival: with traffic in periodic mode.
    is_leisurely: bool,
    began: Time,
}

impl Turn {
    /// The rhythm of a relay's mode.
    pub fn new(relay: Relay) -> Turn {
        let read_every = match relay.mode() {
            Mode::Immediate => None,
            Mode::Periodic { tick } => Some(tick.min(READ_EVERY)),
        };
        Turn { relay, read_every, is_leisurely: false, began: Time::ZERO }
    }

    /// The relay.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// The relay.
    pub fn relay_mut(&mut self) -> &mut Relay {
        &mut self.relay
    }

    /// Whether to look at arrivals before the next turn is due: not if it reads at leisure.
    pub fn wait(&self) -> Wait {
        let due = self.relay.poll_timeout();
        match self.read_every.filter(|_| self.is_leisurely) {
            Some(read_every) => {
                // Counted from when this turn began: one that took longer is followed by the next
                // at once.
                let read_at = self.began.next_multiple(read_every);
                Wait::Until(due.map_or(read_at, |due| due.min(read_at)))
            }
            None => Wait::Arrival(due),
        }
    }

    /// Reads what has arrived, does what is due, sends. Returns which other data threads have
    /// something to take now, a bit for each.
    ///
    /// # Errors
    /// What the medium says.
    pub fn run<M: Medium>(&mut self, now: Time, medium: &mut M) -> Result<u64, M::Error> {
        self.began = now;
        let relay = &mut self.relay;
        // 1. What other data threads want, and what they accepted.
        for _ in 0..MAX_RECEIVES {
            if relay.handle_siblings(now) {
                break;
            }
            relay.transmit(now, |batch| medium.send(batch));
        }
        // 2. Receive batch → check → tables → pending. A publisher may react to a subscription that
        //    another data thread has just acknowledged. So what the others told is read after the
        //    datagrams have been received and before they are handled: it is there by then.
        let mut has_received = false;
        for _ in 0..MAX_RECEIVES {
            let more = medium.receive(false)?;
            relay.handle_control_of_siblings(now);
            while handle_next(relay, now, medium) {
                has_received = true;
                if relay.is_filling_up() {
                    relay.transmit(now, |batch| medium.send(batch));
                }
            }
            if !more {
                break;
            }
        }
        // 3. Strangers come last, and only one receive batch of them: a flood of hellos may cost
        //    strangers their answer, never a session.
        medium.receive(true)?;
        while handle_next(relay, now, medium) {
            has_received = true;
        }
        // 4. Time.
        relay.handle_timeout(now);
        // 5. Pending → fan-out → send batch.
        relay.transmit(now, |batch| medium.send(batch));
        let losses = medium.losses();
        relay.count_drops(DropReason::ReceiveQueueFull, losses.receive_queue_full);
        relay.count_drops(DropReason::StrangersQueueFull, losses.strangers_queue_full);
        relay.count_drops(DropReason::SendQueueFull, losses.send_queue_full);
        relay.count_drops(DropReason::SendFailed, losses.send_failed);
        self.is_leisurely = self.read_every.is_some() && (has_received || relay.is_collecting());
        Ok(relay.take_wakes())
    }
}

/// Handles the next datagram that was received. Returns whether there was one.
fn handle_next<M: Medium>(relay: &mut Relay, now: Time, medium: &mut M) -> bool {
    medium.observe(relay);
    let Some((from, datagram)) = medium.next() else { return false };
    relay.handle_datagram(now, from, datagram);
    medium.observe(relay);
    true
}
