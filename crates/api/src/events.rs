//! What the controller tells, with names instead of numbers.

use crate::problem::{Problem, Wrong};
use crate::relays::name_of;
use canopy_control::{Controller, Event, Refusal, WorldId};
use canopy_wire::Comtree;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventView {
    /// A member was let in.
    Admitted {
        /// The world's name.
        world: String,
        /// Its address there.
        address: String,
    },
    /// A member that was in already has a new lease.
    Renewed {
        /// The world's name.
        world: String,
        /// Its address there.
        address: String,
    },
    /// A member that had a reservation was not let in after all.
    Refused {
        /// The world's name.
        world: String,
        /// The address that it was to have.
        address: String,
        /// Why.
        why: String,
    },
    /// Somebody was not let into a world, because a link, a relay or the world has no room.
    NotLetIn {
        /// The world's name.
        world: String,
        /// What has no room.
        #[serde(rename = "where")]
        place: String,
        /// Why, the last time.
        why: String,
        /// What was asked for, the last time, where a link or relay has too little left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<String>,
        /// What was free.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        free: Option<String>,
        /// How often that was so within a second.
        times: u64,
    },
    /// A member has left.
    Left {
        /// The world's name.
        world: String,
        /// The address that it had.
        address: String,
    },
    /// A comtree has a new tree.
    Reshaped {
        /// The world's name.
        world: String,
        /// The comtree.
        comtree: u32,
        /// Why.
        why: String,
    },
    /// No tree can be had for a comtree; what stands of the old one goes on.
    Broken {
        /// The world's name.
        world: String,
        /// The comtree.
        comtree: u32,
        /// Why, and what would help.
        why: String,
    },
    /// There is a new world.
    WorldCreated {
        /// Its name.
        world: String,
    },
    /// A world was changed.
    WorldChanged {
        /// Its name.
        world: String,
    },
    /// The areas of a world are others, or their change has gone a step further.
    AreasChanged {
        /// The world's name.
        world: String,
        /// The step, of which a change has three.
        step: u64,
    },
    /// A world is being deleted.
    WorldClosing {
        /// Its name.
        world: String,
    },
    /// A world is gone.
    WorldDeleted {
        /// The name that it had.
        world: String,
    },
    /// A relay has registered for the first time.
    RelayRegistered {
        /// Its name.
        relay: String,
    },
    /// A relay takes no new members from now on.
    RelayDraining {
        /// Its name.
        relay: String,
    },
    /// A relay that was draining takes members again.
    RelayServing {
        /// Its name.
        relay: String,
    },
    /// A relay is being removed: it drains, and goes once its members and worlds are elsewhere.
    RelayRemoving {
        /// Its name.
        relay: String,
    },
    /// A relay was taken away.
    RelayRemoved {
        /// The name that it had.
        relay: String,
    },
    /// There is a new link.
    LinkAdded {
        /// Its number.
        link: u32,
    },
    /// A link is being removed: worlds move off it, and nothing new comes over it.
    LinkRemoving {
        /// Its number.
        link: u32,
    },
    /// A link that was being removed stays.
    LinkKept {
        /// Its number.
        link: u32,
    },
    /// A link was taken away.
    LinkRemoved {
        /// The number that it had.
        link: u32,
    },
    /// Both ends of a link hear each other again.
    LinkUp {
        /// Its number.
        link: u32,
    },
    /// An end of a link does not hear the other.
    LinkDown {
        /// Its number.
        link: u32,
    },
    /// A relay was silent for too long: its members were given up.
    RelayLost {
        /// Its name.
        relay: String,
    },
    /// A relay is there, again or for the first time.
    RelayFound {
        /// Its name.
        relay: String,
    },
    /// A link is not used for a while, because it comes and goes.
    LinkDamped {
        /// Its number.
        link: u32,
    },
    /// Whoever reads the stream was too slow: some events were left out.
    Missed {
        /// How many.
        events: u64,
    },
}

impl EventView {
    /// An event with the names that the controller knows now.
    pub fn new(controller: &Controller, event: &Event) -> EventView {
        let world = |id: &WorldId| {
            let world = controller.world_of(*id);
            world.map_or_else(|| id.0.to_string(), |world| world.name.to_string())
        };
        let world_on = |comtree: &Comtree| {
            let world = controller.world_on(*comtree);
            world.map_or_else(String::new, |world| world.name.to_string())
        };
        match event {
            Event::Admitted { world: id, address } => {
                EventView::Admitted { world: world(id), address: address.to_string() }
            }
            Event::Renewed { world: id, address } => {
                EventView::Renewed { world: world(id), address: address.to_string() }
            }
            Event::Refused { world: id, address, why } => EventView::Refused {
                world: world(id),
                address: address.to_string(),
                why: why.to_string(),
            },
            Event::NotLetIn { world: id, why, times } => not_let_in(world(id), why, *times),
            Event::Left { world: id, address } => {
                EventView::Left { world: world(id), address: address.to_string() }
            }
            Event::Reshaped { comtree, why } => EventView::Reshaped {
                world: world_on(comtree),
                comtree: comtree.0,
                why: why.clone(),
            },
            Event::Broken { comtree, why } => {
                EventView::Broken { world: world_on(comtree), comtree: comtree.0, why: why.clone() }
            }
            Event::RelayLost(relay) => EventView::RelayLost { relay: name_of(controller, *relay) },
            Event::RelayFound(relay) => {
                EventView::RelayFound { relay: name_of(controller, *relay) }
            }
            Event::RelayRegistered(relay) => {
                EventView::RelayRegistered { relay: name_of(controller, *relay) }
            }
            Event::RelayDraining(relay) => {
                EventView::RelayDraining { relay: name_of(controller, *relay) }
            }
            Event::RelayServing(relay) => {
                EventView::RelayServing { relay: name_of(controller, *relay) }
            }
            Event::RelayRemoving(relay) => {
                EventView::RelayRemoving { relay: name_of(controller, *relay) }
            }
            Event::RelayRemoved { name, .. } => EventView::RelayRemoved { relay: name.to_string() },
            Event::LinkAdded(link) => EventView::LinkAdded { link: link.0 },
            Event::LinkRemoving(link) => EventView::LinkRemoving { link: link.0 },
            Event::LinkKept(link) => EventView::LinkKept { link: link.0 },
            Event::LinkRemoved(link) => EventView::LinkRemoved { link: link.0 },
            Event::LinkUp(link) => EventView::LinkUp { link: link.0 },
            Event::LinkDown(link) => EventView::LinkDown { link: link.0 },
            Event::LinkDamped(link) => EventView::LinkDamped { link: link.0 },
            Event::WorldCreated(id) => EventView::WorldCreated { world: world(id) },
            Event::WorldChanged(id) => EventView::WorldChanged { world: world(id) },
            Event::AreasChanged { world: id, areas } => {
                EventView::AreasChanged { world: world(id), step: areas.step }
            }
            Event::WorldClosing(id) => EventView::WorldClosing { world: world(id) },
            Event::WorldDeleted { name, .. } => EventView::WorldDeleted { world: name.to_string() },
        }
    }
}

fn not_let_in(world: String, why: &Refusal, times: u64) -> EventView {
    let Wrong { what: why, place, asked, free, .. } = *Problem::from(why.clone()).error;
    EventView::NotLetIn { world, place, why, asked, free, times }
}
