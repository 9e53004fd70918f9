//! What a data thread's relay is made from, and what it tells whoever runs it.

use crate::access::{TokenRefusal, Trust};
use crate::addresses::{Share, start_of_life};
use crate::comtree_config::ComtreeConfig;
use crate::gate::Gate;
use crate::meters::Budgets;
use crate::pending::MAX_PENDING_RECORDS;
use crate::places::Places;
use crate::siblings::Siblings;
use crate::subscriptions::{Most, TableLimits};
use crate::timing::Mode;
use canopy_session::{PacketsPerKey, PublicKey, SessionLimits, SessionsConfig, derive};
use canopy_token::UnixTime;
use canopy_wire::{Address, Comtree, Excess, Path, Tag, WaySearch};
use core::time::Duration;
use std::sync::Arc;

/// What a data thread's relay is made from.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// When updates leave, of comtrees that have no mode of their own.
    pub mode: Mode,
    /// The comtrees that it carries at first.
    pub comtrees: Vec<ComtreeConfig>,
    /// Whose tokens let in; if none, whoever comes is let in.
    pub trust: Option<Arc<Trust>>,
    /// The time of day when the relay's [`Time`](canopy_wire::Time) was zero: tokens begin and end by that.
    pub origin: UnixTime,
    /// The places for participants, which the relay's data threads share.
    pub places: Places,
    /// The most sessions of this data thread: at least as many as there are places, or it refuses
    /// before they are taken.
    pub max_sessions: u32,
    /// The longest datagram in bytes that the relay's own network takes, from
    /// [`SAFE_DATAGRAM`](canopy_wire::SAFE_DATAGRAM) to [`MAX_DATAGRAM`](canopy_wire::MAX_DATAGRAM).
    pub max_datagram: u16,
    /// The [suites](canopy_wire::Suite::bit) that its processor has no instructions for: used only
    /// with those who take no other.
    pub slow_suites: u8,
    /// How long the address of a participant that left is given to nobody else; unless there is a
    /// reason, [`ADDRESS_REST`](crate::ADDRESS_REST).
    pub address_rest: Duration,
    /// Which of the relay's lives this is, if it keeps count: then newcomers get other addresses than
    /// in the lives before. Without it, they begin somewhere at random.
    pub life: Option<u32>,
    /// Whether to tell the sessions' keys ([`Relay::poll_key_log`](super::Relay::poll_key_log)), for tests that read what it
    /// sends.
    pub log_keys: bool,
    /// How many packets a key seals. Participants and neighbours must have the same, so it is
    /// [`PacketsPerKey::PROTOCOL`] but in tests.
    pub packets_per_key: PacketsPerKey,
    /// How long sessions and subscriptions live.
    pub limits: SessionLimits,
    /// The size of its tables.
    pub tables: TableLimits,
    /// What participants may send.
    pub budgets: Budgets,
    /// What one place of the network may cost, which the relay's data threads count together.
    pub gate: Gate,
    /// At least so many receivers of the same updates are sent the same bytes, their own updates
    /// among them, which they drop: that is what engines that clone need. If none, every
    /// participant is spared its own.
    pub smallest_set: Option<u32>,
}

impl RelayConfig {
    pub(super) fn sessions(&self, siblings: &Siblings) -> SessionsConfig {
        SessionsConfig {
            max_sessions: self.max_sessions,
            thread: siblings.thread(),
            threads: siblings.threads(),
            unix_zero: self.origin.0,
            log_keys: self.log_keys,
            packets_per_key: self.packets_per_key,
            limits: self.limits,
        }
    }

    /// The most pairs of target and receiver of a flush.
    pub(super) fn max_pairs(&self, max_ports: u32) -> u32 {
        // What goes to neighbours that get everything needs no subscription.
        let without = max_ports.saturating_add(MAX_PENDING_RECORDS as u32);
        self.tables.max_subscriptions.saturating_add(without)
    }

    /// The addresses that a data thread gives out.
    pub(super) fn share(&self, siblings: &Siblings, table_key: &Tag) -> Share {
        let [a, b, c, d, ..] = derive(table_key, b"canopy addresses");
        Share {
            thread: siblings.thread(),
            threads: siblings.threads(),
            start: self.life.map_or(u32::from_be_bytes([a, b, c, d]), start_of_life),
            rest: self.address_rest,
        }
    }

    pub(super) fn most_of_participant(&self) -> Most {
        Most {
            subscriptions: self.tables.max_subscriptions_per_participant,
            new_groups: self.tables.max_new_groups_per_participant,
        }
    }
}

/// Something that whoever runs a relay may want to log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A participant joined.
    Joined {
        /// The comtree.
        comtree: Comtree,
        /// Its address there.
        address: Address,
        /// Where it is.
        path: Path,
    },
    /// Somebody was not let in by the token that it brought.
    TokenRefused {
        /// The comtree that it asked for.
        comtree: Comtree,
        /// Where it is.
        path: Path,
        /// Why.
        why: TokenRefusal,
    },
    /// A link has come up: both relays have proved their keys.
    LinkUp {
        /// The neighbour's key.
        key: PublicKey,
    },
    /// A link is down: the neighbour is not heard any more, or does not hear.
    LinkDown {
        /// The neighbour's key.
        key: PublicKey,
    },
    /// A comtree's next parent is the way to its core now, and knows all that is wanted here: the branch to the
    /// old one can be removed.
    ParentSucceeded {
        /// The comtree.
        comtree: Comtree,
    },
    /// A neighbour whose role has changed to that of a comtree's parent knows all that is wanted here: it can
    /// take this relay for its child.
    ParentAsked {
        /// The comtree.
        comtree: Comtree,
    },
    /// A neighbour says something of a search for a way to a comtree's root.
    Search {
        /// The neighbour's key.
        key: PublicKey,
        /// The comtree.
        comtree: Comtree,
        /// What.
        search: WaySearch,
    },
    /// A neighbour says what a relay says of its links, or that it has heard such. The packet can be read.
    LinkState {
        /// The neighbour's key.
        key: PublicKey,
        /// The packet.
        packet: Box<[u8]>,
    },
    /// A participant is no longer there.
    Left {
        /// The comtree.
        comtree: Comtree,
        /// Its address there.
        address: Address,
    },
    /// A participant sends more than it may, or its comtree's participants do; told every few
    /// seconds of each.
    OverLimit {
        /// The comtree.
        comtree: Comtree,
        /// Its address there.
        address: Address,
        /// Where it is.
        path: Path,
        /// What there is too much of.
        what: Excess,
    },
}
