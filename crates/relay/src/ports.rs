//! Ports: whatever an update can come from or go to, on one comtree.
//!
//! Subscriptions, pending updates, cohorts and the fan-out know ports only, so that "never back to
//! where it came from" and "core peers do not forward to core peers" (federated games §3.1) are one
//! rule for participants, for the branches of a tree, and for the data threads of a relay.

use crate::access::Rights;
use crate::addresses::Owner;
use crate::index::{ComtreeIndex, NONE, PortIndex, fold};
use crate::shape::{DatagramClass, PeerClass, Shape};
use canopy_session::SessionIndex;
use canopy_wire::{Address, Comtree, GroupKeyNumber, RequestStatus};
use hashbrown::HashTable;

/// Who is at the other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The participant of a session, as a member of the port's comtree.
    Participant(SessionIndex),
    /// A relay, over the link with this session; the port is a branch of its comtree.
    Branch(SessionIndex),
    /// Another data thread of this relay. Its port is on every comtree.
    Sibling(u16),
}

impl Peer {
    /// The session with whose keys the port's packets are sealed.
    pub(crate) fn session(self) -> Option<SessionIndex> {
        match self {
            Peer::Participant(session) | Peer::Branch(session) => Some(session),
            Peer::Sibling(_) => None,
        }
    }
}

/// The last subscribe packet of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastSubscribe {
    /// Its number; 0 before the first.
    pub(crate) sequence: u32,
    /// Whether any of its changes was refused.
    pub(crate) refused: bool,
}

/// One port: a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Port {
    pub(crate) peer: Peer,
    pub(crate) shape: Shape,
    /// Its comtree, by identifier and by place in the table. Both are without meaning for a sibling.
    pub(crate) comtree: Comtree,
    pub(crate) comtree_index: ComtreeIndex,
    /// The participant's address; of a branch, the neighbour's site.
    pub(crate) address: Address,
    /// Whose the address is, if it is a participant's.
    pub(crate) owner: Owner,
    pub(crate) last_subscribe: LastSubscribe,
    /// The number of the last request, 0 before the first, and what became of it.
    pub(crate) last_request: (u32, RequestStatus),
    /// What a participant may do; everything, if the relay asks for no tokens.
    pub(crate) rights: Option<Box<Rights>>,
    /// The newest group key that the participant has said to have.
    pub(crate) held_key: GroupKeyNumber,
    /// The next port of the same session.
    next_of_session: PortIndex,
    live: bool,
}

const _: () = assert!(size_of::<Port>() == 64);

/// Stands for the first port of a link's session: its ports are found by comtree.
const OF_LINK: PortIndex = NONE - 1;

/// All ports of a data thread.
pub(crate) struct Ports {
    ports: Vec<Port>,
    max_ports: u32,
    free: Vec<PortIndex>,
    by_address: HashTable<PortIndex>,
    /// Branches, by link and comtree.
    by_link: HashTable<PortIndex>,
    /// By session: one of its ports, each of which names the next; or [`OF_LINK`].
    first_of_session: Vec<PortIndex>,
}

impl Ports {
    /// The first `siblings` ports are those of the relay's data threads, in their order.
    pub(crate) fn new(siblings: u16, max_sessions: u32, max_ports: u32) -> Ports {
        let mut ports = Vec::with_capacity(max_ports as usize);
        ports.extend((0..siblings).map(|thread| Port {
            peer: Peer::Sibling(thread),
            shape: Shape { class: PeerClass::CorePeer, datagrams: DatagramClass::Safe },
            comtree: Comtree(0),
            comtree_index: NONE,
            address: Address::UNSPECIFIED,
            owner: Owner::default(),
            last_subscribe: LastSubscribe::default(),
            last_request: (0, RequestStatus::Done),
            rights: None,
            held_key: GroupKeyNumber::NONE,
            next_of_session: NONE,
            live: true,
        }));
        Ports {
            ports,
            max_ports,
            free: Vec::new(),
            by_address: HashTable::new(),
            by_link: HashTable::new(),
            first_of_session: vec![NONE; max_sessions as usize],
        }
    }

    pub(crate) fn get(&self, port: PortIndex) -> Option<&Port> {
        self.ports.get(port as usize).filter(|port| port.live)
    }

    pub(crate) fn get_mut(&mut self, port: PortIndex) -> Option<&mut Port> {
        self.ports.get_mut(port as usize).filter(|port| port.live)
    }

    /// A participant may do this from now on, and nothing else.
    pub(crate) fn give_rights(&mut self, port: PortIndex, rights: Box<Rights>) {
        if let Some(port) = self.get_mut(port) {
            port.rights = Some(rights);
        }
    }

    /// How many places have ever been in use; ports are numbered below this.
    pub(crate) fn high_water(&self) -> u32 {
        self.ports.len() as u32
    }

    /// The port with an address on a comtree.
    pub(crate) fn find(&self, comtree: Comtree, address: Address) -> Option<PortIndex> {
        let same = |port: &PortIndex| {
            let port = &self.ports[*port as usize];
            port.address == address && port.comtree == comtree
        };
        self.by_address.find(address_hash(comtree, address), same).copied()
    }

    /// A session is a link's from now on, or is none any more.
    pub(crate) fn mark_link(&mut self, session: SessionIndex, is_link: bool) {
        self.first_of_session[session as usize] = if is_link { OF_LINK } else { NONE };
    }

    pub(crate) fn is_link(&self, session: SessionIndex) -> bool {
        self.first_of_session[session as usize] == OF_LINK
    }

    /// The branches over a link.
    pub(crate) fn of_link(&self, link: SessionIndex) -> impl Iterator<Item = PortIndex> + use<'_> {
        let is_over =
            move |port: &&PortIndex| self.ports[**port as usize].peer == Peer::Branch(link);
        self.by_link.iter().filter(is_over).copied()
    }

    /// The ports of a participant's session.
    pub(crate) fn of_session(
        &self,
        session: SessionIndex,
    ) -> impl Iterator<Item = PortIndex> + use<'_> {
        let first = self.first_of_session[session as usize];
        core::iter::successors((first < OF_LINK).then_some(first), |port| {
            let next = self.ports[*port as usize].next_of_session;
            (next != NONE).then_some(next)
        })
    }

    /// The port of a session on a comtree: a participant's membership, or a link's branch.
    #[inline]
    pub(crate) fn of_member(&self, session: SessionIndex, comtree: Comtree) -> Option<PortIndex> {
        if self.is_link(session) {
            return self.of_branch(session, comtree);
        }
        self.of_session(session).find(|port| self.ports[*port as usize].comtree == comtree)
    }

    fn of_branch(&self, link: SessionIndex, comtree: Comtree) -> Option<PortIndex> {
        let same = |port: &PortIndex| {
            let port = &self.ports[*port as usize];
            port.peer == Peer::Branch(link) && port.comtree == comtree
        };
        self.by_link.find(link_hash(link, comtree), same).copied()
    }

    /// Opens a port of a participant or a branch; `None` if there is no room or its address is
    /// taken.
    pub(crate) fn open(
        &mut self,
        peer: Peer,
        shape: Shape,
        comtree: (Comtree, ComtreeIndex),
        address: Address,
    ) -> Option<PortIndex> {
        let is_branch = matches!(peer, Peer::Branch(_));
        if !is_branch && self.find(comtree.0, address).is_some() {
            return None;
        }
        let mut port = Port {
            peer,
            shape,
            comtree: comtree.0,
            comtree_index: comtree.1,
            address,
            owner: Owner::default(),
            last_subscribe: LastSubscribe::default(),
            last_request: (0, RequestStatus::Done),
            rights: None,
            held_key: GroupKeyNumber::NONE,
            next_of_session: NONE,
            live: true,
        };
        if let Peer::Participant(session) = peer {
            port.next_of_session = self.first_of_session[session as usize];
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.ports[index as usize] = port;
                index
            }
            None if self.high_water() < self.max_ports => {
                self.ports.push(port);
                self.high_water() - 1
            }
            None => return None,
        };
        match peer {
            Peer::Participant(session) => self.first_of_session[session as usize] = index,
            // Nobody sends to a relay itself.
            Peer::Branch(_) => {
                self.index_branch(index);
                return Some(index);
            }
            Peer::Sibling(_) => {}
        }
        let ports = &self.ports;
        let hash_of = |port: &PortIndex| {
            let port = &ports[*port as usize];
            address_hash(port.comtree, port.address)
        };
        self.by_address.insert_unique(hash_of(&index), index, hash_of);
        Some(index)
    }

    /// Closes a port; its place may be another's from now on. Returns what it was.
    pub(crate) fn close(&mut self, index: PortIndex) -> Option<Port> {
        let rights = self.get_mut(index)?.rights.take();
        let port = Port { rights, ..self.get(index)?.clone() };
        let hash = address_hash(port.comtree, port.address);
        if let Ok(entry) = self.by_address.find_entry(hash, |found| *found == index) {
            entry.remove();
        }
        match port.peer {
            Peer::Participant(session) => self.unlink_from_session(session, index),
            Peer::Branch(link) => {
                let hash = link_hash(link, port.comtree);
                if let Ok(entry) = self.by_link.find_entry(hash, |found| *found == index) {
                    entry.remove();
                }
            }
            Peer::Sibling(_) => {}
        }
        self.ports[index as usize].live = false;
        self.free.push(index);
        Some(port)
    }

    fn index_branch(&mut self, index: PortIndex) {
        let ports = &self.ports;
        let hash_of = |port: &PortIndex| {
            let port = &ports[*port as usize];
            // Branches only are in this table.
            let Peer::Branch(link) = port.peer else { return 0 };
            link_hash(link, port.comtree)
        };
        self.by_link.insert_unique(hash_of(&index), index, hash_of);
    }

    fn unlink_from_session(&mut self, session: SessionIndex, index: PortIndex) {
        let after = self.ports[index as usize].next_of_session;
        let first = self.first_of_session[session as usize];
        if first == index {
            self.first_of_session[session as usize] = after;
            return;
        }
        let before = self
            .of_session(session)
            .find(|port| self.ports[*port as usize].next_of_session == index);
        if let Some(before) = before {
            self.ports[before as usize].next_of_session = after;
        }
    }
}

/// The hash of an address on a comtree. It needs no key: relays give addresses out, so nobody can
/// choose many that collide.
fn address_hash(comtree: Comtree, address: Address) -> u64 {
    fold(u64::from(comtree.0) << 32 | u64::from(address.0))
}

fn link_hash(link: SessionIndex, comtree: Comtree) -> u64 {
    fold(u64::from(link) << 32 | u64::from(comtree.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { class: PeerClass::Participant, datagrams: DatagramClass::Safe };
    const ADDRESS: Address = Address::unicast(1, 100);

    /// The comtree of that number, which is also its place in the table.
    fn comtree(number: u32) -> (Comtree, ComtreeIndex) {
        (Comtree(number), number as ComtreeIndex)
    }

    fn sorted(ports: impl Iterator<Item = PortIndex>) -> Vec<PortIndex> {
        let mut ports: Vec<_> = ports.collect();
        ports.sort_unstable();
        ports
    }

    /// A session that is a member of three comtrees, and another one beside it.
    #[test]
    fn a_session_has_a_port_on_each_of_its_comtrees() {
        let (member, other) = (Peer::Participant(0), Peer::Participant(1));
        // In every order in which the memberships can end.
        for ends in [[0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 2, 0]] {
            let mut ports = Ports::new(2, 2, 6);
            let mut open =
                |peer, number, address| ports.open(peer, SHAPE, comtree(number), address);
            let mine = [1, 2, 3].map(|number| open(member, number, ADDRESS).unwrap());
            assert_eq!(open(other, 2, ADDRESS), None, "the address is taken");
            let theirs = open(other, 2, Address::unicast(1, 101)).unwrap();
            assert_eq!(open(other, 3, Address::unicast(1, 101)), None, "there is no more room");
            assert_eq!(sorted(ports.of_session(0)), sorted(mine.into_iter()));

            let mut left = mine.to_vec();
            for end in ends {
                for (number, port) in (1..).zip(mine) {
                    let is_open = left.contains(&port);
                    let expected = is_open.then_some(port);
                    assert_eq!(ports.of_member(0, Comtree(number)), expected);
                    assert_eq!(ports.find(Comtree(number), ADDRESS), expected);
                    assert_eq!(ports.get(port).is_some(), is_open);
                }
                let closed = ports.close(mine[end]).unwrap();
                assert_eq!((closed.peer, closed.comtree), (member, Comtree(end as u32 + 1)));
                assert!(ports.close(mine[end]).is_none(), "it is closed already");
                left.retain(|port| *port != mine[end]);
                assert_eq!(sorted(ports.of_session(0)), sorted(left.iter().copied()));
                assert_eq!(ports.of_session(1).collect::<Vec<_>>(), [theirs]);
                assert_eq!(ports.of_member(1, Comtree(2)), Some(theirs));
            }
            // What is free is used again, and belongs to the session that has it now.
            let again = ports.open(other, SHAPE, comtree(1), ADDRESS).unwrap();
            assert!(mine.contains(&again));
            assert_eq!(ports.of_member(0, Comtree(1)), None);
            assert_eq!(sorted(ports.of_session(1)), sorted([theirs, again].into_iter()));
        }
    }
}
