//! Canopy's sockets: batched receive with offload, send engines, waiting, clocks.
//!
//! With `canopy-engines` the only crate of the workspace with `unsafe` code or system calls of its
//! own. Nothing here knows the protocol; a [`Receiver`] yields datagrams, a [`SendEngine`] sends
//! what a relay put in a [`canopy_batch::SendBatch`]. Linux only.
#![allow(unsafe_code)]

mod address;
mod clock;
mod control;
mod engine;
mod features;
mod kernel_drops;
mod listener;
mod options;
mod outlet;
mod passing;
mod processor;
mod readiness;
mod receive;
mod receivers;
mod sender;
mod socket;
mod wait;

pub use clock::Clock;
pub use engine::{Full, Mmsg, SendEngine, SendReport, Sendto, Sent};
pub use features::{Feature, is_clock_synchronised, open_files, socket_features};
pub use kernel_drops::KernelDrops;
pub use listener::{SEND_BUFFER, ThreadSockets, listen};
pub use options::set_receive_buffer;
pub use outlet::{Outlet, Retry};
pub use processor::{
    ask_to_end, ask_to_reload, available_processors, be_nice, end_with_parent, has_aes, pin_thread,
    process_cpu_time, raise_open_files, slow_suites, thread_cpu_time,
};
pub use readiness::Readiness;
pub use receive::Receiver;
pub use receivers::ReceiverSet;
pub use socket::{Socket, SocketOptions};
pub use wait::{
    Waker, sleep_until, wait_any_readable, wait_for_file, wait_readable, wait_writable,
};

/// What a further [`SendEngine`] is built from.
pub mod parts {
    pub use crate::control::{SEGMENT_CONTROL_LEN, write_segment_control};
    pub use crate::engine::{Errors, MESSAGES, Messages, Unsegmented, Verdict, may_be_reported};
    pub use crate::options::tell_errors;
}
