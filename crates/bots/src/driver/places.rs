//! Places that a controller gives: walkers appear where it says, and go to another relay when it says so. They turn to it
//! at once if theirs is lost, and move without a break otherwise.

use super::Crowd;
use crate::config::RelayTarget;
use crate::error::CrowdError;
use crate::joining::Answered;
use crate::walker::Walker;
use canopy_client::join::{JoinError, Place};
use canopy_wire::Time;

impl Crowd<'_> {
    /// Asks for those whose lease is to be renewed, or whose relay is lost.
    pub(super) fn keep_places(&mut self, now: Time) {
        let Some(joining) = &mut self.joining else { return };
        for walker in self.walkers.iter_mut().flatten() {
            walker.look_at_errors();
            // Who has two places asks again once it has one.
            if walker.is_moving() {
                continue;
            }
            joining.keep(walker.number, now, walker.lacks_a_relay(now));
        }
    }

    /// Takes what the controller has answered.
    ///
    /// # Errors
    /// It lets a walker not in that never was, or there is no socket.
    pub(super) fn take_places(&mut self, now: Time) -> Result<(), CrowdError> {
        loop {
            let Some(joining) = &mut self.joining else { return Ok(()) };
            let walkers = &self.walkers;
            let lacks = |number: u32| {
                let walker = walkers[number as usize].as_ref();
                walker.is_some_and(|walker| walker.lacks_a_relay(now))
            };
            let Some(Answered { walker, place, .. }) = joining.next(now, lacks) else {
                return Ok(());
            };
            self.take_place(now, walker, place)?;
        }
    }

    fn take_place(
        &mut self,
        now: Time,
        number: u32,
        place: Result<Place, JoinError>,
    ) -> Result<(), CrowdError> {
        let Some(seat) = self.joining.as_mut().and_then(|joining| joining.seat(number)) else {
            return Ok(());
        };
        let place = match place {
            Ok(place) => place,
            Err(error) if seat.appears.is_some() => return Err(error.into()),
            // Whoever is in goes on, and asks again.
            Err(_) => return Ok(()),
        };
        let (appears, identity) = (seat.appears.take(), seat.identity.clone());
        let target = self.target(&place);
        let reside = |oracle: &mut canopy_judge::Oracle| {
            oracle.reside(number as usize, target.0 as u32);
        };
        if let Some(at) = appears {
            let ready = (&self.readiness, self.config.seats.as_ref());
            let mut walker = Walker::placed(number, now, target, &place, identity, ready)?;
            walker.lost = self.killings.placed(number);
            reside(&mut self.oracle);
            self.relays.go(None, target.0);
            self.appear(now, walker, at);
            return Ok(());
        }
        let walker = self.walkers[number as usize].as_mut();
        let Some(walker) = walker.filter(|walker| !walker.is_left()) else { return Ok(()) };
        if walker.relay == target.0 {
            // The relay says what it thinks of it; a session that was lost begins with it. One that is silent
            // says nothing, and gets the next one.
            if !walker.session.is_silent() {
                let _ = walker.session.set_token(place.token.into_bytes());
            }
            walker.place = place.address;
            self.turn(number, now);
            return Ok(());
        }
        let lacks_a_relay = walker.lacks_a_relay(now);
        let held = walker.end_move(now);
        let ready = (&self.readiness, self.config.seats.as_ref());
        if lacks_a_relay {
            self.relays.go(Some(walker.relay), target.0);
            walker.turn_to(now, target, &place, ready)?;
            reside(&mut self.oracle);
            self.moves += 1;
        } else if walker.move_to(now, target, &place, ready).is_err()
            && let Some(joining) = &self.joining
        {
            // There is no socket for a second session: it stays.
            joining.give_back(number, place.address);
        }
        held.iter().for_each(|row| self.send(row));
        self.turn(number, now);
        Ok(())
    }

    /// Takes the steps of a walker's move that are due.
    pub(super) fn turn_move(&mut self, number: u32, now: Time) {
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        if walker.moving.is_none() {
            return;
        }
        let moved = walker.turn_move(now, &mut self.oracle, &mut self.told, &mut self.arrivals);
        if let Some([from, to]) = moved.turned {
            self.relays.go(Some(from), to);
            self.oracle.reside(number as usize, to as u32);
            self.moves += 1;
        }
        if let (Some(address), Some(joining)) = (moved.given_back, &self.joining) {
            joining.give_back(number, address);
        }
        moved.due.iter().for_each(|row| self.send(row));
        self.judge_arrivals();
    }

    /// The relay of a place, with its number.
    fn target(&mut self, place: &Place) -> (usize, RelayTarget) {
        let target =
            RelayTarget { address: place.relay.address, key: Some(place.relay.key.to_bytes()) };
        let known = self.targets.iter().position(|known| *known == target);
        let number = known.unwrap_or_else(|| {
            self.targets.push(target);
            self.relays.add(target.address);
            self.targets.len() - 1
        });
        (number, target)
    }
}
