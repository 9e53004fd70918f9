//! `canopy controller`: the daemon of the control plane.

pub(crate) mod api;
mod driver;
mod joins;
mod store;
mod waiting;
