//! One walker: a participant with a socket and a session of its own.

mod moving;

use crate::config::{CrowdConfig, RelayTarget, Seats};
use crate::error::CrowdError;
use crate::grid::{Cell, Grid};
use crate::participant::set_out;
use canopy_client::join::Place;
use canopy_judge::Oracle;
use canopy_net::{Readiness, Socket};
use canopy_session::{Event, Identity, Session, SessionConfig, State};
use canopy_wire::{
    Comtree, Group, Level, MAX_DATAGRAM, ROAMING, Record, RefusedReason, Time, Weight,
};
use moving::Moving;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::Duration;

/// What a walker's session told that the crowd counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) subscriptions_changed: u64,
    pub(crate) subscriptions_refused: u64,
    pub(crate) reconnects: u64,
    /// Those of sessions that are over, and what came back over the other relay of a walker that moves.
    pub(crate) echoes: u64,
    /// What a walker's relay refused since this was last taken.
    pub(crate) refused: Option<RefusedReason>,
}

/// By how many steps a weight must change to be worth asking again.
const NOTICEABLE: u8 = 2;
/// What the system says of a port where nothing listens.
const CONNECTION_REFUSED: ErrorKind = ErrorKind::ConnectionRefused;
/// A relay that does not take the walker so long after it was asked is as good as lost.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// A cell that a walker wants.
struct Wish {
    level: Level,
    weight: Weight,
    /// The level that the relay acknowledged.
    held: Option<Level>,
}

/// One walker.
pub(crate) struct Walker {
    pub(crate) number: u32,
    /// The number of its relay.
    pub(crate) relay: usize,
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    /// Where it last published itself to be.
    pub(crate) at: Option<[f64; 2]>,
    /// Where it appeared, unless it is leaving.
    pub(crate) appeared: Option<(f64, f64)>,
    /// The cells that it wants, in order.
    cells: BTreeMap<Cell, Wish>,
    /// Updates that it has published, or tried to.
    pub(crate) published: u64,
    /// When its session is in the queue of timers.
    pub(crate) timer: Option<Time>,
    /// When the last datagram came.
    pub(crate) heard: Time,
    /// Its address as its relay was told, by which its place is given back; empty without a controller.
    pub(crate) place: String,
    /// When it set out to its relay.
    set_out: Time,
    /// The relay's host says that nothing listens there.
    nothing_listens: bool,
    /// What it has beside, while it goes to another relay.
    pub(crate) moving: Option<Box<Moving>>,
    /// Since when it lacks its relay, or some of its subscriptions after that.
    pub(crate) lost: Option<Time>,
}

impl Walker {
    pub(crate) fn new(
        number: u32,
        now: Time,
        config: &CrowdConfig,
        readiness: &Readiness,
    ) -> Result<Walker, CrowdError> {
        let comtree = config.comtree;
        let relay = config.relay_of(number);
        let (target, seats) = (config.relays[relay], config.seats.as_ref());
        let (socket, mut session) = set_out(number, target, comtree, readiness, seats)?;
        if let Some(issuer) = &config.issuer {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret).map_err(io::Error::from)?;
            let identity = Identity::new(secret);
            session.token = issuer.issue(number, &identity, comtree)?.into_bytes();
            session.identity = Some(identity);
        }
        Ok(Walker::with(number, relay, now, socket, session))
    }

    /// One that goes where the controller says, which is the relay with this number.
    pub(crate) fn placed(
        number: u32,
        now: Time,
        (relay, target): (usize, RelayTarget),
        place: &Place,
        identity: Identity,
        (readiness, seats): (&Readiness, Option<&Seats>),
    ) -> Result<Walker, CrowdError> {
        let comtree = place.comtrees.first().copied().unwrap_or(Comtree(1));
        let (socket, mut session) = set_out(number, target, comtree, readiness, seats)?;
        session.token = place.token.clone().into_bytes();
        session.identity = Some(identity);
        session.watches = true;
        let walker = Walker::with(number, relay, now, socket, session);
        Ok(Walker { place: place.address.clone(), ..walker })
    }

    fn with(
        number: u32,
        relay: usize,
        now: Time,
        socket: Socket,
        session: SessionConfig,
    ) -> Walker {
        Walker {
            number,
            relay,
            socket,
            session: Session::new(session),
            at: None,
            appeared: None,
            cells: BTreeMap::new(),
            published: 0,
            timer: None,
            heard: now,
            place: String::new(),
            set_out: now,
            nothing_listens: false,
            moving: None,
            lost: None,
        }
    }

    /// Goes on at another relay, as it has lost its own.
    pub(crate) fn turn_to(
        &mut self,
        now: Time,
        (relay, target): (usize, RelayTarget),
        place: &Place,
        (readiness, seats): (&Readiness, Option<&Seats>),
    ) -> Result<(), CrowdError> {
        // A socket that is closed is watched no more.
        self.socket = set_out(self.number, target, Comtree(1), readiness, seats)?.0;
        self.relay = relay;
        self.place.clone_from(&place.address);
        self.set_out = now;
        self.nothing_listens = false;
        self.session.turn_to(now, target.key, place.token.clone().into_bytes());
        Ok(())
    }

    /// Something came from the relay.
    pub(crate) fn hear(&mut self, now: Time) {
        self.heard = now;
        self.nothing_listens = false;
    }

    /// Looks at what became of earlier datagrams.
    pub(crate) fn look_at_errors(&mut self) {
        let error = self.socket.take_error();
        self.nothing_listens |= error.is_some_and(|error| error.kind() == CONNECTION_REFUSED);
        if let Some(moving) = &mut self.moving {
            moving.look_at_errors();
        }
    }

    fn send(&mut self, datagram: &[u8]) {
        // What the kernel does not take is lost, and the oracle will find it missing; what belongs to
        // the session is repeated.
        if let Err(error) = self.socket.send(datagram) {
            self.nothing_listens |= error.kind() == CONNECTION_REFUSED;
        }
    }

    /// Whether it seems to have lost its relay.
    pub(crate) fn lacks_a_relay(&self, now: Time) -> bool {
        let is_overdue = now.since(self.set_out) > CONNECT_PATIENCE;
        self.nothing_listens || self.session.is_silent() || (!self.is_connected() && is_overdue)
    }

    /// Since when it was without its relay or some of its subscriptions, once it is no more.
    pub(crate) fn take_outage(&mut self) -> Option<Time> {
        if self.is_connected() && self.has_all() { self.lost.take() } else { None }
    }

    /// Whether all that it wants is acknowledged.
    fn has_all(&self) -> bool {
        self.cells.values().all(|wish| wish.held.is_some())
    }

    /// It is without its relay.
    fn lose(&mut self) {
        self.lost.get_or_insert(self.heard);
        self.cells.values_mut().for_each(|wish| wish.held = None);
    }

    /// Subscribes to the cells around a position and unsubscribes from those left behind. With `weigh`, what
    /// is at some distance has that weight.
    pub(crate) fn look_around(
        &mut self,
        now: Time,
        grid: &Grid,
        (x, y): (f64, f64),
        weigh: Option<fn(f64) -> Weight>,
        cells: &mut Vec<Cell>,
        oracle: &mut Oracle,
    ) {
        grid.cells_around(x, y, cells);
        let weight_of =
            |cell: &Cell| weigh.map_or(Weight::ONE, |weigh| weigh(grid.distance(*cell, x, y)));
        let wish_for = |cell: &Cell| Wish {
            level: grid.level_of(*cell, x, y),
            weight: weight_of(cell),
            held: None,
        };
        let is_same = |wish: &Wish, other: &Wish| {
            let is_near = wish.weight.0.abs_diff(other.weight.0) < NOTICEABLE;
            wish.level == other.level && is_near && (wish.weight == other.weight || weigh.is_some())
        };
        // Both are in order, so equality is a walk along them.
        let is_known =
            |(cell, wish): (&Cell, &Wish), now: &Cell| cell == now && is_same(wish, &wish_for(now));
        if self.cells.len() == cells.len()
            && self.cells.iter().zip(&*cells).all(|(known, now)| is_known(known, now))
        {
            return;
        }
        let (session, number, moving) = (&mut self.session, self.number as usize, &mut self.moving);
        let mut wish_beside = |group, wanted| {
            if let Some(moving) = moving {
                moving.wish(group, wanted);
            }
        };
        self.cells.retain(|cell, _| {
            let keep = cells.binary_search(cell).is_ok();
            if !keep {
                let group = grid.group_of(*cell);
                session.unsubscribe(group);
                wish_beside(group, None);
                oracle.request(now, number, group, None);
            }
            keep
        });
        for cell in cells {
            let wanted = wish_for(cell);
            let wish = self.cells.get_mut(cell);
            if wish.as_ref().is_some_and(|wish| is_same(wish, &wanted)) {
                continue;
            }
            let (group, level) = (grid.group_of(*cell), wanted.level);
            session.subscribe_with(group, level, wanted.weight);
            wish_beside(group, Some((level, wanted.weight)));
            // Another weight alone is no other subscription.
            if wish.as_ref().is_none_or(|wish| wish.level != level) {
                oracle.request(now, number, group, Some(level));
            }
            match wish {
                Some(wish) => *wish = Wish { held: wish.held, ..wanted },
                None => drop(self.cells.insert(*cell, wanted)),
            }
        }
    }

    /// Publishes to the group of the walker's cell.
    pub(crate) fn publish(&mut self, now: Time, group: Group, level: Level, payload: &[u8]) {
        let mut out = [0; MAX_DATAGRAM];
        // It is in one cell at a time.
        let update = Record { level, object: ROAMING, ..Record::new(group.address(), 0, payload) };
        if let Ok(len) = self.session.publish_record(&update, &mut out) {
            self.send(&out[..len]);
            if let Some(moving) = &mut self.moving {
                moving.note_published(now, self.session.take_series(0));
            }
        }
    }

    /// Sends what the session has to send, and hears what it has to tell.
    pub(crate) fn turn(&mut self, now: Time, grid: &Grid, oracle: &mut Oracle, told: &mut Told) {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            self.send(&out[..len]);
        }
        while let Some(event) = self.session.poll_event() {
            oracle.event(now, self.number as usize, event);
            match event {
                Event::Subscribed(group, level) => {
                    told.subscriptions_changed += 1;
                    self.acknowledge(grid, group, level);
                }
                Event::Unsubscribed(_) => told.subscriptions_changed += 1,
                Event::SubscriptionRefused(..) => told.subscriptions_refused += 1,
                Event::Lost => {
                    told.reconnects += 1;
                    self.lose();
                }
                Event::Refused(reason) => told.refused = Some(reason),
                Event::Connected(_)
                | Event::Busy(_)
                | Event::Thinned(_)
                | Event::Rebound
                | Event::Gone(_)
                | Event::Closed
                | Event::SentAway(_)
                | Event::Answered(..) => {}
            }
        }
    }

    fn acknowledge(&mut self, grid: &Grid, group: Group, level: Level) {
        let cell = self.cells.iter_mut().find(|(cell, _)| grid.group_of(**cell) == group);
        if let Some((_, wish)) = cell {
            wish.held = Some(level);
        }
    }

    /// Begins to leave. Returns since when it is without its relay or some of its subscriptions, if it is. Its session may
    /// not have given up yet.
    pub(crate) fn leave(&mut self, now: Time, oracle: &mut Oracle) -> Option<Time> {
        let seems_lost = self.nothing_listens || self.session.is_silent();
        oracle.vanish(now, self.number as usize);
        self.session.leave();
        (self.at, self.appeared) = (None, None);
        self.lost.take().or(seems_lost.then_some(self.heard))
    }

    /// Whether it wants a group's updates of this level.
    fn wants(&self, grid: &Grid, group: Group, level: Level) -> bool {
        let is_it =
            |(cell, wish): (&Cell, &Wish)| grid.group_of(*cell) == group && level <= wish.level;
        self.cells.iter().any(is_it)
    }

    /// When it wants to be called again; `None` once its session is over.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let session = self.session.poll_timeout()?;
        let moving = self.moving.as_ref().and_then(|moving| moving.due());
        Some(moving.map_or(session, |at| at.min(session)))
    }

    /// The level at which it has a group.
    pub(crate) fn level_held(&self, grid: &Grid, group: Group) -> Option<Level> {
        let cell = self.cells.iter().find(|(cell, _)| grid.group_of(**cell) == group);
        cell.and_then(|(_, wish)| wish.held)
    }

    /// The cells to which its subscription is acknowledged, with their levels.
    pub(crate) fn acknowledged(&self) -> Vec<(Cell, Level)> {
        self.cells.iter().filter_map(|(cell, wish)| Some((*cell, wish.held?))).collect()
    }

    /// Whether it is leaving, or has left.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.session.state(), State::Leaving | State::Closed)
    }

    /// Whether [`Walker::leave`] would be understood: it is not under way already, nor is there a
    /// connect that has to be answered first.
    pub(crate) fn may_leave(&self) -> bool {
        matches!(self.session.state(), State::Greeting | State::Connected)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session.state() == State::Connected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_judge::Rules;
    use std::net::SocketAddr;

    #[test]
    fn who_leaves_before_its_session_gives_up_had_an_outage() {
        let outage = |nothing_listens| {
            let readiness = Readiness::new().unwrap();
            let target = RelayTarget::from(SocketAddr::from(([127, 0, 0, 1], 1)));
            let (socket, session) = set_out(0, target, Comtree(1), &readiness, None).unwrap();
            let mut walker = Walker::with(0, 0, Time::ZERO, socket, session);
            walker.hear(Time::from_millis(500));
            walker.nothing_listens = nothing_listens;
            let rules = Rules::undisturbed(Duration::from_secs(1), Duration::from_secs(1));
            let mut oracle = Oracle::new(rules, [Comtree(1)].into_iter());
            walker.leave(Time::from_millis(2_000), &mut oracle)
        };
        assert_eq!(outage(true), Some(Time::from_millis(500)));
        assert_eq!(outage(false), None);
    }
}
