//! Links that the controller proposes: relays measure each other over the ways that there are, and links are made and
//! exchanged while everything else goes on.

use super::breaking::REPAIRED_IN;
use super::world::{Step, World};
use canopy_control::RelayId;
use canopy_control::signal::{Measure, Measured, Reading};
use canopy_wire::Time;
use rand::RngExt;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often each relay is asked in a round of measuring.
const ASKED: u8 = 4;
/// What a way is longer by when it is measured than it is, microseconds: at most.
const TREMBLES: u32 = 400;
/// What was asked for is measured within this, milliseconds.
const MEASURED_IN: std::ops::Range<u64> = 150..600;

impl World<'_> {
    /// A relay is asked to measure the ways to others.
    pub(crate) fn measure(&mut self, relay: usize, life: u32, asked: Measure) {
        let takes = Duration::from_millis(self.rng.random_range(MEASURED_IN));
        self.after(takes, Step::Measured(relay, life, asked));
    }

    /// It has.
    pub(crate) fn measured(&mut self, relay: usize, asked: &Measure) {
        let Measure { controller, round, .. } = *asked;
        let readings = asked.others.iter().map(|other| self.read(relay, other.relay)).collect();
        self.machines[relay].side.measured(Measured { controller, round, readings });
        self.pump_relay(relay);
    }

    fn read(&mut self, from: usize, relay: RelayId) -> Reading {
        let way = self.process.node(relay).and_then(|to| Some((to, self.graph.between(from, to)?)));
        let answers = |(to, link): &(usize, usize)| self.machines[*to].is_up() && !self.cut[*link];
        let Some((_, link)) = way.filter(answers) else {
            return Reading { relay, delay_us: 0, asked: ASKED, answered: 0 };
        };
        let delay = self.graph.edges[link].delay.as_micros() as u32;
        let delay_us = delay + self.rng.random_range(0..TREMBLES);
        let answered = if self.loses { ASKED - 1 } else { ASKED };
        Reading { relay, delay_us, asked: ASKED, answered }
    }

    /// Notes which links there are. While there is no controller, those that there were stay.
    pub(crate) fn know_links(&mut self) {
        let Some(controller) = self.process.controller.as_ref().filter(|_| self.config.degree > 0)
        else {
            return;
        };
        self.linked.fill(false);
        for (link, _) in controller.links().filter(|(_, is_usable)| *is_usable) {
            if let [Some(one), Some(other)] = link.ends.map(|end| self.process.node(end))
                && let Some(link) = self.graph.between(one, other)
            {
                self.linked[link] = true;
            }
        }
    }

    /// Until links have joined a world's part of the network for the first time, what is published there may be lost.
    pub(crate) fn excuse_unjoined(&mut self) {
        if self.config.degree == 0 {
            return;
        }
        let joined = self.standing(None, None);
        for number in 0..self.worlds.len() {
            let world = &mut self.worlds[number];
            world.is_joined |=
                world.nodes.iter().all(|node| joined[*node] == joined[world.nodes[0]]);
            if !world.is_joined {
                let until = self.now + REPAIRED_IN + self.far(number);
                self.model.excuse(number, Time::ZERO, until);
            }
        }
    }

    /// At last no relay has more links than it may have, and those join what ways join.
    pub(crate) fn check_proposed(&mut self) {
        if self.config.degree == 0 {
            return;
        }
        let Some(controller) = &self.process.controller else { return };
        let mut counts: BTreeMap<RelayId, usize> = BTreeMap::new();
        for (link, _) in controller.links().filter(|(_, is_usable)| *is_usable) {
            link.ends.iter().for_each(|end| *counts.entry(*end).or_default() += 1);
        }
        // Before anything is measured each that comes is joined with as many others, those that have the fewest. What
        // these are exchanged for comes first, and one more than the degree may be needed to join all.
        let most = (2 * self.config.degree + 1) + (self.config.degree + 1);
        let has_many = counts.iter().find(|(_, count)| **count > most);
        let mut faults = Vec::new();
        if let Some((relay, count)) = has_many {
            faults.push(format!("relay {} has {count} links, of {most} at most", relay.0));
        }
        let joined = self.standing(None, None);
        let parted =
            self.graph.edges.iter().find(|edge| joined[edge.ends[0]] != joined[edge.ends[1]]);
        if let Some(edge) = parted {
            faults.push(format!("no links join the relays {:?}", edge.ends));
        }
        faults.into_iter().for_each(|fault| self.model.broken(self.now, fault));
    }
}
