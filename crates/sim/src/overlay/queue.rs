//! What is going to happen, in the order in which it will.

use crate::network::Direction;
use canopy_relay::Change;
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
    /// By its number in the scenario: a relay gets a next parent; the old one lets it go, and it the old
    /// one.
    Succeed(usize),
    LetGo(usize),
    Leave(usize),
    /// By its number in the scenario: a relay is told that its settings have changed, has taken them, and
    /// says that its parent knows what is wanted there.
    Reload(usize),
    Reloaded(usize),
    Word(usize),
    /// A relay is given a change.
    Change(usize, Box<Change>),
    /// By its number in the scenario: a link is shaped from now on, or not any more.
    Shape(usize, bool),
    /// Somebody who floods does what it does next.
    Flood(usize),
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

struct Entry<S> {
    at: Time,
    number: u64,
    step: S,
}

/// The steps to come. Of those at the same time, the first that was planned comes first.
pub(crate) struct Queue<S> {
    entries: BinaryHeap<Reverse<Entry<S>>>,
    planned: u64,
}

impl<S> Default for Queue<S> {
    fn default() -> Queue<S> {
        Queue { entries: BinaryHeap::new(), planned: 0 }
    }
}

impl<S> Queue<S> {
    pub(crate) fn plan(&mut self, at: Time, step: S) {
        self.planned += 1;
        self.entries.push(Reverse(Entry { at, number: self.planned, step }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, S)> {
        self.entries.pop().map(|Reverse(Entry { at, step, .. })| (at, step))
    }

    /// When the next step is.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }
}

impl Queue<Step> {
    /// How many datagrams are on their way.
    pub(crate) fn on_the_way(&self) -> u64 {
        let is_datagram = |entry: &&Reverse<Entry<Step>>| matches!(entry.0.step, Step::Arrive(_));
        self.entries.iter().filter(is_datagram).count() as u64
    }
}

impl<S> Ord for Entry<S> {
    fn cmp(&self, other: &Entry<S>) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<S> PartialOrd for Entry<S> {
    fn partial_cmp(&self, other: &Entry<S>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<S> PartialEq for Entry<S> {
    fn eq(&self, other: &Entry<S>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<S> Eq for Entry<S> {}
