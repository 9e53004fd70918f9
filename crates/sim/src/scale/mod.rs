//! Worlds of growing size in which nothing breaks: what a relay holds, and what a join, a subscription,
//! a first contact and an update cost, against the number of relays.
//!
//! Every relay runs the code of the daemon's data threads, every participant that of the SDK. What only
//! whoever has a clock can tell, a [`Gauge`] tells.

mod config;
pub(crate) mod machine;
mod phases;
mod row;
mod tree;
mod world;

pub use config::{Gauge, ScaleConfig, ScaleCore};
pub use phases::run_scale;
pub use row::{ScaleRow, exponent};
