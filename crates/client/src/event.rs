//! What happens to a client, and what it has seen.

use crate::{Epoch, Participant, Update};
use canopy_wire::{Asked, Bound, Excess, Group, LeaveReason, RefusedReason, SubscribeRefusal};
use std::net::SocketAddr;
use std::time::Duration;

/// What a client hears, in the order in which it happened.
///
/// ```no_run
/// # fn frame(mut world: canopy_client::PollClient) {
/// use canopy_client::Incoming;
///
/// // In a game loop, every frame: work off all that has come, and go on.
/// world.poll();
/// while let Some(incoming) = world.try_next() {
///     match incoming {
///         Incoming::Update(update) => println!("{} moved: {:?}", update.from, update.payload),
///         Incoming::Event(event) => println!("{event:?}"),
///         _ => {}
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Incoming {
    /// An update came.
    Update(Update),
    /// Something happened to the session with the relay.
    Event(Event),
}

/// Something that happened to the session between client and relay. Nothing needs to be done about
/// most of it: the client goes on by itself.
///
/// ```no_run
/// # use std::collections::HashMap;
/// # async fn hear(world: canopy_client::Client) {
/// use canopy_client::{Event, Incoming};
///
/// let mut players = HashMap::new();
/// while let Some(incoming) = world.next().await {
///     match incoming {
///         // Another relay, or one that has forgotten: addresses from before may be others' now.
///         Incoming::Event(Event::Connected { kept_address: false, .. }) => players.clear(),
///         Incoming::Event(Event::Gone { participant, .. }) => _ = players.remove(&participant),
///         Incoming::Update(update) => _ = players.insert(update.from, update.payload),
///         _ => {}
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// In the world, for the first time or again. Subscriptions are being made again. All updates
    /// of the new epoch come after this.
    #[non_exhaustive]
    Connected {
        /// The client's own address.
        participant: Participant,
        /// Whether that is the one of the epoch before, or of the
        /// [`Resumption`](crate::Resumption) that the client began with: to others it is who it was.
        /// False at first.
        kept_address: bool,
        /// The number of the session.
        epoch: Epoch,
    },
    /// The relay is silent or going away. The client tries again, and the other relays that it
    /// was given, until one takes it back.
    Lost,
    /// The relay ends the session for this reason. [`Event::Lost`] follows, and the client asks again,
    /// which helps if it has a new token by then; or the world is left, if another client goes on by
    /// the same token ([`LeaveReason::Elsewhere`]).
    SentAway(LeaveReason),
    /// A relay does not take the client, for now. The client asks again.
    Refused(RefusedReason),
    /// The relay had no room for subscriptions for which no one awaits the
    /// [`Acknowledgement`](crate::Acknowledgement): those that were made again after a loss, say.
    /// They are over; subscribe again to try again.
    SubscriptionsRefused(Vec<(Group, SubscribeRefusal)>),
    /// The relay drops a part of what the client sends, because that is more than the client, or
    /// all clients of the world together, may send. Send less; it is told once a second at most.
    #[non_exhaustive]
    Busy {
        /// What there is too much of.
        what: Excess,
        /// Datagrams and updates that were dropped since it was last told.
        dropped: u32,
    },
    /// Nobody is at the address that something was sent to; it reached no one. Of many such sends
    /// in a second the relay tells a few.
    #[non_exhaustive]
    Gone {
        /// The address. For some minutes yet it is nobody else's.
        participant: Participant,
    },
    /// How much of what the client is subscribed to the relay sends has changed noticeably, or what
    /// bounds that. A game may show it, or ask for less. It is told once a second at most.
    #[non_exhaustive]
    Thinned {
        /// Which share of the updates that were meant for the client was sent: from 0 to 1.
        share: f64,
        /// How many were not sent since it was last told.
        left_out: u32,
        /// The client's budget now, in bits of UDP payload a second; `None` if its bits have no limit.
        budget_bits: Option<u64>,
        /// What bounds it.
        because: Bound,
    },
    /// The controller has given the client another relay. [`Event::Connected`] follows, with the address
    /// there. If the relay before was lost, the subscriptions are made again; if it drains, or the other
    /// is nearer, they are there already, and no update is lost or comes twice.
    #[non_exhaustive]
    Moved {
        /// The other relay.
        relay: SocketAddr,
    },
    /// The areas of the world are told for the first time, or are others from now on
    /// (federated games §3.1, *update alert*). Subscriptions follow by themselves; the group to
    /// publish to may be another one before long: ask for it with each update.
    #[non_exhaustive]
    AreasChanged {
        /// How often the division has changed, counted when the next one is known.
        version: u64,
    },
    /// The controller does not let the client stay, or come back after its relay was lost. The client
    /// goes on as it can, and asks again. It is told once for each reason; other figures are no other reason.
    NotLetIn(Refusal),
    /// The client's ip:port has changed, and the relay has confirmed that it knows the new one.
    Rebound,
}

/// Why a controller does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "join", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Refusal {
    /// What is wrong.
    pub what: String,
    /// Where: a field, a world, a relay, a link.
    #[cfg_attr(feature = "join", serde(rename = "where"))]
    pub place: String,
    /// What to do about it.
    pub remedy: String,
    /// What was asked of a link or relay that has too little left.
    #[cfg_attr(feature = "join", serde(default))]
    pub asked: Option<String>,
    /// What it has left.
    #[cfg_attr(feature = "join", serde(default))]
    pub free: Option<String>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refusal { what, place, remedy, .. } = self;
        write!(f, "{place}: {what}; {remedy}")
    }
}

/// The most that a client wants to be sent, for [`PollClient::set_budget`](crate::PollClient::set_budget).
///
/// ```
/// use canopy_client::Budget;
///
/// let for_a_phone = Budget::NONE.bits(256_000).updates(100);
/// assert_eq!(for_a_phone.bits, Some(256_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// Bits of UDP payload a second; `None` is no wish.
    pub bits: Option<u64>,
    /// Updates a second; `None` is no wish.
    pub updates: Option<u32>,
}

impl Budget {
    /// No wish.
    pub const NONE: Budget = Budget { bits: None, updates: None };

    /// No more than this many bits of UDP payload a second.
    pub const fn bits(self, bits: u64) -> Budget {
        Budget { bits: Some(bits), ..self }
    }

    /// No more than this many updates a second.
    pub const fn updates(self, updates: u32) -> Budget {
        Budget { updates: Some(updates), ..self }
    }

    /// No less is asked for than one of each: 0 would be no wish.
    pub(crate) fn asked(self) -> Asked {
        let Budget { bits, updates } = self;
        let (bits, updates) = (bits.map(|bits| bits.max(1)), updates.map(|updates| updates.max(1)));
        Asked { bits: bits.unwrap_or(0), updates: updates.unwrap_or(0) }
    }
}

/// How much of what a client is subscribed to the relay sends it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Thinning {
    /// Which share of the updates that were meant for the client was sent: from 0 to 1.
    pub share: f64,
    /// How many were not sent between the relay's last two words on it.
    pub left_out: u32,
    /// The client's budget now, in bits of UDP payload a second; `None` if its bits have no limit.
    pub budget_bits: Option<u64>,
    /// What bounds it.
    pub because: Bound,
}

impl From<canopy_wire::Thinning> for Thinning {
    fn from(thinning: canopy_wire::Thinning) -> Thinning {
        let canopy_wire::Thinning { share, left_out, budget_bits, because } = thinning;
        let budget_bits = (budget_bits > 0).then_some(budget_bits);
        Thinning { share: f64::from(share) / 1000.0, left_out, budget_bits, because }
    }
}

/// What a client has seen since it was made.
///
/// ```no_run
/// # fn show(world: &canopy_client::Client) {
/// let stats = world.stats();
/// if let Some(round_trip) = stats.round_trip {
///     println!("{} ms to the relay", round_trip.as_millis());
/// }
/// // The game takes updates too slowly, or asks for too many.
/// println!("{} of {} updates were never looked at", stats.dropped_slow_reader, stats.received);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The last measured round trip to the relay; `None` while not connected, and before the first.
    pub round_trip: Option<Duration>,
    /// How often the world was joined: one more than the reconnections.
    pub connects: u64,
    /// Updates handed to the kernel.
    pub published: u64,
    /// Updates received, those that were dropped for a slow reader included.
    pub received: u64,
    /// Updates of its own that came back although it had not asked for them, and were dropped:
    /// where many get an update, a relay may send it to its publisher too.
    pub echoes: u64,
    /// Updates that both relays brought while the client went from one to the other, and that were
    /// taken once.
    pub doubled: u64,
    /// Updates that were dropped then, because they came so late that nobody knew whether they had been
    /// taken before.
    pub too_late: u64,
    /// Updates that the application did not take in time.
    pub dropped_slow_reader: u64,
    /// Events that the application did not take in time.
    pub dropped_events: u64,
    /// Datagrams that were no packets of this protocol and comtree, and updates of publishers that
    /// cannot be.
    pub malformed: u64,
    /// Updates that wait to be taken.
    pub waiting: usize,
    /// Groups that the client wants to be subscribed to.
    pub subscriptions: usize,
}
