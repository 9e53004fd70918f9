//! The link between a participant and its relay, sans-IO.
//!
//! [`Sessions`] is the relay's side: a table of participants whose return path is proved, and the
//! stateless answers before that. [`Session`] is the participant's side: it joins, subscribes,
//! keeps alive, follows a rebinding and rejoins by itself. Neither reads a clock, draws a random
//! number or touches a socket: time and seeds are arguments.
#![forbid(unsafe_code)]

mod participant;
mod relay_side;
mod subscriptions;
mod tag;

pub use participant::{Event, Session, SessionConfig, SessionError, State, Update};
pub use relay_side::{
    Answer, Ended, Handled, SessionLimits, Sessions, SessionsConfig, Slot, SlotIndex,
};
pub use tag::{KeyedState, Keyring};
