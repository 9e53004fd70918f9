//! A viewer: subscribed to every walker, with weights that follow both.

use super::peer::{LEVEL, Peer};
use super::recording::{Viewed, Weighed};
use crate::error::CrowdError;
use crate::position::Position;
use canopy_net::{Clock, Receiver};
use canopy_wire::{Group, Time, Weight};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a viewer looks where everybody is.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A weight is asked for anew if it has changed by so many steps of its scale, a twelfth of a doubling
/// each.
const NOTICEABLE: u8 = 2;

pub(super) struct Viewer {
    pub(super) peer: Peer,
    pub(super) gaze: Gaze,
}

/// What a viewer looks at, and what it sees.
pub(super) struct Gaze {
    pub(super) viewed: Viewed,
    /// By walker: the weight that was asked for last.
    asked: Vec<Option<Weight>>,
    /// When it looks around next; never before it is subscribed.
    pub(super) look_at: Option<Time>,
}

/// The group of a walker's updates.
pub(super) fn group_of(walker: usize) -> Group {
    Group::new(walker as u32)
}

impl Gaze {
    pub(super) fn new(walker: u32, budget: f64, walkers: usize) -> Gaze {
        let viewed = Viewed {
            walker,
            budget,
            bits: 0.0,
            arrivals: Vec::new(),
            datagrams: Vec::new(),
            weights: Vec::new(),
        };
        Gaze { viewed, asked: vec![None; walkers], look_at: None }
    }

    /// Asks (`ask`) for every walker that has a place with the weight that its distance makes, if that is
    /// another than was asked for.
    pub(super) fn look_around(
        &mut self,
        now: Time,
        places: &[Option<[f64; 2]>],
        weight_of: fn(f64) -> Weight,
        mut ask: impl FnMut(usize, Weight),
    ) {
        let own = self.viewed.walker as usize;
        let Some([x, y]) = places[own] else { return };
        for (walker, place) in places.iter().enumerate().filter(|(walker, _)| *walker != own) {
            let Some([to_x, to_y]) = *place else { continue };
            let weight = weight_of((to_x - x).hypot(to_y - y));
            let is_as_asked = |asked: &Weight| asked.0.abs_diff(weight.0) < NOTICEABLE;
            if self.asked[walker].as_ref().is_some_and(is_as_asked) {
                continue;
            }
            self.asked[walker] = Some(weight);
            ask(walker, weight);
            self.viewed.weights.push(Weighed { at: now, walker: walker as u32, weight });
        }
    }
}

impl Viewer {
    /// Looks around, and asks its relay.
    pub(super) fn look_around(
        &mut self,
        now: Time,
        places: &[Option<[f64; 2]>],
        weight_of: fn(f64) -> Weight,
    ) {
        let Viewer { peer, gaze } = self;
        gaze.look_around(now, places, weight_of, |walker, weight| {
            peer.session.subscribe_with(group_of(walker), LEVEL, weight);
        });
    }

    /// Takes what waits on its socket. What the kernel says of when it arrived counts, so that this
    /// program makes nothing older.
    pub(super) fn receive(
        &mut self,
        clock: &Clock,
        receiver: &mut Receiver,
    ) -> Result<(), CrowdError> {
        let Viewer { peer, gaze: Gaze { viewed, .. } } = self;
        receiver.fill(&peer.socket)?;
        let now = clock.now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        while let Some((_, arrived, datagram)) = receiver.next_stamped(&peer.socket) {
            let ago = arrived.map_or(Duration::ZERO, |arrived| unix.saturating_sub(arrived));
            let arrived = Time::ZERO + now.since(Time::ZERO + ago);
            let (len, before) = (datagram.len() as u32, viewed.arrivals.len());
            // A datagram that is no packet brings nothing.
            let _ = peer.session.handle_datagram(now, datagram, |update| {
                let position = Position::decode(update.payload);
                viewed.arrivals.extend(position.map(|position| (position.number, arrived)));
            });
            if viewed.arrivals.len() > before {
                viewed.datagrams.push((arrived, len));
            }
        }
        Ok(())
    }
}
