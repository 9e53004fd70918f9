//! The group keys of one comtree: which is in use, which comes next, and when.
//!
//! Whoever leaves takes the key along. So another is made, given to all who stay, and used once all
//! have it, or after a bounded time. Keys are made at a bounded rate, however many leave.

use canopy_session::{GroupKeyMaker, GroupSealer};
use canopy_wire::{GroupKey, GroupKeyNumber, Suite, Time};
use core::time::Duration;

/// The shortest time between two keys of a comtree, and so the longest until a leave leads to another key.
pub(crate) const MAKE_EVERY: Duration = Duration::from_secs(1);
/// A key is used at the latest so long after it was made, whether or not all have it.
pub(crate) const USE_WITHIN: Duration = Duration::from_millis(500);

/// A key that is being given out.
struct Next {
    sealer: GroupSealer,
    use_at: Time,
    /// How many members have said that they have it.
    holders: u32,
}

/// The group keys of a comtree, of one data thread.
pub(crate) struct GroupKeys {
    suite: Suite,
    sealer: GroupSealer,
    next: Option<Next>,
    /// When the newest was made, if it is not the first.
    made: Option<Time>,
    /// Somebody who has the newest is gone, or the one in use has sealed half of what it may.
    is_wanted: bool,
}

impl GroupKeys {
    pub(crate) fn new(suite: Suite, maker: &mut GroupKeyMaker) -> GroupKeys {
        let sealer = maker.make(suite);
        GroupKeys { suite, sealer, next: None, made: None, is_wanted: false }
    }

    /// The suite that all members must take.
    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    /// The key in use, as it is told to members.
    pub(crate) fn in_use(&self) -> GroupKey {
        self.sealer.to_tell()
    }

    /// The key that is being given out, if there is one.
    pub(crate) fn next(&self) -> Option<GroupKey> {
        self.next.as_ref().map(|next| next.sealer.to_tell())
    }

    /// A member says which key it has; `before` is what it had said before. Returns whether that is the
    /// newest.
    pub(crate) fn note_held(&mut self, number: GroupKeyNumber, before: GroupKeyNumber) -> bool {
        match &mut self.next {
            Some(next) => {
                let is_newest = next.sealer.number() == number;
                next.holders += u32::from(is_newest && before != number);
                is_newest
            }
            None => self.sealer.number() == number,
        }
    }

    /// A member is gone that had said that it has this key.
    pub(crate) fn member_left(&mut self, held: GroupKeyNumber) {
        if let Some(next) = &mut self.next {
            next.holders -= u32::from(next.sealer.number() == held);
        }
        self.is_wanted = true;
    }

    /// Makes a key if one is wanted and may be made; uses the next one if it is time. Returns whether
    /// one was made.
    pub(crate) fn advance(&mut self, now: Time, members: u32, maker: &mut GroupKeyMaker) -> bool {
        let is_time = |next: &mut Next| next.holders >= members || now >= next.use_at;
        if let Some(next) = self.next.take_if(is_time) {
            self.sealer = next.sealer;
        }
        let may_make = self.next.is_none() && now >= self.may_make_at();
        if !self.is_wanted || !may_make {
            return false;
        }
        self.is_wanted = false;
        self.made = Some(now);
        let sealer = maker.make(self.suite);
        if members == 0 {
            self.sealer = sealer;
            return true;
        }
        self.next = Some(Next { sealer, use_at: now + USE_WITHIN, holders: 0 });
        true
    }

    fn may_make_at(&self) -> Time {
        self.made.map_or(Time::ZERO, |made| made + MAKE_EVERY)
    }

    /// When there is something to do by itself.
    pub(crate) fn due(&self) -> Option<Time> {
        match &self.next {
            Some(next) => Some(next.use_at),
            None => self.is_wanted.then(|| self.may_make_at()),
        }
    }

    /// The key to seal so many packets with. If the one in use has no room for them, the next takes
    /// its place, given out or not: rather is an update lost than a counter used twice.
    #[inline]
    pub(crate) fn sealer(&mut self, packets: u64, maker: &mut GroupKeyMaker) -> &mut GroupSealer {
        if self.sealer.room() < packets {
            let next = self.next.take().map(|next| next.sealer);
            self.sealer = next.unwrap_or_else(|| maker.make(self.suite));
        }
        self.is_wanted |= self.sealer.is_half_used() && self.next.is_none();
        &mut self.sealer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn maker() -> GroupKeyMaker {
        GroupKeyMaker::new(&[1; 16], 0, 1)
    }

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn the_next_key_is_used_when_all_have_it_or_time_is_over() {
        for acknowledged in [0, 2, 3] {
            let mut maker = maker();
            let mut keys = GroupKeys::new(Suite::Aes128Gcm, &mut maker);
            let first = keys.in_use().number;
            keys.member_left(first);
            assert!(keys.advance(at(10), 3, &mut maker));
            let next = keys.next().unwrap().number;
            for member in 0..acknowledged {
                // Said twice, it counts once.
                assert!(keys.note_held(next, GroupKeyNumber::NONE), "{member}");
                assert!(keys.note_held(next, next));
            }
            let used_early = acknowledged == 3;
            keys.advance(at(509), 3, &mut maker);
            assert_eq!(keys.in_use().number, if used_early { next } else { first });
            keys.advance(at(510), 3, &mut maker);
            assert_eq!(keys.in_use().number, next);
        }
    }

    #[test]
    fn whoever_leaves_while_a_key_is_given_out_does_not_keep_the_rest_waiting() {
        let mut maker = maker();
        let mut keys = GroupKeys::new(Suite::Aes128Gcm, &mut maker);
        keys.member_left(GroupKeyNumber::NONE);
        assert!(keys.advance(at(10), 3, &mut maker));
        let next = keys.next().unwrap().number;
        assert!(keys.note_held(next, GroupKeyNumber::NONE));
        assert!(keys.note_held(next, GroupKeyNumber::NONE));
        keys.member_left(next);
        keys.advance(at(20), 2, &mut maker);
        assert_ne!(
            keys.in_use().number,
            next,
            "one of the two who stay has not said that it has it"
        );
        keys.member_left(GroupKeyNumber::NONE);
        keys.advance(at(20), 1, &mut maker);
        assert_eq!(keys.in_use().number, next);
        // It went along with who left, so there is another.
        assert_eq!(keys.due(), Some(at(1_010)));
    }

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5ea1);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Whoever leaves, whatever is said and however much is sealed.
        #[test]
        fn keys_only_go_forward_at_their_rate_and_what_a_leaver_had_ends_in_time(
            steps in proptest::collection::vec((0..4u8, 0..400u64), 1..200),
        ) {
            let mut maker = maker();
            let mut keys = GroupKeys::new(Suite::Aes128Gcm, &mut maker);
            let (mut now, mut last, mut made) = (1_000, keys.in_use().number, Vec::new());
            // What leavers had, and since when.
            let mut lost: Vec<(GroupKeyNumber, u64)> = Vec::new();
            let mut seen = BTreeSet::new();
            for (step, pause) in steps {
                let before = now;
                now += pause;
                // Its owner never comes late.
                while let Some(due) = keys.due().filter(|due| *due <= at(now)) {
                    let when = before.max(due.as_nanos() / 1_000_000);
                    if keys.advance(at(when), 5, &mut maker) {
                        made.push(when);
                    }
                    lost.retain(|(number, since)| *number == keys.in_use().number || {
                        assert!(when <= since + 1_500, "lost at {since}, used until {when}");
                        false
                    });
                    prop_assert!(keys.due() != Some(due));
                }
                let newest = keys.next().unwrap_or(keys.in_use()).number;
                match step {
                    0 => {
                        keys.member_left(GroupKeyNumber::NONE);
                        lost.push((newest, now));
                    }
                    1 => { keys.note_held(newest, GroupKeyNumber::NONE); }
                    _ => {}
                }
                for _ in 0..3 {
                    let mut datagram = [0; 40];
                    let sealer = keys.sealer(1, &mut maker);
                    prop_assert!(sealer.seal(&mut datagram));
                    prop_assert!(seen.insert(datagram[..8].to_vec()), "twice");
                }
                let number = keys.in_use().number;
                prop_assert!(number == last || number.is_later_than(last));
                last = number;
            }
            for two in made.windows(2) {
                prop_assert!(two[1] >= two[0] + 1_000, "{made:?}");
            }
        }
    }
}
