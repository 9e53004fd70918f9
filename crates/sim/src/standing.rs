//! What the oracle knows about one participant.

use crate::interest::Interest;
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// What was meant for another may come to an ip:port that was the other's, until the relay knows
/// who has it now.
#[derive(Clone, Copy, Debug)]
enum Inheritance {
    Open,
    /// What is sent later is not the other's.
    Closed(Time),
}

/// One participant, as its application and its session tell.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) comtree: Comtree,
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
    /// When they last ceased to.
    shaken: Time,
    /// Until when the relay may have read from it what it never sent.
    unsure_until: Time,
    /// When the relay last read something from it.
    heard: Time,
    /// When something last went wrong for it that was not the relay's or the session's fault.
    blameless: Time,
    inheritance: Inheritance,
    /// The addresses that it has had, from when to when.
    addresses: Vec<(Address, Time, Option<Time>)>,
    interests: BTreeMap<Group, Interest>,
}

impl Standing {
    pub(crate) fn new(comtree: Comtree) -> Standing {
        Standing {
            comtree,
            connection: 0,
            present: false,
            connected: false,
            bound: false,
            steady: None,
            shaken: Time::ZERO,
            unsure_until: Time::ZERO,
            heard: Time::ZERO,
            blameless: Time::ZERO,
            inheritance: Inheritance::Closed(Time::ZERO),
            addresses: Vec::new(),
            interests: BTreeMap::new(),
        }
    }

    /// Its application starts.
    pub(crate) fn appear(&mut self, now: Time) {
        self.present = true;
        self.excuse(now);
        self.settle(now);
    }

    /// Its application has gone, or is leaving.
    pub(crate) fn vanish(&mut self, now: Time) {
        self.present = false;
        self.disconnect(now);
        for interest in self.interests.values_mut() {
            interest.abandon();
        }
    }

    /// What its session told it. `connection` is the number of a connection that begins.
    pub(crate) fn event(&mut self, now: Time, event: Event, connection: u64) {
        match event {
            Event::Connected(address) => self.connect(now, address, connection),
            Event::Lost | Event::Closed => self.disconnect(now),
            Event::ThreadFull | Event::Refused(_) => self.excuse(now),
            Event::Subscribed(group, level) => {
                self.interest(group).acknowledged(now, Some(level));
            }
            Event::Unsubscribed(group) => self.interest(group).acknowledged(now, None),
            Event::SubscriptionRefused(group, _) => self.interest(group).refused(now),
            // Told when the proof is sent, not when it is taken: see `reached`.
            Event::Rebound => {}
        }
    }

    /// Its application asks for a level of a group, or for none.
    pub(crate) fn request(&mut self, now: Time, group: Group, wanted: Option<Level>) {
        self.interest(group).request(now, wanted);
    }

    /// It sends from another ip:port from now on.
    pub(crate) fn rebind(&mut self, now: Time) {
        self.bound = false;
        self.excuse(now);
        self.settle(now);
    }

    /// It has another ip:port, perhaps one that was another's, to whom the relay may be sending
    /// still.
    pub(crate) fn move_in(&mut self, was_anothers: bool) {
        self.inheritance =
            if was_anothers { Inheritance::Open } else { Inheritance::Closed(Time::ZERO) };
    }

    /// The relay acknowledged something to its address at its present ip:port.
    pub(crate) fn reached(&mut self, now: Time) {
        self.bound = true;
        self.inheritance.close(now);
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
    pub(crate) fn taint(&mut self, until: Time) {
        self.unsure_until = self.unsure_until.max(until);
        self.excuse(until);
    }

    /// Something went wrong that was not the relay's or the session's fault.
    pub(crate) fn excuse(&mut self, now: Time) {
        self.blameless = self.blameless.max(now);
    }

    /// Whether, from `since` until `now`, it was in the world without any doubt.
    pub(crate) fn is_steady(&self, since: Time, now: Time, lifetime: Duration) -> bool {
        self.steady.is_some_and(|steady| steady <= since)
            && !self.is_unsure(since)
            && !self.is_silent(now, lifetime)
    }

    /// Whether the relay may have read at `now` what it never sent, or hold what came of it.
    pub(crate) fn is_unsure(&self, now: Time) -> bool {
        now <= self.unsure_until
    }

    /// The level at which it has certainly been subscribed since `since`, acknowledged at
    /// `confirmed` or later.
    pub(crate) fn certain(&self, group: Group, since: Time, confirmed: Time) -> Option<Level> {
        self.interests.get(&group).and_then(|interest| interest.certain(since, confirmed))
    }

    /// The highest level at which it may have been subscribed between two times.
    pub(crate) fn possible(&self, group: Group, from: Time, to: Time) -> Option<Level> {
        self.interests.get(&group).and_then(|interest| interest.possible(from, to))
    }

    /// Whether its connection is younger than an update published at `published`.
    pub(crate) fn is_newcomer(&self, published: Time) -> bool {
        self.addresses.last().is_none_or(|(_, since, _)| *since > published)
    }

    /// Whether what the relay sent to it at `sent` may have been meant for another.
    pub(crate) fn is_heir(&self, sent: Time) -> bool {
        match self.inheritance {
            Inheritance::Open => true,
            Inheritance::Closed(at) => sent <= at,
        }
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

    /// Whether nothing has gone wrong for so long that nothing may still come of it.
    pub(crate) fn is_blameless(&self, now: Time, patience: Duration) -> bool {
        now.since(self.blameless) > patience
    }

    /// What it has been waiting for beyond all patience, in words.
    pub(crate) fn is_stuck(&self, now: Time, patience: Duration) -> Option<String> {
        if !self.present {
            return None;
        }
        if self.steady.is_none() {
            if now.since(self.blameless.max(self.shaken)) <= patience {
                return None;
            }
            let what = if self.connected { "known by its ip:port" } else { "connected" };
            return Some(format!("is not {what}"));
        }
        let overdue = |interest: &Interest| interest.is_overdue(now, self.blameless, patience);
        let (group, _) = self.interests.iter().find(|(_, interest)| overdue(interest))?;
        Some(format!("has no answer about its subscription to {group:?}"))
    }

    fn connect(&mut self, now: Time, address: Address, connection: u64) {
        self.disconnect(now);
        self.connected = true;
        self.bound = true;
        self.connection = connection;
        self.inheritance.close(now);
        self.addresses.push((address, now, None));
        for interest in self.interests.values_mut() {
            interest.restart(now);
        }
        self.settle(now);
    }

    fn settle(&mut self, now: Time) {
        if self.present && self.connected && self.bound {
            self.steady.get_or_insert(now);
        } else if self.steady.take().is_some() {
            self.shaken = now;
        }
    }

    fn is_silent(&self, now: Time, lifetime: Duration) -> bool {
        now.since(self.heard) > lifetime
    }

    fn interest(&mut self, group: Group) -> &mut Interest {
        self.interests.entry(group).or_default()
    }
}

impl Inheritance {
    fn close(&mut self, now: Time) {
        if let Inheritance::Open = self {
            *self = Inheritance::Closed(now);
        }
    }
}
