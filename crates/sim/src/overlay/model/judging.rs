//! What becomes of an update: each delivery, and the judgement when its time is over.

use super::updates::{Due, Update};
use super::urgent::URGENT_WAITS;
use super::{Model, Received};
use crate::network::Direction;
use crate::overlay::budgets;
use crate::overlay::scenario::{Element, Scenario};
use crate::overlay::shape::{Hop, Tree};
use crate::overlay::shaping::Shaped;
use canopy_wire::{Comtree, Time};
use std::time::Duration;

/// An update whose time is over is remembered for so long.
const LATE: Duration = Duration::from_secs(3);
/// What leaves in one turn comes within this time.
const TOGETHER: Duration = Duration::from_millis(100);

impl Model {
    /// How long an update may wait on its way to a participant: for each shaped link, and for what it may be sent. What is
    /// urgent goes first.
    pub(super) fn waits(
        &self,
        published: Time,
        comtree: Comtree,
        way: (usize, usize),
        (number, is_urgent): (usize, bool),
    ) -> Duration {
        let links = self.shaped_on_way(published, comtree, way);
        let is_limited = self.scenario.budgets[number].is_some();
        let floods = self.flooded_wait(comtree, way);
        if is_urgent {
            return URGENT_WAITS * (links.len() as u32 + u32::from(is_limited)) + floods;
        }
        let limited = if is_limited { budgets::WAITS } else { Duration::ZERO };
        links.into_iter().filter_map(|hop| self.shaped(hop)).map(Shaped::waits).sum::<Duration>()
            + limited
            + floods
    }

    /// How much longer an update takes where it passes a flooded relay.
    pub(super) fn flooded_wait(&self, comtree: Comtree, (from, to): (usize, usize)) -> Duration {
        let Some(flooded) = &self.scenario.flooded else { return Duration::ZERO };
        let Scenario { trees, links, .. } = &self.scenario;
        let tree = trees.iter().find(|tree| tree.comtree == comtree);
        let way = tree.map(|tree| tree.path(links, from, to)).unwrap_or_default();
        let mut passed = way.iter().flat_map(|(link, _)| links.ends()[*link]).chain([from]);
        if passed.any(|relay| relay == flooded.relay) {
            flooded.delays(comtree)
        } else {
            Duration::ZERO
        }
    }

    /// How long an update waits at most, wherever it goes.
    pub(super) fn longest_wait(&self) -> Duration {
        let limited = if self.scenario.has_budgets() { budgets::WAITS } else { Duration::ZERO };
        self.scenario.shaped.iter().map(Shaped::waits).sum::<Duration>()
            + limited
            + self.scenario.flooded_wait()
    }

    pub(super) fn shaped(&self, hop: Hop) -> Option<&Shaped> {
        self.scenario.shaped.iter().find(|one| (one.link, one.direction) == hop)
    }

    /// The shaped links on an update's way that may keep it back or leave it out, from its publisher on.
    pub(super) fn shaped_on_way(
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
            self.shaped(*hop).is_some_and(|one| one.concerns(published, self.patience.deliver))
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
            None if update.others.iter().any(|one| (one.0, one.1) == (number, seat.epoch)) => true,
            None => {
                update.others.push((number, seat.epoch, now));
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
        let Update { publisher, dst, is_important, .. } = *update;
        let (is_group, dst) = (dst.is_group(), Some(dst).filter(|_| self.scenario.is_thinned()));
        let flow = (publisher, is_group || !self.scenario.ways_change(), dst, is_important);
        let heard = &mut self.seats[number].heard;
        // What was said before something important may come after it, but what was said later comes before it only if
        // they leave together.
        let plain = heard.get(&(flow.0, flow.1, flow.2, false)).copied();
        let before = heard.insert(flow, (id, now)).max(plain);
        let before = before.filter(|(_, at)| !is_important || now.since(*at) > TOGETHER);
        // A unicast whose way turns from two links to one may overtake what is on the longer way.
        let keeps_order =
            self.scenario.keeps_order() && (is_group || !self.scenario.meshes_change());
        if let Some((before, at)) = before.filter(|(before, _)| *before > id)
            && keeps_order
        {
            self.seats[number].heard.insert(flow, (before, at));
            self.tally.out_of_order += 1;
            self.tally.find(|| {
                format!(
                    "{now}: participant {number} got update {id} after {before} of {publisher:?}"
                )
            });
        }
    }

    /// Judges the updates whose time is over. They are remembered for a while: what comes too late has
    /// its order too. `counted` is how many each relay says that it has left out.
    pub(crate) fn judge(&mut self, now: Time, counted: &[u64]) {
        let all = counted.iter().sum();
        for number in self.judged..self.updates.len() {
            if self.updates[number].at + self.patience.deliver >= now {
                break;
            }
            self.judge_update(now, number, all);
        }
        let is_judged = |update: &Update| {
            update.at + self.patience.deliver < now && update.due.iter().all(|due| due.is_judged)
        };
        self.judged += self.updates.range(self.judged..).take_while(|one| is_judged(one)).count();
        self.account(now, counted);
        let longest = self.patience.deliver + self.longest_wait() + LATE;
        while self.judged > 0 && self.updates.front().is_some_and(|one| one.at + longest < now) {
            self.updates.pop_front();
            self.first += 1;
            self.judged -= 1;
            self.left_out.forgets_one();
        }
    }

    /// Judges those who have to have got an update by now. Where it may wait for something on its way, it is judged when
    /// it can wait for nothing any more.
    fn judge_update(&mut self, now: Time, number: usize, counted: u64) {
        let (id, update) = (self.first + number as u64, &self.updates[number]);
        let mut left_out = Vec::new();
        let soon = update.at + self.patience.deliver;
        let last = soon + self.longest_wait();
        let is_over = |due: &Due| now > if due.by > soon { last } else { soon };
        let asks_paths = self.scenario.asks_paths();
        for (place, due) in update.due.iter().enumerate() {
            if !is_over(due) || due.is_judged {
                continue;
            }
            if due.got.is_some_and(|got| got <= due.by || due.by == soon) {
                self.tally.expected += 1;
            } else if !self.is_still_due(update, due) {
                self.tally.unsettled += 1;
            } else if self.is_excused(update, due) {
                self.tally.excused += 1;
            } else if let Some(cause) = self.left_out_by(number, due) {
                left_out.push((place, cause));
                self.tally.thinned += 1;
            } else if self.tally.thinned < counted && asks_paths {
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
        for due in &mut self.updates[number].due {
            due.is_judged |= is_over(due);
        }
        for (place, cause) in left_out {
            self.updates[number].due[place].left_out = Some(cause);
        }
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
    pub(super) fn is_excused(&self, update: &Update, due: &Due) -> bool {
        let is_lost = |wire: usize, direction| update.lost.contains(&(wire, direction));
        if is_lost(update.publisher.0, Direction::Up) || is_lost(due.number, Direction::Down) {
            return true;
        }
        let until = due.by;
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
