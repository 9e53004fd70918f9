//! The session between a participant and its relay, sans-IO.
//!
//! [`Sessions`] is the relay's side: a table of participants whose return path is proved, and the
//! stateless answers before that. [`Session`] is the participant's side: it joins, subscribes,
//! keeps alive, follows a rebinding and rejoins by itself. Neither reads a clock, draws a random
//! number or touches a socket: time and seeds are arguments.
#![forbid(unsafe_code)]

mod answer;
mod curve;
pub mod handover;
mod noise;
mod participant;
mod primitives;
mod requests;
mod seal;
mod secret;
mod sessions;
mod subscriptions;
mod tag;
mod ticket;

pub use answer::{Answer, refuse, unknown};
pub use curve::PublicKey;
pub use participant::{Call, Event, LinkKeys, Session, SessionConfig, SessionError, State, Update};
pub use primitives::{Identity, Pattern};
pub use requests::RequestNumber;
pub use seal::{GroupKeyMaker, GroupOpener, GroupSealer, OpenError, PacketsPerKey, Reader};
pub use secret::derive;
pub use sessions::{
    Ended, Holder, Knock, LinkTraffic, LoggedKeys, MAX_LINKS, Proof, SessionIndex, SessionLimits,
    Sessions, SessionsConfig, Terms,
};
pub use tag::{KeyedState, Keyring};
