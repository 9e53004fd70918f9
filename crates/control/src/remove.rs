//! Links and relays that are taken away for good. What runs over them moves first; where it cannot,
//! nothing is taken away.
//!
//! A link is removed in two parts. It is marked, so that nothing new comes over it, and comtrees move off it without
//! loss (`moves`). Once none runs over it any more, it goes. A relay that is marked drains, and goes once its members
//! and comtrees are elsewhere. Marks are stored, so a controller that starts goes on, and can be taken back until then.

use crate::error::Refusal;
use crate::ledger::Account;
use crate::model::{Key, Link, LinkId, MemberState, Relay, RelayId, RelayState, RemovedRelay};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::running::Running;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_wire::Comtree;
use std::collections::BTreeSet;

/// A refusal names so many worlds at most.
const MOST_NAMED: usize = 8;

impl State {
    /// Does something that gives comtrees other trees: all of it, or nothing.
    pub(crate) fn all_or_nothing<T>(
        &mut self,
        op: &mut Op,
        comtrees: &[Comtree],
        work: impl FnOnce(&mut State, &mut Op) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let of = |id: &Comtree| Some((*id, self.comtrees.get(id)?.clone()));
        let before: Vec<(Comtree, Running)> = comtrees.iter().filter_map(of).collect();
        let mut done = Op::default();
        let result = work(self, &mut done);
        if result.is_ok() {
            op.append(done);
            return result;
        }
        before.into_iter().for_each(|(id, before)| self.restore(id, before));
        result
    }

    /// Moves all comtrees off these links, and off this relay.
    fn vacate(
        &mut self,
        op: &mut Op,
        links: &[LinkId],
        relay: Option<RelayId>,
        what: &str,
    ) -> Result<(), Refusal> {
        let uses = |running: &Running| {
            running.shapes().any(|shape| {
                shape.links().any(|link| links.contains(&link))
                    || relay.is_some_and(|relay| shape.has(relay))
            })
        };
        let hit = self.comtrees.iter().filter(|(_, running)| uses(running)).map(|(id, _)| *id);
        let hit: Vec<Comtree> = hit.collect();
        self.retire(links, true);
        let result = self.all_or_nothing(op, &hit, |state, op| {
            for comtree in &hit {
                let reason = format!("{what} is taken away");
                state.take_other_tree(op, *comtree, &reason).map_err(|why| {
                    let worlds = state.worlds_of(&[(*comtree, String::new())]);
                    Refusal::Needed { what: what.to_owned(), worlds, why }
                })?;
                op.cut();
            }
            Ok(())
        });
        match &result {
            Ok(()) => self.drop_standbys_over(op, links),
            Err(_) => self.retire(links, false),
        }
        result
    }

    fn retire(&mut self, links: &[LinkId], is_retired: bool) {
        for link in links {
            if let Some(health) = self.health.get_mut(link) {
                health.is_retired = is_retired;
            }
        }
    }

    /// Begins to take a link away: comtrees move off it without loss, all of them, or nothing changes.
    pub(crate) fn remove_link(&mut self, op: &mut Op, id: LinkId) -> Result<(), Refusal> {
        let link = self.links.get(&id).ok_or(Refusal::NoSuchLink(id.0))?;
        if link.removing {
            return Ok(());
        }
        // Nothing that could be lost flows over a link that cannot be used.
        if !self.is_usable(id) {
            self.check_ways_instead_of(id)?;
            return self.remove_link_at_once(op, id);
        }
        self.check_detours_over(id)?;
        let hit: Vec<Comtree> = self.trees_over(id).collect();
        self.mark_removing(id, true);
        let mut moves = Op::default();
        let what = self.link_in_words(id);
        let result = self.leave_all(&mut moves, &hit, what, |state, op, comtree| {
            state.leave_removed(op, comtree, id)
        });
        if result.is_err() {
            self.mark_removing(id, false);
            return result;
        }
        // A controller that finds the mark goes on with those comtrees whose moves are not stored.
        op.write(Table::Links, number(id.0), self.links.get(&id));
        op.tell(Event::LinkRemoving(id));
        op.append(moves);
        self.drop_standbys_over(op, &[id]);
        self.finish_removals(op, |_| false);
        Ok(())
    }

    /// Relays may have found ways in the place of a link that has failed, and another tree could form a circle with those.
    fn check_ways_instead_of(&self, id: LinkId) -> Result<(), Refusal> {
        let unheard = self.yet_to_say();
        let may_have = |comtree: &Comtree| {
            self.may_have_ways(*comtree, &unheard) || !self.found_ways(*comtree).is_empty()
        };
        let comtrees: Vec<Comtree> = self.trees_over(id).filter(may_have).collect();
        let Some(comtree) = comtrees.first() else { return Ok(()) };
        let why = match unheard.first() {
            Some(relay) => self.unheard_in_words(*relay),
            None => "relays have found other ways, which are yet to be its tree; wait a moment"
                .to_owned(),
        };
        let worlds = self.worlds_of(&[(*comtree, String::new())]);
        Err(Refusal::Needed { what: self.link_in_words(id), worlds, why })
    }

    /// Relays may be on detours over a link, and a tree would not show them.
    fn check_detours_over(&self, id: LinkId) -> Result<(), Refusal> {
        let detour = |comtree: &Comtree| {
            Some(((*comtree, String::new()), self.detour_over_in_words(*comtree, id)?))
        };
        let (comtrees, whys): (Vec<_>, Vec<_>) = self.comtrees.keys().filter_map(detour).unzip();
        let Some(why) = whys.into_iter().next() else { return Ok(()) };
        let (what, worlds) = (self.link_in_words(id), self.worlds_of(&comtrees));
        Err(Refusal::Needed { what, worlds, why })
    }

    /// Whether a relay runs that has yet to say how its links stand, since the controller has started or did not hear it.
    pub(crate) fn is_unheard(&self, relay: RelayId) -> bool {
        self.unheard.contains(&relay) && self.is_running(relay)
    }

    /// Whether the controller does not reach a relay of a comtree's tree that has yet to say so.
    fn is_out_of_reach(&self, comtree: Comtree) -> bool {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let is_far = |relay| self.is_unheard(relay) && self.silent.contains(&relay);
        shape.is_some_and(|shape| shape.relays().any(is_far))
    }

    /// What to do about that.
    pub(crate) fn unheard_in_words(&self, relay: RelayId) -> String {
        let name = self.relay_name(relay);
        match self.silent.contains(&relay) {
            false => format!("{name} has yet to say how its links stand; wait a moment"),
            true => format!(
                "the controller does not reach {name}, which its neighbours hear: mend the way between them, or stop \
                 that relay, and its members move to others"
            ),
        }
    }

    /// Keeps a link that was to be removed: trees may run over it again. Moves off it that have begun go on.
    pub(crate) fn keep_link(&mut self, op: &mut Op, id: LinkId) -> Result<(), Refusal> {
        let link = self.links.get(&id).ok_or(Refusal::NoSuchLink(id.0))?;
        if link.removing {
            self.mark_removing(id, false);
            op.write(Table::Links, number(id.0), self.links.get(&id));
            op.tell(Event::LinkKept(id));
        }
        Ok(())
    }

    /// All of these comtrees begin to leave what is to be removed, or nothing changes.
    fn leave_all(
        &mut self,
        op: &mut Op,
        hit: &[Comtree],
        what: String,
        leave: impl Fn(&mut State, &mut Op, Comtree) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        self.all_or_nothing(op, hit, |state, op| {
            let leave = |comtree: &Comtree| {
                let result = leave(state, op, *comtree);
                op.cut();
                Some((*comtree, result.err()?))
            };
            let stay: Vec<(Comtree, String)> = hit.iter().filter_map(leave).collect();
            let Some((_, why)) = stay.first() else { return Ok(()) };
            let worlds = state.worlds_of(&stay);
            let loses = match stay.iter().any(|(comtree, _)| state.is_out_of_reach(*comtree)) {
                false => "with loss",
                true => {
                    "with loss, and whoever is at that relay may hear nothing until it is reached"
                }
            };
            let why = format!("{why} (with ?force=true trees change at once, {loses})");
            Err(Refusal::Needed { what, worlds, why })
        })
    }

    /// Takes links and relays away that are being removed, and of which nothing is needed any more. A relay that was
    /// lost goes only once it has been away for long: if its process restarts and the record is gone, it registers as a
    /// new relay, which takes members.
    pub(crate) fn finish_removals(&mut self, op: &mut Op, is_long_gone: impl Fn(RelayId) -> bool) {
        let removing = self.links.values().filter(|link| link.removing).map(|link| link.id);
        for link in removing.collect::<Vec<_>>() {
            if self.trees_over(link).next().is_none() {
                // Nothing runs over it, so it cannot be refused.
                _ = self.remove_link_at_once(op, link);
                op.cut();
            }
        }
        let removing = self.relays.values().filter(|relay| relay.removing).map(|relay| relay.id);
        for relay in removing.collect::<Vec<_>>() {
            let is_empty = self.ledger.reserved(Account::Places(relay)).bits <= 0.0;
            let can_go = is_empty && (self.is_running(relay) || is_long_gone(relay));
            if can_go && self.trees_at(relay).next().is_none() {
                // Neither can that.
                _ = self.remove_relay_at_once(op, relay);
                op.cut();
            }
        }
    }

    /// The comtrees whose trees have a relay, or are about to, or that take a step back over one of its links.
    pub(crate) fn trees_at(&self, relay: RelayId) -> impl Iterator<Item = Comtree> + '_ {
        let is_at = move |link: &&Link| link.ends.contains(&relay);
        let links: Vec<LinkId> = self.links.values().filter(is_at).map(|link| link.id).collect();
        let has = move |running: &Running| {
            let undone = running.undone.as_ref();
            running.shapes().any(|shape| shape.has(relay))
                || undone.is_some_and(|step| links.iter().any(|link| step.is_over(*link)))
        };
        self.comtrees.iter().filter(move |(_, running)| has(running)).map(|(id, _)| *id)
    }

    /// The comtrees that run over a link, are about to, or have begun a step over it that is taken back.
    pub(crate) fn trees_over(&self, link: LinkId) -> impl Iterator<Item = Comtree> + '_ {
        let runs = move |running: &Running| {
            let undone = running.undone.as_ref();
            running.shapes().any(|shape| shape.links().any(|of| of == link))
                || undone.is_some_and(|step| step.is_over(link))
        };
        self.comtrees.iter().filter(move |(_, running)| runs(running)).map(|(id, _)| *id)
    }

    fn mark_removing(&mut self, id: LinkId, removing: bool) {
        if let Some(link) = self.links.get_mut(&id) {
            link.removing = removing;
        }
    }

    /// Takes a link away, after comtrees that run over it have got other trees at once: what is on its way may be lost.
    pub(crate) fn remove_link_at_once(&mut self, op: &mut Op, id: LinkId) -> Result<(), Refusal> {
        self.links.get(&id).ok_or(Refusal::NoSuchLink(id.0))?;
        self.vacate(op, &[id], None, &self.link_in_words(id))?;
        self.forget_link(op, id);
        Ok(())
    }

    fn link_in_words(&self, id: LinkId) -> String {
        let ends = self.links.get(&id).map(|link| link.ends.map(|end| self.relay_name(end)));
        ends.map_or_else(String::new, |[from, to]| format!("the link {} from {from} to {to}", id.0))
    }

    /// The worlds of these comtrees, for people.
    fn worlds_of(&self, comtrees: &[(Comtree, String)]) -> String {
        let world = |(comtree, _): &(Comtree, String)| {
            let running = self.comtrees.get(comtree)?;
            Some(self.worlds.get(&running.world)?.name.to_string())
        };
        let names: BTreeSet<String> = comtrees.iter().filter_map(world).collect();
        let more = names.len().saturating_sub(MOST_NAMED);
        let named = names.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>();
        match (names.len(), more) {
            (1, _) => format!("the world {}", named.join("")),
            (_, 0) => format!("the worlds {}", named.join(", ")),
            _ => format!("the worlds {} and {more} more", named.join(", ")),
        }
    }

    fn forget_link(&mut self, op: &mut Op, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        self.health.remove(&id);
        self.ledger.close_link(&link);
        op.write::<Link>(Table::Links, number(id.0), None);
        op.effects.extend(link.ends.map(|end| Effect::Link(end, id, None)));
        op.tell(Event::LinkRemoved(id));
    }

    /// Begins to take a relay away: it drains, and goes once its members and comtrees are elsewhere. All comtrees that it
    /// carries for others begin to move off it, or nothing changes.
    pub(crate) fn remove_relay(&mut self, op: &mut Op, id: RelayId) -> Result<(), Refusal> {
        let before = self.relay(id)?.clone();
        if before.removing {
            return Ok(());
        }
        // Neither does it serve anybody, nor does anything flow over it.
        if !self.is_running(id) {
            return self.remove_relay_at_once(op, id);
        }
        let (carried, served) = self.carried_and_served(id);
        let what = format!("the relay {}", before.name);
        if !served.is_empty() && !self.takes_members_beside(id) {
            let stay: Vec<_> = served.into_iter().map(|of| (of, String::new())).collect();
            let why = "no other relay takes members".to_owned();
            return Err(Refusal::Needed { what, worlds: self.worlds_of(&stay), why });
        }
        let state = RelayState::Draining;
        self.know_relay(Relay { state, removing: true, ..before.clone() });
        let mut moves = Op::default();
        let result = self.leave_all(&mut moves, &carried, what, |state, op, comtree| {
            state.leave_relay(op, comtree, id)
        });
        if result.is_err() {
            self.know_relay(before);
            return result;
        }
        op.write(Table::Relays, number(u32::from(id.0)), self.relays.get(&id));
        op.tell(Event::RelayRemoving(id));
        op.append(moves);
        self.finish_removals(op, |_| false);
        Ok(())
    }

    /// Keeps a relay that was to be removed, and has been lost meanwhile: it takes members once it comes back.
    pub(crate) fn keep_lost_relay(&mut self, op: &mut Op, id: RelayId) -> Result<(), Refusal> {
        let relay = Relay { removing: false, ..self.relay(id)?.clone() };
        self.save_relay(op, relay);
        Ok(())
    }

    /// The comtrees for which a relay only passes on what others send, and those of which it has members.
    fn carried_and_served(&self, relay: RelayId) -> (Vec<Comtree>, Vec<Comtree>) {
        let has_members = |comtree: &Comtree| {
            let running = self.comtrees.get(comtree);
            running.is_some_and(|of| of.shapes().any(|shape| shape.load(relay).0 > 0))
        };
        self.trees_at(relay).partition(|comtree| !has_members(comtree))
    }

    fn takes_members_beside(&self, relay: RelayId) -> bool {
        self.relays.values().any(|other| other.id != relay && other.state == RelayState::Up)
    }

    /// Takes a relay away, with its links, after comtrees that run over it have got other trees at once: what is on its
    /// way may be lost. Nobody may have a place at it any more.
    pub(crate) fn remove_relay_at_once(&mut self, op: &mut Op, id: RelayId) -> Result<(), Refusal> {
        let name = self.relay(id)?.name.clone();
        let serves = |member: &&crate::model::Member| {
            member.relay == id && member.state != MemberState::Resting
        };
        let members = self.members.values().filter(serves).count();
        if members > 0 {
            return Err(Refusal::StillServes { relay: name, members });
        }
        let links = self.links.values().filter(|link| link.ends.contains(&id));
        let links: Vec<LinkId> = links.map(|link| link.id).collect();
        self.vacate(op, &links, Some(id), &format!("the relay {name}"))?;
        for link in links {
            self.forget_link(op, link);
            op.cut();
        }
        self.bar_relay(op, id);
        self.relay_names.remove(&name);
        self.unheard.remove(&id);
        self.detours.remove(&id);
        self.forget_ways(id);
        self.ledger.close_relay(id);
        op.write::<Relay>(Table::Relays, number(u32::from(id.0)), None);
        op.effects.push(Effect::Removed(id));
        op.tell(Event::RelayRemoved { relay: id, name });
        Ok(())
    }

    /// Forgets a relay and remembers that it was removed: a process that restarts would register as a new one otherwise.
    fn bar_relay(&mut self, op: &mut Op, id: RelayId) {
        let Some(Relay { name, key, .. }) = self.relays.remove(&id) else { return };
        let removed = RemovedRelay { id, name, key };
        op.write(Table::Removed, number(u32::from(id.0)), Some(&removed));
        self.removed.insert(id, removed);
    }

    /// A relay that was removed registers no more, whatever its name is now.
    pub(crate) fn check_not_removed(&self, name: &Name, key: &Key) -> Result<(), Refusal> {
        match self.removed.values().find(|of| of.key == *key) {
            Some(of) => Err(Refusal::Removed { relay: name.clone(), was: of.name.clone() }),
            None => Ok(()),
        }
    }

    /// Relays of this name that were removed may register again.
    pub(crate) fn allow_relay(&mut self, op: &mut Op, name: &Name) -> Result<(), Refusal> {
        let is_its = |of: &&RemovedRelay| of.name == *name;
        let ids: Vec<RelayId> = self.removed.values().filter(is_its).map(|of| of.id).collect();
        if ids.is_empty() {
            return Err(Refusal::NotRemoved(name.clone()));
        }
        for id in ids {
            self.removed.remove(&id);
            op.write::<RemovedRelay>(Table::Removed, number(u32::from(id.0)), None);
            op.cut();
        }
        Ok(())
    }
}
