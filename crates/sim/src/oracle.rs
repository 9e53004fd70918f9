//! The reference model: slow, obvious, and ignorant of the relay's tables.
//!
//! It is told what applications published and asked for, what their sessions told them, and what
//! the network did to which datagram. From that alone an update *must* reach a participant (its
//! subscription was acknowledged before the update was published and is still wanted when the
//! update can be nowhere any more, both sides were in the world throughout, and the network took
//! none of the copies), *may* (something was in transition), or *must not*.

use crate::payload;
use crate::scenario::{Scenario, patience, taint};
use crate::standing::Standing;
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Level, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Expiry is not exact.
const SLACK: Duration = Duration::from_millis(300);
/// How many findings are kept in words.
const MAX_FINDINGS: usize = 12;

/// An update that an application publishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publish {
    pub(crate) publisher: usize,
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) level: Level,
    pub(crate) echo: bool,
    /// Whether later datagrams of the publisher's may overtake it.
    pub(crate) overtaken: bool,
}

/// An update that a session hands to its application.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) level: Level,
    pub(crate) payload: Vec<u8>,
}

/// How an update came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carriage {
    /// When the relay sent it.
    pub(crate) sent: Time,
    /// It is the network's copy of a datagram that arrived before.
    pub(crate) copy: bool,
    /// Whether later datagrams to the receiver may overtake it.
    pub(crate) overtaken: bool,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) expected: u64,
    pub(crate) excused: u64,
    pub(crate) deliveries: u64,
    pub(crate) missing: u64,
    pub(crate) duplicates: u64,
    pub(crate) unexpected: u64,
    pub(crate) out_of_order: u64,
    pub(crate) stuck: u64,
    pub(crate) broken: u64,
    pub(crate) findings: Vec<String>,
}

struct Update {
    publish: Publish,
    comtree: Comtree,
    connection: u64,
    published: Time,
    /// When the relay first read it, and how often it did.
    read: Option<Time>,
    reads: u32,
    /// Bits of it were flipped on the way to the relay: what the relay read is anyone's guess.
    garbled: bool,
    /// By participant: how often it was handed over, network copies apart.
    handed: Vec<u32>,
    /// Participants to whom the network lost a datagram with it.
    excused: BTreeSet<usize>,
}

/// Says what has to arrive, what may, what must not.
pub(crate) struct Oracle {
    hold: Duration,
    way_down: Duration,
    lifetime: Duration,
    /// How long a subscription certainly lasts after its acknowledgement has arrived.
    unrefreshed: Duration,
    /// How long what came of a flipped bit can last in soft state.
    taint: Duration,
    patience: Duration,
    standings: Vec<Standing>,
    connections: u64,
    /// By number.
    updates: Vec<Update>,
    /// Updates to judge, by when all their copies have arrived.
    due: BTreeSet<(Time, u64)>,
    /// By publisher's and receiver's connection: the newest update handed over.
    newest: BTreeMap<(u64, u64), u64>,
    /// Until when updates may come of which the relay read flipped bits.
    garbled_until: Time,
    pub(crate) tally: Tally,
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario, comtrees: impl Iterator<Item = Comtree>) -> Oracle {
        let limits = &scenario.limits;
        Oracle {
            hold: scenario.longest_hold(),
            way_down: scenario.longest_way_down(),
            lifetime: limits.lifetime,
            unrefreshed: limits.subscription.saturating_sub(scenario.longest_way_down() + SLACK),
            taint: taint(limits),
            patience: patience(limits),
            standings: comtrees.map(Standing::new).collect(),
            connections: 0,
            updates: Vec::new(),
            due: BTreeSet::new(),
            newest: BTreeMap::new(),
            garbled_until: Time::ZERO,
            tally: Tally::default(),
        }
    }

    /// The participant's standing, to be told what happens to it.
    pub(crate) fn standing(&mut self, participant: usize) -> &mut Standing {
        &mut self.standings[participant]
    }

    /// A session told its application something.
    pub(crate) fn event(&mut self, now: Time, participant: usize, event: Event) {
        self.connections += 1;
        let standing = &mut self.standings[participant];
        let uncalled = event == Event::Lost && standing.is_blameless(now, self.patience);
        standing.event(now, event, self.connections);
        if uncalled {
            let what = format!("{now}: participant {participant} lost its relay without a cause");
            self.broken(what);
        }
    }

    /// The relay is gone with all that it knew, or it is back, or it is about to go.
    pub(crate) fn relay_changed(&mut self, now: Time, gone: bool) {
        for standing in &mut self.standings {
            standing.excuse(now);
            if gone {
                standing.disconnect(now);
            }
        }
    }

    /// An application publishes; the number that comes back makes the payload.
    pub(crate) fn publish(&mut self, now: Time, publish: Publish) -> u64 {
        let publisher = &self.standings[publish.publisher];
        self.updates.push(Update {
            publish,
            comtree: publisher.comtree,
            connection: publisher.connection,
            published: now,
            read: None,
            reads: 0,
            garbled: false,
            handed: vec![0; self.standings.len()],
            excused: BTreeSet::new(),
        });
        self.updates.len() as u64 - 1
    }

    pub(crate) fn published(&self) -> u64 {
        self.updates.len() as u64
    }

    /// The relay reads a whole datagram of a participant's with these updates.
    pub(crate) fn read(&mut self, now: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].heard(now, self.lifetime);
        for id in updates {
            let Some(update) = self.updates.get_mut(*id as usize) else { continue };
            update.reads += 1;
            if update.read.is_none() {
                update.read = Some(now);
                self.due.insert((now + self.hold + self.way_down, *id));
            }
        }
    }

    /// Bits of a datagram from a participant, which carried these updates, are flipped.
    pub(crate) fn flipped(&mut self, arrives: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].taint(arrives + self.taint);
        for id in updates {
            if let Some(update) = self.updates.get_mut(*id as usize) {
                update.garbled = true;
            }
        }
        let gone = arrives + self.hold + self.way_down;
        self.garbled_until = self.garbled_until.max(gone);
    }

    /// The network lost a datagram from or to a participant. `updates` are those on their way down.
    pub(crate) fn lost(&mut self, now: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].excuse(now);
        for id in updates {
            if let Some(update) = self.updates.get_mut(*id as usize) {
                update.excused.insert(participant);
            }
        }
    }

    /// A session hands an update to its application.
    pub(crate) fn received(
        &mut self,
        now: Time,
        participant: usize,
        received: &Received,
        carriage: Carriage,
    ) {
        if self.standings[participant].is_heir(carriage.sent) {
            return;
        }
        let id = payload::identify(&received.payload).filter(|id| *id < self.published());
        let Some(id) = id else {
            if now > self.garbled_until {
                let Received { src, dst, .. } = received;
                self.unexpected(
                    now,
                    participant,
                    &format!("bytes from {src} to {dst} that no one published"),
                );
            }
            return;
        };
        if let Some(why) = self.objection(participant, id, received, carriage.sent) {
            let update = &self.updates[id as usize];
            if !update.garbled && !self.standings[participant].is_unsure(now) {
                let what = format!("{}: {why}", self.describe(id));
                self.unexpected(now, participant, &what);
            }
            return;
        }
        self.count(now, participant, id, carriage);
    }

    /// Judges the updates of which no copy can be on its way any more.
    pub(crate) fn judge(&mut self, now: Time) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due < now) {
            self.due.remove(&(due, id));
            for receiver in 0..self.standings.len() {
                self.judge_one(now, id, receiver);
            }
        }
        for participant in 0..self.standings.len() {
            let standing = &mut self.standings[participant];
            if let Some(what) = standing.is_stuck(now, self.patience) {
                standing.excuse(now);
                self.tally.stuck += 1;
                self.note(format!(
                    "{now}: participant {participant} {what}, and nothing hinders it"
                ));
            }
        }
    }

    /// At the end, when all is well and nothing changes any more, the relay must hold just the
    /// sessions, subscriptions and groups that there are: what was left behind must have expired.
    pub(crate) fn check_remains(&mut self, now: Time, shards: u16, held: [u32; 3]) {
        if self.standings.iter().any(|standing| standing.is_unsure(now)) {
            return;
        }
        let present = || self.standings.iter().filter(|standing| standing.is_in_the_world());
        let groups: BTreeSet<_> = present()
            .flat_map(Standing::subscriptions)
            .map(|(endpoint, comtree, group)| (endpoint % shards, comtree, group))
            .collect();
        let subscriptions = present().flat_map(Standing::subscriptions).count();
        let there_are = [present().count(), subscriptions, groups.len()];
        if held.map(|count| count as usize) != there_are {
            self.broken(format!(
                "{now}: the relay holds {held:?} sessions, subscriptions, groups; there are {there_are:?}"
            ));
        }
    }

    /// Something that never may be was seen elsewhere.
    pub(crate) fn broken(&mut self, what: String) {
        self.tally.broken += 1;
        self.note(what);
    }

    fn judge_one(&mut self, now: Time, id: u64, receiver: usize) {
        let update = &self.updates[id as usize];
        if !self.must(now, update, receiver) {
            return;
        }
        if update.handed[receiver] > 0 {
            self.tally.expected += 1;
        } else if update.excused.contains(&receiver) {
            self.tally.excused += 1;
        } else {
            self.tally.expected += 1;
            self.tally.missing += 1;
            let what = self.describe(id);
            self.note(format!("{now}: participant {receiver} misses {what}"));
        }
    }

    fn must(&self, now: Time, update: &Update, receiver: usize) -> bool {
        let Update { publish, published, .. } = update;
        let steady = |participant: usize| {
            self.standings[participant].is_steady(*published, now, self.lifetime)
        };
        let standing = &self.standings[receiver];
        let own = update.connection == standing.connection;
        !update.garbled
            && update.comtree == standing.comtree
            && steady(publish.publisher)
            && steady(receiver)
            && (publish.echo || !publish.dst.is_group() || !own)
            && match publish.dst.group() {
                Some(group) => {
                    let confirmed = now - self.unrefreshed;
                    standing.certain(group, *published, confirmed) >= Some(publish.level)
                }
                None => standing.has_address(publish.dst),
            }
    }

    /// Why an update must not have come to a participant in this form, if so.
    fn objection(
        &self,
        participant: usize,
        id: u64,
        received: &Received,
        sent: Time,
    ) -> Option<&'static str> {
        let standing = &self.standings[participant];
        let update = &self.updates[id as usize];
        let Publish { src, dst, level, echo, .. } = update.publish;
        let Some(read) = update.read else { return Some("the relay cannot have it") };
        if (received.src, received.dst, received.level) != (src, dst, level) {
            return Some("it has another source, destination or level");
        }
        if update.comtree != standing.comtree {
            return Some("it is another comtree's");
        }
        if update.connection == standing.connection && dst.is_group() && !echo {
            return Some("it is its own");
        }
        match dst.group() {
            Some(group) => (standing.possible(group, read, sent) < Some(level))
                .then_some("it is not subscribed at that level"),
            None => (!standing.had_address(dst, read)).then_some("it never had that address"),
        }
    }

    fn count(&mut self, now: Time, participant: usize, id: u64, carriage: Carriage) {
        let update = &mut self.updates[id as usize];
        let is_first = update.handed[participant] == 0;
        if !carriage.copy {
            update.handed[participant] += 1;
        }
        // A newcomer may get an update through its last session, too, if another data thread
        // held that one.
        let is_newcomer = self.standings[participant].is_newcomer(update.published);
        let is_again = update.handed[participant] > update.reads && !update.garbled && !is_newcomer;
        if is_first {
            self.tally.deliveries += 1;
            self.check_order(now, participant, id, carriage);
        } else if is_again && !carriage.copy {
            self.tally.duplicates += 1;
            let what = self.describe(id);
            self.note(format!("{now}: participant {participant} got again {what}"));
        }
    }

    fn check_order(&mut self, now: Time, participant: usize, id: u64, carriage: Carriage) {
        let update = &self.updates[id as usize];
        let path = (update.connection, self.standings[participant].connection);
        let newest = self.newest.get(&path).copied().unwrap_or(id);
        self.newest.insert(path, newest.max(id));
        if id < newest && !carriage.overtaken && !update.publish.overtaken {
            self.tally.out_of_order += 1;
            let what = self.describe(id);
            self.note(format!("{now}: participant {participant} got after update {newest} {what}"));
        }
    }

    fn unexpected(&mut self, now: Time, participant: usize, what: &str) {
        self.tally.unexpected += 1;
        self.note(format!("{now}: participant {participant} got {what}"));
    }

    fn describe(&self, id: u64) -> String {
        let Update { publish, published, comtree, .. } = &self.updates[id as usize];
        let Publish { publisher, src, dst, level, .. } = publish;
        format!(
            "update {id} of participant {publisher} ({src}) to {dst} of comtree {} at level {}, published at {published}",
            comtree.0, level.0
        )
    }

    fn note(&mut self, what: String) {
        if self.tally.findings.len() < MAX_FINDINGS {
            self.tally.findings.push(what);
        }
    }
}
