//! A walker goes to another relay without a break: what it has beside its session meanwhile.

use super::{CONNECTION_REFUSED, Told, Walker};
use crate::arrival::Arrival;
use crate::config::{RelayTarget, Seats};
use crate::error::CrowdError;
use crate::grid::Grid;
use crate::participant::set_out;
use crate::trace::Row;
use canopy_client::join::Place;
use canopy_judge::{Oracle, Received};
use canopy_net::{Clock, Readiness, Receiver, Socket};
use canopy_session::handover::{Handover, Step};
use canopy_session::{Event, Session, State, Update};
use canopy_wire::{Comtree, Group, Level, MAX_DATAGRAM, Time, Weight};
use std::{io, mem};

/// The other relay's side: the next one's before the walker turns, the old one's after.
struct Other {
    relay: usize,
    session: Session,
    socket: Socket,
    set_out: Time,
    nothing_listens: bool,
    /// The walker's address there, by which the place is given back.
    address: String,
}

/// A walker's move to another relay.
pub(crate) struct Moving {
    course: Handover<Arrival>,
    other: Option<Other>,
    /// What it is to publish just after it has turned, and when.
    held: Option<(Time, Vec<Row>)>,
}

/// What has come of a move.
#[derive(Default)]
pub(crate) struct Moved {
    /// The walker has turned from one relay to another.
    pub(crate) turned: Option<[usize; 2]>,
    /// The place with this address is needed no more.
    pub(crate) given_back: Option<String>,
    /// What is to be published now.
    pub(crate) due: Vec<Row>,
}

impl Moving {
    /// The relay that leads has brought an update. `to` gets what the walker hears now. Returns whether it is another's.
    pub(crate) fn bring(&mut self, now: Time, arrival: Arrival, to: &mut Vec<Arrival>) -> bool {
        self.course.bring(now, true, arrival, |arrival| to.push(arrival.heard(now)))
    }

    /// Something else is wanted of a group.
    pub(crate) fn wish(&mut self, group: Group, wanted: Option<(Level, Weight)>) {
        if let Some(other) = &mut self.other {
            self.course.wish(&mut other.session, group, wanted);
        }
    }

    pub(crate) fn note_published(&mut self, now: Time, next: u16) {
        self.course.note_published(now, next, 1);
    }

    pub(crate) fn look_at_errors(&mut self) {
        if let Some(other) = &mut self.other {
            let error = other.socket.take_error();
            other.nothing_listens |= error.is_some_and(|error| error.kind() == CONNECTION_REFUSED);
        }
    }

    pub(crate) fn due(&self) -> Option<Time> {
        let course = self.course.due(self.other.as_ref().map(|other| &other.session));
        let held = self.held.as_ref().map(|(until, _)| *until);
        [course, held].into_iter().flatten().min()
    }
}

impl Other {
    fn is_in(&self) -> bool {
        self.session.state() == State::Connected
    }

    fn transmit(&mut self, now: Time) {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            // What the kernel does not take is repeated by the session.
            let sent = self.socket.send(&out[..len]);
            self.nothing_listens |= sent.is_err_and(|error| error.kind() == CONNECTION_REFUSED);
        }
    }
}

impl Walker {
    /// Begins to go to another relay. [`Walker::turn_move`] says what becomes of it.
    ///
    /// # Errors
    /// There is no socket.
    pub(crate) fn move_to(
        &mut self,
        now: Time,
        (relay, target): (usize, RelayTarget),
        place: &Place,
        (readiness, seats): (&Readiness, Option<&Seats>),
    ) -> Result<(), CrowdError> {
        let (socket, config) = set_out(self.number, target, Comtree(1), readiness, seats)?;
        let token = place.token.clone().into_bytes();
        let session = self.session.beside(target.key, token, config.seed);
        let address = place.address.clone();
        let (set_out, nothing_listens) = (now, false);
        let other = Some(Other { relay, session, socket, set_out, nothing_listens, address });
        let was = self.is_connected().then(|| self.session.address());
        self.moving = Some(Box::new(Moving { course: Handover::new(now, was), other, held: None }));
        Ok(())
    }

    /// Whether it has two places.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.other.is_some())
    }

    /// Keeps what it is to publish, while what it has published over its old relay is still on its way. False if it is to
    /// be published at once.
    pub(crate) fn hold_back(&mut self, row: &Row) -> bool {
        let held = self.moving.as_mut().and_then(|moving| moving.held.as_mut());
        held.map(|(_, rows)| rows.push(*row)).is_some()
    }

    /// Takes what waits on the socket of the other relay. `to` gets what the walker hears now. Returns how many of its
    /// own updates came back.
    ///
    /// # Errors
    /// The system cannot read.
    pub(crate) fn receive_beside(
        &mut self,
        receiver: &mut Receiver,
        clock: &Clock,
        to: &mut Vec<Arrival>,
    ) -> io::Result<u64> {
        let number = self.number;
        let Some(Moving { course, other: Some(Other { session, socket, .. }), .. }) =
            self.moving.as_deref_mut()
        else {
            return Ok(0);
        };
        let (mut arrived, mut echoes) = (None, 0);
        receiver.receive(socket, |_, datagram| {
            let now = *arrived.get_or_insert_with(|| clock.now());
            let hear = |update: Update<'_>| {
                let arrival = Arrival::new(number, now, update);
                let take = |arrival: Arrival| to.push(arrival.heard(now));
                echoes += u64::from(!course.bring(now, false, arrival, take));
            };
            // A datagram that is no packet delivers nothing: the oracle will miss what it held.
            let _ = session.handle_datagram(now, datagram, hear);
        })?;
        Ok(echoes)
    }

    /// Takes the steps of a move that are due. `to` gets what the walker hears now.
    pub(crate) fn turn_move(
        &mut self,
        now: Time,
        oracle: &mut Oracle,
        told: &mut Told,
        to: &mut Vec<Arrival>,
    ) -> Moved {
        let mut moved = Moved::default();
        let Some(mut moving) = self.moving.take() else { return moved };
        if let Some(other) = &mut moving.other {
            while let Some(event) = other.session.poll_event() {
                moving.course.hear(event);
            }
        }
        let is_lost = !self.is_connected()
            || self.nothing_listens
            || (self.session.is_silent() && moving.other.as_ref().is_some_and(Other::is_in));
        loop {
            let other = moving.other.as_ref();
            let other = other.map(|other| (&other.session, other.nothing_listens));
            match moving.course.step(now, other, is_lost) {
                Step::Wait => break,
                Step::Ask => {
                    if let Some(other) = &mut moving.other {
                        moving.course.ask(now, &self.session, &mut other.session);
                    }
                }
                Step::Turn => {
                    moved.turned =
                        self.change_places(now, is_lost, &mut moving, (oracle, told), to);
                }
                Step::Stay => {
                    moved.given_back = moving.end(now);
                    return moved;
                }
                Step::Left => {
                    let old = moving.other.as_mut().map(|old| &mut old.session);
                    if !moving.course.leave(now, old) {
                        moved.given_back = moving.other.take().map(|old| old.address);
                    }
                }
                Step::End => {
                    moved.due = moving.take_held();
                    return moved;
                }
            }
        }
        moving.course.handle_timeout(now, |arrival| to.push(arrival.heard(now)));
        if let Some(other) = &mut moving.other {
            other.transmit(now);
        }
        moved.due = moving.take_due(now);
        self.moving = Some(moving);
        moved
    }

    /// The next relay leads from now on; the old one is heard for a while. Returns from which to which it has turned.
    fn change_places(
        &mut self,
        now: Time,
        is_lost: bool,
        moving: &mut Moving,
        (oracle, told): (&mut Oracle, &mut Told),
        to: &mut Vec<Arrival>,
    ) -> Option<[usize; 2]> {
        let other = moving.other.as_mut()?;
        mem::swap(&mut self.session, &mut other.session);
        mem::swap(&mut self.socket, &mut other.socket);
        mem::swap(&mut self.relay, &mut other.relay);
        mem::swap(&mut self.nothing_listens, &mut other.nothing_listens);
        mem::swap(&mut self.place, &mut other.address);
        mem::swap(&mut self.set_out, &mut other.set_out);
        told.echoes += other.session.echoes();
        let number = self.number as usize;
        if is_lost {
            if other.is_in() {
                // Its session has not given up yet.
                told.reconnects += 1;
                oracle.event(now, number, Event::Lost);
            }
            self.lose();
            for (group, level, weight) in other.session.wanted() {
                self.session.subscribe_with(group, level, weight);
            }
            if self.is_connected() {
                oracle.event(now, number, Event::Connected(self.session.address()));
            }
        } else {
            oracle.hand_over(now, number, self.session.address());
        }
        if self.cells.values().any(|wish| wish.held != Some(wish.level)) {
            // What the next relay has acknowledged by now, it acknowledges again.
            self.session.renew_subscriptions();
        }
        let is = self.is_connected().then(|| self.session.address());
        let until = moving.course.turn(now, is, Some(&other.session), |arrival| {
            to.push(arrival.heard(now));
        });
        moving.held = until.map(|until| (until, Vec::new()));
        Some([other.relay, self.relay])
    }

    /// Whether it moves, and has left the cell meanwhile that something is of. That may be acknowledged by one relay only, or
    /// have waited: a program would not look at it.
    pub(crate) fn has_left_behind(&self, grid: &Grid, received: &Received) -> bool {
        let group = received.dst.group().filter(|_| self.moving.is_some());
        group.is_some_and(|group| !self.wants(grid, group, received.level))
    }

    /// Ends a move before its time. Returns what it was to publish still.
    pub(crate) fn end_move(&mut self, now: Time) -> Vec<Row> {
        let Some(mut moving) = self.moving.take() else { return Vec::new() };
        // All places are given back, or their leases end.
        moving.end(now);
        moving.take_held()
    }
}

impl Moving {
    /// Ends the other session at once. Returns its place.
    fn end(&mut self, now: Time) -> Option<String> {
        self.course.abandon();
        let mut other = self.other.take()?;
        other.session.leave();
        other.transmit(now);
        Some(other.address)
    }

    fn take_due(&mut self, now: Time) -> Vec<Row> {
        let is_due = self.held.as_ref().is_some_and(|(until, _)| *until <= now);
        if is_due { self.take_held() } else { Vec::new() }
    }

    fn take_held(&mut self) -> Vec<Row> {
        self.held.take().map(|(_, rows)| rows).unwrap_or_default()
    }
}
