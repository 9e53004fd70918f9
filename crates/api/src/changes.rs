//! Changes of worlds.

use crate::body::{Budget, name};
use crate::problem::Problem;
use crate::sharing::{ComtreeBudget, sharing};
use crate::worlds::{ChannelView, CoreRule, Mode, Protection, WorldView, channels, mode, world};
use canopy_control::{Controller, WorldChanges};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What of a world is to change; what is left out stays.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorldChange {
    /// All its channels from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<ChannelView>>,
    /// The highest level that members publish at and subscribe to. Who is in has it with the next renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<u8>,
    /// When updates leave a relay; only while the world has no members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// How long a period is in the mode `periodic`, milliseconds, 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_ms: Option<u16>,
    /// How updates to participants are protected; only while the world has no members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downlink: Option<Protection>,
    /// What a member may send and be sent that asks for nothing itself. Those who are in keep what
    /// they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Which relays of a comtree are its core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreRule>,
    /// Whoever is over its budget still gets an update so often of each publisher in its groups, milliseconds,
    /// 100 to 60000. It holds at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_ms: Option<u32>,
    /// Whether, over a budget, updates of higher levels go beyond the floor only where none of a lower level waits. It holds at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels_first: Option<bool>,
    /// What the members of a comtree have together at a relay; all four numbers. It holds at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comtree_budget: Option<ComtreeBudget>,
}

/// Changes a world.
///
/// # Errors
/// There is none of this name, a value is not allowed, what is to change cannot while there are
/// members, or a link has too little left for the core.
pub fn set_world(
    controller: &mut Controller,
    of: &str,
    ask: &WorldChange,
) -> Result<WorldView, Problem> {
    let asked = match (ask.mode, ask.tick_ms) {
        (None, None) => None,
        // A period alone says which mode is meant.
        (asked, tick_ms) => Some(mode(asked.unwrap_or(Mode::Periodic), tick_ms)?),
    };
    let name = name("world", of)?;
    let before = controller.world(&name)?.sharing;
    let changes = WorldChanges {
        channels: ask.channels.as_deref().map(channels).transpose()?,
        levels: ask.levels,
        mode: asked,
        downlink: ask.downlink.map(Into::into),
        default: ask.budget.map(|budget| budget.limits("budget")).transpose()?,
        core: ask.core.map(Into::into),
        sharing: Some(sharing(before, ask.floor_ms, ask.levels_first, ask.comtree_budget)?),
    };
    controller.set_world(&name, changes)?;
    world(controller, of)
}
