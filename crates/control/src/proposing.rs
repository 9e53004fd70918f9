//! Links that the controller chooses: few at a time, new ones before old ones go, and none goes over
//! which anything runs.

use crate::model::{Link, LinkId, Origin, Relay, RelayId, RelayState};
use crate::op::Op;
use crate::propose::{Pair, Proposal, Proposing, Sets, Site, pair};
use crate::running::Running;
use crate::shape::Shape;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_plan::Rate;
use canopy_wire::Comtree;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The time one way that a link has until it is measured, microseconds.
const UNMEASURED: u32 = 1_000;
/// What a relay can give to each of its links at least, bits a second: one that has little has few.
const LEAST_LINK: f64 = 1e6;
/// How many links are made, how many are taken away, and how many comtrees begin to leave one that is to
/// go, at a time.
pub(crate) const MOST_CHANGES: usize = 8;
/// How many links get another reason for being there at a time: each is a record, and a commit has few.
const MOST_CONFIRMED: usize = 32;
/// At how many looks, and one more for each piece, links follow a proposal that took several pieces. Then
/// another is begun.
const MOST_LOOKS: u32 = 40;

/// The links that there are, as they count for a proposal, and all that is known of ways.
#[derive(Debug, Default)]
struct There {
    measured: BTreeMap<Pair, u32>,
    given: BTreeSet<Pair>,
    /// Those that were made without measuring. They count until their ends have measured each other, or one
    /// has measured others and the link is not usable: perhaps nobody reaches the other.
    counted: BTreeSet<Pair>,
    before: BTreeMap<Pair, Origin>,
}

/// Links are being proposed for what there was when that was begun.
#[derive(Debug)]
pub(crate) struct Underway {
    sites: Vec<Site>,
    there: There,
    /// Links from this one on were made since.
    newer: LinkId,
    proposal: Option<Proposal>,
    /// In how many pieces it was worked out, and at how many looks links have followed it.
    pieces: u32,
    followed: u32,
}

impl Underway {
    /// Goes on for about so many steps: [`Proposal::work`].
    pub(crate) fn work(&mut self, steps: u64) -> bool {
        if self.followed > 0 {
            return true;
        }
        self.pieces += 1;
        let left = steps.saturating_sub(self.cost_to_begin());
        let Some(proposal) = &mut self.proposal else {
            let There { measured, given, counted, before } = &self.there;
            let fixed = given.union(counted).copied().collect();
            let of = Proposing::default();
            let sites = core::mem::take(&mut self.sites);
            let proposal = self.proposal.insert(Proposal::new(sites, measured, &fixed, before, of));
            return left > 0 && proposal.work(left);
        };
        proposal.work(steps)
    }

    /// Whether links are to follow it further, rather than another that is begun for what is there then.
    pub(crate) fn may_be_followed_again(&self) -> bool {
        self.pieces > 1 && self.followed < MOST_LOOKS + self.pieces
    }

    /// How many steps it is to look up all pairs once.
    pub(crate) fn cost_to_begin(&self) -> u64 {
        8 * self.there.measured.len() as u64
    }
}

impl State {
    /// Joins a relay that has just registered by links with others, until it has as many as its degree
    /// or there are no others. Nothing is measured yet, so those with the fewest links come first:
    /// no relay is joined with all.
    pub(crate) fn join_unmeasured(&mut self, op: &mut Op, relay: RelayId) {
        let Some(own) = self.relays.get(&relay) else { return };
        let of_own = self.links.values().filter(|link| link.ends.contains(&relay));
        let is_measured = |link: &Link| !matches!(link.origin, Origin::Given | Origin::Unmeasured);
        if of_own.clone().any(is_measured) {
            return;
        }
        let neighbours: BTreeSet<RelayId> = of_own.map(|link| link.other(relay)).collect();
        let missing = self.most_links(own).saturating_sub(neighbours.len());
        let fits = |other: &&Relay| {
            other.id != relay && other.state != RelayState::Gone && !neighbours.contains(&other.id)
        };
        let links = self.links_of_relays();
        let count = |of: RelayId| links.get(&of).copied().unwrap_or(0);
        let mut others: Vec<(usize, RelayId)> =
            self.relays.values().filter(fits).map(|other| (count(other.id), other.id)).collect();
        others.sort_unstable();
        for (_, other) in others.into_iter().take(missing) {
            self.make(op, [relay, other], UNMEASURED, Origin::Unmeasured);
        }
    }

    /// Whether links join all relays that run.
    pub(crate) fn are_relays_joined(&self) -> bool {
        let relays = || self.relays.keys().filter(|relay| self.is_running(**relay));
        let places: BTreeMap<RelayId, usize> = relays().copied().zip(0..).collect();
        let mut sets = Sets::apart(places.len());
        let mut joins = |link: &&Link| match link.ends.map(|end| places.get(&end).copied()) {
            [Some(from), Some(to)] => sets.join([from, to]),
            _ => false,
        };
        self.links.values().filter(|link| joins(link)).count() + 1 >= places.len()
    }

    /// Begins to propose links for what was measured.
    pub(crate) fn begin_proposal(&self, readings: BTreeMap<Pair, u32>) -> Underway {
        let is_running = |relay: &&Relay| self.is_running(relay.id);
        let site = |relay: &Relay| Site {
            relay: relay.id,
            most: self.most_links(relay),
            leaves: relay.state == RelayState::Draining,
        };
        let sites: Vec<Site> = self.relays.values().filter(is_running).map(site).collect();
        let there = self.there(readings);
        Underway {
            sites,
            there,
            newer: LinkId(self.counters.link),
            proposal: None,
            pieces: 0,
            followed: 0,
        }
    }

    /// Has the proposed links follow a proposal that is worked out, as far as that is done at a time.
    /// `after` is the comtree that was looked at last. Returns whether there is more to do.
    pub(crate) fn follow_proposal(
        &mut self,
        op: &mut Op,
        underway: &mut Underway,
        after: &mut Comtree,
    ) -> bool {
        underway.followed += 1;
        let Some(links) = underway.proposal.as_ref().map(Proposal::links) else { return true };
        let are_confirmed = self.confirm(op, &links);
        let is_made = self.make_missing(op, &links, &underway.there.measured);
        let are_gone = self.drop_surplus(op, &links, underway, after);
        !(are_confirmed && is_made && are_gone)
    }

    /// The links that there are, as they count for a proposal.
    fn there(&self, readings: BTreeMap<Pair, u32>) -> There {
        let known: BTreeSet<RelayId> = readings.keys().flat_map(|(a, b)| [*a, *b]).collect();
        let carrying = self.carrying();
        let mut there = There { measured: readings, ..There::default() };
        for link in self.links.values() {
            let of = pair(link.ends[0], link.ends[1]);
            let (is_measured, is_usable) =
                (there.measured.contains_key(&of), self.is_usable(link.id));
            // Both ends measure a link that they have, too.
            let is_agreed = || self.health.get(&link.id).is_some_and(|of| of.delays.are_both());
            let mut ends = link.ends.iter().map(|end| known.contains(end));
            let [are_known, is_one_known] = [ends.clone().all(|it| it), ends.any(|it| it)];
            let is_read = is_measured || is_usable && are_known && is_agreed();
            if !is_measured && is_usable {
                there.measured.insert(of, link.delay_us);
            }
            match link.origin {
                Origin::Given => _ = there.given.insert(of),
                Origin::Unmeasured if !is_read => {
                    if is_usable || !is_one_known {
                        there.counted.insert(of);
                    }
                }
                Origin::Unmeasured if !carrying.contains(&link.id) => {}
                Origin::Unmeasured => _ = there.before.insert(of, Origin::Kept),
                origin => _ = there.before.insert(of, origin),
            }
        }
        there
    }

    /// How many links a relay is to have at most: as many as its uplink has something for.
    fn most_links(&self, relay: &Relay) -> usize {
        let share = self.settings.share * relay.uplink.send.bits.min(relay.uplink.receive.bits);
        ((share / LEAST_LINK) as usize).max(1).min(self.settings.degree)
    }

    /// How many links each relay has with others that are not gone.
    fn links_of_relays(&self) -> BTreeMap<RelayId, usize> {
        let is_gone = |end: RelayId| {
            self.relays.get(&end).is_none_or(|relay| relay.state == RelayState::Gone)
        };
        let mut counts: BTreeMap<RelayId, usize> = BTreeMap::new();
        for link in self.links.values() {
            for end in link.ends.iter().filter(|end| !is_gone(link.other(**end))) {
                *counts.entry(*end).or_default() += 1;
            }
        }
        counts
    }

    fn make(&mut self, op: &mut Op, ends: [RelayId; 2], delay_us: u32, origin: Origin) {
        let relays = ends.iter().filter_map(|end| self.relays.get(end));
        let rates = relays.flat_map(|of| [of.uplink.send, of.uplink.receive]);
        let least =
            |a: Rate, b: Rate| Rate { bits: a.bits.min(b.bits), packets: a.packets.min(b.packets) };
        let rate = rates.reduce(least).unwrap_or(Rate::ZERO);
        // Whoever has as many links as it can have gets no more.
        _ = self.add_link(op, ends, rate, delay_us, origin);
    }

    /// Links that were made before anything was measured, and are what is proposed now, are that from
    /// now on. Returns whether all are.
    fn confirm(&mut self, op: &mut Op, links: &BTreeMap<Pair, Origin>) -> bool {
        let mut left = MOST_CONFIRMED;
        for link in self.links.values_mut().filter(|link| link.origin == Origin::Unmeasured) {
            let of = pair(link.ends[0], link.ends[1]);
            if let Some(origin) = links.get(&of) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                link.origin = *origin;
                op.write(Table::Links, number(link.id.0), Some(&*link));
            }
        }
        true
    }

    /// Makes the proposed links that are not there. Returns whether all are.
    fn make_missing(
        &mut self,
        op: &mut Op,
        links: &BTreeMap<Pair, Origin>,
        measured: &BTreeMap<Pair, u32>,
    ) -> bool {
        let there: BTreeSet<Pair> =
            self.links.values().map(|link| pair(link.ends[0], link.ends[1])).collect();
        // Relays may have gone since.
        let can_be = |of: &Pair| self.is_running(of.0) && self.is_running(of.1);
        let is_missing = |(of, _): &(&Pair, &Origin)| !there.contains(*of) && can_be(of);
        let missing: Vec<_> = links.iter().filter(is_missing).collect();
        for (of, origin) in missing.iter().take(MOST_CHANGES) {
            let delay_us = measured.get(of).copied().unwrap_or(UNMEASURED);
            self.make(op, [of.1, of.0], delay_us, **origin);
        }
        missing.is_empty()
    }

    /// Takes links away that are proposed no more, where others hold their ends together, once nothing
    /// runs over them; comtrees leave them without loss. Returns whether none is left.
    fn drop_surplus(
        &mut self,
        op: &mut Op,
        links: &BTreeMap<Pair, Origin>,
        underway: &Underway,
        after: &mut Comtree,
    ) -> bool {
        let is_given = |link: &&Link| link.origin == Origin::Given && !link.removing;
        let of = |link: &Link| pair(link.ends[0], link.ends[1]);
        let given: BTreeSet<Pair> = self.links.values().filter(is_given).map(of).collect();
        let is_surplus = |link: &&Link| {
            let of = of(link);
            let is_wanted = links.contains_key(&of) || underway.there.counted.contains(&of);
            link.origin.is_proposed()
                && link.id < underway.newer
                && (!is_wanted || given.contains(&of))
                && link.ends.iter().all(|end| self.is_running(*end))
        };
        let surplus: BTreeSet<LinkId> =
            self.links.values().filter(is_surplus).map(|link| link.id).collect();
        let (held, carrying) = (self.held_together(&surplus), self.carrying());
        let is_spared = |id: &LinkId| {
            self.links.get(id).is_some_and(|link| held[&link.ends[0]] == held[&link.ends[1]])
        };
        // Once a relay has returned from there to its parent, or has another standby parent, the link may go.
        let detours = self.links_of_detours();
        let spared = surplus.iter().copied().filter(|id| is_spared(id) && !detours.contains(id));
        let (used, unused): (Vec<LinkId>, Vec<LinkId>) =
            spared.partition(|id| carrying.contains(id));
        let are_all = surplus.len() == unused.len().min(MOST_CHANGES);
        for link in unused.into_iter().take(MOST_CHANGES) {
            // Nothing runs over it, so it cannot be refused.
            _ = self.remove_link_at_once(op, link);
        }
        for (link, health) in &mut self.health {
            health.is_surplus = used.contains(link);
        }
        self.leave_surplus(op, after, MOST_CHANGES);
        are_all
    }

    /// By relay: a number that those have in common who are joined by links that both their ends hear,
    /// without these.
    fn held_together(&self, without: &BTreeSet<LinkId>) -> BTreeMap<RelayId, RelayId> {
        let is_heard =
            |link: &&Link| self.is_usable(link.id) && !link.removing && self.is_heard(link.id);
        let mut next: BTreeMap<RelayId, Vec<RelayId>> = BTreeMap::new();
        for link in self.links.values().filter(is_heard).filter(|of| !without.contains(&of.id)) {
            for end in link.ends {
                next.entry(end).or_default().push(link.other(end));
            }
        }
        let mut held = BTreeMap::new();
        for relay in self.relays.keys() {
            let mut open = vec![*relay];
            while let Some(at) = open.pop() {
                if let Entry::Vacant(place) = held.entry(at) {
                    place.insert(*relay);
                    open.extend(next.get(&at).into_iter().flatten());
                }
            }
        }
        held
    }

    /// The links over which a comtree runs, or is about to.
    fn carrying(&self) -> BTreeSet<LinkId> {
        self.comtrees.values().flat_map(Running::shapes).flat_map(Shape::links).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn underway(relays: u16) -> Underway {
        let site = |relay| Site { relay: RelayId(relay), most: 3, leaves: false };
        let sites = (0..relays).map(site).collect();
        let far = |one: u16, other: u16| 1_000 * u32::from(other - one);
        let pairs = (0..relays).flat_map(|one| (one + 1..relays).map(move |other| (one, other)));
        let measured =
            pairs.map(|(one, other)| (pair(RelayId(one), RelayId(other)), far(one, other)));
        let there = There { measured: measured.collect(), ..There::default() };
        Underway { sites, there, newer: LinkId(0), proposal: None, pieces: 0, followed: 0 }
    }

    #[test]
    fn what_took_several_pieces_is_followed_at_some_looks_and_the_rest_at_one() {
        let mut small = underway(8);
        assert!(small.work(1_000_000), "one piece is enough");
        small.followed += 1;
        assert!(!small.may_be_followed_again());

        let mut large = underway(40);
        while !large.work(1_000) {}
        let pieces = large.pieces;
        assert!(pieces > 1);
        let mut looks = 0;
        while large.may_be_followed_again() {
            (large.followed, looks) = (large.followed + 1, looks + 1);
            assert!(large.work(1_000), "it is worked out");
        }
        assert_eq!((looks, large.pieces), (MOST_LOOKS + pieces, pieces));
    }
}
