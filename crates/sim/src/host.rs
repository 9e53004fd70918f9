//! The machine that the relay runs on: its sockets, its data threads, its restarts. Each thread runs
//! the very [`canopy_relay::Turn`] that the daemon's threads run.

use crate::flood::FLOODED;
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;
use canopy_judge::{Books, Limits, Page, Seats, Secrets};
use canopy_relay::{
    ADDRESS_REST, Budget, Budgets, Change, ComtreeConfig, Counters, Gate, GateLimits, Inlet, Lanes,
    Losses, Medium, Notice, PathShare, Places, Ready, Received, Relay, RelayConfig, SendBatch,
    Siblings, Trust, Turn, UnixTime, Wait,
};
use canopy_session::{Identity, Keyring};
use canopy_wire::{Address, Class, Comtree, DropReason, Lane, SessionId, Tag, Time, VERSION};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::mem;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Datagrams that one receive call brings.
pub(crate) const RECEIVE_SLOTS: usize = 32;

/// When a run begins.
pub(crate) const UNIX_ZERO: UnixTime = UnixTime(1_800_000_000);

/// A datagram that waits in a data thread's socket.
pub(crate) struct Waiting {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Rc<[u8]>,
    /// When it arrived.
    pub(crate) at: Time,
    /// The participant whose link it came by, and whether bits of it were flipped there.
    pub(crate) participant: Option<usize>,
    pub(crate) corrupted: bool,
}

/// A datagram that a turn read.
pub(crate) struct Read {
    pub(crate) datagram: Waiting,
    /// It came too late for the relay to open it.
    pub(crate) is_too_late: bool,
    /// Updates and changes of subscriptions of it that were taken.
    pub(crate) updates: u64,
    pub(crate) changes: u64,
    /// What of it was dropped because its sender was over a limit, or there was no room to wait.
    pub(crate) policed: u64,
}

impl Read {
    pub(crate) fn new(datagram: Waiting) -> Read {
        Read { datagram, is_too_late: false, updates: 0, changes: 0, policed: 0 }
    }

    /// The counters moved by so much with it.
    pub(crate) fn moved(&mut self, before: &Counters, after: &Counters) {
        let policed = |counters: &Counters| -> u64 {
            POLICED.iter().map(|reason| counters.dropped(*reason)).sum()
        };
        self.updates = after.updates_in - before.updates_in;
        self.changes = after.subscription_changes - before.subscription_changes;
        self.policed = policed(after) - policed(before);
    }
}

/// The reasons for which somebody is policed.
const POLICED: [DropReason; 4] = [
    DropReason::OverBudget,
    DropReason::ComtreeOverBudget,
    DropReason::SubscribeRate,
    DropReason::PendingFull,
];

/// What waits in the sockets of a data thread, by [`Inlet::index`].
#[derive(Default)]
pub(crate) struct Inboxes {
    waiting: [VecDeque<Waiting>; Inlet::COUNT],
    /// How many of each were received, and not handed out yet.
    received: [usize; Inlet::COUNT],
}

impl Inboxes {
    pub(crate) fn push(&mut self, inlet: Inlet, waiting: Waiting) {
        self.waiting[inlet.index()].push_back(waiting);
    }

    pub(crate) fn len_of(&self, inlet: Inlet) -> usize {
        self.waiting[inlet.index()].len()
    }

    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn ready(&self) -> Ready {
        let has_more = |inlet: Inlet| self.len_of(inlet) > self.received[inlet.index()];
        let lanes = Lane::all().filter(|lane| has_more(Inlet::Lane(*lane)));
        let lanes = lanes.fold(Lanes::NONE, Lanes::with);
        Ready { lanes, strangers: has_more(Inlet::Strangers) }
    }

    /// Receives what waits at an inlet, as much as a call brings. Returns whether more waits.
    pub(crate) fn receive(&mut self, inlet: Inlet) -> bool {
        let count = self.len_of(inlet).min(RECEIVE_SLOTS);
        self.received[inlet.index()] = count;
        self.len_of(inlet) > count
    }

    pub(crate) fn next(&mut self, inlet: Inlet) -> Option<Waiting> {
        let received = &mut self.received[inlet.index()];
        *received = received.checked_sub(1)?;
        self.waiting[inlet.index()].pop_front()
    }
}

/// One data thread.
pub(crate) struct Thread {
    pub(crate) turn: Turn,
    /// What waits in each of its sockets.
    pub(crate) inboxes: Inboxes,
    /// What they had no room for since the last turn.
    pub(crate) losses: Losses,
    /// When its sockets are to be read next, if that is not at once; and when, if a stranger comes.
    read_at: Time,
    strangers_at: Time,
    pub(crate) busy_until: Time,
    /// The turn that was asked for.
    turn_at: Option<Time>,
}

/// What a turn of a data thread did.
#[derive(Default)]
pub(crate) struct Done {
    /// What was read, in order.
    pub(crate) read: Vec<Read>,
    /// The other data threads that have something to take.
    pub(crate) to_wake: Vec<usize>,
    /// What was sent, in order.
    pub(crate) sent: Vec<(SocketAddr, Rc<[u8]>)>,
    /// Who is there no more.
    pub(crate) left: Vec<(Comtree, Address)>,
    /// Whether a session was opened.
    pub(crate) has_opened: bool,
    /// What must not be.
    pub(crate) broken: Vec<String>,
}

/// What a turn reads from and sends through, with the books on it.
struct Sockets<'a> {
    /// When the turn began.
    now: Time,
    inboxes: &'a mut Inboxes,
    losses: Losses,
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

    fn ready(&mut self) -> Result<Ready, Infallible> {
        Ok(self.inboxes.ready())
    }

    fn receive(&mut self, inlet: Inlet) -> Result<bool, Infallible> {
        Ok(self.inboxes.receive(inlet))
    }

    fn next(&mut self, inlet: Inlet) -> Option<Received<'_>> {
        let Some(waiting) = self.inboxes.next(inlet) else {
            self.before = None;
            return None;
        };
        let is_too_late = self.books.is_too_late(&waiting.bytes);
        self.done.read.push(Read { is_too_late, ..Read::new(waiting) });
        let waiting = &self.done.read.last()?.datagram;
        // It is opened where it lies, and there may be copies of it on the way.
        self.opened.clear();
        self.opened.extend_from_slice(&waiting.bytes);
        let waited = self.now.since(waiting.at);
        Some(Received { from: waiting.from.into(), waited, bytes: &mut self.opened })
    }

    fn observe(&mut self, relay: &Relay) {
        let Some(before) = self.before.take() else {
            self.before = Some(relay.counters().clone());
            return;
        };
        let Some(read) = self.done.read.last_mut() else { return };
        read.moved(&before, relay.counters());
        let Waiting { from, bytes, .. } = &read.datagram;
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
        mem::take(&mut self.losses)
    }
}

pub(crate) struct Host {
    rng: ChaCha8Rng,
    scenario: Scenario,
    comtrees: Vec<Comtree>,
    threads: Vec<Thread>,
    books: Books,
    /// Those on its life before: some do not know yet that it is over.
    books_before: Option<Books>,
    secrets: Secrets,
    /// Whose tokens it asks for.
    trust: Option<Arc<Trust>>,
    /// A fault of its own.
    sabotage: Option<Sabotage>,
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
    pub(crate) fn new(
        scenario: &Scenario,
        comtrees: Vec<Comtree>,
        rng: ChaCha8Rng,
        (trust, sabotage): (Option<Arc<Trust>>, Option<Sabotage>),
    ) -> Host {
        let mut host = Host {
            rng,
            scenario: scenario.clone(),
            comtrees,
            threads: Vec::new(),
            books: Books::new(limits(scenario)),
            books_before: None,
            secrets: Secrets::default(),
            trust: None,
            sabotage: None,
            seats: Seats::new(ADDRESS_REST),
            identity: Identity::new([42; 32]),
            retired: Counters::default(),
            epoch: 1,
        };
        host.trust(Time::ZERO, trust, sabotage);
        host.start();
        host
    }

    /// Whom it believes from now on; perhaps with a fault of its own.
    pub(crate) fn trust(
        &mut self,
        now: Time,
        trust: Option<Arc<Trust>>,
        sabotage: Option<Sabotage>,
    ) {
        (self.trust, self.sabotage) = (trust, sabotage);
        let is_told = ![Sabotage::KeepRevoked, Sabotage::LetAllIn].map(Some).contains(&sabotage);
        let Some(trust) = self.trust.clone().filter(|_| is_told) else { return };
        for thread in &mut self.threads {
            let change = Change::Trust { trust: Arc::clone(&trust), origin: UNIX_ZERO };
            // It is never refused.
            let _ = thread.turn.relay_mut().apply(now, change);
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What a datagram to or from the relay says; see [`Books::read`].
    pub(crate) fn read<'a>(&self, datagram: &'a [u8], from_relay: bool) -> Option<Cow<'a, [u8]>> {
        self.books.read(datagram, from_relay)
    }

    /// The nonce of the session that a datagram is sealed for.
    pub(crate) fn sealed_for(&self, datagram: &[u8]) -> Option<u64> {
        self.books.sealed_for(datagram)
    }

    /// A participant sends a datagram.
    ///
    /// # Errors
    /// Nobody can read it, or it is not sealed with a number of its own and later than all before.
    pub(crate) fn said(&mut self, datagram: &[u8]) -> Result<(), String> {
        let is_read = self.books.said(datagram)?;
        let was_read = |books: &mut Books| books.said(datagram);
        let is_read = is_read || self.books_before.as_mut().map_or(Ok(false), was_read)?;
        is_read.then_some(()).ok_or_else(|| "a participant sent what nobody can read".into())
    }

    /// How often a side of a session went on with its next key.
    pub(crate) fn keys_changed(&self) -> u64 {
        let before = self.books_before.as_ref().map_or(0, Books::keys_changed);
        before + self.books.keys_changed()
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

    /// How many updates wait for those who may be sent so much only.
    pub(crate) fn waiting_updates(&self) -> u64 {
        self.threads.iter().map(|thread| thread.turn.relay().waiting_updates()).sum()
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
        let books = Books::new(limits(&self.scenario));
        self.books_before = Some(mem::replace(&mut self.books, books));
        let keys = Keyring::with_identity(self.rng.random::<Tag>(), self.identity.clone());
        let places = Places::new(self.scenario.max_sessions);
        // More than one ip may ask for come from the gateway's.
        let shares = self.scenario.shares_ip_port;
        let limits = if shares { GateLimits::NONE } else { GateLimits::default() };
        let gate = Gate::new(limits, &[6; 16]);
        let Scenario { threads, data_log_words, .. } = self.scenario;
        for siblings in Siblings::mesh_with(threads, data_log_words) {
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
        self.threads.drain(..).map(|thread| thread.inboxes.len()).sum()
    }

    pub(crate) fn drain(&mut self, now: Time) {
        for thread in &mut self.threads {
            // A drain is never refused.
            let _ = thread.turn.relay_mut().apply(now, Change::Drain);
        }
    }

    /// What a member may be sent and send from now on. Returns whether the relay knows it.
    pub(crate) fn set_budget(
        &mut self,
        now: Time,
        (comtree, address): (Comtree, Address),
        budget: Budget,
    ) -> bool {
        let times = if self.sabotage == Some(Sabotage::TwiceAsMany) { 2 } else { 1 };
        let budget = Budget { down_packets: budget.down_packets * times, ..budget };
        let change = Change::SetBudget { comtree, address, budget };
        let number = usize::from(change.thread(self.threads.len() as u16).unwrap_or(0));
        let thread = self.threads.get_mut(number);
        thread.is_some_and(|thread| thread.turn.relay_mut().apply(now, change).is_ok())
    }

    /// A datagram arrives at the socket of its data thread. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, waiting: Waiting) -> Option<(usize, Time)> {
        let (number, inlet) = self.steer(&waiting.bytes);
        self.threads[number].arrive(inlet, waiting).map(|at| (number, at))
    }

    fn steer(&self, bytes: &[u8]) -> (usize, Inlet) {
        let (number, inlet) = steer(bytes, self.threads.len());
        let is_one = self.sabotage == Some(Sabotage::OneLane);
        (number, if is_one { Inlet::Lane(Lane::of(FLOODED)) } else { inlet })
    }

    /// Whether the socket that a datagram is for holds another one. If not, its data thread hears of it
    /// when it reads.
    pub(crate) fn has_room_for(&mut self, bytes: &[u8]) -> bool {
        let (number, inlet) = self.steer(bytes);
        self.threads[number].has_room(inlet, self.scenario.receive_queue)
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
            now,
            inboxes: &mut thread.inboxes,
            losses: mem::take(&mut thread.losses),
            opened: Vec::new(),
            books: &mut self.books,
            page: Page::begin(thread.turn.relay()),
            before: None,
            done: Done::default(),
        };
        let Ok(to_wake) = thread.turn.run(now, &mut sockets);
        let Sockets { mut page, mut done, .. } = sockets;
        while let Some(keys) = thread.turn.relay_mut().poll_key_log() {
            let verdicts = [self.seats.opened(now, &keys), self.secrets.opened(&keys)];
            done.has_opened = true;
            done.broken.extend(verdicts.into_iter().filter_map(Result::err));
            self.books.opened(keys);
        }
        while let Some(notice) = thread.turn.relay_mut().poll_notice() {
            if let Notice::Left { comtree, address } = notice {
                done.left.push((comtree, address));
            }
        }
        while let Some(key) = thread.turn.relay_mut().poll_group_key_log() {
            self.books.made(&key);
        }
        if self.sabotage == Some(Sabotage::CountAgain) {
            let per_key = self.scenario.packets_per_key.count() as u32;
            for (_, datagram) in &mut done.sent {
                count_again(&self.books, per_key, datagram);
            }
        }
        let relay = thread.turn.relay();
        for (to, datagram) in &done.sent {
            let verdict = self.books.sends(&mut page, *to, datagram, relay.counters());
            done.broken.extend(verdict.err());
        }
        done.broken.extend(self.books.turn_ends(relay, &page).err());
        done.broken.extend(self.check_sessions().err());
        let thread = &mut self.threads[number];
        let per_datagram = self.scenario.floods.as_ref().map(|floods| floods.per_datagram);
        thread.busy_until =
            thread.busy_until + per_datagram.unwrap_or_default() * done.read.len() as u32;
        done.to_wake = (0..64).filter(|other| to_wake & 1 << other != 0).collect();
        thread.end_turn(now);
        let relay = thread.turn.relay();
        if relay.poll_timeout().is_some_and(|at| at <= now) {
            done.broken.push("the relay wants a turn although it just had one".into());
        }
        done
    }

    /// All data threads together hold no more than was proved to any of them.
    fn check_sessions(&self) -> Result<(), String> {
        let relays = || self.threads.iter().map(|thread| thread.turn.relay());
        let opened = relays().map(|relay| relay.counters().sessions_opened).sum();
        self.books.holds(opened, relays().map(Relay::sessions).sum())
    }

    /// What everybody may send.
    fn budgets(&self) -> Budgets {
        let budgets = match &self.scenario.floods {
            Some(_) if self.sabotage == Some(Sabotage::Unpoliced) => Budgets::NONE,
            floods => floods.as_ref().map_or(Budgets::default(), |floods| floods.budgets),
        };
        let asks_paths = self.scenario.asks_paths;
        let paths = if asks_paths { Budgets::default().paths } else { PathShare::Off };
        Budgets { paths, ..budgets }
    }

    fn config(&self, places: &Places, gate: &Gate) -> RelayConfig {
        let downlink = self.scenario.downlink;
        let comtree =
            |comtree: &Comtree| ComtreeConfig { downlink, ..ComtreeConfig::new(*comtree, 1) };
        RelayConfig {
            mode: self.scenario.mode,
            comtrees: self.comtrees.iter().map(comtree).collect(),
            trust: self.trust.clone().filter(|_| self.sabotage != Some(Sabotage::LetAllIn)),
            origin: UNIX_ZERO,
            places: places.clone(),
            max_sessions: self.scenario.max_sessions,
            max_datagram: self.scenario.relay_takes,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: Some(self.epoch),
            log_keys: true,
            packets_per_key: self.scenario.packets_per_key,
            limits: self.scenario.limits,
            tables: self.scenario.tables,
            budgets: self.budgets(),
            gate: gate.clone(),
            smallest_set: self.scenario.smallest_set,
        }
    }
}

impl Thread {
    pub(crate) fn new(relay: Relay) -> Thread {
        Thread {
            turn: Turn::new(relay),
            inboxes: Inboxes::default(),
            losses: Losses::default(),
            read_at: Time::ZERO,
            strangers_at: Time::ZERO,
            busy_until: Time::ZERO,
            turn_at: None,
        }
    }

    /// Another thread wakes it. Returns when that wants a turn.
    pub(crate) fn wants_to_read(&mut self, now: Time) -> Option<Time> {
        self.wants_turn(self.read_at.max(now))
    }

    /// Whether a socket that holds so much has room for a datagram. If not, the thread hears of it when it reads.
    pub(crate) fn has_room(&mut self, inlet: Inlet, holds: usize) -> bool {
        let has_room = self.inboxes.len_of(inlet) < holds;
        let lost = match inlet {
            Inlet::Strangers => &mut self.losses.strangers_queue_full,
            Inlet::Lane(_) => &mut self.losses.receive_queue_full,
        };
        *lost += u64::from(!has_room);
        has_room
    }

    /// A datagram arrives at one of its sockets. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, inlet: Inlet, waiting: Waiting) -> Option<Time> {
        let from = if inlet == Inlet::Strangers { self.strangers_at } else { self.read_at };
        let at = from.max(waiting.at);
        self.inboxes.push(inlet, waiting);
        self.wants_turn(at)
    }

    /// Returns when it wants its next turn by itself.
    pub(crate) fn next_turn(&mut self) -> Option<Time> {
        match self.turn.wait() {
            Wait::Stranger(_) if self.inboxes.len_of(Inlet::Strangers) > 0 => {
                self.wants_turn(self.strangers_at)
            }
            Wait::Until(at) | Wait::Stranger(at) => self.wants_turn(at),
            // What was not read yet counts as arriving now.
            Wait::Arrival(_) if self.inboxes.len() > 0 => self.wants_turn(self.read_at),
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
        [self.read_at, self.strangers_at] = match self.turn.wait() {
            Wait::Until(at) => [at, at],
            Wait::Stranger(at) => [at, now],
            Wait::Arrival(_) => [now, now],
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

/// Seals a datagram as if its number began from zero again with each key, and each key were the first.
fn count_again(books: &Books, per_key: u32, datagram: &mut Rc<[u8]>) {
    let number = datagram.get(4..8).and_then(|bytes| bytes.first_chunk());
    let number = number.map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let again = books.seal_as(datagram, true, number % per_key);
    if let Some(again) = again.filter(|_| number >= per_key) {
        *datagram = again.into();
    }
}

fn limits(scenario: &Scenario) -> Limits {
    Limits {
        max_sessions: scenario.max_sessions,
        tables: scenario.tables,
        one_session: scenario.threads == 1 && !scenario.shares_ip_port,
    }
}

/// The data thread that a datagram is for, and by which inlet it receives it, as the kernel steers:
/// by the number of its session, and by its class. What is too short for both goes to the strangers'
/// of the first.
pub(crate) fn steer(datagram: &[u8], threads: usize) -> (usize, Inlet) {
    let Some(head) = datagram.first_chunk::<4>() else { return (0, Inlet::Strangers) };
    let session = SessionId::new(u32::from_be_bytes(*head));
    let is_of_strangers = head[0] == VERSION | Class::Stranger as u8;
    let inlet = if is_of_strangers { Inlet::Strangers } else { Inlet::Lane(session.lane()) };
    (session.thread(threads as u16).into(), inlet)
}
