//! The set that was sent to last, sorted by how its members are served.

use super::next_hop::NextHops;
use super::slot::{Entry, MEMBERS};
use canopy_wire::Path;
use std::net::{IpAddr, SocketAddr};

/// Sets smaller than this are sent to one by one: one clone costs less than one send, but readying
/// the kernel's side costs about as much as four.
pub(crate) const SMALLEST_SET: usize = 8;
/// How many members one send looks at, to find hops that the kernel must send to itself.
const LOOKED_AT: usize = 32;

/// The members of a set.
#[derive(Default)]
pub(crate) struct Members {
    all: Vec<Path>,
    /// The state of [`NextHops`] from which the members were sorted.
    generation: u64,
    /// IPv4, IPv6.
    pub(crate) families: [FamilySet; 2],
}

/// Members of one family whose packets are cloned.
#[derive(Default)]
pub(crate) struct FamilySet {
    /// Where their copies come from.
    pub(crate) source: Option<IpAddr>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Where each is in the set.
    pub(crate) places: Vec<usize>,
    hops: Vec<u32>,
    /// Who is looked at next for its hop.
    cursor: usize,
}

impl Members {
    /// Sorts the members, unless they are those of the last time. Returns whether it did. Copies
    /// come from the address that a member's path says, or else from `local`, or where that is
    /// unspecified, from where the route says.
    pub(crate) fn sort(
        &mut self,
        hops: &mut NextHops,
        local: IpAddr,
        members: impl Iterator<Item = Path> + Clone,
    ) -> bool {
        let generation = hops.generation();
        if self.generation == generation && members.clone().eq(self.all.iter().copied()) {
            return false;
        }
        self.generation = generation;
        self.all.clear();
        self.all.extend(members);
        for set in &mut self.families {
            set.clear();
        }
        for (place, path) in self.all.iter().enumerate() {
            let (member, local) = (&path.remote, path.local.unwrap_or(local).to_canonical());
            let to = SocketAddr::new(member.ip().to_canonical(), member.port());
            let set = &mut self.families[usize::from(to.is_ipv6())];
            let way = hops.way(to.ip());
            let source = way.and_then(|way| source_of(local, way.source, to.ip()));
            if let (Some(way), Some(source)) = (way, source)
                && set.source.is_none_or(|others| others == source)
                && set.entries.len() < MEMBERS
            {
                set.source = Some(source);
                set.entries.push(Entry::new(to, way.mac));
                set.addresses.push(*member);
                set.places.push(place);
                set.hops.push(way.hop);
            }
        }
        for set in &mut self.families {
            if set.entries.len() < SMALLEST_SET {
                set.clear();
            }
        }
        true
    }
}

impl FamilySet {
    fn clear(&mut self) {
        self.source = None;
        self.entries.clear();
        self.addresses.clear();
        self.places.clear();
        self.hops.clear();
    }

    /// Moves those members to the front whose hops the kernel has sent nothing to by itself for too
    /// long. Returns how many they are.
    ///
    /// The kernel looks after a neighbour only as its own packets go there: were all packets
    /// copied past it, it would never learn of a hardware address that has changed.
    pub(crate) fn bring_due_to_front(&mut self, hops: &mut NextHops) -> usize {
        let mut due = 0;
        for _ in 0..LOOKED_AT.min(self.entries.len()) {
            self.cursor = (self.cursor + 1) % self.entries.len();
            if hops.take_due(self.hops[self.cursor]) {
                self.entries.swap(due, self.cursor);
                self.addresses.swap(due, self.cursor);
                self.places.swap(due, self.cursor);
                self.hops.swap(due, self.cursor);
                due += 1;
            }
        }
        due
    }
}

/// Where copies for a receiver come from: the socket's own address, or if it has none, what the
/// route says.
fn source_of(local: IpAddr, preferred: Option<IpAddr>, receiver: IpAddr) -> Option<IpAddr> {
    if local.is_unspecified() {
        return preferred;
    }
    (local.is_ipv4() == receiver.is_ipv4()).then_some(local)
}
