//! Who was not let in because there was no room: counted, and told once a second for each world and place.
//! Whoever asks again and again so floods nobody who listens.

use super::Controller;
use crate::admission::{Admission, Enter};
use crate::error::Refusal;
use crate::model::WorldId;
use crate::op::Event;
use canopy_wire::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// Refusals are gathered for so long before they are told.
const GATHER: Duration = Duration::from_secs(1);
/// Those of so many worlds and places at a time; others are only counted.
const MOST: usize = 64;
/// Among them so many of one world: who asks in vain everywhere hides no other world's refusals.
const MOST_OF_WORLD: usize = 8;

/// How often somebody was not let in because there was no room, in this life of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotLetIn {
    /// All in all.
    pub refusals: u64,
    /// How many of these no event has told of, as there were too many worlds and places in one second.
    pub untold: u64,
}

/// What is gathered, and how much there was.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: NotLetIn,
    /// By world and place: the last one, and how many there were.
    gathered: BTreeMap<(WorldId, String), (Refusal, u64)>,
    /// When they are told.
    due: Option<Time>,
}

impl Refusals {
    fn take(&mut self, now: Time, world: WorldId, refusal: &Refusal) {
        let Some(place) = place_of(refusal) else { return };
        self.counts.refusals += 1;
        let key = (world, place);
        let of_world = self.gathered.range((world, String::new())..);
        let of_world = of_world.take_while(|((of, _), _)| *of == world).count();
        let is_full = self.gathered.len() >= MOST || of_world >= MOST_OF_WORLD;
        if is_full && !self.gathered.contains_key(&key) {
            self.counts.untold += 1;
            return;
        }
        self.due.get_or_insert(now + GATHER);
        let (last, times) = self.gathered.entry(key).or_insert_with(|| (refusal.clone(), 0));
        last.clone_from(refusal);
        *times += 1;
    }

    fn tell(&mut self, now: Time) -> impl Iterator<Item = Event> + use<> {
        let is_due = self.due.is_some_and(|at| at <= now);
        let due = if is_due { core::mem::take(&mut self.gathered) } else { BTreeMap::new() };
        self.due = self.due.filter(|_| !is_due);
        due.into_iter().map(|((world, _), (why, times))| Event::NotLetIn { world, why, times })
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }
}

/// Which relay, link or else has no room, if that is why.
fn place_of(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::Full { what, .. } => Some(what.clone()),
        Refusal::Apart { relay, .. } => Some(relay.to_string()),
        Refusal::NoRelay(_) => Some("relays".to_owned()),
        Refusal::NoAddress(_) => Some("addresses".to_owned()),
        _ => None,
    }
}

impl Controller {
    /// How often somebody was not let in because there was no room.
    pub fn not_let_in(&self) -> NotLetIn {
        self.refusals.counts
    }

    /// Notes what became of a question for a place.
    pub(super) fn note(
        &mut self,
        now: Time,
        ask: &Enter,
        result: Result<Admission, Refusal>,
    ) -> Result<Admission, Refusal> {
        if let (Err(refusal), Ok(world)) = (&result, self.state.world(&ask.world)) {
            self.refusals.take(now, world.id, refusal);
        }
        result
    }

    pub(super) fn tell_refusals(&mut self, now: Time) {
        self.events.extend(self.refusals.tell(now));
    }
}
