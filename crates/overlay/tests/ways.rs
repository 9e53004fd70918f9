//! Relays without a controller on random networks whose links fail and come back at any time, while what they say to each
//! other is late, lost or overtaken: ways up never form a circle, and in the end everybody has one to the root who can.

use canopy_control::signal::{Branch, Role};
use canopy_control::{Downlink, Item, ItemKey, LinkId, Mode, Name, Sharing};
use canopy_overlay::{Detours, Items, Said};
use canopy_plan::Rate;
use canopy_wire::{Comtree, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const COMTREE: Comtree = Comtree(16);
const RATE: Rate = Rate { bits: 1e6, packets: 1e3 };
const STEP: Duration = Duration::from_millis(10);

/// What relays are told that the other end of a link is, by relay and link.
type Roles = BTreeMap<(usize, u32), Role>;

struct Relay {
    items: Items,
    detours: Detours,
}

/// A network, and what is on its way on it.
struct World {
    now: Time,
    rng: ChaCha8Rng,
    relays: Vec<Relay>,
    /// By number: the ends, and whether it is cut.
    links: Vec<([usize; 2], bool)>,
    /// When it arrives, over which link, to whom.
    under_way: Vec<(Time, u32, usize, Said)>,
    /// Standby children, by relay and link, over which something has come: they are children from then on.
    woken: BTreeSet<(usize, u32)>,
    /// When an end notices how a link is.
    notices: Vec<(Time, usize, u32)>,
    /// How many percent of what is said do not arrive.
    loss: u32,
}

fn key(relay: usize) -> [u8; 32] {
    [relay as u8 + 1; 32]
}

impl World {
    /// Relay 0 is the root of a random tree; there are more links at random, and standby parents by rank.
    fn new(seed: u64) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = rng.random_range(2..14_usize);
        let (mut above, mut links) = (vec![None], Vec::new());
        let mut depths = vec![0];
        for relay in 1..count {
            let parent = rng.random_range(0..relay);
            above.push(Some((parent, links.len() as u32)));
            depths.push(depths[parent] + 1);
            links.push(([relay, parent], false));
        }
        for _ in 0..rng.random_range(0..=count) {
            let ends = [rng.random_range(0..count), rng.random_range(0..count)];
            let is_there = links.iter().any(|(of, _)| ends.iter().all(|end| of.contains(end)));
            if ends[0] != ends[1] && !is_there {
                links.push((ends, false));
            }
        }
        let mut roles = Roles::new();
        for (relay, above) in above.iter().enumerate() {
            let Some((parent, link)) = above else { continue };
            roles.insert((relay, *link), Role::Parent);
            roles.insert((*parent, *link), Role::Child);
        }
        for (link, (ends, _)) in links.iter().enumerate().skip(count - 1) {
            let link = link as u32;
            let mut ends = *ends;
            ends.sort_by_key(|end| (depths[*end], *end));
            let [upper, lower] = ends;
            let has_one = (0..link).any(|of| roles.get(&(lower, of)) == Some(&Role::StandbyParent));
            if lower != 0 && !has_one && rng.random_bool(0.5) {
                roles.insert((lower, link), Role::StandbyParent);
                roles.insert((upper, link), Role::StandbyChild);
            } else {
                roles.extend(ends.map(|end| ((end, link), Role::Spare)));
            }
        }
        let loss = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..40) };
        World::of(rng, count, (links, roles), loss)
    }

    /// This many relays with these links, and what each end of them is told that the other is.
    fn of(
        rng: ChaCha8Rng,
        count: usize,
        (links, roles): (Vec<([usize; 2], bool)>, Roles),
        loss: u32,
    ) -> World {
        let relays = (0..count).map(|relay| Relay::new(relay, &links, &roles)).collect();
        let (under_way, notices) = (Vec::new(), Vec::new());
        let (now, woken) = (Time::from_millis(1_000), BTreeSet::new());
        World { now, rng, relays, links, under_way, woken, notices, loss }
    }

    fn steps(&mut self, seconds: u32) {
        (0..100 * seconds).for_each(|_| self.step());
    }

    fn late(&mut self, most_ms: u64) -> Time {
        self.now + Duration::from_millis(self.rng.random_range(1..=most_ms))
    }

    fn turn_link(&mut self, link: usize, cut: bool) {
        self.links[link].1 = cut;
        for end in self.links[link].0 {
            let at = self.late(300);
            self.notices.push((at, end, link as u32));
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        let (due, later) = self.notices.iter().partition(|(at, ..)| *at <= now);
        self.notices = later;
        let due: Vec<(Time, usize, u32)> = due;
        for (_, relay, link) in due {
            let (other, up) = (self.other(link, relay), !self.links[link as usize].1);
            self.relays[relay].detours.hear_link(now, key(other), up);
        }
        let (due, later): (Vec<_>, Vec<_>) =
            self.under_way.iter().copied().partition(|(at, ..)| *at <= now);
        self.under_way = later;
        for (_, link, to, said) in due {
            let from = self.other(link, to);
            let Relay { items, detours } = &mut self.relays[to];
            if detours.hear_search(now, items, &key(from), said.comtree, said.search) {
                self.check_that_nothing_is_a_circle();
            }
        }
        for relay in 0..self.relays.len() {
            let Relay { items, detours } = &mut self.relays[relay];
            if detours.review(now, items) {
                self.check_that_nothing_is_a_circle();
            }
            while let Some(said) = self.relays[relay].detours.poll_said() {
                self.send(relay, said);
            }
        }
    }

    fn send(&mut self, from: usize, said: Said) {
        let to = usize::from(said.to[0]) - 1;
        let link =
            self.links.iter().position(|(ends, _)| ends.contains(&from) && ends.contains(&to));
        let link = link.unwrap();
        if !self.links[link].1 && self.rng.random_range(0..100) >= self.loss {
            let at = self.late(150);
            self.under_way.push((at, link as u32, to, said));
        }
    }

    fn other(&self, link: u32, relay: usize) -> usize {
        let [one, other] = self.links[link as usize].0;
        if one == relay { other } else { one }
    }

    /// The relay above each, over whatever link.
    fn above(&self) -> Vec<Option<(usize, u32)>> {
        let parent = |(number, relay): (usize, &Relay)| {
            let link = relay.roles().into_iter().find(|(_, role)| *role == Role::Parent)?.0;
            Some((self.other(link, number), link))
        };
        self.relays.iter().enumerate().map(parent).collect()
    }

    /// Neither ways up nor links over which both ends have a branch, as updates go round on those.
    fn check_that_nothing_is_a_circle(&mut self) {
        let above = self.above();
        for relay in 0..above.len() {
            let way = std::iter::successors(Some(relay), |at| above[*at].map(|(above, _)| above));
            assert!(way.take(above.len() + 1).count() <= above.len(), "{:?}: {above:?}", self.now);
        }
        let used = self.used_ends();
        let mut parts: Vec<usize> = (0..self.relays.len()).collect();
        for (link, (ends, _)) in (0..).zip(&self.links) {
            if !ends.iter().all(|end| used.contains(&(*end, link))) {
                continue;
            }
            let [one, other] = ends.map(|end| parts[end]);
            assert_ne!(one, other, "{:?}: {link} of {used:?}", self.now);
            parts.iter_mut().filter(|part| **part == other).for_each(|part| *part = one);
        }
    }

    /// Where relays send updates and take them, by relay and link.
    fn used_ends(&mut self) -> BTreeSet<(usize, u32)> {
        let (mut used, mut standby) = (BTreeSet::new(), BTreeSet::new());
        for (at, relay) in self.relays.iter().enumerate() {
            for (link, role) in relay.roles() {
                match role {
                    Role::Parent | Role::Child => _ = used.insert((at, link)),
                    Role::StandbyChild => _ = standby.insert((at, link)),
                    _ => {}
                }
            }
        }
        self.woken.retain(|end| standby.contains(end));
        used.extend(&self.woken);
        for (at, link) in standby {
            if used.contains(&(self.other(link, at), link)) {
                self.woken.insert((at, link));
                used.insert((at, link));
            }
        }
        used
    }

    /// Relays that could reach the root, and do not.
    fn cut_off(&self) -> Vec<usize> {
        let mut joined = BTreeSet::from([0]);
        for _ in 0..self.relays.len() {
            for (ends, cut) in &self.links {
                if !cut && ends.iter().any(|end| joined.contains(end)) {
                    joined.extend(ends);
                }
            }
        }
        let above = self.above();
        let reaches_root = |relay: &usize| {
            let up = |at: &usize| above[*at].filter(|(_, link)| !self.links[*link as usize].1);
            let way = std::iter::successors(Some(*relay), |at| up(at).map(|(above, _)| above));
            way.take(above.len() + 1).any(|at| at == 0)
        };
        joined.into_iter().filter(|relay| !reaches_root(relay)).collect()
    }

    /// Whether whoever is above a relay takes it for one below, if there is a link.
    fn check_that_parents_know(&self) {
        for (relay, above) in self.above().into_iter().enumerate() {
            let Some((above, link)) = above else { continue };
            if self.links[link as usize].1 {
                continue;
            }
            let role = self.relays[above].roles().into_iter().find(|(of, _)| *of == link);
            let knows = matches!(role, Some((_, Role::Child | Role::StandbyChild)));
            assert!(knows, "{above} of {relay}: {role:?}");
        }
    }
}

impl Relay {
    fn new(number: usize, links: &[([usize; 2], bool)], roles: &Roles) -> Relay {
        let mut items = Items::new();
        let mut branches = Vec::new();
        for (link, (ends, _)) in
            links.iter().enumerate().filter(|(_, (ends, _))| ends.contains(&number))
        {
            let other = if ends[0] == number { ends[1] } else { ends[0] };
            let id = LinkId(link as u32);
            let native = ([127, 0, 0, 1], 4040).into();
            let item = Item::Link { id, key: key(other), native, calls: true, capacity: RATE };
            items.insert(ItemKey::Link(id), item);
            if let Some(role) = roles.get(&(number, id.0)) {
                let (site, role) = (other as u16 + 1, *role);
                branches.push(Branch { link: id, site, role, send: RATE, receive: RATE });
            }
        }
        let comtree = Item::Comtree {
            id: COMTREE,
            world: Name::new("w").unwrap(),
            site: number as u16 + 1,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            levels: 1,
            sharing: Sharing::default(),
            branches,
        };
        items.insert(ItemKey::Comtree(COMTREE), comtree);
        let mut detours = Detours::default();
        detours.set_controller(Time::ZERO, true);
        detours.set_controller(Time::ZERO, false);
        Relay { items, detours }
    }

    fn roles(&self) -> Vec<(u32, Role)> {
        let items = self.detours.apply_to(&self.items);
        let Some(Item::Comtree { branches, .. }) = items.get(&ItemKey::Comtree(COMTREE)) else {
            return Vec::new();
        };
        branches.iter().map(|of| (of.link.0, of.role)).collect()
    }
}

#[test]
fn ways_form_no_circle_and_lead_to_the_root_where_any_does() {
    let (mut cut, mut found) = (0, 0);
    for seed in 0..400 {
        let mut world = World::new(seed);
        let faults = world.rng.random_range(1..12);
        for _ in 0..faults {
            let link = world.rng.random_range(0..world.links.len());
            let is_cut = world.links[link].1;
            world.turn_link(link, !is_cut);
            for _ in 0..world.rng.random_range(0..60) {
                world.step();
            }
        }
        world.loss = 0;
        cut += world.cut_off().len();
        // Whoever has asked in vain asks after four seconds again, and ways may be found one behind the other.
        for _ in 0..3_000 {
            world.step();
        }
        assert_eq!(world.cut_off(), Vec::<usize>::new(), "seed {seed}");
        world.check_that_parents_know();
        found += world.relays.iter().filter(|relay| relay.detours.has(COMTREE)).count();
    }
    assert!(cut > 200 && found > 200, "{cut} cut off, {found} found ways");
}

/// The controller is back and does not reach a relay, which goes on by what it was told once whoever is its parent goes
/// by the controller's word again.
#[test]
fn a_way_that_the_controller_does_not_name_ends_at_both_ends() {
    let links = vec![([1, 0], false), ([2, 0], false), ([1, 2], false)];
    let roles = [
        ((0, 0), Role::Child),
        ((1, 0), Role::Parent),
        ((0, 1), Role::Child),
        ((2, 1), Role::Parent),
        ((1, 2), Role::Spare),
        ((2, 2), Role::Spare),
    ];
    let mut world = World::of(ChaCha8Rng::seed_from_u64(1), 3, (links, roles.into()), 0);
    let role = |world: &World, relay: usize, link: u32| {
        let mut roles = world.relays[relay].roles().into_iter();
        roles.find(|(of, _)| *of == link).map(|(_, role)| role)
    };
    world.turn_link(0, true);
    world.steps(2);
    assert_eq!(role(&world, 1, 2), Some(Role::Parent));
    assert_eq!(role(&world, 2, 2), Some(Role::StandbyChild));
    let now = world.now;
    [0, 2].into_iter().for_each(|at: usize| world.relays[at].detours.set_controller(now, true));
    world.turn_link(0, false);
    world.steps(19);
    assert_eq!(role(&world, 1, 2), Some(Role::Parent));
    assert_eq!(role(&world, 2, 2), Some(Role::StandbyChild));
    world.steps(6);
    assert_eq!(role(&world, 1, 0), Some(Role::Parent), "the link is up again");
    assert_eq!([role(&world, 1, 2), role(&world, 2, 2)], [Some(Role::Spare); 2]);
}
