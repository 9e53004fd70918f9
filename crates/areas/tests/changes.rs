//! Walkers publish while areas are split and merged under them, and news, subscriptions and updates take their
//! time: each update is heard once by everybody in reach.

use canopy_areas::{Area, Areas, Division, Follower, Ground, Guide, Phase, Rect, Ring, Rules, Who};
use canopy_wire::{Group, Level, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const OVER: Rect = Rect { from: [0.0, 0.0], to: [200.0, 200.0] };
const TICK: Duration = Duration::from_millis(50);
/// News, subscriptions and updates are on their way for so many ticks at most, which is less than a guide waits.
const SLOW: u64 = 8;
const RADIUS: f64 = 30.0;
const SPEED: f64 = 0.5;
/// A walker hears for sure who is nearer than its radius by what both walk until a subscription holds.
const SURE: f64 = RADIUS - 2.0 * SPEED * (3 * SLOW) as f64;

struct Walker {
    follower: Follower,
    position: [f64; 2],
    /// Areas, or confirmations, that come later.
    news: Vec<(u64, Areas)>,
    reports: Vec<(u64, canopy_areas::Report)>,
    /// Subscriptions as the network has them, and changes on their way.
    holds: BTreeMap<Group, Level>,
    changes: Vec<(u64, Group, Option<Level>)>,
    /// Up to which tick its subscriptions are under way.
    settles: u64,
}

/// An update on its way: the group, the publisher, when it arrives, and who is to hear it.
struct Update {
    group: Group,
    from: usize,
    arrives: u64,
    sure: BTreeSet<usize>,
}

struct World {
    rng: ChaCha8Rng,
    guide: Guide,
    walkers: Vec<Walker>,
    updates: Vec<Update>,
    tick: u64,
    heard: u64,
}

fn who(walker: usize) -> Who {
    let mut who = [0; 16];
    who[0] = walker as u8;
    who
}

impl World {
    fn new(seed: u64, ground: Ground, walkers: usize) -> World {
        let division = Division::new(ground, 0, 400).unwrap();
        let rings = vec![Ring { radius: RADIUS, level: 0 }];
        let rules = Rules { split_above: 8, merge_below: 4, deepest: 3 };
        let areas = Areas::new(division, rings, Some(rules)).unwrap();
        let mut world = World {
            rng: ChaCha8Rng::seed_from_u64(seed),
            guide: Guide::new(Time::ZERO, areas),
            walkers: Vec::new(),
            updates: Vec::new(),
            tick: 0,
            heard: 0,
        };
        for _ in 0..walkers {
            let position = [0, 1].map(|_| world.rng.random_range(0.0..200.0));
            let mut walker = Walker {
                follower: Follower::default(),
                position,
                news: Vec::new(),
                reports: Vec::new(),
                holds: BTreeMap::new(),
                changes: Vec::new(),
                settles: 0,
            };
            // Everybody is there at first.
            let _ = walker.follower.handle_position(position);
            let _ = walker.follower.handle_areas(world.guide.areas().clone());
            let hears = walker.follower.hears().iter();
            walker.holds = hears.map(|(group, near)| (*group, near.level)).collect();
            let report = walker.follower.report().unwrap();
            world.guide.handle_report(who(world.walkers.len()), 1, report);
            world.walkers.push(walker);
        }
        world
    }

    fn later(&mut self) -> u64 {
        self.tick + self.rng.random_range(1..=SLOW)
    }

    fn tell_all(&mut self) {
        for walker in 0..self.walkers.len() {
            // What is told later comes later: a channel keeps its order.
            let last = self.walkers[walker].news.last().map_or(0, |(at, _)| *at);
            let at = self.later().max(last);
            self.walkers[walker].news.push((at, self.guide.areas().clone()));
        }
    }

    fn walk(&mut self, walker: usize, toward: Option<[f64; 2]>) {
        let tick = self.tick;
        let (latest, hurry) = (self.later(), self.rng.random_range(0.0..1.0));
        let of = &mut self.walkers[walker];
        let goal = toward.unwrap_or([(walker * 37 % 200) as f64, (walker * 71 % 200) as f64]);
        for (at, goal) in of.position.iter_mut().zip(goal) {
            *at += (goal - *at).clamp(-SPEED, SPEED) * hurry / 2_f64.sqrt();
        }
        let mut change = of.follower.handle_position(of.position);
        let is_news = of.news.first().is_some_and(|(at, _)| *at <= tick);
        if is_news {
            let (_, areas) = of.news.remove(0);
            let more = of.follower.handle_areas(areas);
            change.subscribe.extend(more.subscribe);
            change.unsubscribe.extend(more.unsubscribe);
        }
        if !change.is_empty() {
            // Changes are made in order, too.
            of.settles = of.settles.max(latest);
            let new =
                change.subscribe.iter().map(|(group, level)| (of.settles, *group, Some(*level)));
            of.changes.extend(new);
            let over = change.unsubscribe.iter().map(|group| (of.settles, *group, None));
            of.changes.extend(over);
        }
        if is_news || tick.is_multiple_of(20) {
            // The step is confirmed when its subscriptions hold.
            let at = of.settles.max(tick);
            of.reports.push((at, of.follower.report().unwrap()));
        }
    }

    fn arrive(&mut self) {
        let tick = self.tick;
        for (number, walker) in self.walkers.iter_mut().enumerate() {
            for (_, group, level) in walker.changes.extract_if(.., |(at, ..)| *at <= tick) {
                match level {
                    Some(level) => _ = walker.holds.insert(group, level),
                    None => _ = walker.holds.remove(&group),
                }
            }
            for (_, report) in walker.reports.extract_if(.., |(at, _)| *at <= tick) {
                self.guide.handle_report(who(number), 1, report);
            }
        }
        for update in self.updates.extract_if(.., |update| update.arrives <= tick) {
            for (number, walker) in self.walkers.iter().enumerate() {
                let is_heard = number != update.from && walker.holds.contains_key(&update.group);
                self.heard += u64::from(is_heard);
                // One group for each update, so that nobody can hear it twice.
                assert!(
                    is_heard || !update.sure.contains(&number),
                    "tick {tick}: {number} does not hear {}, step {}",
                    update.from,
                    self.guide.areas().step
                );
            }
        }
    }

    fn publish(&mut self) {
        for from in 0..self.walkers.len() {
            let arrives = self.later();
            let here = self.walkers[from].position;
            let near = |(number, other): (usize, &Walker)| {
                let far = (other.position[0] - here[0]).hypot(other.position[1] - here[1]);
                (number != from && far < SURE).then_some(number)
            };
            let sure = self.walkers.iter().enumerate().filter_map(near).collect();
            let group = self.walkers[from].follower.publish_to().unwrap();
            self.updates.push(Update { group, from, arrives, sure });
        }
    }

    /// Returns whether areas have changed.
    fn turn(&mut self, toward: Option<[f64; 2]>) -> bool {
        self.tick += 1;
        self.arrive();
        (0..self.walkers.len()).for_each(|walker| self.walk(walker, toward));
        self.publish();
        let now = Time::ZERO + TICK * self.tick as u32;
        let has_changed = self.guide.handle_timeout(now);
        if has_changed {
            self.tell_all();
        }
        has_changed
    }
}

fn crowd_and_scatter(seed: u64, ground: Ground) {
    let mut world = World::new(seed, ground, 40);
    let whole = world.guide.areas().division.clone();
    let mut deepest = 0;
    for _ in 0..1200 {
        world.turn(Some([61.0, 63.0]));
        let depths = world.guide.areas().division.areas().map(Area::depth);
        deepest = deepest.max(depths.max().unwrap());
    }
    assert_eq!(deepest, 3, "seed {seed}: the crowd is split as deep as it goes");
    let mut changes = 0;
    for _ in 0..2400 {
        changes += u32::from(world.turn(None));
    }
    assert!(changes > 0);
    let there: BTreeMap<Area, u32> = world.guide.crowd();
    assert_eq!(there.values().sum::<u32>(), 40);
    assert_eq!(world.guide.areas().phase(), Phase::Settled);
    let Areas { division, rules: Some(rules), .. } = world.guide.areas() else { panic!() };
    let within = |part: &Area| there.get(part).copied().unwrap_or(0);
    for area in division.areas() {
        assert!(area.depth() == 3 || within(&area) <= rules.split_above, "seed {seed}: {area}");
        let quarters = area.parent().map(|parent| (0..4).map(move |part| parent.quarter(part)));
        let Some(mut quarters) = quarters.map(Vec::from_iter).map(Vec::into_iter) else { continue };
        let are_whole = quarters.clone().all(|part| !division.splits.contains_key(&part));
        let together = quarters.by_ref().map(|part| within(&part)).sum::<u32>();
        assert!(!are_whole || together >= rules.merge_below, "seed {seed}: {area} is empty");
    }
    assert!(world.heard > 10_000);
    // Everybody stands still by now: nothing changes any more.
    assert!((0..400).all(|_| !world.turn(None)), "seed {seed}: areas flap");
    assert_eq!(world.guide.areas().division.ground, whole.ground);
}

#[test]
fn squares_are_split_and_merged_and_nobody_is_missed() {
    for seed in 0..2 {
        crowd_and_scatter(seed, Ground::Grid { size: 70.0, over: OVER });
    }
}

#[test]
fn hexagons_are_split_and_merged_and_nobody_is_missed() {
    for seed in 10..12 {
        crowd_and_scatter(seed, Ground::Hex { size: 75.0, over: OVER });
    }
}

#[test]
fn another_ground_takes_its_place_and_nobody_is_missed() {
    let mut world = World::new(20, Ground::Grid { size: 70.0, over: OVER }, 30);
    for _ in 0..100 {
        world.turn(None);
    }
    // The same groups, so that some mean other places now.
    let next = Division::new(Ground::Hex { size: 60.0, over: OVER }, 0, 400).unwrap();
    let rings = world.guide.areas().rings.clone();
    while !world.guide.change(next.clone(), rings.clone(), None) {
        world.turn(None);
    }
    world.tell_all();
    while world.guide.areas().phase() != Phase::Settled {
        world.turn(None);
    }
    assert_eq!(world.guide.areas().in_force(), &next);
    for _ in 0..100 {
        world.turn(None);
    }
}

#[test]
fn a_step_waits_for_everybody_who_follows() {
    let mut world = World::new(30, Ground::Grid { size: 70.0, over: OVER }, 3);
    let same = world.guide.areas().division.clone();
    let rings = world.guide.areas().rings.clone();
    assert!(world.guide.change(same.clone(), rings.clone(), None));
    assert!(!world.guide.change(same, rings, None), "one change at a time");
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let report = |step| canopy_areas::Report { step, area: None };
    world.guide.handle_report(who(0), 1, report(1));
    world.guide.handle_report(who(1), 1, report(1));
    assert!(!world.guide.handle_timeout(at(9)), "one has not confirmed");
    // Its channel ends, and an older one does later: it is waited for as long as its lease lasts.
    world.guide.handle_report(who(2), 2, report(0));
    world.guide.handle_gone(at(9), who(2), 1);
    assert!(!world.guide.handle_timeout(at(70)));
    world.guide.handle_gone(at(70), who(2), 2);
    assert!(!world.guide.handle_timeout(at(129)));
    assert!(!world.guide.handle_timeout(at(130)), "what is on its way has a second");
    assert!(world.guide.handle_timeout(at(131)));
    assert_eq!((world.guide.areas().step, world.guide.followers()), (2, 2));
    // Who leaves the world is waited for no more.
    world.guide.handle_report(who(0), 1, report(2));
    world.guide.retain(|one| *one == who(0));
    assert!(!world.guide.handle_timeout(at(132)));
    assert!(world.guide.handle_timeout(at(133)));
    assert_eq!(world.guide.areas().phase(), Phase::Settled);
}

#[test]
fn a_guide_that_starts_again_waits_for_its_followers() {
    let division = Division::new(Ground::Grid { size: 70.0, over: OVER }, 0, 400).unwrap();
    let rings = vec![Ring { radius: RADIUS, level: 0 }];
    let mut areas = Areas::new(division.clone(), rings, None).unwrap();
    areas.begin(division);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let mut guide = Guide::resume(at(5), areas);
    assert!(!guide.handle_timeout(at(14)));
    assert!(!guide.handle_timeout(at(15)));
    assert!(guide.handle_timeout(at(16)));
}
