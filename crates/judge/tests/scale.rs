//! A hundred thousand endpoints, each interested in little: an update costs what its receivers
//! cost, and is forgotten when it is settled. Were every update looked at for every participant,
//! this test would take hours.

use canopy_judge::{Carriage, Oracle, Publish, Received, Rules};
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use std::time::Duration;

const ENDPOINTS: usize = 100_000;
/// As many as groups of eight make.
const GROUPS: usize = ENDPOINTS / 8;
const UPDATES: usize = 100_000;
/// Between two updates.
const GAP: Duration = Duration::from_micros(100);
const SETTLE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(400);

struct World {
    oracle: Oracle,
    now: Time,
    /// By endpoint, the group that it is subscribed to; and by group, its endpoints.
    group_of: Vec<usize>,
    members: Vec<Vec<usize>>,
}

fn address(endpoint: usize) -> Address {
    Address::unicast(1 + (endpoint >> 16) as u16, endpoint as u16)
}

fn group(number: usize) -> Group {
    Group::new(number as u32)
}

impl World {
    fn new() -> World {
        let comtrees = std::iter::repeat_n(Comtree(1), ENDPOINTS);
        let oracle = Oracle::new(Rules::undisturbed(SETTLE, PATIENCE), comtrees);
        let members = vec![Vec::new(); GROUPS];
        let now = Time::from_millis(1);
        let mut world = World { oracle, now, group_of: vec![0; ENDPOINTS], members };
        for endpoint in 0..ENDPOINTS {
            world.oracle.appear(world.now, endpoint);
            world.oracle.event(world.now, endpoint, Event::Connected(address(endpoint)));
            world.enter(endpoint, endpoint % GROUPS);
        }
        world
    }

    fn enter(&mut self, endpoint: usize, to: usize) {
        self.oracle.request(self.now, endpoint, group(to), Some(Level(0)));
        self.oracle.event(self.now, endpoint, Event::Subscribed(group(to), Level(0)));
        self.group_of[endpoint] = to;
        self.members[to].push(endpoint);
    }

    /// An endpoint goes over to the next group.
    fn walk(&mut self, endpoint: usize) {
        let from = self.group_of[endpoint];
        self.oracle.request(self.now, endpoint, group(from), None);
        self.oracle.event(self.now, endpoint, Event::Unsubscribed(group(from)));
        self.members[from].retain(|member| *member != endpoint);
        self.enter(endpoint, (from + 1) % GROUPS);
    }

    /// An endpoint publishes to its group; everybody in it gets the update. Returns how many.
    fn publish(&mut self, publisher: usize) -> u64 {
        self.now = self.now + GAP;
        let to = self.group_of[publisher];
        let (src, dst) = (address(publisher), group(to).address());
        let (level, echo, overtaken) = (Level(0), false, false);
        let publish = Publish { publisher, src, dst, level, echo, overtaken };
        let id = self.oracle.publish(self.now, publish);
        self.oracle.read(self.now, publisher, &[id]);
        let received = Received { id: Some(id), src, dst, level };
        let carriage = Carriage { sent: self.now, copy: false, overtaken: false };
        let receivers = self.members[to].iter().filter(|member| **member != publisher);
        receivers.map(|member| self.oracle.received(self.now, *member, &received, carriage)).count()
            as u64
    }
}

#[test]
fn a_hundred_thousand_endpoints_cost_what_their_deliveries_cost() {
    let mut world = World::new();
    // What is published within the time that an update is kept.
    let most = (SETTLE + PATIENCE).as_micros() / GAP.as_micros() + 2;
    let mut deliveries = 0;
    for number in 0..UPDATES {
        let endpoint = number * 7919 % ENDPOINTS;
        deliveries += world.publish(endpoint);
        world.walk(endpoint);
        world.oracle.judge(world.now);
        assert!(world.oracle.updates_held() as u128 <= most, "{}", world.oracle.updates_held());
    }
    world.oracle.judge_all(world.now);
    let tally = world.oracle.tally();
    assert_eq!(tally.findings, Vec::<String>::new());
    assert_eq!((tally.published, tally.deliveries), (UPDATES as u64, deliveries));
    assert_eq!((tally.expected, tally.missing, tally.excused), (deliveries, 0, 0));
    assert!(deliveries > 5 * UPDATES as u64, "{deliveries}");
}
