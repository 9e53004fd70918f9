//! What comes where nothing is thinned by weight: the same updates through a queue of the budget's rate that
//! drops what finds no room, and through chance. Computed, not measured: they have no relay, no tick and no
//! bundles, which is in their favour.

use super::recording::{Recording, Viewed};
use canopy_wire::Time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
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

#[cfg(test)]
mod tests {
    use super::super::fixture::{even, viewer};
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
