//! What relays drop of what they were sent beyond what is reserved, and when that is nobody's fault: the places of a relay
//! that nobody answers for are taken away, and it cannot know that as long as it does not hear from the controller.

use canopy_wire::Time;

/// What relays have dropped as over budget, as far as was looked.
#[derive(Default)]
pub(crate) struct Excess {
    /// By relay: all that it had dropped at the last look.
    seen: Vec<u64>,
    /// By relay: what it has dropped while nothing excused it.
    found: Vec<u64>,
    looked: Time,
    /// Times in which a relay may send more than is reserved.
    excused: Vec<(Time, Time)>,
}

impl Excess {
    /// Looks at what each relay has dropped by now. What was dropped since the last look is excused if anything excused it
    /// in that time.
    pub(crate) fn look(&mut self, now: Time, dropped: impl Iterator<Item = u64>) {
        let is_excused =
            self.excused.iter().any(|(from, until)| *from < now && self.looked <= *until);
        self.looked = now;
        for (relay, dropped) in dropped.enumerate() {
            if relay == self.seen.len() {
                self.seen.push(0);
                self.found.push(0);
            }
            let more = dropped - std::mem::replace(&mut self.seen[relay], dropped);
            self.found[relay] += if is_excused { 0 } else { more };
        }
    }

    /// Relays may send more than is reserved in this time, and others drop that.
    pub(crate) fn excuse(&mut self, from: Time, until: Time) {
        self.excused.push((from, until));
    }

    /// What a relay has dropped though nothing excused it, as far as was looked.
    pub(crate) fn found(&self, relay: usize) -> u64 {
        self.found.get(relay).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_dropped_while_places_may_be_taken_away_is_excused() {
        let mut excess = Excess::default();
        let at = Time::from_millis;
        excess.excuse(at(1_000), at(2_200));
        let mut found = |now, dropped: [u64; 2]| {
            excess.look(at(now), dropped.into_iter());
            [0, 1].map(|relay| excess.found(relay))
        };
        assert_eq!(found(500, [1, 0]), [1, 0]);
        assert_eq!(found(1_000, [1, 2]), [1, 2], "it has just begun");
        assert_eq!(found(1_500, [4, 2]), [1, 2]);
        assert_eq!(found(2_000, [4, 9]), [1, 2]);
        assert_eq!(found(2_500, [5, 9]), [1, 2], "it was over in between");
        assert_eq!(found(3_000, [7, 9]), [3, 2]);
    }
}
