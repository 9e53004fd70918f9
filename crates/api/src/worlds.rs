//! Worlds: created, listed, shown, deleted.

use crate::body::{Budget, name};
use crate::problem::Problem;
use crate::sharing::{ComtreeBudget, sharing};
use canopy_control::{
    Channel, Controller, Core, Downlink, Explanation, LinkOnTree, MOST_COMTREES, MemberState,
    RelayOnTree, Sharing, World,
};
use canopy_wire::{Comtree, Group};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most channels of a world.
const MOST_CHANNELS: usize = 64;

/// A world to be created.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorld {
    /// Its name: 1 to 64 of a–z, 0–9, '-', '_', '.' and '/'.
    #[schema(example = "lobby")]
    pub name: String,
    /// How many comtrees it has, 1 to 8.
    #[serde(default = "one")]
    pub comtrees: u8,
    /// Its channels: named families of groups. They are names only: a member reaches other groups, too,
    /// unless its credential names groups.
    #[serde(default)]
    pub channels: Vec<ChannelView>,
    /// The highest level that members publish at and subscribe to: 0 if all updates are equally important.
    #[serde(default)]
    pub levels: u8,
    /// When updates leave the relays, whatever their own mode.
    #[serde(default)]
    pub mode: Mode,
    /// How long a period is in the mode `periodic`, milliseconds, 1 to 1000. All worlds have at most 14 different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_ms: Option<u16>,
    /// How updates to participants are protected.
    #[serde(default)]
    pub downlink: Protection,
    /// What a member may send and be sent that asks for nothing itself.
    #[serde(default)]
    pub budget: Budget,
    /// Which relays of a comtree are its core, where all updates pass.
    #[serde(default)]
    pub core: CoreRule,
    /// Whoever is over its budget still gets an update so often of each publisher in its groups, milliseconds,
    /// 100 to 60000; 2000 unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_ms: Option<u32>,
    /// Whether, over a budget, updates of higher levels go beyond the floor only where none of a lower level waits.
    #[serde(default)]
    pub levels_first: bool,
    /// What the members of a comtree have together at a relay.
    #[serde(default)]
    pub comtree_budget: ComtreeBudget,
}

/// A named family of groups.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelView {
    /// Its name.
    pub name: String,
    /// Its first group.
    pub first: u32,
    /// How many groups it has, one after another.
    pub groups: u32,
}

/// When updates leave a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// At once.
    #[default]
    Immediate,
    /// Once a period.
    Periodic,
}

/// How updates to participants are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// Each copy with its receiver's key.
    #[default]
    Member,
    /// Once, with a key that all members have.
    Group,
    /// Not at all.
    None,
}

/// Which relays of a comtree are its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CoreRule {
    /// The root of its tree.
    #[default]
    Center,
    /// The root and its neighbours.
    CenterAndNeighbours,
    /// All of them.
    All,
    /// As many relays as have a link with each other: they hear each other directly.
    Mesh,
}

/// All worlds.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Worlds {
    /// In order of their numbers.
    pub worlds: Vec<WorldView>,
}

/// A world.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WorldView {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Its channels.
    pub channels: Vec<ChannelView>,
    /// The highest level that members publish at and subscribe to.
    pub levels: u8,
    /// When updates leave a relay.
    pub mode: Mode,
    /// How long a period is, milliseconds; nothing in the mode `immediate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_ms: Option<u16>,
    /// How updates to participants are protected.
    pub downlink: Protection,
    /// What a member may send and be sent that asks for nothing itself.
    pub budget: Budget,
    /// Which relays of a comtree are its core.
    pub core: CoreRule,
    /// Whoever is over its budget still gets an update so often of each publisher in its groups, milliseconds.
    #[serde(default = "floor")]
    pub floor_ms: u32,
    /// Whether, over a budget, updates of higher levels go beyond the floor only where none of a lower level waits.
    #[serde(default)]
    pub levels_first: bool,
    /// What the members of a comtree have together at a relay.
    #[serde(default)]
    pub comtree_budget: ComtreeBudget,
    /// Whether it is being deleted.
    pub closing: bool,
    /// How many members are in it.
    pub members: usize,
    /// Its comtrees, with their trees.
    pub comtrees: Vec<ComtreeView>,
}

/// A comtree as it runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ComtreeView {
    /// Its number on the wire.
    pub id: u32,
    /// Its tree, each relay behind the one above it; nothing while it has no members.
    pub tree: Vec<HopView>,
    /// What the tree costs: the reserved bits a second of each link, both ways, times its length in
    /// kilometres of fibre.
    pub cost: f64,
    /// Why it has this tree.
    pub why: String,
    /// Why it kept that when a better one was looked for last, if it has not changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Why it has no tree that is whole, if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// How a relay hangs on a comtree.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct HopView {
    /// The relay's name.
    pub relay: String,
    /// How many members it serves there.
    pub members: u32,
    /// Whether it is in the core.
    pub core: bool,
    /// The name of the relay above; nothing at the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
    /// The number of the link that leads there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
    /// What is reserved of that link, and what is free of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<LinkShare>,
    /// Its links with relays of a meshed core that are listed before it, other than the one above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerView>,
    /// Why it is not in the core, if the world asks for a mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<String>,
}

/// A relay's link with another of a meshed core.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PeerView {
    /// The other relay's name.
    pub relay: String,
    /// The link's number.
    pub link: u32,
    /// What is reserved of the link, and what is free; up is towards the other relay.
    pub reserved: LinkShare,
}

/// What a comtree has of a link, bits a second.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub struct LinkShare {
    /// The measured time one way, microseconds.
    pub delay_us: u32,
    /// What is reserved for the comtree towards the relay above.
    pub up_bits: u64,
    /// What is reserved for it from there.
    pub down_bits: u64,
    /// What is free towards the relay above.
    pub free_up_bits: u64,
    /// What is free from there.
    pub free_down_bits: u64,
}

fn one() -> u8 {
    1
}

fn floor() -> u32 {
    Sharing::default().floor_ms.into()
}

/// Creates a world.
///
/// # Errors
/// A value is not allowed, or there is a world of that name.
pub fn create_world(controller: &mut Controller, ask: &NewWorld) -> Result<WorldView, Problem> {
    let name = name("name", &ask.name)?;
    if !(1..=MOST_COMTREES).contains(&ask.comtrees) {
        let remedy = format!("give 1 to {MOST_COMTREES}");
        return Err(Problem::value(
            "comtrees",
            format!("{} is not allowed", ask.comtrees),
            &remedy,
        ));
    }
    let (first, budget) = (Some(ask.levels_first), Some(ask.comtree_budget));
    controller.create_world(canopy_control::NewWorld {
        name: name.clone(),
        comtrees: ask.comtrees,
        channels: channels(&ask.channels)?,
        levels: ask.levels,
        mode: mode(ask.mode, ask.tick_ms)?,
        downlink: ask.downlink.into(),
        default: ask.budget.limits("budget")?,
        core: ask.core.into(),
        sharing: sharing(Sharing::default(), ask.floor_ms, first, budget)?,
    })?;
    world(controller, name.as_str())
}

/// All worlds.
pub fn worlds(controller: &Controller) -> Worlds {
    Worlds { worlds: controller.worlds().map(|world| view(controller, world)).collect() }
}

/// The world of this name.
///
/// # Errors
/// There is none.
pub fn world(controller: &Controller, of: &str) -> Result<WorldView, Problem> {
    let world = controller.world(&name("world", of)?)?;
    Ok(view(controller, world))
}

/// Deletes a world: nobody enters it any more, and all its members are sent away. It is gone when they
/// are.
///
/// # Errors
/// There is none of this name.
pub fn delete_world(controller: &mut Controller, of: &str) -> Result<(), Problem> {
    Ok(controller.delete_world(&name("world", of)?)?)
}

pub(crate) fn mode(mode: Mode, tick_ms: Option<u16>) -> Result<canopy_control::Mode, Problem> {
    match (mode, tick_ms) {
        (Mode::Immediate, None) => Ok(canopy_control::Mode::Immediate),
        (Mode::Immediate, Some(_)) => Err(Problem::value(
            "tick_ms",
            "the mode immediate has no period",
            "leave it out, or ask for the mode periodic",
        )),
        (Mode::Periodic, Some(tick_ms @ 1..=1000)) => Ok(canopy_control::Mode::Periodic(tick_ms)),
        (Mode::Periodic, _) => Err(Problem::value(
            "tick_ms",
            "the mode periodic needs a period",
            "give 1 to 1000 milliseconds",
        )),
    }
}

pub(crate) fn channels(asked: &[ChannelView]) -> Result<Vec<Channel>, Problem> {
    if asked.len() > MOST_CHANNELS {
        let what = format!("{} channels are too many", asked.len());
        return Err(Problem::value("channels", what, &format!("give at most {MOST_CHANNELS}")));
    }
    let mut channels: Vec<Channel> = Vec::new();
    for (place, ChannelView { name: text, first, groups }) in asked.iter().enumerate() {
        let field = format!("channels[{place}]");
        let name = name(&format!("{field}.name"), text)?;
        if channels.iter().any(|channel| channel.name == name) {
            let what = format!("the channel {name} is there twice");
            return Err(Problem::value(&field, what, "give each a name of its own"));
        }
        let end = u64::from(*first) + u64::from(*groups);
        if *groups == 0 || end > u64::from(Group::MAX) + 1 {
            let what = format!("the groups {first} to {end} are not allowed");
            let remedy = format!("give at least one, the last at most {}", Group::MAX);
            return Err(Problem::value(&field, what, &remedy));
        }
        channels.push(Channel { name, first: *first, groups: *groups });
    }
    Ok(channels)
}

fn view(controller: &Controller, world: &World) -> WorldView {
    let (mode, tick_ms) = match world.mode {
        canopy_control::Mode::Immediate => (Mode::Immediate, None),
        canopy_control::Mode::Periodic(tick_ms) => (Mode::Periodic, Some(tick_ms)),
    };
    let members = controller.members_of(world.id, None);
    WorldView {
        name: world.name.to_string(),
        id: world.id.0,
        channels: world.channels.iter().map(ChannelView::from).collect(),
        levels: world.levels,
        mode,
        tick_ms,
        downlink: match world.downlink {
            Downlink::Member => Protection::Member,
            Downlink::Group => Protection::Group,
            Downlink::None => Protection::None,
        },
        budget: world.default.into(),
        core: match world.core {
            Core::Center => CoreRule::Center,
            Core::CenterAndNeighbours => CoreRule::CenterAndNeighbours,
            Core::All => CoreRule::All,
            Core::Mesh => CoreRule::Mesh,
        },
        floor_ms: world.sharing.floor_ms.into(),
        levels_first: world.sharing.levels_first,
        comtree_budget: world.sharing.together.into(),
        closing: world.closing,
        members: members.filter(|member| member.state != MemberState::Resting).count(),
        comtrees: world.comtrees.iter().map(|comtree| comtree_view(controller, *comtree)).collect(),
    }
}

pub(crate) fn comtree_view(controller: &Controller, comtree: Comtree) -> ComtreeView {
    let name = |id| crate::relays::name_of(controller, id);
    let Some(Explanation { relays, cost, why, kept, broken, .. }) = controller.explain(comtree)
    else {
        let (tree, why) = (Vec::new(), String::new());
        return ComtreeView { id: comtree.0, tree, cost: 0.0, why, kept: None, broken: None };
    };
    let share = |of: &LinkOnTree| LinkShare {
        delay_us: of.delay_us,
        up_bits: of.up.bits as u64,
        down_bits: of.down.bits as u64,
        free_up_bits: of.free_up.bits as u64,
        free_down_bits: of.free_down.bits as u64,
    };
    let peer =
        |of: &LinkOnTree| PeerView { relay: name(of.relay), link: of.link.0, reserved: share(of) };
    let hop = |at: &RelayOnTree| HopView {
        relay: name(at.relay),
        members: at.members,
        core: at.core,
        above: at.above.map(|above| name(above.relay)),
        link: at.above.map(|above| above.link.0),
        reserved: at.above.as_ref().map(share),
        peers: at.peers.iter().map(peer).collect(),
        outside: at.outside.clone(),
    };
    let tree = relays.iter().map(hop).collect();
    ComtreeView { id: comtree.0, tree, cost, why, kept, broken }
}

impl From<&Channel> for ChannelView {
    fn from(channel: &Channel) -> ChannelView {
        let Channel { name, first, groups } = channel;
        ChannelView { name: name.to_string(), first: *first, groups: *groups }
    }
}

impl From<Protection> for Downlink {
    fn from(protection: Protection) -> Downlink {
        match protection {
            Protection::Member => Downlink::Member,
            Protection::Group => Downlink::Group,
            Protection::None => Downlink::None,
        }
    }
}

impl From<CoreRule> for Core {
    fn from(rule: CoreRule) -> Core {
        match rule {
            CoreRule::Center => Core::Center,
            CoreRule::CenterAndNeighbours => Core::CenterAndNeighbours,
            CoreRule::All => Core::All,
            CoreRule::Mesh => Core::Mesh,
        }
    }
}
