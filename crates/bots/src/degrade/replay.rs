//! A recording gone through once more with the fluid model beside it: of each update, what of it was fair
//! for a viewer, and how far away its walker was.

use super::recording::{Recording, Viewed, Weighed};
use canopy_judge::fair::{Capacity, Flow, Fluid};
use canopy_wire::Time;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::time::Duration;
use std::vec::IntoIter;

/// How many of the walkers around a viewer count as its nearest.
const NEAREST: usize = 10;
/// How often it is seen which they are.
const NEAREST_EVERY: Duration = Duration::from_millis(250);

/// What rounding leaves of a weight that nobody has.
const LEAST: f64 = 1e-12;

/// What happened to all viewers alike, in order of time.
pub(super) struct Timeline<'a> {
    pub(super) recording: &'a Recording,
    events: Vec<(Time, Event)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A walker has sent its last update; whoever shares with it has more from now on.
    Gone(u32),
    /// The update of this number was published.
    Sent(u32),
}

/// An update, as a viewer is concerned by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Due {
    /// The part of it that was fair for the viewer, 0 to 1.
    pub(super) share: f64,
    /// How far away its walker was, metres.
    pub(super) distance: f64,
    /// Whether its walker was among the viewer's [`NEAREST`].
    pub(super) is_near: bool,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(recording: &'a Recording) -> Timeline<'a> {
        let mut events = Vec::new();
        for (number, one) in (0..).zip(&recording.published) {
            events.push((one.at, Event::Sent(number)));
            if one.is_last {
                let end = one.at + Duration::from_secs_f64(1.0 / one.demand);
                events.push((end, Event::Gone(one.walker)));
            }
        }
        events.sort_unstable();
        Timeline { recording, events }
    }

    /// By update: what a viewer was due of it; nothing of its own walker's. Where all viewers share one
    /// budget, flows share it by the sum of their weights.
    pub(super) fn dues_of(&self, viewed: &Viewed) -> Vec<Option<Due>> {
        let own = std::slice::from_ref(viewed);
        let sharing = if self.recording.is_shared { &self.recording.viewers } else { own };
        let mut eye = Eye::new(self.recording, viewed, asks_of(sharing));
        let mut dues = vec![None; self.recording.published.len()];
        for (at, event) in &self.events {
            eye.weigh(*at);
            match event {
                Event::Gone(walker) => eye.lose(*walker),
                Event::Sent(number) => dues[*number as usize] = eye.see(*number),
            }
        }
        dues
    }
}

/// What some viewers have asked for: when, for which walker, and how much more or less than before.
fn asks_of(viewers: &[Viewed]) -> Vec<(Time, u32, f64)> {
    let mut asks = Vec::new();
    for viewed in viewers {
        let mut before = BTreeMap::new();
        for Weighed { at, walker, weight } in &viewed.weights {
            let weight = f64::from(weight.value());
            let change = weight - before.insert(*walker, weight).unwrap_or(0.0);
            asks.push((*at, *walker, change));
        }
    }
    asks.sort_by_key(|(at, ..)| *at);
    asks
}

/// A viewer with what it knows at a time.
struct Eye<'a> {
    recording: &'a Recording,
    viewed: &'a Viewed,
    fluid: Fluid,
    /// What is asked for from now on.
    asks: Peekable<IntoIter<(Time, u32, f64)>>,
    /// Where it stands: where its walker was last, or will be first.
    own: [f64; 2],
    /// By walker: its weight for this viewer, and while it is there its place and its demand.
    weight: Vec<f64>,
    places: Vec<Option<[f64; 2]>>,
    demand: Vec<Option<f64>>,
    cost: f64,
    /// Up to which distance walkers are among the nearest, and when that is looked at again.
    near: f64,
    near_until: Time,
}

impl<'a> Eye<'a> {
    fn new(recording: &'a Recording, viewed: &'a Viewed, asks: Vec<(Time, u32, f64)>) -> Eye<'a> {
        let walkers = recording.walkers;
        let own = recording.published.iter().find(|one| one.walker == viewed.walker);
        Eye {
            own: own.map_or([0.0; 2], |one| one.place),
            recording,
            viewed,
            fluid: Fluid::new(walkers),
            asks: asks.into_iter().peekable(),
            weight: vec![0.0; walkers],
            places: vec![None; walkers],
            demand: vec![None; walkers],
            cost: Capacity { bits: viewed.bits, updates: 0.0 }.cost(recording.bytes_to(viewed)),
            near: 0.0,
            near_until: Time::ZERO,
        }
    }

    /// Takes the weights that were asked for by now.
    fn weigh(&mut self, now: Time) {
        while let Some((_, walker, change)) = self.asks.next_if(|(at, ..)| *at <= now) {
            if let Some(weight) = self.weight.get_mut(walker as usize) {
                *weight += change;
                self.pour(walker as usize);
            }
        }
    }

    fn lose(&mut self, walker: u32) {
        let walker = walker as usize;
        (self.demand[walker], self.places[walker]) = (None, None);
        self.pour(walker);
    }

    /// An update is published.
    fn see(&mut self, number: u32) -> Option<Due> {
        let one = self.recording.published[number as usize];
        let walker = one.walker as usize;
        // Recorded times are rounded: what is not noticeable is the same.
        let is_same = |demand: &f64| (one.demand - demand).abs() < 0.02 * demand;
        if !self.demand[walker].as_ref().is_some_and(is_same) {
            self.demand[walker] = Some(one.demand);
            self.pour(walker);
        }
        if one.walker == self.viewed.walker {
            self.own = one.place;
            return None;
        }
        self.places[walker] = Some(one.place);
        if one.at >= self.near_until {
            self.near_until = one.at + NEAREST_EVERY;
            self.near = self.near_distance();
        }
        let distance = self.distance(one.place);
        let is_near = distance <= self.near;
        Some(Due { share: self.fluid.share(walker), distance, is_near })
    }

    /// Tells the fluid how a flow is now.
    fn pour(&mut self, walker: usize) {
        let flow = self.demand[walker].map(|demand| Flow {
            weight: self.weight[walker],
            demand,
            floor: self.recording.floor,
            cost: self.cost,
        });
        self.fluid.set(walker, flow.filter(|flow| flow.weight > LEAST));
    }

    fn distance(&self, place: [f64; 2]) -> f64 {
        (place[0] - self.own[0]).hypot(place[1] - self.own[1])
    }

    fn near_distance(&self) -> f64 {
        let places = self.places.iter().flatten();
        let mut distances: Vec<f64> = places.map(|place| self.distance(*place)).collect();
        distances.sort_by(f64::total_cmp);
        distances.get(NEAREST - 1).or(distances.last()).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{even, viewer};
    use super::*;
    use canopy_wire::Weight;

    /// The share that each of the walkers had of the last second.
    fn shares(recording: &Recording, viewer: usize) -> Vec<Option<f64>> {
        let dues = Timeline::new(recording).dues_of(&recording.viewers[viewer]);
        let last = dues.len() - 2 * recording.walkers..dues.len() - recording.walkers;
        dues[last].iter().map(|due| due.map(|due| (due.share * 100.0).round() / 100.0)).collect()
    }

    #[test]
    fn weights_and_who_leaves_change_what_is_due() {
        let mut recording = even(4, 10.0, 20.0);
        // Ten updates a second of 100 bytes.
        let mut viewed = viewer(0, 33.3, 8_000.0);
        recording.viewers = vec![viewed.clone()];
        assert_eq!(shares(&recording, 0), [None, Some(0.33), Some(0.33), Some(0.33)]);
        let twice = Weight(Weight::ONE.0 + 12);
        viewed.weights.push(Weighed { at: Time::from_millis(5000), walker: 3, weight: twice });
        recording.viewers = vec![viewed];
        assert_eq!(shares(&recording, 0), [None, Some(0.25), Some(0.25), Some(0.5)]);
        // Who leaves leaves its share to the others.
        let leaves = Time::from_millis(10_000);
        recording.published.retain(|one| one.walker != 1 || one.at <= leaves);
        let last = recording.published.iter_mut().rfind(|one| one.walker == 1);
        last.unwrap().is_last = true;
        let dues = Timeline::new(&recording).dues_of(&recording.viewers[0]);
        let of_last = recording.published.iter().zip(dues).rev().find(|(one, _)| one.walker == 3);
        let share = of_last.and_then(|(_, due)| Some(due?.share)).unwrap();
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn behind_a_link_the_weights_of_all_viewers_count() {
        let mut recording = even(4, 10.0, 20.0);
        recording.is_shared = true;
        recording.viewers = vec![viewer(0, 25.0, 8_000.0), viewer(1, 25.0, 8_000.0)];
        // Both want the third and the fourth, and each the other one.
        assert_eq!(shares(&recording, 0), [None, Some(0.17), Some(0.33), Some(0.33)]);
        assert_eq!(shares(&recording, 1), [Some(0.17), None, Some(0.33), Some(0.33)]);
    }
}
