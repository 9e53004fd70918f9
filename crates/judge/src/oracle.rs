//! The reference model: slow to doubt, obvious, and ignorant of the relay's tables.
//!
//! It is told what applications published and asked for, what their sessions told them, and what
//! the network did to which datagram. From that alone an update *must* reach a participant (its
//! subscription was acknowledged before the update was published and is still wanted when the
//! update should have come, both sides were in the world throughout, and the network took none of
//! the copies), *may* (something was in transition), or *must not*.
//!
//! An update costs what its receivers cost, not what all participants cost: who is subscribed is
//! kept by group. Once no copy can be on its way any more it is forgotten.

use crate::rules::Rules;
use crate::standing::Standing;
use crate::tally::Tally;
use crate::threads::Between;
use crate::window::{Publish, Update, Window};
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Participants of whom one call of [`Oracle::judge`] asks whether they are stuck.
const LOOKS: usize = 256;

/// An update that a session hands to its application.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Its number, as far as its payload tells; `None` if the payload is no one's.
    pub id: Option<u64>,
    /// Its publisher, as the relay says.
    pub src: Address,
    /// Where it was sent to.
    pub dst: Address,
    /// The level that it was published at.
    pub level: Level,
}

/// How an update came.
#[derive(Clone, Copy, Debug)]
pub struct Carriage {
    /// When the relay sent it.
    pub sent: Time,
    /// It is the network's copy of a datagram that arrived before, or will.
    pub copy: bool,
    /// Whether later datagrams to the receiver may overtake it.
    pub overtaken: bool,
}

/// Says what has to arrive, what may, what must not.
pub struct Oracle {
    pub(crate) rules: Rules,
    pub(crate) standings: Vec<Standing>,
    connections: u64,
    pub(crate) window: Window,
    /// Who is certainly subscribed.
    subscribed: BTreeMap<(Comtree, Group), BTreeSet<u32>>,
    /// Who last connected with an address.
    holders: BTreeMap<(Comtree, Address), BTreeSet<u32>>,
    /// Until when updates may come of which the relay read flipped bits.
    garbled_until: Time,
    /// The next to be asked whether it is stuck.
    look_at: usize,
    pub(crate) tally: Tally,
    /// What the relay says it has left out for receivers that cannot be sent everything.
    pub(crate) left_out: u64,
    /// What it says that it has lost between its data threads.
    pub(crate) between: Between,
}

/// What happens to participants.
impl Oracle {
    /// An oracle for participants on these comtrees, numbered in this order.
    pub fn new(rules: Rules, comtrees: impl Iterator<Item = Comtree>) -> Oracle {
        Oracle {
            rules,
            standings: comtrees.map(Standing::new).collect(),
            connections: 0,
            window: Window::default(),
            subscribed: BTreeMap::new(),
            holders: BTreeMap::new(),
            garbled_until: Time::ZERO,
            look_at: 0,
            tally: Tally::default(),
            left_out: 0,
            between: Between::NOTHING,
        }
    }

    /// The sums so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// A participant asks this relay, by number, from now on. Unless it is said, all have one relay.
    pub fn reside(&mut self, participant: usize, relay: u32) {
        self.standings[participant].relay = relay;
    }

    /// A participant's application starts.
    pub fn appear(&mut self, now: Time, participant: usize) {
        self.standings[participant].appear(now);
    }

    /// Its application has gone, or is leaving.
    pub fn vanish(&mut self, now: Time, participant: usize) {
        self.standings[participant].vanish(now);
        self.index_all(participant);
    }

    /// It sends from another ip:port from now on.
    pub fn rebind(&mut self, now: Time, participant: usize) {
        self.standings[participant].rebind(now);
    }

    /// It has another ip:port, perhaps one that was another's, to whom the relay may be sending
    /// still.
    pub fn move_in(&mut self, participant: usize, was_anothers: bool) {
        self.standings[participant].move_in(was_anothers);
    }

    /// The relay acknowledged something to its address at its present ip:port.
    pub fn confirm(&mut self, now: Time, participant: usize) {
        self.standings[participant].confirm(now);
    }

    /// The relay that it is connected to is no more, and it does not know yet.
    pub fn disconnect(&mut self, now: Time, participant: usize) {
        self.standings[participant].disconnect(now);
    }

    /// Its application asks for a level of a group, or for none.
    pub fn request(&mut self, now: Time, participant: usize, group: Group, level: Option<Level>) {
        let horizon = now - self.rules.forgotten;
        self.standings[participant].request(now, group, level, horizon);
        self.index(participant, group);
    }

    /// Its session told its application something.
    pub fn event(&mut self, now: Time, participant: usize, event: Event) {
        self.connections += 1;
        let standing = &mut self.standings[participant];
        let is_untroubled = |patience| standing.is_untroubled(now, patience);
        let uncalled = event == Event::Lost && self.rules.patience.is_some_and(is_untroubled);
        let before = (standing.comtree, standing.last_address());
        if let Event::Subscribed(group, _) = event {
            standing.lapse(now, group, self.rules.unrefreshed);
        }
        standing.event(now, event, self.connections);
        match event {
            Event::Connected(address) => {
                self.move_holder(participant as u32, before, address);
                self.index_all(participant);
            }
            Event::Subscribed(group, _)
            | Event::Unsubscribed(group)
            | Event::SubscriptionRefused(group, _) => self.index(participant, group),
            _ => {}
        }
        if uncalled {
            let what = format!("{now}: participant {participant} lost its relay without a cause");
            self.broken(what);
        }
    }

    /// The relay is gone with all that it knew, or it is back, or it is about to go.
    pub fn relay_changed(&mut self, now: Time, gone: bool) {
        for standing in &mut self.standings {
            standing.trouble(now);
            if gone {
                standing.disconnect(now);
            }
        }
    }

    /// The number of a participant's latest connection; 0 before the first.
    pub fn connection(&self, participant: usize) -> u64 {
        self.standings[participant].connection
    }

    /// Whether what the relay sent to a participant's ip:port at `sent` may have been meant for
    /// whoever had that before.
    pub fn is_for_predecessor(&self, participant: usize, sent: Time) -> bool {
        self.standings[participant].is_for_predecessor(sent)
    }

    /// A participant that is connected goes on at another relay, where it has this address, and what it is subscribed to.
    /// Nothing may be missing, doubled or overtaken by that.
    pub fn hand_over(&mut self, now: Time, participant: usize, address: Address) {
        let standing = &mut self.standings[participant];
        let before = (standing.comtree, standing.last_address());
        standing.hand_over(now, address);
        self.move_holder(participant as u32, before, address);
    }

    fn move_holder(
        &mut self,
        who: u32,
        (comtree, before): (Comtree, Option<Address>),
        address: Address,
    ) {
        if let Some(holders) = before.and_then(|own| self.holders.get_mut(&(comtree, own))) {
            holders.remove(&who);
        }
        self.holders.entry((comtree, address)).or_default().insert(who);
    }

    fn index_all(&mut self, participant: usize) {
        let groups: Vec<Group> = self.standings[participant].groups().collect();
        for group in groups {
            self.index(participant, group);
        }
    }

    /// Keeps the list of a group's subscribers right after a change of one of them.
    fn index(&mut self, participant: usize, group: Group) {
        let standing = &self.standings[participant];
        let (key, who) = ((standing.comtree, group), participant as u32);
        if standing.settled(group).is_some() {
            self.subscribed.entry(key).or_default().insert(who);
        } else if let Some(members) = self.subscribed.get_mut(&key) {
            members.remove(&who);
            if members.is_empty() {
                self.subscribed.remove(&key);
            }
        }
    }
}

/// What happens to updates.
impl Oracle {
    /// An application publishes; the number that comes back belongs into the payload.
    pub fn publish(&mut self, now: Time, publish: Publish) -> u64 {
        let Standing { comtree, connection, .. } = self.standings[publish.publisher];
        self.tally.published += 1;
        let mut receivers = self.window.spare();
        let key = publish.dst.group().map(|group| (comtree, group));
        let members = match key {
            Some(key) => self.subscribed.get(&key),
            None => self.holders.get(&(comtree, publish.dst)),
        };
        for who in members.into_iter().flatten() {
            let standing = &self.standings[*who as usize];
            let is_spared = standing.connection == connection && key.is_some() && !publish.echo;
            let listens = match key {
                Some((_, group)) => standing.settled(group) >= Some(publish.level),
                None => standing.has_address(publish.dst),
            };
            if standing.is_in_the_world() && !is_spared && listens {
                receivers.due(*who, standing.last_address());
            }
        }
        self.window.publish(Update::new(publish, comtree, connection, now, receivers))
    }

    /// A copy of these updates comes to the relay when later ones may have come already.
    pub fn copy_is_late(&mut self, updates: &[u64]) {
        for id in updates {
            if let Some(update) = self.window.get_mut(*id) {
                update.publish.overtaken = true;
            }
        }
    }

    /// The relay reads a whole datagram of a participant's with these updates.
    pub fn read(&mut self, now: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].heard(now, self.rules.lifetime);
        for id in updates {
            self.window.read(now, *id, now + self.rules.delivery);
        }
    }

    /// Bits of a datagram from a participant, which carried these updates, are flipped.
    pub fn flipped(&mut self, arrives: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].distrust(arrives + self.rules.corruption);
        for id in updates {
            if let Some(update) = self.window.get_mut(*id) {
                update.garbled = true;
            }
        }
        self.garbled_until = self.garbled_until.max(arrives + self.rules.delivery);
    }

    /// The network lost a datagram from or to a participant. `updates` are those on their way down.
    pub fn lost(&mut self, now: Time, participant: usize, updates: &[u64]) {
        self.standings[participant].trouble(now);
        for id in updates {
            if let Some(update) = self.window.get_mut(*id) {
                let receiver = update.receivers.of(participant as u32);
                receiver.lost = true;
                // It was not left out, but waited for longer than was thought.
                self.tally.thinned -= u64::from(core::mem::take(&mut receiver.left_out));
            }
        }
    }

    /// The budgets of those who are limited do not hold everything, so that the relay may leave this update
    /// out for them. To be said before anybody has received it.
    pub fn may_be_left_out(&mut self, update: u64, is_limited: impl Fn(u32) -> bool) {
        let Some(update) = self.window.get_mut(update) else { return };
        for (who, receiver) in update.receivers.iter_mut() {
            receiver.lost |= is_limited(who);
        }
    }

    /// A session hands an update to its application.
    pub fn received(
        &mut self,
        now: Time,
        participant: usize,
        received: &Received,
        carriage: Carriage,
    ) {
        if self.standings[participant].is_for_predecessor(carriage.sent) {
            return;
        }
        let Some(id) = received.id.filter(|id| self.window.get(*id).is_some()) else {
            if now > self.garbled_until {
                let Received { src, dst, .. } = received;
                let what = format!("bytes from {src} to {dst} that no one published lately");
                self.unexpected(now, participant, &what);
            }
            return;
        };
        match self.objection(participant, id, received, carriage.sent) {
            None => self.count(now, participant, id, carriage),
            Some(why) => {
                let garbled = self.window.get(id).is_some_and(|update| update.garbled);
                if !garbled && !self.standings[participant].is_distrusted(now) {
                    let what = format!("{}: {why}", self.window.describe(id));
                    self.unexpected(now, participant, &what);
                }
            }
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
        let update = self.window.get(id)?;
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
        // What waited is sent no more to who does not want it any more.
        let wanted = read.max(sent - (self.rules.delivery - self.rules.waits));
        match dst.group() {
            Some(group) => (standing.possible(group, wanted, sent) < Some(level))
                .then_some("it is not subscribed at that level"),
            None => (!standing.had_address(dst, read)).then_some("it never had that address"),
        }
    }

    fn count(&mut self, now: Time, participant: usize, id: u64, carriage: Carriage) {
        let first = self.window.first();
        let Some(update) = self.window.get_mut(id) else { return };
        let standing = &mut self.standings[participant];
        let receiver = update.receivers.of(participant as u32);
        let is_first = !receiver.came;
        receiver.came = true;
        receiver.address = receiver.address.or(standing.last_address());
        self.tally.thinned -= u64::from(core::mem::take(&mut receiver.left_out));
        receiver.handed += u32::from(!carriage.copy);
        // A newcomer may get an update through its last session, too, if another data thread
        // held that one.
        let is_newcomer = standing.is_newcomer(update.published);
        let is_again = receiver.handed > update.reads && !update.garbled && !is_newcomer;
        if is_first {
            self.tally.deliveries += 1;
            // What waits is in order within its flow.
            let may_wait = self.rules.waits > Duration::ZERO;
            let flow = may_wait.then_some(update.publish.dst);
            let newest = standing.hand((update.connection, flow), id, first);
            // The relay read it twice, and the network took the first of what it sent then.
            let is_second = receiver.lost && update.reads > 1;
            if id < newest && !carriage.overtaken && !update.publish.overtaken && !is_second {
                self.tally.note_overtaken(update.published);
                self.note(|window| {
                    let what = window.describe(id);
                    format!("{now}: participant {participant} got after update {newest} {what}")
                });
            }
        } else if is_again && !carriage.copy {
            self.tally.note_doubled(update.published);
            self.note(|window| {
                format!("{now}: participant {participant} got again {}", window.describe(id))
            });
        }
    }
}

/// Judging.
impl Oracle {
    /// Judges the updates of which no copy can be on its way any more, and finds who is stuck.
    pub fn judge(&mut self, now: Time) {
        while let Some(id) = self.window.next_due(now) {
            self.judge_update(now, id);
        }
        self.window.forget(now - self.rules.forgotten);
        self.check_left_out(now);
        let Some(patience) = self.rules.patience else { return };
        for _ in 0..LOOKS.min(self.standings.len()) {
            let participant = self.look_at;
            self.look_at = (participant + 1) % self.standings.len();
            let standing = &mut self.standings[participant];
            if let Some(what) = standing.is_stuck(now, patience) {
                standing.trouble(now);
                self.tally.stuck += 1;
                self.note(|_| {
                    format!("{now}: participant {participant} {what}, and nothing hinders it")
                });
            }
        }
    }

    /// Judges everything that the relay has read: the run is over.
    pub fn judge_all(&mut self, now: Time) {
        while let Some(id) = self.window.next_due(Time::from_nanos(u64::MAX)) {
            self.judge_update(now, id);
        }
    }

    /// How many updates are not forgotten yet.
    pub fn updates_held(&self) -> usize {
        self.window.len()
    }

    /// Whether everything that had to come about when it was published has.
    pub fn is_settled(&self) -> bool {
        self.window.is_settled()
    }

    /// At the end, when all is well and nothing changes any more, the relay must hold just the
    /// sessions, subscriptions and groups that there are: what was left behind must have expired.
    pub fn check_remains(&mut self, now: Time, threads: u16, held: [u32; 3]) {
        if self.standings.iter().any(|standing| standing.is_distrusted(now)) {
            return;
        }
        let present = || self.standings.iter().filter(|standing| standing.is_in_the_world());
        let groups: BTreeSet<_> = present()
            .flat_map(Standing::subscriptions)
            .map(|(endpoint, comtree, group)| (endpoint % threads, comtree, group))
            .collect();
        let subscriptions = present().flat_map(Standing::subscriptions).count();
        let there_are = [present().count(), subscriptions, groups.len()];
        if held.map(|count| count as usize) != there_are {
            self.broken(format!(
                "{now}: the relay holds {held:?} sessions, subscriptions, groups; there are {there_are:?}"
            ));
        }
    }

    /// Somebody else, such as the books, has seen something that must never be.
    pub fn broken(&mut self, what: String) {
        self.tally.broken += 1;
        self.note(|_| what);
    }

    fn judge_update(&mut self, now: Time, id: u64) {
        let Some(update) = self.window.get(id) else { return };
        let (mut expected, mut excused, mut missing) = (0, 0, Vec::new());
        for (who, receiver) in update.receivers.iter().filter(|(_, receiver)| receiver.due) {
            if receiver.came {
                expected += 1;
            } else if receiver.lost || !self.must(now, update, who as usize) {
                excused += 1;
            } else {
                missing.push(who);
            }
        }
        let (published, publisher) = (update.published, update.publish.publisher);
        let lost = self.take_lost_between(id, &mut missing);
        excused += lost.len() as u64;
        let thinned = if self.left_out > 0 { core::mem::take(&mut missing) } else { Vec::new() };
        self.tally.expected += expected + missing.len() as u64;
        self.tally.excused += excused;
        self.tally.thinned += thinned.len() as u64;
        self.tally.missing += missing.len() as u64;
        if !missing.is_empty() {
            self.tally.last_missing = self.tally.last_missing.max(Some(published));
            missing.iter().for_each(|who| self.tally.note_gap(published, publisher, *who as usize));
        }
        if let Some(update) = self.window.get_mut(id) {
            thinned.into_iter().for_each(|who| update.receivers.of(who).left_out = true);
            lost.into_iter().for_each(|who| update.receivers.of(who).lost = true);
        }
        for who in missing {
            let window = &self.window;
            let what = || format!("{now}: participant {who} misses {}", window.describe(id));
            self.tally.note_missing(what);
        }
    }

    /// Whether nothing excuses that an update, due when it was published, has not come.
    pub(crate) fn must(&self, now: Time, update: &Update, receiver: usize) -> bool {
        let Update { publish, published, .. } = update;
        let span = (*published, self.rules.settle.map_or(now, |settle| *published + settle));
        let is_steady = |participant: usize| {
            self.standings[participant].is_steady(span, now, self.rules.lifetime)
        };
        let standing = &self.standings[receiver];
        !update.garbled
            && is_steady(publish.publisher)
            && is_steady(receiver)
            && match publish.dst.group() {
                Some(group) => {
                    let confirmed = now - self.rules.unrefreshed;
                    let (published, until) = span;
                    let known = (published - self.propagation(update, receiver), until);
                    standing.certain(group, known, confirmed) >= Some(publish.level)
                }
                None => standing.has_address(publish.dst),
            }
    }

    /// How long before an update was published its receiver's subscription must have been
    /// acknowledged, so that the publisher's relay, or one on the way from it, must know of it.
    fn propagation(&self, update: &Update, receiver: usize) -> Duration {
        let ends = [update.publish.publisher, receiver].map(|of| &self.standings[of]);
        // Shortly after it has turned to another relay, what matters may have been known at the one before.
        let turned = ends.iter().filter_map(|end| end.turned).max();
        let is_long_ago = |turned| turned + self.rules.propagation <= update.published;
        let are_beside = ends[0].relay == ends[1].relay && turned.is_none_or(is_long_ago);
        if are_beside { Duration::ZERO } else { self.rules.propagation }
    }

    fn unexpected(&mut self, now: Time, participant: usize, what: &str) {
        self.tally.unexpected += 1;
        self.note(|_| format!("{now}: participant {participant} got {what}"));
    }

    pub(crate) fn note(&mut self, what: impl FnOnce(&Window) -> String) {
        self.tally.note(|| what(&self.window));
    }
}
