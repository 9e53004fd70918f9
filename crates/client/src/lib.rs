//! The Rust SDK of Canopy, the network layer for shared worlds.
//!
//! A [`Client`] joins a world through a relay, publishes updates to groups, and receives those of
//! the groups that it subscribes to. It keeps itself joined: a relay that restarts, a network that
//! comes back and an ip:port that changes are followed, and the subscriptions come along.
//!
//! ```no_run
//! use canopy_client::{Client, Group, Level};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = Client::builder("127.0.0.1:4040".parse()?).connect().await?;
//!
//! let square = Group::new(7);
//! world.subscribe(square, Level(1)).await?;
//! world.publish(square, Level(0), b"hello, square")?;
//!
//! while let Some(update) = world.recv().await {
//!     println!("{} says {:?}", update.src, update.payload);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What to expect
//!
//! - **Updates are datagrams.** They may be lost, as the next one usually replaces them anyway;
//!   those of one publisher normally keep their order. An update has at most [`MAX_UPDATE`] bytes.
//! - **Levels choose an audience.** A subscription at level L receives the updates of level ≤ L.
//! - **A slow reader loses the oldest.** Updates wait for [`Client::recv`] in a queue of fixed
//!   length; when it is full the oldest makes room and [`Stats::dropped_slow_reader`] counts it.
//! - **One's own updates don't come back**, unless asked for with [`Outgoing::echo`].
//!
//! Each client is one task and one socket on the tokio runtime that [`ClientBuilder::connect`] is
//! called in, which must have its I/O and time drivers enabled. Linux only.
#![forbid(unsafe_code)]

mod acknowledgement;
mod builder;
mod bundles;
mod client;
mod driver;
mod error;
mod link;
mod queue;
mod shared;
mod subscriptions;
mod update;

pub use acknowledgement::Acknowledgement;
pub use builder::ClientBuilder;
pub use canopy_wire::{Address, Comtree, Group, Level, MAX_UPDATE, RefusedReason};
pub use client::Client;
pub use error::{ConnectError, PublishError, SubscribeError};
pub use update::{Event, Outgoing, Stats, Update};
