//! A comtree as it is given to a relay.

use crate::thin::Fairness;
use crate::timing::Mode;
use canopy_wire::{Comtree, Downlink, Suite};
use core::ops::RangeInclusive;

/// Endpoint numbers below this are a relay's own, one for each of its data threads: a neighbour
/// that sends to endpoint k is served by thread k.
pub const FIRST_ENDPOINT: u16 = 64;

/// The most comtrees that a relay carries.
pub const MAX_COMTREES: usize = 1024;

/// A comtree as it is given to a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComtreeConfig {
    /// Which.
    pub comtree: Comtree,
    /// The site of the relay and of its participants on this comtree, at most 15 bits and not portable
    /// ([`PORTABLE_SITES`](canopy_wire::PORTABLE_SITES)).
    pub site: u16,
    /// The endpoint numbers that participants get, from [`FIRST_ENDPOINT`] on: those below are the
    /// relay's own.
    pub endpoints: RangeInclusive<u16>,
    /// How what participants are sent is protected.
    pub downlink: Downlink,
    /// The world that it is a channel of: tokens are for a world.
    pub world: String,
    /// With downlink group, the cipher of what is sealed for all members; who does not take it is
    /// refused.
    pub group_suite: Suite,
    /// What receivers get that cannot be sent everything.
    pub fairness: Fairness,
    /// When its updates leave; the relay's mode if it has none. A relay's comtrees have
    /// [`MAX_MODES`](crate::MAX_MODES) different ones at most.
    pub mode: Option<Mode>,
}

/// The world of comtrees of which nothing else is said.
pub const DEFAULT_WORLD: &str = "main";

impl ComtreeConfig {
    /// A comtree whose participants may have any endpoint number of the site.
    pub fn new(comtree: Comtree, site: u16) -> ComtreeConfig {
        ComtreeConfig {
            comtree,
            site,
            endpoints: FIRST_ENDPOINT..=u16::MAX,
            downlink: Downlink::Member,
            world: DEFAULT_WORLD.to_owned(),
            group_suite: Suite::Aes128Gcm,
            fairness: Fairness::default(),
            mode: None,
        }
    }
}
