//! Crowds: every walker of a recorded or generated trace is a participant of its own, on a socket
//! of its own, publishing its position to the group of its grid cell and subscribed to the cells
//! around it; an oracle judges every delivery.
//!
//! The engine of `canopy bots` and `canopy demo`. Never asks the relay what it did: what must
//! arrive follows from the trace and from acknowledged subscriptions alone.
#![forbid(unsafe_code)]

mod arrival;
mod config;
pub mod degrade;
mod driver;
mod error;
mod grid;
mod issuer;
mod joining;
mod participant;
mod position;
#[cfg(test)]
mod recorded;
mod report;
mod trace;
mod view;
mod walker;

pub use config::{Bind, CrowdConfig, DEFAULT_HOP, IsKilled, Killed, RelayTarget, Seats};
pub use driver::{COARSE_EVERY, Progress, run};
pub use error::CrowdError;
pub use grid::{Cell, Grid, GridError};
pub use issuer::Issuer;
pub use joining::relays_of;
pub use position::{MIN_PAYLOAD, Position};
pub use report::{Ages, Missing, Outage, RelayShare, Report, Tenth, Verdict};
pub use trace::{Generated, Row, Trace, TraceError};
pub use view::{Heard, Limit, Snapshot, Totals, View, Viewer, Watch};
