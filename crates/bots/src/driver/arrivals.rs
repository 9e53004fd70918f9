//! What arrives: received from the sockets, handed to the oracle, shown to viewers.

use super::Crowd;
use crate::arrival::Arrival;
use crate::error::CrowdError;
use crate::grid::COARSE;
use crate::position::Position;
use crate::view::Heard;
use crate::walker::Walker;
use canopy_judge::{Carriage, Received};
use canopy_session::Update;

impl Crowd<'_> {
    /// Takes what waits on a walker's socket. Judging it waits until all sockets are read: what
    /// the oracle takes is no part of an update's age.
    pub(super) fn receive(&mut self, number: u32) -> Result<(), CrowdError> {
        let Some(walker) = &mut self.walkers[number as usize] else { return Ok(()) };
        if self.joining.is_some() {
            walker.look_at_errors();
        }
        let (clock, arrivals) = (&self.clock, &mut self.arrivals);
        // Read when the first is here: a clock read before would make them younger than they are.
        let mut arrived = None;
        let Walker { session, socket, moving, .. } = walker;
        let told = &mut self.told;
        self.receiver.receive(socket, |_, datagram| {
            let now = *arrived.get_or_insert_with(|| clock.now());
            let deliver = |update: Update<'_>| {
                let arrival = Arrival::new(number, now, update);
                match moving {
                    Some(moving) => {
                        told.echoes += u64::from(!moving.bring(now, arrival, arrivals));
                    }
                    None => arrivals.push(arrival),
                }
            };
            // A datagram that is no packet delivers nothing: the oracle will miss what it held.
            let _ = session.handle_datagram(now, datagram, deliver);
        })?;
        if let Some(now) = arrived {
            walker.hear(now);
        }
        let Crowd { receiver, clock, arrivals, .. } = self;
        self.told.echoes += walker.receive_beside(receiver, clock, arrivals)?;
        Ok(())
    }

    pub(super) fn judge_arrivals(&mut self) {
        for Arrival { receiver, at, position, received, .. } in self.arrivals.drain(..) {
            let last = self.oracle.tally().published;
            let id = position.and_then(|position| position.id(last));
            let walker = self.walkers[receiver as usize].as_ref();
            if walker.is_some_and(|walker| walker.has_left_behind(&self.config.grid, &received)) {
                continue;
            }
            // What is left of a budget may go to another group before.
            let overtaken = self.limited.contains(&receiver);
            let carriage = Carriage { sent: at, copy: false, overtaken };
            self.oracle.received(at, receiver as usize, &Received { id, ..received }, carriage);
            let Some(position) = position else { continue };
            let age = at.since(position.published);
            self.ages.record(age);
            if self.watched.contains(&receiver) {
                let Position { walker, x, y, .. } = position;
                let receiver_has = self.walkers.get(receiver as usize).and_then(Option::as_ref);
                let held = received.dst.group().zip(receiver_has);
                let held = held.and_then(|(group, w)| w.level_held(&self.config.grid, group));
                let level = held.unwrap_or(COARSE);
                let heard = Heard { x, y, received: at, age, level, rate: 0.0 };
                self.heard.entry(receiver).or_default().push((walker, heard));
            }
        }
    }
}
