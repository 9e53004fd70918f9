//! That one of many relays is flooded at rate, and with what.

use super::config::{OverlayConfig, OverlaySabotage};
use crate::flood::{Floods, Setting, What};
use crate::sabotage::Sabotage;
use crate::scenario::{Stream, stream};
use canopy_relay::Inlet;
use canopy_wire::{Comtree, Lane};
use rand::RngExt;
use std::time::Duration;

/// A relay reads and sends so many turns after an update arrived at most.
const TURNS: u32 = 4;

/// A relay that is flooded.
#[derive(Clone, Debug)]
pub(crate) struct Flooded {
    pub(crate) relay: usize,
    pub(crate) floods: Floods,
}

/// Whether a relay is flooded.
pub(crate) fn is_drawn(config: &OverlayConfig) -> bool {
    let is_drawn = stream(config.seed, Stream::Floods).random_bool(0.1);
    let is_free = config.sabotage.is_none() && config.roles_change != Some(true);
    config.floods.unwrap_or(is_drawn && is_free)
}

/// What of floods is sabotaged.
pub(crate) fn sabotage_of(config: &OverlayConfig) -> Option<Sabotage> {
    match config.sabotage {
        Some(OverlaySabotage::Access(sabotage)) => Some(sabotage).filter(|one| one.is_of_floods()),
        _ => None,
    }
}

impl Flooded {
    /// One of these relays is flooded.
    pub(crate) fn draw(seed: u64, relays: &[usize], setting: &Setting) -> Flooded {
        let rng = &mut stream(seed, Stream::Floods);
        // Those before tell whether there are any.
        rng.set_word_pos(1 << 20);
        let relay = relays[rng.random_range(0..relays.len())];
        Flooded { relay, floods: Floods::draw(setting, rng) }
    }

    /// How much longer than otherwise an update of a comtree takes at most through the relay. On a lane that is flooded it
    /// may wait behind a receive buffer full of the flood, which another flood leaves half of the turns.
    pub(crate) fn delays(&self, comtree: Comtree) -> Duration {
        let Floods { per_datagram, receive_queue, .. } = self.floods;
        let buffer = per_datagram * receive_queue as u32 * 2;
        let is_behind = self.floods_lane_of(comtree);
        self.floods.longest_turn() * TURNS + if is_behind { buffer } else { Duration::ZERO }
    }

    /// Whether what a comtree sends comes by a lane that is flooded: its receive buffer may be full.
    pub(crate) fn floods_lane_of(&self, comtree: Comtree) -> bool {
        self.is_flooded(Inlet::Lane(Lane::of(comtree)))
    }

    /// Whether somebody floods it with changes of subscriptions.
    pub(crate) fn changes_subscriptions(&self) -> bool {
        self.floods.each.iter().any(|flood| flood.what == What::Subscriptions)
    }

    /// The inlets of the relay that are flooded.
    pub(crate) fn is_flooded(&self, inlet: Inlet) -> bool {
        self.floods.each.iter().any(|flood| match flood.what {
            What::Updates | What::Subscriptions => inlet == Inlet::Lane(Lane::of(flood.comtree)),
            What::Hellos | What::Garbage => inlet == Inlet::Strangers,
        })
    }
}
