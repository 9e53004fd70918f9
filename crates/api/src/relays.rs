//! Relays: listed, drained, removed, and let in again.

use crate::body::{Budget, hex, name};
use crate::problem::Problem;
use crate::removal::RemovalAsk;
use canopy_control::{Account, Controller, MemberState, Relay, RelayId, RelayState, RemovedRelay};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

/// All relays.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Relays {
    /// In order of their numbers.
    pub relays: Vec<RelayView>,
    /// Those that were removed, and may not register again.
    #[serde(default)]
    pub removed: Vec<RemovedView>,
}

/// A relay that was removed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RemovedView {
    /// Its name.
    pub name: String,
    /// The number that it had.
    pub id: u16,
    /// Its public key, 64 hexadecimal digits.
    pub key: String,
}

/// A relay.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RelayView {
    /// Its name.
    pub name: String,
    /// Its number, which is its site on every comtree.
    pub id: u16,
    /// Its public key, 64 hexadecimal digits.
    pub key: String,
    /// Where participants and other relays reach it.
    pub address: String,
    /// What it is about: `joining`, `up`, `draining` or `gone`.
    pub state: String,
    /// Whether it is being removed: it drains, and goes once its members and worlds are elsewhere.
    #[serde(default)]
    pub removing: bool,
    /// What it can send (down) and receive (up) altogether.
    pub uplink: Budget,
    /// How many members it has room for.
    pub places: u32,
    /// How many of its places are taken.
    pub taken: u32,
    /// How many members it serves, in all worlds.
    pub members: usize,
    /// How many comtrees lead over it, or will when a move that is under way is done.
    #[serde(default)]
    pub comtrees: usize,
}

/// All relays.
pub fn relays(controller: &Controller) -> Relays {
    let mut served: BTreeMap<RelayId, usize> = BTreeMap::new();
    for member in controller.members().filter(|member| member.state != MemberState::Resting) {
        *served.entry(member.relay).or_default() += 1;
    }
    let taken: BTreeMap<RelayId, u32> = controller
        .accounts()
        .filter_map(|(account, _, reserved)| match account {
            Account::Places(relay) => Some((relay, reserved.bits as u32)),
            _ => None,
        })
        .collect();
    let carried = comtrees_over(controller);
    let view = |relay: &Relay| {
        let (members, taken) = (served.get(&relay.id), taken.get(&relay.id));
        let view = view(relay, members.copied().unwrap_or(0), taken.copied().unwrap_or(0));
        RelayView { comtrees: carried.get(&relay.id).copied().unwrap_or(0), ..view }
    };
    let gone = |of: &RemovedRelay| RemovedView {
        name: of.name.to_string(),
        id: of.id.0,
        key: hex(&of.key),
    };
    let removed = controller.removed_relays().map(gone).collect();
    Relays { relays: controller.relays().map(view).collect(), removed }
}

/// How many comtrees lead over each relay: over the tree that they have, or one that they are to have.
fn comtrees_over(controller: &Controller) -> BTreeMap<RelayId, usize> {
    let mut carried: BTreeMap<RelayId, usize> = BTreeMap::new();
    for comtree in controller.worlds().flat_map(|world| &world.comtrees) {
        let hops = controller.trees_on_the_way(*comtree).into_iter().flat_map(|tree| tree.hops);
        let relays: BTreeSet<RelayId> = hops.map(|hop| hop.relay).collect();
        for relay in relays {
            *carried.entry(relay).or_default() += 1;
        }
    }
    carried
}

/// The relay of this name.
///
/// # Errors
/// There is none.
pub fn relay(controller: &Controller, of: &str) -> Result<RelayView, Problem> {
    let name = controller.relay_named(&name("relay", of)?)?.name.to_string();
    let found = relays(controller).relays.into_iter().find(|relay| relay.name == name);
    found.ok_or_else(|| {
        Problem::missing(&format!("relay {name}"), "there is none", "see which there are")
    })
}

/// Lets a relay take nobody new any more, or again. One that takes members again is not removed.
///
/// # Errors
/// There is no such relay, or it is not running.
pub fn drain(controller: &mut Controller, of: &str, drains: bool) -> Result<RelayView, Problem> {
    let found = controller.relay_named(&name("relay", of)?)?;
    let (id, state, removing) = (found.id, found.state, found.removing);
    let keeps = removing && !drains;
    if !keeps && matches!(state, RelayState::Joining | RelayState::Gone) {
        let what = format!("the relay is {}", state_of(state));
        let place = format!("relay {of}");
        return Err(Problem::new(409, what, &place, "wait until it is up, then ask again"));
    }
    controller.drain(id, drains)?;
    relay(controller, of)
}

/// Takes a relay away for good, with its links. Its members and worlds move to others first, without loss. Its number is
/// not given again. Returns whether it is gone already.
///
/// # Errors
/// There is no such relay, worlds cannot do without it, or it serves members and is to go at once.
pub fn remove_relay(
    controller: &mut Controller,
    of: &str,
    ask: &RemovalAsk,
) -> Result<bool, Problem> {
    let id = controller.relay_named(&name("relay", of)?)?.id;
    match ask.force {
        true => controller.remove_relay_at_once(id)?,
        false => controller.remove_relay(id)?,
    }
    Ok(controller.relay_of(id).is_none())
}

/// Lets relays of this name register again that were removed.
///
/// # Errors
/// None of that name was removed.
pub fn allow_relay(controller: &mut Controller, of: &str) -> Result<(), Problem> {
    Ok(controller.allow_relay(&name("relay", of)?)?)
}

/// A relay's name, or its number if it has been removed.
pub(crate) fn name_of(controller: &Controller, id: RelayId) -> String {
    let relay = controller.relay_of(id);
    relay.map_or_else(|| id.0.to_string(), |relay| relay.name.to_string())
}

fn state_of(state: RelayState) -> &'static str {
    match state {
        RelayState::Joining => "joining",
        RelayState::Up => "up",
        RelayState::Draining => "draining",
        RelayState::Gone => "gone",
    }
}

fn view(relay: &Relay, members: usize, taken: u32) -> RelayView {
    // What the relay receives comes up to it.
    let uplink = canopy_plan::Limits { send: relay.uplink.receive, receive: relay.uplink.send };
    RelayView {
        name: relay.name.to_string(),
        id: relay.id.0,
        key: hex(&relay.key),
        address: relay.native.to_string(),
        state: state_of(relay.state).to_owned(),
        removing: relay.removing,
        uplink: uplink.into(),
        places: relay.places,
        taken,
        members,
        comtrees: 0,
    }
}
