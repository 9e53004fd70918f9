//! The relay of one data thread: verbs over ports, subscriptions and fan-out.

mod answers;
mod apply;
mod branches;
mod config;
mod doubling;
mod downstream;
mod intake;
mod joining;
mod keys;
mod leaving;
mod limits;
mod links;
mod membership;
mod overlay;
mod paths;
mod portable;
mod rights;
mod routing;
mod shaping;
mod standing;
mod subscribe;
mod succeeding;
mod threads;
mod upstream;

use crate::access::{Conducts, Granted, TokenId, Trust};
use crate::bucket::{Bucket, Rate};
use crate::budget_parts::BudgetParts;
use crate::comtrees::{ComtreeStatus, Comtrees};
use crate::counters::Counters;
use crate::dismissals::Dismissals;
use crate::fanout::{Fanout, FlushCounts, Tables};
use crate::flush_queues::{FlushQueues, OWN};
use crate::gate::{Counted, Gate};
use crate::index::{NONE, PortIndex};
use crate::meters::{Budgets, Meters};
use crate::path::Paths;
use crate::pending::{Audience, MAX_PENDING_BYTES, Pending};
use crate::places::ThreadPlaces;
use crate::ports::Ports;
use crate::replies::{Replies, STRANGERS};
use crate::siblings::Siblings;
use crate::subscriptions::{Most, SubscriptionTable};
use crate::thin::Thinning;
use crate::timing::Mode;
use crate::told::Told;
use canopy_batch::SendBatch;
use canopy_session::{KeyedState, Keyring, LoggedKeys, MAX_LINKS, SessionIndex, Sessions, derive};
use canopy_token::UnixTime;
use canopy_wire::{
    Class, Comtree, DropReason, GroupKey, Kind, Packet, Path, Sealed, Tag, Time, WireError,
};
pub use config::{Notice, RelayConfig};
use core::net::IpAddr;
use core::time::Duration;
use links::Link;
use overlay::Overlay;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Expired sessions and subscriptions are looked for this often, a part of the tables each time.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Every session is looked at once a second, every subscription once in ten.
const SESSION_SWEEPS: u32 = 10;
const SUBSCRIPTION_SWEEPS: u32 = 100;
/// Every route is looked at once in ten seconds.
const ROUTE_SWEEPS: usize = 100;
/// Ports beside those of participants: branches, other data threads, second memberships.
const MORE_PORTS: u32 = 4096;
/// Notices that wait to be fetched; later ones are not kept.
const MAX_NOTICES: usize = 256;
/// Connects that are remembered as passed to another data thread, the latest ones.
const MAX_PASSED_ON: usize = 512;
/// Handshakes that fail, a second: beyond, only who comes from a quiet prefix is let in.
const FAILED_HANDSHAKES: Rate = Rate::new(1000, 1000);
/// Told to the other data threads of who is gone: 1,000 a second, and what a moment brings.
pub(super) const GONE: Rate = Rate::new(1000, 64);
/// Verdicts, and tokens that are used, that wait until the other data threads can be told.
const MAX_UNSAID: usize = 1024;
/// Addresses that can be muted at a time.
const MAX_MUTED: usize = 64;

/// The data plane of one data thread. A relay has one for each core; together they are a meshed
/// core (federated games §3.1): each serves its own participants, and passes what they publish to
/// those of the others that listen, which never pass it on.
pub struct Relay {
    subscription_lifetime: Duration,
    most_of_participant: Most,
    max_datagram: u16,
    /// The suites that the processor has no instructions for.
    slow_suites: u8,
    trust: Option<Arc<Trust>>,
    origin: UnixTime,
    /// The members by their tokens, and what servers have said of their bearers.
    by_token: BTreeMap<TokenId, PortIndex>,
    conducts: Conducts,
    dismissals: Dismissals,
    /// What the last token granted.
    granted: Option<Arc<Granted>>,
    /// What the other data threads have not been told of tokens yet.
    unsaid: VecDeque<Told<'static>>,
    /// The port that was last looked at for a token that has ended.
    token_sweep: PortIndex,
    places: ThreadPlaces,
    comtrees: Comtrees,
    sessions: Sessions,
    ports: Ports,
    links: Vec<Link>,
    links_looked_at: Time,
    /// How long the datagram at hand had waited to be read.
    waited: Duration,
    /// From which the calls of links draw.
    call_seed: [u8; 32],
    table: SubscriptionTable,
    overlay: Overlay,
    siblings: Siblings,
    /// What waits for a flush.
    queues: FlushQueues,
    fanout: Fanout,
    thinning: Thinning,
    batch: SendBatch,
    replies: Replies,
    replies_to_strangers: Replies,
    strangers: Bucket,
    turned_away: Bucket,
    failed_handshakes: Bucket,
    over_limit_notes: Bucket,
    budgets: Budgets,
    meters: Meters,
    budget_parts: BudgetParts,
    paths: Paths,
    gate: Gate,
    /// The branches whose shares of their links have just changed.
    shares_changed: Vec<PortIndex>,
    /// By session: where it was counted when it was opened.
    counted: Vec<Counted>,
    /// By nonce and path: connects that were passed to another data thread.
    passed_on: VecDeque<(u64, Path)>,
    counters: Counters,
    notices: VecDeque<Notice>,
    muted: Vec<(IpAddr, Time)>,
    unreachable: Vec<IpAddr>,
    owners: KeyedState,
    /// How fast senders on other data threads are told of who is gone.
    gone: Bucket,
    sweep_at: Option<Time>,
    /// When there is something to do about group keys by itself.
    keys_at: Option<Time>,
    round: keys::Round,
    is_draining: bool,
    /// While draining: the next session to be told.
    notify: SessionIndex,
}

impl Relay {
    /// An empty relay. `keys` are shared by its data threads, `table_key` seeds this one's tables.
    /// Reserves all the memory that its limits can ask for; pages are touched as they fill.
    pub fn new(config: RelayConfig, siblings: Siblings, keys: Keyring, table_key: &Tag) -> Relay {
        let (thread, threads) = (siblings.thread(), siblings.threads());
        let path_marks = siblings.path_marks();
        let sibling_ports = if threads > 1 { threads } else { 0 };
        let max_ports = config.max_sessions.saturating_add(MORE_PORTS);
        let max_pairs = config.max_pairs(max_ports);
        let sessions = config.sessions(&siblings);
        let share = config.share(&siblings, table_key);
        let mut relay = Relay {
            subscription_lifetime: config.limits.subscription,
            most_of_participant: config.most_of_participant(),
            max_datagram: config.max_datagram,
            slow_suites: config.slow_suites,
            trust: config.trust,
            origin: config.origin,
            by_token: BTreeMap::new(),
            conducts: Conducts::default(),
            dismissals: Dismissals::default(),
            granted: None,
            unsaid: VecDeque::new(),
            token_sweep: 0,
            places: ThreadPlaces::new(config.places, threads),
            comtrees: Comtrees::new(share, table_key),
            sessions: Sessions::new(sessions, keys, table_key),
            ports: Ports::new(sibling_ports, config.max_sessions + MAX_LINKS, max_ports),
            links: Vec::new(),
            links_looked_at: Time::ZERO,
            waited: Duration::ZERO,
            call_seed: derive(table_key, b"canopy calls"),
            table: SubscriptionTable::new(config.tables, sibling_ports, max_ports, table_key),
            overlay: Overlay::new(config.tables.max_routes, table_key),
            siblings,
            queues: FlushQueues::new(config.mode, max_ports),
            fanout: Fanout::new(max_ports, max_pairs, config.smallest_set),
            thinning: Thinning::new(config.mode, config.tables.max_flow_pairs),
            batch: SendBatch::with_room(2 * MAX_PENDING_BYTES),
            replies: Replies::new(),
            replies_to_strangers: Replies::new(),
            strangers: Bucket::default(),
            turned_away: Bucket::default(),
            failed_handshakes: Bucket::default(),
            over_limit_notes: Bucket::default(),
            budgets: config.budgets,
            budget_parts: BudgetParts::new(thread, threads),
            meters: Meters::new(max_ports, config.budgets.subscription_changes),
            paths: Paths::new(max_ports, path_marks, thread),
            gate: config.gate,
            shares_changed: Vec::new(),
            counted: Vec::with_capacity(config.max_sessions as usize),
            passed_on: VecDeque::with_capacity(MAX_PASSED_ON),
            counters: Counters::default(),
            notices: VecDeque::with_capacity(MAX_NOTICES),
            muted: Vec::with_capacity(MAX_MUTED),
            unreachable: Vec::with_capacity(MAX_MUTED),
            owners: KeyedState::new(table_key),
            gone: Bucket::default(),
            sweep_at: None,
            keys_at: None,
            round: keys::Round::FIRST,
            is_draining: false,
            notify: 0,
        };
        if config.log_keys {
            relay.comtrees.key_maker.log();
        }
        for comtree in config.comtrees {
            // Which of them it could not take, its owner sees in `comtrees`.
            let _ = relay.add_comtree(&comtree);
        }
        relay
    }

    /// By which mode sockets are read: of those of its comtrees the one that waits the least.
    pub(crate) fn reading(&self) -> Mode {
        self.queues.reading()
    }

    /// When the next flush is.
    pub(crate) fn flush_due(&self) -> Option<Time> {
        self.queues.due()
    }

    /// What has happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts drops that happened outside.
    pub fn count_drops(&mut self, reason: DropReason, count: u64) {
        self.counters.drops[reason as usize] += count;
    }

    /// How many participants there are.
    pub fn sessions(&self) -> u32 {
        self.sessions.live()
    }

    /// How many subscriptions participants and branches have.
    pub fn subscriptions(&self) -> u32 {
        self.table.live()
    }

    /// How many groups they are subscribed to.
    pub fn groups(&self) -> u32 {
        self.table.live_groups()
    }

    /// How many updates wait for receivers that cannot be sent everything, for all of them together.
    pub fn waiting_updates(&self) -> u64 {
        self.thinning.waiting()
    }

    /// How each of its comtrees stands.
    pub fn comtrees(&self) -> impl Iterator<Item = ComtreeStatus> + '_ {
        self.comtrees.live().map(|entry| ComtreeStatus {
            comtree: entry.id,
            participants: entry.participants,
            counters: entry.counters,
        })
    }

    /// The next thing to log.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// The keys of a session that was opened, if they are to be told.
    pub fn poll_key_log(&mut self) -> Option<LoggedKeys> {
        self.sessions.poll_key_log()
    }

    /// The next group key that was made, if they are to be told.
    pub fn poll_group_key_log(&mut self) -> Option<GroupKey> {
        self.comtrees.key_maker.poll_log()
    }

    /// Takes a datagram that has `waited` so long to be read; see [`Relay::handle_datagram`].
    #[inline]
    pub(crate) fn handle_late_datagram(
        &mut self,
        now: Time,
        waited: Duration,
        from: Path,
        datagram: &mut [u8],
    ) {
        self.waited = waited;
        self.handle_datagram(now, from, datagram);
        self.waited = Duration::ZERO;
    }

    /// Takes a datagram from the network. What is sealed is opened where it lies.
    pub fn handle_datagram(&mut self, now: Time, from: impl Into<Path>, datagram: &mut [u8]) {
        let from = from.into();
        self.counters.datagrams_in += 1;
        self.counters.bytes_in += datagram.len() as u64;
        if let Some(sealed) = Sealed::of(datagram) {
            return self.take_sealed(now, from, sealed, datagram);
        }
        let packet = match Packet::new_checked(datagram) {
            Ok(packet) => packet,
            Err(error) => {
                self.refuse_version(now, from, datagram, error);
                return self.counters.drop(error.into());
            }
        };
        if packet.header().kind.class() == Class::Session {
            // Whoever has a session has keys, participant or relay.
            return self.counters.drop(DropReason::Forged);
        }
        self.take_packet(now, from, &packet);
    }

    /// Takes a datagram that says it is sealed for a session.
    fn take_sealed(&mut self, now: Time, from: Path, sealed: Sealed, datagram: &mut [u8]) {
        let Sealed { session: id, first } = sealed;
        let opened = self.sessions.unseal(from, id, datagram);
        let packet = opened.and_then(|opened| Ok(Packet::new_checked(opened)?));
        let reason = match packet {
            Ok(packet) => return self.take_packet(now, from, &packet),
            Err(reason) => reason,
        };
        // The number may be another's by now: whoever had it before is told, but not from where its
        // owner is.
        let is_strange = reason == DropReason::Forged && self.sessions.admit(from, id).is_err();
        if reason == DropReason::UnknownSource || is_strange {
            let mut answer = canopy_session::Answer::new();
            canopy_session::unknown(id, first, &mut answer);
            let fits = answer.bytes().len() <= datagram.len();
            self.reply_to_stranger(now, from, if fits { answer.bytes() } else { &[] });
        }
        self.counters.drop(reason);
    }

    fn take_packet(&mut self, now: Time, from: Path, packet: &Packet<'_>) {
        let taken = match packet.header().kind {
            Kind::Updates => self.take_updates(now, from, packet),
            Kind::Subscribe => self.take_subscribe(now, from, packet),
            _ => self.take_session_packet(now, from, packet),
        };
        if let Err(reason) = taken {
            self.drop_on(packet.header().comtree, reason);
        }
    }

    /// Does what is due at `now`: calls neighbours and keeps their links alive, sweeps a part of the
    /// tables, tells participants of a drain, gives out group keys, asks what has arrived.
    pub fn handle_timeout(&mut self, now: Time) {
        self.drive_links(now);
        self.review_shares(now);
        self.sweep(now);
        self.renew_keys(now);
        self.send_probes(now);
    }

    fn sweep(&mut self, now: Time) {
        if self.sweep_at.is_none_or(|at| now < at) {
            return;
        }
        let mut budget = self.sessions.high_water() / SESSION_SWEEPS + 1;
        while let Some(ended) = self.sessions.expire(now, &mut budget) {
            self.counters.sessions_expired += u64::from(!self.ports.is_link(ended.0));
            self.end(now, ended);
        }
        let budget = self.table.high_water() / SUBSCRIPTION_SWEEPS + 1;
        self.counters.subscriptions_expired += self.table.expire(now, budget);
        self.end_by_tokens(now);
        self.sweep_routes(now);
        self.thinning.sweep(now);
        self.sweep_upstreams(now);
        self.say_all();
        self.unmute(now);
        self.look_at_ports(now);
        self.notify_draining();
        let idle = self.sessions.live() == 0
            && self.table.live() == 0
            && self.table.changes_to_tell() == 0
            && self.muted.is_empty()
            && self.overlay.routes.len() == 0
            && self.unsaid.is_empty()
            && !self.meters.has_talkers()
            && self.thinning.thinned.is_empty()
            && self.links.is_empty();
        self.sweep_at = (!idle).then_some(now + SWEEP_EVERY);
    }

    /// When [`Relay::handle_timeout`] or [`Relay::transmit`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Time> {
        // Where another thread is too slow to be told, the next sweep tries again.
        let to_tell = (self.table.changes_to_tell() > 0 && self.siblings.room_for_interests() > 0)
            .then_some(Time::ZERO);
        let upstreams = self.upstreams_due();
        [
            self.flush_due(),
            self.sweep_at,
            self.keys_due(),
            to_tell,
            self.links_due(),
            self.review_due(),
            upstreams,
            self.limited_due(),
            self.paths.poll_timeout(),
            self.successions_due(),
            self.doubled_due(),
            self.leaving_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When it is to be looked next at what waits for receivers that cannot be sent everything.
    pub(crate) fn limited_due(&self) -> Option<Time> {
        self.thinning.due()
    }

    /// Whether there are receivers now that cannot be sent everything: their delays are watched.
    pub(crate) fn is_limiting(&self) -> bool {
        self.thinning.is_any_limited()
    }

    /// Whether updates wait for a tick, so that the socket is better read at leisure than at
    /// every arrival.
    pub fn is_collecting(&self) -> bool {
        self.reading() != Mode::Immediate && self.flush_due().is_some()
    }

    /// Whether what waits must leave before more is read: otherwise one flood would take the room
    /// of all others while the relay is half idle.
    pub fn is_filling_up(&self) -> bool {
        self.queues.is_any_half_full() || self.replies.is_half_full()
    }

    /// Hands everything that is due at `now` to `send`, batch by batch: replies first, then, if
    /// it is time, all pending updates.
    pub fn transmit(&mut self, now: Time, mut send: impl FnMut(&SendBatch)) {
        // Interests that have ended. New ones were told already, before their subscribes were answered.
        self.tell_siblings();
        self.tell_reach();
        self.tell_portable();
        self.ask_next_parents(now);
        self.drive_upstreams(now);
        self.ask_next_parents(now);
        self.advance_leaving(now);
        self.advance_successions(now);
        self.advance_doubled(now);
        let is_flush = self.queues.is_any_due(now);
        let due = is_flush || self.thinning.is_due(now);
        self.queues.advance(now);
        // 1. Replies: those to sessions before those to strangers.
        let (batch, counters) = (&mut self.batch, &mut self.counters);
        for replies in [&mut self.replies, &mut self.replies_to_strangers] {
            replies.drain(|to, datagram| {
                if batch.is_full() {
                    send(batch);
                    batch.clear();
                }
                batch.push_datagram(to, datagram);
                counters.datagrams_out += 1;
                counters.bytes_out += datagram.len() as u64;
            });
        }
        if !due {
            if !batch.is_empty() {
                send(batch);
                batch.clear();
            }
            return;
        }
        let sessions = &self.sessions;
        self.thinning.sync_links(now, |link| sessions.link_traffic(link).bytes_out);
        // 2. Updates. What waits for limited receivers may be due when what waits for the tick is not.
        let mut tables = Tables {
            table: &mut self.table,
            ports: &self.ports,
            sessions: &mut self.sessions,
            paths: &mut self.paths,
            unreachable: &self.unreachable,
            thinning: &mut self.thinning,
            now,
        };
        let mut counts = FlushCounts { counters, comtrees: &mut self.comtrees };
        for queue in self.queues.due_mut(now) {
            queue.begin_flush();
            counts.counters.flushes += 1;
            tables.thinning.begin_flush(queue.mode);
            let pending = &mut queue.pending;
            self.fanout.send_all(pending, &mut tables, &mut counts, batch, &mut send);
            forget_targets(pending, tables.table, counts.comtrees);
        }
        // Limited receivers are looked at once, when their rows know all of it.
        let pending = &mut self.queues.get_mut(OWN).pending;
        self.fanout.send_to_limited(pending, &mut tables, &mut counts, batch, send);
        self.paths.flushed(now);
        self.advance_successions(now);
        // 3. A group key that has sealed much is renewed before it is used up.
        if self.comtrees.take_wants_keys() {
            self.keys_at = Some(now + Duration::from_millis(1));
        }
    }

    /// Counts a drop, on the relay and on the comtree, if it carries that.
    fn drop_on(&mut self, comtree: Comtree, reason: DropReason) {
        self.drop_many_on(comtree, reason, 1);
    }

    fn drop_many_on(&mut self, comtree: Comtree, reason: DropReason, count: u64) {
        self.count_drops(reason, count);
        if let Some(index) = self.comtrees.find(comtree) {
            self.comtrees.get_mut(index).counters.drops += count;
        }
    }

    fn reply(&mut self, to: Path, datagram: &[u8]) {
        if !datagram.is_empty() && !self.replies.push_copy(to, datagram) {
            self.counters.drop(DropReason::RepliesFull);
        }
    }

    /// Queues the packet of `len` bytes that was written into the replies' room, sealed for the port's
    /// session.
    fn push_reply(&mut self, to: Path, port: PortIndex, len: usize) -> Result<(), DropReason> {
        let session = self.ports.get(port).and_then(|port| port.peer.session());
        let session = session.ok_or(DropReason::UnknownSource)?;
        let room = self.replies.room().ok_or(DropReason::RepliesFull)?;
        let len = self.sessions.seal(session, room, len).ok_or(DropReason::RepliesFull)?;
        self.replies.push(to, len);
        Ok(())
    }

    fn reply_to_stranger(&mut self, now: Time, to: Path, datagram: &[u8]) {
        if datagram.is_empty() {
            return;
        }
        if !self.may_answer(now, to) {
            return self.counters.drop(DropReason::RepliesRate);
        }
        self.push_to_stranger(now, to, datagram);
    }

    /// Whether a stranger may be answered, by where it is.
    fn may_answer(&self, now: Time, to: Path) -> bool {
        let scarce = !self.strangers.is_mostly_full(&STRANGERS, now);
        self.gate.may_answer(now, to.remote, scarce)
    }

    /// Answers somebody who may be answered, at the rate of all strangers.
    fn push_to_stranger(&mut self, now: Time, to: Path, datagram: &[u8]) {
        let may = self.strangers.take(&STRANGERS, now, 1);
        if !may || !self.replies_to_strangers.push_copy(to, datagram) {
            self.counters.drop(DropReason::RepliesFull);
        }
    }

    /// A hello of another version is told so; the place of its nonce is the same in all versions.
    fn refuse_version(&mut self, now: Time, from: Path, datagram: &[u8], error: WireError) {
        let nonce = canopy_wire::Hello::nonce_of_any_version(datagram);
        if let (WireError::Version(_), Some(nonce)) = (error, nonce) {
            let mut answer = canopy_session::Answer::new();
            let reason = canopy_wire::RefusedReason::Version;
            canopy_session::refuse(nonce, Comtree(0), reason, &mut answer);
            self.reply_to_stranger(now, from, answer.bytes());
        }
    }

    fn note(&mut self, notice: Notice) {
        if self.notices.len() < MAX_NOTICES {
            self.notices.push_back(notice);
        }
    }
}

/// A group's target is gone with the flush, and a group without subscribers with it.
fn forget_targets(pending: &mut Pending, table: &mut SubscriptionTable, comtrees: &mut Comtrees) {
    for target in &pending.targets {
        match target.audience {
            Audience::Group(group) => table.forget_target(group),
            Audience::Tree => comtrees.get_mut(target.comtree).tree.target = NONE,
            Audience::Port(_) | Audience::Nobody => {}
        }
    }
    pending.clear();
}
