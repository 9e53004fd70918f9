//! The reference model of the overlay: who had to get an update, who might, who must not.
//!
//! It hears what the applications did, what their sessions told them, what the network lost and what
//! was broken. It never sees a table of a relay. It knows the comtrees, and so the one way that an
//! update has to take: what was lost on another way excuses nothing.

mod interest;
mod judging;
mod left_out;
mod links;
mod updates;
mod urgent;

use super::scenario::{Element, Fault, Patience, Scenario};
use crate::network::Direction;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use interest::Interest;
use left_out::LeftOut;
use links::Standing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use updates::{Due, Update};

/// Findings that are told in words.
const MAX_FINDINGS: usize = 20;

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) published: u64,
    pub(crate) unicasts: u64,
    pub(crate) expected: u64,
    /// What did not come because of a fault on its way, or because its receiver's path bore no more.
    pub(crate) excused: u64,
    /// What did not come because a link, a budget or a path did not hold it: no more than the relays say that they have
    /// left out.
    pub(crate) thinned: u64,
    /// What did not come, and whose receiver left or changed its mind meanwhile.
    pub(crate) unsettled: u64,
    pub(crate) deliveries: u64,
    pub(crate) missing: u64,
    pub(crate) duplicates: u64,
    pub(crate) unexpected: u64,
    pub(crate) out_of_order: u64,
    pub(crate) stuck: u64,
    /// Links that relays found down although nothing had been cut or restarted.
    pub(crate) links_lost: u32,
    pub(crate) broken: u64,
    pub(crate) findings: Vec<String>,
}

impl Tally {
    pub(crate) fn find(&mut self, what: impl FnOnce() -> String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(what());
        }
    }
}

/// On which updates keep their order: their publisher, in which of its epochs, and whether to a group. What waits
/// for a shaped link is in order within its flow only, and what is important stands beside that.
type Way = ((usize, u32), bool, Option<Address>, bool);

/// A participant, as far as the model knows it.
struct Seat {
    comtree: Comtree,
    relay: usize,
    /// How often it has come and gone.
    epoch: u32,
    address: Address,
    /// Since when it is connected.
    connected: Option<Time>,
    interests: BTreeMap<Group, Interest>,
    /// The last update that it got on each way, and when.
    heard: BTreeMap<Way, (u64, Time)>,
}

/// An update as its receiver's application gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Which one it is, if its bytes are those of one.
    pub(crate) id: Option<u64>,
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) level: Level,
}

pub(crate) struct Model {
    scenario: Scenario,
    patience: Patience,
    seats: Vec<Seat>,
    /// Who wants or wanted a group.
    by_group: BTreeMap<(Comtree, Group), BTreeSet<usize>>,
    /// Updates that are under way or were so lately.
    updates: VecDeque<Update>,
    /// The number of the first of them.
    first: u64,
    /// How many of them have been judged.
    judged: usize,
    left_out: LeftOut,
    faults: Vec<Fault>,
    /// By link.
    standing: Vec<Standing>,
    tally: Tally,
}

impl Model {
    pub(crate) fn new(scenario: &Scenario, comtrees: impl Iterator<Item = Comtree>) -> Model {
        let seat = |comtree| Seat {
            comtree,
            relay: 0,
            epoch: 0,
            address: Address::UNSPECIFIED,
            connected: None,
            interests: BTreeMap::new(),
            heard: BTreeMap::new(),
        };
        let faults = scenario.faults.iter();
        let recovered = |fault: &Fault| fault.until + scenario.patience.recover;
        Model {
            patience: scenario.patience,
            seats: comtrees.map(seat).collect(),
            by_group: BTreeMap::new(),
            updates: VecDeque::new(),
            first: 0,
            judged: 0,
            left_out: LeftOut::new(scenario.threads.len()),
            faults: faults.map(|fault| Fault { until: recovered(fault), ..*fault }).collect(),
            standing: vec![Standing::default(); scenario.links.ends().len()],
            tally: Tally::default(),
            scenario: scenario.clone(),
        }
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What must always hold does not.
    pub(crate) fn broken(&mut self, now: Time, what: impl FnOnce() -> String) {
        self.tally.broken += 1;
        self.tally.find(|| format!("{now}: {}", what()));
    }

    /// A participant's application starts, at a relay.
    pub(crate) fn appear(&mut self, number: usize, relay: usize) {
        let seat = &mut self.seats[number];
        seat.relay = relay;
        seat.epoch += 1;
    }

    /// A participant leaves or vanishes: nothing reaches it any more.
    pub(crate) fn vanish(&mut self, now: Time, number: usize, in_order: bool) {
        if self.scenario.is_thinned() {
            let gone_by = if in_order { self.patience.settle } else { self.patience.forget };
            self.left_out.leaves(now + gone_by, number, &self.seats[number]);
        }
        let seat = &mut self.seats[number];
        seat.epoch += 1;
        seat.connected = None;
        seat.heard.clear();
        for group in std::mem::take(&mut seat.interests).into_keys() {
            if let Some(wanting) = self.by_group.get_mut(&(seat.comtree, group)) {
                wanting.remove(&number);
            }
        }
    }

    /// A participant's session begins, perhaps anew.
    pub(crate) fn connected(&mut self, now: Time, number: usize, address: Address) {
        let seat = &mut self.seats[number];
        seat.connected = Some(now);
        seat.address = address;
        seat.interests.values_mut().for_each(|interest| interest.reconnected(now));
    }

    /// A participant's session is over, as it says.
    pub(crate) fn lost(&mut self, now: Time, number: usize) {
        self.disconnect(number);
        if self.scenario.is_clean() {
            self.broken(now, || format!("participant {number} has lost its relay"));
        }
    }

    /// A relay stops: it forgets everything.
    pub(crate) fn relay_stopped(&mut self, relay: usize) {
        self.links_stopped(relay);
        for number in 0..self.seats.len() {
            if self.seats[number].relay == relay {
                self.disconnect(number);
            }
        }
    }

    fn disconnect(&mut self, number: usize) {
        let seat = &mut self.seats[number];
        seat.connected = None;
        seat.interests.values_mut().for_each(Interest::weaken);
    }

    /// An application asks for a group's updates, or for none.
    pub(crate) fn request(&mut self, now: Time, number: usize, group: Group, level: Option<Level>) {
        let seat = &mut self.seats[number];
        seat.interests.entry(group).or_default().request(now, level);
        self.by_group.entry((seat.comtree, group)).or_default().insert(number);
    }

    /// A session tells that its relay has acknowledged.
    pub(crate) fn acknowledged(
        &mut self,
        now: Time,
        number: usize,
        group: Group,
        level: Option<Level>,
    ) {
        let seat = &mut self.seats[number];
        let interest = seat.interests.get_mut(&group).filter(|_| seat.connected.is_some());
        if let Some(interest) = interest {
            interest.acknowledged(now, level);
        }
    }

    /// An update is published; returns its number.
    pub(crate) fn publish(
        &mut self,
        now: Time,
        publisher: usize,
        dst: Address,
        level: Level,
        is_important: bool,
    ) -> u64 {
        let is_urgent = is_important || !dst.is_group();
        let receivers = match dst.group() {
            Some(group) => self.due_in_group(now, publisher, group, level),
            None => self.due_at(now, publisher, dst),
        };
        let from = self.seats[publisher].relay;
        let due = receivers.into_iter();
        let due = due.map(|receiver| self.due(now, from, receiver, is_urgent)).collect();
        let seat = &self.seats[publisher];
        let is_taken = seat.connected.is_some();
        self.tally.published += 1;
        self.tally.unicasts += u64::from(!dst.is_group());
        self.updates.push_back(Update {
            at: now,
            publisher: (publisher, seat.epoch),
            src: seat.address,
            dst,
            level,
            is_important,
            comtree: seat.comtree,
            relay: seat.relay,
            is_taken,
            due: if is_taken { due } else { Vec::new() },
            others: Vec::new(),
            lost: Vec::new(),
            over: Vec::new(),
        });
        self.first + self.updates.len() as u64 - 1
    }

    /// Who has to get what is published to a group now, and in which version of its interest.
    fn due_in_group(
        &mut self,
        now: Time,
        publisher: usize,
        group: Group,
        level: Level,
    ) -> Vec<(usize, u32)> {
        let comtree = self.seats[publisher].comtree;
        let Some(wanting) = self.by_group.get(&(comtree, group)) else { return Vec::new() };
        let mut due = Vec::new();
        for number in wanting.iter().copied().filter(|number| *number != publisher) {
            let seat = &mut self.seats[number];
            let Some(interest) = seat.interests.get_mut(&group) else { continue };
            let firm = interest.firm_at(now, self.patience.settle);
            if firm.is_some_and(|firm| firm >= level) && seat.connected.is_some() {
                due.push((number, interest.version));
            }
        }
        due
    }

    /// Who has to get what is published to an address now.
    fn due_at(&self, now: Time, publisher: usize, dst: Address) -> Vec<(usize, u32)> {
        let comtree = self.seats[publisher].comtree;
        let is_there = |seat: &Seat| {
            seat.address == dst
                && seat.comtree == comtree
                && seat.connected.is_some_and(|since| since + self.patience.settle <= now)
        };
        let number = self.seats.iter().position(is_there).filter(|number| *number != publisher);
        number.map(|number| (number, 0)).into_iter().collect()
    }

    /// Somebody has to get what is published now at a relay.
    fn due(&self, now: Time, from: usize, (number, version): (usize, u32), is_urgent: bool) -> Due {
        let Seat { comtree, epoch, relay, .. } = self.seats[number];
        let waits = self.waits(now, comtree, (from, relay), (number, is_urgent));
        let by = now + self.patience.deliver + waits;
        Due { number, epoch, version, relay, by, got: None, is_judged: false, left_out: None }
    }

    /// A datagram with these updates was lost on a wire.
    pub(crate) fn lost_on(&mut self, wire: usize, direction: Direction, carried: &[u64]) {
        for id in carried {
            if let Some(update) = self.update(*id) {
                update.lost.push((wire, direction));
            }
        }
    }

    fn update(&mut self, id: u64) -> Option<&mut Update> {
        self.updates.get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// Whether a participant is where it wants to be; told long after all is well.
    pub(crate) fn check_settled(&mut self, now: Time) {
        for number in 0..self.seats.len() {
            let seat = &self.seats[number];
            let waiting = seat.interests.iter().find(|(_, interest)| !interest.is_answered());
            let what = match (seat.connected, waiting) {
                (None, _) => "is not connected".to_owned(),
                (_, Some((group, interest))) => {
                    format!("waits for an answer on group {}: {interest:?}", group.number())
                }
                _ => continue,
            };
            self.tally.stuck += 1;
            let relay = seat.relay;
            self.tally.find(|| format!("{now}: participant {number} at relay {relay} {what}"));
        }
    }

    /// Whether a relay or link was broken between two times, or not mended yet.
    fn was_broken(&self, element: Element, from: Time, until: Time) -> bool {
        let meets =
            |fault: &Fault| fault.element == element && fault.from <= until && fault.until >= from;
        self.faults.iter().any(meets)
    }
}
