//! Worlds come and go.

use crate::error::Refusal;
use crate::mesh::Spare;
use crate::model::{Channel, Core, Downlink, Mode, Sharing, World, WorldId};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::shape::Shape;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_plan::Limits;
use canopy_wire::{Address, Comtree};
use std::collections::BTreeSet;

/// The most comtrees of a world: as many as a token can grant.
pub const MOST_COMTREES: u8 = canopy_token::MAX_COMTREES as u8;

/// The most different ticks of all worlds: relays have a queue for each.
pub const MOST_TICKS: usize = 14;

/// A world to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewWorld {
    /// Its name.
    pub name: Name,
    /// How many comtrees it has, 1 to [`MOST_COMTREES`]; others are taken as the nearest of these.
    pub comtrees: u8,
    /// Its channels.
    pub channels: Vec<Channel>,
    /// The highest level that its members publish at and subscribe to.
    pub levels: u8,
    /// When updates leave.
    pub mode: Mode,
    /// How they are protected.
    pub downlink: Downlink,
    /// The limits of a member that asks for none.
    pub default: Limits,
    /// The rule for the core.
    pub core: Core,
    /// What members get who cannot be sent everything.
    pub sharing: Sharing,
}

/// What of a world is to change; what is nothing stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorldChanges {
    /// Its channels.
    pub channels: Option<Vec<Channel>>,
    /// The highest level. Who is in has it with the next token.
    pub levels: Option<u8>,
    /// When updates leave; only while the world has no members.
    pub mode: Option<Mode>,
    /// How they are protected; only while the world has no members.
    pub downlink: Option<Downlink>,
    /// The limits of a member that asks for none. Those who are in keep what they have.
    pub default: Option<Limits>,
    /// The rule for the core.
    pub core: Option<Core>,
    /// What members get who cannot be sent everything.
    pub sharing: Option<Sharing>,
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
        self.check_tick(new.mode, None)?;
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
        let NewWorld { name, channels, levels, mode, downlink, default, core, sharing, .. } = new;
        let comtrees: Vec<Comtree> = (first..next).map(Comtree).collect();
        let default = default.whole();
        let world = World {
            id,
            name,
            comtrees,
            channels,
            levels,
            mode,
            downlink,
            default,
            core,
            sharing,
            closing: false,
        };
        self.save_counters(op);
        self.save_world(op, world);
        for comtree in first..next {
            self.save_comtree(op, Comtree(comtree));
        }
        op.tell(Event::WorldCreated(id));
        Ok(id)
    }

    /// Changes a world. A new rule for the core may need more than is free; then nothing changes.
    pub(crate) fn set_world(
        &mut self,
        op: &mut Op,
        name: &Name,
        changes: WorldChanges,
    ) -> Result<(), Refusal> {
        let before = self.world(name)?.clone();
        if before.closing {
            return Err(Refusal::Closing(name.clone()));
        }
        let WorldChanges { channels, levels, mode, downlink, default, core, sharing } = changes;
        let after = World {
            channels: channels.unwrap_or_else(|| before.channels.clone()),
            levels: levels.unwrap_or(before.levels),
            mode: mode.unwrap_or(before.mode),
            downlink: downlink.unwrap_or(before.downlink),
            default: default.map_or(before.default, Limits::whole),
            core: core.unwrap_or_else(|| before.core.clone()),
            sharing: sharing.unwrap_or(before.sharing),
            ..before.clone()
        };
        if after == before {
            return Ok(());
        }
        let has_members = before.comtrees.iter().any(|comtree| self.has_tree(*comtree));
        let fixed =
            [(after.mode != before.mode, "mode"), (after.downlink != before.downlink, "downlink")];
        if let Some((_, what)) = fixed.into_iter().find(|(differs, _)| has_members && *differs) {
            return Err(Refusal::HasMembers { world: name.clone(), what });
        }
        if after.mode != before.mode {
            self.check_tick(after.mode, Some(before.id))?;
        }
        let (id, comtrees) = (before.id, before.comtrees.clone());
        let is_new_core = after.core != before.core;
        let is_told = after.levels != before.levels || after.sharing != before.sharing;
        self.save_world(op, after);
        let result = self.all_or_nothing(op, &comtrees, |state, op| {
            comtrees.iter().try_for_each(|comtree| match is_new_core {
                true => state.follow_core(op, *comtree),
                false => Ok(()),
            })
        });
        if result.is_err() {
            self.know_world(before);
            return result;
        }
        for comtree in comtrees.into_iter().filter(|_| is_told) {
            let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
            let item = |at| Effect::Comtree(comtree, at, self.comtree_item(comtree, at));
            op.effects.extend(shape.into_iter().flat_map(Shape::relays).map(item));
        }
        op.tell(Event::WorldChanged(id));
        Ok(())
    }

    /// Whether a world, new or `known`, may have this mode beside all others.
    fn check_tick(&self, mode: Mode, known: Option<WorldId>) -> Result<(), Refusal> {
        let Mode::Periodic(tick_ms) = mode else { return Ok(()) };
        let others = self.worlds.values().filter(|world| Some(world.id) != known);
        let ticks = others.filter_map(|world| match world.mode {
            Mode::Immediate => None,
            Mode::Periodic(tick_ms) => Some(tick_ms),
        });
        let ticks: BTreeSet<u16> = ticks.collect();
        if ticks.len() < MOST_TICKS || ticks.contains(&tick_ms) {
            return Ok(());
        }
        Err(Refusal::TooManyTicks { tick_ms, ticks: ticks.into_iter().collect() })
    }

    fn has_tree(&self, comtree: Comtree) -> bool {
        self.comtrees.get(&comtree).is_some_and(|running| running.shape.is_some())
    }

    /// Provisions a comtree by the rule that its world has now for the core.
    fn follow_core(&mut self, op: &mut Op, comtree: Comtree) -> Result<(), Refusal> {
        let Some(running) = self.comtrees.get(&comtree).filter(|r| r.shape.is_some()) else {
            return Ok(());
        };
        // A new core over a tree that is not whole does not make it whole.
        let broken = running.broken.clone();
        let why = "its core was changed".to_owned();
        let hops = self.hops_of(comtree);
        self.reshape(op, comtree, &hops, |_, load| load, Spare::Nobody, why)
            .map_err(|lack| self.refusal(lack))?;
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.broken = broken;
        }
        Ok(())
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
        let world = self.world(name)?.clone();
        let id = world.id;
        if !world.closing {
            op.tell(Event::WorldClosing(id));
        }
        let world = World { closing: true, ..world };
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
        self.next_addresses.remove(&id);
        self.world_names.remove(&world.name);
        op.write::<World>(Table::Worlds, number(id.0), None);
        op.write::<World>(Table::Areas, number(id.0), None);
        for comtree in world.comtrees {
            self.comtrees.remove(&comtree);
            op.write::<World>(Table::Comtrees, number(comtree.0), None);
        }
        op.tell(Event::WorldDeleted { world: id, name: world.name });
    }
}
