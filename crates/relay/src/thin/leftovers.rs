//! What still waits for single members of a shared row, from the time before they joined it.
//!
//! A member that joins takes along what waited for it: the row's others may have got that long ago. Where they have
//! not, it gets that with them. As a rule the flow's next update takes its place. Only what nothing newer came of for
//! a while is sent, to that member alone.

use crate::index::{FlowId, LogNumber, PortIndex, fold};
use canopy_wire::Time;
use core::time::Duration;
use hashbrown::HashTable;
use std::collections::VecDeque;

/// The flow's next update has so long to come in place of an older one.
const PATIENCE: Duration = Duration::from_millis(500);
/// The most that is taken along; what is beyond is left out.
const MOST: usize = 4096;

/// An update that waits for one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub(crate) port: PortIndex,
    pub(crate) flow: FlowId,
    pub(crate) update: LogNumber,
    /// Bytes that it takes in a datagram.
    pub(crate) len: u16,
}

/// Those of one row, the oldest first.
#[derive(Default)]
pub(crate) struct Leftovers {
    waiting: VecDeque<(Time, Leftover)>,
    /// Their flows, and some of which nothing is left.
    flows: HashTable<FlowId>,
}

impl Leftovers {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A member has brought an update along. Returns whether there is room for it.
    pub(crate) fn bring(&mut self, now: Time, leftover: Leftover) -> bool {
        if self.waiting.len() == MOST {
            return false;
        }
        self.waiting.push_back((now, leftover));
        let (flow, hash) = (leftover.flow, |flow: &FlowId| fold((*flow).into()));
        self.flows.entry(hash(&flow), |other| *other == flow, hash).or_insert(flow);
        true
    }

    /// The next that goes to `port`, or to anyone if that is `None`, if it is of a length that `fits`.
    pub(crate) fn next(
        &mut self,
        now: Time,
        port: Option<PortIndex>,
        fits: impl Fn(u16) -> bool,
    ) -> Option<Leftover> {
        let (since, leftover) = self.waiting.front()?;
        let is_due = now.since(*since) >= PATIENCE && port.is_none_or(|port| port == leftover.port);
        if !is_due || !fits(leftover.len) {
            return None;
        }
        let (_, leftover) = self.waiting.pop_front()?;
        if self.waiting.is_empty() {
            self.flows.clear();
        }
        Some(leftover)
    }

    /// Something newer of a flow has come: what is left of it goes nowhere. Calls `left_out` with each.
    #[inline]
    pub(crate) fn replace(&mut self, flow: FlowId, left_out: impl FnMut(Leftover)) {
        if self.waiting.is_empty() {
            return;
        }
        if let Ok(found) = self.flows.find_entry(fold(flow.into()), |other| *other == flow) {
            found.remove();
            self.retain(|leftover| leftover.flow != flow, left_out);
        }
    }

    /// Takes out what goes to all members of the row now; calls `taken` with each, and `left_out` with what its member
    /// brought along before it of the same flow. Updates are in the order of their numbers.
    pub(crate) fn take(
        &mut self,
        updates: &[LogNumber],
        mut taken: impl FnMut(Leftover),
        left_out: impl FnMut(Leftover),
    ) {
        let mut gone: Vec<(PortIndex, FlowId, LogNumber)> = Vec::new();
        self.retain(
            |leftover| updates.binary_search(&leftover.update).is_err(),
            |leftover| {
                gone.push((leftover.port, leftover.flow, leftover.update));
                taken(leftover);
            },
        );
        if !gone.is_empty() {
            gone.sort_unstable();
            let is_newest = |Leftover { port, flow, update, .. }: &Leftover| {
                let next = gone.partition_point(|other| *other <= (*port, *flow, *update));
                gone.get(next).is_none_or(|other| (other.0, other.1) != (*port, *flow))
            };
            self.retain(is_newest, left_out);
        }
    }

    /// Takes out those that are not to be kept; calls `left_out` with each.
    pub(crate) fn retain(
        &mut self,
        is_kept: impl Fn(&Leftover) -> bool,
        mut left_out: impl FnMut(Leftover),
    ) {
        self.waiting.retain(|(_, leftover)| {
            let is_kept = is_kept(leftover);
            if !is_kept {
                left_out(*leftover);
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftover(port: PortIndex, flow: FlowId) -> Leftover {
        Leftover { port, flow, update: LogNumber::from(flow), len: 10 }
    }

    #[test]
    fn what_nothing_newer_came_of_goes_after_a_while_to_one_member_at_a_time() {
        let mut leftovers = Leftovers::default();
        for (port, flow) in [(1, 5), (1, 6), (2, 5)] {
            assert!(leftovers.bring(Time::from_millis(100), leftover(port, flow)));
        }
        assert_eq!(leftovers.next(Time::from_millis(599), None, |_| true), None);
        let now = Time::from_millis(600);
        assert_eq!(leftovers.next(now, None, |len| len < 10), None, "it waits");
        assert_eq!(leftovers.next(now, None, |len| len == 10), Some(leftover(1, 5)));
        assert_eq!(leftovers.next(now, Some(1), |_| true), Some(leftover(1, 6)));
        assert_eq!(leftovers.next(now, Some(1), |_| true), None);
        let mut left_out = Vec::new();
        leftovers.replace(6, |_| panic!("nothing of this flow is left"));
        leftovers.replace(5, |leftover| left_out.push(leftover.port));
        assert!(leftovers.is_empty());
        assert_eq!(left_out, [2]);
    }

    #[test]
    fn what_goes_with_the_others_goes_after_nothing_newer() {
        let mut leftovers = Leftovers::default();
        let of_flow = |port, update| Leftover { update, ..leftover(port, 5) };
        for (port, update) in [(1, 10), (1, 11), (1, 12), (2, 10), (2, 12)] {
            leftovers.bring(Time::ZERO, of_flow(port, update));
        }
        leftovers.bring(Time::ZERO, leftover(1, 6));
        let (mut taken, mut left_out) = (Vec::new(), Vec::new());
        let port_and_update = |one: Leftover| (one.port, one.update);
        leftovers.take(
            &[9, 11],
            |one| taken.push(port_and_update(one)),
            |one| left_out.push(port_and_update(one)),
        );
        assert_eq!((taken, left_out), (vec![(1, 11)], vec![(1, 10)]));
        let rest: Vec<_> = leftovers.waiting.iter().map(|(_, one)| port_and_update(*one)).collect();
        assert_eq!(rest, [(1, 12), (2, 10), (2, 12), (1, 6)]);
    }

    #[test]
    fn there_is_an_end_to_what_is_taken_along() {
        let mut leftovers = Leftovers::default();
        let brought =
            (0..=MOST as u32).filter(|flow| leftovers.bring(Time::ZERO, leftover(1, *flow)));
        assert_eq!(brought.count(), MOST);
        assert_eq!(leftovers.len(), MOST);
    }
}
