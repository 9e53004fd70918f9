//! Walkers go through a world together while areas are split before them and merged behind them, by seed. Channels
//! end and are opened again, and subscriptions take longer than a guide waits for what is on its way. Beside them
//! stands what must be heard: everything, once.

use super::*;
use crate::acknowledgement::Awaited;
use crate::chance::Chance;
use canopy_areas::{Division, Ground, Guide, Rect, Ring, Rules, Who};
use canopy_wire::{Level, SubscribeRefusal};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc::{Receiver, channel};

const TICK: Duration = Duration::from_millis(50);
const WALKERS: usize = 6;
/// A subscription takes this long at most.
const SLOWEST_MS: u64 = 3000;
/// Updates are on their way for so many ticks at most, which is less than a guide waits.
const LATEST: u64 = 10;
const OVER: Rect = Rect { from: [0.0, 0.0], to: [200.0, 200.0] };

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    None,
    /// Subscriptions are acknowledged before they are made.
    Hasty,
}

fn areas(rules: Option<Rules>) -> Areas {
    let division = Division::new(Ground::Grid { size: 100.0, over: OVER }, 0, 400).unwrap();
    Areas::new(division, vec![Ring { radius: 40.0, level: 0 }], rules).unwrap()
}

struct Walker {
    who: Who,
    standing: Standing,
    position: Point,
    holds: BTreeMap<Group, Level>,
    /// Subscriptions on their way, and who waits for them.
    wishes: Vec<(Time, Group, Option<Level>, Option<Awaited>)>,
    /// The channel's number, and what comes over it.
    channel: Option<(u64, Receiver<Report>)>,
    opens_at: Time,
    heard: BTreeSet<u64>,
}

struct Sim {
    chance: Chance,
    sabotage: Sabotage,
    guide: Guide,
    walkers: Vec<Walker>,
    now: Time,
    channels: u64,
    /// Updates on their way: when they arrive, to which group, by whom.
    updates: Vec<(Time, Group, usize, u64)>,
    published: u64,
    is_wrong: bool,
}

impl Sim {
    fn new(seed: u64, sabotage: Sabotage) -> Sim {
        let rules = Rules { split_above: 3, merge_below: 1, deepest: 2 };
        let walker = |number: usize| Walker {
            who: [number as u8; 16],
            standing: Standing::default(),
            position: [20.0 + number as f64, 30.0],
            holds: BTreeMap::new(),
            wishes: Vec::new(),
            channel: None,
            opens_at: Time::ZERO,
            heard: BTreeSet::new(),
        };
        Sim {
            chance: Chance::new(seed),
            sabotage,
            guide: Guide::new(Time::ZERO, areas(Some(rules))),
            walkers: (0..WALKERS).map(walker).collect(),
            now: Time::ZERO,
            channels: 0,
            updates: Vec::new(),
            published: 0,
            is_wrong: false,
        }
    }

    fn wish(&mut self, number: usize, wishes: Wishes) -> Acknowledgement {
        let delay = Duration::from_millis(self.chance.below(SLOWEST_MS));
        let walker = &mut self.walkers[number];
        // Changes are made in order.
        let last = walker.wishes.last().map_or(Time::ZERO, |(at, ..)| *at);
        let (at, acknowledgement) = ((self.now + delay).max(last), Acknowledgement::new());
        let new = wishes.subscribe.into_iter().map(|(group, level, _)| (group, Some(level)));
        let over = wishes.unsubscribe.into_iter().map(|group| (group, None));
        for (group, level) in new.chain(over) {
            let awaited = acknowledgement.await_one();
            let awaited = match self.sabotage {
                Sabotage::None => Some(awaited),
                Sabotage::Hasty => {
                    awaited.made();
                    None
                }
            };
            walker.wishes.push((at, group, level, awaited));
        }
        acknowledgement
    }

    fn tell(&mut self, number: usize) {
        let areas = self.guide.areas().clone();
        let (wishes, _) = self.walkers[number].standing.handle_areas(areas);
        let acknowledgement = self.wish(number, wishes);
        self.walkers[number].standing.confirm_after(acknowledgement);
    }

    fn walk(&mut self, number: usize) {
        let now = self.now;
        let walker = &mut self.walkers[number];
        for (_, group, level, awaited) in walker.wishes.extract_if(.., |(at, ..)| *at <= now) {
            match level {
                Some(level) => _ = walker.holds.insert(group, level),
                None => _ = walker.holds.remove(&group),
            }
            awaited.into_iter().for_each(Awaited::made);
        }
        walker.position[0] += 0.1;
        let wishes = walker.standing.handle_position(walker.position);
        drop(self.wish(number, wishes));
        let ends = self.chance.below(100) == 0;
        let walker = &mut self.walkers[number];
        if walker.channel.is_none() && walker.opens_at <= now {
            let (says, reports) = channel(4);
            self.channels += 1;
            walker.channel = Some((self.channels, reports));
            walker.standing.handle_opened(says);
            self.tell(number);
        } else if ends && let Some((channel, _)) = walker.channel.take() {
            self.guide.handle_gone(now, walker.who, channel);
            walker.opens_at = now + Duration::from_millis(self.chance.below(5000));
        }
        let walker = &mut self.walkers[number];
        if walker.standing.due().is_some_and(|due| due <= now) {
            assert_eq!(walker.standing.turn(now), []);
        }
        if let Some((channel, reports)) = &mut walker.channel {
            while let Ok(report) = reports.try_recv() {
                self.guide.handle_report(walker.who, *channel, report);
            }
        }
    }

    /// All of them are within reach of each other.
    fn publish(&mut self) {
        for from in 0..WALKERS {
            let arrives = self.now + TICK * self.chance.below(LATEST) as u32;
            let Some(group) = self.walkers[from].standing.publish_to() else { continue };
            self.updates.push((arrives, group, from, self.published));
            self.published += 1;
        }
        let now = self.now;
        for (_, group, from, update) in self.updates.extract_if(.., |(at, ..)| *at <= now) {
            for (number, walker) in self.walkers.iter_mut().enumerate() {
                // What was published before all were there counts for nothing.
                let counts = number != from && now > Time::ZERO + Duration::from_secs(5);
                let is_once = walker.holds.contains_key(&group) && walker.heard.insert(update);
                self.is_wrong |= counts && !is_once;
            }
        }
    }

    /// Returns how often areas have changed, and whether all was as it should be.
    fn run(mut self) -> (u64, bool) {
        for _ in 0..1600 {
            self.now = self.now + TICK;
            (0..WALKERS).for_each(|number| self.walk(number));
            self.publish();
            if self.guide.handle_timeout(self.now) {
                let follow = |of: &usize| self.walkers[*of].channel.is_some();
                let told: Vec<usize> = (0..WALKERS).filter(follow).collect();
                told.into_iter().for_each(|number| self.tell(number));
            }
        }
        (self.guide.areas().step / 3, !self.is_wrong)
    }
}

#[test]
fn walkers_hear_each_other_once_while_areas_change_and_channels_end() {
    let mut changes = 0;
    for seed in 1..=20 {
        let (changed, is_right) = Sim::new(seed, Sabotage::None).run();
        assert!(is_right, "seed {seed}");
        changes += changed;
    }
    assert!(changes >= 60, "{changes}");
}

#[test]
fn a_step_that_is_confirmed_too_early_is_seen() {
    assert!((1..=20).any(|seed| !Sim::new(seed, Sabotage::Hasty).run().1));
}

#[test]
fn a_step_is_confirmed_once_its_subscriptions_are_acknowledged_and_then_the_place_is_said() {
    let mut standing = Standing::default();
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let _ = standing.handle_position([10.0, 10.0]);
    let (says, mut reports) = channel(4);
    standing.handle_opened(says);
    let (wishes, event) = standing.handle_areas(areas(None));
    assert_eq!(event, Some(Event::AreasChanged { version: 0 }));
    let (group, acknowledgement) = (wishes.subscribe[0].0, Acknowledgement::new());
    let awaited = acknowledgement.await_one();
    standing.confirm_after(acknowledgement);
    // It has gone on meanwhile.
    let _ = standing.handle_position([150.0, 10.0]);
    assert_eq!((standing.turn(at(0)), standing.due()), (Vec::new(), None));
    // A refused subscription is told, and holds nobody up.
    awaited.refused(group, SubscribeRefusal::NewGroups);
    let refused = Event::SubscriptionsRefused(vec![(group, SubscribeRefusal::NewGroups)]);
    assert_eq!(standing.turn(at(0)), [refused]);
    assert_eq!(reports.try_recv().unwrap(), Report { step: 0, area: Some(Area::cell(0)) });
    assert_eq!((reports.try_recv().ok(), standing.due()), (None, Some(at(500))));
    assert_eq!(standing.turn(at(500)), []);
    assert_eq!(reports.try_recv().unwrap().area, Some(Area::cell(1)));
    assert_eq!(standing.due(), None);
}

#[test]
fn what_a_channel_does_not_take_is_said_later_and_over_an_ended_one_nothing() {
    let mut standing = Standing::default();
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let (says, mut reports) = channel(1);
    standing.handle_opened(says);
    for step in 0..2 {
        let _ = standing.handle_areas(Areas { step, ..areas(None) });
        standing.confirm_after(Acknowledgement::new());
    }
    assert_eq!((standing.turn(at(0)), standing.due()), (Vec::new(), Some(at(500))));
    assert_eq!(reports.try_recv().unwrap().step, 0);
    assert_eq!(standing.turn(at(500)), []);
    assert_eq!(reports.try_recv().unwrap().step, 1);
    // What an ended channel was not told is not said over the next one before that has told the areas.
    standing.confirm_after(Acknowledgement::new());
    drop(reports);
    let (says, mut reports) = channel(1);
    standing.handle_opened(says);
    assert_eq!((standing.turn(at(1000)), standing.due()), (Vec::new(), None));
    assert_eq!(reports.try_recv().ok(), None);
}

/// A world with areas of 20 m and two rings, which somebody crosses on foot.
#[test]
fn areas_weigh_less_the_farther_they_are_and_are_asked_for_anew_where_that_is_noticed() {
    let division = Division::new(Ground::Grid { size: 20.0, over: OVER }, 0, 400).unwrap();
    let rings = vec![Ring { radius: 25.0, level: 1 }, Ring { radius: 60.0, level: 0 }];
    let mut standing = Standing::default();
    let _ = standing.handle_areas(Areas::new(division.clone(), rings, None).unwrap());
    let (mut holds, mut asked) = (BTreeSet::new(), 0);
    for step in 0..1000_u32 {
        let here = [0.5 + f64::from(step) * 0.2, 110.0];
        let wishes = standing.handle_position(here);
        asked += if step == 0 { 0 } else { wishes.subscribe.len() };
        wishes.unsubscribe.iter().for_each(|group| _ = holds.remove(group));
        holds.extend(wishes.subscribe.into_iter().map(|(group, ..)| group));
        for (group, near) in standing.follower.hears() {
            assert!(holds.contains(group), "{group:?} is wanted at {here:?}");
            let (level, weight) = standing.asked[group];
            let exact = Falloff::METRES.weight(near.distance as f32, 1.0);
            assert_eq!(level, near.level);
            assert!(weight.0.abs_diff(exact.0) < NOTICEABLE, "{group:?} at {here:?}");
        }
        assert_eq!(holds.len(), standing.follower.hears().len());
        let own = standing.asked[&division.group_at(here)].1;
        let most = standing.asked.values().map(|(_, weight)| weight.0).max().unwrap();
        assert!(most < own.0 + NOTICEABLE, "nothing has noticeably more than the area here");
    }
    // At two metres a second these are 100 seconds.
    assert!((100..600).contains(&asked), "{asked} changes");
    // Whose lengths are no metres may weigh all alike.
    standing.set_falloff(Falloff::new(0.0));
    let _ = standing.handle_position([100.0, 110.0]);
    let mut weights = standing.asked.values().map(|(_, weight)| *weight);
    let first = weights.next().unwrap();
    assert!(weights.all(|weight| weight == first));
}
