//! What the links carry of each comtree, as a page shows it.

use crate::net::{Busiest, ComtreeLoad, SharedNet};
use canopy_node::ThreadStatus;
use serde::Serialize;

/// The most links that a page shows, and the most comtrees of a link by name: more cannot be told apart.
pub(super) const MOST_LINKS: usize = 12;
pub(super) const MOST_COMTREES: usize = 6;

/// What a link carries.
#[derive(Serialize)]
pub(super) struct LinkLoads {
    /// The neighbour's name; in a demo, those of both relays.
    pub(super) name: String,
    pub(super) up: bool,
    /// To the neighbour; in a demo, of both directions.
    pub(super) comtrees: Vec<ComtreeLoad>,
}

/// A relay's own links, by name.
pub(super) fn of_relay(status: &ThreadStatus, net: &SharedNet) -> Vec<LinkLoads> {
    let busiest = Busiest::of(&status.comtrees);
    let mut loads = busiest.loads_of_links(status, net, MOST_COMTREES);
    let mut links: Vec<_> = status.links.iter().map(|link| (net.name(&link.key), link)).collect();
    links.sort_by(|(one, _), (other, _)| one.cmp(other));
    links.dedup_by(|(one, _), (other, _)| one == other);
    let link = |(name, link): (String, &canopy_relay::LinkStatus)| LinkLoads {
        comtrees: loads.remove(&name).unwrap_or_default(),
        up: link.is_up,
        name,
    };
    links.into_iter().take(MOST_LINKS).map(link).collect()
}
