//! A seeded virtual world around the real relay and the real sessions, judged by a reference model.
//!
//! A seed decides everything: how many participants join, walk, publish, leave, crash and rebind,
//! what the network does to their datagrams, who attacks, whether the relay restarts. Time is
//! virtual and one event follows the other, so a seed repeats bit by bit. The oracle hears what
//! the applications did, what their sessions told them and what became of each datagram on the
//! network; it never sees a table of the relay, and says what had to arrive, what may, what must
//! not.
//!
//! [`run`] is the world of one relay with several data threads. [`run_overlay`] is the world of many
//! relays: comtrees of every shape over their links, participants who move between them, links and
//! relays that break. [`run_scale`] is a world of up to thousands of relays in which nothing breaks: it
//! tells what one costs against its size. [`run_topology`] is a real controller with its relays on a
//! network's graph: whoever is in the world was let in by it, and it repairs what breaks.
#![forbid(unsafe_code)]

mod admission;
mod application;
mod config;
mod flood;
mod flooder;
mod gateway;
mod host;
mod hostile;
mod network;
mod overlay;
mod pacing;
mod participant;
mod payload;
mod policing;
mod report;
mod sabotage;
mod scale;
mod scenario;
mod tokens;
mod topology;
mod trace;
mod whereabouts;
mod world;

pub use config::{FLOODED_BELOW, SimConfig};
pub use network::NetworkCounts;
pub use overlay::{
    MAX_RELAYS, OverlayConfig, OverlayReport, OverlaySabotage, SHAPED_SECONDS, run_overlay,
    run_overlay_with_tap,
};
pub use report::{RelayTotals, Report};
pub use sabotage::Sabotage;
pub use scale::{Gauge, ScaleConfig, ScaleCore, ScaleRow, exponent, run_scale};
pub use topology::{
    Load, Receivers, TopologyConfig, TopologyReport, TopologySabotage, run_topology,
};
pub use trace::Tap;
pub use world::{run, run_with_tap};
