//! The data plane of one relay, sans-IO.
//!
//! A [`Relay`] is what one data thread runs: datagrams in through
//! [`Relay::handle_datagram`], time in through [`Relay::handle_timeout`], datagrams out through
//! [`Relay::transmit`], and everything that is not traffic through [`Relay::apply`]. An update's way
//! is straight: check → port → group → pending; then, when the mode says so, pending → cohorts of
//! receivers → one burst per cohort → a [`SendBatch`]. Nothing on that way waits or logs, and nothing
//! allocates but the tables of receivers that cannot be sent everything, which grow as they fill;
//! every table is bounded, and what is let go is counted under its [`canopy_wire::DropReason`].
//!
//! [`Turn`] is the order in which a data thread does all this: the daemon's threads and the
//! simulator run the same.
#![forbid(unsafe_code)]

mod access;
mod addresses;
mod bucket;
mod budget_parts;
mod burst;
mod changes;
mod cohorts;
mod comtree_config;
mod comtrees;
mod counters;
mod dismissals;
mod doubled;
mod fanout;
mod flush_queues;
mod gate;
mod group_keys;
mod index;
mod log;
mod meters;
mod path;
mod pending;
mod places;
mod ports;
mod pulse;
mod relay;
mod replies;
mod rounds;
mod routes;
mod shape;
mod shares;
mod siblings;
mod status;
mod subscriptions;
mod succession;
mod thin;
mod timing;
mod told;
mod tree;
mod turn;

pub use access::{TokenRefusal, Trust};
pub use addresses::ADDRESS_REST;
pub use canopy_batch::SendBatch;
pub use canopy_token::UnixTime;
pub use changes::{BranchConfig, BranchId, BranchRole, Change, LinkConfig, Refusal};
pub use comtree_config::{ComtreeConfig, DEFAULT_WORLD, FIRST_ENDPOINT, MAX_COMTREES};
pub use comtrees::{ComtreeCounters, ComtreeStatus};
pub use counters::Counters;
pub use dismissals::DISMISSED_FOR;
pub use flush_queues::MAX_MODES;
pub use gate::{Gate, GateLimits};
pub use meters::{Budget, Budgets, MAX_TALKERS, PathShare, Talker};
pub use places::Places;
pub use relay::{Notice, Relay, RelayConfig};
pub use rounds::Lanes;
pub use siblings::{DATA_WORDS, MAX_THREADS, Siblings};
pub use status::{BranchStatus, GroupStatus, LinkStatus, RouteStatus, Via};
pub use subscriptions::TableLimits;
pub use thin::{Down, Fairness, LeftOutRates, MAX_THINNED, ThinnedReceiver};
pub use timing::{Mode, READ_EVERY, READ_LITTLE_EVERY};
pub use turn::{Inlet, Losses, Medium, Ready, Received, Turn, Wait};
