//! How far one hears, and what.

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
