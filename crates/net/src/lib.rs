//! Canopy's sockets: batched receive with offload, send engines, waiting, clocks.
//!
//! The only crate of the workspace with `unsafe` code or system calls of its own. Nothing here
//! knows the protocol; a [`Receiver`] yields datagrams, a [`SendEngine`] sends what a relay put in
//! a [`canopy_batch::SendBatch`]. Linux only.
#![allow(unsafe_code)]

mod address;
mod clock;
mod clone;
mod engine;
mod group;
mod namespace;
mod processor;
mod readiness;
mod receive;
mod sender;
mod sink;
mod socket;
mod user;
mod wait;

pub use clock::Clock;
pub use clone::{
    ENGINE_FOLDER, InstallError, InstallRequest, Installation, install, installations,
};
pub use engine::{
    Engine, EngineChoice, EngineName, EngineUnavailable, Mmsg, SendEngine, SendReport, Sendto,
    UnknownEngine, Uring,
};
pub use group::{Burst, Group, Refused};
pub use namespace::{Namespace, private_engine_folder};
pub use processor::{
    available_processors, end_with_parent, pin_thread, process_cpu_time, raise_open_files,
    thread_cpu_time,
};
pub use readiness::Readiness;
pub use receive::Receiver;
pub use sink::{KernelSink, SinkPlace};
pub use socket::{Socket, SocketOptions, set_receive_buffer};
pub use user::{current_user, user_named};
pub use wait::{Waker, sleep_until, wait_readable};
