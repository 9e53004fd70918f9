//! Changes of worlds.

use crate::body::{Budget, name};
use crate::problem::Problem;
use crate::worlds::{ChannelView, CoreRule, Mode, Protection, WorldView, channels, mode, world};
use canopy_control::{Controller, WorldChanges};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What of a world is to change; what is left out stays.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorldChange {
    /// All its channels from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<ChannelView>>,
    /// The highest level.
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
}

/// Where a world is moved to.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MoveAsk {
    /// The relay that is to be the root of its trees; without it, the best is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// Moves all comtrees of a world to the least costly trees, without loss. The answer is the world as it is
/// when that begins; it takes some seconds for each relay that gets another parent.
///
/// # Errors
/// There is no such world or relay, it is on its way already, or a link has too little left for what is
/// on the way.
pub fn move_world(
    controller: &mut Controller,
    of: &str,
    ask: &MoveAsk,
) -> Result<WorldView, Problem> {
    let root = ask.root.as_deref().map(|root| name("root", root)).transpose()?;
    let root = root.map(|root| controller.relay_named(&root)).transpose()?.map(|relay| relay.id);
    controller.move_world(&name("world", of)?, root)?;
    world(controller, of)
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
    let changes = WorldChanges {
        channels: ask.channels.as_deref().map(channels).transpose()?,
        levels: ask.levels,
        mode: asked,
        downlink: ask.downlink.map(Into::into),
        default: ask.budget.map(|budget| budget.limits("budget")).transpose()?,
        core: ask.core.map(Into::into),
    };
    controller.set_world(&name("world", of)?, changes)?;
    world(controller, of)
}
