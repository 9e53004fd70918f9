//! How far one hears, and what.

use canopy_wire::Level;
use serde::{Deserialize, Serialize};

/// Up to which level one hears what is within a radius: the affinity of the paper's players, who hear
/// everything nearby, and what matters most from afar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ring {
    /// The radius, in the world's unit.
    pub radius: f64,
    /// The level of the subscription. Detail is the higher number.
    pub level: u8,
}

/// An area that somebody hears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Up to which level.
    pub level: Level,
    /// How far the nearest place of it is, in the world's unit: 0 for who is in it.
    pub distance: f64,
}
