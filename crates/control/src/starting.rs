//! What a controller finds when it starts, and what it tells relays of that.
//!
//! Each relay is told as it connects, in whatever order they come. But a step of a move that the life before
//! has given up, or has begun by which a relay leaves a core that is a tree, is taken back as a controller that lives does
//! it (`moves`): the relay whose word was waited for is the first, and the others of the comtree keep what they have until
//! it has answered, or is lost. It may have turned to its next parent already, and all that goes up from there needs the
//! branch at that. The other relay of the step is the second: only then may one of them be the standby parent of the
//! other, over the same link. A step in which a relay gets another parent, or joins a meshed core or leaves it, goes on
//! where it was, and so does the move: see `resuming`. Of the phase that is stored relays know at least the one before,
//! and nothing is lost between the two.
//!
//! If a change of a tree was on its way, relays may have the tree before, the tree after, or what is told between
//! the two. All relays of that comtree are waited for. Then they let go of everything that they do not surely have
//! (`overlap`), and take on the rest once all have: the order in which a controller that lives tells them.

use crate::codec::Coded;
use crate::comtree::{Heading, Step};
use crate::error::LoadError;
use crate::ledger::Flow;
use crate::model::{
    ComtreeRecord, Core, Link, Member, MemberState, Relay, RelayId, RemovedRelay, TreeHop, World,
    WorldId,
};
use crate::op::{Effect, Op};
use crate::running::Running;
use crate::settings::Settings;
use crate::shape::{Load, Shape};
use crate::signal::Branch;
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
        each(storage, Table::Removed, |of: RemovedRelay| _ = state.removed.insert(of.id, of))?;
        each(storage, Table::Links, |link: Link| state.know_link(link))?;
        each(storage, Table::Worlds, |world: World| state.know_world(world))?;
        each(storage, Table::Members, |member: Member| state.know_member(member))?;
        let loads = state.loads();
        let mut comtrees = Vec::new();
        each(storage, Table::Comtrees, |record: ComtreeRecord| comtrees.push(record))?;
        let mut headings = Vec::new();
        for record in comtrees {
            let id = record.id;
            headings.extend(state.know_comtree(record, &loads)?.map(|heading| (id, heading)));
        }
        let comtrees: Vec<Comtree> = state.comtrees.keys().copied().collect();
        comtrees.into_iter().for_each(|comtree| state.renew_spares(comtree));
        // All comtrees have what they need if no move goes on; that was reserved for all of them together.
        headings.into_iter().for_each(|(id, heading)| state.resume_move(id, heading));
        for ((_, relay), (count, _)) in loads {
            state.ledger.enter(&[Flow::Members(relay, f64::from(count))]);
        }
        Ok(state)
    }

    fn know_comtree(
        &mut self,
        record: ComtreeRecord,
        loads: &BTreeMap<(WorldId, RelayId), Load>,
    ) -> Result<Option<Heading>, LoadError> {
        let ComtreeRecord { id, world, tree, standbys, asked, mesh, step, overlap, heading } =
            record;
        let Some(of) = self.worlds.get(&world) else {
            return Err(LoadError::Contradiction(format!("comtree {} has no world", id.0)));
        };
        let Some(running) = self.comtrees.get_mut(&id) else { return Ok(None) };
        (running.asked, running.undone, running.overlap) = (asked, step, overlap);
        if tree.is_empty() {
            return Ok(None);
        }
        let load = |relay| loads.get(&(world, relay)).copied().unwrap_or_default();
        let shape = match of.core {
            Core::Mesh => Shape::meshed(tree, mesh, load),
            _ => Shape::new(tree, &of.core, load),
        };
        running.shape = Some(shape.map_err(LoadError::Contradiction)?);
        running.go_on_peering();
        self.ledger.enter(&running.flows());
        let standby = |hop: TreeHop| hop.above.map(|above| (hop.relay, above));
        running.standbys = standbys.into_iter().filter_map(standby).collect();
        Ok(heading)
    }

    /// Everything that relays are to have, for a controller that starts.
    pub(crate) fn all_effects(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for link in self.links.values() {
            let end = |end: &RelayId| Effect::Link(*end, link.id, self.link_item(link, *end));
            effects.extend(link.ends.iter().map(end));
        }
        let mut op = Op::default();
        for (id, running) in &self.comtrees {
            self.start_comtree(&mut op, *id, running);
        }
        effects.append(&mut op.effects);
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

    /// What the relays of a comtree are told. If a change was on its way to them, all are waited for, and then they
    /// let go first of what they do not surely have.
    fn start_comtree(&self, op: &mut Op, id: Comtree, running: &Running) {
        let after = running.picture();
        let overlap = running.overlap.as_ref();
        let mut before = overlap.map_or_else(|| after.clone(), |of| of.picture(&after));
        let tell = |relay: RelayId, branches: Option<&Vec<Branch>>| {
            let item = branches.and_then(|of| self.comtree_base(id, relay, of.clone()));
            Effect::Comtree(id, relay, item)
        };
        if overlap.is_some() {
            op.effects.extend(before.keys().map(|relay| Effect::Await(id, *relay)));
            op.effects.push(Effect::Barrier(id));
        }
        let mut told = Vec::new();
        if let Some(step) = &running.undone {
            let [relay, other] = step.undone_by();
            // Standby branches may be over the step's link, or over one that is let go if the step is done: they come
            // at last, as on the way they were nowhere.
            for branches in before.values_mut() {
                branches.retain(|branch| !branch.role.is_standby());
            }
            if overlap.is_none() {
                told.extend(step.told_again(&mut before, running.shape.as_ref()));
            }
            op.effects.extend(told.iter().map(|at| tell(*at, before.get(at))));
            op.effects.push(Effect::Barrier(id));
            self.await_heard(op, id, &told);
            before.entry(relay).and_modify(|branches| *branches = step.taken_back(branches));
            op.effects.push(tell(relay, before.get(&relay)));
            op.effects.push(Effect::Barrier(id));
            self.await_last(op, id, step);
            // It has something of the step, though it may not be on the tree in force.
            op.effects.extend([tell(other, before.get(&other)), Effect::Barrier(id)]);
            op.effects.push(Effect::TakenBack(id));
            told.extend([relay, other]);
        }
        let step = running.step();
        let groups = step.as_ref().map_or_else(Vec::new, Step::told);
        // Others may still have their standby parents, which go before a step; those of the step let go of theirs with it.
        told.extend(groups.iter().flatten());
        let others = before.iter().filter(|(relay, _)| !told.contains(relay));
        op.effects.extend(others.map(|(relay, branches)| tell(*relay, Some(branches))));
        for group in groups {
            op.effects.push(Effect::Barrier(id));
            op.effects.extend(group.iter().map(|relay| tell(*relay, before.get(relay))));
        }
        op.effects.extend(step.iter().flat_map(|_| [Effect::Barrier(id), Effect::Told(id)]));
        if overlap.is_some() || running.undone.is_some() {
            op.effects.push(Effect::Barrier(id));
        }
        if running.undone.is_some() {
            self.await_left(op, id);
        }
        self.take_on(op, id, before, &after);
        if running.moving.as_ref().is_some_and(|moving| moving.step.is_none()) {
            op.effects.extend([Effect::Barrier(id), Effect::Passed(id, None)]);
        }
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
