//! Planning comtrees: which tree over a network, how much capacity its links need, what it costs
//! (Forest §2.3, §3.3, §3.4.2 and §3.5).
//!
//! Pure mathematics: no clock, no input or output, nothing of Canopy's other crates. `canopy plan`
//! shows it to people who size a deployment; the controller chooses and provisions with it.
#![forbid(unsafe_code)]

mod core_subtree;
mod cost_model;
mod demand;
mod description;
mod figures;
mod gml;
mod locality;
mod network;
mod place;
mod provision;
mod rate;
mod select;
mod tree;

pub use core_subtree::{CoreRule, Reach};
pub use cost_model::{CostEstimate, CostInputs, CostRow};
pub use demand::{Demand, PlanError};
pub use figures::{CoreRow, DelayRow, Experiment, TopologyRow};
pub use locality::{LocalCapacities, Locality, provision_local};
pub use network::{FIBRE_SPEED, Link, Network, NetworkError, Node};
pub use place::Place;
pub use provision::{Capacity, Provisioning, cost, provision};
pub use rate::{Limits, Rate};
pub use select::{Choice, MOST_NODES, Method, Request, Root, choose, optimum};
pub use tree::{Hop, PathLengths, Tree};
