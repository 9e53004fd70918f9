//! Links and relays that are taken away for good. What runs over them moves first; where it cannot,
//! nothing is taken away.

use crate::error::Refusal;
use crate::model::{Link, LinkId, MemberState, Relay, RelayId, RelayState};
use crate::op::{Effect, Event, Op};
use crate::running::Running;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_wire::Comtree;

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
            op.writes.append(&mut done.writes);
            op.effects.append(&mut done.effects);
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
                    let world = state.comtrees.get(comtree).map(|running| running.world);
                    let world = world.and_then(|world| state.worlds.get(&world));
                    let world = world.map_or_else(String::new, |world| world.name.to_string());
                    Refusal::Needed { what: what.to_owned(), world, why }
                })?;
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

    /// Takes a link away, once nothing runs over it.
    pub(crate) fn remove_link(&mut self, op: &mut Op, id: LinkId) -> Result<(), Refusal> {
        let link = self.links.get(&id).ok_or(Refusal::NoSuchLink(id.0))?;
        let [from, to] = link.ends.map(|end| self.relay_name(end));
        self.vacate(op, &[id], None, &format!("the link {} from {from} to {to}", id.0))?;
        self.forget_link(op, id);
        Ok(())
    }

    fn forget_link(&mut self, op: &mut Op, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        self.health.remove(&id);
        self.ledger.close_link(&link);
        op.write::<Link>(Table::Links, number(id.0), None);
        op.effects.extend(link.ends.map(|end| Effect::Link(end, id, None)));
        op.tell(Event::LinkRemoved(id));
    }

    /// Takes a relay away, with its links. It must be drained and empty, or gone.
    pub(crate) fn remove_relay(&mut self, op: &mut Op, id: RelayId) -> Result<(), Refusal> {
        let Relay { name, state, .. } = self.relay(id)?.clone();
        if state == RelayState::Up {
            return Err(Refusal::NotDrained(name));
        }
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
        links.into_iter().for_each(|link| self.forget_link(op, link));
        self.relays.remove(&id);
        self.relay_names.remove(&name);
        self.ledger.close_relay(id);
        op.write::<Relay>(Table::Relays, number(u32::from(id.0)), None);
        op.effects.push(Effect::Removed(id));
        op.tell(Event::RelayRemoved { relay: id, name });
        Ok(())
    }
}
