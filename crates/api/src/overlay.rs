//! The overlay in one look: relays, links with what is reserved of them and sent over them, and the trees of a world
//! with the links of its meshes.

use crate::links::{LinkView, links};
use crate::relays::{RelayView, relays};
use crate::worlds::{ComtreeView, comtree_view};
use canopy_control::{Account, Controller, LinkId, MemberState, RelayId, World, WorldId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// The most worlds that are named.
const MOST_WORLDS: usize = 200;

/// Whose trees are shown.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OverlayAsk {
    /// The world's name; the world with the most members if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<String>,
}

/// The overlay.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct Overlay {
    /// All relays, in order of their numbers.
    pub relays: Vec<RelayView>,
    /// All links, in order of their numbers.
    pub links: Vec<LinkOnMap>,
    /// How many worlds there are.
    pub world_count: usize,
    /// The worlds with the most members, at most 200.
    pub worlds: Vec<WorldName>,
    /// The world that was asked for; if none was, the one with the most members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<WorldOnMap>,
}

/// A link, what is reserved of it, and what is sent over it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct LinkOnMap {
    /// The link.
    #[serde(flatten)]
    pub link: LinkView,
    /// What is reserved of all worlds, bits a second: from the first end, and from the second.
    pub reserved: [u64; 2],
    /// What is sent over it, bits a second of UDP payload: by the first end, and by the second. Null if that has not
    /// said so, as relays of earlier releases do not.
    #[serde(default)]
    pub load: [Option<u64>; 2],
}

/// A world's name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct WorldName {
    /// The name.
    pub name: String,
    /// How many members are in it.
    pub members: usize,
}

/// A world's trees; where its core is a mesh, with the links of that as `peers`.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WorldOnMap {
    /// Its name.
    pub name: String,
    /// Its comtrees.
    pub comtrees: Vec<ComtreeView>,
}

/// The overlay, with the trees of the world of this name, if there is such a world.
pub fn overlay(controller: &Controller, world: Option<&str>) -> Overlay {
    let mut members: BTreeMap<WorldId, usize> = BTreeMap::new();
    for member in controller.members().filter(|member| member.state != MemberState::Resting) {
        *members.entry(member.world).or_default() += 1;
    }
    let count = |world: &World| members.get(&world.id).copied().unwrap_or(0);
    let mut worlds: Vec<&World> = controller.worlds().collect();
    worlds.sort_by_key(|world| (Reverse(count(world)), world.id));
    let shown = match world {
        Some(name) => worlds.iter().find(|world| world.name.as_str() == name),
        None => worlds.first(),
    };
    Overlay {
        relays: relays(controller).relays,
        links: links_on_map(controller),
        world_count: worlds.len(),
        world: shown.map(|world| WorldOnMap {
            name: world.name.to_string(),
            comtrees: world.comtrees.iter().map(|id| comtree_view(controller, *id)).collect(),
        }),
        worlds: worlds
            .into_iter()
            .take(MOST_WORLDS)
            .map(|world| WorldName { name: world.name.to_string(), members: count(world) })
            .collect(),
    }
}

fn links_on_map(controller: &Controller) -> Vec<LinkOnMap> {
    let reserved: BTreeMap<(LinkId, RelayId), u64> = controller
        .accounts()
        .filter_map(|(account, _, reserved)| match account {
            Account::Link(link, from) => Some(((link, from), reserved.bits as u64)),
            _ => None,
        })
        .collect();
    let ends = controller.links().map(|(link, _)| (link.id, link.ends));
    let views = links(controller).links.into_iter().zip(ends);
    let on_map = |(link, (id, ends)): (LinkView, (LinkId, [RelayId; 2]))| LinkOnMap {
        link,
        reserved: ends.map(|end| reserved.get(&(id, end)).copied().unwrap_or(0)),
        load: ends.map(|end| controller.load(id, end)),
    };
    views.map(on_map).collect()
}
