//! Canopy's send engines by name: the plain ones of [`canopy_net`], `io_uring`, and the clone
//! engines, for which the kernel makes the copies, with their installer.
//!
//! With `canopy-net` the only crate with `unsafe` code. A participant needs none of this, so the
//! SDK does not depend on it; without the feature `kernel` only the plain engines are built, and all
//! else says that it was not.
//! The namespaces, sinks and users that benches and tests of engines need are here too.
#![allow(unsafe_code)]

#[cfg(feature = "kernel")]
mod clone;
mod engine;
mod folder;
mod name;
mod namespace;
#[cfg(feature = "kernel")]
mod neighbours;
#[cfg(feature = "kernel")]
mod sink;
#[cfg(feature = "kernel")]
mod uring;
mod user;
#[cfg(not(feature = "kernel"))]
mod without;

#[cfg(feature = "kernel")]
pub use clone::{InstallError, InstallRequest, Installation, install, installations};
pub use engine::{Engine, EngineUnavailable};
pub use folder::ENGINE_FOLDER;
pub use name::{EngineChoice, EngineName, UnknownEngine};
pub use namespace::{Namespace, private_engine_folder};
#[cfg(feature = "kernel")]
pub use neighbours::{NeighbourEvent, NeighbourWatch};
#[cfg(feature = "kernel")]
pub use sink::{KernelSink, SinkPlace};
#[cfg(feature = "kernel")]
pub use uring::Uring;
pub use user::{current_user, user_named};
#[cfg(not(feature = "kernel"))]
pub use without::{
    InstallError, InstallRequest, Installation, KernelSink, NeighbourEvent, NeighbourWatch,
    SinkPlace, install, installations,
};
