//! Relays that say nothing any more. Whether one is dead, or only out of the controller's reach, its
//! neighbours know: their links to it carry hellos, and they say how they find them.
//!
//! - A neighbour hears it: its data plane lives, and whoever it serves stays. It takes nobody new after
//!   [`Settings::silence`].
//! - All neighbours that are heard themselves do not hear it, nor may others that are heard by neighbours: it is given up
//!   after [`Settings::suspicion`], or at once if its channel has broken as well.
//! - No neighbour can say, or not all of them: relays that are heard are asked whether links lead there, by what relays
//!   tell each other of their links. If nobody says so it is given up after [`Settings::silence`].
//! - No relay at all is heard: the controller itself is cut off, and gives nobody up before leases have ended.

use super::{Controller, RETURN};
use crate::model::{Key, MemberState, RelayId, RelayState};
use crate::op::{Effect, Event, Op};
use crate::settings::Settings;
use crate::signal::{MOST_ASKED_AFTER, Message};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Members whose relay was given up have found places at others within this.
const REHOMED: Duration = Duration::from_secs(2);
/// Relays are asked after others this often, so many of them at once, and the next ones then: all that are joined with
/// each other know the same.
const ASKED_EVERY: Duration = Duration::from_millis(300);
const ASKED_AT_ONCE: usize = 16;

/// What the neighbours of a relay say.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Witness {
    /// One at least hears it.
    Heard,
    /// None of its neighbours hears it.
    Unheard,
    /// There is none who can say, or others may hear it.
    Nobody,
}

impl Controller {
    /// The channel of a relay has broken. If its neighbours do not hear it either it is given up at
    /// once; until it beats again it takes nobody new.
    pub fn handle_disconnect(&mut self, now: Time, relay: RelayId) {
        if let Some(agent) = self.agents.get_mut(&relay) {
            agent.is_cut = true;
        }
        self.give_up_silent(now);
    }

    /// Gives up whoever is silent and not heard by neighbours.
    pub(super) fn give_up_silent(&mut self, now: Time) {
        let Settings { silence, suspicion, lease, .. } = self.state.settings;
        let silent: Vec<RelayId> = self
            .agents
            .values()
            .filter(|agent| self.state.is_running(agent.relay) && self.is_silent(now, agent.relay))
            .map(|agent| agent.relay)
            .collect();
        let takes_nobody = |relay: &RelayId| {
            self.agents.get(relay).is_none_or(|agent| agent.is_cut || agent.heard + silence <= now)
        };
        self.state.silent = silent.iter().copied().filter(takes_nobody).collect();
        // They may take detours meanwhile.
        if !self.state.silent.is_subset(&self.state.unheard) {
            self.state.unheard.extend(&self.state.silent);
            self.state.note_apart();
        }
        let is_alone = self.agents.keys().all(|relay| self.is_silent(now, *relay));
        // Whom it hears first again says nothing of the others, which have their time to connect.
        let is_back = !is_alone && self.alone_until > Time::ZERO;
        let since = if is_back { self.alone_until + RETURN } else { Time::ZERO };
        if is_alone && !self.agents.is_empty() {
            self.alone_until = now;
        }
        let witnesses = self.witnesses(now, &silent);
        let mut unknown = BTreeSet::new();
        for relay in silent {
            let witness = witnesses.get(&relay).copied().unwrap_or(Witness::Nobody);
            let Some(agent) = self.agents.get_mut(&relay) else { continue };
            let ends = match witness {
                Witness::Heard => {
                    agent.vouched = agent.vouched.max(now);
                    continue;
                }
                Witness::Unheard if agent.is_cut => since,
                Witness::Unheard => since.max(agent.heard + suspicion),
                Witness::Nobody => {
                    unknown.insert(relay);
                    let after = if is_alone { lease.max(silence) } else { silence };
                    since.max(agent.heard.max(agent.vouched) + after)
                }
            };
            if ends <= now {
                unknown.remove(&relay);
                self.lose(now, relay);
            }
        }
        if !is_alone {
            self.ask_after(now, &unknown);
        }
    }

    /// Asks relays that are heard whether links lead to these: those from which the way there is over relays that are not
    /// heard.
    fn ask_after(&mut self, now: Time, unknown: &BTreeSet<RelayId>) {
        if unknown.is_empty() || now < self.asked_after + ASKED_EVERY {
            return;
        }
        self.asked_after = now;
        let keys: Vec<Key> =
            unknown.iter().filter_map(|relay| Some(self.state.relays.get(relay)?.key)).collect();
        let border = self.border(now, unknown);
        let last = self.last_asked_after;
        let behind = border.range((Bound::Excluded(last), Bound::Unbounded));
        let asked: Vec<RelayId> =
            behind.chain(border.range(..=last)).copied().take(ASKED_AT_ONCE).collect();
        self.last_asked_after = asked.last().copied().unwrap_or(last);
        for relay in asked {
            let ask = |keys: &[Key]| (relay, Message::AskAfter(keys.to_vec()));
            self.asks.extend(keys.chunks(MOST_ASKED_AFTER).map(ask));
        }
    }

    /// The relays that are heard and have links with others that are not, from which more such lead to these.
    fn border(&self, now: Time, unknown: &BTreeSet<RelayId>) -> BTreeSet<RelayId> {
        let mut neighbours: BTreeMap<RelayId, Vec<RelayId>> = BTreeMap::new();
        for [one, other] in self.state.links.values().map(|link| link.ends) {
            neighbours.entry(one).or_default().push(other);
            neighbours.entry(other).or_default().push(one);
        }
        let (mut border, mut next) = (BTreeSet::new(), Vec::from_iter(unknown.iter().copied()));
        while let Some(at) = next.pop() {
            for to in neighbours.remove(&at).unwrap_or_default() {
                match self.state.is_running(to) && !self.is_silent(now, to) {
                    true => _ = border.insert(to),
                    false => next.push(to),
                }
            }
        }
        border
    }

    /// A relay says that links lead to these: their data planes live.
    pub(super) fn take_reachable(&mut self, now: Time, from: RelayId, keys: &[Key]) {
        if !self.state.is_running(from) || self.is_silent(now, from) {
            return;
        }
        let keys: BTreeSet<&Key> = keys.iter().collect();
        for relay in self.state.relays.values().filter(|relay| keys.contains(&relay.key)) {
            if let Some(agent) = self.agents.get_mut(&relay.id) {
                agent.vouched = agent.vouched.max(now);
            }
        }
    }

    fn is_silent(&self, now: Time, relay: RelayId) -> bool {
        let suspicion = self.state.settings.suspicion;
        self.agents.get(&relay).is_none_or(|agent| agent.is_cut || agent.heard + suspicion <= now)
    }

    /// What the neighbours of these relays say.
    fn witnesses(&self, now: Time, silent: &[RelayId]) -> BTreeMap<RelayId, Witness> {
        let mut witnesses: BTreeMap<RelayId, Witness> =
            silent.iter().map(|relay| (*relay, Witness::Nobody)).collect();
        if silent.is_empty() {
            return witnesses;
        }
        let mut joined: BTreeMap<RelayId, Vec<RelayId>> = BTreeMap::new();
        let is_silent: BTreeSet<RelayId> = silent.iter().copied().collect();
        for link in self.state.links.values() {
            let Some(health) = self.state.health.get(&link.id) else { continue };
            for relay in link.ends {
                let other = link.other(relay);
                let Some(witness) = witnesses.get_mut(&relay) else { continue };
                // How the link between two that are silent is now nobody can say.
                if is_silent.contains(&other) {
                    joined.entry(other).or_default().push(relay);
                }
                let can_say = self.state.is_running(other) && !self.is_silent(now, other);
                if !can_say || !health.reported.contains(&other) {
                    continue;
                }
                *witness = match (health.deaf.contains(&other), *witness) {
                    (true, Witness::Nobody | Witness::Unheard) => Witness::Unheard,
                    (false, _) | (true, Witness::Heard) => Witness::Heard,
                };
            }
        }
        // Whoever is heard by a relay that is not heard itself, but by a neighbour, may live all the same.
        let heard = witnesses.iter().filter(|(_, witness)| **witness == Witness::Heard);
        let mut next: Vec<RelayId> = heard.map(|(relay, _)| *relay).collect();
        while let Some(at) = next.pop() {
            for to in joined.remove(&at).unwrap_or_default() {
                if let Some(witness) = witnesses.get_mut(&to)
                    && *witness != Witness::Heard
                {
                    *witness = Witness::Nobody;
                    next.push(to);
                }
            }
        }
        witnesses
    }

    /// Gives up a relay, and its members with it.
    fn lose(&mut self, now: Time, relay: RelayId) {
        let mut op = Op::default();
        _ = self.state.set_relay(&mut op, relay, RelayState::Gone);
        self.state.forget_ways(relay);
        op.effects.push(Effect::Lost(relay));
        op.tell(Event::RelayLost(relay));
        self.ops.push_back(op);
        self.give_up_members(now, relay);
        self.repair(now);
    }

    pub(super) fn give_up_members(&mut self, now: Time, relay: RelayId) {
        let there = self
            .state
            .members
            .values()
            .filter(|member| member.relay == relay && member.state != MemberState::Resting);
        for (world, address, state) in
            there.map(|of| (of.world, of.address, of.state)).collect::<Vec<_>>()
        {
            let mut op = Op::default();
            self.state.give_up(&mut op, now, world, address);
            if state == MemberState::Held {
                self.state.expect_members(world, now + REHOMED);
            }
            self.ops.push_back(op);
        }
    }
}
