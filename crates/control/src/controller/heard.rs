//! What relays say, and what time brings.

use super::{Controller, MOVES, REVIEW};
use crate::agent::Settled;
use crate::error::Refusal;
use crate::model::{LinkId, RelayId, RelayState, WorldId};
use crate::op::{Effect, Event, Op, member_key};
use crate::rollouts::Rollout;
use crate::settings::Settings;
use crate::signal::{ItemKey, Message};
use crate::state::State;
use canopy_wire::{Address, Comtree, Time};

impl Controller {
    /// Takes a message from a relay, which has proved that it is that one.
    pub fn handle_message(&mut self, now: Time, relay: RelayId, bytes: &[u8]) {
        let Ok(message) = Message::decode(bytes) else { return };
        let Some(agent) = self.agents.get_mut(&relay) else { return };
        match message {
            Message::Beat { relay: life, controller, answered, links, mut succeeded } => {
                agent.hear(now, life);
                succeeded.retain(|word| agent.means(*word, life, controller, answered));
                self.found(relay);
                links.into_iter().for_each(|report| self.state.report(now, relay, report));
                self.review(now);
                self.give_up_silent(now);
                succeeded
                    .into_iter()
                    .for_each(|(comtree, link)| self.succeeded(relay, comtree, link));
            }
            Message::Answer { .. } => {
                let mut settled = Vec::new();
                agent.handle_answer(now, message, &mut settled);
                settled.into_iter().for_each(|settled| self.settle(now, relay, settled));
            }
            Message::Call { .. } => {}
        }
    }

    /// A relay was heard.
    fn found(&mut self, relay: RelayId) {
        let state = self.state.relays.get(&relay).map(|relay| relay.state);
        if matches!(state, Some(RelayState::Joining | RelayState::Gone)) {
            let mut op = Op::default();
            _ = self.state.set_relay(&mut op, relay, RelayState::Up);
            op.effects.push(Effect::Found(relay));
            op.tell(Event::RelayFound(relay));
            self.ops.push_back(op);
            self.repair();
        }
    }

    fn settle(&mut self, now: Time, relay: RelayId, settled: Settled) {
        let Settled { key, version, is_there, result } = settled;
        match (key, result) {
            (ItemKey::Link(_), _) => {}
            (ItemKey::Comtree(comtree), Ok(())) => {
                if let Some(rollout) = self.rollouts.get_mut(&comtree) {
                    rollout.settle(relay, version);
                }
                self.flush(comtree);
            }
            (ItemKey::Comtree(comtree), Err(why)) => {
                self.refuse_swap(comtree, relay, &why);
                let waiting = self.rollouts.get(&comtree).map_or_else(Vec::new, Rollout::waiting);
                for address in waiting {
                    self.reject(comtree, address, relay, why.clone());
                }
            }
            (ItemKey::Member(comtree, address), Ok(())) if is_there => {
                self.member_is_there(comtree, address, relay);
            }
            (ItemKey::Member(comtree, address), Ok(())) => {
                self.member_is_gone(now, comtree, address);
            }
            (ItemKey::Member(comtree, address), Err(why)) => {
                if is_there {
                    self.reject(comtree, address, relay, why);
                }
            }
        }
    }

    fn member_is_there(&mut self, comtree: Comtree, address: Address, relay: RelayId) {
        let key = member_key(comtree, address);
        let has_more = self.agents.get(&relay).is_none_or(|agent| agent.has_more(key))
            || self
                .rollouts
                .get(&comtree)
                .is_some_and(|rollout| rollout.waiting().contains(&address));
        let Some(world) = self.state.comtrees.get(&comtree).map(|running| running.world) else {
            return;
        };
        if has_more {
            return;
        }
        let Some(left) = self.admitting.get_mut(&(world, address)) else { return };
        left.remove(&comtree);
        if left.is_empty() {
            self.admitting.remove(&(world, address));
            self.events.push_back(Event::Admitted { world, address });
            let mut op = Op::default();
            if self.is_in_force(world, address) {
                self.state.settle_limits(&mut op, world, address);
            }
            if !op.is_empty() {
                self.ops.push_back(op);
            }
        }
    }

    /// Whether a member's relay holds it to its limits. It does not yet if they were changed and that
    /// is not committed.
    fn is_in_force(&self, world: WorldId, address: Address) -> bool {
        let member = self.state.members.get(&(world, address));
        let Some((member, of)) = member.zip(self.state.worlds.get(&world)) else { return false };
        let Some(agent) = self.agents.get(&member.relay()) else { return false };
        of.comtrees.iter().all(|comtree| agent.wants(&State::member_item(*comtree, member)))
    }

    fn member_is_gone(&mut self, now: Time, comtree: Comtree, address: Address) {
        let Some(world) = self.state.comtrees.get(&comtree).map(|running| running.world) else {
            return;
        };
        let Some(left) = self.leaving.get_mut(&(world, address)) else { return };
        left.remove(&comtree);
        if left.is_empty() {
            self.leaving.remove(&(world, address));
            let mut op = Op::default();
            self.state.release(&mut op, now, world, address);
            self.ops.push_back(op);
        }
    }

    /// Rolls back: the relay was not able to let a member in.
    fn reject(&mut self, comtree: Comtree, address: Address, relay: RelayId, why: String) {
        let Some(world) = self.state.comtrees.get(&comtree).map(|running| running.world) else {
            return;
        };
        let mut op = Op::default();
        if self.state.leave(&mut op, world, address).is_err() {
            return;
        }
        if let Ok(relay) = self.state.relay(relay) {
            let why = Refusal::Relay { relay: relay.name.clone(), why };
            op.tell(Event::Refused { world, address, why });
        }
        self.ops.push_back(op);
    }

    /// Takes the time: leases end, silent relays are given up, damped links come back.
    pub fn handle_timeout(&mut self, now: Time) {
        loop {
            let mut op = Op::default();
            if !self.state.expire(&mut op, now) {
                break;
            }
            self.ops.push_back(op);
        }
        self.give_up_silent(now);
        self.forget_departed(now);
        if now >= self.next_review {
            self.review(now);
        }
        self.guide(now);
    }

    /// When it wants to know the time next.
    pub fn poll_timeout(&self, now: Time) -> Time {
        let running = self.agents.values().filter(|agent| self.state.is_running(agent.relay));
        let Settings { silence, suspicion, lease, .. } = self.state.settings;
        let silent = running
            .flat_map(|agent| [suspicion, silence, lease].map(|after| agent.heard + after))
            .filter(|at| *at > now);
        let calls = self.agents.values().filter_map(|agent| agent.poll_timeout(now));
        let ends = self.state.ends.first().map(|(until, ..)| *until);
        let areas = (!self.guides.is_empty()).then_some(self.next_areas);
        silent.chain(calls).chain(ends).chain(areas).fold(self.next_review, Time::min)
    }

    fn review(&mut self, now: Time) {
        self.next_review = now + REVIEW;
        let mut op = Op::default();
        let has_changed = self.state.review_links(&mut op, now);
        self.state.follow_delays(&mut op);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        if has_changed {
            self.repair();
        }
        let mut op = Op::default();
        if has_changed || now >= self.next_moves {
            self.state.review_standbys(&mut op);
        }
        self.state.review_moves(&mut op, now);
        if now >= self.next_moves {
            self.next_moves = now + MOVES;
            self.state.leave_draining(&mut op);
        }
        if !op.is_empty() {
            self.ops.push_back(op);
        }
    }

    /// A relay's next parent on a comtree is the way to the core.
    fn succeeded(&mut self, relay: RelayId, comtree: Comtree, link: LinkId) {
        // What is decided and not told yet may take that next parent back; the relay says it again.
        let rollout = self.rollouts.get(&comtree);
        if !self.is_committed() || rollout.is_some_and(|of| of.staged(relay).next().is_some()) {
            return;
        }
        let mut op = Op::default();
        self.state.succeeded(&mut op, comtree, relay, link);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
    }

    /// A relay does not take what it was told of a comtree: if it was to get another parent, it keeps
    /// the one that it has.
    fn refuse_swap(&mut self, comtree: Comtree, relay: RelayId, why: &str) {
        if self.state.is_swapping(comtree, relay) {
            let mut op = Op::default();
            let reason = format!("{} refused: {why}", self.state.relay_name(relay));
            self.state.end_move(&mut op, comtree, &reason);
            self.ops.push_back(op);
        }
    }

    /// Gives all comtrees that lack something another tree, if there is one.
    pub(super) fn repair(&mut self) {
        for comtree in self.state.hit() {
            let mut op = Op::default();
            self.state.repair(&mut op, comtree);
            if !op.is_empty() {
                self.ops.push_back(op);
            }
        }
    }
}
