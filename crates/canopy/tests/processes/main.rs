//! Real processes of the binary. One test binary, so that what waits in one file runs beside the others. Those
//! that share the machine's network or want the machine to themselves are binaries of their own.

mod areas;
mod control_plane;
mod controller;
mod demo;
mod drained;
mod groupcast;
mod hosts;
mod kicked;
mod lab;
mod meshed;
mod net;
mod paths;
mod plan;
mod proposed_links;
mod removed;
mod repairs;
mod restart;
mod scale;
mod shell;
mod slow_receivers;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod token;
