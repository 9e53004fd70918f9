//! Canopy's packet formats, addresses and time.
//!
//! A datagram is checked once by a `new_checked` or `decode`; after that no accessor can fail.
//! Nothing here allocates, reads a clock or opens a socket, and no input makes it panic.
//! The byte layouts are in `docs/wire.md`.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod address;
mod busy;
mod datagram;
mod drop_reason;
mod error;
mod fields;
mod group_key;
mod handshake;
mod header;
mod kind;
mod lane;
mod link;
mod link_state;
mod liveness;
mod overlay;
mod packet;
mod path;
mod path_report;
mod reason;
mod recipient;
mod record;
mod request;
mod sealed;
mod subscribe;
mod time;
mod weight;

pub use address::{Address, Comtree, Group, Level, NoSuchGroup, PORTABLE_SITES};
pub use busy::Busy;
pub use datagram::{
    CLEAR_LEN, HEADER_LEN, MAX_DATAGRAM, MAX_UPDATE, SAFE_DATAGRAM, SEAL_LEN, VERSION,
};
pub use drop_reason::DropReason;
pub use error::WireError;
pub use group_key::{GroupKey, GroupKeyHeld, GroupKeyNumber};
pub use handshake::{
    Connect, Connected, Cookie, Downlink, Hello, Join, Joined, MAX_JOIN_LEN, MAX_TICKET_LEN,
    MAX_TOKEN_LEN, Refused, Suite, TAG_LEN, Tag, Ticket,
};
pub use header::{DEFAULT_HOP_LIMIT, Header, SessionId};
pub use kind::{Class, Kind};
pub use lane::Lane;
pub use link::LinkJoin;
pub use link_state::{
    LinkDetail, LinkList, LinkState, LinkStateAck, LinkStateId, MAX_LINK_STATE_ACKS,
    MAX_LINK_STATES, MAX_RELAY_NAME,
};
pub use liveness::{Challenge, Gone, Keepalive, Leave, Rebind, Unknown};
pub use overlay::{LinkHello, RouteReply, WaySearch, WayWord};
pub use packet::Packet;
pub use path::Path;
pub use path_report::{Asked, Probe, Report, Thinning, Traffic};
pub use reason::{Bound, Excess, LeaveReason, RefusedReason, RequestStatus, SubscribeRefusal};
pub use recipient::Recipient;
pub use record::{
    Before, Flags, MAX_RECORD_HEAD, MAX_RECORDS, ROAMING, Record, RecordHead, Records,
    UpdatesWriter, encode_update, is_roaming,
};
pub use request::{Acts, NumberedRequest, Request, Response, Restriction, Verdict};
pub use sealed::Sealed;
pub use subscribe::{
    MAX_CHANGES, Subscribe, SubscribeAck, SubscribeAckWriter, SubscribeWriter, SubscriptionChange,
    next_sequence,
};
pub use time::Time;
pub use weight::Weight;

/// Property tests draw the same cases in every run.
#[cfg(test)]
fn seeded() -> proptest::test_runner::Config {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    proptest::test_runner::Config { rng_seed, ..Default::default() }
}
