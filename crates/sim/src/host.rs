//! The machine that the relay runs on: its socket, its data threads, its restarts. It reads as the
//! real one does: at every arrival, but while updates wait for a tick at leisure.

use crate::scenario::{READ_EVERY, Scenario};
use canopy_judge::{Books, Limits, Page};
use canopy_relay::{Counters, Intake, Mode, Relay, RelayConfig};
use canopy_session::{Keyring, SessionsConfig};
use canopy_wire::{Comtree, Tag, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// A datagram that waits in a data thread's socket.
pub(crate) struct Waiting {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Rc<[u8]>,
    /// The participant whose link it came by, and whether bits of it were flipped there.
    pub(crate) participant: Option<usize>,
    pub(crate) corrupted: bool,
}

/// A datagram from one data thread to the others, with whom it came from.
pub(crate) type Handover = (SocketAddr, Rc<[u8]>);

/// One data thread.
struct Shard {
    relay: Relay,
    inbox: VecDeque<Waiting>,
    handovers: VecDeque<Handover>,
    /// When its socket is to be read next, if that is not at once.
    read_at: Time,
    busy_until: Time,
    /// The turn that was asked for.
    turn_at: Option<Time>,
}

/// What a turn of a data thread did.
#[derive(Default)]
pub(crate) struct Turn {
    /// What was read, in order.
    pub(crate) read: Vec<Waiting>,
    /// What the other data threads get.
    pub(crate) handovers: Vec<Handover>,
    /// What was sent, in order.
    pub(crate) sent: Vec<(SocketAddr, Rc<[u8]>)>,
    /// What must not be.
    pub(crate) broken: Vec<String>,
}

pub(crate) struct Host {
    rng: ChaCha8Rng,
    scenario: Scenario,
    comtrees: Vec<Comtree>,
    shards: Vec<Shard>,
    books: Books,
    /// The totals of relays that are no more.
    retired: Counters,
    /// Counts its starts and stops; even while it is up.
    epoch: u32,
}

impl Host {
    pub(crate) fn new(scenario: &Scenario, comtrees: Vec<Comtree>, rng: ChaCha8Rng) -> Host {
        let mut host = Host {
            rng,
            scenario: scenario.clone(),
            comtrees,
            shards: Vec::new(),
            books: Books::new(limits(scenario)),
            retired: Counters::default(),
            epoch: 1,
        };
        host.start();
        host
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn is_up(&self) -> bool {
        self.epoch.is_multiple_of(2)
    }

    pub(crate) fn restarts(&self) -> u32 {
        (self.epoch - 1) / 2
    }

    /// The totals of all data threads since the beginning.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = self.retired.clone();
        for shard in &self.shards {
            sum.add(shard.relay.counters());
        }
        sum
    }

    /// How many sessions, subscriptions and groups there are.
    pub(crate) fn remains(&self) -> [u32; 3] {
        let sum = |count: fn(&Relay) -> u32| {
            self.shards.iter().map(|shard| count(&shard.relay)).sum::<u32>()
        };
        [sum(Relay::sessions), sum(Relay::subscriptions), sum(Relay::groups)]
    }

    /// The relay comes up, knowing no one.
    pub(crate) fn start(&mut self) {
        self.epoch += 1;
        self.books = Books::new(limits(&self.scenario));
        let keys = Keyring::new(self.rng.random::<Tag>());
        for shard in 0..self.scenario.shards {
            let relay = Relay::new(self.config(shard), keys.clone(), &self.rng.random::<Tag>());
            self.shards.push(Shard::new(relay));
        }
    }

    /// The relay goes down with all that it knew, and with what waited in its socket. Returns how
    /// many datagrams those were.
    pub(crate) fn stop(&mut self) -> usize {
        self.retired = self.counters();
        self.epoch += 1;
        self.shards.drain(..).map(|shard| shard.inbox.len()).sum()
    }

    pub(crate) fn drain(&mut self, now: Time) {
        for shard in &mut self.shards {
            shard.relay.drain(now);
        }
    }

    /// A datagram arrives at the socket of its data thread. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, now: Time, waiting: Waiting) -> Option<(usize, Time)> {
        let number = steer(&waiting.bytes, self.shards.len());
        let shard = &mut self.shards[number];
        shard.inbox.push_back(waiting);
        shard.wants_to_read(now).map(|at| (number, at))
    }

    /// Whether the socket that a datagram is for holds another one.
    pub(crate) fn has_room(&self, bytes: &[u8]) -> bool {
        let shard = &self.shards[steer(bytes, self.shards.len())];
        shard.inbox.len() < self.scenario.receive_queue
    }

    /// From now on no datagram is refused, and none delayed.
    pub(crate) fn heal(&mut self) {
        self.scenario.receive_queue = usize::MAX;
        self.scenario.stalls = 0.0;
    }

    /// A datagram arrives from another data thread.
    pub(crate) fn arrive_handover(
        &mut self,
        now: Time,
        number: usize,
        handover: Handover,
    ) -> Option<(usize, Time)> {
        let shard = self.shards.get_mut(number)?;
        shard.handovers.push_back(handover);
        shard.wants_to_read(now).map(|at| (number, at))
    }

    /// Calls a data thread's timer by itself. Returns when it wants its next turn.
    pub(crate) fn next_turn(&mut self, number: usize) -> Option<Time> {
        let shard = self.shards.get_mut(number)?;
        let at = shard.relay.poll_timeout()?;
        shard.wants_turn(at)
    }

    /// Whether the turn that is due was not replaced by an earlier one.
    pub(crate) fn is_due(&self, now: Time, number: usize) -> bool {
        self.shards.get(number).is_some_and(|shard| shard.turn_at == Some(now))
    }

    /// A turn: reads all that waits, does what is due, sends.
    pub(crate) fn turn(&mut self, now: Time, number: usize) -> Turn {
        let mut turn = Turn::default();
        let shard = &mut self.shards[number];
        shard.turn_at = None;
        let stalls = self.scenario.stalls > 0.0 && self.rng.random_bool(self.scenario.stalls);
        let stall = if stalls { self.scenario.stall } else { Duration::ZERO };
        shard.busy_until = now + self.scenario.turn + stall;
        turn.read.extend(shard.inbox.drain(..));
        let mut page = Page::begin(&shard.relay);
        for Waiting { from, bytes, .. } in &turn.read {
            let before = shard.relay.counters().clone();
            if shard.relay.handle_datagram(now, *from, bytes) == Intake::Shared {
                turn.handovers.push((*from, bytes.clone()));
            }
            let moved = (&before, shard.relay.counters());
            turn.broken.extend(self.books.handled(&mut page, *from, bytes, moved).err());
        }
        for (from, bytes) in shard.handovers.drain(..) {
            let before = shard.relay.counters().clone();
            shard.relay.handle_handover(now, from, &bytes);
            let moved = (&before, shard.relay.counters());
            turn.broken.extend(self.books.handed_over(from, &bytes, moved).err());
        }
        shard.relay.handle_timeout(now);
        shard.transmit(now, &mut turn);
        for (to, datagram) in &turn.sent {
            let verdict = self.books.sends(&mut page, *to, datagram, shard.relay.counters());
            turn.broken.extend(verdict.err());
        }
        turn.broken.extend(self.books.turn_ends(&shard.relay, &page).err());
        let is_periodic = matches!(self.scenario.mode, Mode::Periodic { .. });
        if is_periodic && (!turn.read.is_empty() || shard.relay.is_collecting()) {
            shard.read_at = now.next_multiple(READ_EVERY);
        }
        if shard.relay.poll_timeout().is_some_and(|at| at <= now) {
            turn.broken.push("the relay wants a turn although it just had one".into());
            shard.busy_until = now + READ_EVERY;
        }
        turn
    }

    fn config(&self, shard: u16) -> RelayConfig {
        RelayConfig {
            mode: self.scenario.mode,
            sessions: SessionsConfig {
                comtrees: self.comtrees.clone(),
                site: 1,
                shard,
                shards: self.scenario.shards,
                max_sessions: self.scenario.max_sessions,
                limits: self.scenario.limits,
            },
            tables: self.scenario.tables,
            smallest_set: self.scenario.smallest_set,
        }
    }
}

impl Shard {
    fn new(relay: Relay) -> Shard {
        Shard {
            relay,
            inbox: VecDeque::new(),
            handovers: VecDeque::new(),
            read_at: Time::ZERO,
            busy_until: Time::ZERO,
            turn_at: None,
        }
    }

    fn wants_to_read(&mut self, now: Time) -> Option<Time> {
        self.wants_turn(self.read_at.max(now))
    }

    /// Asks for a turn, unless an earlier one is asked for already.
    fn wants_turn(&mut self, at: Time) -> Option<Time> {
        let at = at.max(self.busy_until);
        if self.turn_at.is_some_and(|turn_at| turn_at <= at) {
            return None;
        }
        self.turn_at = Some(at);
        Some(at)
    }

    fn transmit(&mut self, now: Time, turn: &mut Turn) {
        self.relay.transmit(now, |batch| {
            for transmit in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                if bytes.len() != transmit.len as usize {
                    turn.broken.push(format!("a send says {} bytes", transmit.len));
                }
                let datagrams = bytes.chunks(transmit.segment.max(1).into());
                turn.sent.extend(datagrams.map(|datagram| (transmit.to, datagram.into())));
            }
        });
    }
}

fn limits(scenario: &Scenario) -> Limits {
    Limits {
        max_sessions: scenario.max_sessions,
        tables: scenario.tables,
        one_session: scenario.shards == 1,
    }
}

/// The data thread that a datagram is for, as the kernel steers: by the endpoint of its source
/// address.
fn steer(datagram: &[u8], shards: usize) -> usize {
    match datagram.get(10..12) {
        Some(endpoint) => usize::from(u16::from_be_bytes([endpoint[0], endpoint[1]])) % shards,
        None => 0,
    }
}
