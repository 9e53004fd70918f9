//! Comtrees with a budget of their own: what each participant of such a comtree may be sent of it.
//!
//! Ten times a second a *water level* is worked out for each of these comtrees, by max-min fairness of what its
//! participants are offered, as far as their own budgets hold that: nobody is sent more than the water level, and
//! whoever is offered less leaves the rest to the others. It is one number for all, so receivers that share a row
//! go on sharing it. Besides, the comtree has an allowance, from which all is taken that its participants are
//! sent, so that the budget holds before anything is known of them.

use super::allowance::{Allowance, Down, WINDOW, spare};
use crate::index::{ComtreeIndex, NONE, PortIndex};
use canopy_wire::Time;
use core::time::Duration;

/// Water levels are worked out this often.
pub(crate) const REVIEW_EVERY: Duration = Duration::from_millis(100);
/// What may be saved up is that of this time: as much as may be sent within it.
const AT_ONCE: Duration = Duration::from_millis(100);
/// What a participant is offered is averaged over this time, in seconds.
const SMOOTH: f64 = 0.3;
/// A budget is used to this part, so that no 100 ms bring more than it, however updates fall into them.
const PACED: f64 = 0.985;

/// A comtree that has a budget.
struct Comtree {
    /// What it may be sent, a little less than what was said; and which part of its whole budget that is, as other data
    /// threads have the rest.
    budget: Down,
    part: f64,
    allowance: Allowance,
    /// The part of the budget that any participant may be sent, and whether that is less than somebody is
    /// offered.
    water_level: f64,
    is_binding: bool,
    /// What the participants want, in parts of the budget here; and together, in parts of the whole.
    wants: Vec<f64>,
    wanted: (f64, u32),
}

/// A participant.
#[derive(Clone, Copy)]
struct Member {
    /// Its comtree; no other port has one.
    comtree: ComtreeIndex,
    /// What it was offered since water levels were worked out, while it was not limited: nanoseconds of the whole budget.
    offered: f64,
    /// The part of the comtree's whole budget that it is offered.
    demand: f64,
}

impl Default for Member {
    fn default() -> Member {
        Member { comtree: NONE, offered: 0.0, demand: 0.0 }
    }
}

/// The comtrees of a data thread that have budgets.
#[derive(Default)]
pub(crate) struct ComtreeShares {
    /// By comtree.
    comtrees: Vec<Option<Comtree>>,
    /// By port.
    members: Vec<Member>,
    /// By row: what each of its members was offered since water levels were worked out, nanoseconds of the whole budget.
    by_row: Vec<f64>,
    reviewed: Time,
    is_any: bool,
}

impl ComtreeShares {
    /// Whether any comtree has a budget.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any
    }

    /// When water levels are to be worked out next, if any comtree has a budget.
    pub(crate) fn due(&self) -> Option<Time> {
        self.is_any.then(|| self.reviewed + REVIEW_EVERY)
    }

    /// The ports that there were so far.
    pub(super) fn ports(&self) -> usize {
        self.members.len()
    }

    /// A participant of a comtree has a port.
    pub(super) fn enter(&mut self, port: PortIndex, comtree: ComtreeIndex) {
        let index = port as usize;
        if index >= self.members.len() {
            self.members.resize(index + 1, Member::default());
        }
        self.members[index] = Member { comtree, ..Member::default() };
    }

    /// A port is closed.
    pub(super) fn forget(&mut self, port: PortIndex) {
        if let Some(member) = self.members.get_mut(port as usize) {
            *member = Member::default();
        }
    }

    /// The participants of a comtree may be sent so much together from now on, which is a part of what those on all
    /// data threads may be sent.
    pub(super) fn set_budget(&mut self, comtree: ComtreeIndex, (budget, of_whole): (Down, f64)) {
        let index = comtree as usize;
        if index >= self.comtrees.len() {
            if !budget.is_limited() {
                return;
            }
            self.comtrees.resize_with(index + 1, || None);
        }
        let budget = part(budget, PACED);
        let before = self.comtrees[index].take().filter(|_| budget.is_limited());
        self.comtrees[index] = match before {
            // What was spent stays spent, so that no change of budgets brings more.
            Some(before) => {
                let mut allowance = before.allowance;
                allowance.owe(times(before.budget, budget));
                Some(Comtree { budget, part: of_whole, allowance, ..before })
            }
            None if budget.is_limited() => Some(Comtree {
                budget,
                part: of_whole,
                allowance: Allowance::default(),
                water_level: 1.0,
                is_binding: false,
                wants: Vec::new(),
                wanted: (0.0, 0),
            }),
            None => None,
        };
        self.is_any = self.comtrees.iter().any(Option::is_some);
    }

    fn of(&mut self, comtree: ComtreeIndex) -> Option<&mut Comtree> {
        self.comtrees.get_mut(comtree as usize)?.as_mut()
    }

    /// The comtree of a participant, if that has a budget.
    #[inline]
    fn of_member(&mut self, port: PortIndex) -> Option<(&mut Comtree, &mut Member)> {
        let member = self.members.get_mut(port as usize)?;
        Some((self.comtrees.get_mut(member.comtree as usize)?.as_mut()?, member))
    }

    /// What a participant that is not limited may be sent: it has no limit where all are sent everything.
    #[inline]
    pub(crate) fn limit_of(&self, port: PortIndex) -> Down {
        let comtree = self.members.get(port as usize).map(|member| member.comtree as usize);
        match comtree.and_then(|comtree| self.comtrees.get(comtree)?.as_ref()) {
            Some(comtree) if comtree.is_binding => part(comtree.budget, comtree.water_level),
            _ => Down::NONE,
        }
    }

    /// What any participant of a comtree may be sent, if that has a budget.
    pub(crate) fn water_level_of(&self, comtree: ComtreeIndex) -> Down {
        let comtree = self.comtrees.get(comtree as usize).and_then(Option::as_ref);
        comtree.map_or(Down::NONE, |comtree| part(comtree.budget, comtree.water_level))
    }

    /// Whether the comtree of a participant that is not limited has so much left.
    #[inline]
    pub(super) fn fits(
        &mut self,
        now: Time,
        port: PortIndex,
        (bytes, updates): (u64, u64),
    ) -> bool {
        self.of_member(port).is_none_or(|(comtree, _)| {
            comtree.allowance.advance(now, AT_ONCE, spare(comtree.budget), WINDOW);
            comtree.budget.cost(bytes, updates) <= comtree.allowance.left()
        })
    }

    /// A participant that is not limited was sent so much.
    #[inline]
    pub(super) fn spend(&mut self, port: PortIndex, (bytes, updates): (u64, u64)) {
        if let Some((comtree, member)) = self.of_member(port) {
            let cost = comtree.budget.cost(bytes, updates);
            comtree.allowance.spend(cost);
            member.offered += cost as f64 * comtree.part;
        }
    }

    /// The members of a row were offered an update of so many bytes.
    pub(super) fn offer(&mut self, row: u32, comtree: ComtreeIndex, bytes: u64) {
        let Some(comtree) = self.of(comtree) else { return };
        let cost = comtree.budget.cost(bytes, 1) as f64 * comtree.part;
        let index = row as usize;
        if index >= self.by_row.len() {
            self.by_row.resize(index + 1, 0.0);
        }
        self.by_row[index] += cost;
    }

    /// How much a comtree bears now for each of so many receivers, in nanoseconds of what one of them may be
    /// sent: `down`.
    pub(super) fn room(
        &mut self,
        now: Time,
        comtree: ComtreeIndex,
        (members, down): (usize, Down),
    ) -> Option<i64> {
        let comtree = self.of(comtree)?;
        comtree.allowance.advance(now, AT_ONCE, spare(comtree.budget), WINDOW);
        let left = comtree.allowance.left();
        let each = (left as f64 * times(comtree.budget, down) / members.max(1) as f64) as i64;
        // Who has saved up all that may be owes the rest of what it takes to send each something.
        let is_full = left >= AT_ONCE.as_nanos() as i64;
        Some(if is_full { each.max(spare(down)) } else { each })
    }

    /// The participants of a comtree that are limited were sent so much together.
    pub(crate) fn spend_together(&mut self, comtree: ComtreeIndex, (bytes, updates): (u64, u64)) {
        if let Some(comtree) = self.of(comtree) {
            comtree.allowance.spend(comtree.budget.cost(bytes, updates));
        }
    }

    /// Works out the water levels. `who` knows of a port what it may be sent whatever its comtree may, and its row.
    pub(super) fn review(&mut self, now: Time, who: impl Fn(PortIndex) -> (Down, Option<u32>)) {
        let passed = now.since(core::mem::replace(&mut self.reviewed, now)).as_secs_f64();
        for (port, member) in self.members.iter_mut().enumerate() {
            let comtree = self.comtrees.get_mut(member.comtree as usize);
            let Some(comtree) = comtree.and_then(Option::as_mut) else { continue };
            let (own, row) = who(port as PortIndex);
            let of_row = row.and_then(|row| self.by_row.get(row as usize)).copied();
            let offered = core::mem::take(&mut member.offered) + of_row.unwrap_or(0.0);
            if passed > 0.0 {
                let offered = offered / 1e9 / passed;
                member.demand += (offered - member.demand) * (passed / SMOOTH).min(1.0);
            }
            comtree.wants.push((member.demand / comtree.part).min(part_of(own, comtree.budget)));
        }
        for comtree in self.comtrees.iter_mut().flatten() {
            let receivers = comtree.wants.iter().filter(|want| **want > 0.0).count() as u32;
            comtree.wanted = (comtree.wants.iter().sum::<f64>() * comtree.part, receivers);
            (comtree.water_level, comtree.is_binding) = water_level(&mut comtree.wants);
            comtree.wants.clear();
        }
        self.by_row.fill(0.0);
    }

    /// Which part of its whole budget the participants of a comtree want here, and how many want anything.
    pub(crate) fn wanted(&self, comtree: ComtreeIndex) -> (f64, u32) {
        let comtree = self.comtrees.get(comtree as usize).and_then(Option::as_ref);
        comtree.map_or((0.0, 0), |comtree| comtree.wanted)
    }
}

/// The part of a whole that each may have of those who want these parts, and whether that is less than somebody
/// wants. Otherwise what nobody wants is everybody's who begins to.
fn water_level(wants: &mut Vec<f64>) -> (f64, bool) {
    let sum: f64 = wants.iter().sum();
    if sum <= 1.0 {
        let most = wants.iter().copied().fold(0.0, f64::max);
        return (1.0 - sum + most, false);
    }
    let mut left = 1.0;
    loop {
        let level = left / wants.len() as f64;
        let before = wants.len();
        wants.retain(|want| {
            let is_sated = *want <= level;
            left -= if is_sated { *want } else { 0.0 };
            !is_sated
        });
        if wants.len() == before || wants.is_empty() {
            return (level, true);
        }
    }
}

/// Which part of a budget `down` is; no limit is all of it and more.
fn part_of(down: Down, budget: Down) -> f64 {
    let of = |one: u64, whole: u64| match (one, whole) {
        (0, _) | (_, 0) => f64::INFINITY,
        (one, whole) => one as f64 / whole as f64,
    };
    of(down.bits, budget.bits).min(of(down.updates, budget.updates))
}

/// How many times as much one budget is as another one, by a number that both have.
fn times(one: Down, other: Down) -> f64 {
    let of = |one: u64, other: u64| one as f64 / other.max(1) as f64;
    match (one, other) {
        (Down { bits: 1.., .. }, Down { bits: 1.., .. }) => of(one.bits, other.bits),
        (Down { updates: 1.., .. }, Down { updates: 1.., .. }) => of(one.updates, other.updates),
        _ => 1.0,
    }
}

/// A part of a budget.
fn part(budget: Down, part: f64) -> Down {
    let of = |number: u64| if number == 0 { 0 } else { (number as f64 * part).max(1.0) as u64 };
    Down { bits: of(budget.bits), updates: of(budget.updates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(wants: &[f64]) -> (f64, bool) {
        let (level, is_binding) = water_level(&mut wants.to_vec());
        ((level * 1000.0).round() / 1000.0, is_binding)
    }

    #[test]
    fn the_water_level_is_max_min_fair() {
        assert_eq!(rounded(&[0.1, 0.2, 5.0, 9.0]), (0.35, true));
        assert_eq!(rounded(&[2.0, 2.0]), (0.5, true));
        assert_eq!(rounded(&[0.1, 0.2]), (0.9, false), "the greater one may have what is left");
        assert_eq!(rounded(&[]), (1.0, false));
        assert_eq!(rounded(&[0.5, 0.5]), (0.5, false));
    }

    /// As the comtree's other data threads want less.
    #[test]
    fn what_is_owed_of_a_small_part_is_less_of_a_greater_one() {
        let mut shares = ComtreeShares::default();
        let (small, great) = (Down { bits: 2_000, updates: 0 }, Down { bits: 200_000, updates: 0 });
        shares.enter(3, 1);
        shares.set_budget(1, (small, 0.01));
        let now = Time::from_millis(100);
        assert!(shares.fits(now, 3, (20, 1)));
        shares.spend_together(1, (5_000, 50));
        assert!(!shares.fits(now + Duration::from_secs(10), 3, (20, 1)), "that takes 20 s");
        shares.set_budget(1, (great, 1.0));
        assert!(!shares.fits(now + Duration::from_secs(10), 3, (20, 1)));
        let later = now + Duration::from_millis(10_300);
        assert!(shares.fits(later, 3, (20, 1)), "that takes 0.2 s");
        shares.set_budget(1, (small, 0.01));
        assert!(shares.fits(later, 3, (20, 1)), "what is saved up stays");
    }

    #[test]
    fn a_budget_comes_and_goes() {
        let mut shares = ComtreeShares::default();
        let budget = Down { bits: 1_000_000, updates: 0 };
        shares.enter(3, 1);
        shares.set_budget(1, (Down::NONE, 1.0));
        assert!(!shares.is_any() && shares.due().is_none());
        shares.set_budget(1, (budget, 1.0));
        assert!(shares.is_any());
        let now = Time::from_millis(100);
        assert!(shares.fits(now, 3, (10_000, 1)) && !shares.fits(now, 3, (20_000, 1)));
        assert!(shares.fits(now, 4, (20_000, 1)), "who is no participant of the comtree");
        shares.spend(3, (12_000, 1));
        shares.set_budget(1, (budget, 1.0));
        assert!(!shares.fits(now, 3, (2_000, 1)), "telling it again fills nothing");
        let may = |shares: &ComtreeShares| shares.water_level_of(1).bits as f64;
        let before = may(&shares);
        shares.set_budget(1, (Down { bits: 500_000, updates: 0 }, 1.0));
        assert!((may(&shares) / before - 0.5).abs() < 0.01, "{} of {before}", may(&shares));
        shares.review(now, |_| (Down::NONE, None));
        shares.forget(3);
        assert!(shares.fits(now, 3, (20_000, 1)));
        shares.set_budget(1, (Down::NONE, 1.0));
        assert!(!shares.is_any());
        assert_eq!(shares.water_level_of(1), Down::NONE);
    }
}
