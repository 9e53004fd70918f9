//! What the oracle says of receivers that cannot be sent everything: they may miss updates, but the relay
//! counts each; and what was said last of anything reaches them in the end.

use crate::oracle::Oracle;
use crate::window::{Receiver, Update};
use canopy_wire::{Address, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// An older update that a relay reads so long after a newer one of its flow may take its place: it could be of a
/// publisher that has begun to count anew.
const BEGINS_ANEW: Duration = Duration::from_millis(200);

/// The newest update of a flow that was for a receiver.
struct Newest {
    id: u64,
    receiver: Receiver,
    /// When the relay read it.
    read: Time,
}

impl Oracle {
    /// A participant may be sent so much only, until it connects again.
    pub fn limit(&mut self, participant: usize) {
        self.standings[participant].limit();
    }

    /// Whether a participant may be sent so much only.
    pub fn is_limited(&self, participant: usize) -> bool {
        self.standings[participant].is_limited()
    }

    /// Whether an update is known still, and a participant's.
    pub fn is_by(&self, id: u64, participant: usize) -> bool {
        self.window.get(id).is_some_and(|update| update.publish.publisher == participant)
    }

    /// Whether an update is known still, and is a participant's own, which it is not to get back.
    pub fn is_own(&self, id: u64, participant: usize) -> bool {
        let connection = self.standings[participant].connection;
        self.window.get(id).is_some_and(|Update { connection: of, publish, .. }| {
            *of == connection && publish.dst.is_group() && !publish.echo
        })
    }

    /// Notes how many updates the relay says that it has left out for receivers that cannot be sent everything,
    /// or that wait for them. To be told before each judgement.
    pub fn left_out(&mut self, updates: u64) {
        self.left_out = updates;
    }

    /// What the relay has left out must account for all that was missed.
    pub(crate) fn check_left_out(&mut self, now: Time) {
        let (thinned, left_out) = (self.tally.thinned, self.left_out);
        if thinned > left_out {
            self.broken(format!(
                "{now}: receivers miss {thinned} updates, of which the relay has left out {left_out}"
            ));
        }
    }

    /// At the end, when nothing has been said for so long that all that waited must have been sent: the
    /// newest update of each flow must have reached every receiver that it was for.
    pub fn check_starved(&mut self, now: Time) {
        let mut newest: BTreeMap<(u32, u64, Address), Newest> = BTreeMap::new();
        for (id, update) in self.window.all() {
            let Some(read) = update.read else { continue };
            for (who, receiver) in update.receivers.iter().filter(|(_, receiver)| receiver.due) {
                let flow = (who, update.connection, update.publish.dst);
                newest.insert(flow, Newest { id, receiver: *receiver, read });
            }
        }
        for ((who, ..), Newest { id, receiver, read }) in newest {
            let Some(update) = self.window.get(id) else { continue };
            // Its own comes back in a row that others share only until it says something newer.
            if update.connection == self.standings[who as usize].connection {
                continue;
            }
            if receiver.came || receiver.lost || !self.must(now, update, who as usize) {
                continue;
            }
            // Whoever the other was for: a receiver may have come since. It may be a late copy, too.
            let takes_its_place = |(other, one): (u64, &Update)| {
                let is_of_flow =
                    (one.connection, one.publish.dst) == (update.connection, update.publish.dst);
                other != id
                    && is_of_flow
                    && one.last_read.is_some_and(|at| at >= read + BEGINS_ANEW)
            };
            if self.window.all().any(takes_its_place) {
                continue;
            }
            self.tally.starved += 1;
            self.note(|window| {
                format!("{now}: participant {who} waits in vain for {}", window.describe(id))
            });
        }
    }
}
