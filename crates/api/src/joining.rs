//! Whom a participant joins, and what it is told.

use crate::body::{hex, name};
use crate::members::{Nearness, time_text};
use crate::problem::Problem;
use crate::worlds::ChannelView;
use crate::{Budget, NewMember};
use canopy_control::{Account, Admission, Controller, Enter, Owner, Relay, RelayId, RelayState};
use canopy_plan::Rate;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The most relays that somebody can have measured.
const MOST_MEASURED: usize = 256;
/// The most relays that somebody is told to measure.
const MOST_TO_MEASURE: usize = 16;

/// What somebody gets that was let into a world.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Joined {
    /// The world's name.
    pub world: String,
    /// Its address on each comtree, such as `28672.64`.
    pub address: String,
    /// The relay that serves it.
    pub relay: RelayPlace,
    /// The next nearest relay; nothing if there is no other. There is no place there yet, and the token does not count there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<RelayPlace>,
    /// The token that the relay asks for.
    pub token: String,
    /// The world's comtrees, in order.
    pub comtrees: Vec<u32>,
    /// The world's channels.
    pub channels: Vec<ChannelView>,
    /// Whether the world has areas, which are told over a channel of their own.
    #[serde(default)]
    pub areas: bool,
    /// What it may send and be sent, on each comtree.
    pub budget: Budget,
    /// When its lease and its token end unless they are renewed, like `2026-11-21T20:00:00Z`.
    pub until: String,
    /// Whether its relay drains: it is asked to move to another.
    #[serde(default)]
    pub drains: bool,
    /// How long its lease lasts from this answer on, milliseconds: no clock needs to agree with the
    /// controller's.
    #[serde(default)]
    pub lease_ms: u64,
}

/// Where a relay is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct RelayPlace {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Its public key, 64 hexadecimal digits.
    pub key: String,
}

/// Relays that are near enough to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct RelaysToMeasure {
    /// In the order in which they should be tried, the emptiest first.
    pub relays: Vec<RelayPlace>,
}

/// What the controller is asked for by somebody whose credential was checked. What was measured
/// goes first; if nothing was, all relays that take members count as equally near, and the one with
/// the largest share of its places free is taken. A relay that was taken away since is passed over.
///
/// # Errors
/// A value is not allowed.
pub fn enter(controller: &Controller, world: &str, ask: &Wish<'_>) -> Result<Enter, Problem> {
    if ask.measured.len() > MOST_MEASURED {
        let what = format!("{} relays are too many", ask.measured.len());
        let remedy = format!("give the nearest {MOST_MEASURED}");
        return Err(Problem::value("measured", what, &remedy));
    }
    let near = |(place, Nearness { relay, delay_us }): (usize, &Nearness)| {
        let field = format!("measured[{place}].relay");
        let relay = controller.relay_named(&name(&field, relay)?).ok();
        Ok::<_, Problem>(relay.map(|relay| (relay.id, *delay_us)))
    };
    let measured = ask.measured.iter().enumerate().map(near);
    let measured: Vec<_> = measured.collect::<Result<_, _>>()?;
    let mut measured: Vec<(RelayId, u32)> = measured.into_iter().flatten().collect();
    if measured.is_empty() {
        measured = (0..).zip(emptiest(controller)).map(|(rank, relay)| (relay, rank)).collect();
    }
    let limits = ask.budget.map(|budget| budget.limits("budget")).transpose()?;
    Ok(Enter { limits, ..Enter::new(name("world", world)?, ask.owner, measured) })
}

/// What somebody wishes for in a world.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Who it is.
    pub owner: Owner,
    /// What it is to send and be sent; what the world gives if nothing is said.
    pub budget: Option<Budget>,
    /// How near relays are.
    pub measured: &'a [Nearness],
}

impl NewMember {
    /// What it wishes for, in the name of an owner.
    pub fn wish(&self, owner: Owner) -> Wish<'_> {
        Wish { owner, budget: self.budget, measured: &self.measured }
    }
}

/// What is told to somebody who was let in, without the token and how long the lease lasts.
///
/// # Errors
/// The relay or the world is gone meanwhile.
pub fn joined(
    controller: &Controller,
    admission: &Admission,
    ask: &Enter,
) -> Result<Joined, Problem> {
    let relay = controller.relay_of(admission.relay);
    let world = controller.world_of(admission.world);
    let (Some(relay), Some(world)) = (relay, world) else {
        let place = format!("world {}", ask.world);
        return Err(Problem::new(409, "it changed meanwhile", &place, "ask again"));
    };
    let mut nearest = ask.measured.clone();
    nearest.sort_by_key(|(relay, delay)| (*delay, *relay));
    let is_next = |next: &RelayId| {
        let state = controller.relay_of(*next).map(|relay| relay.state);
        *next != admission.relay && state == Some(RelayState::Up)
    };
    let next = nearest.into_iter().map(|(relay, _)| relay).find(is_next);
    let next = next.or_else(|| emptiest(controller).into_iter().find(is_next));
    Ok(Joined {
        world: world.name.to_string(),
        address: admission.address.to_string(),
        relay: place(relay),
        second: next.and_then(|next| controller.relay_of(next)).map(place),
        token: String::new(),
        comtrees: admission.comtrees.iter().map(|comtree| comtree.0).collect(),
        channels: world.channels.iter().map(ChannelView::from).collect(),
        areas: controller.areas(world.id).is_some(),
        budget: admission.limits.into(),
        until: time_text(admission.until),
        drains: relay.state == RelayState::Draining,
        lease_ms: 0,
    })
}

/// The relays that somebody should measure before it joins.
pub fn relays_to_measure(controller: &Controller) -> RelaysToMeasure {
    let relays = emptiest(controller).into_iter().take(MOST_TO_MEASURE);
    let relays = relays.filter_map(|relay| controller.relay_of(relay)).map(place);
    RelaysToMeasure { relays: relays.collect() }
}

/// The relays that take members, the one with the largest share of free places first.
fn emptiest(controller: &Controller) -> Vec<RelayId> {
    let taken = |most: Rate, reserved: Rate| {
        if most.bits > 0.0 { (reserved.bits / most.bits * 1e6) as u64 } else { u64::MAX }
    };
    let places: BTreeMap<RelayId, u64> = controller
        .accounts()
        .filter_map(|(account, most, reserved)| match account {
            Account::Places(relay) => Some((relay, taken(most, reserved))),
            _ => None,
        })
        .collect();
    let up = controller.relays().filter(|relay| relay.state == RelayState::Up);
    let mut relays: Vec<RelayId> = up.map(|relay| relay.id).collect();
    relays.sort_by_key(|relay| (places.get(relay).copied(), *relay));
    relays
}

fn place(relay: &Relay) -> RelayPlace {
    RelayPlace {
        name: relay.name.to_string(),
        address: relay.native.to_string(),
        key: hex(&relay.key),
    }
}
