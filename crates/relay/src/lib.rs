//! The data plane of one relay, sans-IO.
//!
//! A [`Relay`] is what one data thread runs: datagrams in through
//! [`Relay::handle_datagram`], time in through [`Relay::handle_timeout`], datagrams out through
//! [`Relay::transmit`]. An update's way is straight: check → session → group → pending; then,
//! when the mode says so, pending → cohorts of receivers → one burst per cohort → a [`SendBatch`].
//! Nothing on that way allocates, waits or logs; every table is bounded, and what is let go is
//! counted under its [`canopy_wire::DropReason`].
#![forbid(unsafe_code)]

mod burst;
mod cohorts;
mod counters;
mod fanout;
mod pending;
mod relay;
mod subscriptions;

pub use canopy_batch::SendBatch;
pub use counters::Counters;
pub use relay::{Intake, Mode, Relay, RelayConfig};
pub use subscriptions::TableLimits;
