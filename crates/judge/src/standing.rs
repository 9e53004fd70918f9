//! What the oracle knows about one participant.

use crate::interest::Interest;
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// One participant, as its application and its session tell.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) comtree: Comtree,
    /// The relay that it is a participant of, by number.
    pub(crate) relay: u32,
    /// When it has turned to that relay without a break, if it has.
    pub(crate) turned: Option<Time>,
    /// The number of its latest connection to the relay; 0 before the first.
    pub(crate) connection: u64,
    /// Its application runs and wants to be in the world.
    present: bool,
    /// Its session says that it is connected, and the relay is the one it connected to.
    connected: bool,
    /// The relay is known to know its ip:port.
    bound: bool,
    /// Since when all three hold.
    steady: Option<Time>,
    /// From when to when they last did before.
    steady_before: (Time, Time),
    /// Until when the relay may have read from it what it never sent.
    distrusted_until: Time,
    /// When the relay last read something from it.
    heard: Time,
    /// When something last went wrong for it that was not the relay's or the session's fault.
    trouble: Time,
    /// What the relay sent to its ip:port until then may be meant for whoever had that before;
    /// [`OPEN`] until the relay knows who has it now.
    predecessor_until: Time,
    /// The addresses that it has had, since when it is connected, and until when it had each.
    addresses: Vec<(Address, Time, Option<Time>)>,
    interests: BTreeMap<Group, Interest>,
    /// Once there are this many interests, it is worth looking for some to forget.
    tidy_at: usize,
    /// It may be sent so much only.
    is_limited: bool,
    /// By publisher's connection, and where updates may wait by where it was sent to: the newest update
    /// that it was handed since it is connected.
    newest: BTreeMap<(u64, Option<Address>), u64>,
    /// Once `newest` has this many entries, it is worth looking for those of updates judged long ago.
    prune_at: usize,
}

/// Later than everything.
const OPEN: Time = Time::from_nanos(u64::MAX);
/// How many of its connections are remembered by their addresses.
const MAX_ADDRESSES: usize = 64;
/// A list with fewer entries than this is not tidied.
const FEW: usize = 32;

impl Standing {
    pub(crate) fn new(comtree: Comtree) -> Standing {
        Standing {
            comtree,
            relay: 0,
            turned: None,
            connection: 0,
            present: false,
            connected: false,
            bound: false,
            steady: None,
            steady_before: (Time::ZERO, Time::ZERO),
            distrusted_until: Time::ZERO,
            heard: Time::ZERO,
            trouble: Time::ZERO,
            predecessor_until: Time::ZERO,
            addresses: Vec::new(),
            interests: BTreeMap::new(),
            tidy_at: FEW,
            is_limited: false,
            newest: BTreeMap::new(),
            prune_at: FEW,
        }
    }

    /// Its application starts.
    pub(crate) fn appear(&mut self, now: Time) {
        self.present = true;
        self.trouble(now);
        self.settle(now);
    }

    /// Its application has gone, or is leaving.
    pub(crate) fn vanish(&mut self, now: Time) {
        self.present = false;
        self.disconnect(now);
        for interest in self.interests.values_mut() {
            interest.abandon(now);
        }
    }

    /// What the relay held of a group may have expired, if nothing was acknowledged for so long.
    pub(crate) fn lapse(&mut self, now: Time, group: Group, unrefreshed: Duration) {
        self.interest(group).lapse(now, unrefreshed);
    }

    /// What its session told it. `connection` is the number of a connection that begins.
    pub(crate) fn event(&mut self, now: Time, event: Event, connection: u64) {
        match event {
            Event::Connected(address) => self.connect(now, address, connection),
            Event::Lost | Event::Closed => self.disconnect(now),
            Event::Refused(_) => self.trouble(now),
            Event::Subscribed(group, level) => {
                self.interest(group).acknowledged(now, Some(level));
            }
            Event::Unsubscribed(group) => self.interest(group).acknowledged(now, None),
            Event::SubscriptionRefused(group, _) => self.interest(group).refused(now),
            // `reached` has noted it, from the relay's answer.
            Event::Rebound | Event::Busy(_) | Event::Thinned(_) => {}
            // What follows is told too: that the session is lost or closed.
            Event::SentAway(_) | Event::Answered(..) => {}
            Event::Gone(_) => {}
        }
    }

    /// Its application asks for a level of a group, or for none.
    /// What was before `horizon` is forgotten.
    pub(crate) fn request(
        &mut self,
        now: Time,
        group: Group,
        wanted: Option<Level>,
        horizon: Time,
    ) {
        self.tidy(horizon);
        let interest = self.interest(group);
        interest.forget(horizon);
        interest.request(now, wanted);
    }

    /// It goes on at another relay, where it has this address, without a break.
    pub(crate) fn hand_over(&mut self, now: Time, address: Address) {
        let since = self.addresses.last_mut().map_or(now, |(_, since, until)| {
            until.get_or_insert(now);
            *since
        });
        self.turned = Some(now);
        self.forget_addresses();
        self.addresses.push((address, since, None));
    }

    /// It sends from another ip:port from now on.
    pub(crate) fn rebind(&mut self, now: Time) {
        self.bound = false;
        self.trouble(now);
        self.settle(now);
    }

    /// It has another ip:port, perhaps one that was another's, to whom the relay may be sending
    /// still.
    pub(crate) fn move_in(&mut self, was_anothers: bool) {
        self.predecessor_until = if was_anothers { OPEN } else { Time::ZERO };
    }

    /// The relay acknowledged something to its address at its present ip:port.
    pub(crate) fn confirm(&mut self, now: Time) {
        self.bound = true;
        self.know_ip_port(now);
        self.settle(now);
    }

    /// The relay that it is connected to is no more, or it does not know of being disconnected.
    pub(crate) fn disconnect(&mut self, now: Time) {
        self.connected = false;
        if let Some((_, _, until)) = self.addresses.last_mut() {
            until.get_or_insert(now);
        }
        self.settle(now);
    }

    /// The relay reads a datagram from it. After too long a silence the relay may have forgotten
    /// it.
    pub(crate) fn heard(&mut self, now: Time, lifetime: Duration) {
        if self.is_silent(now, lifetime) {
            self.bound = false;
            self.settle(now);
        }
        self.heard = now;
    }

    /// The relay reads from it, or it from the relay, what was never sent.
    pub(crate) fn distrust(&mut self, until: Time) {
        self.distrusted_until = self.distrusted_until.max(until);
        self.trouble(until);
    }

    /// Something went wrong that was not the relay's or the session's fault.
    pub(crate) fn trouble(&mut self, now: Time) {
        self.trouble = self.trouble.max(now);
    }

    /// Whether, from `since` until after `until`, it was in the world without any doubt.
    pub(crate) fn is_steady(
        &self,
        (since, until): (Time, Time),
        now: Time,
        lifetime: Duration,
    ) -> bool {
        let (from, to) = self.steady_before;
        (self.steady.is_some_and(|steady| steady <= since) || (from <= since && to > until))
            && !self.is_distrusted(since)
            && !self.is_silent(now, lifetime)
    }

    /// Whether the relay may have read at `now` what it never sent, or hold what came of it.
    pub(crate) fn is_distrusted(&self, now: Time) -> bool {
        now <= self.distrusted_until
    }

    /// The level at which it was certainly subscribed from `since` until after `until`,
    /// acknowledged at `confirmed` or later.
    pub(crate) fn certain(
        &self,
        group: Group,
        (since, until): (Time, Time),
        confirmed: Time,
    ) -> Option<Level> {
        self.interests.get(&group)?.certain(since, until, confirmed)
    }

    /// The level at which it is certainly subscribed now.
    pub(crate) fn settled(&self, group: Group) -> Option<Level> {
        self.interests.get(&group).and_then(Interest::settled)
    }

    /// The groups that it has asked for, some of them long ago.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> {
        self.interests.keys().copied()
    }

    /// It may be sent so much only, as long as it is connected.
    pub(crate) fn limit(&mut self) {
        self.is_limited = true;
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// It is handed an update of a publisher's connection, or of one of its flows. Returns the newest of
    /// those before, or `id` if there was none. Updates before `first` will not come any more.
    pub(crate) fn hand(&mut self, flow: (u64, Option<Address>), id: u64, first: u64) -> u64 {
        if self.newest.len() >= self.prune_at {
            self.newest.retain(|_, newest| *newest >= first);
            self.prune_at = self.newest.len() * 2 + FEW;
        }
        let newest = self.newest.entry(flow).or_insert(id);
        let before = *newest;
        *newest = before.max(id);
        before
    }

    /// Forgets, now and then, what was before `horizon`.
    fn tidy(&mut self, horizon: Time) {
        if self.interests.len() >= self.tidy_at {
            self.interests.retain(|_, interest| interest.forget(horizon));
            self.tidy_at = self.interests.len() * 2 + FEW;
        }
    }

    /// The highest level at which it may have been subscribed between two times.
    pub(crate) fn possible(&self, group: Group, from: Time, to: Time) -> Option<Level> {
        self.interests.get(&group).and_then(|interest| interest.possible(from, to))
    }

    /// Whether its connection is younger than an update published at `published`.
    pub(crate) fn is_newcomer(&self, published: Time) -> bool {
        self.addresses.last().is_none_or(|(_, since, _)| *since > published)
    }

    /// Whether what the relay sent to it at `sent` may have been meant for who had its ip:port
    /// before.
    pub(crate) fn is_for_predecessor(&self, sent: Time) -> bool {
        sent <= self.predecessor_until
    }

    /// The groups for which the relay must hold a subscription, now that nothing changes any more,
    /// and the endpoint number that says on which data thread.
    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = (u16, Comtree, Group)> {
        let endpoint = self.addresses.last().map_or(0, |(own, _, _)| own.endpoint());
        let lasting = self.interests.iter().filter(|(_, interest)| interest.is_lasting());
        lasting.map(move |(group, _)| (endpoint, self.comtree, *group))
    }

    /// Whether it is in the world.
    pub(crate) fn is_in_the_world(&self) -> bool {
        self.steady.is_some()
    }

    /// The address that it had last, or has.
    pub(crate) fn last_address(&self) -> Option<Address> {
        self.addresses.last().map(|(own, _, _)| *own)
    }

    /// Whether an address is its own now.
    pub(crate) fn has_address(&self, address: Address) -> bool {
        self.connected && self.addresses.last().is_some_and(|(own, _, _)| *own == address)
    }

    /// Whether an address was its own at some time since `since`.
    pub(crate) fn had_address(&self, address: Address, since: Time) -> bool {
        self.addresses
            .iter()
            .any(|(own, _, until)| *own == address && until.is_none_or(|until| until >= since))
    }

    /// Whether the last thing that went wrong is so long ago that it has no more consequences.
    pub(crate) fn is_untroubled(&self, now: Time, patience: Duration) -> bool {
        now.since(self.trouble) > patience
    }

    /// What it has been waiting for beyond all patience, in words.
    pub(crate) fn is_stuck(&self, now: Time, patience: Duration) -> Option<String> {
        if !self.present {
            return None;
        }
        if self.steady.is_none() {
            if now.since(self.trouble.max(self.steady_before.1)) <= patience {
                return None;
            }
            let what = if self.connected { "known by its ip:port" } else { "connected" };
            return Some(format!("is not {what}"));
        }
        let overdue = |interest: &Interest| interest.is_overdue(now, self.trouble, patience);
        let (group, _) = self.interests.iter().find(|(_, interest)| overdue(interest))?;
        Some(format!("has no answer about its subscription to {group:?}"))
    }

    fn connect(&mut self, now: Time, address: Address, connection: u64) {
        self.disconnect(now);
        self.connected = true;
        self.bound = true;
        self.connection = connection;
        self.newest.clear();
        self.is_limited = false;
        self.know_ip_port(now);
        self.forget_addresses();
        self.addresses.push((address, now, None));
        for interest in self.interests.values_mut() {
            interest.restart(now);
        }
        self.settle(now);
    }

    /// Nothing that was sent to older ones can still be on its way.
    fn forget_addresses(&mut self) {
        let surplus = self.addresses.len().saturating_sub(MAX_ADDRESSES - 1);
        self.addresses.drain(..surplus);
    }

    fn settle(&mut self, now: Time) {
        if self.present && self.connected && self.bound {
            self.steady.get_or_insert(now);
        } else if let Some(since) = self.steady.take() {
            self.steady_before = (since, now);
        }
    }

    fn know_ip_port(&mut self, now: Time) {
        if self.predecessor_until == OPEN {
            self.predecessor_until = now;
        }
    }

    fn is_silent(&self, now: Time, lifetime: Duration) -> bool {
        now.since(self.heard) > lifetime
    }

    fn interest(&mut self, group: Group) -> &mut Interest {
        self.interests.entry(group).or_default()
    }
}
