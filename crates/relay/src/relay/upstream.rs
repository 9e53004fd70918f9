//! Subscriptions on their way to the core (Forest §3.3): what participants, branches and other data
//! threads want is asked of the parent, many groups to a packet, several packets at a time.
//!
//! No two packets on the way name one group. So it does not matter in which order they arrive, and
//! one that comes again changes nothing.

use super::links::Link;
use super::{Relay, SWEEP_EVERY};
use crate::index::{ComtreeIndex, PortIndex};
use crate::subscriptions::GroupIndex;
use canopy_session::SessionIndex;
use canopy_wire::{Comtree, DropReason, Group, Packet, Path, SubscribeAck, SubscribeWriter, Time};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

/// Subscribe packets that wait for their acknowledgement at a time.
pub(super) const WINDOW: usize = 64;
/// A packet is sent again after the round trip of the link, twice, and this, and the time between two reads of
/// the sockets; later more seldom. Where a
/// tree is repaired, the first may come before the parent has the branch, and traffic waits for the next.
const RESEND_AFTER: Duration = Duration::from_millis(2);
/// As long as the round trip of a link that has just come up is not known.
const RESEND_AT_FIRST: Duration = Duration::from_millis(100);
/// It waits at most so long, however often it was sent.
const RESEND_AT_MOST: Duration = Duration::from_secs(2);
/// What is asked at once for all comtrees takes a shaped link so long at most, but a packet has room for a few changes.
const ASK_TAKES: Duration = Duration::from_millis(200);
const LEAST_ASKED: usize = 128;
/// In a subscription's lifetime the parent is asked again so often.
const REFRESHES: u32 = 4;
/// What a neighbour was asked is known for so many lifetimes of a subscription: it is swept a while after it has expired.
const REMEMBERED: u32 = 2;

/// A comtree's subscriptions at its parent.
pub(super) struct Upstream {
    comtree: Comtree,
    /// The branch.
    pub(super) port: PortIndex,
    /// The session of its link.
    session: SessionIndex,
    /// The number of the packet that was made last.
    sequence: u32,
    /// Packets that are not acknowledged, the oldest first.
    in_flight: VecDeque<Flight>,
    /// What of a group is still to be refreshed, in parts of a round.
    to_refresh: u64,
    /// Over a shaped link: when it may be asked for more.
    ask_at: Time,
}

impl Upstream {
    /// The number of the next packet, if one may leave before another is acknowledged: those on the way span no more
    /// numbers than the parent remembers.
    fn next_sequence(&self) -> Option<u32> {
        let next = self.sequence.wrapping_add(1);
        let oldest = self.in_flight.front().map_or(next, |flight| flight.sequence);
        (next.wrapping_sub(oldest) < WINDOW as u32).then_some(next)
    }
}

/// What a neighbour was asked when it was a parent.
#[derive(Debug, Default)]
pub(super) struct LastAsked {
    /// The number of the last packet. It may be the parent again before the link has new keys.
    sequence: u32,
    /// The groups that it may take for wanted still, also if the branch was closed here: it may have kept its own.
    groups: BTreeSet<Group>,
    /// By then they have expired there.
    until: Time,
}

/// A packet that waits for its acknowledgement.
struct Flight {
    sequence: u32,
    groups: Vec<GroupIndex>,
    resend_at: Time,
    tries: u32,
}

impl Relay {
    /// The comtree's parent may be another than before, or none; and there may be a next one.
    pub(super) fn follow_parent(&mut self, now: Time, index: ComtreeIndex) {
        let entry = self.comtrees.get(index);
        let (comtree, parent, parents) = (entry.id, entry.tree.parent(), entry.tree.parents());
        let place = self.overlay.upstreams.iter().position(|upstream| upstream.comtree == comtree);
        if place.map(|place| self.overlay.upstreams[place].port) == parent {
            return self.table.set_upwards(comtree, parent.map(|_| parents));
        }
        if let Some(place) = place {
            let groups = self.groups_at_parent(place);
            let Upstream { sequence, session, .. } = self.overlay.upstreams.swap_remove(place);
            // What was asked before its link went down is remembered already.
            self.remember_asked(now, (session, comtree), groups).sequence = sequence;
            self.table.set_upwards(comtree, None);
        }
        if let Some(port) = parent
            && let Some(session) = self.link_of(port)
        {
            self.table.set_upwards(comtree, Some(parents));
            let asked = self.overlay.last_asked.entry((session, comtree)).or_default();
            let sequence = asked.sequence;
            let in_flight = VecDeque::new();
            self.overlay.upstreams.push(Upstream {
                comtree,
                port,
                session,
                sequence,
                in_flight,
                to_refresh: 0,
                ask_at: Time::ZERO,
            });
            if self.sessions.path(session).is_some() {
                let groups = core::mem::take(&mut asked.groups);
                self.table.resume_asking(comtree, &groups);
            }
            self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        }
    }

    /// A link has new keys: what was on its way to the parent over it is lost, and whoever is there
    /// may have forgotten everything, or nothing.
    pub(super) fn begin_upstream(&mut self, port: PortIndex) {
        let Some(place) = self.overlay.upstreams.iter().position(|upstream| upstream.port == port)
        else {
            return;
        };
        let mut groups = self.groups_at_parent(place);
        let upstream = &mut self.overlay.upstreams[place];
        upstream.sequence = 0;
        upstream.in_flight.clear();
        let (session, comtree) = (upstream.session, upstream.comtree);
        let before = self.overlay.last_asked.remove(&(session, comtree)).unwrap_or_default();
        groups.extend(before.groups);
        self.table.resume_asking(comtree, &groups);
    }

    /// The groups that a parent may take for wanted here: it may not have heard what was asked last.
    fn groups_at_parent(&self, place: usize) -> BTreeSet<Group> {
        let Upstream { comtree, in_flight, .. } = &self.overlay.upstreams[place];
        let on_the_way = in_flight.iter().flat_map(|flight| &flight.groups);
        let on_the_way = on_the_way.map(|group| self.table.change_asked(*group).group());
        self.table.all_asked(*comtree).into_keys().chain(on_the_way).collect()
    }

    /// A link is down: nothing can be asked over it, and its next packets have new numbers.
    pub(super) fn pause_upstreams(&mut self, now: Time, session: SessionIndex) {
        for place in 0..self.overlay.upstreams.len() {
            if self.overlay.upstreams[place].session == session {
                let groups = self.groups_at_parent(place);
                let upstream = &mut self.overlay.upstreams[place];
                upstream.in_flight.clear();
                let comtree = upstream.comtree;
                self.table.pause_asking(comtree);
                self.remember_asked(now, (session, comtree), groups);
            }
        }
        self.overlay.last_asked.retain(|(of, _), asked| {
            asked.sequence = if *of == session { 0 } else { asked.sequence };
            *of != session || !asked.groups.is_empty()
        });
    }

    /// Notes that a neighbour may take these groups for wanted, beside those that are noted already.
    fn remember_asked(
        &mut self,
        now: Time,
        whose: (SessionIndex, Comtree),
        groups: BTreeSet<Group>,
    ) -> &mut LastAsked {
        let until = now + REMEMBERED * self.lifetime_at(whose.0);
        let asked = self.overlay.last_asked.entry(whose).or_default();
        asked.until = until;
        asked.groups.extend(groups);
        asked
    }

    /// How long a subscription lives at a neighbour.
    fn lifetime_at(&self, session: SessionIndex) -> Duration {
        let lifetime = self.link_at(session).and_then(Link::lifetime);
        lifetime.unwrap_or(self.subscription_lifetime)
    }

    /// When [`Relay::drive_upstreams`] has something to do next.
    pub(super) fn upstreams_due(&self) -> Option<Time> {
        let due = |upstream: &Upstream| {
            self.sessions.path(upstream.session)?;
            let has_news = self.table.to_ask(upstream.comtree) > 0;
            if has_news && upstream.next_sequence().is_some() {
                return Some(upstream.ask_at);
            }
            let resend_at = upstream.in_flight.iter().map(|flight| flight.resend_at).min()?;
            Some(resend_at.max(upstream.ask_at))
        };
        self.overlay.upstreams.iter().filter_map(due).min()
    }

    /// Sends parents what is wanted, and again what they have not acknowledged.
    pub(super) fn drive_upstreams(&mut self, now: Time) {
        for place in 0..self.overlay.upstreams.len() {
            let session = self.overlay.upstreams[place].session;
            if self.sessions.path(session).is_none() {
                continue;
            }
            self.resend(now, place, session);
            while self.ask_more(now, place, session) {}
        }
    }

    /// Whether the parent at a branch has taken all that is wanted of a comtree.
    pub(super) fn has_asked_all(&self, comtree: Comtree, port: PortIndex) -> bool {
        let is_it = |upstream: &&Upstream| upstream.comtree == comtree && upstream.port == port;
        self.overlay.upstreams.iter().find(is_it).is_some_and(|upstream| {
            let is_up = self.sessions.path(upstream.session).is_some();
            is_up && upstream.in_flight.is_empty() && self.table.to_ask(comtree) == 0
        })
    }

    /// The session of the link that a branch is over.
    pub(super) fn link_of(&self, port: PortIndex) -> Option<SessionIndex> {
        self.ports.get(port)?.peer.session()
    }

    fn resend(&mut self, now: Time, place: usize, session: SessionIndex) {
        let wait = self.resend_after(session);
        for number in 0..self.overlay.upstreams[place].in_flight.len() {
            let Upstream { comtree, port, ask_at, .. } = self.overlay.upstreams[place];
            let flight = &mut self.overlay.upstreams[place].in_flight[number];
            if flight.resend_at > now {
                continue;
            }
            if now < ask_at {
                return;
            }
            flight.tries += 1;
            flight.resend_at = now + (wait * (1 << flight.tries.min(10))).min(RESEND_AT_MOST);
            let (sequence, groups) = (flight.sequence, core::mem::take(&mut flight.groups));
            let changes = groups.iter().map(|group| self.table.change_asked(*group));
            let most = self.datagrams_of(port);
            let packet = self.replies.room().and_then(|room| {
                let mut writer = SubscribeWriter::new(room, sequence, most).ok()?;
                changes.for_each(|change| {
                    writer.push(change);
                });
                Some(writer.finish(comtree, canopy_wire::SessionId::NONE))
            });
            self.overlay.upstreams[place].in_flight[number].groups = groups;
            match packet {
                Some(len) => {
                    let len = self.push_subscribe(session, len);
                    self.pace(now, place, session, len);
                }
                None => return self.counters.drop(DropReason::RepliesFull),
            }
        }
    }

    /// Sends one packet of what the parent is to hear. False if there is nothing more, or no room.
    fn ask_more(&mut self, now: Time, place: usize, session: SessionIndex) -> bool {
        let upstream = &self.overlay.upstreams[place];
        let comtree = upstream.comtree;
        let Some(sequence) = upstream.next_sequence() else { return false };
        if now < upstream.ask_at || self.table.to_ask(comtree) == 0 {
            return false;
        }
        let wait = self.resend_after(session);
        let most = self.longest_packet(place);
        let Some(room) = self.replies.room() else { return false };
        let Ok(mut writer) = SubscribeWriter::new(room, sequence, most) else { return false };
        let mut groups = Vec::new();
        // Each change takes four bytes, and eight where it is of another kind than the one before.
        while writer.has_room()
            && let Some((group, change)) = self.table.next_to_ask(comtree)
        {
            writer.push(change);
            groups.push(group);
        }
        if groups.is_empty() {
            return false;
        }
        let len = writer.finish(comtree, canopy_wire::SessionId::NONE);
        self.counters.subscriptions_asked += groups.len() as u64;
        let len = self.push_subscribe(session, len);
        self.pace(now, place, session, len);
        self.ask_old_parent_too(now, comtree, &groups);
        let flight = Flight { sequence, groups, resend_at: now + wait, tries: 0 };
        self.overlay.upstreams[place].sequence = sequence;
        self.overlay.upstreams[place].in_flight.push_back(flight);
        true
    }

    /// What is asked over a shaped link takes a half of it at most, of which each comtree has its part, but for a
    /// packet: whoever changes subscriptions without end would silence the others' updates.
    fn pace(&mut self, now: Time, place: usize, session: SessionIndex, len: usize) {
        let share = 2 * self.asking_over(session);
        let cost = |bytes: usize| self.thinning.links.takes(session, bytes as u64) * share;
        let longest = self.longest_packet(place);
        // Where there are so many comtrees that packets cannot be as short as they should be, none leaves early.
        let (cost, ahead) =
            (cost(len), if longest > LEAST_ASKED { cost(longest) } else { Duration::ZERO });
        let ask_at = &mut self.overlay.upstreams[place].ask_at;
        *ask_at = (*ask_at + ahead).max(now) + cost - ahead;
    }

    /// As long as a parent is being succeeded, the old one hears what the next one is asked. It is not
    /// told again: what it does not bring, the next one does.
    fn ask_old_parent_too(&mut self, now: Time, comtree: Comtree, groups: &[GroupIndex]) {
        let Some(index) = self.comtrees.find(comtree) else { return };
        let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession else { return };
        let Some(old) = succession.old else { return };
        let changes = || groups.iter().map(|group| self.table.change_asked(*group));
        changes().for_each(|change| succession.ask_old(change.group(), change.wanted()));
        let (Some(session), most) = (self.link_of(old), self.datagrams_of(old)) else { return };
        let until = now + REMEMBERED * self.lifetime_at(session);
        let mut left = groups;
        // Its datagrams may be shorter than the next one's.
        while !left.is_empty() {
            let asked = self.overlay.last_asked.entry((session, comtree)).or_default();
            asked.sequence = asked.sequence.wrapping_add(1);
            asked.until = until;
            let Some(room) = self.replies.room() else {
                return self.counters.drop(DropReason::RepliesFull);
            };
            let Ok(mut writer) = SubscribeWriter::new(room, asked.sequence, most) else { return };
            while writer.has_room()
                && let Some((group, rest)) = left.split_first()
            {
                let change = self.table.change_asked(*group);
                writer.push(change);
                asked.groups.insert(change.group());
                left = rest;
            }
            let len = writer.finish(comtree, canopy_wire::SessionId::NONE);
            self.push_subscribe(session, len);
        }
    }

    /// Sends a packet that is written. Returns its length with its seal, 0 if it is not sent.
    fn push_subscribe(&mut self, session: SessionIndex, len: usize) -> usize {
        let Some(path) = self.sessions.path(session) else { return 0 };
        let sealed = self.replies.room().and_then(|room| self.sessions.seal(session, room, len));
        match sealed {
            Some(len) => self.replies.push(path, len),
            None => self.counters.drop(DropReason::RepliesFull),
        }
        sealed.unwrap_or(0)
    }

    /// How many comtrees have their parent at the other end of a link.
    fn asking_over(&self, session: SessionIndex) -> u32 {
        self.overlay.upstreams.iter().filter(|one| one.session == session).count() as u32
    }

    /// The longest packet of what a parent is asked, in bytes: a slow link that is shaped is not to be taken for long by
    /// the two of each comtree that may leave at once.
    fn longest_packet(&self, place: usize) -> usize {
        let Upstream { session, port, .. } = self.overlay.upstreams[place];
        let at_once = 2 * self.asking_over(session);
        let bytes = self.thinning.links.bears_in(session, ASK_TAKES / at_once);
        self.datagrams_of(port).min(bytes.max(LEAST_ASKED))
    }

    fn datagrams_of(&self, port: PortIndex) -> usize {
        self.ports.get(port).map_or(0, |port| port.shape.datagrams.max_datagram())
    }

    fn resend_after(&self, session: SessionIndex) -> Duration {
        let round_trip = self.link_at(session).and_then(|link| link.round_trip());
        let read = self.queues.reading().longest_unread();
        round_trip.map_or(RESEND_AT_FIRST, |round_trip| RESEND_AFTER + 2 * round_trip + read)
    }

    /// Takes the parent's acknowledgement.
    pub(super) fn take_subscribe_ack(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let port = self.admit(now, from, packet)?;
        let index = self.ports.get(port).map(|port| port.comtree_index);
        if index.is_some_and(|index| self.is_other_parent(index, port)) {
            return Ok(());
        }
        let place = self.overlay.upstreams.iter().position(|upstream| upstream.port == port);
        let upstream = &mut self.overlay.upstreams[place.ok_or(DropReason::UnexpectedKind)?];
        let ack = SubscribeAck::new_checked(packet)?;
        let is_it = |flight: &Flight| flight.sequence == ack.sequence();
        // An answer may come twice, when the packet was sent twice.
        let Some(number) = upstream.in_flight.iter().position(is_it) else { return Ok(()) };
        let Some(flight) = upstream.in_flight.remove(number) else { return Ok(()) };
        let has_refused = ack.refused().next().is_some();
        for group in flight.groups {
            self.table.acknowledged(group, |group| has_refused && ack.refusal_of(group).is_some());
        }
        if has_refused {
            self.counters.subscriptions_refused_above += ack.refused().count() as u64;
        }
        Ok(())
    }

    /// Asks parents again for a part of what is wanted, so that it does not expire there; and forgets what has expired at
    /// neighbours that were parents.
    pub(super) fn sweep_upstreams(&mut self, now: Time) {
        self.overlay.last_asked.retain(|_, asked| {
            if asked.until <= now {
                asked.groups.clear();
            }
            // The numbers go on as long as the link has its keys.
            asked.sequence != 0 || !asked.groups.is_empty()
        });
        for place in 0..self.overlay.upstreams.len() {
            let Upstream { comtree, session, .. } = self.overlay.upstreams[place];
            // What is asked lives as long as the parent says.
            let lifetime = self.lifetime_at(session);
            let rounds = lifetime.as_millis() / u128::from(REFRESHES) / SWEEP_EVERY.as_millis();
            let rounds = (rounds as u64).max(1);
            let to_refresh = &mut self.overlay.upstreams[place].to_refresh;
            *to_refresh += u64::from(self.table.groups_high_water());
            let budget = (*to_refresh / rounds) as u32;
            *to_refresh %= rounds;
            self.table.refresh_asked(comtree, budget);
        }
    }

    /// For a parent's branch: the groups that it was asked for, and the changes that it has not
    /// acknowledged.
    pub(super) fn asked_over(&self, port: PortIndex) -> (u32, u32) {
        let of_port = |upstream: &&Upstream| upstream.port == port;
        self.overlay.upstreams.iter().find(of_port).map_or((0, 0), |upstream| {
            let waiting: usize = upstream.in_flight.iter().map(|flight| flight.groups.len()).sum();
            (self.table.asked(upstream.comtree), waiting as u32)
        })
    }
}
