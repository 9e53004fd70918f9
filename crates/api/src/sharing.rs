//! What members of a world get who cannot be sent everything.

use crate::body::Budget;
use crate::problem::Problem;
use canopy_control::Sharing;
use canopy_plan::{Limits, Rate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the members of a comtree may send and be sent together at a relay. A number that is 0 is what the relay's own
/// settings say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ComtreeBudget {
    /// Bits a second to the relay.
    #[serde(default)]
    #[schema(example = 50000000)]
    pub up_bits: u64,
    /// Updates a second to the relay.
    #[serde(default)]
    #[schema(example = 20000)]
    pub up_packets: u64,
    /// Bits a second from the relay.
    #[serde(default)]
    pub down_bits: u64,
    /// Updates a second from the relay.
    #[serde(default)]
    pub down_packets: u64,
}

/// What a world has of that; what is not asked for is as before.
///
/// # Errors
/// A number is not allowed.
pub(crate) fn sharing(
    before: Sharing,
    floor_ms: Option<u32>,
    levels_first: Option<bool>,
    budget: Option<ComtreeBudget>,
) -> Result<Sharing, Problem> {
    Ok(Sharing {
        floor_ms: floor_ms.map_or(Ok(before.floor_ms), floor)?,
        levels_first: levels_first.unwrap_or(before.levels_first),
        together: budget.map_or(Ok(before.together), ComtreeBudget::limits)?,
    })
}

fn floor(asked: u32) -> Result<u16, Problem> {
    let allowed = Sharing::FLOORS_MS;
    let floor = u16::try_from(asked).ok().filter(|floor| allowed.contains(floor));
    floor.ok_or_else(|| {
        let remedy = format!("give {} to {} milliseconds", allowed.start(), allowed.end());
        Problem::value("floor_ms", format!("{asked} is not allowed"), &remedy)
    })
}

impl ComtreeBudget {
    fn limits(self) -> Result<Limits, Problem> {
        let ComtreeBudget { up_bits, up_packets, down_bits, down_packets } = self;
        let remedy = format!("give 0 to {}; 0 leaves it to the relays' settings", Rate::MOST);
        Budget { up_bits, up_packets, down_bits, down_packets }.limits_from(
            0,
            "comtree_budget",
            &remedy,
        )
    }
}

impl From<Limits> for ComtreeBudget {
    fn from(limits: Limits) -> ComtreeBudget {
        let Budget { up_bits, up_packets, down_bits, down_packets } = limits.into();
        ComtreeBudget { up_bits, up_packets, down_bits, down_packets }
    }
}
