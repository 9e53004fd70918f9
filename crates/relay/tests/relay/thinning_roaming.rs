//! Crowds that walk through cells which are a group each: a roaming object is one flow, wherever it is.

use crate::support::thinning::{Dice, Said, Say, Stage, seconds};
use crate::support::{DOWNLINKS, PERIODIC, config, group, with_downlink};
use canopy_judge::fair::{Flow, Fluid, Sent, worst_error};
use canopy_relay::Mode;
use canopy_wire::{Downlink, DropReason, ROAMING, Time, Weight};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const MODES: [Mode; 2] = [Mode::Immediate, PERIODIC];
/// Walkers on a square with this many cells a side, each two metres wide.
const WALKERS: usize = 50;
const CELLS: usize = 7;
const WIDTH: f64 = 2.0;
const HZ: f64 = 16.0;
/// One update in two seconds.
const FLOOR: f64 = 0.5;
const SETTLING: Duration = Duration::from_secs(5);
const COUNTED: Duration = Duration::from_secs(16);

/// Goes straight on, and turns at the edges.
#[derive(Clone, Copy)]
struct Walker {
    from: [f64; 2],
    metres_a_second: [f64; 2],
    phase: f64,
}

impl Walker {
    fn any(dice: &mut Dice) -> Walker {
        let side = CELLS as f64 * WIDTH;
        let from = [side * dice.part(), side * dice.part()];
        let metres_a_second = [3.0 * dice.part() - 1.5, 3.0 * dice.part() - 1.5];
        Walker { from, metres_a_second, phase: dice.part() }
    }

    fn at(&self, time: f64) -> [f64; 2] {
        let side = CELLS as f64 * WIDTH;
        [0, 1].map(|axis| {
            let way = (self.from[axis] + self.metres_a_second[axis] * time).rem_euclid(2.0 * side);
            (if way > side { 2.0 * side - way } else { way }).min(side - 1e-6)
        })
    }

    fn cell(&self, time: f64) -> usize {
        let [x, y] = self.at(time).map(|at| (at / WIDTH) as usize);
        y * CELLS + x
    }
}

/// How far it is from who stands in the middle.
fn metres_to([x, y]: [f64; 2]) -> f64 {
    let middle = CELLS as f64 * WIDTH / 2.0;
    (x - middle).hypot(y - middle)
}

/// What a cell weighs to who stands in the middle.
fn weight_of(cell: usize) -> Weight {
    let metres = metres_to([cell % CELLS, cell / CELLS].map(|at| (at as f64 + 0.5) * WIDTH));
    Weight::nearest((1.0 / (1.0 + metres).powi(2)) as f32)
}

/// What who stands in the middle sees of the crowd, at a tenth of its demand.
struct Walk {
    stage: Stage,
    walkers: Vec<Walker>,
    start: Time,
    from: Time,
}

impl Walk {
    fn new(mode: Mode, object: u16) -> Walk {
        let mut dice = Dice(5);
        let walkers: Vec<Walker> = (0..WALKERS).map(|_| Walker::any(&mut dice)).collect();
        let stage = Stage::new(with_downlink(config(mode), Downlink::Member), WALKERS + 1);
        let start = stage.world.now;
        let mut walk = Walk { stage, walkers, start, from: start };
        for cell in 0..CELLS * CELLS {
            walk.stage.want(WALKERS, cell as u32, 0, weight_of(cell));
        }
        walk.stage.upkeep();
        walk.pass(SECOND, object);
        let demand = walk.stage.bytes_between(WALKERS, start, walk.stage.world.now) as u64 * 8;
        walk.stage.limit(WALKERS, demand / 10, 0);
        walk.pass(SETTLING, object);
        walk.from = walk.stage.world.now;
        walk.pass(COUNTED, object);
        walk
    }

    fn pass(&mut self, time: Duration, object: u16) {
        let end = self.stage.world.now + time;
        while self.stage.world.now < end {
            let at = seconds(self.stage.world.now) - seconds(self.start);
            for (number, walker) in self.walkers.iter().enumerate() {
                let beats = |at: f64| (at * HZ + walker.phase).floor();
                if beats(at) > beats(at - MILLI.as_secs_f64()) {
                    let say = Say { object, ..Say::to(walker.cell(at) as u32) };
                    self.stage.say(number, say);
                }
            }
            self.stage.pass(MILLI);
        }
    }

    fn look(&self) -> Seen {
        let got = self.stage.numbers(WALKERS);
        let first = self.stage.said.partition_point(|said| said.at < self.from);
        let came = got.iter().filter(|number| **number >= first).count() as f64;
        let cost = COUNTED.as_secs_f64() / came;
        let (mut fluid, mut model) = (Fluid::new(WALKERS), u64::MAX);
        let mut sent = vec![Vec::new(); WALKERS];
        let mut near = (0.0, 0.0);
        let mut is_got = vec![false; self.stage.said.len()];
        got.iter().for_each(|number| is_got[*number] = true);
        let mut nearest = Vec::new();
        for (number, said) in self.stage.said.iter().enumerate().skip(first) {
            let time = seconds(said.at) - seconds(self.start);
            // Twenty times a second it is looked who is where.
            let look = (time * 20.0) as u64;
            if look != model {
                model = look;
                let cells: Vec<usize> = self.walkers.iter().map(|one| one.cell(time)).collect();
                for (walker, cell) in cells.iter().enumerate() {
                    let sharing = cells.iter().filter(|other| *other == cell).count() as f64;
                    let weight = f64::from(weight_of(*cell).value()) / sharing;
                    fluid.set(walker, Some(Flow { weight, demand: HZ, floor: FLOOR, cost }));
                }
                nearest = (0..WALKERS).collect();
                let metres = |walker: &usize| metres_to(self.walkers[*walker].at(time));
                nearest.sort_by(|one, other| metres(one).total_cmp(&metres(other)));
                nearest.truncate(10);
            }
            let one =
                Sent { at: said.at, share: fluid.share(said.publisher), came: is_got[number] };
            if nearest.contains(&said.publisher) {
                near.0 += f64::from(u8::from(one.came));
                near.1 += one.share;
            }
            sent[said.publisher].push(one);
        }
        let errors = sent.iter().filter_map(|sent| worst_error(sent, 10 * SECOND));
        Seen {
            near: near.0 / near.1,
            off: errors.fold(0.0, f64::max),
            gap: (0..WALKERS).map(|walker| self.longest_gap(walker)).fold(0.0, f64::max),
        }
    }

    fn longest_gap(&self, walker: usize) -> f64 {
        let times = self.stage.times(WALKERS, walker, self.from, self.stage.world.now);
        times.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max)
    }
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// What came of the ten nearest, by what was fair.
    near: f64,
    /// Updates of any walker in ten seconds, more or fewer than fair.
    off: f64,
    /// The longest gap of any walker, in seconds.
    gap: f64,
}

#[test]
fn near_walkers_keep_their_rate_as_they_go_from_cell_to_cell() {
    for mode in MODES {
        let walk = Walk::new(mode, ROAMING);
        walk.stage.check_order();
        let seen = walk.look();
        // What has no number of a roaming object is another flow in each group.
        let apart = Walk::new(mode, 0).look();
        println!("{mode:?}: {seen:.3?}, and with a flow for each group {apart:.3?}");
        assert!(seen.near >= 0.95 && seen.gap <= 2.2, "{seen:?}");
        // 1.5 updates are the aim; who goes into another cell has another part of it at once, and rates follow.
        assert!(seen.off <= 3.0, "{seen:?}");
        assert!(apart.near < seen.near - 0.05 && apart.off > 2.0 * seen.off, "{apart:?}");
    }
}

/// Objects that are in two groups within a tick, in this order or that: every update comes or is counted, and nothing
/// older comes after what is newer, with a credit and without.
#[test]
fn books_balance_where_objects_are_in_two_groups_in_a_tick() {
    let cases = [(3, 30_000), (3, 90_000), (1_000, 30_000)];
    for (mode, (pairs, bits)) in MODES.iter().flat_map(|mode| cases.map(|case| (*mode, case))) {
        for downlink in DOWNLINKS {
            let mut config = with_downlink(config(mode), downlink);
            config.tables.max_flow_pairs = pairs;
            let mut stage = Stage::new(config, 9);
            // The last hears one of the groups, and two are of one mind.
            let wants = [&[7, 8][..], &[7, 8], &[8]];
            for (viewer, groups) in (6..9).zip(wants) {
                groups.iter().for_each(|group| stage.want(viewer, *group, 0, Weight::ONE));
                stage.limit(viewer, bits, 0);
            }
            stage.upkeep();
            for frame in 0..80 {
                for publisher in 0..6 {
                    let object = ROAMING | (publisher % 2) as u16;
                    let turn = (frame + publisher as u32) % 3;
                    for group in if turn == 0 { [8, 7] } else { [7, 8] } {
                        stage.say(publisher, Say { object, ..Say::to(group) });
                    }
                    stage.say(publisher, Say { object: 1, ..Say::to(7 + turn % 2) });
                }
                stage.pass(50 * MILLI);
            }
            stage.pass(10 * SECOND);
            stage.check_order();
            let is_for = |viewer: usize, said: &Said| {
                let groups = wants[viewer - 6].iter();
                groups.copied().any(|number| said.say.dst == group(number))
            };
            let of = |viewer: usize| stage.said.iter().filter(|said| is_for(viewer, said)).count();
            let missed: usize = (6..9).map(|viewer| of(viewer) - stage.got[viewer].len()).sum();
            let reasons = [DropReason::Thinned, DropReason::WaitedTooLong];
            let left_out: u64 = reasons.map(|why| stage.world.dropped(why)).iter().sum();
            let case = format!("{mode:?} {downlink:?} {pairs} pairs, {bits} bit/s");
            assert_eq!(left_out, missed as u64, "{case}");
            assert!(missed > 1_000);
        }
    }
}
