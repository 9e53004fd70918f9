//! What whoever drives a session hands in and gets back.

use crate::curve::PublicKey;
use crate::primitives::Identity;
use crate::requests::RequestNumber;
use crate::seal::PacketsPerKey;
use canopy_wire::{
    Address, Busy, Comtree, Group, LeaveReason, Level, MAX_TOKEN_LEN, MAX_UPDATE, RefusedReason,
    RequestStatus, SAFE_DATAGRAM, SessionId, SubscribeRefusal, Suite, Tag, Thinning, Ticket,
    Weight, WireError,
};

/// What a session is opened with.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The comtree to join.
    pub comtree: Comtree,
    /// 16 random bytes, from which nonces and keys are drawn. Must differ between sessions.
    pub seed: Tag,
    /// The relay's public key. Without it, whoever answers is believed to be the relay: for
    /// networks that nobody else is on.
    pub relay_key: Option<PublicKey>,
    /// Who the participant is; someone new unless it is given.
    pub identity: Option<Identity>,
    /// The access token; empty without one.
    pub token: Vec<u8>,
    /// The ticket of an earlier session of the same [identity](SessionConfig::identity), whose
    /// address is wanted back. Later sessions bring the one of the session before.
    pub ticket: Ticket,
    /// The suites that this host takes, a [bit](Suite::bit) each.
    pub suites: u8,
    /// Those that its processor has no instructions for: used only where the relay has no other.
    pub slow_suites: u8,
    /// The longest datagram in bytes that the path to the relay takes, from [`SAFE_DATAGRAM`] to
    /// [`MAX_DATAGRAM`](canopy_wire::MAX_DATAGRAM). The relay may know of less.
    pub max_datagram: u16,
    /// Whether other sessions may be at the same ip:port, as behind a gateway. Each has an
    /// [identity](SessionConfig::identity) of its own, or a comtree. Which of them a datagram from the
    /// relay is for, [`Recipient::of`](canopy_wire::Recipient::of) says.
    pub shares_ip_port: bool,
    /// Whether somebody finds another relay when this one is [silent](super::Session::is_silent): it is asked for a sign
    /// of life as soon as nothing comes from it.
    pub watches: bool,
    /// How many packets a key seals: the relay must have the same.
    pub packets_per_key: PacketsPerKey,
    /// If it is a relay that calls its neighbour: what it asks for.
    pub call: Option<Call>,
}

impl SessionConfig {
    /// A session on `comtree` over a path that takes no more than any, with whatever relay answers.
    pub fn new(comtree: Comtree, seed: Tag) -> SessionConfig {
        SessionConfig {
            comtree,
            seed,
            relay_key: None,
            identity: None,
            token: Vec::new(),
            ticket: Ticket::default(),
            suites: Suite::Aes128Gcm.bit() | Suite::ChaCha20Poly1305.bit(),
            slow_suites: 0,
            max_datagram: SAFE_DATAGRAM as u16,
            shares_ip_port: false,
            watches: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            call: None,
        }
    }
}

/// What a relay asks its neighbour for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The caller's own number for the link: the neighbour's packets carry it.
    pub session: SessionId,
    /// How many data threads the caller has.
    pub threads: u16,
    /// Which data thread of the neighbour's is to have the link, modulo how many it has.
    pub thread: u16,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A hello is on the way, or the next is being waited for.
    Greeting,
    /// A connect is on the way.
    Connecting,
    /// In the world.
    Connected,
    /// A leave is on the way.
    Leaving,
    /// Left for good.
    Closed,
}

/// Something that the application may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// In the world, under this address. After a loss, subscriptions are being made again.
    Connected(Address),
    /// The relay is lost or going away; the session is trying again by itself.
    Lost,
    /// The relay does not take the participant; the session asks again later by itself.
    Refused(RefusedReason),
    /// The relay acknowledged the subscription.
    Subscribed(Group, Level),
    /// The relay acknowledged the end of the subscription.
    Unsubscribed(Group),
    /// The relay refused the subscription.
    SubscriptionRefused(Group, SubscribeRefusal),
    /// The relay ends the session for this reason. [`Event::Lost`] follows, or [`Event::Closed`] if
    /// another session goes on by the same token.
    SentAway(LeaveReason),
    /// The relay has answered a request.
    Answered(RequestNumber, RequestStatus),
    /// The participant's ip:port has changed, and the relay has confirmed that it knows the new one.
    Rebound,
    /// The relay drops a part of what the participant sends. It tells so once a second at most.
    Busy(Busy),
    /// How much of what is meant for the participant the relay sends has changed noticeably, or what
    /// bounds it. [`Thinning::left_out`] is of the time since the last such event. It is told once a
    /// second at most.
    Thinned(Thinning),
    /// Nobody is at this address, to which something was sent: it reached no one. Not every update
    /// that reaches no one is told of.
    Gone(Address),
    /// The session was left.
    Closed,
}

/// One update that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Its publisher.
    pub src: Address,
    /// The group or the endpoint that it was sent to.
    pub dst: Address,
    /// Its number among its publisher's updates, modulo 2¹⁶. A gap is a loss if all groups that its
    /// publisher sends to are subscribed to and the relay left nothing out for want of room; the same
    /// number again is a copy that the network made.
    pub series: u16,
    /// Its level.
    pub level: Level,
    /// How much it matters to its publisher.
    pub weight: Weight,
    /// Which of its publisher's objects it is about.
    pub object: u16,
    /// Its bytes.
    pub payload: &'a [u8],
    /// The packet that it came in, of whose bytes its own are a part: who keeps the updates of a
    /// packet keeps one copy.
    pub packet: &'a [u8],
}

/// Why the session cannot do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no session with the relay right now; wait for [`Event::Connected`].
    #[error("not connected to the relay right now; wait for the Connected event")]
    NotConnected,
    /// The update does not fit a datagram.
    #[error("the update has {0} bytes, more than {MAX_UPDATE}; split it")]
    TooLong(usize),
    /// The token is longer than any.
    #[error(
        "the token has {0} bytes, more than {MAX_TOKEN_LEN}; grant fewer ranges or shorter names"
    )]
    LongToken(usize),
    /// Too many requests wait for the relay's answers.
    #[error("too many requests wait for the relay's answers; ask again later")]
    Busy,
    /// The driver's buffer is too short, or a datagram from the relay is no packet.
    #[error(transparent)]
    Wire(#[from] WireError),
}
