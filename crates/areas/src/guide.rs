//! One who leads the followers of a world's areas from step to step: what a controller runs.

use crate::areas::{Areas, Phase, Report, Rules};
use crate::crowds::Crowds;
use crate::division::{Area, Division};
use crate::ring::Ring;
use canopy_wire::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// By what a follower is known.
pub type Who = [u8; 16];

/// Once all have confirmed a step, what is still on its way has so long: subscriptions between relays
/// before a change, and updates to the groups of before after it.
pub const DWELL: Duration = Duration::from_secs(1);
/// Areas are looked at so often for crowds.
const LOOK: Duration = Duration::from_secs(1);
/// A guide that starts again waits so long for followers, whom it does not know yet.
const RETURN: Duration = Duration::from_secs(10);
/// A follower that cannot be reached is waited for so long, which is as long as a lease. After that it hears
/// others again only when it follows again.
const MISSING: Duration = Duration::from_secs(60);

/// A world's areas, who follows them, and when the next step is due.
#[derive(Debug)]
pub struct Guide {
    areas: Areas,
    crowds: Crowds,
    followers: BTreeMap<Who, Known>,
    /// Since when all have confirmed the step.
    confirmed: Option<Time>,
    /// Nothing changes before.
    not_before: Time,
    next_look: Time,
}

/// A follower, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The channel by which it reports. It may open another before the end of the last is noticed.
    channel: u64,
    report: Report,
    missing_since: Option<Time>,
}

impl Guide {
    /// Leads through new areas, whom nobody follows yet.
    pub fn new(now: Time, areas: Areas) -> Guide {
        let (crowds, followers) = (Crowds::default(), BTreeMap::new());
        Guide { areas, crowds, followers, confirmed: None, not_before: now, next_look: now }
    }

    /// Goes on with areas that somebody may follow.
    pub fn resume(now: Time, areas: Areas) -> Guide {
        Guide { not_before: now + RETURN, ..Guide::new(now, areas) }
    }

    /// The areas to be told.
    pub fn areas(&self) -> &Areas {
        &self.areas
    }

    /// How many are known to follow.
    pub fn followers(&self) -> usize {
        self.followers.len()
    }

    /// How many are in each area of the division in force, as far as they have said.
    pub fn crowd(&self) -> BTreeMap<Area, u32> {
        let mut crowd = BTreeMap::new();
        let here = |known: &&Known| known.report.step == self.areas.step;
        for area in self.followers.values().filter(here).filter_map(|known| known.report.area) {
            *crowd.entry(area).or_default() += 1;
        }
        crowd
    }

    /// Begins a change to another division, with other rings and rules. Returns whether it does: not
    /// while another change is under way.
    pub fn change(&mut self, next: Division, rings: Vec<Ring>, rules: Option<Rules>) -> bool {
        if self.areas.phase() != Phase::Settled {
            return false;
        }
        self.areas.rings = rings;
        self.areas.rules = rules;
        self.begin(next);
        true
    }

    fn begin(&mut self, next: Division) {
        self.areas.begin(next);
        self.crowds.clear();
        self.confirmed = None;
    }

    /// A follower has said where it is, and which step it has carried out. One that is not known yet is
    /// waited for from now on.
    pub fn handle_report(&mut self, who: Who, channel: u64, report: Report) {
        self.followers.insert(who, Known { channel, report, missing_since: None });
    }

    /// A follower's channel has ended.
    pub fn handle_gone(&mut self, now: Time, who: Who, channel: u64) {
        let known = self.followers.get_mut(&who);
        if let Some(known) = known.filter(|known| known.channel == channel) {
            known.missing_since = Some(now);
        }
    }

    /// Forgets followers that are not in the world any more.
    pub fn retain(&mut self, mut is_in: impl FnMut(&Who) -> bool) {
        self.followers.retain(|who, _| is_in(who));
    }

    /// Takes the next step if it is due, or begins a change where an area is crowded or empty. Returns
    /// whether the areas are others now.
    pub fn handle_timeout(&mut self, now: Time) -> bool {
        let is_missing = |known: &Known| known.missing_since.is_some_and(|at| at + MISSING <= now);
        self.followers.retain(|_, known| !is_missing(known));
        if now < self.not_before {
            return false;
        }
        if self.areas.phase() == Phase::Settled {
            return self.look(now);
        }
        let step = self.areas.step;
        if self.followers.values().any(|known| known.report.step != step) {
            self.confirmed = None;
            return false;
        }
        let confirmed = *self.confirmed.get_or_insert(now);
        if now < confirmed + DWELL {
            return false;
        }
        self.areas.go_on();
        self.confirmed = None;
        true
    }

    fn look(&mut self, now: Time) -> bool {
        let Some(rules) = self.areas.rules.filter(|_| self.next_look <= now) else { return false };
        self.next_look = now + LOOK;
        let better = self.crowds.look(&self.areas.division, &self.crowd(), &rules);
        let is_better = better.is_some();
        better.into_iter().for_each(|next| self.begin(next));
        is_better
    }
}
