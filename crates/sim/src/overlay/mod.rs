//! Many relays in one seeded world: trees of every shape with every kind of core, several comtrees
//! over the same links, participants who move between relays, links and relays that break; and a
//! model that says of each update who had to get it, who might and who must not.
//!
//! Every relay runs the code of the daemon's data threads, every participant that of the SDK.

mod budgets;
mod capacity;
mod config;
mod flooded;
mod flooders;
mod floods;
mod important;
mod keys;
mod lately;
mod limiting;
pub(crate) mod machine;
mod meshes;
mod model;
mod participant;
mod people;
mod progress;
mod proofs;
pub(crate) mod queue;
mod reloads;
mod report;
mod roles;
mod run;
mod scenario;
mod shape;
mod shaping;
mod world;

pub use config::{MAX_RELAYS, OverlayConfig, OverlaySabotage};
pub use report::OverlayReport;
pub use run::{run_overlay, run_overlay_with_tap};
pub use shaping::SHAPED_SECONDS;
