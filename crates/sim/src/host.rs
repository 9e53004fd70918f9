//! The machine that the relay runs on: its sockets, its data threads, its restarts. Each thread runs
//! the very [`canopy_relay::Turn`] that the daemon's threads run.

use crate::scenario::Scenario;
use canopy_judge::{Books, Limits, Page, Seats};
use canopy_relay::{
    ADDRESS_REST, Budgets, Change, ComtreeConfig, Counters, Gate, GateLimits, Losses, Medium,
    Places, Relay, RelayConfig, SendBatch, Siblings, Turn, UnixTime, Wait,
};
use canopy_session::{Identity, Keyring};
use canopy_wire::{Class, Comtree, Path, Tag, Time, VERSION};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Datagrams that one receive call brings.
pub(crate) const RECEIVE_SLOTS: usize = 32;

/// When a run begins.
pub(crate) const UNIX_ZERO: UnixTime = UnixTime(1_800_000_000);

/// A datagram that waits in a data thread's socket.
pub(crate) struct Waiting {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Rc<[u8]>,
    /// The participant whose link it came by, and whether bits of it were flipped there.
    pub(crate) participant: Option<usize>,
    pub(crate) corrupted: bool,
}

/// One data thread.
pub(crate) struct Thread {
    pub(crate) turn: Turn,
    /// What waits in its socket, and in the one for strangers.
    pub(crate) inboxes: [VecDeque<Waiting>; 2],
    /// When its sockets are to be read next, if that is not at once.
    read_at: Time,
    busy_until: Time,
    /// The turn that was asked for.
    turn_at: Option<Time>,
}

/// What a turn of a data thread did.
#[derive(Default)]
pub(crate) struct Done {
    /// What was read, in order.
    pub(crate) read: Vec<Waiting>,
    /// The other data threads that have something to take.
    pub(crate) to_wake: Vec<usize>,
    /// What was sent, in order.
    pub(crate) sent: Vec<(SocketAddr, Rc<[u8]>)>,
    /// What must not be.
    pub(crate) broken: Vec<String>,
}

/// What a turn reads from and sends through, with the books on it.
struct Sockets<'a> {
    inboxes: &'a mut [VecDeque<Waiting>; 2],
    /// What the last receive call brought and was not handed out.
    received: VecDeque<Waiting>,
    /// The datagram at hand.
    opened: Vec<u8>,
    books: &'a mut Books,
    page: Page,
    /// What the counters were before the datagram at hand.
    before: Option<Counters>,
    done: Done,
}

impl Medium for Sockets<'_> {
    type Error = Infallible;

    fn receive(&mut self, strangers: bool) -> Result<bool, Infallible> {
        let inbox = &mut self.inboxes[usize::from(strangers)];
        let count = inbox.len().min(RECEIVE_SLOTS);
        self.received.extend(inbox.drain(..count));
        Ok(!inbox.is_empty())
    }

    fn next(&mut self) -> Option<(Path, &mut [u8])> {
        let Some(waiting) = self.received.pop_front() else {
            self.before = None;
            return None;
        };
        self.done.read.push(waiting);
        let waiting = self.done.read.last()?;
        // It is opened where it lies, and there may be copies of it on the way.
        self.opened.clear();
        self.opened.extend_from_slice(&waiting.bytes);
        Some((waiting.from.into(), &mut self.opened))
    }

    fn observe(&mut self, relay: &Relay) {
        let Some(before) = self.before.take() else {
            self.before = Some(relay.counters().clone());
            return;
        };
        let Some(Waiting { from, bytes, .. }) = self.done.read.last() else { return };
        let moved = (&before, relay.counters());
        self.done.broken.extend(self.books.handled(&mut self.page, *from, bytes, moved).err());
    }

    fn send(&mut self, batch: &SendBatch) {
        for transmit in batch.transmits() {
            let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
            if bytes.len() != transmit.len as usize {
                self.done.broken.push(format!("a send says {} bytes", transmit.len));
            }
            let datagrams = bytes.chunks(transmit.segment.max(1).into());
            self.done.sent.extend(datagrams.map(|datagram| (transmit.to.remote, datagram.into())));
        }
    }

    fn losses(&mut self) -> Losses {
        Losses::default()
    }
}

pub(crate) struct Host {
    rng: ChaCha8Rng,
    scenario: Scenario,
    comtrees: Vec<Comtree>,
    threads: Vec<Thread>,
    books: Books,
    /// Whose addresses are, in all its lives.
    seats: Seats,
    /// Its key is in a file.
    identity: Identity,
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
            threads: Vec::new(),
            books: Books::new(limits(scenario)),
            seats: Seats::new(ADDRESS_REST),
            identity: Identity::new([42; 32]),
            retired: Counters::default(),
            epoch: 1,
        };
        host.start();
        host
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What a datagram to or from the relay says; see [`Books::read`].
    pub(crate) fn read<'a>(&self, datagram: &'a [u8], from_relay: bool) -> Option<Cow<'a, [u8]>> {
        self.books.read(datagram, from_relay)
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
        for thread in &self.threads {
            sum.add(thread.turn.relay().counters());
        }
        sum
    }

    /// How many sessions, subscriptions and groups there are.
    pub(crate) fn remains(&self) -> [u32; 3] {
        let sum = |count: fn(&Relay) -> u32| {
            self.threads.iter().map(|thread| count(thread.turn.relay())).sum::<u32>()
        };
        [sum(Relay::sessions), sum(Relay::subscriptions), sum(Relay::groups)]
    }

    /// The relay comes up, knowing no one.
    pub(crate) fn start(&mut self) {
        self.epoch += 1;
        self.books = Books::new(limits(&self.scenario));
        let keys = Keyring::with_identity(self.rng.random::<Tag>(), self.identity.clone());
        let places = Places::new(self.scenario.max_sessions);
        let gate = Gate::new(GateLimits::default(), &[6; 16]);
        for siblings in Siblings::mesh(self.scenario.threads) {
            let table_key = self.rng.random::<Tag>();
            let relay = Relay::new(self.config(&places, &gate), siblings, keys.clone(), &table_key);
            self.threads.push(Thread::new(relay));
        }
    }

    /// The relay goes down with all that it knew, and with what waited in its sockets. Returns how
    /// many datagrams those were.
    pub(crate) fn stop(&mut self) -> usize {
        self.retired = self.counters();
        self.epoch += 1;
        let waited = |thread: Thread| thread.inboxes.iter().map(VecDeque::len).sum::<usize>();
        self.threads.drain(..).map(waited).sum()
    }

    pub(crate) fn drain(&mut self, now: Time) {
        for thread in &mut self.threads {
            // A drain is never refused.
            let _ = thread.turn.relay_mut().apply(now, Change::Drain);
        }
    }

    /// A datagram arrives at the socket of its data thread. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, now: Time, waiting: Waiting) -> Option<(usize, Time)> {
        let (number, strangers) = steer(&waiting.bytes, self.threads.len());
        let thread = &mut self.threads[number];
        thread.inboxes[usize::from(strangers)].push_back(waiting);
        thread.wants_to_read(now).map(|at| (number, at))
    }

    /// Whether the socket that a datagram is for holds another one.
    pub(crate) fn has_room(&self, bytes: &[u8]) -> bool {
        let (number, strangers) = steer(bytes, self.threads.len());
        let inbox = &self.threads[number].inboxes[usize::from(strangers)];
        inbox.len() < self.scenario.receive_queue
    }

    /// From now on no datagram is refused, and none delayed.
    pub(crate) fn heal(&mut self) {
        self.scenario.receive_queue = usize::MAX;
        self.scenario.stalls = 0.0;
    }

    /// A data thread is woken by another. Returns when it wants a turn.
    pub(crate) fn wake(&mut self, now: Time, number: usize) -> Option<(usize, Time)> {
        self.threads.get_mut(number)?.wants_to_read(now).map(|at| (number, at))
    }

    /// Returns when a data thread wants its next turn by itself.
    pub(crate) fn next_turn(&mut self, number: usize) -> Option<Time> {
        self.threads.get_mut(number)?.next_turn()
    }

    /// Whether the turn that is due was not replaced by an earlier one.
    pub(crate) fn is_due(&self, now: Time, number: usize) -> bool {
        self.threads.get(number).is_some_and(|thread| thread.is_due(now))
    }

    /// A data thread has its turn.
    pub(crate) fn turn(&mut self, now: Time, number: usize) -> Done {
        let thread = &mut self.threads[number];
        let stalls = self.scenario.stalls > 0.0 && self.rng.random_bool(self.scenario.stalls);
        let stall = if stalls { self.scenario.stall } else { Duration::ZERO };
        thread.begin_turn(now + self.scenario.turn + stall);
        let mut sockets = Sockets {
            inboxes: &mut thread.inboxes,
            received: VecDeque::new(),
            opened: Vec::new(),
            books: &mut self.books,
            page: Page::begin(thread.turn.relay()),
            before: None,
            done: Done::default(),
        };
        let Ok(to_wake) = thread.turn.run(now, &mut sockets);
        let Sockets { mut page, mut done, .. } = sockets;
        while let Some(keys) = thread.turn.relay_mut().poll_key_log() {
            let verdict = self.seats.opened(now, &keys);
            done.broken.extend(verdict.err());
            self.books.opened(keys);
        }
        while let Some(key) = thread.turn.relay_mut().poll_group_key_log() {
            self.books.made(&key);
        }
        let relay = thread.turn.relay();
        for (to, datagram) in &done.sent {
            let verdict = self.books.sends(&mut page, *to, datagram, relay.counters());
            done.broken.extend(verdict.err());
        }
        done.broken.extend(self.books.turn_ends(relay, &page).err());
        done.to_wake = (0..64).filter(|other| to_wake & 1 << other != 0).collect();
        thread.end_turn(now);
        let relay = thread.turn.relay();
        if relay.poll_timeout().is_some_and(|at| at <= now) {
            done.broken.push("the relay wants a turn although it just had one".into());
        }
        done
    }

    fn config(&self, places: &Places, gate: &Gate) -> RelayConfig {
        let downlink = self.scenario.downlink;
        let comtree =
            |comtree: &Comtree| ComtreeConfig { downlink, ..ComtreeConfig::new(*comtree, 1) };
        RelayConfig {
            mode: self.scenario.mode,
            comtrees: self.comtrees.iter().map(comtree).collect(),
            trust: None,
            origin: UNIX_ZERO,
            places: places.clone(),
            max_sessions: self.scenario.max_sessions,
            max_datagram: self.scenario.relay_takes,
            address_rest: ADDRESS_REST,
            life: Some(self.epoch),
            log_keys: true,
            limits: self.scenario.limits,
            tables: self.scenario.tables,
            budgets: Budgets::default(),
            gate: gate.clone(),
            smallest_set: self.scenario.smallest_set,
        }
    }
}

impl Thread {
    pub(crate) fn new(relay: Relay) -> Thread {
        Thread {
            turn: Turn::new(relay),
            inboxes: Default::default(),
            read_at: Time::ZERO,
            busy_until: Time::ZERO,
            turn_at: None,
        }
    }

    /// Something arrives, or another thread wakes it. Returns when that wants a turn.
    pub(crate) fn wants_to_read(&mut self, now: Time) -> Option<Time> {
        self.wants_turn(self.read_at.max(now))
    }

    /// Returns when it wants its next turn by itself.
    pub(crate) fn next_turn(&mut self) -> Option<Time> {
        match self.turn.wait() {
            Wait::Until(at) => self.wants_turn(at),
            // What was not read yet counts as arriving now.
            Wait::Arrival(_) if self.inboxes.iter().any(|inbox| !inbox.is_empty()) => {
                self.wants_turn(self.read_at)
            }
            Wait::Arrival(due) => self.wants_turn(due?),
        }
    }

    /// Whether the turn that is due was not replaced by an earlier one.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.turn_at == Some(now)
    }

    /// It has its turn, and no other before `busy_until`.
    pub(crate) fn begin_turn(&mut self, busy_until: Time) {
        self.turn_at = None;
        self.busy_until = busy_until;
    }

    pub(crate) fn end_turn(&mut self, now: Time) {
        self.read_at = match self.turn.wait() {
            Wait::Until(at) => at,
            Wait::Arrival(_) => now,
        };
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
}

fn limits(scenario: &Scenario) -> Limits {
    Limits {
        max_sessions: scenario.max_sessions,
        tables: scenario.tables,
        one_session: scenario.threads == 1,
    }
}

/// The data thread that a datagram is for, and whether its socket for strangers gets it, as the
/// kernel steers: by the number of its session, and by its class. What is too short for both goes to
/// the first.
pub(crate) fn steer(datagram: &[u8], threads: usize) -> (usize, bool) {
    let Some([first, number @ ..]) = datagram.first_chunk::<4>() else { return (0, false) };
    let number = number.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
    (number % threads, *first == VERSION | Class::Stranger as u8)
}
