//! The group keys of a participant: which it has, how long it takes what they seal, and when it asks
//! for one that it does not have.

use crate::seal::{GroupOpener, OpenError};
use canopy_wire::{GroupKey, GroupKeyHeld, GroupKeyNumber, Time};
use core::time::Duration;

/// How long an earlier key is still taken after a later one has come. The relay goes on sealing with
/// the earlier one until all members have the later, half a second at most, and what it sealed may be late.
const EARLIER_KEY_LIVES: Duration = Duration::from_secs(2);
/// The one in use, the next, and one before.
const MAX_HELD: usize = 3;
/// The relay sends the key right behind its welcome; later it may be lost.
const FIRST_PATIENCE: Duration = Duration::from_millis(50);
/// Between two questions for a key; while there is none at all it doubles, up to 32 times as much.
const ASK_PAUSE: Duration = Duration::from_millis(100);

struct Held {
    opener: GroupOpener,
    /// Until when it is taken; without end for the newest.
    until: Option<Time>,
}

/// The keys that a participant has been told.
#[derive(Default)]
pub(super) struct GroupKeys {
    held: Vec<Held>,
    /// The latest of the keys that are no longer taken. They never are again, or the same datagram
    /// could be taken twice.
    gone: Option<GroupKeyNumber>,
    newest: Option<GroupKeyNumber>,
    /// One that was met and is not there.
    lacks: Option<GroupKeyNumber>,
    /// The relay is to be told that the newest has arrived.
    is_to_tell: bool,
    ask_at: Option<Time>,
    asked: Option<Time>,
    tries: u32,
    /// Datagrams that were dropped because their key was not there.
    keyless: u64,
}

impl GroupKeys {
    /// Those of a session that has just begun on a comtree whose members share a key.
    pub(super) fn awaited(now: Time) -> GroupKeys {
        GroupKeys { ask_at: Some(now + FIRST_PATIENCE), ..GroupKeys::default() }
    }

    /// Whether there is one: before that, no update that was subscribed to could be read.
    pub(super) fn is_there(&self) -> bool {
        self.newest.is_some()
    }

    pub(super) fn keyless(&self) -> u64 {
        self.keyless
    }

    /// The relay tells a key.
    pub(super) fn learn(&mut self, now: Time, told: &GroupKey) {
        self.forget(now);
        let is_gone = self.gone.is_some_and(|gone| !told.number.is_later_than(gone));
        if is_gone {
            return;
        }
        self.is_to_tell = true;
        self.tries = 0;
        if self.held.iter().any(|held| held.opener.number() == told.number) {
            return;
        }
        if self.lacks.is_none_or(|lacks| lacks == told.number) {
            (self.lacks, self.ask_at) = (None, None);
        }
        let is_newest = self.newest.is_none_or(|newest| told.number.is_later_than(newest));
        let end = Some(now + EARLIER_KEY_LIVES);
        if is_newest {
            self.newest = Some(told.number);
            self.held.iter_mut().for_each(|held| held.until = held.until.or(end));
        }
        let until = if is_newest { None } else { end };
        self.held.push(Held { opener: GroupOpener::new(told), until });
        if self.held.len() > MAX_HELD {
            self.let_go_of_earliest();
        }
    }

    fn forget(&mut self, now: Time) {
        while self.held.iter().any(|held| held.until.is_some_and(|until| now >= until)) {
            self.let_go_of_earliest();
        }
    }

    /// Lets go of the earliest key. Those that are earlier still must not come back either.
    fn let_go_of_earliest(&mut self) {
        let mut earliest = 0;
        for at in 1..self.held.len() {
            let is_earlier =
                self.held[earliest].opener.number().is_later_than(self.held[at].opener.number());
            earliest = if is_earlier { at } else { earliest };
        }
        self.gone = Some(self.held.swap_remove(earliest).opener.number());
    }

    /// Opens a datagram that was sealed for many. `None` if it is of no key that is there: then the
    /// relay will be asked, unless the key is one of the past.
    pub(super) fn open<'a>(
        &mut self,
        now: Time,
        datagram: &'a mut [u8],
    ) -> Option<Result<&'a mut [u8], OpenError>> {
        let number = GroupKeyNumber::of(datagram)?;
        let is_it = |held: &&mut Held| held.opener.number() == number;
        let found = self.held.iter_mut().find(is_it);
        match found.filter(|held| held.until.is_none_or(|until| now < until)) {
            Some(held) => Some(held.opener.open(datagram)),
            None => {
                self.keyless += 1;
                if self.gone.is_none_or(|gone| number.is_later_than(gone)) {
                    let soonest = self.asked.map_or(now, |asked| now.max(asked + ASK_PAUSE));
                    self.ask_at.get_or_insert(soonest);
                    self.lacks = Some(number);
                }
                None
            }
        }
    }

    /// When there is something to tell or ask.
    pub(super) fn due(&self) -> Option<Time> {
        if self.is_to_tell { Some(Time::ZERO) } else { self.ask_at }
    }

    /// What to tell the relay now.
    pub(super) fn poll(&mut self, now: Time) -> Option<GroupKeyHeld> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let is_question = self.ask_at.is_some_and(|at| now >= at);
        self.is_to_tell = false;
        if is_question {
            self.asked = Some(now);
            let again = now + ASK_PAUSE * (1 << self.tries.min(5));
            self.tries += 1;
            self.ask_at = if self.is_there() { None } else { Some(again) };
        }
        // Once asked, the next datagram with that key asks again.
        let lacks = self.lacks.filter(|_| is_question);
        let or_none = |number: Option<GroupKeyNumber>| number.unwrap_or(GroupKeyNumber::NONE);
        Some(GroupKeyHeld { newest: or_none(self.newest), lacks: or_none(lacks) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::{GroupKeyMaker, GroupSealer};
    use canopy_wire::{SEAL_LEN, Suite};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn sealed(sealer: &mut GroupSealer) -> [u8; 16 + SEAL_LEN] {
        let mut datagram = [0; 16 + SEAL_LEN];
        assert!(sealer.seal(&mut datagram));
        datagram
    }

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn keys(count: usize) -> Vec<GroupSealer> {
        let mut maker = GroupKeyMaker::new(&[1; 16], 0, 1);
        (0..count).map(|_| maker.make(Suite::Aes128Gcm)).collect()
    }

    #[test]
    fn an_earlier_key_is_taken_for_a_while_and_never_again() {
        let (mut sealers, mut held) = (keys(2), GroupKeys::awaited(at(0)));
        let first = sealers[0].to_tell();
        held.learn(at(0), &first);
        let mut late = sealed(&mut sealers[0]);
        let [mut early, mut more] = [0; 2].map(|_| sealed(&mut sealers[0]));
        held.learn(at(10), &sealers[1].to_tell());
        assert!(held.open(at(1_000), &mut early).unwrap().is_ok());
        assert!(held.open(at(2_009), &mut more).unwrap().is_ok());
        assert!(held.open(at(2_010), &mut late.clone()).is_none());
        // Its own packet comes again, or comes very late.
        held.learn(at(2_011), &first);
        assert!(held.open(at(2_012), &mut late).is_none());
        assert!(held.open(at(2_012), &mut sealed(&mut sealers[1])).unwrap().is_ok());
    }

    #[test]
    fn one_between_two_keys_is_asked_for_too() {
        let (mut sealers, mut held) = (keys(3), GroupKeys::awaited(at(0)));
        for number in [0, 2] {
            held.learn(at(0), &sealers[number].to_tell());
            held.poll(at(0));
        }
        assert!(held.open(at(1), &mut sealed(&mut sealers[1])).is_none());
        let said = held.poll(at(1)).unwrap();
        assert_eq!((said.newest, said.lacks), (sealers[2].number(), sealers[1].number()));
        held.learn(at(2), &sealers[1].to_tell());
        assert!(held.open(at(2), &mut sealed(&mut sealers[1])).unwrap().is_ok());
        assert!(held.open(at(2_002), &mut sealed(&mut sealers[1])).is_none());
    }

    #[test]
    fn a_key_that_is_not_there_is_asked_for_at_a_rate() {
        let (mut sealers, mut held) = (keys(2), GroupKeys::awaited(at(0)));
        assert_eq!(held.poll(at(49)), None);
        let mut asked = Vec::new();
        for milli in 50..10_000 {
            asked.extend(held.poll(at(milli)).map(|said| (milli, said)));
        }
        let when: Vec<_> = asked.iter().map(|(milli, _)| *milli).collect();
        assert_eq!(when, [50, 150, 350, 750, 1_550, 3_150, 6_350, 9_550]);
        assert!(asked.iter().all(|(_, said)| said.newest == GroupKeyNumber::NONE));
        held.learn(at(10_000), &sealers[0].to_tell());
        let (newest, lacks) = (sealers[0].number(), GroupKeyNumber::NONE);
        assert_eq!(held.poll(at(10_000)), Some(GroupKeyHeld { newest, lacks }));
        assert_eq!(held.due(), None);
        // Each datagram of the next key asks, ten times a second at most.
        let mut asked = 0;
        for milli in 10_001..11_001 {
            assert!(held.open(at(milli), &mut sealed(&mut sealers[1])).is_none());
            let said = held.poll(at(milli));
            assert!(said.is_none_or(|said| said.lacks == sealers[1].number()));
            asked += u64::from(said.is_some());
        }
        assert_eq!((asked, held.keyless()), (10, 1_000));
    }

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5ea1);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Whatever order keys and datagrams come in, and however often.
        #[test]
        fn no_member_takes_a_datagram_twice(
            steps in proptest::collection::vec((0..6usize, 0..20usize, 0..900u64), 1..200),
        ) {
            let (mut sealers, mut held) = (keys(6), GroupKeys::awaited(at(0)));
            let (mut now, mut told) = (0, Vec::new());
            let mut datagrams = Vec::new();
            for sealer in &mut sealers {
                for _ in 0..10 {
                    told.push(sealer.to_tell());
                    datagrams.push([0; 2].map(|_| sealed(sealer)));
                }
            }
            let mut taken = BTreeSet::new();
            for (key, what, pause) in steps {
                now += pause;
                let one = key * 10 + what / 2;
                if pause % 3 == 0 {
                    held.learn(at(now), &told[one]);
                } else if let Some(Ok(_)) = held.open(at(now), &mut datagrams[one][what % 2].clone()) {
                    prop_assert!(taken.insert((key, what)), "{key} {what} was taken twice");
                }
                prop_assert!(held.held.len() <= MAX_HELD);
            }
        }
    }
}
