//! What a controller finds when it starts, and what it tells relays of that.
//!
//! Each relay is told as it connects, in whatever order they come. But a step of a move that the life before
//! has begun is taken back as a controller that lives does it (`moves`): the relay whose word was waited for is
//! the first, and the others of the comtree keep what they have until it has answered, or is lost. It may have
//! turned to its next parent already, and all that goes up from there needs the branch at that. The other relay
//! of the step is the second: only then may one of them be the standby parent of the other, over the same link.

use crate::codec::Coded;
use crate::comtree::Step;
use crate::error::LoadError;
use crate::ledger::Flow;
use crate::model::{
    ComtreeRecord, Core, Link, Member, MemberState, Relay, RelayId, TreeHop, World, WorldId,
};
use crate::op::Effect;
use crate::running::Running;
use crate::settings::Settings;
use crate::shape::{Load, Shape};
use crate::signal::Item;
use crate::state::{COUNTERS, State};
use crate::storage::{Entry, Storage, StorageError, Table};
use canopy_wire::Comtree;
use std::collections::BTreeMap;

impl State {
    /// Reads everything from storage. Reservations are worked out from the members.
    pub(crate) fn load(settings: Settings, storage: &impl Storage) -> Result<State, LoadError> {
        let mut state = State::new(settings);
        if let Some(entry) = storage.get(Table::Controller, COUNTERS)? {
            state.counters = read(Table::Controller, &entry)?;
        }
        each(storage, Table::Relays, |relay: Relay| state.know_relay(relay))?;
        each(storage, Table::Links, |link: Link| state.know_link(link))?;
        each(storage, Table::Worlds, |world: World| state.know_world(world))?;
        each(storage, Table::Members, |member: Member| state.know_member(member))?;
        let loads = state.loads();
        let mut comtrees = Vec::new();
        each(storage, Table::Comtrees, |record: ComtreeRecord| comtrees.push(record))?;
        for record in comtrees {
            state.know_comtree(record, &loads)?;
        }
        for ((_, relay), (count, _)) in loads {
            state.ledger.enter(&[Flow::Members(relay, f64::from(count))]);
        }
        Ok(state)
    }

    fn know_comtree(
        &mut self,
        record: ComtreeRecord,
        loads: &BTreeMap<(WorldId, RelayId), Load>,
    ) -> Result<(), LoadError> {
        let ComtreeRecord { id, world, tree, standbys, asked, mesh, step } = record;
        let Some(of) = self.worlds.get(&world) else {
            return Err(LoadError::Contradiction(format!("comtree {} has no world", id.0)));
        };
        let Some(running) = self.comtrees.get_mut(&id) else { return Ok(()) };
        (running.asked, running.undone) = (asked, step);
        if tree.is_empty() {
            return Ok(());
        }
        let load = |relay| loads.get(&(world, relay)).copied().unwrap_or_default();
        let shape = match of.core {
            Core::Mesh => Shape::meshed(tree, mesh, load),
            _ => Shape::new(tree, &of.core, load),
        };
        let shape = shape.map_err(LoadError::Contradiction)?;
        self.ledger.enter(&shape.flows());
        running.shape = Some(shape);
        let standby = |hop: TreeHop| hop.above.map(|above| (hop.relay, above));
        running.standbys = standbys.into_iter().filter_map(standby).collect();
        Ok(())
    }

    /// Everything that relays are to have, for a controller that starts.
    pub(crate) fn all_effects(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for link in self.links.values() {
            let end = |end: &RelayId| Effect::Link(*end, link.id, self.link_item(link, *end));
            effects.extend(link.ends.iter().map(end));
        }
        for (id, running) in &self.comtrees {
            let mut relays: Vec<RelayId> = running.shape.iter().flat_map(Shape::relays).collect();
            if let Some(step) = running.undone {
                let first = self.first_of_undone(*id, running, step);
                relays.retain(|relay| {
                    let is_told = *relay == step.relay() && first == self.comtree_item(*id, *relay);
                    !is_told && *relay != step.other()
                });
                effects.push(Effect::Comtree(*id, step.relay(), first));
                effects.push(Effect::Barrier(*id));
                // It has something of the step, though it may not be on the tree in force.
                let other = self.comtree_item(*id, step.other());
                effects.extend([Effect::Comtree(*id, step.other(), other), Effect::Barrier(*id)]);
                effects.push(Effect::TakenBack(*id));
            }
            let item = |relay| Effect::Comtree(*id, relay, self.comtree_item(*id, relay));
            effects.extend(relays.into_iter().map(item));
        }
        for member in self.members.values() {
            let Some(world) = self.worlds.get(&member.world) else { continue };
            let relay = member.relay;
            effects.extend(world.comtrees.iter().filter_map(|comtree| match member.state {
                MemberState::Held | MemberState::Moving => {
                    Some(Effect::Admit(*comtree, relay, State::member_item(*comtree, member)))
                }
                MemberState::Leaving => Some(Effect::Dismiss(*comtree, relay, member.address)),
                MemberState::Resting => None,
            }));
        }
        effects
    }

    /// What the relay whose word was waited for is to have before all others of the comtree: its branches on
    /// the tree in force, with the step taken back, and no standby parent.
    fn first_of_undone(&self, id: Comtree, running: &Running, step: Step) -> Option<Item> {
        let relay = step.relay();
        let shape = running.shape.as_ref().filter(|shape| shape.has(relay))?;
        let mut branches = step.taken_back(&shape.branches(relay));
        branches.sort_by_key(|branch| branch.link);
        self.comtree_base(id, relay, branches)
    }
}

fn read<T: Coded>(table: Table, entry: &Entry) -> Result<T, StorageError> {
    let unreadable =
        |why: crate::CodecError| StorageError::Unreadable { table, why: why.to_string() };
    T::of_bytes(&entry.value).map_err(unreadable)
}

/// Calls this with every record of a table.
fn each<T: Coded>(
    storage: &impl Storage,
    table: Table,
    mut know: impl FnMut(T),
) -> Result<(), StorageError> {
    const PAGE: usize = 1000;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = storage.list(table, &[], after.as_deref(), PAGE)?;
        for entry in &page {
            know(read(table, entry)?);
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
            _ => return Ok(()),
        }
    }
}
