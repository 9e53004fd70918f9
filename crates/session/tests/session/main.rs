//! Sessions between participants and relays. One binary, since each would link the same again.

mod attacks;
mod holders;
mod participant;
mod reports;
mod sessions;
mod silence;
mod support;
