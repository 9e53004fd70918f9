//! What becomes of an update: each delivery, and the judgement when its time is over.

use super::{Model, Received};
use crate::network::Direction;
use crate::overlay::scenario::{Element, Scenario};
use crate::overlay::shape::{Hop, Tree};
use crate::overlay::shaping::{FLOOR, Shaped, WAITS};
use canopy_wire::{Address, Comtree, Level, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// An update whose time is over is remembered for so long.
const LATE: Duration = Duration::from_secs(3);

/// Somebody who has to get an update, as it was when that was published.
pub(super) struct Due {
    pub(super) number: usize,
    pub(super) epoch: u32,
    pub(super) version: u32,
    pub(super) relay: usize,
    /// When it has to have got it.
    pub(super) by: Time,
    pub(super) got: Option<Time>,
    pub(super) is_judged: bool,
}

/// An update that is under way or was so lately.
pub(super) struct Update {
    pub(super) at: Time,
    /// Who, and in which of its epochs.
    pub(super) publisher: (usize, u32),
    pub(super) src: Address,
    pub(super) dst: Address,
    pub(super) level: Level,
    pub(super) comtree: Comtree,
    pub(super) relay: usize,
    pub(super) due: Vec<Due>,
    /// Who got it without having to, and in which of its epochs.
    pub(super) others: Vec<(usize, u32)>,
    /// Where a datagram with it was lost.
    pub(super) lost: Vec<(usize, Direction)>,
}

impl Model {
    /// When an update has to be where it is wanted: it may wait for each shaped link on its way.
    pub(super) fn has_to_come_by(
        &self,
        published: Time,
        comtree: Comtree,
        (from, to): (usize, usize),
    ) -> Time {
        let waits = self.shaped_on_way(published, comtree, (from, to)).len() as u32;
        published + self.patience.deliver + WAITS * waits
    }

    /// How long an update waits for shaped links at most.
    fn longest_wait(&self) -> Duration {
        WAITS * self.scenario.shaped.len() as u32
    }

    /// The shaped links on an update's way that may keep it back or leave it out, from its publisher on.
    fn shaped_on_way(
        &self,
        published: Time,
        comtree: Comtree,
        (from, to): (usize, usize),
    ) -> Vec<Hop> {
        let Scenario { shaped, trees, links, .. } = &self.scenario;
        if shaped.is_empty() {
            return Vec::new();
        }
        let is_shaped = |hop: &Hop| {
            let is_it = |one: &&Shaped| (one.link, one.direction) == *hop;
            let found = shaped.iter().find(is_it);
            found.is_some_and(|one| one.concerns(published, self.patience.deliver))
        };
        let tree = trees.iter().find(|tree| tree.comtree == comtree);
        let way = tree.map(|tree| tree.path(links, from, to)).unwrap_or_default();
        way.into_iter().filter(is_shaped).collect()
    }

    /// A participant's session hands an update to its application.
    pub(crate) fn received(&mut self, now: Time, number: usize, received: &Received) {
        let Received { id, src, dst, level } = *received;
        let Some(id) = id else {
            return self.unexpected(now, number, || "bytes that nobody published".to_owned());
        };
        let seat = &self.seats[number];
        let Some(update) =
            id.checked_sub(self.first).and_then(|at| self.updates.get_mut(at as usize))
        else {
            return self.unexpected(now, number, || format!("update {id} long after its time"));
        };
        let is_whole = (update.src, update.dst, update.level) == (src, dst, level);
        // Whoever has moved since may get its own update back: it is somebody else by now.
        let is_own = update.publisher == (number, seat.epoch);
        if !is_whole || is_own || update.comtree != seat.comtree {
            let what = format!("update {id} as from {src} to {dst} at level {}", level.0);
            return self.unexpected(now, number, || what);
        }
        let is_open = |due: &&mut Due| {
            (due.number, due.epoch) == (number, seat.epoch) && (due.got.is_some() || !due.is_judged)
        };
        let again = match update.due.iter_mut().find(is_open) {
            Some(due) => {
                let again = due.got.is_some();
                due.got.get_or_insert(now);
                again
            }
            None if update.others.contains(&(number, seat.epoch)) => true,
            None => {
                update.others.push((number, seat.epoch));
                let (published, publisher) = (update.at, update.publisher);
                let may = match dst.group() {
                    Some(group) => {
                        let interest = seat.interests.get(&group);
                        interest.is_some_and(|one| one.allows(level, published, now))
                    }
                    None => seat.address == dst,
                };
                if !may {
                    let what = format!("update {id} to {dst} of {publisher:?}, level {}", level.0);
                    return self.unexpected(now, number, || what);
                }
                false
            }
        };
        if again {
            self.tally.duplicates += 1;
            self.tally.find(|| format!("{now}: participant {number} got update {id} again"));
            return;
        }
        self.tally.deliveries += 1;
        self.check_order(now, number, id);
    }

    fn unexpected(&mut self, now: Time, number: usize, what: impl FnOnce() -> String) {
        self.tally.unexpected += 1;
        let relay = self.seats[number].relay;
        self.tally.find(|| format!("{now}: participant {number} at relay {relay} got {}", what()));
    }

    /// What one publisher sends comes in its order, where the network keeps it.
    fn check_order(&mut self, now: Time, number: usize, id: u64) {
        let Some(update) = self.update(id) else { return };
        let (publisher, dst) = (update.publisher, update.dst);
        let (is_group, dst) =
            (dst.is_group(), Some(dst).filter(|_| !self.scenario.shaped.is_empty()));
        let flow = (publisher, is_group || !self.scenario.ways_change(), dst);
        let before = self.seats[number].heard.insert(flow, id);
        // A unicast whose way turns from two links to one may overtake what is on the longer way.
        let keeps_order =
            self.scenario.keeps_order() && (is_group || !self.scenario.meshes_change());
        if let Some(before) = before.filter(|before| *before > id)
            && keeps_order
        {
            self.seats[number].heard.insert(flow, before);
            self.tally.out_of_order += 1;
            self.tally.find(|| {
                format!(
                    "{now}: participant {number} got update {id} after {before} of {publisher:?}"
                )
            });
        }
    }

    /// Judges the updates whose time is over. They are remembered for a while: what comes too late has
    /// its order too. `left_out` is how many the relays say that they have left out.
    pub(crate) fn judge(&mut self, now: Time, left_out: u64) {
        for number in self.judged..self.updates.len() {
            if self.updates[number].at + self.patience.deliver >= now {
                break;
            }
            self.judge_update(now, number, left_out);
        }
        let is_judged = |update: &Update| {
            update.at + self.patience.deliver < now && update.due.iter().all(|due| due.is_judged)
        };
        self.judged += self.updates.range(self.judged..).take_while(|one| is_judged(one)).count();
        let longest = self.patience.deliver + self.longest_wait() + LATE;
        while self.judged > 0 && self.updates.front().is_some_and(|one| one.at + longest < now) {
            self.updates.pop_front();
            self.first += 1;
            self.judged -= 1;
        }
        let dropped = self.tally.dropped_on_links;
        if dropped > left_out {
            self.broken(now, || {
                format!(
                    "shaped links leave out {dropped} updates, of which relays count {left_out}"
                )
            });
        }
    }

    /// Judges those who have to have got an update by now. Where links are shaped on the way, it is judged when it can
    /// come over none of them any more: who got it tells which of them have let it pass.
    fn judge_update(&mut self, now: Time, number: usize, left_out: u64) {
        let (id, update) = (self.first + number as u64, &self.updates[number]);
        let mut dropped_on = BTreeSet::new();
        let soon = update.at + self.patience.deliver;
        let last = soon + self.longest_wait();
        let is_over = |due: &Due| now > if due.by > soon { last } else { soon };
        for due in update.due.iter().filter(|due| is_over(due) && !due.is_judged) {
            if due.got.is_some_and(|got| got <= due.by || due.by == soon) {
                self.tally.expected += 1;
            } else if !self.is_still_due(update, due) {
                self.tally.unsettled += 1;
            } else if self.is_excused(update, due) {
                self.tally.excused += 1;
            } else if let Some(link) = self.dropped_on(number, due) {
                dropped_on.insert(link);
                self.tally.thinned += 1;
            } else if self.tally.thinned < left_out && self.scenario.shaped.is_empty() {
                self.tally.thinned += 1;
                self.tally.excused += 1;
            } else {
                self.tally.expected += 1;
                self.tally.missing += 1;
                let Update { at, publisher, dst, level, relay, comtree, .. } = update;
                self.tally.find(|| {
                    format!(
                        "{at}: update {id} of participant {} at relay {relay} to {dst} (comtree {}, \
                         level {}) is missing at participant {} at relay {}",
                        publisher.0, comtree.0, level.0, due.number, due.relay
                    )
                });
            }
        }
        self.updates[number].due.iter_mut().for_each(|due| due.is_judged |= is_over(due));
        self.tally.dropped_on_links += dropped_on.len() as u64;
    }

    /// The shaped link that has left out an update for somebody, if one may have: on its way, something newer of
    /// the flow has taken its place, and nobody behind that link has got it. Of such links it is the first on the
    /// way: nothing came to the others. What is for one participant's eyes is never left out.
    fn dropped_on(&self, number: usize, due: &Due) -> Option<Hop> {
        let update = &self.updates[number];
        let until = update.at + FLOOR + self.patience.deliver;
        let takes_its_place = |later: &Update| {
            (later.publisher, later.dst) == (update.publisher, update.dst) && later.at <= until
        };
        let way_to =
            |due: &Due| self.shaped_on_way(update.at, update.comtree, (update.relay, due.relay));
        let way = way_to(due);
        let is_superseded = || self.updates.range(number + 1..).any(takes_its_place);
        if way.is_empty() || !update.dst.is_group() || !is_superseded() {
            return None;
        }
        let open: Vec<Hop> =
            update.due.iter().filter(|due| due.got.is_some()).flat_map(way_to).collect();
        way.into_iter().find(|link| !open.contains(link))
    }

    /// Whether whoever has to get it is still there and still wants it.
    fn is_still_due(&self, update: &Update, due: &Due) -> bool {
        let seat = &self.seats[due.number];
        let wants = match update.dst.group() {
            Some(group) => seat.interests.get(&group).is_some_and(|one| one.version == due.version),
            None => seat.connected.is_some_and(|since| since <= update.at),
        };
        // Where the network reorders, a leave overtakes what its participant published last.
        let publisher = &self.seats[update.publisher.0];
        let was_overtaken = publisher.epoch != update.publisher.1 && !self.scenario.keeps_order();
        seat.epoch == due.epoch && wants && !was_overtaken
    }

    /// Whether a datagram with it was lost on its way, or something on its way was broken.
    fn is_excused(&self, update: &Update, due: &Due) -> bool {
        let is_lost = |wire: usize, direction| update.lost.contains(&(wire, direction));
        if is_lost(update.publisher.0, Direction::Up) || is_lost(due.number, Direction::Down) {
            return true;
        }
        let until = update.at + self.patience.deliver;
        let was_broken = |element| self.was_broken(element, update.at, until);
        let is_its = |tree: &&Tree| tree.comtree == update.comtree;
        let Some(tree) = self.scenario.trees.iter().find(is_its) else { return false };
        let links = &self.scenario.links;
        was_broken(Element::Relay(update.relay))
            || tree.path(links, update.relay, due.relay).iter().any(|(link, direction)| {
                let [a, b] = links.ends()[*link];
                is_lost(self.scenario.wire_of_link(*link), *direction)
                    || was_broken(Element::Link(*link))
                    || was_broken(Element::Relay(a))
                    || was_broken(Element::Relay(b))
            })
    }
}
