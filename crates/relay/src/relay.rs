//! The relay of one data thread: four verbs over sessions, subscriptions and fan-out.

use crate::cohorts::NONE;
use crate::counters::Counters;
use crate::fanout::Fanout;
use crate::pending::{Audience, Pending, Waiting};
use crate::subscriptions::{SubscriptionTable, TableLimits};
use canopy_batch::SendBatch;
use canopy_session::{Answer, Ended, Keyring, Sessions, SessionsConfig, SlotIndex};
use canopy_wire::{
    Address, Bundle, Change, DropReason, Header, Hello, Kind, MAX_DATAGRAM, MAX_UPDATE, Packet,
    Refused, RefusedReason, Subscribe, SubscribeAckWriter, TableFull, Tag, Time, WireError,
    next_sequence,
};
use core::net::SocketAddr;
use core::time::Duration;

/// When updates leave (groupcast §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As soon as the receive batch that brought them has been read.
    Immediate,
    /// Every tick, a receiver's updates of the tick together.
    Periodic {
        /// The time between flushes.
        tick: Duration,
    },
}

/// What a relay is made from.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// When updates leave.
    pub mode: Mode,
    /// Its sessions.
    pub sessions: SessionsConfig,
    /// The size of its tables.
    pub tables: TableLimits,
    /// At least so many receivers of the same updates are sent the same bytes, their own updates
    /// among them, which they drop: that is what engines that clone need. If none, every
    /// participant is spared its own.
    pub smallest_set: Option<u32>,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Intake {
    /// It concerns this data thread alone.
    Done,
    /// It concerns all data threads of the relay: the others get it through
    /// [`Relay::handle_handover`].
    Shared,
}

/// Expired sessions and subscriptions are looked for this often, a part of the tables each time.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Every session is looked at once a second, every subscription once in ten.
const SESSION_SWEEPS: u32 = 10;
const SUBSCRIPTION_SWEEPS: u32 = 100;
/// Bytes of replies that one turn can queue.
const MAX_REPLY_BYTES: usize = 256 << 10;
const MAX_REPLIES: usize = 512;

/// The data plane of one data thread. A relay has one for each core; together they are a meshed
/// core (federated games §3.1): each serves its own participants and hands what they publish to
/// the others, which never hand it on.
pub struct Relay {
    mode: Mode,
    shards: u16,
    shard: u16,
    subscription_lifetime: Duration,
    sessions: Sessions,
    table: SubscriptionTable,
    pending: Pending,
    fanout: Fanout,
    batch: SendBatch,
    replies: Replies,
    counters: Counters,
    flush_at: Option<Time>,
    /// The last tick that is over; at most one flush a tick.
    ticked: Time,
    sweep_at: Option<Time>,
    /// While draining: the next session to be told.
    notify: Option<SlotIndex>,
}

/// Replies that wait for the next batch.
struct Replies {
    bytes: Vec<u8>,
    list: Vec<(SocketAddr, usize)>,
}

impl Relay {
    /// An empty relay. `keys` are shared by its data threads, `table_key` seeds this one's tables.
    /// Reserves all the memory that its limits can ask for; pages are touched as they fill.
    ///
    /// # Panics
    /// If the configuration asks for more sessions than addresses: see [`Sessions::capacity`].
    pub fn new(config: RelayConfig, keys: Keyring, table_key: &Tag) -> Relay {
        let max_sessions = config.sessions.max_sessions;
        let max_pairs = config.tables.max_subscriptions + max_sessions;
        Relay {
            mode: config.mode,
            shards: config.sessions.shards,
            shard: config.sessions.shard,
            subscription_lifetime: config.sessions.limits.subscription,
            table: SubscriptionTable::new(config.tables, max_sessions, table_key),
            pending: Pending::new(max_sessions),
            fanout: Fanout::new(max_sessions, max_pairs, config.smallest_set),
            batch: SendBatch::with_room(2 * crate::pending::MAX_PENDING_BYTES),
            replies: Replies {
                bytes: Vec::with_capacity(MAX_REPLY_BYTES),
                list: Vec::with_capacity(MAX_REPLIES),
            },
            counters: Counters::default(),
            flush_at: None,
            ticked: Time::ZERO,
            sweep_at: None,
            notify: None,
            sessions: Sessions::new(config.sessions, keys, table_key),
        }
    }

    /// What has happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts drops that happened outside: the kernel refused a send, a handover queue was full.
    pub fn count_drops(&mut self, reason: DropReason, count: u64) {
        self.counters.drops[reason as usize] += count;
    }

    /// How many participants there are.
    pub fn sessions(&self) -> u32 {
        self.sessions.live()
    }

    /// How many subscriptions there are.
    pub fn subscriptions(&self) -> u32 {
        self.table.live()
    }

    /// How many groups have subscribers.
    pub fn groups(&self) -> u32 {
        self.table.live_groups()
    }

    /// Takes no one new, and tells the participants to go.
    pub fn drain(&mut self, now: Time) {
        self.sessions.drain();
        self.notify = Some(0);
        self.sweep_at = Some(now);
    }

    /// Takes a datagram from the network.
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, datagram: &[u8]) -> Intake {
        self.counters.datagrams_in += 1;
        self.counters.bytes_in += datagram.len() as u64;
        let packet = match Packet::new_checked(datagram) {
            Ok(packet) => packet,
            Err(error) => {
                self.refuse_version(from, datagram, error);
                self.counters.drop(error.into());
                return Intake::Done;
            }
        };
        let taken = match packet.header().kind {
            Kind::Data | Kind::Bundle => self.take_updates(now, from, &packet, datagram.len()),
            Kind::Subscribe => self.take_subscribe(now, from, &packet, datagram.len()),
            _ => self.take_session_packet(now, from, &packet, datagram.len()),
        };
        taken.unwrap_or_else(|reason| {
            self.counters.drop(reason);
            Intake::Done
        })
    }

    /// Takes a datagram that another data thread of this relay accepted from `from`: updates to
    /// deliver here too, or the proof that an ip:port belongs to a session there now.
    pub fn handle_handover(&mut self, now: Time, from: SocketAddr, datagram: &[u8]) {
        // It was checked there; a copy that does not parse is a fault of ours and still counted.
        let taken = match Packet::new_checked(datagram) {
            Err(error) => Err(error.into()),
            Ok(packet) if matches!(packet.header().kind, Kind::Data | Kind::Bundle) => {
                self.publish_all(now, NONE, &packet)
            }
            Ok(_) => {
                if let Some(ended) = self.sessions.end_at(from) {
                    self.end(ended);
                }
                Ok(())
            }
        };
        if let Err(reason) = taken {
            self.counters.drop(reason);
        }
    }

    /// Does what is due at `now`: sweeps a part of the tables, tells participants of a drain.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.sweep_at.is_none_or(|at| now < at) {
            return;
        }
        let mut budget = self.sessions.high_water() / SESSION_SWEEPS + 1;
        while let Some(ended) = self.sessions.expire(now, &mut budget) {
            self.counters.sessions_expired += 1;
            self.end(ended);
        }
        let budget = self.table.high_water() / SUBSCRIPTION_SWEEPS + 1;
        self.counters.subscriptions_expired += self.table.expire(now, budget);
        self.notify_draining();
        let idle = self.sessions.live() == 0;
        self.sweep_at = (!idle).then_some(now + SWEEP_EVERY);
    }

    /// When [`Relay::handle_timeout`] or [`Relay::transmit`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.flush_at, self.sweep_at].into_iter().flatten().min()
    }

    /// Whether updates wait for a tick, so that the socket is better read at leisure than at
    /// every arrival.
    pub fn is_collecting(&self) -> bool {
        matches!(self.mode, Mode::Periodic { .. }) && self.flush_at.is_some()
    }

    /// Hands everything that is due at `now` to `send`, batch by batch: replies first, then, if
    /// it is time, all pending updates.
    pub fn transmit(&mut self, now: Time, mut send: impl FnMut(&SendBatch)) {
        let due = self.flush_at.is_some_and(|at| at <= now) || self.pending.is_half_full();
        if due {
            self.begin_flush();
        }
        if let Mode::Periodic { tick } = self.mode {
            self.ticked = now.last_multiple(tick);
        }
        loop {
            self.fanout.start_batch(&mut self.batch);
            self.replies.move_to(&mut self.batch, &mut self.counters);
            if self.fanout.is_active() {
                self.fanout.fill(
                    &mut self.pending,
                    &self.sessions,
                    &mut self.batch,
                    &mut self.counters,
                );
            }
            if self.batch.is_empty() {
                return;
            }
            send(&self.batch);
        }
    }

    fn begin_flush(&mut self) {
        self.fanout.begin(&self.pending, &self.table);
        for target in &self.pending.targets {
            if let Audience::Group(group) = target.audience {
                self.table.forget_target(group);
            }
        }
        self.flush_at = None;
        self.counters.flushes += 1;
    }

    fn take_updates(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        datagram_len: usize,
    ) -> Result<Intake, DropReason> {
        let slot = self.admit(now, from, packet.header(), datagram_len)?;
        self.publish_all(now, slot, packet)?;
        Ok(self.share_if(true))
    }

    fn share_if(&self, of_interest: bool) -> Intake {
        if of_interest && self.shards > 1 { Intake::Shared } else { Intake::Done }
    }

    /// Queues the packet's updates for the next flush.
    fn publish_all(
        &mut self,
        now: Time,
        publisher: SlotIndex,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let header = packet.header();
        if header.hop_limit == 0 {
            return Err(DropReason::HopLimit);
        }
        if header.kind == Kind::Data {
            return self.publish(now, publisher, header, packet.payload());
        }
        let bundle = Bundle::new_checked(packet)?;
        for record in bundle.records() {
            let header = Header {
                flags: record.flags,
                level: record.level,
                src: record.src,
                dst: record.dst,
                ..*header
            };
            let published = if record.src == packet.header().src {
                self.publish(now, publisher, &header, record.payload)
            } else {
                Err(DropReason::SpoofedSource)
            };
            // One bad record does not cost the others.
            if let Err(reason) = published {
                self.counters.drop(reason);
            }
        }
        Ok(())
    }

    fn publish(
        &mut self,
        now: Time,
        publisher: SlotIndex,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        if payload.len() > MAX_UPDATE {
            return Err(DropReason::Oversized);
        }
        if !self.pending.has_room(payload) {
            return Err(DropReason::PendingFull);
        }
        let own = publisher != NONE;
        // Only to a group does a publisher not get its own: a unicast goes to whoever it names.
        let spared = if header.dst.is_group() { publisher } else { NONE };
        let target = match header.dst.group() {
            Some(group) => {
                self.counters.updates_in += u64::from(own);
                let Some(group) = self.table.find_group(header.comtree, group) else {
                    self.counters.updates_without_subscriber += 1;
                    return Ok(());
                };
                let remembered = self.table.target_mut(group);
                self.pending.target_of_group(group, remembered, header.comtree)
            }
            None if self.is_elsewhere(header.dst) => {
                self.counters.updates_in += u64::from(own);
                return Ok(());
            }
            None => {
                let slot = self.sessions.find(header.comtree, header.dst);
                let slot = slot.ok_or(DropReason::UnknownDestination)?;
                self.counters.updates_in += u64::from(own);
                self.pending.target_of_endpoint(slot, header.comtree)
            }
        };
        let route = (header.src, header.dst);
        let flags = header.flags.passed_on();
        let update = Waiting::new(spared, route, flags, header.level, payload);
        self.pending.push(target, update, payload);
        self.flush_at.get_or_insert(match self.mode {
            Mode::Immediate => now,
            Mode::Periodic { tick } => self.ticked + tick,
        });
        Ok(())
    }

    /// Whether a unicast address belongs to another data thread of this relay.
    fn is_elsewhere(&self, address: Address) -> bool {
        address.endpoint() % self.shards != self.shard
    }

    fn take_subscribe(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        datagram_len: usize,
    ) -> Result<Intake, DropReason> {
        let header = packet.header();
        let slot = self.admit(now, from, header, datagram_len)?;
        let subscribe = Subscribe::new_checked(packet)?;
        let session = self.sessions.get_mut(slot).ok_or(DropReason::UnknownSource)?;
        let (last, sequence) = (session.subscribe_sequence, subscribe.sequence());
        let repeats = sequence == last && last != 0;
        if !repeats && sequence != next_sequence(last) {
            return Err(DropReason::SubscribeOrder);
        }
        session.subscribe_sequence = sequence;
        let refused_before = repeats && session.subscribe_refused;
        let expires = now + self.subscription_lifetime;
        let mut ack = [0; MAX_DATAGRAM];
        let mut writer = SubscribeAckWriter::new(&mut ack, sequence)?;
        let mut any_refused = false;
        for change in subscribe.changes() {
            // A repeated packet renews what it added, for its participant counts from the answer.
            // What was refused stays so even if there would be room by now: the participant may
            // have heard the refusal already.
            let refused = match change {
                Change::Add(group, _)
                    if refused_before && !self.table.contains(slot, header.comtree, group) =>
                {
                    Some((group, TableFull::Table))
                }
                Change::Add(group, level) => {
                    let added = self.table.add(slot, header.comtree, group, level, expires);
                    added.err().map(|reason| (group, reason))
                }
                Change::Drop(group) => {
                    self.table.remove(slot, header.comtree, group);
                    None
                }
            };
            if let Some((group, reason)) = refused {
                self.counters.drops[DropReason::SubscriptionsFull as usize] += u64::from(!repeats);
                writer.push(group, reason);
                any_refused = true;
            }
            self.counters.subscription_changes += 1;
        }
        if let Some(session) = self.sessions.get_mut(slot) {
            session.subscribe_refused = any_refused;
        }
        let len = writer.finish(header.comtree, header.src);
        self.reply(from, &ack[..len]);
        Ok(Intake::Done)
    }

    fn take_session_packet(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        datagram_len: usize,
    ) -> Result<Intake, DropReason> {
        let mut answer = Answer::new();
        let handled = self.sessions.handle(now, from, packet, &mut answer);
        if handled == Err(DropReason::SpoofedSource) {
            self.sessions.challenge(now, from, packet.header(), datagram_len, &mut answer);
        }
        self.reply(from, answer.bytes());
        let handled = handled?;
        if let Some(ended) = handled.ended {
            self.end(ended);
        }
        if handled.joined.is_some() {
            self.counters.sessions_opened += 1;
            self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        }
        let moved = handled.joined.is_some() || packet.header().kind == Kind::Rebind;
        Ok(self.share_if(moved))
    }

    fn admit(
        &mut self,
        now: Time,
        from: SocketAddr,
        header: &Header,
        datagram_len: usize,
    ) -> Result<SlotIndex, DropReason> {
        let admitted = self.sessions.admit(now, from, header);
        if admitted == Err(DropReason::SpoofedSource) {
            let mut answer = Answer::new();
            self.sessions.challenge(now, from, header, datagram_len, &mut answer);
            self.reply(from, answer.bytes());
        }
        admitted
    }

    fn end(&mut self, ended: Ended) {
        self.counters.sessions_ended += 1;
        self.table.remove_all(ended.slot);
        let gone = self.pending.forget(ended.slot);
        self.counters.drops[DropReason::UnknownDestination as usize] += gone;
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        if !datagram.is_empty() && !self.replies.push(to, datagram) {
            self.counters.drop(DropReason::RepliesFull);
        }
    }

    /// A hello of another version is told so; the place of its nonce is the same in all versions.
    fn refuse_version(&mut self, from: SocketAddr, datagram: &[u8], error: WireError) {
        let nonce = Hello::nonce_of_any_version(datagram);
        if let (WireError::Version(_), Some(nonce)) = (error, nonce) {
            let mut out = [0; 64];
            let refused = Refused { nonce, reason: RefusedReason::Version };
            let len = refused.encode(canopy_wire::Comtree(0), &mut out).unwrap_or(0);
            self.reply(from, &out[..len]);
        }
    }

    fn notify_draining(&mut self) {
        let Some(mut slot) = self.notify else { return };
        while slot < self.sessions.high_water() && self.replies.list.len() < MAX_REPLIES / 2 {
            let mut answer = Answer::new();
            self.sessions.draining_notice(slot, &mut answer);
            if let Some(to) = self.sessions.get(slot).map(canopy_session::Slot::ip_port) {
                self.reply(to, answer.bytes());
            }
            slot += 1;
        }
        // A notice may be lost: the round begins again until no one is left.
        self.notify = Some(if slot < self.sessions.high_water() { slot } else { 0 });
    }
}

impl Replies {
    fn push(&mut self, to: SocketAddr, datagram: &[u8]) -> bool {
        let fits =
            self.list.len() < MAX_REPLIES && self.bytes.len() + datagram.len() <= MAX_REPLY_BYTES;
        if fits {
            self.bytes.extend_from_slice(datagram);
            self.list.push((to, datagram.len()));
        }
        fits
    }

    fn move_to(&mut self, batch: &mut SendBatch, counters: &mut Counters) {
        let mut at = 0;
        for (to, len) in self.list.drain(..) {
            batch.push_datagram(to, &self.bytes[at..at + len]);
            counters.datagrams_out += 1;
            counters.bytes_out += len as u64;
            at += len;
        }
        self.bytes.clear();
    }
}
