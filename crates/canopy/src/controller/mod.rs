//! `canopy controller`: the daemon of the control plane.

mod api;
mod driver;
mod joins;
mod store;
mod waiting;
