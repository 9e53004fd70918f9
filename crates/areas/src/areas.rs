//! What a controller tells of a world's areas, and how they change without loss.

use crate::division::{Area, Division};
use crate::error::AreasError;
use crate::plane::Point;
use crate::ring::{Near, Ring};
use canopy_wire::Group;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most rings.
const MOST_RINGS: usize = 8;

/// When areas are split and merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// An area with more than so many in it is split into quarters.
    pub split_above: u32,
    /// Four quarters with fewer than so many in them together are merged; half of what splits at most.
    pub merge_below: u32,
    /// How often a cell is quartered at most, 1 to [`Area::DEEPEST`]; other numbers count as the nearest.
    pub deepest: u8,
}

impl Rules {
    pub(crate) fn depth(&self) -> u8 {
        self.deepest.clamp(1, Area::DEEPEST)
    }
}

/// What is in force, by the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is one division.
    Settled,
    /// The next one is known: its groups are subscribed to as well, and nobody publishes to them yet.
    Ready,
    /// Everybody publishes by the next one. The one before is still subscribed to, for those who have
    /// not heard yet.
    Turned,
}

/// A world's areas as they are told. Changes go in steps, which everybody follows and confirms:
///
/// | step, divided by 3, leaves | publishes by | subscribes by |
/// |---|---|---|
/// | 0 | the division | the division |
/// | 1 | the division | both |
/// | 2 | the next | both |
///
/// A step follows only when all have confirmed the one before. So two who are a step apart still hear
/// each other; and as an update has one group, whoever hears it hears it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Areas {
    /// How many steps there have been.
    pub step: u64,
    /// The division.
    pub division: Division,
    /// The one that takes its place, while the step is not a multiple of 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Division>,
    /// How far one hears, from the innermost ring on.
    pub rings: Vec<Ring>,
    /// When areas are split and merged; never if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
}

/// What a follower says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The step that it has carried out.
    pub step: u64,
    /// The area where it is, by the division by which it publishes; nothing while it is nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<Area>,
}

impl Areas {
    /// The first areas of a world.
    ///
    /// # Errors
    /// Something about them is not allowed.
    pub fn new(
        division: Division,
        rings: Vec<Ring>,
        rules: Option<Rules>,
    ) -> Result<Areas, AreasError> {
        let areas = Areas { step: 0, division, next: None, rings, rules };
        areas.check()?;
        Ok(areas)
    }

    /// They as text: JSON, as it is told and stored.
    pub fn to_text(&self) -> String {
        // Numbers that JSON does not have were refused before.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a text says, if everything about it is as it should be.
    ///
    /// # Errors
    /// It is no text of areas, or something about them is not allowed.
    pub fn from_text(text: &[u8]) -> Result<Areas, AreasError> {
        let read: Result<Areas, _> = serde_json::from_slice(text);
        let areas = read.map_err(|error| AreasError::Text(error.to_string()))?;
        areas.check().map(|()| areas)
    }

    /// Whether everything about them is as it should be. Whoever gets areas from elsewhere checks them.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), AreasError> {
        self.division.check()?;
        self.next.as_ref().map_or(Ok(()), Division::check)?;
        let is_number = |ring: &Ring| ring.radius.is_finite() && ring.radius >= 0.0;
        let is_ordered =
            |pair: &[Ring]| pair[0].radius < pair[1].radius && pair[0].level > pair[1].level;
        let count = 1..=MOST_RINGS;
        if !count.contains(&self.rings.len())
            || !self.rings.iter().all(is_number)
            || !self.rings.windows(2).all(is_ordered)
        {
            return Err(AreasError::Rings);
        }
        match self.rules {
            Some(Rules { split_above, merge_below, .. })
                if split_above == 0 || merge_below > split_above / 2 =>
            {
                Err(AreasError::Rules { split_above, merge_below })
            }
            _ => Ok(()),
        }
    }

    /// What is in force.
    pub fn phase(&self) -> Phase {
        match (&self.next, self.step % 3) {
            (None, _) | (_, 0) => Phase::Settled,
            (_, 1) => Phase::Ready,
            _ => Phase::Turned,
        }
    }

    /// Begins a change to another division. Nothing happens while one is under way.
    pub fn begin(&mut self, next: Division) {
        if self.phase() == Phase::Settled {
            self.step = self.step - self.step % 3 + 1;
            self.next = Some(next);
        }
    }

    /// Goes on with a change, once all have confirmed the step.
    pub fn go_on(&mut self) {
        match self.phase() {
            Phase::Settled => {}
            Phase::Ready => self.step += 1,
            Phase::Turned => {
                self.step += 1;
                if let Some(next) = self.next.take() {
                    self.division = next;
                }
            }
        }
    }

    /// The division by which everybody publishes.
    pub fn in_force(&self) -> &Division {
        match (&self.next, self.phase()) {
            (Some(next), Phase::Turned) => next,
            _ => &self.division,
        }
    }

    /// The group to which one publishes at a position.
    pub fn publish_at(&self, position: Point) -> Group {
        self.in_force().group_at(position)
    }

    /// The groups to which one subscribes at a position, with their levels and distances.
    pub fn hear_at(&self, position: Point) -> BTreeMap<Group, Near> {
        let mut groups = self.division.near(position, &self.rings);
        if let Some(next) = &self.next {
            for (group, near) in next.near(position, &self.rings) {
                let both = groups.entry(group).or_insert(near);
                both.level = both.level.max(near.level);
                both.distance = both.distance.min(near.distance);
            }
        }
        groups
    }
}
