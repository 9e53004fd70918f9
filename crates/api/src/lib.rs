//! The controller's HTTP API without HTTP: what may be asked, what that does on the controller, and
//! what is answered. The daemon puts it on a socket, the command line reads its answers, and a fuzzer
//! sends it anything.
//!
//! Each question is a function on the [`Controller`](canopy_control::Controller). Bodies are JSON,
//! read by [`parse`]; what is refused is told as a [`Problem`].
#![forbid(unsafe_code)]

mod areas;
mod body;
mod changes;
mod events;
mod joining;
mod links;
mod members;
mod moves;
mod overlay;
mod overview;
mod problem;
mod relays;
mod removal;
mod sharing;
mod worlds;

pub use areas::{AreaView, AreasAsk, AreasView, PhaseView, RingView, areas, ground, set_areas};
pub use body::{Budget, MOST_BODY, address, parse};
pub use changes::{WorldChange, set_world};
pub use events::EventView;
pub use joining::{Joined, RelayPlace, RelaysToMeasure, Wish, enter, joined, relays_to_measure};
pub use links::{LinkView, Links, NewLink, add_link, keep_link, links, remove_link};
pub use members::{
    KickAllAsk, KickAsk, Kicked, MOST_LISTED, MemberView, Members, MembersAsk, Nearness, NewMember,
    kick, kick_all, member, members,
};
pub use moves::{MoveAsk, MovePlanView, MovePlans, PlannedHop, TreeMethod, move_world, plan_move};
pub use overlay::{LinkOnMap, Overlay, OverlayAsk, WorldName, WorldOnMap, overlay};
pub use overview::{
    AccountView, Accounts, Amount, Health, IgnoredWords, RefusalCounts, accounts, health,
};
pub use problem::{Problem, Wrong};
pub use relays::{RelayView, Relays, RemovedView, allow_relay, drain, relay, relays, remove_relay};
pub use removal::RemovalAsk;
pub use sharing::ComtreeBudget;
pub use worlds::{
    ChannelView, ComtreeView, CoreRule, HopView, LinkShare, Mode, NewWorld, PeerView, Protection,
    WorldView, Worlds, create_world, delete_world, world, worlds,
};
