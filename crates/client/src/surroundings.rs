//! Weights that follow movement: a game gives positions, and asks again for what matters more or less now.

use crate::Falloff;
use canopy_wire::{Group, Level, Weight};
use std::collections::BTreeMap;

/// By how many steps a weight must change to be worth asking again: two are an eighth more, or a ninth less. So
/// whoever goes to and fro does not ask each time.
const NOTICEABLE: u8 = 2;

/// The groups around a client, where they are and how large. From them it makes the subscriptions that
/// follow the client's movement, each with a weight by its distance.
///
/// It only computes. What it returns is to be given to
/// [`PollClient::subscribe_weighted`](crate::PollClient::subscribe_weighted), or to the method of `Client`
/// that has the same name.
///
/// ```
/// use canopy_client::{Falloff, Group, Level, Surroundings};
///
/// let (well, castle) = (Group::new(1), Group::new(2));
/// let mut surroundings = Surroundings::new(Falloff::METRES);
/// surroundings.put(well, Level(0), [10.0, 0.0, 0.0], 2.0);
/// surroundings.put(castle, Level(0), [400.0, 300.0, 0.0], 5000.0);
///
/// // Both are new; give them to `subscribe_weighted`.
/// assert_eq!(surroundings.seen_from([0.0; 3]).len(), 2);
/// // One step further, the castle looks as before.
/// let changed = surroundings.seen_from([2.0, 0.0, 0.0]);
/// assert_eq!(changed.iter().map(|(group, ..)| *group).collect::<Vec<_>>(), [well]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    falloff: Falloff,
    groups: BTreeMap<Group, Seen>,
}

/// A group in the world, and what was last asked for.
#[derive(Clone, Copy, Debug)]
struct Seen {
    level: Level,
    position: [f32; 3],
    size: f32,
    asked: Option<(Level, Weight)>,
}

impl Surroundings {
    /// Nothing is around yet.
    pub fn new(falloff: Falloff) -> Surroundings {
        Surroundings { falloff, ..Surroundings::default() }
    }

    /// A group is at this `position`, in metres, from now on, has a `size` in square metres
    /// ([`Falloff::weight`]), and is wanted at this level. For a group that is a cell of the world, take the
    /// place in it that is nearest to the client, and the size of one of those who may be there: they share
    /// the group's weight.
    pub fn put(&mut self, group: Group, level: Level, position: [f32; 3], size: f32) {
        let asked = self.groups.get(&group).and_then(|seen| seen.asked);
        self.groups.insert(group, Seen { level, position, size, asked });
    }

    /// A group is no longer around. Returns whether it was asked for, so that its subscription is to be
    /// ended.
    pub fn remove(&mut self, group: Group) -> bool {
        self.groups.remove(&group).is_some_and(|seen| seen.asked.is_some())
    }

    /// The subscriptions to ask for now that the client is at this `position`, in metres: those that were never
    /// asked for, those with another level, and those whose weight is noticeably another, by two
    /// of its steps or more.
    pub fn seen_from(&mut self, position: [f32; 3]) -> Vec<(Group, Level, Weight)> {
        let mut changed = Vec::new();
        for (group, seen) in &mut self.groups {
            let weight = self.falloff.weight(distance(position, seen.position), seen.size);
            let is_known = seen.asked.is_some_and(|(level, asked)| {
                level == seen.level && asked.0.abs_diff(weight.0) < NOTICEABLE
            });
            if !is_known {
                seen.asked = Some((seen.level, weight));
                changed.push((*group, seen.level, weight));
            }
        }
        changed
    }

    /// The relay has refused a group: it is asked for again with the next look around.
    pub fn was_refused(&mut self, group: Group) {
        if let Some(seen) = self.groups.get_mut(&group) {
            seen.asked = None;
        }
    }
}

fn distance(one: [f32; 3], other: [f32; 3]) -> f32 {
    let square = |axis: usize| (one[axis] - other[axis]).powi(2);
    (square(0) + square(1) + square(2)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight_at;

    const GROUP: Group = Group::new(7);
    const HERE: [f32; 3] = [0.0; 3];

    fn east(metres: f32) -> [f32; 3] {
        [metres, 0.0, 0.0]
    }

    fn with_one(metres: f32) -> Surroundings {
        let mut surroundings = Surroundings::default();
        surroundings.put(GROUP, Level(1), east(metres), 1.0);
        surroundings
    }

    #[test]
    fn what_is_new_or_looks_otherwise_is_asked_for_once() {
        let mut around = with_one(10.0);
        let near = weight_at(10.0, 1.0);
        assert_eq!(around.seen_from(HERE), [(GROUP, Level(1), near)]);
        assert_eq!(around.seen_from(HERE), []);
        assert_eq!(around.seen_from(east(20.0)), [], "as far from the other side");
        let far = weight_at(30.0, 1.0);
        assert_eq!(around.seen_from([10.0, 0.0, 30.0]), [(GROUP, Level(1), far)]);
        around.put(GROUP, Level(2), east(10.0), 1.0);
        assert_eq!(around.seen_from([10.0, 0.0, 30.0]), [(GROUP, Level(2), far)], "another level");
        around.put(GROUP, Level(2), east(10.0), 4.0);
        let larger = weight_at(30.0, 4.0);
        assert_eq!(around.seen_from([10.0, 0.0, 30.0]), [(GROUP, Level(2), larger)]);
    }

    #[test]
    fn a_weight_follows_in_steps_that_are_noticed() {
        let mut around = with_one(0.0);
        let mut asked = around.seen_from(HERE)[0].2;
        let mut times = 0;
        for centimetre in 0..20_000_u16 {
            let at = f32::from(centimetre) / 100.0;
            for (_, _, weight) in around.seen_from(east(at)) {
                assert_eq!(asked.0 - weight.0, NOTICEABLE, "at {at} m");
                (asked, times) = (weight, times + 1);
            }
            assert!(asked.0.abs_diff(weight_at(at, 1.0).0) < NOTICEABLE);
        }
        assert!((60..80).contains(&times), "{times} times in 200 m");
    }

    #[test]
    fn to_and_fro_asks_for_nothing() {
        let mut around = with_one(10.0);
        around.seen_from(HERE);
        // Where one weight ends and the next begins.
        let edge = (0..200).map(|step| f32::from(step as u8) / 100.0);
        let edge = edge.into_iter().find(|at| weight_at(10.0 - at, 1.0) != weight_at(10.0, 1.0));
        let edge = edge.unwrap();
        for _ in 0..5 {
            assert_eq!(around.seen_from(east(edge - 0.01)), []);
            assert_eq!(around.seen_from(east(edge + 0.01)), []);
        }
    }

    #[test]
    fn what_left_or_was_refused_is_asked_for_anew() {
        let mut around = with_one(10.0);
        assert!(!around.remove(GROUP), "nobody had asked for it");
        around = with_one(10.0);
        around.seen_from(HERE);
        around.was_refused(GROUP);
        assert_eq!(around.seen_from(HERE).len(), 1);
        assert!(around.remove(GROUP));
        assert!(!around.remove(GROUP));
        assert_eq!(around.seen_from(HERE), []);
        around.was_refused(GROUP);
        around.put(GROUP, Level(0), east(10.0), 1.0);
        assert_eq!(around.seen_from(HERE).len(), 1);
    }
}
