//! A whole relay beside the fluid model of weighted max-min fairness: weights over six decades, flows of
//! every speed, receivers and publishers that come and go, other weights and other budgets in between.

use crate::support::thinning::{Dice, Say, Stage, seconds};
use crate::support::{PERIODIC, TICK, config, with_downlink};
use canopy_judge::fair::{Flow, Sent, fair_rates, weighted_jain, worst_error};
use canopy_relay::Mode;
use canopy_wire::{Downlink, Group, SAFE_DATAGRAM, Time, Weight};
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
/// Whose errors are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// How long nothing changes, and how long rates need to settle: what a flow sends is averaged over 2 s.
const PHASE: Duration = Duration::from_secs(44);
const SETTLING: Duration = Duration::from_secs(6);
const PHASES: usize = 3;
/// How many seeds are run beside the worst, unless more are asked for.
const SEEDS: u64 = 2;
/// One update in two seconds.
const FLOOR: f64 = 0.5;
const FLOWS: usize = 30;
/// The first groups have so many flows each, the others one.
const SHARED: usize = 3;
const FLOWS_OF_SHARED: usize = 4;
const GROUPS: usize = SHARED + FLOWS - SHARED * FLOWS_OF_SHARED;
/// The last two are always of one mind, and have the same budget.
const VIEWERS: usize = 3;
/// Steps of the scale of weights: 20 doublings, six decades.
const WEIGHTS: usize = 240;
/// What an update takes, about, in bits.
const UPDATE_BITS: f64 = 8.0 * 120.0;

/// A publisher's updates to one group.
#[derive(Clone, Copy, Debug)]
struct Source {
    group: usize,
    weight: Weight,
    hz: f64,
    phase: f64,
    jitter: f64,
}

/// What does not change for a while.
#[derive(Clone, Debug)]
struct Phase {
    from: Time,
    to: Time,
    /// By source.
    speaks: Vec<bool>,
    /// By viewer and group.
    wants: Vec<Vec<Option<Weight>>>,
    /// By viewer, bits a second.
    bits: Vec<u64>,
}

struct Case {
    mode: Mode,
    stage: Stage,
    dice: Dice,
    sources: Vec<Source>,
    /// By source: how many updates were due, and when the next is.
    next: Vec<(u64, Time)>,
    start: Time,
    phases: Vec<Phase>,
}

impl Case {
    fn new(mode: Mode, downlink: Downlink, seed: u64) -> Case {
        let stage = Stage::new(with_downlink(config(mode), downlink), FLOWS + VIEWERS);
        let (mut dice, start) = (Dice(seed), stage.world.now);
        let sources: Vec<Source> = (0..FLOWS).map(|number| source(number, &mut dice)).collect();
        let next = vec![(0, start); FLOWS];
        let mut case = Case { mode, stage, dice, sources, next, start, phases: Vec::new() };
        (0..FLOWS).for_each(|source| case.plan(source, 0));
        case
    }

    /// Updates a second that may come of a flow: of those of a tick only the newest goes.
    fn fastest(&self) -> f64 {
        if self.mode == Mode::Immediate { f64::MAX } else { 1.0 / TICK.as_secs_f64() }
    }

    fn plan(&mut self, source: usize, update: u64) {
        let Source { hz, phase, jitter, .. } = self.sources[source];
        let at = (update as f64 + phase + jitter * self.dice.part()) / hz;
        self.next[source] = (update, self.start + Duration::from_secs_f64(at));
    }

    /// Draws what is other from now on, and lets time pass.
    fn go_on(&mut self) {
        let from = self.stage.world.now;
        let before = self.phases.last();
        let most = self.fastest();
        let dice = &mut self.dice;
        let speaks: Vec<bool> = (0..FLOWS).map(|_| dice.below(8) > 0).collect();
        let mut wants = Vec::new();
        for viewer in 0..VIEWERS - 1 {
            let of_group = |group: usize| {
                let weight = before.and_then(|before| before.wants[viewer][group]);
                let other = Weight((8 + dice.below(WEIGHTS)) as u8);
                let weight = weight.filter(|_| dice.below(4) > 0).unwrap_or(other);
                (dice.below(8) > 0).then_some(weight)
            };
            wants.push((0..GROUPS).map(of_group).collect::<Vec<_>>());
        }
        let mut bits = Vec::new();
        for wants in &wants {
            let is_heard =
                |(source, speaks): &(&Source, &bool)| **speaks && wants[source.group].is_some();
            let heard = self.sources.iter().zip(&speaks).filter(is_heard);
            let hz: f64 = heard.map(|(source, _)| source.hz.min(most)).sum();
            bits.push((hz * UPDATE_BITS * (0.1 + 0.5 * dice.part())) as u64);
        }
        wants.push(wants[VIEWERS - 2].clone());
        bits.push(bits[VIEWERS - 2]);
        let phase = Phase { from, to: from + PHASE, speaks, wants, bits };
        self.apply(&phase);
        self.phases.push(phase);
        self.pass();
    }

    fn apply(&mut self, phase: &Phase) {
        let before = self.phases.last();
        for viewer in 0..VIEWERS {
            let number = FLOWS + viewer;
            for (group, weight) in phase.wants[viewer].iter().enumerate() {
                let had = before.and_then(|before| before.wants[viewer][group]);
                match weight {
                    Some(weight) => self.stage.want(number, group as u32, 0, *weight),
                    None if had.is_some() => {
                        let session = &mut self.stage.world.participants[number].session;
                        session.unsubscribe(Group::new(group as u32));
                    }
                    None => {}
                }
            }
            self.stage.limit(number, phase.bits[viewer], 0);
        }
        self.stage.upkeep();
    }

    fn pass(&mut self) {
        let phase = self.phases.last().unwrap().clone();
        while self.stage.world.now < phase.to {
            for source in 0..FLOWS {
                let (update, at) = self.next[source];
                if at <= self.stage.world.now {
                    if phase.speaks[source] {
                        let Source { group, weight, .. } = self.sources[source];
                        self.stage.say(source, Say { weight, ..Say::to(group as u32) });
                    }
                    self.plan(source, update + 1);
                }
            }
            self.stage.pass(MILLI);
        }
    }

    /// By source: what a viewer was to get of it in a while of a phase. Of what comes with one tick only the
    /// newest counts.
    fn offered(&self, viewer: usize, phase: &Phase, (from, to): (Time, Time)) -> Vec<Vec<Sent>> {
        let got: BTreeSet<usize> = self.stage.numbers(FLOWS + viewer).into_iter().collect();
        let flush_of = |at: Time| match self.mode {
            Mode::Immediate => at,
            Mode::Periodic { tick } => at.next_multiple(tick),
        };
        let mut offered: Vec<Vec<Sent>> = vec![Vec::new(); FLOWS];
        let said = self.stage.said.iter().enumerate();
        for (number, said) in said.filter(|(_, said)| said.at >= from && said.at < to) {
            if phase.wants[viewer][self.sources[said.publisher].group].is_none() {
                continue;
            }
            let offered = &mut offered[said.publisher];
            let (at, came) = (flush_of(said.at), got.contains(&number));
            match offered.last_mut().filter(|last| last.at == at) {
                Some(last) => last.came |= came,
                None => offered.push(Sent { at, share: 0.0, came }),
            }
        }
        let flows: Vec<usize> = (0..FLOWS).filter(|source| !offered[*source].is_empty()).collect();
        let fair = self.fair(&offered, &flows, (viewer, phase), seconds(to) - seconds(from));
        for (source, rate) in flows.into_iter().zip(fair) {
            let count = offered[source].len() as f64;
            let share = rate * (seconds(to) - seconds(from)) / count;
            offered[source].iter_mut().for_each(|one| one.share = share);
        }
        offered
    }

    /// The fair rates of some flows, of as many updates in all as came.
    fn fair(
        &self,
        offered: &[Vec<Sent>],
        flows: &[usize],
        (viewer, phase): (usize, &Phase),
        time: f64,
    ) -> Vec<f64> {
        let came = offered.iter().flatten().filter(|one| one.came).count() as f64;
        let weight_of = |source: &Source| f64::from(source.weight.value());
        let of_model = |source: &usize| {
            let it = &self.sources[*source];
            let speaks = self.sources.iter().zip(&phase.speaks).filter(|(_, speaks)| **speaks);
            let all = speaks.filter(|(other, _)| other.group == it.group);
            let part = weight_of(it) / all.map(|(other, _)| weight_of(other)).sum::<f64>();
            let group = f64::from(phase.wants[viewer][it.group].unwrap_or_default().value());
            let demand = offered[*source].len() as f64 / time;
            Flow { weight: group * part, demand, floor: FLOOR, cost: time / came }
        };
        fair_rates(&flows.iter().map(of_model).collect::<Vec<_>>())
    }

    fn look(&self) -> Found {
        let mut found = Found::GOOD;
        for viewer in 0..VIEWERS {
            let mut all: Vec<Vec<Sent>> = vec![Vec::new(); FLOWS];
            for phase in &self.phases {
                found = found.and(self.look_at(viewer, phase));
                let offered = self.offered(viewer, phase, (phase.from, phase.to));
                all.iter_mut().zip(offered).for_each(|(all, more)| all.extend(more));
            }
            for (sent, source) in all.iter().zip(&self.sources) {
                let off = worst_error(sent, WINDOW).unwrap_or(0.0) - 1.5;
                found.moving = found.moving.max(off / source.hz.min(self.fastest()));
            }
            found.excess = found.excess.max(self.excess(viewer));
        }
        found
    }

    /// What a viewer gets of a phase once all is settled.
    fn look_at(&self, viewer: usize, phase: &Phase) -> Found {
        let (from, to) = (phase.from + SETTLING, phase.to);
        let mut found = Found::GOOD;
        let offered = self.offered(viewer, phase, (from, to));
        let time = seconds(to) - seconds(from);
        let came = |sent: &Vec<Sent>| sent.iter().filter(|one| one.came).count() as f64;
        let due = |sent: &Vec<Sent>| sent.iter().map(|one| one.share).sum::<f64>();
        let in_window = offered.iter().map(came).sum::<f64>() / time * WINDOW.as_secs_f64();
        for (source, sent) in offered.iter().enumerate().filter(|(_, sent)| !sent.is_empty()) {
            let off = worst_error(sent, WINDOW).unwrap_or(0.0);
            let fair = due(sent) / time;
            let is_at_floor = fair <= 1.01 * FLOOR;
            let gets_all = due(sent) >= 0.99 * sent.len() as f64;
            if is_at_floor {
                found.off_at_floor = found.off_at_floor.max(off);
            }
            found.off = found.off.max((off - 1.5) / in_window);
            let late = match (gets_all, is_at_floor) {
                (true, _) => &mut found.late_of_all,
                (_, true) => &mut found.late_at_floor,
                _ => &mut found.late_between,
            };
            let may_be = 1.1 / fair + 1.0 / self.sources[source].hz;
            let mut times = self.stage.times(FLOWS + viewer, source, from, to);
            // A flow that stops has a gap, too.
            times.insert(0, seconds(from));
            times.push(seconds(to));
            for gap in times.windows(2).map(|two| two[1] - two[0]) {
                *late = late.max(gap - may_be - TICK.as_secs_f64());
            }
        }
        found.jfi = weighted_jain(offered.iter().map(|sent| (came(sent), due(sent)))).unwrap();
        let bytes = self.stage.bytes_between(FLOWS + viewer, from, to) as f64;
        found.utilisation = 8.0 * bytes / time / phase.bits[viewer] as f64;
        found
    }

    /// The bytes beyond the budget in any 100 ms; where that changes, beyond the larger one.
    fn excess(&self, viewer: usize) -> f64 {
        let budget_at = |at: Time| {
            let phase = self.phases.iter().rev().find(|phase| phase.from <= at);
            phase.map_or(0, |phase| phase.bits[viewer]) as f64
        };
        let sent = &self.stage.bytes[FLOWS + viewer];
        let first = sent.partition_point(|(at, _)| *at < self.phases[0].from);
        let (mut end, mut bytes, mut excess) = (first, 0, 0.0_f64);
        for (at, len) in &sent[first..] {
            while let Some((_, more)) = sent.get(end).filter(|one| one.0 < *at + 100 * MILLI) {
                bytes += more;
                end += 1;
            }
            let most = budget_at(*at).max(budget_at(*at + 100 * MILLI)) / 80.0;
            excess = excess.max(bytes as f64 - most);
            bytes -= len;
        }
        excess
    }
}

/// One of the sources, of 0.2 to 60 updates a second.
fn source(number: usize, dice: &mut Dice) -> Source {
    let is_of_shared = number < SHARED * FLOWS_OF_SHARED;
    let group = if is_of_shared {
        number / FLOWS_OF_SHARED
    } else {
        number - SHARED * (FLOWS_OF_SHARED - 1)
    };
    // Whoever says nothing for four seconds has no part in its group's weight.
    let slowest: f64 = if is_of_shared { 1.0 } else { 0.2 };
    let hz = slowest * (60.0 / slowest).powf(dice.part());
    let weight = if is_of_shared { Weight((80 + dice.below(100)) as u8) } else { Weight::ONE };
    let jitter = [0.0, 0.3][dice.below(2)];
    Source { group, weight, hz, phase: dice.part(), jitter }
}

/// The worst of a case.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Updates of any flow in ten seconds, more or fewer than fair and 1.5, as a part of all that the receiver
    /// got; once rates have settled.
    off: f64,
    /// The same, where things change, in seconds of what the flow sends.
    moving: f64,
    /// The same of flows at the floor, in updates, and without taking 1.5 off.
    off_at_floor: f64,
    /// By how much the longest gap of a flow is longer than 1.1 fair intervals, the time between two updates
    /// and a tick, in seconds: of flows that get all that they send, of those at the floor, and of those between.
    late_of_all: f64,
    late_at_floor: f64,
    late_between: f64,
    jfi: f64,
    utilisation: f64,
    /// The bytes beyond its budget in any 100 ms.
    excess: f64,
}

impl Found {
    const GOOD: Found = Found {
        off: 0.0,
        moving: 0.0,
        off_at_floor: 0.0,
        late_of_all: -1.0,
        late_at_floor: -1.0,
        late_between: -1.0,
        jfi: 1.0,
        utilisation: 1.0,
        excess: 0.0,
    };

    /// The worse of both.
    fn and(self, other: Found) -> Found {
        Found {
            off: self.off.max(other.off),
            moving: self.moving.max(other.moving),
            off_at_floor: self.off_at_floor.max(other.off_at_floor),
            late_of_all: self.late_of_all.max(other.late_of_all),
            late_at_floor: self.late_at_floor.max(other.late_at_floor),
            late_between: self.late_between.max(other.late_between),
            jfi: self.jfi.min(other.jfi),
            utilisation: self.utilisation.min(other.utilisation),
            excess: self.excess.max(other.excess),
        }
    }

    /// Which aims are met: 1.5 updates, a tick, 0.99, 97 % and a datagram. Weights are so far apart that only one or
    /// two flows are between the floor and all that they send: they make up for what all others get a little more or
    /// less, and that is much of the little that they get. A flow that sends twice in a tick has both counted by the
    /// relay, but once here. After a change a flow's rate follows what all send, which is known after two seconds or so.
    fn aims(&self) -> [(&'static str, bool); 6] {
        [
            ("off at the floor", self.off_at_floor <= 1.5),
            ("off", self.off <= 0.03),
            ("off where things change", self.moving <= 2.2),
            ("late with all", self.late_of_all <= 0.035),
            ("late between", self.late_between <= 0.35),
            ("Jain's index", self.jfi >= 0.99),
        ]
    }

    /// What holds of every seed: the first two without exception, the others with what the worst of 578 seeds had.
    fn check(&self, what: &str) {
        assert!(self.utilisation >= 0.97, "{what}: {self:?}");
        assert!(self.excess <= SAFE_DATAGRAM as f64 + 50.0, "{what}: {self:?}");
        assert!(self.off_at_floor <= 4.2, "{what}: {self:?}");
        assert!(self.off <= 0.15, "{what}: {self:?}");
        assert!(self.moving <= 4.5, "{what}: {self:?}");
        assert!(self.late_of_all <= 0.35, "{what}: {self:?}");
        assert!(self.late_at_floor <= 0.03, "{what}: {self:?}");
        assert!(self.late_between <= 1.5, "{what}: {self:?}");
        assert!(self.jfi >= 0.98, "{what}: {self:?}");
    }
}

fn run(mode: Mode, downlink: Downlink, seed: u64) -> Found {
    let mut case = Case::new(mode, downlink, seed);
    (0..PHASES).for_each(|_| case.go_on());
    case.stage.pass(5 * SECOND);
    case.stage.check_order();
    case.look()
}

/// The seeds that are run: as many as `FLUID_SEEDS` says, or the first ones and the worst that were found.
#[allow(clippy::disallowed_methods, reason = "a test may be told to run more seeds")]
fn seeds(worst: &[u64]) -> Vec<u64> {
    let asked = std::env::var("FLUID_SEEDS").ok().map(|text| text.parse().unwrap());
    match asked {
        Some(seeds) => (0..seeds).collect(),
        None => (0..SEEDS).chain(worst.iter().copied()).collect(),
    }
}

/// Each seed keeps to what holds of all, and most to each aim: of many seeds seven eighths, of a few a half.
fn check(mode: Mode, downlink: Downlink, worst: &[u64]) {
    let seeds = seeds(worst);
    let found: Vec<Found> = seeds
        .iter()
        .map(|seed| {
            let found = run(mode, downlink, *seed);
            println!("{mode:?} {downlink:?} seed {seed}: {found:.3?}");
            found.check(&format!("{mode:?} {downlink:?} seed {seed}"));
            found
        })
        .collect();
    let least = if seeds.len() >= 50 { 7 * seeds.len() / 8 } else { seeds.len().div_ceil(2) };
    for (aim, (what, _)) in Found::GOOD.aims().iter().enumerate() {
        let met = found.iter().filter(|of| of.aims()[aim].1).count();
        println!("{mode:?} {downlink:?} {what}: {met} of {} seeds", seeds.len());
        assert!(met >= least, "{mode:?} {downlink:?} {what}: {met} of {} seeds", seeds.len());
    }
}

#[test]
fn at_once_every_flow_gets_what_a_fluid_would() {
    check(Mode::Immediate, Downlink::Member, &[23, 75]);
}

#[test]
fn in_ticks_every_flow_gets_what_a_fluid_would() {
    check(PERIODIC, Downlink::Group, &[13, 96]);
}
