//! The real control plane over the real data plane on a network's graph: a controller with its store, a
//! relay at each node with the relay's side of the control plane, and participants who join by the
//! controller. Links, relays, the controller and the channels between them fail; a model says which
//! updates had to arrive nevertheless, and the controller's accounts are worked out anew. Meanwhile an operator moves
//! worlds, removes links and drains relays, and the controller looks for better trees: nothing may be lost by that.
//!
//! What a relay is told becomes changes of its data plane by `canopy-overlay`, as in the daemon.

mod breaking;
mod checks;
mod config;
mod control_plane;
mod controller;
mod deed;
mod drawing;
mod excess;
mod faults;
mod graph;
mod load;
mod loading;
mod machine;
mod model;
mod network;
mod operating;
mod participant;
mod people;
mod proposed;
mod report;
mod world;

pub use config::{TopologyConfig, TopologySabotage};
pub use load::{Load, Receivers};
pub use report::TopologyReport;
pub use world::run_topology;
