//! What the controller tells, with names instead of numbers.

use crate::relays::name_of;
use canopy_control::{Controller, Event, WorldId};
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
    /// A member that had a reservation was not let in after all.
    Refused {
        /// The world's name.
        world: String,
        /// The address that it was to have.
        address: String,
        /// Why.
        why: String,
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
            Event::Refused { world: id, address, why } => EventView::Refused {
                world: world(id),
                address: address.to_string(),
                why: why.to_string(),
            },
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
            Event::LinkDamped(link) => EventView::LinkDamped { link: link.0 },
        }
    }
}
