//! Three data threads against a model that is a set: who is subscribed to what, at which level.

use crate::support::{COMTREE, DOWNLINKS, PERIODIC, World, config, with_downlink};
use canopy_relay::{Mode, RelayConfig};
use canopy_session::State;
use canopy_wire::{Address, Flags, Group, Level};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;

const THREADS: usize = 3;
const GROUPS: u32 = 4;
const LEVELS: u8 = 4;

/// Something that happens while the threads take their turns in any order. Participants are
/// numbered modulo how many there are.
#[derive(Clone, Debug)]
enum Step {
    Join { asks: usize },
    Subscribe { number: usize, group: u32, level: u8 },
    Unsubscribe { number: usize, group: u32 },
    Publish(Publish),
    Leave { number: usize },
    Run { thread: usize },
}

#[derive(Clone, Debug)]
struct Publish {
    number: usize,
    group: u32,
    level: u8,
    echo: bool,
}

fn publish() -> impl Strategy<Value = Publish> {
    (0usize..64, 0..GROUPS, 0..LEVELS, any::<bool>())
        .prop_map(|(number, group, level, echo)| Publish { number, group, level, echo })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..THREADS).prop_map(|asks| Step::Join { asks }),
        6 => (0usize..64, 0..GROUPS, 0..LEVELS)
            .prop_map(|(number, group, level)| Step::Subscribe { number, group, level }),
        3 => (0usize..64, 0..GROUPS).prop_map(|(number, group)| Step::Unsubscribe { number, group }),
        3 => publish().prop_map(Step::Publish),
        1 => (0usize..64).prop_map(|number| Step::Leave { number }),
        8 => (0..THREADS).prop_map(|thread| Step::Run { thread }),
    ]
}

/// By participant: the level of each group that it is subscribed to; `None` for one that left.
type Model = Vec<Option<BTreeMap<u32, u8>>>;

struct Checked {
    world: World,
    model: Model,
}

impl Checked {
    fn new(config: RelayConfig) -> Checked {
        let mut world = World::with_threads(config, THREADS as u16);
        for thread in 0..THREADS {
            world.add_participant(thread, COMTREE);
        }
        world.settle();
        Checked { world, model: vec![Some(BTreeMap::new()); THREADS] }
    }

    fn take(&mut self, step: Step) {
        let participants = self.model.len();
        match step {
            Step::Join { asks } => {
                let number = self.world.add_participant(asks, COMTREE);
                self.model.push(Some(BTreeMap::new()));
                self.world.send_from(number);
            }
            Step::Subscribe { number, group, level } => {
                let number = number % participants;
                if let Some(wanted) = &mut self.model[number] {
                    wanted.insert(group, level);
                    let session = &mut self.world.participants[number].session;
                    session.subscribe(Group::new(group), Level(level));
                    self.world.send_from(number);
                }
            }
            Step::Unsubscribe { number, group } => {
                let number = number % participants;
                if let Some(wanted) = &mut self.model[number] {
                    wanted.remove(&group);
                    self.world.participants[number].session.unsubscribe(Group::new(group));
                    self.world.send_from(number);
                }
            }
            Step::Publish(publish) => drop(self.publish(&publish, u32::MAX)),
            Step::Leave { number } => {
                let number = number % participants;
                self.model[number] = None;
                self.world.participants[number].session.leave();
                self.world.send_from(number);
            }
            Step::Run { thread } => drop(self.world.run(thread)),
        }
    }

    /// Publishes, if the publisher is in the world. Returns who it is.
    fn publish(&mut self, publish: &Publish, id: u32) -> Option<usize> {
        let number = publish.number % self.model.len();
        let is_in = self.world.participants[number].session.state() == State::Connected;
        let Publish { group, level, echo, .. } = *publish;
        let flags = if echo { Flags::ECHO } else { Flags(0) };
        is_in.then(|| {
            self.world.publish(number, group, level, flags, &id.to_be_bytes());
            number
        })
    }

    fn gets(&self, receiver: usize, publisher: usize, publish: &Publish) -> bool {
        let wanted = self.model[receiver].as_ref().and_then(|wanted| wanted.get(&publish.group));
        (receiver != publisher || publish.echo)
            && wanted.is_some_and(|up_to| publish.level <= *up_to)
    }
}

fn rules() -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(0x3_7423);
    ProptestConfig { cases: 200, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(rules())]
    /// Whatever happened before, once all is quiet every update reaches exactly those that the
    /// model names, once, and what one publisher sent in its order.
    #[test]
    fn all_threads_together_are_one_relay(
        is_periodic in any::<bool>(),
        downlink in 0..DOWNLINKS.len(),
        has_sets in any::<bool>(),
        steps in proptest::collection::vec(step(), 0..120),
        published in proptest::collection::vec((publish(), proptest::option::of(0..THREADS)), 1..60),
    ) {
        let mode = if is_periodic { PERIODIC } else { Mode::Immediate };
        let downlink = DOWNLINKS[downlink];
        let config = with_downlink(config(mode), downlink);
        let smallest_set = has_sets.then_some(2);
        let mut checked = Checked::new(RelayConfig { smallest_set, ..config });
        for step in steps {
            checked.take(step);
        }
        checked.world.settle();
        checked.world.tick();
        for participant in &mut checked.world.participants {
            participant.received.clear();
        }
        let live = checked.model.iter().flatten().map(BTreeMap::len).sum::<usize>();
        let subscriptions: u32 = checked.world.threads.iter().map(|one| one.subscriptions()).sum();
        prop_assert_eq!(subscriptions as usize, live);

        let participants = checked.model.len();
        let mut expected: Vec<BTreeMap<Address, Vec<u32>>> = vec![BTreeMap::new(); participants];
        for (id, (publish, run)) in published.iter().enumerate() {
            let id = id as u32;
            if let Some(publisher) = checked.publish(publish, id) {
                let src = checked.world.address(publisher);
                for (receiver, expected) in expected.iter_mut().enumerate() {
                    if checked.gets(receiver, publisher, publish) {
                        expected.entry(src).or_default().push(id);
                    }
                }
            }
            if let Some(thread) = run {
                checked.world.run(*thread);
            }
        }
        checked.world.settle();
        checked.world.tick();
        for (receiver, expected) in expected.into_iter().enumerate() {
            let mut found: BTreeMap<Address, Vec<u32>> = BTreeMap::new();
            for one in &checked.world.participants[receiver].received {
                let id = u32::from_be_bytes(one.payload[..].try_into().unwrap());
                found.entry(one.src).or_default().push(id);
            }
            prop_assert_eq!(found, expected, "participant {}", receiver);
        }
        let counters = |of: fn(&canopy_relay::Counters) -> u64| checked.world.sum(of);
        prop_assert_eq!(counters(|one| one.updates_passed), counters(|one| one.updates_taken));
        prop_assert_eq!(counters(|one| one.drops.iter().sum()), 0);
    }
}
