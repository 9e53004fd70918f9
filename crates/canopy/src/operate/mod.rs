//! Commands for a running controller. They use its API and nothing else.

mod areas;
mod client;
mod link;
mod relay;
mod removal;
mod tables;
mod world;

pub(crate) use client::ApiClient;
pub(crate) use link::LinkCommand;
pub(crate) use relay::RelayDeed;
pub(crate) use world::{WorldCommand, word};
