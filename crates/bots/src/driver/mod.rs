//! The driver: one thread that walks the whole crowd.

mod ages;
mod arrivals;
mod ending;
mod killed;
mod places;
mod relays;
mod schedule;

use crate::arrival::Arrival;
use crate::config::{CrowdConfig, RelayTarget};
use crate::error::CrowdError;
use crate::grid::{COARSE, Cell, DETAILED};
use crate::joining::Joining;
use crate::position::Position;
use crate::report::{Outage, Report, Verdict};
use crate::trace::{Row, Trace};
use crate::view::{Heard, Seen, Snapshot, Totals, View};
use crate::walker::{Told, Walker};
use ages::AgeMeter;
use canopy_judge::{Oracle, Publish};
use canopy_net::{Clock, Readiness, Receiver};
use canopy_wire::Time;
use killed::Killings;
use relays::Relays;
use schedule::{Join, Schedule};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After so many sends the sockets are served, so that ages don't grow by our own doing.
const SENDS_IN_A_ROW: usize = 128;
const REFRESH: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(2);
/// With two levels, one update in so many is for those who are far away too.
pub const COARSE_EVERY: u64 = 5;
/// The longest wait: others may want the run to stop.
const NAP: Duration = Duration::from_millis(50);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Share of the trace, 0 to 1.
    pub done: f64,
    /// Walkers in the world.
    pub walkers: usize,
    /// Sums so far.
    pub totals: Totals,
}

/// Walks the trace through the relays, until its end or until `stop` is set.
///
/// # Errors
/// Why it could not; see [`CrowdError`].
pub fn run(
    config: &CrowdConfig,
    trace: &Trace,
    view: Option<Arc<View>>,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<Report, CrowdError> {
    let mut crowd = Crowd::new(config, trace, view)?;
    if let Err(error) = crowd.walk(trace, stop, progress) {
        // The reason for the abort is worth more than what goes wrong on the way out.
        let _ = crowd.leave(crowd.settle_limit());
        return Err(error);
    }
    crowd.finish(trace)
}

struct Crowd<'a> {
    config: &'a CrowdConfig,
    clock: Clock,
    schedule: Schedule,
    walkers: Vec<Option<Walker>>,
    relays: Relays,
    /// The relays by their numbers.
    targets: Vec<RelayTarget>,
    joining: Option<Joining>,
    moves: u64,
    outages: Vec<Outage>,
    killings: Killings,
    readiness: Readiness,
    receiver: Receiver,
    oracle: Oracle,
    told: Told,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    ages: AgeMeter,
    refresh_at: Time,
    updates_unsent: u64,
    /// How long after it was due something was published, at most.
    late: Duration,
    view: Option<Arc<View>>,
    watched: Vec<u32>,
    /// Walkers whose relay does not send them everything.
    limited: BTreeSet<u32>,
    heard: BTreeMap<u32, Vec<(u32, Heard)>>,
    ready: Vec<u64>,
    arrivals: Vec<Arrival>,
    cells: Vec<Cell>,
    payload: Vec<u8>,
}

impl<'a> Crowd<'a> {
    fn new(
        config: &'a CrowdConfig,
        trace: &Trace,
        view: Option<Arc<View>>,
    ) -> Result<Crowd<'a>, CrowdError> {
        config.check()?;
        let (min, max) = trace.bounds();
        let reach = min.iter().chain(&max).fold(0.0, |reach: f64, edge| reach.max(edge.abs()));
        config.grid.check_reach(reach)?;
        let limit = canopy_net::raise_open_files();
        if limit < u64::from(trace.walkers()) + 64 {
            return Err(CrowdError::OpenFiles { limit, walkers: trace.walkers() });
        }
        let clock = Clock::start();
        let walkers = trace.walkers();
        let schedule = Schedule::new(trace.rows(), walkers, config.speed, clock.now());
        let comtrees = std::iter::repeat_n(config.comtree, walkers as usize);
        let mut oracle = Oracle::new(config.rules(), comtrees);
        for walker in 0..walkers {
            oracle.reside(walker as usize, config.relay_of(walker) as u32);
        }
        Ok(Crowd {
            config,
            clock,
            walkers: (0..walkers).map(|_| None).collect(),
            relays: Relays::new(config, walkers),
            targets: config.relays.clone(),
            joining: config
                .controller
                .clone()
                .map(|ask| Joining::start(ask, config.issuer.clone(), walkers))
                .transpose()?,
            moves: 0,
            outages: Vec::new(),
            killings: Killings::default(),
            readiness: Readiness::new()?,
            receiver: Receiver::new(16, 65_535),
            oracle,
            told: Told::default(),
            timers: BinaryHeap::new(),
            ages: AgeMeter::new(schedule.start()),
            schedule,
            refresh_at: Time::ZERO,
            updates_unsent: 0,
            late: Duration::ZERO,
            view,
            watched: Vec::new(),
            limited: BTreeSet::new(),
            heard: BTreeMap::new(),
            ready: Vec::new(),
            arrivals: Vec::new(),
            cells: Vec::new(),
            payload: vec![0; config.bytes],
        })
    }

    /// Walks until the end of the trace or until `stop` is set.
    fn walk(
        &mut self,
        trace: &Trace,
        stop: &AtomicBool,
        mut progress: impl FnMut(&Progress),
    ) -> Result<(), CrowdError> {
        let mut next = 0;
        let mut progress_at = PROGRESS;
        while !stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            self.join(now)?;
            // What comes late is published all the same, so nobody leaves before it.
            let due = trace.rows().get(next).map(|row| self.schedule.due(row.t));
            self.leave_due(due.map_or(now, |due| due.min(now)), now);
            self.take_places(now)?;
            next = self.publish_due(trace.rows(), next, now);
            self.turn_due(now);
            self.housekeeping(now)?;
            if now.since(self.schedule.start()) > progress_at {
                progress_at += PROGRESS;
                progress(&self.progress(next as f64 / trace.rows().len() as f64));
            }
            let row = trace.rows().get(next);
            if row.is_none() && self.schedule.is_done() {
                break;
            }
            let until = row.map(|row| self.schedule.due(row.t));
            self.serve(until)?;
        }
        Ok(())
    }

    fn join(&mut self, now: Time) -> Result<(), CrowdError> {
        let mut joined = 0;
        while let Some(Join { walker: number, x, y, .. }) = self.schedule.next_join(now) {
            if self.is_killed(number) {
                self.killings.wait(number, (x, y));
                continue;
            }
            if let Some(joining) = &mut self.joining {
                joining.appear(number, (x, y))?;
                continue;
            }
            let walker = Walker::new(number, now, self.config, &self.readiness)?;
            self.appear(now, walker, (x, y));
            joined += 1;
            // A thousand may join at once: answers are read meanwhile.
            if joined % SENDS_IN_A_ROW == 0 {
                self.serve(Some(now))?;
            }
        }
        Ok(())
    }

    /// Whoever is to leave by `due` begins to.
    fn leave_due(&mut self, due: Time, now: Time) {
        while let Some(number) = self.schedule.next_leave(due) {
            self.killings.forget(number);
            if self.walkers[number as usize].is_some() {
                self.begin_to_leave(number, now);
            } else if let Some(joining) = &mut self.joining {
                joining.leave(number);
            }
        }
    }

    /// A walker sets out to its relay.
    fn appear(&mut self, now: Time, mut walker: Walker, at: (f64, f64)) {
        let number = walker.number;
        let grid = &self.config.grid;
        self.relays.ask(walker.relay, now);
        self.oracle.appear(now, number as usize);
        walker.look_around(now, grid, at, None, &mut self.cells, &mut self.oracle);
        walker.appeared = Some(at);
        self.walkers[number as usize] = Some(walker);
        self.turn(number, now);
    }

    /// Publishes rows that are due, from number `next` on; returns the first that it has not. No
    /// more than [`SENDS_IN_A_ROW`] of them: a crowd that cannot keep up still serves its sockets
    /// and timers, judges, and stops when it is told to.
    fn publish_due(&mut self, rows: &[Row], next: usize, now: Time) -> usize {
        if let Some(row) = rows.get(next) {
            self.late = self.late.max(now.since(self.schedule.due(row.t)));
        }
        let due = rows[next..].iter().take(SENDS_IN_A_ROW);
        let due = due.take_while(|row| self.schedule.due(row.t) <= now).count();
        rows[next..next + due].iter().for_each(|row| self.publish(row));
        next + due
    }

    fn publish(&mut self, row: &Row) {
        let Some(walker) = &mut self.walkers[row.walker as usize] else {
            let awaits = self.joining.as_ref().is_some_and(|joining| joining.awaits(row.walker));
            self.updates_unsent += u64::from(awaits);
            return;
        };
        let now = self.clock.now();
        let grid = &self.config.grid;
        walker.at = Some([row.x, row.y]);
        let weigh = self.config.weigh.filter(|_| self.limited.contains(&row.walker));
        walker.look_around(now, grid, (row.x, row.y), weigh, &mut self.cells, &mut self.oracle);
        if !walker.hold_back(row) {
            self.send(row);
        }
        self.turn(row.walker, now);
    }

    /// Publishes a row to the group of the walker's cell.
    fn send(&mut self, row: &Row) {
        let Some(walker) = &mut self.walkers[row.walker as usize] else { return };
        let now = self.clock.now();
        let grid = &self.config.grid;
        let group = grid.group_of(grid.cell_of(row.x, row.y));
        if walker.is_connected() {
            let is_coarse = grid.near().is_none() || walker.published.is_multiple_of(COARSE_EVERY);
            let level = if is_coarse { COARSE } else { DETAILED };
            walker.published += 1;
            let publish = Publish {
                publisher: row.walker as usize,
                src: walker.session.address(),
                dst: group.address(),
                level,
                echo: false,
                overtaken: false,
            };
            let id = self.oracle.publish(now, publish);
            if !self.limited.is_empty() {
                self.oracle.may_be_left_out(id, |who| self.limited.contains(&who));
            }
            // Nothing is lost on its way to the relay: what it does not forward is missing.
            self.oracle.read(now, publish.publisher, &[id]);
            let (x, y, number) = (row.x as f32, row.y as f32, id as u32);
            Position { walker: row.walker, number, published: now, x, y }.encode(&mut self.payload);
            walker.publish(now, group, level, &self.payload);
        } else {
            self.updates_unsent += 1;
        }
    }

    /// Lets a walker's session do what is due, and notes when it wants to be called again.
    fn turn(&mut self, number: u32, now: Time) {
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        walker.turn(now, &self.config.grid, &mut self.oracle, &mut self.told);
        self.turn_move(number, now);
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        let refused = self.told.refused.take();
        self.relays.note(walker.relay, walker.is_connected(), refused);
        let start = self.schedule.start();
        self.outages
            .extend(walker.take_outage().map(|since| Outage::new(number, since, now, start)));
        match walker.poll_timeout() {
            None => {
                self.told.echoes += walker.session.echoes();
                self.walkers[number as usize] = None;
                if let Some(joining) = &mut self.joining {
                    joining.leave(number);
                }
            }
            Some(at) if walker.timer.is_none_or(|timer| at < timer) => {
                walker.timer = Some(at);
                self.timers.push(Reverse((at, number)));
            }
            Some(_) => {}
        }
    }

    fn turn_due(&mut self, now: Time) {
        while let Some(Reverse((at, number))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            if let Some(walker) = &mut self.walkers[number as usize] {
                walker.timer = None;
                self.turn(number, now);
            }
        }
    }

    /// Waits until something arrives or is due, at most until `until`, and takes what has arrived.
    fn serve(&mut self, until: Option<Time>) -> Result<(), CrowdError> {
        let now = self.clock.now();
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let nap = Some(now + NAP);
        let until = [until, timer, nap].into_iter().flatten().min().unwrap_or(now);
        self.ready.clear();
        let ready = &mut self.ready;
        self.readiness.wait(&self.clock, Some(until), |token| ready.push(token))?;
        for index in 0..self.ready.len() {
            self.receive(self.ready[index] as u32)?;
        }
        self.judge_arrivals();
        let now = self.clock.now();
        for index in 0..self.ready.len() {
            self.turn(self.ready[index] as u32, now);
        }
        Ok(())
    }

    /// Judges, checks that each relay takes walkers, and refreshes the view.
    fn housekeeping(&mut self, now: Time) -> Result<(), CrowdError> {
        if now < self.refresh_at {
            return Ok(());
        }
        self.refresh_at = now + REFRESH;
        self.oracle.judge(now);
        self.kill_and_start(now)?;
        self.keep_places(now);
        if !self.config.endures {
            self.relays.check(now)?;
        }
        self.ages.turn(now);
        self.refresh_view(now);
        Ok(())
    }

    fn refresh_view(&mut self, now: Time) {
        let Some(view) = &self.view else { return };
        self.watched = view.watched();
        let avatars = self.walkers.iter().flatten();
        let avatars = avatars.filter_map(|walker| walker.at.map(|[x, y]| (walker.number, x, y)));
        let avatars = avatars.collect();
        let mut lost = vec![0; self.targets.len()];
        let is_lost = |walker: &&Walker| walker.at.is_some() && !walker.is_connected();
        self.walkers.iter().flatten().filter(is_lost).for_each(|walker| lost[walker.relay] += 1);
        let snapshot = Snapshot { now, avatars, lost, totals: self.totals() };
        let connected = |walker: &&Walker| walker.is_connected();
        let address = |walker: &Option<Walker>| {
            walker.as_ref().filter(connected).map(|walker| walker.session.address())
        };
        let addresses = self.walkers.iter().map(address).collect();
        let walkers = &self.walkers;
        let seen = |walker: &Walker| Seen { at: walker.at, cells: walker.acknowledged() };
        view.refresh(snapshot, addresses, std::mem::take(&mut self.heard), |number| {
            let walker = walkers.get(number as usize).and_then(Option::as_ref);
            walker.map(seen).unwrap_or_default()
        });
        self.limited = view.limits().into_iter().map(|limit| limit.walker).collect();
    }

    fn totals(&self) -> Totals {
        let (age_p50_us, age_p99_us) = self.ages.last();
        Totals { verdict: Verdict::new(self.oracle.tally()), age_p50_us, age_p99_us }
    }

    fn progress(&self, done: f64) -> Progress {
        let walkers = self.walkers.iter().flatten().filter(|walker| walker.at.is_some()).count();
        Progress { done, walkers, totals: self.totals() }
    }
}
