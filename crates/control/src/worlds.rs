//! Worlds come and go.

use crate::error::Refusal;
use crate::model::{Channel, Core, Downlink, Mode, World, WorldId};
use crate::name::Name;
use crate::op::Op;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_plan::Limits;
use canopy_wire::{Address, Comtree};

/// The most comtrees of a world: as many as a token can grant.
pub const MOST_COMTREES: u8 = canopy_token::MAX_COMTREES as u8;

/// A world to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewWorld {
    /// Its name.
    pub name: Name,
    /// How many comtrees it has, 1 to [`MOST_COMTREES`]; others are taken as the nearest of these.
    pub comtrees: u8,
    /// Its channels.
    pub channels: Vec<Channel>,
    /// The highest level.
    pub levels: u8,
    /// When updates leave.
    pub mode: Mode,
    /// How they are protected.
    pub downlink: Downlink,
    /// The limits of a member that asks for none.
    pub default: Limits,
    /// The rule for the core.
    pub core: Core,
}

impl State {
    /// The world of this name.
    pub(crate) fn world(&self, name: &Name) -> Result<&World, Refusal> {
        let id = self.world_names.get(name);
        let world = id.and_then(|id| self.worlds.get(id));
        world.ok_or_else(|| Refusal::NoSuchWorld(name.to_string()))
    }

    pub(crate) fn create_world(&mut self, op: &mut Op, new: NewWorld) -> Result<WorldId, Refusal> {
        if self.world_names.contains_key(&new.name) {
            return Err(Refusal::WorldExists(new.name));
        }
        let count = u32::from(new.comtrees.clamp(1, MOST_COMTREES));
        let first = self.counters.comtree;
        let (Some(next), Some(next_world)) =
            (first.checked_add(count), self.counters.world.checked_add(1))
        else {
            return Err(Refusal::OutOfNumbers("worlds and comtrees"));
        };
        let id = WorldId(self.counters.world);
        self.counters.comtree = next;
        self.counters.world = next_world;
        let NewWorld { name, comtrees: _, channels, levels, mode, downlink, default, core } = new;
        let comtrees: Vec<Comtree> = (first..next).map(Comtree).collect();
        let default = default.whole();
        let closing = false;
        let world =
            World { id, name, comtrees, channels, levels, mode, downlink, default, core, closing };
        self.save_counters(op);
        self.save_world(op, world);
        for comtree in first..next {
            self.save_comtree(op, Comtree(comtree));
        }
        Ok(id)
    }

    fn save_world(&mut self, op: &mut Op, world: World) {
        op.write(Table::Worlds, number(world.id.0), Some(&world));
        self.know_world(world);
    }

    /// Lets nobody enter a world any more. Returns who has to leave; once all have, it is gone.
    pub(crate) fn close_world(
        &mut self,
        op: &mut Op,
        name: &Name,
    ) -> Result<Vec<Address>, Refusal> {
        let world = World { closing: true, ..self.world(name)?.clone() };
        let id = world.id;
        self.save_world(op, world);
        self.close_if_empty(op, id);
        Ok(self.members_of(id))
    }

    /// The addresses that somebody has in a world, or that rest.
    pub(crate) fn members_of(&self, world: WorldId) -> Vec<Address> {
        let of = (world, Address(0))..=(world, Address(u32::MAX));
        self.members.range(of).map(|((_, address), _)| *address).collect()
    }

    /// Removes a world that is being deleted and has nobody left. Addresses may rest on: neither the
    /// world's number nor its comtrees' are given again.
    pub(crate) fn close_if_empty(&mut self, op: &mut Op, id: WorldId) {
        let Some(world) = self.worlds.get(&id).filter(|world| world.closing) else { return };
        let is_empty = |comtree: &Comtree| {
            self.comtrees.get(comtree).is_none_or(|running| running.shape.is_none())
        };
        if !world.comtrees.iter().all(is_empty) {
            return;
        }
        let Some(world) = self.worlds.remove(&id) else { return };
        self.world_names.remove(&world.name);
        op.write::<World>(Table::Worlds, number(id.0), None);
        for comtree in world.comtrees {
            self.comtrees.remove(&comtree);
            op.write::<World>(Table::Comtrees, number(comtree.0), None);
        }
    }
}
