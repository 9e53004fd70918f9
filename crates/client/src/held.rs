//! What a client publishes just after it has turned to another relay. It waits until what the client has published over
//! the old relay has arrived, so that everybody hears it in order. It has no clock.

use crate::Outgoing;
use crate::bundles::Bundles;
use crate::relay_socket::RelaySocket;
use canopy_session::Session;
use canopy_wire::{Address, Comtree, Flags, Level, Time, Weight};
use std::collections::VecDeque;
use std::io::ErrorKind;

/// The most updates that wait: at most 6 MB, as in a receive queue.
pub(crate) const MOST_HELD: usize = 4_096;

/// Updates that wait, in their order.
pub(crate) struct Held {
    /// When they go.
    pub(crate) until: Time,
    /// What was published together leaves together.
    calls: VecDeque<Vec<Kept>>,
    updates: usize,
    /// What is being sent, and how many runs of it have left.
    leaving: Option<(Bundles, usize)>,
}

/// An update with memory of its own.
struct Kept {
    dst: Address,
    level: Level,
    weight: Weight,
    object: u16,
    flags: Flags,
    payload: Box<[u8]>,
}

impl Held {
    /// Nothing yet.
    pub(crate) fn until(until: Time) -> Held {
        Held { until, calls: VecDeque::new(), updates: 0, leaving: None }
    }

    /// Keeps what is published by one call. False if there is no room.
    pub(crate) fn keep(&mut self, updates: &[Outgoing<'_>]) -> bool {
        if self.updates + updates.len() > MOST_HELD {
            return false;
        }
        self.updates += updates.len();
        self.calls.push_back(updates.iter().map(Kept::of).collect());
        true
    }

    /// Sends what waits. Returns whether all of it has left: the system may have no room for the rest now.
    pub(crate) fn send(
        &mut self,
        session: &mut Session,
        comtree: Comtree,
        socket: &mut RelaySocket,
    ) -> bool {
        while let Some((bundles, sent)) = self.next(session, comtree) {
            // What fails otherwise is as good as lost on the way, as whatever is published is then.
            let finds_no_room = |run| {
                let sent = socket.send_run(&run);
                sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            };
            let stopped = bundles.runs().skip(sent).position(finds_no_room);
            if let Some(more) = stopped {
                self.leaving = Some((bundles, sent + more));
                return false;
            }
        }
        true
    }

    fn next(&mut self, session: &mut Session, comtree: Comtree) -> Option<(Bundles, usize)> {
        if let Some(leaving) = self.leaving.take() {
            return Some(leaving);
        }
        let call = self.calls.pop_front()?;
        self.updates -= call.len();
        let updates: Vec<_> = call.iter().map(Kept::outgoing).collect();
        Some((Bundles::pack(session, comtree, &updates), 0))
    }
}

impl Kept {
    fn of(update: &Outgoing<'_>) -> Kept {
        let Outgoing { dst, level, weight, object, payload, flags, .. } = *update;
        Kept { dst, level, weight, object, flags, payload: payload.into() }
    }

    /// In whatever epoch: that was looked at when it was published.
    fn outgoing(&self) -> Outgoing<'_> {
        let Kept { dst, level, weight, object, flags, ref payload } = *self;
        Outgoing { dst, level, weight, object, flags, payload, epoch: None }
    }
}
