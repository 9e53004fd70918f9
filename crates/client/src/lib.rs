//! The Rust SDK of Canopy, the network layer for shared worlds.
//!
//! A client joins a world through a relay, publishes updates to groups, and receives those of the
//! groups that it subscribes to. It keeps itself joined: a relay that restarts, a network that
//! comes back and an ip:port that changes are followed, and the subscriptions come along.
//!
//! ```no_run
//! use canopy_client::{Client, Group, Level};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = Client::builder("127.0.0.1:4040").connect().await?;
//!
//! let square = Group::new(7);
//! world.subscribe(square, Level(1)).await?;
//! world.publish(square, Level(0), b"hello, square")?;
//!
//! while let Some(update) = world.recv().await {
//!     println!("{} says {:?}", update.from, update.payload);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! There are two clients on one and the same logic: `Client` is a task on tokio (the feature
//! `tokio`, which is on unless switched off), and [`PollClient`] has no runtime and belongs to a
//! game loop that polls it every frame. Either joins through a relay that it is given, or through a controller that
//! finds one and keeps it in its world (`join`, the feature `join`).
//!
//! # Levels
//!
//! A subscription at level L receives the updates of level ≤ L: *detail is the higher number*.
//! Publish what everyone should know at level 0, and what only those who are near need at level 1.
//! Subscribe to what is near at level 1, which brings both, and to what is far at level 0.
//! A move from far to near is then one subscription to the same group at the other level.
//!
//! # Weights
//!
//! Not everything that a client is subscribed to may fit its budget, or its path. Then the relay leaves out updates,
//! and shares what there is by *weight*: a group's is said with the subscription, and each publisher says with
//! [`Outgoing::weight`] what its update weighs beside others of the group. Nothing falls silent; what weighs little
//! comes less often. [`weight_at`] makes a weight of a distance and a size, and [`Surroundings`] keeps the weights
//! of many groups up to date, so that a game gives positions and no numbers:
//!
//! ```no_run
//! # use canopy_client::{Event, Falloff, Group, Incoming, Level, PollClient, Surroundings};
//! # fn play(mut world: PollClient, towns: &[(Group, [f32; 3])], mut walk: impl FnMut() -> [f32; 3]) {
//! let mut surroundings = Surroundings::new(Falloff::METRES);
//! for (town, position) in towns {
//!     surroundings.put(*town, Level(0), *position, 1.0);
//! }
//! // Every frame: most of the time nothing has changed noticeably, and nothing is sent.
//! while world.poll() {
//!     world.subscribe_weighted(surroundings.seen_from(walk()));
//! }
//! # }
//! ```
//!
//! # What to expect
//!
//! - **Updates are datagrams.** They may be lost, as the next one usually replaces them anyway;
//!   those of one publisher normally keep their order. An update has at most [`MAX_UPDATE`] bytes.
//! - **Publishing is `Ok` when the kernel has the update**, and stays so for a relay that has gone,
//!   until missing keepalives show it: up to 6 s with a relay's usual settings.
//! - **A client keeps its address**, over reconnections by itself, and over an end of its process
//!   with a [`Resumption`]. [`Event::Connected`] says whether it did.
//! - **An address that somebody left rests** for ten minutes, unless the relay is set otherwise,
//!   before it is another's; what is sent there until then reaches nobody, and [`Event::Gone`] says
//!   so. See [`Participant`] for what this promises, and what protects where it does not.
//! - **Updates and events come in one order**, so that nothing of a new session is read before its
//!   [`Event::Connected`].
//! - **What is sent is sealed** between the client and its relay. Who the relay is must be known, by
//!   [`ClientBuilder::relay_key`], unless it is on the same machine.
//! - **Who may do what** is said by a token, where a relay asks for one
//!   ([`ClientBuilder::token`]). A backend issues it, for the client's key ([`ClientKey`]).
//! - **A slow reader loses the oldest.** Updates wait in a queue of fixed length; when it is full
//!   the oldest makes room and [`Stats::dropped_slow_reader`] counts it.
//! - **A slow path, or a budget, loses what matters least.** Where the relay cannot send everything that
//!   is subscribed to, it sends a part: no more than the client asks for with
//!   [`PollClient::set_budget`], or than its path bears. [`Event::Thinned`] says how much.
//! - **One's own updates don't come back**, unless asked for with [`Outgoing::echo`].
//!
//! # Examples
//!
//! In `crates/client/examples`: `hello`, where two participants greet; `walker`, who hears only what
//! is near; `explorer`, a game loop in a world that its controller divides into areas; `horizon`, a walker who hears
//! everybody, and those who are near more often where not everything fits; `authority`, a server
//! that decides where its players are, with two levels of interest.
//!
//! Each client has one socket. Linux only.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "canopy-client runs on Linux only, for now: it uses Linux's batched and segmented UDP calls"
);

mod acknowledgement;
mod answer;
#[cfg(feature = "join")]
mod ask;
mod builder;
mod bundles;
#[cfg(feature = "join")]
mod chance;
#[cfg(feature = "tokio")]
mod client;
mod client_key;
#[cfg(feature = "tokio")]
mod driver;
mod error;
mod event;
mod geometry;
#[cfg_attr(not(feature = "join"), allow(dead_code, reason = "nobody else moves"))]
mod handover;
#[cfg_attr(not(feature = "join"), allow(dead_code, reason = "nobody else moves"))]
mod held;
mod inbox;
#[cfg(feature = "join")]
pub mod join;
#[cfg(feature = "join")]
mod keep;
mod member;
#[cfg(test)]
mod pair;
mod participant;
mod poll;
mod relay_key;
mod relay_socket;
mod relays;
mod reports;
mod resumption;
#[cfg(feature = "tokio")]
mod shared;
#[cfg(feature = "join")]
mod standing;
mod subscriptions;
mod surroundings;
mod update;

pub use acknowledgement::Acknowledgement;
/// Issuing access tokens, for backends.
#[cfg(feature = "backend")]
pub use canopy_token as token;

/// The areas of a world that its controller divides.
#[cfg(feature = "join")]
pub use canopy_areas as areas;

pub use answer::{Answer, RequestError};
pub use builder::ClientBuilder;
pub use canopy_wire::{
    Acts, Bound, Comtree, Excess, Group, LeaveReason, Level, MAX_UPDATE, NoSuchGroup, ROAMING,
    RefusedReason, Restriction, SubscribeRefusal, Weight,
};
#[cfg(feature = "tokio")]
pub use client::{Client, IncomingStream, UpdateStream};
pub use client_key::{ClientKey, NoClientKey};
pub use error::{ConnectError, PublishError, SubscribeError};
pub use event::{Budget, Event, Incoming, Refusal, Stats, Thinning};
pub use geometry::{Falloff, weight_at};
#[cfg(feature = "join")]
pub use join::{JoinBuilder, JoinError};
pub use participant::{Epoch, NoSuchParticipant, Participant};
pub use poll::PollClient;
pub use relay_key::{NoRelayKey, RelayKey};
pub use resumption::{NoResumption, Resumption};
pub use surroundings::Surroundings;
pub use update::{Outgoing, Update};
