//! When it is looked at what waits for limited receivers.

use super::allowance::WINDOW;
use crate::shape::PeerClass;
use crate::timing::{Mode, READ_EVERY, part_of};
use canopy_wire::Time;
use core::time::Duration;

/// The time between two looks for participants: eight are a little longer than the window, so that a look
/// that was late and the eighth after it are not in one. With long ticks it is twice that: updates come in with
/// the tick, and each look is a send.
const PARTICIPANTS_EVERY: Duration = Duration::from_micros(12_800);
/// The window of a neighbour relay and of links, where looks are at parts of a tick: eight of them are
/// 100 ms exactly, and none may be lost because one was late.
const WINDOW_OF_RELAYS: Duration = Duration::from_millis(98);

/// The looks of one class of receivers.
#[derive(Clone, Copy)]
struct Grid {
    every: Duration,
    next: Time,
    /// Whether something waits for any of them.
    is_wanted: bool,
    /// Whether this is the time to look.
    is_due: bool,
}

/// The looks for participants, and those for neighbour relays. The latter go by the tick: what leaves late
/// would miss the next relay's tick.
pub(super) struct Looks {
    grids: [Grid; 2],
    is_periodic: bool,
}

impl Looks {
    pub(super) fn new(mode: Mode) -> Looks {
        let relays_every = match mode {
            Mode::Immediate => PARTICIPANTS_EVERY,
            Mode::Periodic { tick } => part_of(tick, READ_EVERY),
        };
        let participants_every = match mode {
            Mode::Periodic { tick } if tick >= 2 * PARTICIPANTS_EVERY => 2 * PARTICIPANTS_EVERY,
            _ => PARTICIPANTS_EVERY,
        };
        let grid = |every| Grid { every, next: Time::ZERO, is_wanted: false, is_due: false };
        let grids = [grid(participants_every), grid(relays_every)];
        Looks { grids, is_periodic: mode != Mode::Immediate }
    }

    /// The window within which receivers of a class are sent no more than their budget.
    pub(super) fn window(&self, class: PeerClass) -> Duration {
        if self.is_by_tick(class) { WINDOW_OF_RELAYS } else { WINDOW }
    }

    /// The time between two looks for receivers of a class.
    pub(super) fn every(&self, class: PeerClass) -> Duration {
        self.grids[usize::from(class != PeerClass::Participant)].every
    }

    fn is_by_tick(&self, class: PeerClass) -> bool {
        self.is_periodic && class != PeerClass::Participant
    }

    fn grid(&mut self, class: PeerClass) -> &mut Grid {
        &mut self.grids[usize::from(class != PeerClass::Participant)]
    }

    /// Something waits for a receiver of a class.
    #[inline]
    pub(super) fn want(&mut self, now: Time, class: PeerClass) {
        let is_by_tick = self.is_by_tick(class);
        let grid = self.grid(class);
        if !grid.is_wanted && !is_by_tick && grid.next <= now {
            // So that no window has more looks than others.
            grid.next = now.next_multiple(grid.every);
        }
        grid.is_wanted = true;
    }

    /// When to look next, if anything waits.
    pub(super) fn next(&self) -> Option<Time> {
        self.grids.iter().filter(|grid| grid.is_wanted).map(|grid| grid.next).min()
    }

    /// It is looked now at what waits for those whose time it is.
    pub(super) fn begin(&mut self, now: Time) {
        for grid in &mut self.grids {
            grid.is_due = grid.is_wanted && grid.next <= now;
        }
    }

    /// Whether it is the time of receivers of a class.
    pub(super) fn is_due(&mut self, class: PeerClass) -> bool {
        self.grid(class).is_due
    }

    /// It was looked, and something waits still for receivers of these classes.
    pub(super) fn end(&mut self, now: Time, wanted: impl Iterator<Item = PeerClass>) {
        for grid in &mut self.grids {
            grid.is_wanted = false;
            if core::mem::take(&mut grid.is_due) {
                grid.next = now.next_multiple(grid.every);
            }
        }
        for class in wanted {
            self.grid(class).is_wanted = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(50);

    #[test]
    fn no_window_of_a_participant_has_nine_looks_though_each_may_be_late() {
        for mode in [Mode::Immediate, Mode::Periodic { tick: TICK }] {
            let mut looks = Looks::new(mode);
            let mut times = Vec::new();
            looks.want(Time::from_millis(7), PeerClass::Participant);
            for number in 0..400_u64 {
                let late = Duration::from_micros(number * 7919 % 390);
                let now = looks.next().unwrap() + late;
                looks.begin(now);
                assert!(looks.is_due(PeerClass::Participant));
                assert!(!looks.is_due(PeerClass::TreeNeighbour));
                looks.end(now, [PeerClass::Participant].into_iter());
                times.push(now);
            }
            assert!(times.windows(9).all(|nine| nine[8].since(nine[0]) >= WINDOW));
        }
    }

    #[test]
    fn a_neighbour_relay_is_looked_at_with_the_tick() {
        let mut looks = Looks::new(Mode::Periodic { tick: TICK });
        let now = Time::from_millis(100);
        looks.want(now, PeerClass::TreeNeighbour);
        assert!(looks.next() <= Some(now));
        looks.begin(now);
        assert!(looks.is_due(PeerClass::CorePeer));
        looks.end(now, [PeerClass::TreeNeighbour].into_iter());
        assert_eq!(looks.next(), Some(now + TICK / 4));
        looks.begin(now + TICK / 4);
        looks.end(now + TICK / 4, core::iter::empty());
        assert_eq!(looks.next(), None);
    }
}
