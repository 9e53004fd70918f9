//! Links that are shaped for a while below what they are to carry: which ones, how far, and whether more leaves
//! over them than that.

use super::config::{OverlayConfig, OverlaySabotage};
use super::machine::key_of;
use super::queue::Step;
use super::scenario::{Habits, Scenario};
use super::world::World;
use crate::network::Direction;
use crate::scenario::{Stream, stream};
use canopy_relay::{Change, Down};
use canopy_wire::{SAFE_DATAGRAM, Time};
use rand::RngExt;
use std::collections::VecDeque;
use std::time::Duration;

/// The least length of a run with shaped links: there is room for all that waits to be sent, and for what
/// comes after it to be judged as without.
const LEAST_SECONDS: u32 = 28;
/// Links are shaped from here until so long before all is well.
const FROM: Time = Time::from_millis(3000);
const BEFORE_CALM: Duration = Duration::from_secs(5);
/// In which time such a link bears an update of every flow, as no flow gets less than one in two seconds.
const ALL_FLOWS: u64 = 2;
/// How long an update waits for a shaped link at most.
pub(crate) const WAITS: Duration = Duration::from_secs(4);
/// No such time brings more than the capacity and a datagram, from so long on after a link was shaped: before, a
/// relay does not know yet what its branches are offered, and what control packets take.
const WINDOW: Duration = Duration::from_millis(100);
const LEARNS: Duration = Duration::from_millis(250);
/// The most participants, and the most groups of a comtree.
const FEW_PARTICIPANTS: u32 = 16;
const FEW_GROUPS: u32 = 3;

/// One direction of a link, shaped for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shaped {
    pub(crate) link: usize,
    pub(crate) direction: Direction,
    capacity: Down,
    from: Time,
    until: Time,
}

impl Shaped {
    /// Whether it may thin what was published then.
    pub(crate) fn concerns(&self, published: Time) -> bool {
        published < self.waits_until()
    }

    /// When nothing waits for it any more.
    fn waits_until(&self) -> Time {
        self.until + WAITS
    }
}

/// Whether links are to be shaped. Then nothing else is broken or changes.
pub(crate) fn is_drawn(config: &OverlayConfig) -> bool {
    let is_drawn = stream(config.seed, Stream::Shaping).random_bool(0.2);
    let is_asked_for = config.sabotage.is_some_and(OverlaySabotage::is_of_shaping);
    let is_free =
        config.sabotage.is_none() && config.link_loss.is_none() && config.roles_change.is_none();
    let is_long = config.seconds >= LEAST_SECONDS && config.relays > 1;
    is_long && (is_asked_for || config.shaping.unwrap_or(is_drawn && is_free))
}

/// How many participants there are at most where links are shaped.
pub(crate) fn few(participants: u32) -> u32 {
    participants.min(FEW_PARTICIPANTS)
}

/// Much is said of few things, so that a shaped link can bear some of each, and not all.
pub(crate) fn busy(habits: &mut Habits) {
    habits.groups = habits.groups.min(FEW_GROUPS);
    habits.wants = habits.groups as usize;
    habits.publish_ms = 40..100;
    habits.unicast = habits.unicast.min(0.05);
    habits.longest = habits.longest.min(120);
}

/// One or two directions of links between relays.
pub(crate) fn draw(config: &OverlayConfig, scenario: &Scenario) -> Vec<Shaped> {
    let rng = &mut stream(config.seed, Stream::Shaping);
    rng.set_word_pos(1 << 20);
    let habits = &scenario.habits;
    let update_bits = (habits.longest as u64 + 40) * 8;
    let flows = scenario.participants as u64 * u64::from(habits.groups);
    let each_second = scenario.participants as u64 * 1000 / habits.publish_ms.start;
    let unicasts = (each_second as f64 * habits.unicast).ceil() as u64;
    let least = (flows / ALL_FLOWS + unicasts + 4) * update_bits;
    let links = scenario.links.ends().len();
    let mut shaped: Vec<Shaped> = Vec::new();
    for _ in 0..rng.random_range(1..3) {
        let one = Shaped {
            link: rng.random_range(0..links),
            direction: if rng.random() { Direction::Up } else { Direction::Down },
            capacity: Down { bits: least * rng.random_range(10..16) / 10, updates: 0 },
            from: FROM,
            until: scenario.calm_from - BEFORE_CALM,
        };
        if shaped.iter().all(|other| (other.link, other.direction) != (one.link, one.direction)) {
            shaped.push(one);
        }
    }
    shaped
}

/// What left over a shaped link lately.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    sent: VecDeque<(Time, usize)>,
    bytes: usize,
}

impl Lately {
    /// A datagram leaves. Returns what did in the last [`WINDOW`], it included.
    fn sends(&mut self, now: Time, bytes: usize) -> usize {
        self.sent.push_back((now, bytes));
        self.bytes += bytes;
        while let Some((_, bytes)) = self.sent.pop_front_if(|(at, _)| now.since(*at) >= WINDOW) {
            self.bytes -= bytes;
        }
        self.bytes
    }
}

impl World<'_> {
    pub(crate) fn plan_shaping(&mut self) {
        for number in 0..self.scenario.shaped.len() {
            let Shaped { from, until, .. } = self.scenario.shaped[number];
            self.at(from, Step::Shape(number, true));
            self.at(until, Step::Shape(number, false));
        }
    }

    /// A relay is told what it may send over a link, or that it may send everything.
    pub(crate) fn shape(&mut self, number: usize, begins: bool) {
        let Shaped { link, direction, capacity, .. } = self.scenario.shaped[number];
        if self.config.sabotage == Some(OverlaySabotage::Unshaped) {
            return;
        }
        let [a, b] = self.scenario.links.ends()[link];
        let (relay, other) = if direction == Direction::Up { (a, b) } else { (b, a) };
        let (thread, capacity) =
            (self.scenario.calls[link].0, if begins { capacity } else { Down::NONE });
        let change = Change::SetLinkCapacity { key: key_of(other), thread, capacity };
        let refused = self.machines[relay].take(self.now, &change);
        self.changed(relay, refused);
    }

    /// A relay sends over a link: if that is shaped, no more than it may.
    pub(crate) fn check_shaped(&mut self, link: usize, direction: Direction, bytes: usize) {
        let is_it = |one: &Shaped| (one.link, one.direction) == (link, direction);
        let Some(number) = self.scenario.shaped.iter().position(is_it) else { return };
        let Shaped { capacity, from, until, .. } = self.scenario.shaped[number];
        let sent = self.lately[number].sends(self.now, bytes);
        let most = capacity.bits as usize * WINDOW.as_millis() as usize / 8000 + SAFE_DATAGRAM;
        if (from + LEARNS..until).contains(&self.now) && sent > most {
            let what =
                format!("{sent} bytes left in {WINDOW:?} over link {link}, where {most} may");
            self.model.broken(self.now, || what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_shaped_in_some_of_the_seeds_that_tests_run() {
        let is_shaped = |seed: &u64| {
            let scenario = Scenario::draw(&OverlayConfig::new(3, *seed));
            scenario.shaped.iter().any(|one| one.capacity.bits > 0 && one.from < one.until)
        };
        assert!((3..20).contains(&(0..40).filter(is_shaped).count()));
        assert!((0..6).any(|seed| is_shaped(&seed)));
    }
}
