//! What becomes of an update: each delivery, and the judgement when its time is over.

use super::{Model, Received};
use crate::network::Direction;
use crate::overlay::scenario::{Element, Scenario};
use crate::overlay::shape::{Hop, Tree};
use crate::overlay::shaping::WAITS;
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
    pub(super) got: bool,
}

impl Due {
    /// Who, and in which of its epochs.
    fn who(&self) -> (usize, u32) {
        (self.number, self.epoch)
    }
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

/// How long an update takes at most that was published then: it may wait for every shaped link.
fn deliver_of(scenario: &Scenario, published: Time) -> Duration {
    let shaped = scenario.shaped.iter().filter(|one| one.concerns(published));
    scenario.patience.deliver + WAITS * shaped.count() as u32
}

impl Model {
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
        let due = update.due.iter_mut().find(|due| due.number == number && due.epoch == seat.epoch);
        let again = match due {
            Some(due) => std::mem::replace(&mut due.got, true),
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
        while let Some(update) = self.updates.get_mut(self.judged) {
            if update.at + deliver_of(&self.scenario, update.at) >= now {
                break;
            }
            let due = std::mem::take(&mut update.due);
            self.judge_update(self.judged, &due, left_out);
            self.updates[self.judged].others.extend(due.iter().filter(|due| due.got).map(Due::who));
            self.judged += 1;
        }
        while self.judged > 0
            && self
                .updates
                .front()
                .is_some_and(|one| one.at + deliver_of(&self.scenario, one.at) + LATE < now)
        {
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

    fn judge_update(&mut self, number: usize, all: &[Due], left_out: u64) {
        let (id, update) = (self.first + number as u64, &self.updates[number]);
        let mut dropped_on = BTreeSet::new();
        for due in all {
            if due.got {
                self.tally.expected += 1;
            } else if !self.is_still_due(update, due) {
                self.tally.unsettled += 1;
            } else if self.is_excused(update, due) {
                self.tally.excused += 1;
            } else if let Some(link) = self.dropped_on(number, due, all) {
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
        self.tally.dropped_on_links += dropped_on.len() as u64;
    }

    /// The shaped link that has left out an update for somebody, if one may have: on its way, something newer of
    /// the flow has taken its place, and nobody behind that link has got it. What is for one participant's eyes
    /// is never left out.
    fn dropped_on(&self, number: usize, due: &Due, all: &[Due]) -> Option<Hop> {
        let update = &self.updates[number];
        let shaped = self.scenario.shaped.iter().filter(|one| one.concerns(update.at));
        let shaped: Vec<Hop> = shaped.map(|one| (one.link, one.direction)).collect();
        if shaped.is_empty() || !update.dst.is_group() {
            return None;
        }
        let until = update.at + deliver_of(&self.scenario, update.at);
        let takes_its_place = |later: &Update| {
            (later.publisher, later.dst) == (update.publisher, update.dst) && later.at <= until
        };
        if !self.updates.range(number + 1..).any(takes_its_place) {
            return None;
        }
        let tree = self.scenario.trees.iter().find(|tree| tree.comtree == update.comtree)?;
        let passes = |link: &Hop, to: usize| {
            tree.path(&self.scenario.links, update.relay, to).contains(link)
        };
        let is_closed = |link: &Hop| !all.iter().any(|one| one.got && passes(link, one.relay));
        shaped.into_iter().find(|link| passes(link, due.relay) && is_closed(link))
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
