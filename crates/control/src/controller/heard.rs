//! What relays say, and what time brings.

use super::{Controller, LINKS_COME, MOVES, PAUSE, PAUSES, REVIEW, WORD_COMES};
use crate::agent::{Agent, Settled};
use crate::error::Refusal;
use crate::model::{LinkId, RelayId, RelayState, WorldId};
use crate::op::{Effect, Event, Op, member_key};
use crate::proposing::MOST_CHANGES;
use crate::rollouts::Rollout;
use crate::settings::Settings;
use crate::signal::{FoundWay, ItemKey, Message};
use crate::state::State;
use canopy_wire::{Address, Comtree, Time};

impl Controller {
    /// Takes a message from a relay, which has proved that it is that one.
    pub fn handle_message(&mut self, now: Time, relay: RelayId, bytes: &[u8]) {
        let Ok(message) = Message::decode(bytes) else {
            self.measuring.ignored.unreadable += 1;
            return;
        };
        let Some(agent) = self.agents.get_mut(&relay) else { return };
        match message {
            Message::Beat { relay: life, controller, answered, links, mut succeeded } => {
                agent.hear(now, life);
                let detours = core::mem::take(&mut agent.detours);
                let ways = core::mem::take(&mut agent.ways);
                succeeded.retain(|word| agent.means(*word, life, controller, answered));
                self.found(now, relay);
                self.ask_to_measure(now, relay);
                links.into_iter().for_each(|report| self.state.report(now, relay, report));
                if self.state.hear_detours(relay, detours) {
                    self.word_from = now;
                }
                self.hear_ways(relay, ways);
                self.review(now);
                self.give_up_silent(now);
                succeeded
                    .into_iter()
                    .for_each(|(comtree, link)| self.succeeded(relay, comtree, link));
            }
            Message::Answer { .. } => {
                let mut settled = Vec::new();
                if agent.handle_answer(now, message, &mut settled) {
                    self.dismiss_again(now, relay);
                }
                settled.into_iter().for_each(|settled| self.settle(now, relay, settled));
            }
            Message::Measured(measured) => self.take_measured(now, relay, measured),
            Message::Loads(loads) => {
                agent.loads = loads.into_iter().map(|of| (of.link, of.bits_out)).collect();
            }
            Message::Detours(comtrees) => agent.detours = comtrees.into_iter().collect(),
            Message::Ways(ways) => agent.ways = ways,
            Message::Reachable(relays) => self.take_reachable(now, relay, &relays),
            Message::Call { .. } | Message::Measure(_) | Message::AskAfter(_) => {}
        }
    }

    /// A relay has said which ways it has found by itself. Once all relays of a comtree have been heard, it is known.
    fn hear_ways(&mut self, relay: RelayId, ways: Vec<FoundWay>) {
        // What it is told since it had to let go may be under way, or what it has said before.
        let is_committed = self.is_committed();
        let is_told = |comtree: Comtree| {
            let rollout = self.rollouts.get(&comtree);
            let is_staged = rollout.is_some_and(|of| of.staged(relay).next().is_some());
            let agent = self.agents.get(&relay);
            is_committed
                && !is_staged
                && agent.is_some_and(|agent| !agent.has_more(ItemKey::Comtree(comtree)))
        };
        self.state.ended_ways.retain(|(of, comtree)| *of != relay || !is_told(*comtree));
        let ended = &self.state.ended_ways;
        let ways = ways.into_iter().filter(|way| !ended.contains(&(relay, way.comtree))).collect();
        self.state.hear_ways(relay, ways);
    }

    /// A relay was heard.
    fn found(&mut self, now: Time, relay: RelayId) {
        let known = self.state.relays.get(&relay);
        let known = known.map(|known| (known.state, known.removing));
        if let Some((RelayState::Joining | RelayState::Gone, removing)) = known {
            let mut op = Op::default();
            let state = if removing { RelayState::Draining } else { RelayState::Up };
            _ = self.state.set_relay(&mut op, relay, state);
            op.effects.push(Effect::Found(relay));
            op.tell(Event::RelayFound(relay));
            self.ops.push_back(op);
            if let Some(agent) = self.agents.get_mut(&relay) {
                agent.found = Some(now);
            }
            self.repair(now);
            self.measuring.hurry(relay);
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
                self.flush(now, comtree);
            }
            (ItemKey::Comtree(comtree), Err(why)) => {
                self.refuse_step(comtree, relay, &why);
                self.pass_next(now, comtree, relay, version);
                let waiting = self.rollouts.get(&comtree).map_or_else(Vec::new, Rollout::waiting);
                for address in waiting {
                    self.reject(comtree, address, relay, why.clone());
                }
            }
            (ItemKey::Member(comtree, address), Ok(())) if is_there => {
                self.member_is_there(comtree, address, relay);
            }
            (ItemKey::Member(comtree, address), Ok(())) => {
                self.member_is_gone(now, comtree, address, version);
            }
            (ItemKey::Member(comtree, address), Err(why)) => {
                if is_there && self.serves(relay, comtree, address) {
                    self.reject(comtree, address, relay, why);
                }
            }
        }
    }

    /// Whether what a relay says of a member concerns the place that it has now. It may have had the same
    /// address at another relay, whose answers come late.
    fn serves(&self, relay: RelayId, comtree: Comtree, address: Address) -> bool {
        let world = self.state.comtrees.get(&comtree).map(|running| running.world);
        let member = world.and_then(|world| self.state.members.get(&(world, address)));
        member.is_some_and(|member| member.relay == relay)
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
        if has_more || !self.serves(relay, comtree, address) {
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
        let Some(agent) = self.agents.get(&member.relay) else { return false };
        of.comtrees.iter().all(|comtree| agent.wants(&State::member_item(*comtree, member)))
    }

    fn member_is_gone(&mut self, now: Time, comtree: Comtree, address: Address, version: u64) {
        let Some(world) = self.state.comtrees.get(&comtree).map(|running| running.world) else {
            return;
        };
        let Some(left) = self.leaving.get_mut(&(world, address)) else { return };
        // It may have come again since, here or at another relay, and left again: that is yet to be said.
        if left.get(&comtree).is_some_and(|last| *last <= version) {
            left.remove(&comtree);
        }
        if left.is_empty() {
            self.leaving.remove(&(world, address));
            let mut op = Op::default();
            self.state.release(&mut op, now, world, address);
            self.ops.push_back(op);
        }
    }

    /// Rolls back: the relay was not able to let a member in, which may come back by what it was in.
    fn reject(&mut self, comtree: Comtree, address: Address, relay: RelayId, why: String) {
        let Some(world) = self.state.comtrees.get(&comtree).map(|running| running.world) else {
            return;
        };
        let mut op = Op::default();
        if self.state.lose(&mut op, world, address).is_err() {
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
        self.go_on_after_arrivals(now);
        self.give_up_silent(now);
        self.forget_departed(now);
        if now >= self.next_review {
            self.review(now);
        }
        if let Some(began) = self.looked_at.take() {
            self.next_better = now + PAUSE.max(now.since(began) * PAUSES);
        } else if now >= self.next_better {
            self.look_for_better(now);
        }
        self.tell_refusals(now);
        self.guide(now);
    }

    /// What was on its way over links has arrived: what has waited for that is done now.
    fn go_on_after_arrivals(&mut self, now: Time) {
        let arrivals =
            self.rollouts.iter().filter_map(|(of, rollout)| Some((*of, rollout.arrival()?)));
        let arrived: Vec<Comtree> =
            arrivals.filter(|(_, until)| *until <= now).map(|(of, _)| of).collect();
        arrived.into_iter().for_each(|comtree| self.flush(now, comtree));
    }

    /// Looks for a better tree for one comtree, if that is due for any.
    fn look_for_better(&mut self, now: Time) {
        let mut op = Op::default();
        let is_on = !self.state.settings.improve.is_zero();
        let has_looked = is_on && self.state.improve_next(&mut op, now);
        self.looked_at = has_looked.then_some(now);
        self.next_better = now + REVIEW;
        if !op.is_empty() {
            self.ops.push_back(op);
        }
    }

    /// When it wants to know the time next.
    pub fn poll_timeout(&self, now: Time) -> Time {
        if self.looked_at.is_some() {
            return now;
        }
        let running = self.agents.values().filter(|agent| self.state.is_running(agent.relay));
        let Settings { silence, suspicion, lease, .. } = self.state.settings;
        let silent = running
            .flat_map(|agent| [suspicion, silence, lease].map(|after| agent.heard + after))
            .filter(|at| *at > now);
        let calls = self.agents.values().filter_map(|agent| agent.poll_timeout(now));
        let ends = self.state.ends.first().map(|(until, ..)| *until);
        let areas = (!self.guides.is_empty()).then_some(self.next_areas);
        let is_on = !self.state.settings.improve.is_zero();
        let next = if is_on { self.next_review.min(self.next_better) } else { self.next_review };
        let arrivals = self.rollouts.values().filter_map(Rollout::arrival);
        let others = areas.into_iter().chain(self.refusals.due()).chain(arrivals);
        silent.chain(calls).chain(ends).chain(others).fold(next, Time::min)
    }

    fn review(&mut self, now: Time) {
        self.next_review = now + REVIEW;
        if self.state.cease_to_expect(now) {
            self.next_moves = now;
        }
        let mut op = Op::default();
        let has_changed = self.state.review_links(&mut op, now);
        self.state.follow_delays(&mut op);
        if !op.is_empty() {
            self.ops.push_back(op);
        }
        let is_due = self.word_due.take_if(|due| *due <= now).is_some();
        if core::mem::take(&mut self.state.links_have_come) || has_changed || is_due {
            self.repair(now);
        }
        let mut op = Op::default();
        if has_changed || now >= self.next_moves {
            self.state.heal_meshes(&mut op);
            self.state.review_standbys(&mut op);
        }
        self.state.review_moves(&mut op, now);
        if now >= self.next_moves {
            self.next_moves = now + MOVES;
            self.state.prune_put_off(&mut op);
            self.state.leave_draining(&mut op, &mut self.last_drained, MOST_CHANGES);
            self.state.leave_all_removed(&mut op, &mut self.last_moved_off, MOST_CHANGES);
        }
        let lease = self.state.settings.lease;
        let is_away = |agent: &Agent| agent.heard + lease <= now;
        let is_long_gone = |relay| self.agents.get(&relay).is_none_or(is_away);
        let links = self.state.links.len();
        self.state.finish_removals(&mut op, is_long_gone);
        self.hurry_if_cut_off(links);
        self.review_proposals(&mut op, now);
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
    /// the one that it has, and a step that needs it is not done.
    fn refuse_step(&mut self, comtree: Comtree, relay: RelayId, why: &str) {
        let mut op = Op::default();
        let agent = self.agents.get(&relay);
        let has_next_peers = agent.is_some_and(|agent| agent.has_next_peers(comtree));
        self.state.refuse_step(&mut op, comtree, relay, (has_next_peers, why));
        if !op.is_empty() {
            self.ops.push_back(op);
        }
    }

    /// A relay refuses what it was told with a next parent, or with next peers, which not every relay takes. One that
    /// leaves the core has a next parent and no parent, and refuses that if it has restarted meanwhile. If the step is
    /// done or taken back by now, the relay is told so behind a barrier, which must not wait for what is always refused.
    /// The others need not wait: whatever the relay was to let go of before its next parent or peers came, it has let go
    /// of. That is not so for other refusals, and old branches may form a circle with new ones.
    fn pass_next(&mut self, now: Time, comtree: Comtree, relay: RelayId, version: u64) {
        let has_next = self.agents.get(&relay).is_some_and(|agent| {
            agent.next_parent(comtree).is_some() || agent.has_next_peers(comtree)
        });
        let Some(rollout) = self.rollouts.get_mut(&comtree).filter(|_| has_next) else { return };
        rollout.pass(relay, version);
        self.flush(now, comtree);
    }

    /// Nothing of a comtree waits any more for what is on its way over a link, told or yet to be committed.
    fn hurry(&mut self, now: Time, comtree: Comtree) {
        self.ops.iter_mut().for_each(|op| op.hurry(comtree));
        if let Some(effects) = &mut self.committing {
            effects.retain(|effect| !effect.is_arrival(comtree));
        }
        if let Some(rollout) = self.rollouts.get_mut(&comtree) {
            rollout.hurry();
            self.flush(now, comtree);
        }
    }

    /// Until when a comtree that is in parts waits for links of relays that have just been found: once they are up, it
    /// is whole without any change. Nothing if others are down as well, or none.
    fn waits_for_links(&self, now: Time, comtree: Comtree) -> Option<Time> {
        let until = |link| {
            let ends = self.state.links.get(&link)?.ends.into_iter();
            let found = |end| self.agents.get(&end).and_then(|agent| agent.found);
            ends.filter_map(found).max().map(|found| found + LINKS_COME)
        };
        let dead = self.state.dead_links(comtree)?;
        let until = dead.map(until).min().flatten();
        until.filter(|until| now < *until)
    }

    /// Gives all comtrees that lack something another tree, if there is one.
    pub(super) fn repair(&mut self, now: Time) {
        // What they are told of another tree could form a circle with what they have found.
        let mut yet_to_say = self.state.yet_to_say();
        if self.word_from + WORD_COMES <= now {
            yet_to_say.clear();
        }
        for comtree in self.state.hit() {
            if self.state.may_have_ways(comtree, &yet_to_say) {
                self.word_due = Some(self.word_from + WORD_COMES);
                continue;
            }
            if let Some(until) = self.waits_for_links(now, comtree) {
                self.state.links_have_come = true;
                self.next_review = self.next_review.min(until);
                continue;
            }
            if self.state.is_hurt(comtree) {
                self.hurry(now, comtree);
            }
            let mut op = Op::default();
            self.state.repair(&mut op, comtree);
            if !op.is_empty() {
                self.ops.push_back(op);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Agent;
    use crate::storage::{MemoryStorage, Storage};
    use crate::{
        Admission, Core, Downlink, Enter, Entry, MemberState, Mode, Name, NewRelay, NewWorld, Retry,
    };
    use canopy_plan::{Limits, Rate};
    use core::time::Duration;

    const NOW: Time = Time::from_millis(1000);

    fn commit(controller: &mut Controller, storage: &mut MemoryStorage) {
        while let Some(batch) = controller.poll_commit(NOW) {
            controller.handle_commit(NOW, storage.commit(&batch)).unwrap();
        }
    }

    /// Two relays that are joined, and a world.
    fn two_relays(controller: &mut Controller) -> [RelayId; 2] {
        let rate = Rate { bits: 1e9, packets: 1e9 };
        let relays = [1, 2].map(|number: u8| {
            let name = Name::new(&format!("r{number}")).unwrap();
            let (native, uplink) =
                (([127, 0, 0, 1], 9).into(), Limits { send: rate, receive: rate });
            let new = NewRelay { name, key: [number; 32], native, uplink, places: 9, comtrees: 9 };
            let id = controller.register(NOW, new).unwrap();
            controller.found(NOW, id);
            id
        });
        controller.add_link(relays, rate, 1).unwrap();
        let few = Rate { bits: 1.0, packets: 1.0 };
        let world = NewWorld {
            name: Name::new("w").unwrap(),
            comtrees: 1,
            channels: Vec::new(),
            levels: 1,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            default: Limits { send: few, receive: few },
            core: Core::Center,
            sharing: crate::Sharing::default(),
        };
        controller.create_world(world).unwrap();
        relays
    }

    #[test]
    fn whom_its_next_relay_does_not_let_in_may_come_back_by_what_it_was_in_and_who_is_sent_away_may_not()
     {
        let mut storage = MemoryStorage::default();
        let mut controller =
            Controller::start(Settings::default(), Retry::default(), NOW, &mut storage).unwrap();
        let [lost, next] = two_relays(&mut controller);
        let entry = Entry { let_in: 5, visit: 6 };
        let mut enter = |controller: &mut Controller, relay| {
            let ask = Enter::new(Name::new("w").unwrap(), [7; 16], vec![(relay, 1)]);
            let admission = controller.enter(NOW, &Enter { entry, ..ask }).unwrap();
            commit(controller, &mut storage);
            admission
        };
        enter(&mut controller, lost);
        controller.give_up_members(NOW, lost);
        let Admission { world, address, comtrees, .. } = enter(&mut controller, next);
        let known = |controller: &Controller| {
            let known = controller.known_by(world, [7; 16]).unwrap();
            (known.state, known.entry)
        };
        controller.reject(comtrees[0], address, next, "it has no room".to_owned());
        assert_eq!(known(&controller), (MemberState::Leaving, entry));
        // It comes back before it was sent away there, and it is the same again.
        enter(&mut controller, next);
        controller.reject(comtrees[0], address, next, "it has no room".to_owned());
        // Its backend sends it away meanwhile.
        controller.kick(NOW, world, address, Duration::from_secs(60)).unwrap();
        assert_eq!(known(&controller), (MemberState::Leaving, Entry::default()));
        assert!(controller.kick(NOW, world, address, Duration::ZERO).is_err(), "it has gone");
        let ask = Enter::new(Name::new("w").unwrap(), [7; 16], vec![(next, 1)]);
        assert!(matches!(controller.enter(NOW, &ask), Err(Refusal::Barred { .. })));
        assert_eq!(controller.audit(), Ok(()));
    }

    #[test]
    fn what_a_former_relay_says_late_ends_no_place_at_another() {
        let mut storage = MemoryStorage::default();
        let mut controller =
            Controller::start(Settings::default(), Retry::default(), NOW, &mut storage).unwrap();
        let relays = two_relays(&mut controller);
        let mut enter = |relay: RelayId| {
            let (world, owner) = (Name::new("w").unwrap(), [7; 16]);
            let ask = Enter::new(world, owner, vec![(relay, 1)]);
            let admission = controller.enter(NOW, &ask).unwrap();
            if relay == relays[0] {
                controller.give_up_members(NOW, relay);
            }
            commit(&mut controller, &mut storage);
            admission
        };
        let [before, after] = relays.map(&mut enter);
        let (world, address, comtree) = (after.world, after.address, after.comtrees[0]);
        assert_eq!((before.address, after.relay), (address, relays[1]));
        // Nobody has anything more to be told.
        let silent = |of: &RelayId| (*of, Agent::new(*of, 1, Retry::default(), NOW));
        controller.agents = relays.iter().map(silent).collect();
        let says = |controller: &mut Controller, relay, is_there: bool, result| {
            let key = ItemKey::Member(comtree, address);
            // The ends of both places are counted.
            let version = if relay == relays[1] { controller.changes } else { 1 };
            controller.settle(NOW, relay, Settled { key, version, is_there, result });
            let member = controller.state.members.get(&(world, address)).unwrap();
            (member.state, core::iter::from_fn(|| controller.poll_event()).last())
        };
        while controller.poll_event().is_some() {}
        controller.rollouts.clear();
        // It let it in, or not, before it was lost.
        let [former, present] = relays;
        let refused = says(&mut controller, former, true, Err("full".to_owned()));
        assert_eq!(refused, (MemberState::Held, None));
        assert_eq!(says(&mut controller, former, true, Ok(())), (MemberState::Held, None));
        let admitted = Some(Event::Admitted { world, address });
        assert_eq!(says(&mut controller, present, true, Ok(())), (MemberState::Held, admitted));
        // It has sent it away, while the present one is still to be told to.
        controller.leave(world, address).unwrap();
        commit(&mut controller, &mut storage);
        assert_eq!(says(&mut controller, former, false, Ok(())).0, MemberState::Leaving);
        assert_eq!(says(&mut controller, present, false, Ok(())).0, MemberState::Resting);
        assert_eq!(controller.audit(), Ok(()));
    }
}
