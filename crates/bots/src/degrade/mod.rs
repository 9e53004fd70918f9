//! What a recorded crowd looks like to viewers who cannot be sent all of it: each walker publishes to a
//! group of its own, each viewer subscribes to all of them with weights by distance and has a budget;
//! what comes is held against the fluid model of a fair share.
//!
//! The engine of `canopy lab degrade`. It never asks the relay what it did.

mod bins;
mod crowd;
#[cfg(test)]
mod fixture;
mod flows;
mod measure;
mod peer;
mod recording;
mod replay;
mod rivals;
mod script;
mod viewer;
#[cfg(test)]
mod virtual_time;

use crate::config::RelayTarget;
use crate::error::CrowdError;
use crate::position::MIN_PAYLOAD;
pub use bins::Row;
use canopy_wire::{Address, Comtree, MAX_UPDATE, Weight};
pub use crowd::run;
pub use measure::{BudgetSummary, Measured, Scheme, Shares, Summary, measure};
pub use recording::{Published, Recording, Viewed, Weighed};
pub use script::{Phases, Script};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// How a crowd is shown to viewers with budgets.
#[derive(Clone, Debug)]
pub struct DegradeConfig {
    /// The relay that the walkers join.
    pub walkers_at: RelayTarget,
    /// The relay that the viewers join; it may be the same.
    pub viewers_at: RelayTarget,
    /// The comtree that both join.
    pub comtree: Comtree,
    /// Each viewer's budget in percent of what it would be sent without one. There are so many viewers
    /// at each place.
    pub budgets: Vec<f64>,
    /// Whether the budget is not each viewer's, but that of a link which all viewers are behind. Then
    /// there is one budget only.
    pub is_shared: bool,
    /// Bytes of an update, [`MIN_PAYLOAD`] to [`MAX_UPDATE`].
    pub bytes: usize,
    /// How much something at a distance in metres matters.
    pub weight_of: fn(f64) -> Weight,
    /// The relay's tick.
    pub tick: Duration,
    /// Updates a second that the relay grants every flow.
    pub floor: f64,
}

impl DegradeConfig {
    /// Checks what needs no trace and no relay.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), CrowdError> {
        if !(MIN_PAYLOAD..=MAX_UPDATE).contains(&self.bytes) {
            return Err(CrowdError::Bytes(self.bytes));
        }
        check_budgets(&self.budgets)
    }
}

/// Checks budgets in percent of the demand.
///
/// # Errors
/// The first that is not above 0 and up to 100.
pub fn check_budgets(budgets: &[f64]) -> Result<(), CrowdError> {
    let is_wrong = |budget: &f64| !(*budget > 0.0 && *budget <= 100.0);
    match budgets.iter().copied().find(is_wrong) {
        Some(budget) => Err(CrowdError::Budget(budget)),
        None => Ok(()),
    }
}

/// What a viewer may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Its address on the comtree.
    pub viewer: Address,
    /// Bits a second, of UDP payload.
    pub bits: u64,
}

/// What goes on in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The walkers and viewers join.
    Joining {
        /// How many they are.
        participants: usize,
    },
    /// Viewers are sent everything, to see how much that is.
    Unbounded,
    /// Budgets have been set; what they do is not counted yet.
    Settling,
    /// What comes is counted.
    Measuring {
        /// Seconds of it that have passed.
        seconds: u64,
        /// Seconds of it in all.
        of: u64,
    },
}

impl Display for Stage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Joining { participants } => write!(f, "{participants} walkers and viewers join"),
            Stage::Unbounded => f.write_str("without budgets, to see what the demand is"),
            Stage::Settling => f.write_str("the budgets begin"),
            Stage::Measuring { seconds, of } => write!(f, "measuring, {seconds} of {of} s"),
        }
    }
}
