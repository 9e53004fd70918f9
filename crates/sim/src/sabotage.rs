//! Faults put between the relay and the network: the proof that the oracle can find them.

use canopy_wire::Packet;
use std::net::SocketAddr;
use std::rc::Rc;

/// A fault put between the relay and the network: every n-th datagram with updates is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// It is not sent.
    DropOneIn(u32),
    /// It is sent twice.
    DuplicateOneIn(u32),
    /// A copy is sent to another participant.
    MisdeliverOneIn(u32),
    /// It is sent after the next one to the same participant.
    SwapOneIn(u32),
    /// The last byte of its last update is changed.
    AlterOneIn(u32),
    /// Updates that are left out for who may be sent so much only are not counted.
    ThinUncounted,
    /// What the relay seals is counted from zero again with each key, and sealed with the first.
    CountAgain,
    /// Tokens that are revoked are not told to the relay.
    KeepRevoked,
    /// Tokens that are to grant a part grant everything.
    GrantAll,
    /// The relay lets in whoever comes, where it is to ask for tokens.
    LetAllIn,
    /// Who may be sent so much only gets nothing of one publisher, which is said to be left out.
    Starve,
    /// The relay is told that who may be sent so many updates only may be sent twice as many.
    TwiceAsMany,
    /// Whoever floods may send as much as it wants.
    Unpoliced,
    /// Everything is received by one lane.
    OneLane,
    /// Whoever floods takes groups of the others' part, too: it is on their comtree.
    OnePart,
}

impl Sabotage {
    /// Whether it is one of tokens, which are asked for then.
    pub(crate) fn is_of_tokens(self) -> bool {
        matches!(self, Sabotage::KeepRevoked | Sabotage::LetAllIn | Sabotage::GrantAll)
    }

    /// Whether it is one of floods, which are there then.
    pub(crate) fn is_of_floods(self) -> bool {
        matches!(self, Sabotage::Unpoliced | Sabotage::OneLane | Sabotage::OnePart)
    }
}

/// Commits one kind of fault, again and again.
pub(crate) struct Saboteur {
    sabotage: Option<Sabotage>,
    /// Datagrams with updates so far.
    carriers: u32,
    held_back: Option<Outgoing>,
}

/// A datagram, and where to.
type Outgoing = (SocketAddr, Rc<[u8]>);

impl Saboteur {
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Saboteur {
        Saboteur { sabotage, carriers: 0, held_back: None }
    }

    /// What is sent in place of a datagram.
    pub(crate) fn take(
        &mut self,
        to: SocketAddr,
        bytes: Rc<[u8]>,
        carries_updates: bool,
        someone: impl FnOnce() -> SocketAddr,
    ) -> Vec<Outgoing> {
        let held_back = self.held_back.take_if(|(receiver, _)| *receiver == to);
        let Some(sabotage) = self.sabotage.filter(|_| carries_updates) else {
            return [(to, bytes)].into_iter().chain(held_back).collect();
        };
        self.carriers += 1;
        let is_hit = |one_in: u32| self.carriers.is_multiple_of(one_in);
        let mut sent = match sabotage {
            Sabotage::DropOneIn(n) if is_hit(n) => Vec::new(),
            Sabotage::DuplicateOneIn(n) if is_hit(n) => vec![(to, bytes.clone()), (to, bytes)],
            Sabotage::MisdeliverOneIn(n) if is_hit(n) => {
                vec![(to, bytes.clone()), (someone(), bytes)]
            }
            Sabotage::SwapOneIn(n) if is_hit(n) && self.held_back.is_none() => {
                self.held_back = Some((to, bytes));
                Vec::new()
            }
            Sabotage::AlterOneIn(n) if is_hit(n) => vec![(to, altered(&bytes))],
            _ => vec![(to, bytes)],
        };
        sent.extend(held_back);
        sent
    }
}

/// With another last byte of its last update.
fn altered(bytes: &[u8]) -> Rc<[u8]> {
    let mut altered = bytes.to_vec();
    let updates = Packet::new_checked(bytes).and_then(|packet| packet.updates());
    if let Some(update) = updates.ok().and_then(Iterator::last) {
        let end = update.payload.as_ptr_range().end.addr() - bytes.as_ptr().addr();
        altered[end - 1] ^= 1;
    }
    altered.into()
}
