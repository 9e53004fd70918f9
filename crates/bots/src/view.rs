//! What a console may see of a crowd: a snapshot refreshed ten times a second, off the hot path.

use crate::grid::Cell;
use crate::report::Verdict;
use canopy_wire::{Address, Level, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An avatar is forgotten by a viewer that has not heard of it for so long: twice the time for
/// which a walker at ten updates a second is silent at the coarse level.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);
/// The same of a viewer whose relay does not send it everything: twice the time for which a relay is silent
/// about anything at most.
const LIMITED_FORGETS_AFTER: Duration = Duration::from_secs(4);
/// Over which time a rate is smoothed, seconds.
const SMOOTHED_OVER: f32 = 1.0;
/// The least pause that a first rate is taken from, seconds: where two updates came at once, it says nothing.
const FIRST_PAUSE: f32 = 0.1;

/// One avatar as a viewer received it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// Metres.
    pub x: f32,
    /// Metres.
    pub y: f32,
    /// When the viewer received it.
    pub received: Time,
    /// How old it was then.
    pub age: Duration,
    /// The level at which the viewer has the cell that it came from.
    pub level: Level,
    /// How many updates a second the viewer has of this walker, smoothed; 0 after the first.
    pub rate: f32,
}

impl Heard {
    /// The rate after this update, where `before` is the one before it: the arrivals of the past, of which
    /// each counts for less with time.
    fn rate_after(&self, before: &Heard) -> f32 {
        let pause = self.received.since(before.received).as_secs_f32().max(1e-3);
        if before.rate == 0.0 {
            return 1.0 / pause.max(FIRST_PAUSE);
        }
        let kept = (-pause / SMOOTHED_OVER).exp();
        before.rate * kept + (1.0 - kept) / pause
    }
}

/// What is to be seen of a walker itself.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) at: Option<[f64; 2]>,
    pub(crate) cells: Vec<(Cell, Level)>,
}

/// One watched viewer.
#[derive(Clone, Debug, Default)]
pub struct Viewer {
    /// Where it is, metres; `None` while it is not in the world.
    pub at: Option<[f64; 2]>,
    /// The cells to which its subscription is acknowledged, with their levels.
    pub cells: Vec<(Cell, Level)>,
    /// What it received of whom.
    pub heard: BTreeMap<u32, Heard>,
    watchers: u32,
}

/// Sums of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// What the oracle says so far.
    pub verdict: Verdict,
    /// Half of the last second's deliveries were younger, microseconds.
    pub age_p50_us: u64,
    /// 99 of 100 of the last second's deliveries were younger, microseconds.
    pub age_p99_us: u64,
}

/// A crowd at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When, by the crowd's clock.
    pub now: Time,
    /// Walker, x, y in metres: where they last published themselves to be.
    pub avatars: Vec<(u32, f64, f64)>,
    /// By relay, how many of them have no session with it.
    pub lost: Vec<u32>,
    /// Sums.
    pub totals: Totals,
}

/// A walker that is not sent everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The walker.
    pub walker: u32,
    /// How many bits a second it is sent at most; `None` where that is about to end.
    pub bits: Option<u64>,
    /// Its address; `None` while it has no session.
    pub address: Option<Address>,
}

#[derive(Default)]
struct Shared {
    snapshot: Snapshot,
    viewers: BTreeMap<u32, Viewer>,
    /// By walker; `None` while it has no session.
    addresses: Vec<Option<Address>>,
    /// How many bits a second pages want every walker to be sent at most.
    for_everyone: Option<u64>,
    /// The same of a walker that is watched, where it has a budget of its own.
    own: BTreeMap<u32, u64>,
    /// Walkers that are not sent everything: bits a second, or `None` where that is about to end.
    limits: BTreeMap<u32, Option<u64>>,
}

impl Shared {
    /// Who is to have a budget is limited from now on. Who is to have none any more still is, until
    /// [`View::limit_ended`].
    fn heed(&mut self) {
        for walker in 0..self.addresses.len() as u32 {
            let bits = self.own.get(&walker).copied().or(self.for_everyone);
            if bits.is_some() || self.limits.contains_key(&walker) {
                self.limits.insert(walker, bits);
            }
        }
    }
}

/// A window on a running crowd. Only what is watched costs the crowd anything.
#[derive(Default)]
pub struct View {
    shared: Mutex<Shared>,
}

/// Keeps a viewer watched until it is dropped.
pub struct Watch {
    view: Arc<View>,
    walker: u32,
}

impl View {
    /// A window on nothing yet.
    pub fn new() -> Arc<View> {
        Arc::new(View::default())
    }

    /// The last snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot.clone()
    }

    /// Begins to watch what a walker receives.
    pub fn watch(self: &Arc<View>, walker: u32) -> Watch {
        self.lock().viewers.entry(walker).or_default().watchers += 1;
        Watch { view: Arc::clone(self), walker }
    }

    /// Every walker is to be sent no more than so many bits a second; with `None`, everything, whatever it was
    /// to be sent before.
    ///
    /// The crowd heeds it when it refreshes the view. From then on those in [`View::limits`] weigh their
    /// cells, and what they miss is not missing.
    pub fn limit_everyone(&self, bits: Option<u64>) {
        let mut shared = self.lock();
        shared.for_everyone = bits;
        if bits.is_none() {
            shared.own.clear();
        }
    }

    /// What [`View::limit_everyone`] was told last.
    pub fn limit_of_everyone(&self) -> Option<u64> {
        self.lock().for_everyone
    }

    /// The same for one walker while it is watched; with `None`, it is to be sent what everyone is. Returns
    /// whether it is watched.
    pub fn limit(&self, walker: u32, bits: Option<u64>) -> bool {
        let mut shared = self.lock();
        match bits {
            Some(bits) if shared.viewers.contains_key(&walker) => shared.own.insert(walker, bits),
            _ => shared.own.remove(&walker),
        };
        shared.viewers.contains_key(&walker)
    }

    /// A walker is sent everything again.
    pub fn limit_ended(&self, walker: u32) {
        let mut shared = self.lock();
        if shared.limits.get(&walker) == Some(&None) {
            shared.limits.remove(&walker);
        }
    }

    /// The walkers that are not sent everything, as the crowd knows it.
    pub fn limits(&self) -> Vec<Limit> {
        let shared = self.lock();
        let address = |walker: u32| shared.addresses.get(walker as usize).copied().flatten();
        let limit = |(&walker, &bits)| Limit { walker, bits, address: address(walker) };
        shared.limits.iter().map(limit).collect()
    }

    /// The walkers that are watched.
    pub(crate) fn watched(&self) -> Vec<u32> {
        self.lock().viewers.keys().copied().collect()
    }

    /// Replaces the snapshot, all walkers' addresses and what the watched viewers have; `seen` says how a
    /// viewer is. Limits that were asked for hold from now on.
    pub(crate) fn refresh(
        &self,
        snapshot: Snapshot,
        addresses: Vec<Option<Address>>,
        mut heard: BTreeMap<u32, Vec<(u32, Heard)>>,
        mut seen: impl FnMut(u32) -> Seen,
    ) {
        let mut shared = self.lock();
        let now = snapshot.now;
        shared.addresses = addresses;
        shared.heed();
        let Shared { viewers, limits, .. } = &mut *shared;
        for (walker, viewer) in viewers {
            Seen { at: viewer.at, cells: viewer.cells } = seen(*walker);
            for (other, mut one) in heard.remove(walker).unwrap_or_default() {
                one.rate = viewer.heard.get(&other).map_or(0.0, |before| one.rate_after(before));
                viewer.heard.insert(other, one);
            }
            let is_limited = limits.contains_key(walker);
            let after = if is_limited { LIMITED_FORGETS_AFTER } else { FORGOTTEN_AFTER };
            viewer.heard.retain(|_, heard| now.since(heard.received) < after);
        }
        shared.snapshot = snapshot;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// The watched walker.
    pub fn walker(&self) -> u32 {
        self.walker
    }

    /// How many bits a second its relay sends it at most, if that is said.
    pub fn limit(&self) -> Option<u64> {
        self.view.lock().limits.get(&self.walker).copied().flatten()
    }

    /// What it is and has now.
    pub fn viewer(&self) -> Viewer {
        self.view.lock().viewers.get(&self.walker).cloned().unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut shared = self.view.lock();
        if let Some(viewer) = shared.viewers.get_mut(&self.walker) {
            viewer.watchers -= 1;
            if viewer.watchers == 0 {
                shared.viewers.remove(&self.walker);
                shared.own.remove(&self.walker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALKERS: usize = 8;

    fn heard(millis: u64) -> Heard {
        let (received, age, level) = (Time::from_millis(millis), Duration::ZERO, Level(0));
        Heard { x: 0.0, y: 0.0, received, age, level, rate: 0.0 }
    }

    /// The rate that a viewer has of walker 1 after updates at these times.
    fn heard_at(view: &Arc<View>, watch: &Watch, millis: &[u64]) -> Option<f32> {
        for at in millis {
            let arrived = BTreeMap::from([(watch.walker(), vec![(1, heard(*at))])]);
            let now = Time::from_millis(*at);
            let snapshot = Snapshot { now, ..Snapshot::default() };
            view.refresh(snapshot, vec![None; WALKERS], arrived, |_| Seen::default());
        }
        watch.viewer().heard.get(&1).map(|heard| heard.rate)
    }

    #[test]
    fn a_rate_follows_what_comes() {
        let view = View::new();
        let watch = view.watch(7);
        assert_eq!(heard_at(&view, &watch, &[100]), Some(0.0));
        assert_eq!(heard_at(&view, &watch, &[600]), Some(2.0));
        let even: Vec<u64> = (7..60).map(|tenth| tenth * 100).collect();
        let rate = heard_at(&view, &watch, &even).unwrap();
        assert!((9.5..10.5).contains(&rate), "{rate}");
        let pairs: Vec<u64> = (60..120).flat_map(|tenth| [tenth * 100, tenth * 100 + 10]).collect();
        let rate = heard_at(&view, &watch, &pairs).unwrap();
        assert!((18.0..22.0).contains(&rate), "{rate}");
    }

    #[test]
    fn the_first_updates_may_come_at_once() {
        let view = View::new();
        let watch = view.watch(7);
        let rate = heard_at(&view, &watch, &[100, 101, 102]).unwrap();
        assert!(rate < 15.0, "{rate}");
    }

    #[test]
    fn who_is_limited_is_remembered_longer() {
        let view = View::new();
        let watch = view.watch(7);
        let look = |millis| {
            let now = Time::from_millis(millis);
            let snapshot = Snapshot { now, ..Snapshot::default() };
            view.refresh(snapshot, vec![None; WALKERS], BTreeMap::new(), |_| Seen::default());
            watch.viewer().heard.len()
        };
        heard_at(&view, &watch, &[0]);
        assert_eq!((look(900), look(1100)), (1, 0));
        view.limit(7, Some(1000));
        heard_at(&view, &watch, &[2000]);
        assert_eq!((look(4500), look(6100)), (1, 0));
    }

    /// Who is limited to what, once the crowd has heard what was asked for.
    fn heeded(view: &View) -> Vec<(u32, Option<u64>)> {
        let addresses = vec![None; WALKERS];
        view.refresh(Snapshot::default(), addresses, BTreeMap::new(), |_| Seen::default());
        view.limits().iter().map(|limit| (limit.walker, limit.bits)).collect()
    }

    #[test]
    fn a_limit_ends_in_two_steps() {
        let view = View::new();
        assert!(!view.limit(7, Some(1000)), "nobody watches it");
        let watch = view.watch(7);
        assert!(view.limit(7, None));
        assert!(heeded(&view).is_empty(), "there was none");
        assert!(view.limit(7, Some(1000)));
        assert_eq!(watch.limit(), None, "the crowd has not heard of it yet");
        assert_eq!(heeded(&view), [(7, Some(1000))]);
        view.limit_ended(7);
        assert_eq!((watch.limit(), heeded(&view).len()), (Some(1000), 1), "nobody ended it");
        drop(watch);
        assert_eq!(heeded(&view), [(7, None)], "what waits still comes");
        view.limit_ended(7);
        assert!(heeded(&view).is_empty());
    }

    #[test]
    fn everyone_is_limited_and_a_viewer_to_something_else() {
        let view = View::new();
        let watch = view.watch(2);
        view.limit_everyone(Some(1000));
        view.limit(2, Some(400));
        let limits = heeded(&view);
        let expected =
            (0..WALKERS as u32).map(|one| (one, Some(if one == 2 { 400 } else { 1000 })));
        assert!(limits.iter().copied().eq(expected), "{limits:?}");
        view.limit(2, None);
        heeded(&view);
        assert_eq!(watch.limit(), Some(1000), "what everyone has");
        view.limit(2, Some(400));
        view.limit_everyone(None);
        assert!(heeded(&view).iter().all(|(_, bits)| bits.is_none()), "all are lifted");
        (0..WALKERS as u32).for_each(|one| view.limit_ended(one));
        assert!(heeded(&view).is_empty());
    }
}
