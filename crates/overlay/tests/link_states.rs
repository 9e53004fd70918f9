//! Relays that tell each other of their links on random networks, where links fail and come back and relays start again,
//! while what they say is late, lost or overtaken: in the end everybody knows all whom links lead to, and nobody else.

use canopy_overlay::{KnownLinks, LinkStates, NEAR};
use canopy_wire::{
    HEADER_LEN, Header, Kind, LinkDetail, LinkState, LinkStateAck, LinkStateId, Packet,
    SAFE_DATAGRAM, SEAL_LEN, SessionId, Time,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(20);
/// How long it takes until all is known, and in as much detail as it is to be: who is farther than before hears of the
/// others in detail until they say something new.
const SETTLES: u32 = 40;

struct Relay {
    states: LinkStates,
    /// What its own clock is ahead of the world's.
    ahead: Duration,
    /// Whether it says anything of its links: one of an earlier release does not.
    is_recent: bool,
}

struct World {
    now: Time,
    rng: ChaCha8Rng,
    relays: Vec<Relay>,
    links: Vec<([usize; 2], bool)>,
    /// When it arrives, from whom, to whom.
    under_way: Vec<(Time, usize, usize, Box<[u8]>)>,
    /// When an end notices how a link is.
    notices: Vec<(Time, usize, usize)>,
    /// What each relay takes its links to be.
    finds: BTreeMap<(usize, usize), bool>,
    loss: u32,
    sent: u64,
}

fn key(relay: usize) -> [u8; 32] {
    [relay as u8 + 1; 32]
}

fn name(relay: usize) -> String {
    format!("relay-{relay}")
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = rng.random_range(2..14_usize);
        let mut links: Vec<([usize; 2], bool)> = Vec::new();
        for relay in 1..count {
            links.push(([relay, rng.random_range(relay.saturating_sub(2)..relay)], false));
        }
        for _ in 0..rng.random_range(0..=count) {
            let ends = [rng.random_range(0..count), rng.random_range(0..count)];
            let is_there = links.iter().any(|(of, _)| ends.iter().all(|end| of.contains(end)));
            if ends[0] != ends[1] && !is_there {
                links.push((ends, false));
            }
        }
        let loss = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..30) };
        World::of(rng, count, links, loss)
    }

    fn of(mut rng: ChaCha8Rng, count: usize, links: Vec<([usize; 2], bool)>, loss: u32) -> World {
        let mut relay = |number| Relay {
            states: LinkStates::new(key(number), &name(number), 1_000),
            ahead: Duration::from_millis(rng.random_range(0..90_000)),
            is_recent: true,
        };
        let relays = (0..count).map(&mut relay).collect();
        let ends =
            links.iter().enumerate().flat_map(|(link, (ends, _))| ends.map(|end| (end, link)));
        let finds = ends.map(|of| (of, true)).collect();
        let now = Time::from_millis(1_000);
        let (under_way, notices) = (Vec::new(), Vec::new());
        World { now, rng, relays, links, under_way, notices, finds, loss, sent: 0 }
    }

    fn steps(&mut self, seconds: u32) {
        (0..50 * seconds).for_each(|_| self.step());
    }

    fn turn_link(&mut self, link: usize, cut: bool) {
        self.links[link].1 = cut;
        for end in self.links[link].0 {
            let at = self.now + Duration::from_millis(self.rng.random_range(1..300));
            self.notices.push((at, end, link));
        }
    }

    /// A relay starts again and knows nothing. Its clock may show an earlier time than before.
    fn restart(&mut self, relay: usize) {
        let life = self.rng.random_range(500..1_500);
        self.relays[relay].states = LinkStates::new(key(relay), &name(relay), life);
        let links = (0..self.links.len()).filter(|link| self.links[*link].0.contains(&relay));
        for link in links.collect::<Vec<_>>() {
            let cut = self.links[link].1;
            for end in self.links[link].0 {
                let neighbour = key(self.other(link, end));
                let local = self.now + self.relays[end].ahead;
                self.relays[end].states.hear_link(local, &neighbour, false);
            }
            self.turn_link(link, cut);
        }
    }

    fn other(&self, link: usize, end: usize) -> usize {
        let ends = self.links[link].0;
        if ends[0] == end { ends[1] } else { ends[0] }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        let noticed = self.notices.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, end, link) in noticed {
            let up = !self.links[link].1;
            self.finds.insert((end, link), up);
            let neighbour = key(self.other(link, end));
            let local = now + self.relays[end].ahead;
            self.relays[end].states.hear_link(local, &neighbour, up);
        }
        for number in 0..self.relays.len() {
            self.say(number);
        }
        let come = self.under_way.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, from, to, packet) in come {
            let is_cut = |(ends, cut): &([usize; 2], bool)| {
                *cut && ends.contains(&from) && ends.contains(&to)
            };
            if self.relays[to].is_recent && !self.links.iter().any(is_cut) {
                let local = now + self.relays[to].ahead;
                self.relays[to].states.hear(local, &key(from), &packet);
            }
        }
    }

    fn say(&mut self, number: usize) {
        let local = self.now + self.relays[number].ahead;
        let of_relay = self.finds.iter().filter(|((end, _), _)| *end == number);
        let links = of_relay.map(|((end, link), is_up)| {
            let detail = LinkDetail {
                link: *link as u32,
                is_up: *is_up,
                delay_us: 5_000,
                loss: 0,
                free_kbit: 100 * (*link as u32 + 1),
            };
            (key(self.other(*link, *end)), detail)
        });
        let links = links.collect();
        let relay = &mut self.relays[number];
        if !relay.is_recent {
            return;
        }
        relay.states.set_links(local, links);
        relay.states.review(local);
        while let Some(flooded) = relay.states.poll_flooded() {
            let to = usize::from(flooded.to[0]) - 1;
            for packet in flooded.packets {
                assert!(packet.len() > HEADER_LEN && packet.len() + SEAL_LEN <= SAFE_DATAGRAM);
                self.sent += 1;
                if self.rng.random_range(0..100) < self.loss {
                    continue;
                }
                let at = self.now + Duration::from_millis(self.rng.random_range(1..80));
                self.under_way.push((at, number, to, packet));
            }
        }
    }

    /// How many links away each relay is from one, by what is not cut.
    fn distances(&self, from: usize) -> BTreeMap<usize, u8> {
        let (mut distances, mut next) = (BTreeMap::from([(from, 0)]), 0);
        let mut reached = vec![from];
        while let Some(at) = reached.get(next).copied() {
            next += 1;
            for (link, (ends, cut)) in self.links.iter().enumerate() {
                if !cut && ends.contains(&at) {
                    let to = self.other(link, at);
                    let distance = distances[&at] + 1;
                    distances.entry(to).or_insert_with(|| {
                        reached.push(to);
                        distance
                    });
                }
            }
        }
        distances
    }

    fn check(&self, seed: u64) {
        for (number, relay) in self.relays.iter().enumerate() {
            let distances = self.distances(number);
            let wanted: BTreeSet<[u8; 32]> =
                distances.keys().filter(|of| **of != number).map(|of| key(*of)).collect();
            assert_eq!(relay.states.reachable(), wanted, "seed {seed}, relay {number}");
            for known in relay.states.relays().into_iter().filter(|known| known.is_reachable) {
                let of = usize::from(known.key[0]) - 1;
                let state = known.states[0];
                assert_eq!(state.name, name(of));
                let is_detailed = matches!(state.links, KnownLinks::Detailed(_));
                // Where much is lost, what has come the shorter way may be under way.
                let is_near = distances[&of] <= NEAR;
                assert!(self.loss > 0 || is_detailed == is_near, "seed {seed}: {number} of {of}");
                let up: Vec<u32> = (0..self.links.len() as u32)
                    .filter(|link| {
                        let (ends, cut) = self.links[*link as usize];
                        ends.contains(&of) && !cut
                    })
                    .collect();
                let free = up.iter().map(|link| 100 * (link + 1)).max().unwrap_or(0);
                assert_eq!(
                    (state.links.up(), state.free_kbit),
                    (up, free),
                    "seed {seed}: {number} of {of}"
                );
            }
        }
    }
}

#[test]
fn all_know_the_links_of_all_whom_links_lead_to_and_of_nobody_else() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.steps(SETTLES);
        world.check(seed);
        for _ in 0..world.rng.random_range(1..12) {
            if world.rng.random_bool(0.3) {
                let relay = world.rng.random_range(0..world.relays.len());
                world.restart(relay);
            } else {
                let link = world.rng.random_range(0..world.links.len());
                let cut = !world.links[link].1;
                world.turn_link(link, cut);
            }
            let pause = world.rng.random_range(0..3);
            world.steps(pause);
        }
        world.steps(SETTLES);
        world.check(seed);
    }
}

/// A chain of relays with its links.
fn chain(count: usize) -> World {
    let links = (1..count).map(|relay| ([relay - 1, relay], false)).collect();
    World::of(ChaCha8Rng::seed_from_u64(1), count, links, 0)
}

#[test]
fn a_link_that_fails_is_known_far_away_within_half_a_second_and_little_is_said_while_nothing_changes()
 {
    let mut world = chain(7);
    world.steps(SETTLES);
    let before = world.sent;
    world.steps(60);
    // Each says something twice a minute, and each end of a link sends or acknowledges it once.
    let per_minute = world.sent - before;
    assert!(per_minute <= 3 * 2 * 7 * 6, "{per_minute}");
    world.turn_link(5, true);
    let mut steps = 0;
    while world.relays[0].states.reachable().contains(&key(6)) {
        world.step();
        steps += 1;
    }
    // The ends notice within 300 ms, and each link takes up to 80.
    assert!(STEP * steps <= Duration::from_millis(300 + 5 * 100), "{:?}", STEP * steps);
}

#[test]
fn what_a_relay_that_is_lost_has_said_is_forgotten() {
    let mut world = chain(3);
    world.steps(5);
    assert_eq!(world.relays[0].states.relays().len(), 3);
    world.turn_link(1, true);
    world.steps(130);
    let known = world.relays[0].states.relays();
    assert_eq!(known.iter().map(|relay| relay.key).collect::<Vec<_>>(), [key(0), key(1)]);
}

#[test]
fn a_relay_of_an_earlier_release_is_not_asked_for_ever() {
    let mut world = chain(3);
    world.relays[2].is_recent = false;
    world.steps(100);
    let before = world.sent;
    world.steps(60);
    // Two relays say something twice a minute, which is acknowledged once, and sent eight times to who is silent.
    assert!(world.sent - before <= 2 * 2 * (2 + 8), "{}", world.sent - before);
}

#[test]
fn a_relay_with_more_links_than_a_packet_holds_tells_of_all_and_of_those_that_go() {
    let now = Time::from_millis(1_000);
    let [hub, leaf] = [[9; 32], [8; 32]];
    let mut states = [LinkStates::new(hub, "hub", 1), LinkStates::new(leaf, "leaf", 1)];
    let detail =
        |link: u32| LinkDetail { link, is_up: true, delay_us: 1, loss: 0, free_kbit: link };
    let links = |count: u32| {
        let other = |link: u32| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&link.to_be_bytes());
            (if link == 0 { leaf } else { key }, detail(link))
        };
        (0..count).map(other).collect::<BTreeMap<_, _>>()
    };
    let mut tell = |now: Time, count: u32| {
        states[0].set_links(now, links(count));
        states[1].set_links(now, [(hub, detail(0))].into());
        for _ in 0..4 {
            for (at, to, from) in [(0, leaf, hub), (1, hub, leaf)] {
                states[at].review(now);
                while let Some(flooded) = states[at].poll_flooded() {
                    if flooded.to == to {
                        for packet in flooded.packets {
                            states[1 - at].hear(now, &from, &packet);
                        }
                    }
                }
            }
        }
        let known = states[1].relays();
        let of_hub = known.iter().find(|relay| relay.key == hub).unwrap();
        let up: BTreeSet<u32> = of_hub.states.iter().flat_map(|state| state.links.up()).collect();
        (up.len(), of_hub.states.iter().map(|state| state.free_kbit).max())
    };
    assert_eq!(tell(now, 128), (128, Some(127)));
    let later = now + Duration::from_secs(20);
    assert_eq!(tell(later, 60), (60, Some(59)));
}

/// Whatever a neighbour says: nothing breaks, what is kept is bounded, and what a relay says of itself is its own.
#[test]
fn nothing_that_a_neighbour_says_breaks_anything() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let [own, neighbour] = [key(0), key(1)];
    let mut states = LinkStates::new(own, "own", 1);
    let mut now = Time::from_millis(1_000);
    let detail = LinkDetail { link: 1, is_up: true, delay_us: 1, loss: 0, free_kbit: 1 };
    states.set_links(now, [(neighbour, detail)].into());
    for _ in 0..40_000 {
        let mut body: Vec<u8> = (0..rng.random_range(0..160)).map(|_| rng.random()).collect();
        if rng.random_bool(0.9) && body.len() > 60 {
            // It can be read: the newest that there can be, of a relay that there is or is not.
            if rng.random_bool(0.1) {
                body[..32].copy_from_slice(&own);
                body[33..45].fill(u8::MAX);
            }
            body[32] %= 5;
            body[45..47].fill(0);
            (body[47], body[52]) = (rng.random_range(0..2), 0);
            body[53] = rng.random_range(0..8);
        }
        let kind = if rng.random_bool(0.8) { Kind::LinkState } else { Kind::LinkStateAck };
        let header = Header::new(kind, SessionId::NONE, canopy_wire::Comtree(0));
        let mut packet = [0; 300];
        let len = header.encode_packet(&body, &mut packet).unwrap();
        states.hear(now, &neighbour, &packet[..len]);
        now = now + Duration::from_millis(1);
        states.review(now);
        while let Some(flooded) = states.poll_flooded() {
            assert_eq!(flooded.to, neighbour);
        }
        assert!(states.poll_timeout().is_some());
    }
    let known = states.relays();
    assert!(known.len() > 5_000 && known.len() <= 8_192, "{}", known.len());
    let of_own = known.iter().find(|relay| relay.key == own).unwrap();
    assert!(of_own.states.len() <= 4 && of_own.states.iter().all(|state| state.name == "own"));
}

/// A relay that others are at, with a link that fails now and then while what is measured of another one changes all the
/// time.
#[test]
fn whoever_has_much_to_say_of_measures_says_at_once_that_a_link_fails() {
    let [own, steady, failing] = [key(0), key(1), key(2)];
    let mut states = LinkStates::new(own, "own", 1);
    let mut now = Time::from_millis(1_000);
    let detail =
        |link, is_up, delay_us| LinkDetail { link, is_up, delay_us, loss: 0, free_kbit: 1 };
    for turn in 1..600_u32 {
        let is_up = !turn.is_multiple_of(20);
        let links = [(steady, detail(1, true, turn * 10_000)), (failing, detail(2, is_up, 1))];
        now = now + Duration::from_secs(3);
        states.set_links(now, links.into());
        let said = states.relays()[0].states[0].links.up();
        assert_eq!(said.contains(&2), is_up, "turn {turn}");
    }
}

/// Two processes with one key say what each has to say, once a second at most.
#[test]
fn two_relays_with_one_key_flood_nobody() {
    let links = [[0, 1], [1, 2], [1, 3]].map(|ends| (ends, false)).to_vec();
    let mut world = World::of(ChaCha8Rng::seed_from_u64(1), 4, links, 0);
    // Relays 2 and 3 take each other for themselves.
    world.relays[3].states = LinkStates::new(key(2), "other", 7_000);
    world.steps(20);
    let before = world.sent;
    world.steps(60);
    let a_second = (world.sent - before) / 60;
    assert!((1..40).contains(&a_second), "{a_second}");
}

/// What others still tell of a part that a relay has said to be empty is nothing new to it.
#[test]
fn a_relay_whose_links_are_fewer_says_so_once() {
    let now = Time::from_millis(1_000);
    let [own, one, other] = [[9; 32], key(1), key(2)];
    let mut states = LinkStates::new(own, "hub", 1);
    let links = |count: u32| {
        let detail = |link| LinkDetail { link, is_up: true, delay_us: 1, loss: 0, free_kbit: 1 };
        let neighbour = |link: u32| match link {
            0 => one,
            1 => other,
            _ => [100 + link as u8; 32],
        };
        (0..count).map(|link| (neighbour(link), detail(link))).collect::<BTreeMap<_, _>>()
    };
    states.set_links(now, links(100));
    let mut now = now + Duration::from_secs(20);
    states.set_links(now, links(2));
    let numbers = |states: &mut LinkStates, now| {
        states.review(now);
        let all: Vec<_> = std::iter::from_fn(|| states.poll_flooded()).collect();
        let to_other = all.into_iter().filter(|flooded| flooded.to == other);
        to_other.flat_map(|flooded| flooded.packets).collect::<Vec<_>>()
    };
    // One of the two has heard it over others, and tells it.
    let id = LinkStateId { relay: own, part: 0, life: 1, number: 0 };
    let mut answer = [0; 100];
    let len = LinkStateAck::encode(&[(id, 1)], &mut answer).unwrap();
    states.hear(now, &other, &answer[..len]);
    let said = numbers(&mut states, now);
    assert!(said.len() >= 2, "{}", said.len());
    for _ in 0..20 {
        now = now + Duration::from_secs(1);
        said.iter().for_each(|packet| states.hear(now, &one, packet));
    }
    let later = numbers(&mut states, now);
    let is_new = |packet: Box<[u8]>| {
        let packet = Packet::new_checked(&packet).unwrap();
        LinkState::decode(&packet).is_ok_and(|state| state.age == 0)
    };
    assert!(!later.into_iter().any(is_new));
}
