//! What reaches a data thread that is not traffic: typed changes, each applied or refused.

use crate::access::Trust;
use crate::comtree_config::{ComtreeConfig, FIRST_ENDPOINT, MAX_COMTREES};
use crate::flush_queues::MAX_MODES;
use crate::meters::Budget;
use crate::thin::{Down, Fairness};
use canopy_session::{Keyring, MAX_LINKS, PublicKey};
use canopy_token::UnixTime;
use canopy_wire::{Address, Comtree, PORTABLE_SITES, Path, Time, WaySearch};
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

/// What a neighbour is to a relay on a comtree (Forest §3.3). A relay that has no parent is in the
/// core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchRole {
    /// The way to the core: it gets every update to a group, and is told what is wanted here. Once
    /// [`Notice::ParentAsked`](crate::Notice) says that it knows all of it, a neighbour that had another role
    /// before can take this relay for its child.
    Parent,
    /// It becomes the parent in place of the one that there is, without loss (Forest §3.5). Once
    /// [`Notice::ParentSucceeded`](crate::Notice) says that it is the way to the core, the old branch can
    /// be removed, and this is the parent's. A neighbour in the core can become it, too, if there is no
    /// other in the core and no parent. It is the parent at once, and the notice says that it knows all that
    /// is wanted here: then this relay can be its child.
    NextParent,
    /// Both relays are in the core, which is a subtree: each gets every update to a group.
    Core,
    /// Both are in a meshed core, whose relays hear each other directly: it gets every update to a
    /// group that did not come from another of them (federated games §3.1).
    CorePeer,
    /// It joins the meshed core, or leaves it, or this relay does: it gets what a core peer gets, while one core
    /// peer, which takes one of the two for a neighbour in the core as in a tree, brings each what the other
    /// sends, too. What comes twice passes once, and in its publisher's order. All branches over which updates
    /// come that are not children's have to be of one data thread.
    NextPeer,
    /// It was a next peer, and the other core peer brings all from now on: nothing is sent there any more, and what
    /// was on its way is taken.
    LastPeer,
    /// Its way to the core leads here: it gets the groups that it has subscribed to.
    Child,
    /// It becomes a child by itself, once it subscribes or sends updates: this relay is its standby
    /// parent. Until then nothing is sent there.
    Standby,
}

impl BranchRole {
    /// Whether the neighbour gets every update to a group, without having asked for it.
    pub fn gets_everything(self) -> bool {
        !matches!(self, BranchRole::Child | BranchRole::Standby | BranchRole::LastPeer)
    }

    /// Whether somebody else brings what this neighbour sends as well.
    pub(crate) fn may_double(self) -> bool {
        matches!(self, BranchRole::NextPeer | BranchRole::LastPeer)
    }

    /// Whether both relays are in a meshed core, join it, or leave it: what comes from one such neighbour goes to no
    /// other.
    pub fn is_peer(self) -> bool {
        matches!(self, BranchRole::CorePeer | BranchRole::NextPeer | BranchRole::LastPeer)
    }
}

/// Which branch of a data thread: there is at most one over each link on each comtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchId {
    /// The comtree.
    pub comtree: Comtree,
    /// The neighbour's key.
    pub link: PublicKey,
    /// The data thread that has the link with it, as in [`LinkConfig::thread`].
    pub thread: u16,
}

/// A branch of a comtree, as it is given to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchConfig {
    /// Which.
    pub id: BranchId,
    /// What the neighbour is to this relay.
    pub role: BranchRole,
    /// The neighbour's site on the comtree, which is not portable. The relays of a site are a subtree
    /// (Forest §3.2).
    pub site: u16,
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
    RemoveBranch(BranchId),
    /// The neighbour is something else to this relay from now on: the core has moved, or grown.
    SetBranchRole {
        /// Which branch.
        branch: BranchId,
        /// What the neighbour is now.
        role: BranchRole,
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
    /// An address has no place here any more: send away whoever has it, and let nobody in by a token that names
    /// it, until it is admitted again. The comtree need not be there.
    Dismiss {
        /// On which comtree.
        comtree: Comtree,
        /// Which.
        address: Address,
    },
    /// An address that was dismissed has a place again.
    Admit {
        /// On which comtree.
        comtree: Comtree,
        /// Which.
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
    /// What the participants of a comtree may send, and be sent, together from now on. Every data thread is told the whole,
    /// and they share it.
    SetComtreeBudget {
        /// The comtree.
        comtree: Comtree,
        /// Its budget.
        budget: Budget,
    },
    /// What receivers of a comtree get from now on that cannot be sent everything.
    SetFairness {
        /// The comtree.
        comtree: Comtree,
        /// What they get.
        fairness: Fairness,
    },
    /// What a neighbour may send over a branch from now on, and be sent. A branch that was just added has
    /// no limits.
    SetBranchBudget {
        /// Which branch.
        branch: BranchId,
        /// Its budget.
        budget: Budget,
    },
    /// What this relay may send over a link from now on, control packets included. A link that was just
    /// added has no limits.
    SetLinkCapacity {
        /// The neighbour's key.
        key: PublicKey,
        /// The data thread that has the link.
        thread: u16,
        /// Bits of UDP payload and updates a second; 0 is no limit.
        capacity: Down,
    },
    /// What a branch is sent of a link's capacity, if it is offered as much, whatever the others are
    /// offered. What is left is shared in the same proportions. Where the guarantees are more than the
    /// capacity, they are its proportions only.
    SetBranchGuarantee {
        /// Which branch.
        branch: BranchId,
        /// Bits a second; 0 is none, and an equal part of what the others' guarantees leave.
        bits: u64,
    },
    /// Tell a neighbour something of a search for a way to a comtree's root. It is lost if the link is down.
    Search {
        /// The neighbour's key.
        key: PublicKey,
        /// The data thread that has the link.
        thread: u16,
        /// The comtree.
        comtree: Comtree,
        /// What.
        search: WaySearch,
    },
    /// Tell neighbours what relays say of their links, and what of that was heard. What is for a link that is down is lost.
    SendLinkStates {
        /// The data thread that has the links.
        thread: u16,
        /// The packets, as if they were for cleartext, each with the neighbour's key.
        packets: Vec<(PublicKey, Box<[u8]>)>,
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
            Change::AddLink(LinkConfig { thread, .. })
            | Change::RemoveLink { thread, .. }
            | Change::SetLinkCapacity { thread, .. }
            | Change::Search { thread, .. }
            | Change::SendLinkStates { thread, .. }
            | Change::AddBranch(BranchConfig { id: BranchId { thread, .. }, .. })
            | Change::RemoveBranch(BranchId { thread, .. })
            | Change::SetBranchRole { branch: BranchId { thread, .. }, .. }
            | Change::SetBranchBudget { branch: BranchId { thread, .. }, .. }
            | Change::SetBranchGuarantee { branch: BranchId { thread, .. }, .. } => {
                return Some(thread % threads);
            }
            Change::Dismiss { address, .. }
            | Change::Admit { address, .. }
            | Change::SetBudget { address, .. } => *address,
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
    /// Its comtrees would have more modes than they may.
    TooManyModes(Comtree),
    /// The range of endpoint numbers is empty once the relay's own are left out.
    NoEndpoints(Comtree),
    /// There is a branch over that link on the comtree already.
    BranchExists(Comtree),
    /// The data thread has as many ports as it can.
    TooManyPorts,
    /// There is no branch over that link on the comtree.
    UnknownBranch(Comtree),
    /// A relay has one parent, or is in the core: not both, and not two parents. A next parent comes
    /// after a parent.
    RoleConflict(Comtree),
    /// Only a next peer becomes a last peer: what others send comes over one branch alone, and would be missing.
    NoNextPeer(Comtree),
    /// Another branch leads to that site already, which is not this relay's own: the site's relays
    /// would not be a subtree, and nobody could tell which way leads to whom.
    SiteDivided(Comtree, u16),
    /// A relay cannot have a portable site: its addresses may be at any relay.
    PortableSite(Comtree, u16),
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
            Refusal::TooManyModes(Comtree(id)) => write!(
                f,
                "comtree {id} would be in one mode more than the {MAX_MODES} of a relay; give it \
                 a tick that another comtree has"
            ),
            Refusal::NoEndpoints(Comtree(id)) => write!(
                f,
                "comtree {id} has no endpoint numbers for participants; give it some from \
                 {FIRST_ENDPOINT} on"
            ),
            Refusal::BranchExists(Comtree(id)) => {
                write!(f, "comtree {id} has a branch over that link already; remove it first")
            }
            Refusal::TooManyPorts => write!(
                f,
                "this data thread has as many participants and branches as it can; remove a branch \
                 first"
            ),
            Refusal::UnknownBranch(Comtree(id)) => {
                write!(f, "comtree {id} has no branch over that link; add it first")
            }
            Refusal::RoleConflict(Comtree(id)) => write!(
                f,
                "on comtree {id} a relay has one parent, none if it is in the core, and a next-parent \
                 only beside a parent; change the other branch, or add the parent, first"
            ),
            Refusal::NoNextPeer(Comtree(id)) => write!(
                f,
                "on comtree {id} only a next-peer becomes a last-peer; make it a next-peer on both sides first"
            ),
            Refusal::SiteDivided(Comtree(id), site) => write!(
                f,
                "on comtree {id} another branch leads to site {site} already; join the relays of \
                 that site with each other, or give one of them a site of its own"
            ),
            Refusal::PortableSite(Comtree(id), site) => write!(
                f,
                "on comtree {id} site {site} is portable, and no relay's own; choose one below {}",
                PORTABLE_SITES.start()
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
