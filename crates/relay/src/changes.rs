//! What reaches a data thread that is not traffic: typed changes, each applied or refused.

use crate::access::Trust;
use crate::comtrees::{ComtreeConfig, FIRST_ENDPOINT, MAX_COMTREES};
use crate::meters::Budget;
use canopy_session::{Keyring, MAX_LINKS, PublicKey};
use canopy_token::UnixTime;
use canopy_wire::{Address, Comtree, Path, Time};
use core::net::IpAddr;
use std::sync::Arc;

/// A link to a neighbour relay, as it is given to one of the two: a session of both, in which each
/// has proved its key to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The key that the neighbour is known by.
    pub key: PublicKey,
    /// The way to the neighbour. Who is called takes the way that the call came by.
    pub path: Path,
    /// Which data thread has the link, on both sides: its number modulo how many each relay has. A
    /// data thread has one link with a neighbour.
    pub thread: u16,
    /// Whether this relay calls. One of the two does; the other waits to be called.
    pub calls: bool,
}

/// A branch of a comtree, as it is given to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchConfig {
    /// The comtree.
    pub comtree: Comtree,
    /// The neighbour relay's own address on it, with the number of the link's data thread as its
    /// endpoint.
    pub neighbour: Address,
    /// The neighbour's key: the branch is over the link with it.
    pub link: PublicKey,
    /// Whether the neighbour is a core peer: one of a meshed core, whose members hear each other
    /// directly (federated games §3.1).
    pub is_core_peer: bool,
}

/// One change to a running data thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Carry a comtree from now on.
    AddComtree(ComtreeConfig),
    /// Carry a comtree no more; its members are sent away.
    RemoveComtree(Comtree),
    /// Have a link with a neighbour relay.
    AddLink(LinkConfig),
    /// The end of a link, and of the branches over it.
    RemoveLink {
        /// The neighbour's key.
        key: PublicKey,
        /// The data thread that has the link.
        thread: u16,
    },
    /// Send to, and take from, a neighbour relay on a comtree.
    AddBranch(BranchConfig),
    /// The end of a branch.
    RemoveBranch {
        /// Its comtree.
        comtree: Comtree,
        /// Its neighbour's own address.
        neighbour: Address,
    },
    /// The most subscriptions of a participant; what it has it keeps.
    LimitSubscriptions(u32),
    /// New keys for cookies and session secrets. Cookies of the old ones are no longer taken; the
    /// participants that have them ask again.
    ReplaceKeys(Keyring),
    /// Let in by these keys from now on, and send those away whose tokens are taken no more. Has a
    /// meaning only where tokens are asked for; there is no way back to letting in whoever comes.
    Trust {
        /// The keys.
        trust: Arc<Trust>,
        /// The time of day when the relay's [`Time`] was zero.
        origin: UnixTime,
    },
    /// Send a participant away.
    ThrowOut {
        /// The comtree that it is a member of.
        comtree: Comtree,
        /// Its address there.
        address: Address,
    },
    /// What a participant may send from now on.
    SetBudget {
        /// The comtree that it is a member of.
        comtree: Comtree,
        /// Its address there.
        address: Address,
        /// Its budget.
        budget: Budget,
    },
    /// Nothing that is sent to this address arrives: send nothing there until `until`, so that it
    /// takes nobody else's room in the kernel's queues.
    Mute {
        /// The address of this network.
        ip: IpAddr,
        /// Until when.
        until: Time,
    },
    /// Take no one new, and tell the participants to go.
    Drain,
}

impl Change {
    /// The data thread of a relay with `threads` that alone is concerned, if not all are: addresses
    /// belong to the thread that the kernel steers them to.
    pub fn thread(&self, threads: u16) -> Option<u16> {
        let threads = threads.max(1);
        let address = match self {
            Change::AddLink(LinkConfig { thread, .. }) | Change::RemoveLink { thread, .. } => {
                return Some(thread % threads);
            }
            Change::AddBranch(branch) => branch.neighbour,
            Change::RemoveBranch { neighbour, .. } => *neighbour,
            Change::ThrowOut { address, .. } | Change::SetBudget { address, .. } => *address,
            _ => return None,
        };
        Some(address.endpoint() % threads)
    }
}

/// Why a change was not applied. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The relay carries the comtree already.
    ComtreeExists(Comtree),
    /// The relay does not carry the comtree.
    UnknownComtree(Comtree),
    /// The relay carries as many comtrees as it can.
    TooManyComtrees,
    /// The range of endpoint numbers is empty once the relay's own are left out.
    NoEndpoints(Comtree),
    /// Somebody has the address on that comtree already, or there is no room for another port.
    AddressTaken(Comtree, Address),
    /// A neighbour's own address has an endpoint number below [`FIRST_ENDPOINT`].
    NoRelayAddress(Address),
    /// A neighbour has the relay's own site: what it brings could not be told from what its own
    /// participants send.
    OwnSite(Address),
    /// Nobody has the address on that comtree.
    UnknownAddress(Comtree, Address),
    /// As many addresses are muted as can be.
    TooManyMuted,
    /// The data thread has a link with the neighbour already.
    LinkExists,
    /// The data thread has no link with the neighbour.
    UnknownLink,
    /// The data thread has as many links as it can, [`MAX_LINKS`].
    TooManyLinks,
    /// The neighbour's key is the relay's own.
    OwnKey,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refusal::ComtreeExists(Comtree(id)) => {
                write!(f, "comtree {id} is there already; remove it first")
            }
            Refusal::UnknownComtree(Comtree(id)) => {
                write!(f, "this relay does not carry comtree {id}; add it first")
            }
            Refusal::TooManyComtrees => {
                write!(f, "a relay carries at most {MAX_COMTREES} comtrees; remove one first")
            }
            Refusal::NoEndpoints(Comtree(id)) => write!(
                f,
                "comtree {id} has no endpoint numbers for participants; give it some from \
                 {FIRST_ENDPOINT} on"
            ),
            Refusal::AddressTaken(Comtree(id), address) => write!(
                f,
                "{address} on comtree {id} is taken, or there is no room for another port; \
                 choose another address or remove a branch"
            ),
            Refusal::NoRelayAddress(address) => write!(
                f,
                "{address} is no relay's own address; those have endpoint numbers below \
                 {FIRST_ENDPOINT}"
            ),
            Refusal::OwnSite(address) => write!(
                f,
                "{address} is of this relay's own site; give the neighbour a site of its own"
            ),
            Refusal::UnknownAddress(Comtree(id), address) => {
                write!(
                    f,
                    "nobody has the address {address} on comtree {id}; it may have left by now"
                )
            }
            Refusal::LinkExists => {
                write!(f, "this data thread has a link with that relay already; remove it first")
            }
            Refusal::UnknownLink => {
                write!(f, "this data thread has no link with a relay of that key; add it first")
            }
            Refusal::TooManyLinks => {
                write!(f, "a data thread has at most {MAX_LINKS} links; remove one first")
            }
            Refusal::OwnKey => {
                write!(f, "that is this relay's own key; give each relay a key of its own")
            }
            Refusal::TooManyMuted => {
                write!(f, "as many addresses are muted as can be; wait for one to end")
            }
        }
    }
}

impl core::error::Error for Refusal {}
