//! Planning comtrees: which tree over a network, how much capacity its links need, what it costs
//! (Forest §2.3, §3.3, §3.4.2 and §3.5); and how many users a server carries, by what sending costs
//! it (Groupcast §4 and §6).
//!
//! Pure mathematics: no clock, no input or output, nothing of Canopy's other crates. `canopy plan`
//! shows it to people who size a deployment; the controller chooses and provisions with it.
#![forbid(unsafe_code)]

mod bundled;
mod calibration;
mod core_rule;
mod core_subtree;
mod cost_model;
mod demand;
mod description;
mod figures;
mod fit;
mod gain_figures;
mod gml;
mod locality;
mod network;
mod place;
mod provision;
mod rate;
mod select;
mod send_cost;
mod server;
mod tree;

pub use bundled::BundledServer;
pub use calibration::{Calibration, CalibrationError, Conditions, EngineCost};
pub use core_rule::{CoreRule, Reach};
pub use cost_model::{CostEstimate, CostInputs, CostRow};
pub use demand::{Demand, PlanError};
pub use figures::{CoreRow, DelayRow, Experiment, TopologyRow};
pub use fit::{Fit, FitError, FittedCost, Sample, fit};
pub use gain_figures::{GainByRatio, GainByShare, GainFigures};
pub use locality::{LocalCapacities, Locality, provision_local};
pub use network::{FIBRE_SPEED, Link, Network, NetworkError, Node};
pub use place::Place;
pub use provision::{Capacity, Provisioning, cost, provision};
pub use rate::{Limits, Rate};
pub use select::{Choice, MOST_NODES, Method, Request, Root, choose, optimum};
pub use send_cost::SendCost;
pub use server::{Comparison, Evidence, Growth, OtherWork, Server, ServerError, ServerModel};
pub use tree::{Hop, PathLengths, Tree};
