//! Which receivers are thinned most: what was left out for each of them, looked at once a second.

use super::{Down, LeftOut};
use crate::index::PortIndex;
use canopy_wire::{Address, Bound, Comtree, Path, Time};

/// The most thinned receivers that are told of.
pub const MAX_THINNED: usize = 20;

/// One of the receivers that are thinned most. Rates are of the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinnedReceiver {
    /// The comtree that it receives on.
    pub comtree: Comtree,
    /// Its address there; a neighbour relay's is its site's.
    pub address: Address,
    /// Where it is.
    pub path: Path,
    /// What it may be sent.
    pub budget: Down,
    /// What bounds that; `None` is a neighbour relay's share of its link.
    pub because: Option<Bound>,
    /// Updates a second that it was sent.
    pub delivered: u64,
    /// Updates a second that were left out for it.
    pub left_out: LeftOutRates,
    /// Which part that was of what was meant for it, in thousandths, by counts that are not rounded.
    pub part_left_out: u64,
}

/// Updates a second that were left out for a receiver, by class and reason. Those that are important or for one
/// endpoint's eyes are urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOutRates {
    /// Dropped as `thinned`.
    pub thinned: u64,
    /// The same, of urgent ones.
    pub urgent_thinned: u64,
    /// Dropped as `waited_too_long`.
    pub waited_too_long: u64,
    /// The same, of urgent ones.
    pub urgent_waited_too_long: u64,
}

impl LeftOutRates {
    /// All classes together, for whatever reason.
    pub fn all(&self) -> u64 {
        self.thinned + self.urgent_thinned + self.waited_too_long + self.urgent_waited_too_long
    }
}

impl ThinnedReceiver {
    /// Updates a second that were meant for it.
    pub fn demand(&self) -> u64 {
        self.delivered + self.left_out.all()
    }

    /// What the list is ordered by, the largest first: which part was left out, and how many updates a second. Who asked
    /// for no more comes after all others: it lacks nothing, and hides nobody who does.
    pub fn rank(&self) -> (bool, u64, u64) {
        (self.because != Some(Bound::Asked), self.part_left_out, self.left_out.all())
    }
}

/// What was left out for a port, and what it was at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Lacks {
    total: [u64; 4],
    looked: Option<Looked>,
}

#[derive(Clone, Copy, Debug)]
struct Looked {
    at: Time,
    delivered: u32,
    total: [u64; 4],
}

/// What a port was sent since the last look, and what was left out for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) delivered: u64,
    pub(crate) left_out: LeftOutRates,
    pub(crate) part_left_out: u64,
}

/// By port: what was left out; and who had most of that in the last second.
#[derive(Default)]
pub(crate) struct ThinnedReceivers {
    /// As far as anything was left out for any.
    ports: Vec<Lacks>,
    found: Vec<ThinnedReceiver>,
    most: Vec<ThinnedReceiver>,
}

impl ThinnedReceivers {
    /// Updates were left out for a port, and others were kept no more when their turn came.
    pub(crate) fn left_out(&mut self, port: PortIndex, replaced: LeftOut, too_late: LeftOut) {
        if replaced.all + too_late.all == 0 {
            return;
        }
        let index = port as usize;
        if index >= self.ports.len() {
            self.ports.resize(index + 1, Lacks::default());
        }
        let kinds = [
            replaced.all - replaced.urgent,
            replaced.urgent,
            too_late.all - too_late.urgent,
            too_late.urgent,
        ];
        self.ports[index].total.iter_mut().zip(kinds).for_each(|(total, more)| *total += more);
    }

    /// A port is closed.
    pub(crate) fn forget(&mut self, port: PortIndex) {
        if let Some(lacks) = self.ports.get_mut(port as usize) {
            *lacks = Lacks::default();
        }
    }

    /// Looks at a port, which was sent so many updates in all; they wrap. Returns what it was sent since the last look,
    /// and what was left out, if anything was.
    pub(crate) fn look(&mut self, port: PortIndex, now: Time, delivered: u32) -> Option<Rates> {
        let lacks = self.ports.get_mut(port as usize)?;
        let total = lacks.total;
        let before = lacks.looked.replace(Looked { at: now, delivered, total })?;
        let counts: [u64; 4] = core::array::from_fn(|kind| total[kind] - before.total[kind]);
        let all: u64 = counts.iter().sum();
        if all == 0 {
            return None;
        }
        let delivered = u64::from(delivered.wrapping_sub(before.delivered));
        let millis = now.since(before.at).as_millis().max(1) as u64;
        // To the nearest, but of a little there is no nothing.
        let rate = |count: u64| ((count * 1000 + millis / 2) / millis).max(count.min(1));
        let [thinned, urgent_thinned, waited_too_long, urgent_waited_too_long] = counts.map(rate);
        Some(Rates {
            delivered: rate(delivered),
            left_out: LeftOutRates {
                thinned,
                urgent_thinned,
                waited_too_long,
                urgent_waited_too_long,
            },
            part_left_out: 1000 * all / (all + delivered),
        })
    }

    /// Whether nobody is known to be thinned, nor was found in the round that is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.most.is_empty() && self.found.is_empty()
    }

    /// A receiver was found for which something was left out.
    pub(crate) fn found(&mut self, receiver: ThinnedReceiver) {
        let rank = receiver.rank();
        let at = self.found.partition_point(|one| one.rank() >= rank);
        if at < MAX_THINNED {
            self.found.truncate(MAX_THINNED - 1);
            self.found.insert(at, receiver);
        }
    }

    /// All ports have been looked at.
    pub(crate) fn end_round(&mut self) {
        core::mem::swap(&mut self.most, &mut self.found);
        self.found.clear();
    }

    /// Those that were thinned most, by which part of what was meant for them was left out.
    pub(crate) fn most(&self) -> &[ThinnedReceiver] {
        &self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, SocketAddr};

    fn left_out(all: u64, urgent: u64) -> LeftOut {
        LeftOut { all, urgent }
    }

    fn receiver(port: PortIndex, delivered: u64, left_out: LeftOutRates) -> ThinnedReceiver {
        let address = Address::unicast(1, port as u16);
        let path = SocketAddr::from((Ipv4Addr::LOCALHOST, 9)).into();
        let (budget, because) = (Down { bits: 64_000, updates: 0 }, Some(Bound::Admitted));
        let part_left_out = 1000 * left_out.all() / (delivered + left_out.all());
        ThinnedReceiver {
            comtree: Comtree(1),
            address,
            path,
            budget,
            because,
            delivered,
            left_out,
            part_left_out,
        }
    }

    #[test]
    fn each_class_and_reason_is_counted_by_the_second_from_the_second_look_on() {
        let mut thinned = ThinnedReceivers::default();
        thinned.left_out(3, left_out(1_000, 0), left_out(0, 0));
        assert_eq!(thinned.look(3, Time::from_millis(5_000), u32::MAX - 9), None);
        thinned.left_out(3, left_out(90, 10), left_out(8, 2));
        let rates = thinned.look(3, Time::from_millis(7_000), 30);
        let (thinned_rate, urgent_thinned) = (40, 5);
        let (waited_too_long, urgent_waited_too_long) = (3, 1);
        let left_out_rates = LeftOutRates {
            thinned: thinned_rate,
            urgent_thinned,
            waited_too_long,
            urgent_waited_too_long,
        };
        let expected = Rates { delivered: 20, left_out: left_out_rates, part_left_out: 710 };
        assert_eq!(rates, Some(expected));
        assert_eq!(thinned.look(3, Time::from_millis(8_000), 40), None, "nothing since");
        // A round may take a little longer than a second: one update is one, and not none.
        thinned.left_out(3, left_out(1, 0), left_out(1, 1));
        let rates = thinned.look(3, Time::from_millis(9_100), 238).unwrap();
        let one = LeftOutRates { thinned: 1, urgent_waited_too_long: 1, ..<_>::default() };
        assert_eq!(rates, Rates { delivered: 180, left_out: one, part_left_out: 10 });
        // Whoever has the port next begins with nothing.
        thinned.left_out(3, left_out(5, 0), left_out(0, 0));
        thinned.forget(3);
        assert_eq!(thinned.look(3, Time::from_millis(10_000), 0), None);
        assert_eq!(thinned.look(77, Time::from_millis(10_000), 0), None, "never limited");
    }

    #[test]
    fn the_list_has_those_who_lack_the_largest_part_and_no_more_than_it_may() {
        let mut thinned = ThinnedReceivers::default();
        // In an order that is neither.
        for port in (0..100_u32).map(|number| number * 37 % 100) {
            let left_out = LeftOutRates { thinned: 1_000 - u64::from(port), ..<_>::default() };
            thinned.found(receiver(port, u64::from(port), left_out));
        }
        assert!(thinned.most().is_empty(), "the round goes on");
        thinned.end_round();
        let most = thinned.most().iter().map(|one| u32::from(one.address.endpoint()));
        assert_eq!(most.collect::<Vec<_>>(), (0..MAX_THINNED as u32).collect::<Vec<_>>());
        thinned.end_round();
        assert!(thinned.most().is_empty());
    }
    #[test]
    fn who_asked_for_less_hides_nobody_who_lacks_something() {
        let mut thinned = ThinnedReceivers::default();
        let lacks = |thinned| LeftOutRates { thinned, ..<_>::default() };
        for port in 0..2 * MAX_THINNED as u32 {
            let asked = receiver(1_000 + port, 0, lacks(1_000));
            thinned.found(ThinnedReceiver { because: Some(Bound::Asked), ..asked });
            if port < 5 {
                thinned.found(receiver(port, 1_000, lacks(u64::from(1 + port))));
            }
        }
        thinned.end_round();
        let most = thinned.most().iter().map(|one| one.address.endpoint());
        let of_path = most.clone().take_while(|port| *port < 1_000).count();
        assert_eq!((of_path, most.len()), (5, MAX_THINNED));
    }
}
