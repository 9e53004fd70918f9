//! The oracle against a slow and obvious model: the whole history is kept, and every question is
//! answered by looking through it.

use canopy_judge::{Carriage, Oracle, Publish, Received, Rules};
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::time::Duration;

const GROUP: Group = Group::new(3);
const PARTICIPANTS: u32 = 4;
const SETTLE: u64 = 60;
const LEVEL: Level = Level(0);

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    published: u64,
    expected: u64,
    excused: u64,
    delivered: u64,
    missing: u64,
    duplicates: u64,
    unexpected: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    AsksFor,
    AsksOut,
    IsIn,
    IsOut,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32, bool),
    /// The relay's answer to what is outstanding arrives.
    Acknowledge(u32),
    Publish(u32),
    /// The update, counted from the newest, arrives at a participant.
    Deliver(u32, usize),
    Wait(u64),
}

struct Published {
    id: u64,
    at: u64,
    publisher: u32,
    /// Who had to get it when it was published.
    due: Vec<u32>,
    /// Who got it and was allowed to.
    came: Vec<u32>,
}

/// One participant's changes, merged as a session merges them: one outstanding at a time.
#[derive(Clone, Copy, Default)]
struct Changes {
    wanted: bool,
    outstanding: Option<bool>,
    queued: Option<bool>,
}

struct World {
    now: u64,
    oracle: Oracle,
    changes: [Changes; PARTICIPANTS as usize],
    history: Vec<(u64, u32, What)>,
    published: Vec<Published>,
    model: Sums,
}

fn address(who: u32) -> Address {
    Address::unicast(1, 1 + who as u16)
}

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

impl World {
    fn new() -> World {
        // Nothing is forgotten while the test runs.
        let rules = Rules::undisturbed(Duration::from_millis(SETTLE), Duration::from_secs(3600));
        let comtrees = std::iter::repeat_n(Comtree(1), PARTICIPANTS as usize);
        let mut oracle = Oracle::new(rules, comtrees);
        for who in 0..PARTICIPANTS {
            oracle.appear(at(1), who as usize);
            oracle.event(at(1), who as usize, Event::Connected(address(who)));
        }
        World {
            now: 1,
            oracle,
            changes: Default::default(),
            history: Vec::new(),
            published: Vec::new(),
            model: Sums::default(),
        }
    }

    fn step(&mut self, step: Step) {
        // No two things happen at one time.
        self.now += 1;
        match step {
            Step::Ask(who, wanted) => self.ask(who, wanted),
            Step::Acknowledge(who) => self.acknowledge(who),
            Step::Publish(who) => self.publish(who),
            Step::Deliver(who, back) => self.deliver(who, back),
            Step::Wait(millis) => self.now += millis,
        }
    }

    fn ask(&mut self, who: u32, wanted: bool) {
        let changes = &mut self.changes[who as usize];
        if changes.wanted == wanted {
            return;
        }
        changes.wanted = wanted;
        let free = changes.outstanding.is_none();
        *(if free { &mut changes.outstanding } else { &mut changes.queued }) = Some(wanted);
        if wanted {
            self.history.push((self.now, who, What::AsksFor));
            self.oracle.request(at(self.now), who as usize, GROUP, Some(LEVEL));
        } else {
            self.history.push((self.now, who, What::AsksOut));
            self.oracle.request(at(self.now), who as usize, GROUP, None);
        }
    }

    fn acknowledge(&mut self, who: u32) {
        let changes = &mut self.changes[who as usize];
        let Some(wanted) = changes.outstanding.take() else { return };
        changes.outstanding = changes.queued.take();
        if wanted {
            self.history.push((self.now, who, What::IsIn));
            self.oracle.event(at(self.now), who as usize, Event::Subscribed(GROUP, LEVEL));
        } else {
            self.history.push((self.now, who, What::IsOut));
            self.oracle.event(at(self.now), who as usize, Event::Unsubscribed(GROUP));
        }
    }

    fn publish(&mut self, publisher: u32) {
        let publish = Publish {
            publisher: publisher as usize,
            src: address(publisher),
            dst: GROUP.address(),
            level: LEVEL,
            echo: false,
            overtaken: false,
        };
        let id = self.oracle.publish(at(self.now), publish);
        self.oracle.read(at(self.now), publisher as usize, &[id]);
        let due = (0..PARTICIPANTS).filter(|who| *who != publisher && self.is_in(*who)).collect();
        self.model.published += 1;
        self.published.push(Published { id, at: self.now, publisher, due, came: Vec::new() });
    }

    fn deliver(&mut self, who: u32, back: usize) {
        let Some(index) = self.published.len().checked_sub(back + 1) else { return };
        let update = &self.published[index];
        let (src, dst) = (address(update.publisher), GROUP.address());
        let received = Received { id: Some(update.id), src, dst, level: LEVEL };
        let sent = at(self.now);
        let carriage = Carriage { sent, copy: false, overtaken: true };
        self.oracle.received(sent, who as usize, &received, carriage);
        let allowed = who != update.publisher && self.holds_between(who, update.at, self.now);
        if update.came.contains(&who) {
            self.model.duplicates += 1;
        } else if update.due.contains(&who) || allowed {
            self.model.delivered += 1;
            self.published[index].came.push(who);
        } else {
            self.model.unexpected += 1;
        }
    }

    fn of(&self, who: u32) -> impl Iterator<Item = (u64, What)> + '_ {
        self.history
            .iter()
            .filter(move |(_, whose, _)| *whose == who)
            .map(|(t, _, what)| (*t, *what))
    }

    /// Whether the subscription is acknowledged, and not asked to end since. An acknowledgement
    /// that comes while the end is asked for does not count: the end is still on its way.
    fn is_in(&self, who: u32) -> bool {
        let (mut wanted, mut is_in) = (false, false);
        for (_, what) in self.of(who) {
            match what {
                What::AsksFor => wanted = true,
                What::AsksOut => (wanted, is_in) = (false, false),
                What::IsIn => is_in = wanted,
                What::IsOut => {}
            }
        }
        is_in
    }

    /// Whether at some time from `from` to `to` the participant had asked for the group and had
    /// not been told of the end of it.
    fn holds_between(&self, who: u32, from: u64, to: u64) -> bool {
        let (mut wanted, mut since) = (false, None);
        for (t, what) in self.of(who) {
            match what {
                What::AsksFor => {
                    wanted = true;
                    since.get_or_insert(t);
                }
                What::AsksOut => wanted = false,
                What::IsOut if !wanted => {
                    if since.take().is_some_and(|since| since <= to && t >= from) {
                        return true;
                    }
                }
                What::IsIn | What::IsOut => {}
            }
        }
        since.is_some_and(|since| since <= to)
    }

    fn judge(mut self) -> (Sums, Sums) {
        for update in &self.published {
            for who in &update.due {
                let window = update.at..=update.at + SETTLE;
                let asks_out = |(t, what)| what == What::AsksOut && window.contains(&t);
                if update.came.contains(who) {
                    self.model.expected += 1;
                } else if self.of(*who).any(asks_out) {
                    self.model.excused += 1;
                } else {
                    self.model.expected += 1;
                    self.model.missing += 1;
                }
            }
        }
        self.oracle.judge_all(at(self.now));
        let tally = self.oracle.tally();
        let sums = Sums {
            published: tally.published,
            expected: tally.expected,
            excused: tally.excused,
            delivered: tally.deliveries,
            missing: tally.missing,
            duplicates: tally.duplicates,
            unexpected: tally.unexpected,
        };
        (sums, self.model)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..PARTICIPANTS;
    prop_oneof![
        (who.clone(), any::<bool>()).prop_map(|(who, wanted)| Step::Ask(who, wanted)),
        who.clone().prop_map(Step::Acknowledge),
        who.clone().prop_map(Step::Publish),
        (who, 0..6usize).prop_map(|(who, back)| Step::Deliver(who, back)),
        (1..SETTLE).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_oracle_agrees_with_the_history(steps in proptest::collection::vec(step(), 0..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        let (oracle, model) = world.judge();
        prop_assert_eq!(oracle, model);
    }
}
