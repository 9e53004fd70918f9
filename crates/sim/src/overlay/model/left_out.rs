//! What relays leave out where a link or a budget does not hold everything: that something newer takes its place, and
//! that relays count each of it, and nothing else.

use super::updates::{Cause, Due, Update};
use super::{Model, Seat};
use crate::network::Direction;
use crate::overlay::shape::{Hop, Tree};
use crate::overlay::shaping::{FLOOR, Shaped};
use canopy_wire::{Comtree, Group, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// How much later than its floor a flow may be heard of.
const SLACK: Duration = Duration::from_millis(500);

/// Somebody who has left: its relay may not know yet.
struct Gone {
    number: usize,
    comtree: Comtree,
    relay: usize,
    groups: BTreeSet<Group>,
    until: Time,
}

/// How many updates each relay has left out, as far as the model can tell.
pub(super) struct LeftOut {
    /// By relay: what it must have left out, and what it may have.
    least: Vec<u64>,
    most: Vec<u64>,
    counted: Vec<u64>,
    gone: Vec<Gone>,
    /// How many of the updates that are remembered are in the account.
    accounted: usize,
}

impl LeftOut {
    pub(super) fn new(relays: usize) -> LeftOut {
        let (least, most, counted) = (vec![0; relays], vec![0; relays], vec![0; relays]);
        LeftOut { least, most, counted, gone: Vec::new(), accounted: 0 }
    }

    /// A participant leaves: its relay forgets it by then.
    pub(super) fn leaves(&mut self, until: Time, number: usize, seat: &Seat) {
        let groups = seat.interests.keys().copied().collect();
        let Seat { comtree, relay, .. } = *seat;
        self.gone.push(Gone { number, comtree, relay, groups, until });
    }

    /// The first of the updates is not remembered any more.
    pub(super) fn forgets_one(&mut self) {
        self.accounted -= 1;
    }
}

impl Model {
    /// A relay sends updates over a shaped link.
    pub(crate) fn sent_over(&mut self, now: Time, hop: Hop, carried: &[u64]) {
        for id in carried {
            if let Some(update) = self.update(*id) {
                update.over.push((hop, now));
            }
        }
    }

    /// Who has published an update that is remembered.
    pub(crate) fn publisher_of(&self, id: u64) -> Option<usize> {
        let number = usize::try_from(id.checked_sub(self.first)?).ok()?;
        Some(self.updates.get(number)?.publisher.0)
    }

    /// What has left out an update for somebody, if something may have: the first shaped link on its way that it was not
    /// sent over, or what may be sent to who has a budget. Something newer of its flow went there in its place, no later
    /// than flows get there at their floor. What is for one participant's eyes, or important, is never left out.
    pub(super) fn left_out_by(&self, number: usize, due: &Due) -> Option<Cause> {
        let update = &self.updates[number];
        let way = self.shaped_on_way(update.at, update.comtree, (update.relay, due.relay));
        let was_sent = |hop: &Hop| update.over.iter().any(|(over, _)| over == hop);
        let at = way.iter().take_while(|hop| was_sent(hop)).count();
        let cause = way.get(at).map_or(Cause::Budget, |hop| Cause::Link(*hop));
        let before = way[..at].iter().filter_map(|hop| self.shaped(*hop)).map(Shaped::waits);
        let floor = way.get(at).and_then(|hop| self.shaped(*hop)).map_or(FLOOR, |one| one.floor);
        let soon = update.at + self.patience.deliver + floor + SLACK + before.sum::<Duration>();
        // Its flow has its next turn that long after the one before, in which an older one went there.
        let turn = self.last_turn_of_older(number, due, cause);
        let soon = turn.map_or(soon, |turn| soon.max(turn + floor + SLACK));
        // An older one that went there before this was published cannot have taken its place.
        let in_time = update.at..=soon;
        let goes_over = |other: &Update, hop: Hop| {
            other.over.iter().any(|(over, at)| *over == hop && in_time.contains(at))
        };
        let reaches = |other: &Update| {
            let is_it = |one: &&Due| (one.number, one.epoch) == (due.number, due.epoch);
            match other.due.iter().find(is_it) {
                Some(one) => match one.got {
                    Some(got) if got <= soon => got >= update.at,
                    _ => self.is_excused(other, one),
                },
                None => {
                    let is_it = |(number, epoch, got): &(usize, u32, Time)| {
                        (*number, *epoch) == (due.number, due.epoch) && *got >= update.at
                    };
                    other.others.iter().any(is_it) || self.was_wanted(other, due.number)
                }
            }
        };
        let takes_its_place = |other: &Update| match cause {
            Cause::Link(hop) => goes_over(other, hop),
            Cause::Budget => reaches(other),
        };
        let may = cause != Cause::Budget || self.scenario.budgets[due.number].is_some();
        let is_superseded = || self.others_of_flow(number).any(takes_its_place);
        (!update.is_urgent() && may && is_superseded()).then_some(cause)
    }

    /// When an older update of its flow went there since an update was published, the last time.
    fn last_turn_of_older(&self, number: usize, due: &Due, cause: Cause) -> Option<Time> {
        let update = &self.updates[number];
        let is_it = |one: &&Due| (one.number, one.epoch) == (due.number, due.epoch);
        let went = |other: &Update| match cause {
            Cause::Budget => other.due.iter().find(is_it)?.got,
            Cause::Link(hop) => {
                let over = other.over.iter().filter(|(over, _)| *over == hop);
                over.map(|(_, at)| *at).max()
            }
        };
        let from = update.at - (self.longest_wait() + self.patience.deliver);
        let older = self.updates.range(..number).rev().take_while(|one| one.at >= from);
        let of_flow =
            older.filter(|one| (one.publisher, one.dst) == (update.publisher, update.dst));
        of_flow.filter_map(went).filter(|at| *at > update.at).max()
    }

    /// Whether somebody's relay may have taken it for one who wants an update, as it had wanted this level before: it has
    /// taken the place of one of a lower level then, and was left out itself when the relay was told.
    fn was_wanted(&self, update: &Update, number: usize) -> bool {
        let interests = &self.seats[number].interests;
        let interest = update.dst.group().and_then(|group| interests.get(&group));
        interest.is_some_and(|one| one.allows(update.level, update.at, update.at))
    }

    /// The updates of an update's flow that may take its place: newer ones, and where the network does not keep the
    /// order, or copies come late, older ones as well, that may still have been on their way. What is important takes no other's.
    fn others_of_flow(&self, number: usize) -> impl Iterator<Item = &Update> {
        let update = &self.updates[number];
        let is_late = !self.scenario.keeps_order() || !self.scenario.late_copies.is_zero();
        let first = if is_late { 0 } else { number + 1 };
        let on_its_way = self.longest_wait() + self.patience.deliver;
        let (from, until) = (update.at - on_its_way, update.at + FLOOR + SLACK + on_its_way);
        let all = self.updates.range(first..).skip_while(move |one| one.at < from);
        let all = all.take_while(move |one| one.at <= until);
        all.filter(move |one| {
            (one.publisher, one.dst) == (update.publisher, update.dst)
                && !one.is_important
                && !std::ptr::eq(*one, update)
        })
    }

    /// Puts what has become of updates into the account, and holds it against what relays have counted.
    pub(super) fn account(&mut self, now: Time, counted: &[u64]) {
        let over = self.patience.deliver + self.longest_wait();
        while let Some(update) = self.updates.get(self.left_out.accounted)
            && update.at + over < now
        {
            if self.scenario.is_thinned() && update.dst.is_group() {
                self.account_for(now, self.left_out.accounted);
            }
            self.check_precedence(now, self.left_out.accounted);
            self.left_out.accounted += 1;
        }
        self.left_out.counted.clear();
        self.left_out.counted.extend(counted);
        for relay in 0..counted.len() {
            let (least, counted) = (self.left_out.least[relay], counted[relay]);
            if counted < least {
                self.broken(now, || {
                    format!(
                        "relay {relay} leaves out {least} updates, of which it counts {counted}"
                    )
                });
            }
        }
    }

    fn account_for(&mut self, now: Time, number: usize) {
        let update = &self.updates[number];
        let (mut least, mut most) = (BTreeSet::new(), BTreeSet::new());
        for due in &update.due {
            match due.left_out {
                Some(Cause::Link(hop)) => {
                    least.insert((self.sender_of(hop), Some(hop), None));
                }
                Some(Cause::Budget) => {
                    least.insert((due.relay, None, Some(due.number)));
                }
                None => {}
            }
        }
        let interested = self.interested(now, update);
        let way_to = |relay| self.shaped_on_way(update.at, update.comtree, (update.relay, relay));
        let was_sent = |hop: &Hop| update.over.iter().any(|(over, _)| over == hop);
        let first_closed = |relay| way_to(relay).into_iter().find(|hop| !was_sent(hop));
        let trees = self.scenario.trees.iter().filter(|tree| tree.comtree == update.comtree);
        // The core hears everything, whoever wants it.
        for hop in trees.flat_map(Tree::core_relays).filter_map(first_closed) {
            most.insert((self.sender_of(hop), Some(hop), None));
            if self.scenario.is_clean() && update.is_taken && update.lost.is_empty() {
                least.insert((self.sender_of(hop), Some(hop), None));
            }
        }
        for (who, relay) in interested {
            let is_limited = self.scenario.budgets[who].is_some();
            let has_got = update.due.iter().any(|due| due.number == who && due.got.is_some())
                || update.others.iter().any(|(other, ..)| *other == who);
            if let Some(hop) = first_closed(relay) {
                most.insert((self.sender_of(hop), Some(hop), None));
            } else if is_limited && !has_got && who != update.publisher.0 {
                most.insert((relay, None, Some(who)));
            }
        }
        most.extend(least.iter().copied());
        least.into_iter().for_each(|(relay, ..)| self.left_out.least[relay] += 1);
        most.into_iter().for_each(|(relay, ..)| self.left_out.most[relay] += 1);
    }

    /// Who may want an update, as far as relays know, and at which of them.
    fn interested(&self, now: Time, update: &Update) -> Vec<(usize, usize)> {
        let Some(group) = update.dst.group() else { return Vec::new() };
        let due = update.due.iter().map(|due| (due.number, due.relay));
        let wanting = self.by_group.get(&(update.comtree, group)).into_iter().flatten().copied();
        let wants = |number: &usize| {
            let interest = self.seats[*number].interests.get(&group);
            interest.is_some_and(|one| one.allows(update.level, update.at, now))
        };
        let wanting = wanting.filter(wants).map(|number| (number, self.seats[number].relay));
        let is_its = |gone: &&Gone| {
            gone.comtree == update.comtree
                && gone.groups.contains(&group)
                && update.at <= gone.until
        };
        let gone = self.left_out.gone.iter().filter(is_its).map(|gone| (gone.number, gone.relay));
        due.chain(wanting).chain(gone).collect()
    }

    /// The relay that sends over a link in a direction.
    fn sender_of(&self, (link, direction): Hop) -> usize {
        let [a, b] = self.scenario.links.ends()[link];
        if direction == Direction::Up { a } else { b }
    }

    /// At the end: relays have counted no more than they may have left out. The model does not know what floods want.
    pub(crate) fn check_counted(&mut self, now: Time) {
        if self.scenario.asks_paths() || self.scenario.flooded.is_some() {
            return;
        }
        for relay in 0..self.left_out.counted.len() {
            let (most, counted) = (self.left_out.most[relay], self.left_out.counted[relay]);
            if counted > most {
                self.broken(now, || {
                    format!("relay {relay} counts {counted} updates that it left out, where {most} may be")
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Received;
    use super::*;
    use crate::overlay::config::{OverlayConfig, OverlaySabotage};
    use crate::overlay::scenario::Scenario;
    use canopy_relay::Budgets;
    use canopy_wire::{Address, Level};

    /// How often relays are accused that count nothing, where updates are published at each of three relays and nothing
    /// comes of them: what is lost finds no room at a flooded relay, and never gets to a shaped link.
    fn accused(seed: u64, is_lost: bool) -> u64 {
        let config = OverlayConfig {
            shaping: Some(true),
            budgets: Some(false),
            floods: Some(true),
            participants: Some(3),
            // There is no bad weather with one.
            sabotage: Some(OverlaySabotage::Unshaped),
            ..OverlayConfig::new(3, seed)
        };
        let scenario = Scenario::draw(&config);
        let mut model = Model::new(&scenario, [scenario.trees[0].comtree; 3].into_iter());
        for number in 0..3 {
            model.appear(number, number);
            model.connected(Time::ZERO, number, Address::UNSPECIFIED);
            let group = Group::new(64).address();
            let id = model.publish(Time::from_millis(6_000), number, group, Level(0), false);
            if is_lost {
                model.lost_on(number, Direction::Up, &[id]);
            }
        }
        model.judge(Time::from_millis(60_000), &[0; 3]);
        model.tally().broken
    }

    /// How much is missing where somebody with a budget got an update then, and never the newer one of the flow, which
    /// was published half a second later. Copies may come late.
    fn missing(got: Time) -> u64 {
        let none = Some(false);
        let config = OverlayConfig {
            shaping: none,
            budgets: none,
            floods: none,
            participants: Some(2),
            // Nothing breaks with one.
            sabotage: Some(OverlaySabotage::Starve),
            ..OverlayConfig::new(1, 1)
        };
        let mut scenario = Scenario::draw(&config);
        scenario.late_copies = SLACK;
        scenario.budgets[1] = Some(Budgets::default().member);
        let mut model = Model::new(&scenario, [scenario.trees[0].comtree; 2].into_iter());
        for number in 0..2 {
            model.appear(number, 0);
            model.connected(Time::ZERO, number, Address::UNSPECIFIED);
        }
        let (group, level) = (Group::new(64), Level(0));
        model.request(Time::ZERO, 1, group, Some(level));
        model.acknowledged(Time::ZERO, 1, group, Some(level));
        let [id, _] = [20_000, 20_500]
            .map(|at| model.publish(Time::from_millis(at), 0, group.address(), level, false));
        let (src, dst) = (Address::UNSPECIFIED, group.address());
        model.received(got, 1, &Received { id: Some(id), src, dst, level });
        model.judge(Time::from_millis(60_000), &[1]);
        model.tally().missing
    }

    #[test]
    fn what_came_before_an_update_was_published_has_not_taken_its_place() {
        assert_eq!(missing(Time::from_millis(20_400)), 1);
        assert_eq!(missing(Time::from_millis(20_600)), 0);
    }

    #[test]
    fn what_is_lost_before_a_shaped_link_no_relay_has_to_count() {
        assert!((0..4).any(|seed| accused(seed, false) > 0));
        assert!((0..4).all(|seed| accused(seed, true) == 0));
    }
}
