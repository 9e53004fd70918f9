//! `canopy controller`: the daemon of the control plane.

mod store;
