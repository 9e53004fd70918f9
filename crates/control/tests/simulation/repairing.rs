//! How long a repair takes: sixteen relays on a network of some milliseconds, with the real times for
//! beats, repeats and suspicion. A link or a relay fails, its neighbours notice as the data plane
//! does, and the clock runs until the last relay has its new tree, and the last member of a dead relay
//! is let in elsewhere.

use crate::relays::SimRelay;
use crate::sim::{Plan, Sim, branches, rate, relay_of_number};
use canopy_control::{
    Controller, Core, Downlink, Enter, Item, ItemKey, LinkId, LinkReport, MemberState, Mode, Name,
    NewWorld, RelayId, Retry, Settings,
};
use canopy_plan::Limits;
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use rand::RngExt;

const RELAYS: usize = 16;
const MEMBERS: usize = 32;
/// Both ends of a link know within this that one of them hears nothing.
const NOTICED_MS: u64 = 300;
/// A trial ends after this.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Link,
    Relay,
}

struct Trial {
    sim: Sim,
    world: Name,
    comtree: Comtree,
    /// At which relay each member is.
    homes: Vec<usize>,
    died: Option<usize>,
}

/// When the ends of links notice that these are dead.
type Notices = Vec<(Time, usize, LinkId)>;

impl Trial {
    fn new(seed: u64) -> Trial {
        let homes = (0..MEMBERS).map(|member| member % RELAYS).collect();
        Trial::with(seed, RELAYS, homes, |sim| {
            for from in 0..RELAYS {
                for step in [1, 3] {
                    sim.join(from, (from + step) % RELAYS);
                }
            }
        })
    }

    /// A trial of this many relays, with members at these, and links.
    fn with(seed: u64, relays: usize, homes: Vec<usize>, join: impl Fn(&mut Sim)) -> Trial {
        let mut sim = Sim::empty(seed, Plan::Stormy);
        let (settings, retry) = (Settings::default(), Retry::default());
        sim.controller = Controller::start(settings, retry, sim.now, &mut sim.storage).ok();
        sim.takes = [5, 15];
        for number in 0..relays {
            let controller = sim.controller.as_mut().unwrap();
            let id = controller.register(sim.now, relay_of_number(number)).unwrap();
            sim.relays.push(SimRelay::new(id));
        }
        join(&mut sim);
        let world = Name::new("w").unwrap();
        let default = Limits { send: rate(500), receive: rate(2_000) };
        let new = NewWorld {
            name: world.clone(),
            comtrees: 1,
            channels: Vec::new(),
            levels: 1,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            default,
            core: Core::Center,
            sharing: canopy_control::Sharing::default(),
        };
        sim.controller.as_mut().unwrap().create_world(new).unwrap();
        sim.advance(sim.now + Duration::from_secs(2));
        let mut trial = Trial { sim, world, comtree: Comtree(16), homes, died: None };
        (0..trial.homes.len()).for_each(|member| _ = trial.enter(member));
        trial.sim.advance(trial.sim.now + Duration::from_secs(2));
        assert!(trial.sim.controller.as_ref().is_some_and(Controller::is_settled));
        // At any time between two beats.
        let pause = Duration::from_micros(trial.sim.rng.random_range(0..500_000));
        trial.sim.advance(trial.sim.now + pause);
        trial
    }

    /// A member asks, from next to its own relay; once that is dead, from next to the second one,
    /// which it knows.
    fn enter(&mut self, member: usize) -> Option<RelayId> {
        let (own, relays) = (self.homes[member], self.sim.relays.len());
        let near = [own, (own + 1) % relays, (own + 2) % relays];
        let alive = near.into_iter().filter(|at| Some(*at) != self.died);
        let measured = alive.zip(1..).map(|(at, far)| (self.sim.relays[at].id, far * 1000));
        let ask = Enter::new(self.world.clone(), [member as u8; 16], measured.collect());
        let controller = self.sim.controller.as_mut().unwrap();
        controller.enter(self.sim.now, &ask).ok().map(|admission| admission.relay)
    }

    fn fail(&mut self, failure: Failure) -> Vec<LinkId> {
        let tree = self.sim.controller.as_ref().unwrap().tree(self.comtree);
        assert_eq!(tree.len(), RELAYS);
        let at = self.sim.rng.random_range(1..RELAYS);
        let dead: Vec<LinkId> = match failure {
            Failure::Link => vec![tree[at].above.unwrap().1],
            Failure::Relay => {
                let at = self.sim.relays.iter().position(|r| r.id == tree[at].relay).unwrap();
                self.kill(at)
            }
        };
        dead
    }

    /// A relay dies. Returns its links.
    fn kill(&mut self, at: usize) -> Vec<LinkId> {
        self.sim.relays[at].crash();
        self.died = Some(at);
        let links = self.sim.links.iter().filter(|(_, ends, _)| ends.contains(&at));
        links.map(|(link, ..)| *link).collect()
    }

    fn notices(&mut self, dead: &[LinkId]) -> Notices {
        let mut notices = Vec::new();
        for (link, ends, _) in self.sim.links.clone() {
            for end in ends.into_iter().filter(|_| dead.contains(&link)) {
                let after = self.sim.rng.random_range(NOTICED_MS / 2..=NOTICED_MS);
                notices.push((self.sim.now + Duration::from_millis(after), end, link));
            }
        }
        notices.sort();
        notices
    }

    /// Goes on for a millisecond.
    fn advance(&mut self, notices: &mut Notices) {
        self.sim.advance(self.sim.now + Duration::from_millis(1));
        while let Some((_, end, link)) = notices.first().copied().filter(|n| n.0 <= self.sim.now) {
            notices.remove(0);
            if let Some(side) = &mut self.sim.relays[end].side {
                side.set_link(self.sim.now, LinkReport { link, up: false, delay_us: 0 });
            }
        }
    }

    /// Runs until everything is well again. Returns after how long trees and members were.
    fn run(&mut self, failure: Failure) -> (Duration, Duration) {
        let start = self.sim.now;
        let dead = self.fail(failure);
        let mut notices = self.notices(&dead);
        let (mut trees, mut members) = (None, None);
        let mut asks_at = start + Duration::from_millis(NOTICED_MS);
        while trees.is_none() || members.is_none() {
            assert!(self.sim.now < start + PATIENCE, "trees {trees:?}, members {members:?}");
            self.advance(&mut notices);
            // Whoever has lost its relay asks again until it is let in.
            if self.sim.now >= asks_at
                && let Some(died) = self.died
            {
                asks_at = self.sim.now + Duration::from_millis(100);
                (0..MEMBERS)
                    .filter(|m| self.homes[*m] == died)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|m| _ = self.enter(m));
            }
            let took = self.sim.now.since(start);
            trees = trees.or_else(|| self.have_new_tree(&dead).then_some(took));
            members = members.or_else(|| self.are_all_in().then_some(took));
        }
        (trees.unwrap(), members.unwrap())
    }

    /// Whether all relays that live have the tree that the controller chose, without what is dead.
    fn have_new_tree(&self, dead: &[LinkId]) -> bool {
        let controller = self.sim.controller.as_ref().unwrap();
        let tree = controller.tree(self.comtree);
        let goes = |link: &LinkId| tree.iter().any(|hop| hop.above.is_some_and(|a| a.1 == *link));
        if dead.iter().any(goes) || controller.why(self.comtree).unwrap().1.is_some() {
            return false;
        }
        let key = ItemKey::Comtree(self.comtree);
        tree.iter().all(|hop| {
            let relay = self.sim.relays.iter().find(|relay| relay.id == hop.relay).unwrap();
            let has = relay.side.as_ref().and_then(|side| side.items().get(&key));
            let links = |item: &Item| match item {
                Item::Comtree { branches, .. } => {
                    let of_tree = branches.iter().filter(|of| !of.role.is_standby());
                    of_tree.map(|of| of.link).collect()
                }
                _ => Vec::new(),
            };
            let above = hop.above.map(|(_, link)| link);
            let below = tree.iter().filter_map(|of| of.above.filter(|a| a.0 == hop.relay));
            let mut wanted: Vec<LinkId> = above.into_iter().chain(below.map(|a| a.1)).collect();
            wanted.sort();
            has.is_some_and(|item| links(item) == wanted)
        })
    }

    /// Whether two relays have branches to each other.
    fn are_joined(&self, pair: [usize; 2]) -> bool {
        let has = |at: usize, to: usize| {
            let branches = branches(&self.sim.relays[at], self.comtree);
            let site = self.sim.relays[to].id.0;
            branches.iter().any(|of| of.site == site && !of.role.is_standby())
        };
        has(pair[0], pair[1]) && has(pair[1], pair[0])
    }

    /// Whether all members are let in by relays that live.
    fn are_all_in(&self) -> bool {
        let controller = self.sim.controller.as_ref().unwrap();
        let held = controller.members().filter(|m| m.state == MemberState::Held);
        let served = held.filter(|member| {
            let relay = self.sim.relays.iter().find(|relay| relay.id == member.relay).unwrap();
            let key = ItemKey::Member(self.comtree, member.address);
            relay.side.as_ref().is_some_and(|side| side.items().contains_key(&key))
        });
        served.count() == MEMBERS
    }
}

fn measure(failure: Failure, seeds: u64) -> (Vec<Duration>, Vec<Duration>) {
    let (mut trees, mut members): (Vec<_>, Vec<_>) =
        (0..seeds).map(|seed| Trial::new(seed).run(failure)).unzip();
    trees.sort();
    members.sort();
    let at = |all: &[Duration], share: f64| all[((all.len() - 1) as f64 * share) as usize];
    let all = [("trees", &trees), ("members", &members)];
    // Members of a link that fails stay where they are.
    for (what, all) in all.into_iter().take(if failure == Failure::Link { 1 } else { 2 }) {
        let [half, most, worst] = [0.5, 0.99, 1.0].map(|share| at(all, share));
        println!(
            "{failure:?}, {seeds} seeds, {what}: median {half:?}, 99 % {most:?}, most {worst:?}"
        );
    }
    (trees, members)
}

#[test]
fn trees_are_whole_again_within_a_second_of_a_link_that_fails() {
    let (trees, _) = measure(Failure::Link, 200);
    assert!(trees.last().unwrap() < &Duration::from_secs(1));
}

#[test]
fn trees_are_whole_within_one_second_and_members_served_within_two_of_a_relay_that_dies() {
    let (trees, members) = measure(Failure::Relay, 200);
    assert!(trees.last().unwrap() < &Duration::from_secs(1));
    assert!(members.last().unwrap() < &Duration::from_secs(2));
}

/// A hub with a leaf and two other children, which a longer way over another relay joins. The hub dies, and comes back.
#[test]
fn children_of_a_dead_hub_exchange_within_a_second_though_a_leaf_is_cut_off() {
    let star = [(0, 1, 1_000), (0, 2, 1_000), (0, 3, 1_000)];
    let links = [&star[..], &[(2, 4, 5_000), (4, 3, 5_000)]].concat();
    let join = |sim: &mut Sim| {
        for (from, to, delay_us) in links.iter().copied() {
            let ends = [from, to].map(|end: usize| sim.relays[end].id);
            let controller = sim.controller.as_mut().unwrap();
            let link = controller.add_link(ends, rate(900_000), delay_us).unwrap();
            sim.links.push((link, [from, to], true));
        }
        sim.report_links();
    };
    let mut took = Vec::new();
    for seed in 0..100 {
        let mut trial = Trial::with(seed, 5, vec![1, 2, 2, 3], join);
        assert!(trial.are_joined([0, 2]) && !trial.are_joined([2, 4]));
        let dead = trial.kill(0);
        let (start, mut notices) = (trial.sim.now, trial.notices(&dead));
        let are_joined = |trial: &Trial| trial.are_joined([2, 4]) && trial.are_joined([4, 3]);
        while !are_joined(&trial) {
            assert!(trial.sim.now < start + PATIENCE, "seed {seed}");
            trial.advance(&mut notices);
        }
        took.push(trial.sim.now.since(start));
        while !notices.is_empty() {
            trial.advance(&mut notices);
        }
        trial.sim.advance(start + PATIENCE);
        trial.sim.relays[0].restart();
        trial.sim.report_links();
        let back = trial.sim.now;
        while !trial.have_new_tree(&[]) {
            assert!(trial.sim.now < back + PATIENCE, "seed {seed}");
            assert!(are_joined(&trial), "seed {seed}: they stay together all the while");
            trial.advance(&mut notices);
        }
        assert_eq!(trial.sim.controller.as_ref().unwrap().audit(), Ok(()));
    }
    took.sort();
    println!("the children of a hub: median {:?}, most {:?}", took[50], took[99]);
    assert!(took[99] < Duration::from_secs(1), "{:?}", took[99]);
}

#[test]
fn a_relay_out_of_the_controllers_reach_keeps_its_members_while_a_neighbour_hears_it() {
    let mut trial = Trial::new(1);
    let sim = &mut trial.sim;
    let at = sim.relays[4].id;
    let there = |sim: &Sim| {
        let members = sim.controller.as_ref().unwrap().members();
        members.filter(|m| m.relay == at && m.state == MemberState::Held).count()
    };
    let before = there(sim);
    assert!(before > 0);
    sim.is_clear = false;
    sim.relays.iter_mut().filter(|relay| relay.id == at).for_each(|r| r.is_cut_off = true);
    let end: Time = sim.now + Duration::from_secs(20);
    sim.advance(end);
    assert_eq!((there(sim), sim.told.relays_lost), (before, 0));
    // Nobody is told an address there that it could not use.
    let measured = vec![(at, 1), (RelayId(1), 2), (RelayId(2), 3), (RelayId(3), 4)];
    let ask = Enter::new(trial.world.clone(), [99; 16], measured);
    let admission = sim.controller.as_mut().unwrap().enter(sim.now, &ask).unwrap();
    assert_ne!(admission.relay, at);
    // Nobody hears anything of anyone: it is the controller that is cut off.
    sim.relays.iter_mut().for_each(|relay| relay.is_cut_off = true);
    sim.advance(sim.now + Duration::from_secs(20));
    assert_eq!(sim.told.relays_lost, 0);
}

/// Where most relays are out of its reach, nobody whom it hears is a neighbour of some. What relays tell each other of their
/// links says that they live; until none leads there any more.
#[test]
fn relays_far_out_of_the_controllers_reach_keep_their_members_while_links_lead_there() {
    let mut trial = Trial::new(3);
    let sim = &mut trial.sim;
    let held = |sim: &Sim| {
        let members = sim.controller.as_ref().unwrap().members();
        members.filter(|member| member.state == MemberState::Held).count()
    };
    sim.is_clear = false;
    sim.relays[2..].iter_mut().for_each(|relay| relay.is_cut_off = true);
    sim.advance(sim.now + Duration::from_secs(20));
    assert_eq!((held(sim), sim.told.relays_lost), (MEMBERS, 0));
    assert!(sim.told.vouched > 0);
    // Whoever is not heard any more by a neighbour which the controller hears is heard by others.
    let is_it = |ends: &[usize; 2]| ends.contains(&0) && ends.contains(&3);
    sim.links.iter_mut().filter(|(_, ends, _)| is_it(ends)).for_each(|link| link.2 = false);
    sim.report_links();
    sim.advance(sim.now + Duration::from_secs(10));
    assert_eq!((held(sim), sim.told.relays_lost), (MEMBERS, 0));
    // Nothing is known of the others when the two relays that are heard are joined with none of them.
    let leads_away = |ends: &[usize; 2]| ends.iter().filter(|end| **end < 2).count() == 1;
    sim.links.iter_mut().filter(|(_, ends, _)| leads_away(ends)).for_each(|link| link.2 = false);
    sim.report_links();
    sim.advance(sim.now + Duration::from_secs(12));
    assert_eq!((held(sim), sim.told.relays_lost), (2 * MEMBERS / RELAYS, RELAYS as u32 - 2));
}
