//! What comes where nothing is thinned by weight: the same updates through a queue of the budget's rate that
//! drops what finds no room, and through chance. Computed, not measured: they have no relay, no tick and no
//! bundles, which is in their favour. And what comes if all is known in advance: about what could be reached.

use super::recording::{Recording, Viewed};
use super::replay::Due;
use canopy_wire::Time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

/// How much waits in the queue at most, in time at the budget's rate.
const BUFFER: Duration = Duration::from_millis(200);

/// When each update would come through a queue that drops at its tail.
pub(super) fn drop_tail(recording: &Recording, viewed: &Viewed) -> Vec<Option<Time>> {
    let service = Duration::from_secs_f64(8.0 * recording.bytes_each / viewed.bits);
    let mut free_at = Time::ZERO;
    let through = |one: &super::Published| {
        let is_own = one.walker == viewed.walker;
        // Over a link goes what the others want of the own walker too.
        let is_queued = !is_own || recording.is_shared;
        if !is_queued || free_at.since(one.at) + service > BUFFER.max(service) {
            return None;
        }
        free_at = one.at.max(free_at) + service;
        (!is_own).then_some(free_at)
    };
    recording.published.iter().map(through).collect()
}

/// When each update would come if as many are dropped by chance as the budget asks for.
pub(super) fn random(recording: &Recording, viewed: &Viewed) -> Vec<Option<Time>> {
    // What a link drops is dropped for all behind it.
    let seed = if recording.is_shared { 0 } else { viewed.walker.into() };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let through = |one: &super::Published| {
        (rng.random_bool((viewed.budget / 100.0).clamp(0.0, 1.0)) && one.walker != viewed.walker)
            .then_some(one.at)
    };
    recording.published.iter().map(through).collect()
}

/// When each update would come if who thins knew in advance what is fair of every update, and who leaves when. At each
/// tick those go that are furthest behind, as long as the budget lasts; and the last update of who leaves, which a
/// relay sends because it may be all that is known of somebody who stands still.
pub(super) fn foreseeing(
    recording: &Recording,
    viewed: &Viewed,
    dues: &[Option<Due>],
) -> Vec<Option<Time>> {
    let a_tick = viewed.bits * recording.tick.as_secs_f64() / (8.0 * recording.bytes_to(viewed));
    let mut came = vec![None; recording.published.len()];
    let mut flows: BTreeMap<u32, Behind> = BTreeMap::new();
    let mut updates = recording.published.iter().zip(dues).enumerate().peekable();
    let mut now = recording.published.first().map_or(Time::ZERO, |one| one.at);
    let mut budget = 0.0;
    while updates.peek().is_some() {
        now = now + recording.tick;
        while let Some((number, (one, due))) = updates.next_if(|(_, (one, _))| one.at <= now) {
            if let Some(due) = due {
                flows.entry(one.walker).or_default().see(number, due.share, one.is_last);
            }
        }
        // What is left of a tick's budget is there in the next.
        budget = f64::min(budget + a_tick, a_tick + f64::max(a_tick, 1.0));
        for flow in flows.values_mut().filter(|flow| flow.leaves) {
            came[flow.last] = Some(now);
            budget -= 1.0;
        }
        flows.retain(|_, flow| !flow.leaves);
        let mut behind: BinaryHeap<(i64, u32)> =
            flows.iter().filter_map(|(walker, flow)| Some((flow.rank()?, *walker))).collect();
        while budget >= 1.0
            && let Some((_, walker)) = behind.pop()
            && let Some(flow) = flows.get_mut(&walker)
            && let Some(number) = flow.go()
        {
            came[number] = Some(now);
            budget -= 1.0;
            behind.extend(flow.rank().map(|rank| (rank, walker)));
        }
    }
    came
}

/// A flow of [`foreseeing`].
#[derive(Default)]
struct Behind {
    /// By how many updates it is behind what is fair.
    by: f64,
    /// Its newest updates that have not gone, two at most, the older one first.
    fresh: VecDeque<usize>,
    last: usize,
    leaves: bool,
}

impl Behind {
    fn see(&mut self, number: usize, share: f64, leaves: bool) {
        self.by += share;
        self.fresh.push_back(number);
        if self.fresh.len() > 2 {
            self.fresh.pop_front();
        }
        (self.last, self.leaves) = (number, leaves);
    }

    /// The more, the sooner one of its updates goes; `None` if none does.
    fn rank(&self) -> Option<i64> {
        (!self.fresh.is_empty() && self.by > 0.0).then_some((self.by * 1e9) as i64)
    }

    /// One goes: the newest, or the older one if both will.
    fn go(&mut self) -> Option<usize> {
        self.by -= 1.0;
        if self.by > 0.0 {
            return self.fresh.pop_front();
        }
        let newest = self.fresh.pop_back();
        self.fresh.clear();
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{even, viewer};
    use super::super::replay::Timeline;
    use super::*;

    #[test]
    fn a_queue_gives_its_rate_late_and_chance_its_rate_at_once() {
        // Two walkers beside the viewer's own, 20 updates a second each, of 100 bytes: 32 kbit/s.
        let mut recording = even(3, 20.0, 30.0);
        recording.viewers = vec![viewer(0, 25.0, 8_000.0)];
        let viewed = &recording.viewers[0];
        for (came, delay) in
            [(drop_tail(&recording, viewed), 0.2), (random(&recording, viewed), 0.0)]
        {
            let came: Vec<_> = recording.published.iter().zip(&came).collect();
            let count = came.iter().filter(|(_, at)| at.is_some()).count();
            assert!((280..=320).contains(&count), "{count} of 1200 came");
            let age = |(one, at): &(&super::super::Published, &Option<Time>)| {
                at.map(|at| at.since(one.at).as_secs_f64())
            };
            let longest = came.iter().filter_map(age).fold(0.0, f64::max);
            assert!((delay - 0.1..=delay).contains(&longest), "{longest}");
            assert!(came.iter().all(|(one, at)| one.walker != 0 || at.is_none()));
        }
    }

    #[test]
    fn who_knows_all_in_advance_is_hardly_off_and_keeps_the_budget() {
        // A third of what four walkers send, and the second leaves halfway.
        let mut recording = even(5, 20.0, 30.0);
        recording.viewers = vec![viewer(0, 33.0, 8.0 * 100.0 * 27.0)];
        let half = recording.published.len() / 2;
        recording.published[half + 2].is_last = true;
        let leaves = recording.published[half + 2].at;
        recording.published.retain(|one| one.walker != 2 || one.at <= leaves);
        let dues = Timeline::new(&recording).dues_of(&recording.viewers[0]);
        let came = foreseeing(&recording, &recording.viewers[0], &dues);
        let count = came.iter().flatten().count() as f64;
        assert!((count - 27.0 * 30.0).abs() < 10.0, "{count}");
        for walker in 1..5 {
            let of_walker = recording.published.iter().zip(&dues).zip(&came);
            let of_walker = of_walker.filter(|((one, _), _)| one.walker == walker);
            let off = |off: f64, ((_, due), came): ((_, &Option<Due>), &Option<Time>)| {
                off + f64::from(u8::from(came.is_some())) - due.unwrap().share
            };
            let off = of_walker.fold(0.0, off);
            assert!(off.abs() < 1.0, "{walker}: {off}");
        }
        assert!(came[recording.published.iter().position(|one| one.is_last).unwrap()].is_some());
    }

    #[test]
    fn what_a_link_drops_is_dropped_for_all_behind_it() {
        let mut recording = even(3, 20.0, 30.0);
        recording.is_shared = true;
        recording.viewers = vec![viewer(0, 25.0, 8_000.0), viewer(1, 25.0, 8_000.0)];
        for through in [drop_tail, random] {
            let [one, other] = [0, 1].map(|place| through(&recording, &recording.viewers[place]));
            let both = one.iter().zip(&other).zip(&recording.published);
            let mut of_third = both.filter(|(_, published)| published.walker == 2);
            assert!(of_third.all(|((one, other), _)| one == other));
        }
    }
}
