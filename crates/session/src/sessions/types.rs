//! What a table of sessions is made from, and what is agreed and told of a session.

use crate::curve::PublicKey;
use crate::seal::{PacketsPerKey, Reader};
use canopy_wire::{Address, Comtree, Downlink, Joined, SessionId, Suite, Time};
use core::time::Duration;

/// How long things live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// A session ends after so long without a sign of life from its participant.
    pub lifetime: Duration,
    /// Participants are asked to send a keepalive this often.
    pub keepalive: Duration,
    /// A subscription ends after so long without a refresh.
    pub subscription: Duration,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            lifetime: Duration::from_secs(10),
            keepalive: Duration::from_secs(2),
            subscription: Duration::from_secs(60),
        }
    }
}

/// What a table of sessions is made from.
#[derive(Clone, Debug)]
pub struct SessionsConfig {
    /// The most sessions at a time, in this table.
    pub max_sessions: u32,
    /// The number of its data thread.
    pub thread: u16,
    /// How many data threads there are.
    pub threads: u16,
    /// The Unix time in seconds at [`Time::ZERO`]: tickets outlive a relay, and so its own clock.
    pub unix_zero: u64,
    /// Whether to tell the sessions' keys ([`poll_key_log`](crate::Sessions::poll_key_log)), for tests.
    pub log_keys: bool,
    /// How many packets a key seals: both sides must have the same.
    pub packets_per_key: PacketsPerKey,
    /// How long things live.
    pub limits: SessionLimits,
}

/// As whom a session has its path. One path has one session, or many that [share](canopy_wire::Join::SHARES) it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// As whoever is there: the path belongs to whoever has proved it last.
    Alone,
    /// As this participant on this comtree, beside others.
    Sharing(PublicKey, Comtree),
}

/// When a path was proved, and by whom: of two proofs of one path by one [`Holder`] the later counts,
/// so that late copies of the earlier change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proof {
    /// When the relay made the cookie that was brought back.
    pub at: Time,
    /// The nonce of the handshake.
    pub nonce: u64,
}

/// What is agreed with a participant when its session opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its address on the comtree that it joins.
    pub address: Address,
    /// The cipher of the session's packets.
    pub suite: Suite,
    /// How updates to it are protected.
    pub downlink: Downlink,
    /// The longest datagram in bytes that either side sends.
    pub max_datagram: u16,
    /// What is used beyond the base protocol, a bit each.
    pub features: u32,
}

/// What has passed over a link since it came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Packets that were sealed for the neighbour.
    pub sealed: u32,
    /// Packets of the neighbour's that were opened.
    pub opened: u32,
    /// Bytes of those that were opened, without their seals.
    pub bytes_in: u64,
    /// Bytes of those that were sealed.
    pub bytes_out: u64,
}

/// The keys of a session, told to whoever checks what its two sides send: a test.
#[derive(Debug)]
pub struct LoggedKeys {
    /// Whose.
    pub session: SessionId,
    /// The nonce of its handshake.
    pub nonce: u64,
    /// The comtree that it joined.
    pub comtree: Comtree,
    /// The key that its participant is known by.
    pub participant: PublicKey,
    /// What its participant was told.
    pub joined: Joined,
    /// Reads what the participant sends.
    pub from_participant: Reader,
    /// Reads what the relay sends.
    pub from_relay: Reader,
}
