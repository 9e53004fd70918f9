//! What is going to happen, in the order in which it will.

use crate::network::Direction;
use canopy_wire::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Something that happens.
pub(crate) enum Step {
    Arrive(Datagram),
    /// A data thread is woken by another: relay, its epoch, thread.
    WakeThread(usize, u32, usize),
    /// Relay and data thread.
    Turn(usize, usize),
    /// A session asked to be polled.
    Wake(usize),
    Join(usize),
    /// A participant leaves for another relay.
    Roam(usize),
    /// A participant wants something else.
    Choose(usize),
    Publish(usize),
    Judge,
    /// By its number in the scenario.
    Break(usize),
    Mend(usize),
    Heal,
    LeaveAll,
}

/// A datagram on its way.
#[derive(Clone)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Rc<[u8]>,
    pub(crate) wire: usize,
    pub(crate) direction: Direction,
}

struct Entry {
    at: Time,
    number: u64,
    step: Step,
}

/// The steps to come. Of those at the same time, the first that was planned comes first.
#[derive(Default)]
pub(crate) struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    planned: u64,
}

impl Queue {
    pub(crate) fn plan(&mut self, at: Time, step: Step) {
        self.planned += 1;
        self.entries.push(Reverse(Entry { at, number: self.planned, step }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, Step)> {
        self.entries.pop().map(|Reverse(Entry { at, step, .. })| (at, step))
    }

    /// How many datagrams are on their way.
    pub(crate) fn on_the_way(&self) -> u64 {
        let is_datagram = |entry: &&Reverse<Entry>| matches!(entry.0.step, Step::Arrive(_));
        self.entries.iter().filter(is_datagram).count() as u64
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}
