//! Lanes: whose packets wait in which receive buffer.

use crate::{Comtree, Kind};

/// One of the receive buffers that a data thread has for sessions. A flood fills the one that it
/// comes in by, and no other (Forest §2.2: comtrees are isolated from each other).
///
/// Its number is the low part of a session's number, so that the kernel can steer by it. Which lane
/// a comtree has follows from the comtree's number alone: so a relay knows on which lane its
/// neighbour reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    /// How many there are.
    pub const COUNT: u8 = 8;
    /// What relays say to each other besides updates: no flood of updates keeps a link's signs of
    /// life from being read.
    pub const CONTROL: Lane = Lane(0);
    /// The bits of a session's number that are the lane's.
    pub(crate) const BITS: u32 = Lane::COUNT.trailing_zeros();

    /// The lane of a comtree's updates, and of the sessions that joined it first. Comtrees whose
    /// numbers are alike modulo seven share one.
    pub const fn of(comtree: Comtree) -> Lane {
        match comtree.0 {
            0 => Lane::CONTROL,
            number => Lane(1 + ((number - 1) % (Lane::COUNT as u32 - 1)) as u8),
        }
    }

    /// The lane of a packet on a link: that of its comtree if it has updates, and otherwise the one
    /// for control.
    pub const fn on_link(kind: Kind, comtree: Comtree) -> Lane {
        match kind {
            Kind::Updates => Lane::of(comtree),
            _ => Lane::CONTROL,
        }
    }

    /// The lane with this number; of a higher one, the low bits count.
    pub const fn new(number: u8) -> Lane {
        Lane(number % Lane::COUNT)
    }

    /// Its number, below [`Lane::COUNT`].
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All of them, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Lane> {
        (0..Lane::COUNT).map(Lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comtrees_one_after_the_other_have_different_lanes() {
        let lanes: Vec<u8> = (0..=8).map(|comtree| Lane::of(Comtree(comtree)).number()).collect();
        assert_eq!(lanes, [0, 1, 2, 3, 4, 5, 6, 7, 1]);
        assert_eq!(Lane::of(Comtree(u32::MAX)), Lane::new(3));
    }

    #[test]
    fn only_updates_leave_a_links_control_lane() {
        for kind in Kind::ALL {
            let expected =
                if *kind == Kind::Updates { Lane::of(Comtree(3)) } else { Lane::CONTROL };
            assert_eq!(Lane::on_link(*kind, Comtree(3)), expected, "{kind:?}");
        }
    }
}
