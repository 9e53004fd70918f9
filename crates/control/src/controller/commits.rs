//! What is committed, and what relays are told then.

use super::{Controller, LIFE};
use crate::agent::Agent;
use crate::model::{LinkId, RelayId};
use crate::op::{Effect, Event, Op, member_key};
use crate::rollouts::Step;
use crate::signal::{Item, ItemKey};
use crate::storage::{Batch, Condition, Revision, StorageError, Table};
use canopy_wire::{Address, Comtree, Time};
use std::collections::BTreeSet;

impl Controller {
    /// The batch to be committed now: one at a time, and [`Controller::handle_commit`] says what
    /// became of it.
    pub fn poll_commit(&mut self, now: Time) -> Option<Batch> {
        while self.committing.is_none() && !self.ops.is_empty() {
            let mut writes = Vec::new();
            let mut effects = Vec::new();
            while let Some(op) = self.ops.pop_front() {
                let mut parts = op.parts().into_iter();
                let Some(op) = parts.next() else { continue };
                parts.rev().for_each(|part| self.ops.push_front(part));
                if !writes.is_empty() && writes.len() + op.writes.len() >= Batch::MOST {
                    self.ops.push_front(op);
                    break;
                }
                writes.extend(op.writes);
                effects.extend(op.effects);
            }
            if writes.is_empty() {
                self.apply(now, effects);
                continue;
            }
            self.committing = Some(effects);
            let key = LIFE.to_vec();
            let fence = Condition { table: Table::Controller, key, revision: self.fence };
            return Some(Batch { conditions: vec![fence], writes });
        }
        None
    }

    /// What became of the batch.
    ///
    /// # Errors
    /// It was not committed, or nobody knows. Then the controller is to be dropped and started again.
    pub fn handle_commit(
        &mut self,
        now: Time,
        result: Result<Revision, StorageError>,
    ) -> Result<(), StorageError> {
        result?;
        if let Some(effects) = self.committing.take() {
            self.apply(now, effects);
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, now: Time, effects: Vec<Effect>) {
        let mut touched = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Link(relay, link, None) => _ = self.unlinking.insert((relay, link)),
                Effect::Link(relay, link, item) => self.want(relay, ItemKey::Link(link), 0, item),
                Effect::Comtree(comtree, relay, item) => {
                    self.step(now, comtree, Step::Comtree(relay, item));
                }
                Effect::Await(comtree, relay) => self.step(now, comtree, Step::Await(relay)),
                Effect::Barrier(comtree) => {
                    touched.insert(comtree);
                    self.rollouts.entry(comtree).or_default().barrier();
                }
                Effect::Arrival(comtree, within) => {
                    touched.insert(comtree);
                    self.step(now, comtree, Step::Arrival(within));
                }
                Effect::TakenBack(comtree) => {
                    touched.insert(comtree);
                    self.step(now, comtree, Step::TakenBack);
                }
                Effect::Told(comtree) => {
                    touched.insert(comtree);
                    self.step(now, comtree, Step::Told);
                }
                Effect::Passed(comtree, step) => {
                    touched.insert(comtree);
                    self.step(now, comtree, Step::Passed(step));
                }
                Effect::RolledOut(comtree, number) => {
                    touched.insert(comtree);
                    self.step(now, comtree, Step::RolledOut(number));
                }
                Effect::Admit(comtree, relay, item) => {
                    touched.insert(comtree);
                    self.begin_admit(now, comtree, relay, item);
                }
                Effect::Dismiss(comtree, relay, address) => self.dismiss(comtree, relay, address),
                Effect::Lost(relay) => {
                    self.lost.insert(relay);
                    self.rollouts.values_mut().for_each(|rollout| rollout.forget(relay));
                    touched.extend(self.rollouts.keys().copied());
                }
                Effect::Removed(relay) => _ = self.departing.insert(relay),
                Effect::Found(relay) => {
                    self.lost.remove(&relay);
                    self.agents
                        .values_mut()
                        .filter(|a| a.relay == relay)
                        .for_each(|a| a.heard = now);
                }
                Effect::Confirm(world, address) => {
                    if !self.admitting.contains_key(&(world, address)) {
                        self.events.push_back(Event::Renewed { world, address });
                    }
                }
                Effect::Tell(event) => self.events.push_back(event),
            }
        }
        touched.into_iter().for_each(|comtree| self.flush(now, comtree));
        self.unlink();
    }

    fn want(&mut self, relay: RelayId, key: ItemKey, version: u64, item: Option<Item>) {
        if let Some(agent) = self.agents.get_mut(&relay) {
            agent.want(key, version, item);
        }
    }

    fn step(&mut self, now: Time, comtree: Comtree, step: Step) {
        let at = step.waits_for();
        let lost = at.is_some_and(|relay| self.is_lost(relay));
        let mut due = Vec::new();
        let rollout = self.rollouts.entry(comtree).or_default();
        rollout.take(now, step, lost, &mut self.changes, &mut due);
        // What a relay has of the comtree stays until its turn comes.
        if due.is_empty()
            && let Some(agent) = at.and_then(|relay| self.agents.get_mut(&relay))
        {
            agent.expect(ItemKey::Comtree(comtree));
        }
        self.take_steps(comtree, due);
    }

    /// Whether a relay is not waited for.
    fn is_lost(&self, relay: RelayId) -> bool {
        self.lost.contains(&relay) || !self.agents.contains_key(&relay)
    }

    fn take_steps(&mut self, comtree: Comtree, steps: Vec<(u64, Step)>) {
        for (version, step) in steps {
            match step {
                Step::Comtree(relay, item) => {
                    self.want(relay, ItemKey::Comtree(comtree), version, item);
                }
                Step::Member(relay, item) => self.want(relay, item.key(), version, Some(item)),
                Step::Await(relay) => {
                    if let Some(agent) = self.agents.get_mut(&relay) {
                        agent.await_word(ItemKey::Comtree(comtree), version);
                    }
                }
                // Barriers wait for it, and nobody does anything.
                Step::Arrival(_) => {}
                Step::TakenBack => {
                    let mut op = Op::default();
                    self.state.forget_undone(&mut op, comtree);
                    self.ops.push_back(op);
                }
                Step::Told => {
                    let mut op = Op::default();
                    self.state.told(&mut op, comtree);
                    self.ops.push_back(op);
                }
                Step::Passed(step) => {
                    let mut op = Op::default();
                    self.state.go_on(&mut op, comtree, step.as_ref());
                    self.ops.push_back(op);
                }
                Step::RolledOut(number) => {
                    let mut op = Op::default();
                    self.state.forget_overlap(&mut op, comtree, number);
                    self.ops.push_back(op);
                }
            }
        }
    }

    /// Forgets relays that were taken away, once they know it or are silent.
    pub(super) fn forget_departed(&mut self, now: Time) {
        let silence = self.state.settings.silence;
        let is_over = |relay: &RelayId| {
            self.agents.get(relay).is_none_or(|agent| {
                let is_told = || {
                    !self.rollouts.values().any(|rollout| rollout.concerns(*relay))
                        && !self.unlinking.iter().any(|(at, _)| at == relay)
                };
                agent.is_settled() && is_told()
                    || agent.heard + silence <= now
                    || self.lost.contains(relay)
            })
        };
        for relay in self.departing.iter().copied().filter(is_over).collect::<Vec<_>>() {
            self.departing.remove(&relay);
            self.lost.remove(&relay);
            self.agents.remove(&relay);
            self.rollouts.values_mut().for_each(|rollout| rollout.forget(relay));
            let touched: Vec<Comtree> = self.rollouts.keys().copied().collect();
            touched.into_iter().for_each(|comtree| self.flush(now, comtree));
        }
    }

    fn begin_admit(&mut self, now: Time, comtree: Comtree, relay: RelayId, item: Item) {
        let world = self.state.comtrees.get(&comtree).map(|running| running.world);
        if let (Some(world), Item::Member { address, .. }) = (world, &item) {
            self.admitting.entry((world, *address)).or_default().insert(comtree);
            // It may have had the address before, and what it had is not waited for any more.
            self.leaving.remove(&(world, *address));
        }
        // A controller that has just started hears of members that wait here, and are there.
        if let Some(agent) = self.agents.get_mut(&relay) {
            agent.expect(item.key());
        }
        self.step(now, comtree, Step::Member(relay, item));
    }

    fn dismiss(&mut self, comtree: Comtree, relay: RelayId, address: Address) {
        if let Some(rollout) = self.rollouts.get_mut(&comtree) {
            rollout.dismiss(relay, address);
        }
        match self.state.comtrees.get(&comtree).map(|running| running.world) {
            Some(world) => {
                self.changes += 1;
                self.admitting.remove(&(world, address));
                self.leaving.entry((world, address)).or_default().insert(comtree, self.changes);
            }
            // The world is gone since, with the last that it had at a relay that was given up.
            None => self.admitting.retain(|(_, of), on| *of != address || !on.contains(&comtree)),
        }
        self.want(relay, member_key(comtree, address), self.changes, None);
    }

    /// What waits for a comtree goes on, if it can.
    pub(super) fn flush(&mut self, now: Time, comtree: Comtree) {
        let mut steps = Vec::new();
        if let Some(rollout) = self.rollouts.get_mut(&comtree) {
            let (lost, agents) = (&self.lost, &self.agents);
            let is_lost = |relay| lost.contains(&relay) || !agents.contains_key(&relay);
            rollout.poll(now, is_lost, &mut self.changes, &mut steps);
            if rollout.is_settled() {
                self.rollouts.remove(&comtree);
            }
        }
        self.take_steps(comtree, steps);
        self.unlink();
    }

    /// Takes links away over which nothing runs that a relay is told or is yet to be told.
    fn unlink(&mut self) {
        let is_free = |(relay, link): &(RelayId, LinkId)| {
            let runs = |item: &Item| match item {
                Item::Comtree { branches, .. } => branches.iter().any(|of| of.link == *link),
                _ => false,
            };
            let agent = self.agents.get(relay);
            let is_told = agent.is_some_and(|agent| agent.wanted().any(runs));
            let is_to_be_told =
                self.rollouts.values().any(|rollout| rollout.staged(*relay).any(runs));
            !is_told && !is_to_be_told
        };
        for end in self.unlinking.iter().copied().filter(is_free).collect::<Vec<_>>() {
            self.unlinking.remove(&end);
            self.want(end.0, ItemKey::Link(end.1), 0, None);
        }
    }

    /// A message for a relay.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(RelayId, Vec<u8>)> {
        if let Some((relay, message)) = self.asks.pop_front() {
            return Some((relay, message.encode()));
        }
        // Those who have nothing are not asked again for each message of the others.
        let mut told = |(relay, agent): (&RelayId, &mut Agent)| {
            agent.poll_transmit(now).map(|message| (*relay, message))
        };
        let next = self.agents.range_mut(self.last_told..).find_map(&mut told);
        let next = next.or_else(|| self.agents.range_mut(..self.last_told).find_map(told));
        self.last_told = next.as_ref().map_or(self.last_told, |(relay, _)| *relay);
        next
    }

    /// Something to be told.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
