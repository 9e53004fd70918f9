//! One turn of a data thread: in which order it reads, thinks and sends, and how long it waits
//! afterwards. Pure: the daemon's threads and the simulator run the same.

use crate::relay::Relay;
use crate::rounds::{Lanes, Rounds};
use crate::timing::{Mode, READ_EVERY, READ_LITTLE_EVERY, next_part};
use canopy_batch::SendBatch;
use canopy_wire::{DropReason, Lane, Path, Time};
use core::time::Duration;

/// The most between two reads, as [`READ_EVERY`], after a read that brought much, so that receive buffers and logs of other data threads
/// hold what comes meanwhile.
const READ_MUCH_EVERY: Duration = Duration::from_millis(5);
/// What a read may bring, and the next still be put off: of the longest datagrams, a third of what
/// Linux grants a socket that may not ask for more.
const LITTLE: u64 = 64;
/// The same where the next read would come later than the one before: it is expected to bring as much more.
const LITTLE_OFTEN: u64 = 16;
/// Reads are as seldom as [`READ_LITTLE_EVERY`] only where at most so many have a session: should all begin to
/// send at once, the receive buffers hold it.
const FEW: u32 = 64;
/// How long reads stay frequent after a full receive buffer has lost something: it holds less than
/// was thought.
const HURRY: Duration = Duration::from_secs(10);
/// Receive calls of one turn, whose datagrams leave together. Also how often a turn takes what other
/// data threads passed, if that is more than can wait for one flush.
const MAX_RECEIVES: usize = 16;

/// One of the sockets that a data thread receives by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inlet {
    /// What sessions send that are received in this lane.
    Lane(Lane),
    /// What those send who have no session.
    Strangers,
}

impl Inlet {
    /// How many a data thread has.
    pub const COUNT: usize = Lane::COUNT as usize + 1;

    /// Its number, below [`Inlet::COUNT`]: a lane has its own.
    pub fn index(self) -> usize {
        match self {
            Inlet::Lane(lane) => lane.number().into(),
            Inlet::Strangers => Lane::COUNT.into(),
        }
    }
}

/// The inlets that have something to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The lanes of sessions that have something.
    pub lanes: Lanes,
    /// Whether the one of strangers has.
    pub strangers: bool,
}

/// What a turn needs from outside.
pub trait Medium {
    /// Why it cannot go on.
    type Error;

    /// Looks which inlets have something to read that was not received yet. Never waits.
    ///
    /// # Errors
    /// If nothing can be received any more.
    fn ready(&mut self) -> Result<Ready, Self::Error>;

    /// Receives what waits at an inlet, as much as fits; [`Medium::next`] then hands it out. Of
    /// strangers one call brings a few dozen at most. Returns whether more may wait.
    ///
    /// # Errors
    /// If nothing can be received any more.
    fn receive(&mut self, inlet: Inlet) -> Result<bool, Self::Error>;

    /// The next datagram that was received at an inlet. What is not taken in one turn is there in the
    /// next.
    fn next(&mut self, inlet: Inlet) -> Option<Received<'_>>;

    /// Sends a batch. Never waits: what is not taken now is kept for later, or lost and counted.
    fn send(&mut self, batch: &SendBatch);

    /// Called before and after each datagram is handled, for whoever keeps books on the relay.
    fn observe(&mut self, _relay: &Relay) {}

    /// What was lost since the last call.
    fn losses(&mut self) -> Losses;
}

/// A datagram that was received.
pub struct Received<'a> {
    /// Where it came from.
    pub from: Path,
    /// For how long it has waited to be read. Told in [`Lane::CONTROL`] only; zero elsewhere.
    pub waited: Duration,
    /// What it says. What is sealed is opened where it lies.
    pub bytes: &'a mut [u8],
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
    /// Until someone sends something who has no session, or until then, whatever else arrives.
    Stranger(Time),
    /// Until something arrives, or until then, if there is a then.
    Arrival(Option<Time>),
}

/// A relay in the rhythm of its turns.
pub struct Turn {
    relay: Relay,
    pace: Pace,
    /// Until then every read counts as one that brought much.
    hurries_until: Time,
    began: Time,
    rounds: Rounds,
    /// What those who have no session sent may wait still.
    strangers: bool,
    /// Datagrams and updates of other data threads that this read brought. Turns that follow at once
    /// because lanes have a backlog are one read.
    brought: u64,
}

/// When a data thread looks at its sockets again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// At every arrival, and when something is due.
    Arrivals,
    /// With traffic in periodic mode: at least so often, whatever arrives or is due before.
    Leisure(Duration),
}

impl Turn {
    /// The rhythm of a relay's mode.
    pub fn new(relay: Relay) -> Turn {
        Turn {
            relay,
            pace: Pace::Arrivals,
            hurries_until: Time::ZERO,
            began: Time::ZERO,
            rounds: Rounds::default(),
            strangers: false,
            brought: 0,
        }
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
        if !self.rounds.backlog().is_empty() {
            return Wait::Until(self.began);
        }
        match (self.pace, self.relay.reading()) {
            // Counted from when this turn began: one that took longer is followed by the next at
            // once. Timers wait for the read, or each hello of a link would be another wake-up; but what
            // limited receivers are sent is spaced by its own measure, and a comtree's tick need not end with a read.
            (Pace::Leisure(every), Mode::Periodic { tick }) => {
                let read = next_part(self.began, tick, every);
                let sooner = [self.relay.limited_due(), self.relay.flush_due()];
                let until = sooner.into_iter().flatten().fold(read, Time::min);
                // Whoever comes when all are quiet need not wait for them.
                if every == READ_LITTLE_EVERY { Wait::Stranger(until) } else { Wait::Until(until) }
            }
            _ => Wait::Arrival(self.relay.poll_timeout()),
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
        let taken = relay.counters().updates_taken;
        // 1. What other data threads want, and what they accepted.
        for _ in 0..MAX_RECEIVES {
            if relay.handle_siblings(now) {
                break;
            }
            relay.transmit(now, |batch| medium.send(batch));
        }
        // 2. Receive batch → check → tables → pending, lane by lane.
        self.brought += self.read_lanes(now, medium)?;
        // 3. Strangers come last, and only one receive batch of them: a flood of hellos may cost
        //    strangers their answer, never a session.
        let (mut more_strangers, mut strangers) = (false, 0);
        if core::mem::take(&mut self.strangers) {
            more_strangers = medium.receive(Inlet::Strangers)?;
            while handle_next(&mut self.relay, now, Inlet::Strangers, medium).is_some() {
                strangers += 1;
            }
        }
        let relay = &mut self.relay;
        // 4. Time.
        relay.handle_timeout(now);
        // 5. Pending → fan-out → send batch.
        relay.transmit(now, |batch| medium.send(batch));
        let losses = medium.losses();
        relay.count_drops(DropReason::ReceiveQueueFull, losses.receive_queue_full);
        relay.count_drops(DropReason::StrangersQueueFull, losses.strangers_queue_full);
        relay.count_drops(DropReason::SendQueueFull, losses.send_queue_full);
        relay.count_drops(DropReason::SendFailed, losses.send_failed);
        if losses.receive_queue_full + losses.strangers_queue_full > 0 {
            self.hurries_until = now + HURRY;
        }
        self.brought += relay.counters().updates_taken - taken + strangers;
        if self.rounds.backlog().is_empty() {
            let read = Read {
                brought: core::mem::take(&mut self.brought),
                has_strangers: strangers > 0,
                hurries: more_strangers || now < self.hurries_until,
            };
            self.pace = self.pace.after(&self.relay, read);
        }
        Ok(self.relay.take_wakes())
    }

    /// Reads the lanes in rounds, until all are empty or the turn is over: after so many receive
    /// calls, or a round in which several lanes had something. What waits for the flush must leave
    /// then, so that a flood does not make the others wait for its own. Returns how many datagrams
    /// have come.
    fn read_lanes<M: Medium>(&mut self, now: Time, medium: &mut M) -> Result<u64, M::Error> {
        let (mut calls, mut received) = (MAX_RECEIVES, 0);
        loop {
            // Looked at before each round: who was quiet may have something by now.
            let ready = medium.ready()?;
            self.rounds.wake(ready.lanes);
            self.strangers |= ready.strangers;
            let is_shared = self.rounds.backlog().are_several();
            if is_shared {
                calls = usize::MAX;
            }
            for lane in self.rounds.next_round() {
                received += self.read_lane(now, lane, &mut calls, medium)?;
            }
            if self.rounds.backlog().is_empty() || is_shared || calls == 0 {
                return Ok(received);
            }
        }
    }

    /// Reads a lane for a quantum, with so many receive calls at most. Returns how many datagrams
    /// have come.
    fn read_lane<M: Medium>(
        &mut self,
        now: Time,
        lane: Lane,
        calls: &mut usize,
        medium: &mut M,
    ) -> Result<u64, M::Error> {
        let Turn { relay, rounds, .. } = self;
        let (mut received, mut more) = (0, true);
        rounds.begin(lane);
        while rounds.lasts(lane) {
            if let Some(bytes) = handle_next(relay, now, Inlet::Lane(lane), medium) {
                received += 1;
                rounds.charge(lane, bytes);
                if relay.is_filling_up() {
                    relay.transmit(now, |batch| medium.send(batch));
                }
                continue;
            }
            if !more {
                rounds.emptied(lane);
                break;
            }
            if *calls == 0 {
                break;
            }
            *calls -= 1;
            more = medium.receive(Inlet::Lane(lane))?;
            // A publisher may react to a subscription that another data thread has just acknowledged.
            // So what the others told is read after the datagrams have been received and before they
            // are handled: it is there by then.
            relay.handle_control_of_siblings(now);
        }
        Ok(received)
    }
}

/// What a read brought.
struct Read {
    /// Datagrams, and updates of other data threads.
    brought: u64,
    /// Whether some were of those who have no session.
    has_strangers: bool,
    /// Whether more is known to wait, or was lost lately.
    hurries: bool,
}

impl Pace {
    /// How to go on after a read.
    fn after(self, relay: &Relay, read: Read) -> Pace {
        let Read { brought, has_strangers, hurries } = read;
        let is_periodic = relay.reading() != Mode::Immediate;
        if !is_periodic || (brought == 0 && !relay.is_collecting()) {
            return Pace::Arrivals;
        }
        let little = if self == Pace::Leisure(READ_MUCH_EVERY) { LITTLE_OFTEN } else { LITTLE };
        if hurries || brought > little {
            return Pace::Leisure(READ_MUCH_EVERY);
        }
        let may_read_seldom = relay.sessions() <= FEW && !has_strangers && !relay.is_limiting();
        let is_quiet = match self {
            Pace::Leisure(READ_LITTLE_EVERY) => true,
            Pace::Leisure(READ_EVERY) => brought <= LITTLE_OFTEN,
            _ => false,
        };
        Pace::Leisure(if may_read_seldom && is_quiet { READ_LITTLE_EVERY } else { READ_EVERY })
    }
}

/// Handles the next datagram that was received at an inlet. Returns how long it was, if there was
/// one.
#[inline]
fn handle_next<M: Medium>(
    relay: &mut Relay,
    now: Time,
    inlet: Inlet,
    medium: &mut M,
) -> Option<usize> {
    medium.observe(relay);
    let Received { from, waited, bytes } = medium.next(inlet)?;
    let len = bytes.len();
    relay.handle_late_datagram(now, waited, from, bytes);
    medium.observe(relay);
    Some(len)
}
