//! The areas of worlds (federated games §3.1): who sets them, who follows them, and when they change.
//! `canopy_areas` decides; here it is stored, and told once it is.

use super::Controller;
use crate::error::{LoadError, Refusal};
use crate::model::{Owner, World, WorldId};
use crate::name::Name;
use crate::op::{Event, Op};
use crate::state::{State, number};
use crate::storage::{Storage, Table, Write};
use canopy_areas::{Areas, AreasError, Division, Ground, Guide, Report, Ring, Rules};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Areas are looked at this often: whether a step is due, or something is crowded.
const LOOK: Duration = Duration::from_millis(250);

/// How a world is to be divided.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAreas {
    /// The cells.
    pub ground: Ground,
    /// The channel whose groups the areas have.
    pub channel: Name,
    /// How far one hears.
    pub rings: Vec<Ring>,
    /// When areas are split and merged; never if nothing.
    pub rules: Option<Rules>,
}

/// Goes on with the areas that are stored.
pub(super) fn load(
    now: Time,
    state: &State,
    storage: &impl Storage,
) -> Result<BTreeMap<WorldId, Guide>, LoadError> {
    let mut guides = BTreeMap::new();
    for world in state.worlds.values() {
        let Some(entry) = storage.get(Table::Areas, &number(world.id.0))? else { continue };
        let wrong = |why: AreasError| LoadError::Contradiction(format!("{}: {why}", world.name));
        let areas = Areas::from_text(&entry.value).map_err(wrong)?;
        guides.insert(world.id, Guide::resume(now, areas));
    }
    Ok(guides)
}

fn save(op: &mut Op, world: WorldId, areas: &Areas) {
    let (key, text) = (number(world.0), areas.to_text());
    op.writes.push(Write { table: Table::Areas, key, value: Some(text.into_bytes()) });
    op.tell(Event::AreasChanged { world, areas: Arc::new(areas.clone()) });
}

impl Controller {
    /// Whether the areas of a world do with so many levels, if it has areas.
    pub(super) fn check_levels_of_areas(&self, world: &Name, levels: u8) -> Result<(), Refusal> {
        let guide = self.guides.get(&self.state.world(world)?.id);
        let mut rings = guide.into_iter().flat_map(|guide| &guide.areas().rings);
        match rings.find(|ring| ring.level > levels) {
            Some(ring) => {
                Err(Refusal::NoSuchLevel { world: world.clone(), level: ring.level, levels })
            }
            None => Ok(()),
        }
    }

    /// Divides a world into areas, or otherwise than before: then its followers are led over, and
    /// nothing is lost.
    ///
    /// # Errors
    /// There is no such world or channel, the areas are not allowed, they are more than the channel has
    /// groups, or a change is under way.
    pub fn set_areas(&mut self, now: Time, world: &Name, new: NewAreas) -> Result<(), Refusal> {
        let World { id, channels, levels, closing, .. } = self.state.world(world)?;
        let (id, levels) = (*id, *levels);
        if *closing {
            return Err(Refusal::Closing(world.clone()));
        }
        let NewAreas { ground, channel, rings, rules } = new;
        let Some(of) = channels.iter().find(|of| of.name == channel) else {
            return Err(Refusal::NoSuchChannel { world: world.clone(), channel });
        };
        if let Some(level) = rings.iter().map(|ring| ring.level).find(|level| *level > levels) {
            return Err(Refusal::NoSuchLevel { world: world.clone(), level, levels });
        }
        let division = Division::new(ground, of.first, of.groups)?;
        let areas = Areas::new(division, rings, rules)?;
        let guide = match self.guides.get_mut(&id) {
            None => self.guides.entry(id).or_insert_with(|| Guide::new(now, areas)),
            Some(guide) => {
                let Areas { division, rings, rules, .. } = areas;
                if !guide.change(division, rings, rules) {
                    return Err(Refusal::AreasChanging(world.clone()));
                }
                guide
            }
        };
        let mut op = Op::default();
        save(&mut op, id, guide.areas());
        self.ops.push_back(op);
        Ok(())
    }

    /// A world's areas, and who is known to follow them; nothing if it has none.
    pub fn areas(&self, world: WorldId) -> Option<&Guide> {
        self.guides.get(&world).filter(|_| self.state.worlds.contains_key(&world))
    }

    /// A member has said where it is, over a channel that has a number of its own, and which step it has
    /// carried out. Returns whether it is a member, and there are areas.
    pub fn handle_report(
        &mut self,
        world: WorldId,
        owner: Owner,
        channel: u64,
        report: Report,
    ) -> bool {
        let is_in = self.held_by(world, owner).is_some();
        match self.guides.get_mut(&world).filter(|_| is_in) {
            Some(guide) => {
                guide.handle_report(owner, channel, report);
                true
            }
            None => false,
        }
    }

    /// A member's channel has ended, and with it its reports.
    pub fn handle_unreachable(&mut self, now: Time, world: WorldId, owner: Owner, channel: u64) {
        if let Some(guide) = self.guides.get_mut(&world) {
            guide.handle_gone(now, owner, channel);
        }
    }

    /// Takes the steps that are due.
    pub(super) fn guide(&mut self, now: Time) {
        if now < self.next_areas || self.guides.is_empty() {
            return;
        }
        self.next_areas = now + LOOK;
        let Controller { guides, state, ops, .. } = self;
        guides.retain(|world, _| state.worlds.contains_key(world));
        for (world, guide) in guides {
            let address = |owner: &Owner| state.owners.get(&(*world, *owner)).copied();
            let is_held = |address| state.held(*world, address).is_ok();
            guide.retain(|owner| address(owner).is_some_and(is_held));
            if guide.handle_timeout(now) {
                let mut op = Op::default();
                save(&mut op, *world, guide.areas());
                ops.push_back(op);
            }
        }
    }
}
