//! Relays that say nothing any more. Whether one is dead, or only out of the controller's reach, its
//! neighbours know: their links to it carry hellos, and they say how they find them.
//!
//! - A neighbour hears it: its data plane lives, and whoever it serves stays. It takes nobody new after
//!   [`Settings::silence`].
//! - All neighbours that are heard themselves do not hear it: it is given up after
//!   [`Settings::suspicion`], or at once if its channel has broken as well.
//! - No neighbour can say: it is given up after [`Settings::silence`] if other relays are heard. If none
//!   is, the controller itself is cut off, and gives nobody up before leases have ended.

use super::{Controller, RETURN};
use crate::model::{MemberState, RelayId, RelayState};
use crate::op::{Effect, Event, Op};
use crate::settings::Settings;
use canopy_wire::Time;
use core::time::Duration;

/// Members whose relay was given up have found places at others within this.
const REHOMED: Duration = Duration::from_secs(2);

/// What the neighbours of a relay say.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Witness {
    /// One at least hears it.
    Heard,
    /// None of those who can say hears it.
    Unheard,
    /// There is none who can say.
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
        for relay in silent {
            let witness = self.witness(now, relay);
            let Some(agent) = self.agents.get_mut(&relay) else { continue };
            let ends = match witness {
                Witness::Heard => {
                    agent.vouched = now;
                    continue;
                }
                Witness::Unheard if agent.is_cut => since,
                Witness::Unheard => since.max(agent.heard + suspicion),
                Witness::Nobody => {
                    let after = if is_alone { lease.max(silence) } else { silence };
                    since.max(agent.heard.max(agent.vouched) + after)
                }
            };
            if ends <= now {
                self.lose(now, relay);
            }
        }
    }

    fn is_silent(&self, now: Time, relay: RelayId) -> bool {
        let suspicion = self.state.settings.suspicion;
        self.agents.get(&relay).is_none_or(|agent| agent.is_cut || agent.heard + suspicion <= now)
    }

    fn witness(&self, now: Time, relay: RelayId) -> Witness {
        let mut witness = Witness::Nobody;
        for link in self.state.links.values().filter(|link| link.ends.contains(&relay)) {
            let other = link.other(relay);
            let Some(health) = self.state.health.get(&link.id) else { continue };
            if !self.state.is_running(other) || self.is_silent(now, other) {
                continue;
            }
            if !health.reported.contains(&other) {
                continue;
            }
            if !health.deaf.contains(&other) {
                return Witness::Heard;
            }
            witness = Witness::Unheard;
        }
        witness
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
