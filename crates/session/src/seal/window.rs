//! Which packets have been seen (RFC 6479's form of a sliding window).

/// How far behind the newest a packet may come: 1,024.
const WINDOW: u64 = 1024;
/// One word more than the window has, so that a word can be cleared before it is used again.
const WORDS: usize = WINDOW as usize / 64 + 1;

/// The packets that were seen, of the last [`WINDOW`].
#[derive(Clone, Debug)]
pub(crate) struct ReplayWindow {
    /// One more than the highest number seen.
    end: u64,
    words: [u64; WORDS],
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { end: 0, words: [0; WORDS] }
    }

    /// A window in which all that came before `first` counts as seen.
    pub(crate) fn starting_at(first: u64) -> ReplayWindow {
        let mut window = ReplayWindow { end: first, words: [u64::MAX; WORDS] };
        // Nothing has been seen from `first` on in the word that it is in.
        window.words[word_of(first)] = bit_of(first) - 1;
        window
    }

    /// The whole number of which a packet carries the lower half: the one nearest to what is
    /// expected next.
    pub(crate) fn full(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.end as u32);
        if ahead < 1 << 31 {
            return self.end.saturating_add(ahead.into());
        }
        // Behind; before the beginning there is nothing.
        let behind = u64::from(ahead.wrapping_neg());
        self.end.checked_sub(behind).unwrap_or(self.end + u64::from(ahead))
    }

    /// Whether a packet was seen, or is too old to tell.
    pub(crate) fn has(&self, number: u64) -> bool {
        let is_old = number + WINDOW < self.end;
        is_old || (number < self.end && self.words[word_of(number)] & bit_of(number) != 0)
    }

    /// Goes on to a packet that another window has noted: only [`ReplayWindow::full`] means anything
    /// from then on.
    pub(crate) fn reach(&mut self, number: u64) {
        self.end = self.end.max(number + 1);
    }

    /// Notes a packet that has not been seen.
    pub(crate) fn note(&mut self, number: u64) {
        if number >= self.end {
            // Words that come into the window now hold what left it a round ago.
            let first = if self.end == 0 { 0 } else { (self.end - 1) / 64 + 1 };
            let last = number / 64;
            for word in first.max(last.saturating_sub(WORDS as u64 - 1))..=last {
                self.words[(word % WORDS as u64) as usize] = 0;
            }
            self.end = number + 1;
        }
        self.words[word_of(number)] |= bit_of(number);
    }
}

fn word_of(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

fn bit_of(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_window_holds_as_many_as_it_says() {
        let mut window = ReplayWindow::new();
        window.note(5_000);
        assert!(!window.has(5_001 - WINDOW) && window.has(5_000 - WINDOW) && window.has(5_000));
        for number in 5_001 - WINDOW..5_000 {
            assert!(!window.has(number));
            window.note(number);
            assert!(window.has(number));
        }
    }

    #[test]
    fn the_upper_half_of_a_number_is_found_again() {
        let mut window = ReplayWindow::new();
        assert_eq!(window.full(7), 7);
        assert_eq!(window.full(u32::MAX), u32::MAX.into());
        for number in [0x8000_0000, 0xffff_fff0, 0x1_0000_0010_u64, 0x1_7000_0000] {
            assert_eq!(window.full(number as u32), number);
            window.note(number);
            assert_eq!(window.full((number as u32).wrapping_sub(100)), number - 100);
        }
    }

    #[test]
    fn what_came_before_the_first_counts_as_seen() {
        for first in [0, 1, 63, 64, 65, 1_000, 5_000, 5_056, 1 << 33] {
            let mut window = ReplayWindow::starting_at(first);
            assert!((first.saturating_sub(3_000)..first).all(|number| window.has(number)));
            for number in [first + 1, first, first + 70, first + 63] {
                assert!(!window.has(number), "{number} from {first} on");
                window.note(number);
                assert!(window.has(number));
            }
            assert!((first.saturating_sub(900)..first).all(|number| window.has(number)));
            assert!(!window.has(first + 2) && !window.has(first + 69));
        }
    }

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5ea1);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Against a set of all that was noted.
        #[test]
        fn what_was_seen_is_known_again(
            steps in proptest::collection::vec(
                prop_oneof![-40_i64..40, -1100_i64..1100, Just(5_000_i64)], 1..300),
        ) {
            let (mut window, mut seen, mut at) = (ReplayWindow::new(), BTreeSet::new(), 0_u64);
            for step in steps {
                at = at.saturating_add_signed(step);
                let newest = seen.last().copied();
                let is_old = newest.is_some_and(|newest: u64| at + WINDOW <= newest);
                prop_assert_eq!(window.has(at), is_old || seen.contains(&at), "{}", at);
                if !window.has(at) {
                    prop_assert_eq!(window.full(at as u32), at);
                    window.note(at);
                    seen.insert(at);
                }
            }
        }
    }
}
