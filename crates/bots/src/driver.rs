//! The driver: one thread that walks the whole crowd.

use crate::grid::{COARSE, Cell, DETAILED, Grid, GridError};
use crate::issuer::Issuer;
use crate::position::{MIN_PAYLOAD, Position};
use crate::report::{Ages, Report, Verdict};
use crate::trace::{Row, Trace};
use crate::view::{Heard, Snapshot, Totals, View};
use crate::walker::{Told, Walker};
use canopy_judge::{Carriage, Oracle, Publish, Received, Rules};
use canopy_net::{Clock, Readiness, Receiver};
use canopy_session::Update;
use canopy_token::KeyError;
use canopy_wire::{Comtree, MAX_UPDATE, RefusedReason, Time};
use hdrhistogram::Histogram;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Walkers join so long before their first position, and leave so long after their last.
const LEAD: Duration = Duration::from_millis(1500);
const TRAIL: Duration = Duration::from_millis(500);
/// Nobody connected after so long: there is no relay.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// So long after all that may excuse it, a delivery is missing, whatever comes later.
const PATIENCE: Duration = Duration::from_secs(2);
/// At the end, deliveries on their way are waited for.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);
/// After so many sends the sockets are served, so that ages don't grow by our own doing.
const SENDS_IN_A_ROW: usize = 128;
const REFRESH: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(2);
/// With two levels, one update in so many is for those who are far away too.
pub const COARSE_EVERY: u64 = 5;
/// The longest wait: others may want the run to stop.
const NAP: Duration = Duration::from_millis(50);

/// How a crowd walks.
#[derive(Clone, Debug)]
pub struct CrowdConfig {
    /// The relay.
    pub relay: SocketAddr,
    /// The comtree to join.
    pub comtree: Comtree,
    /// Who issues the walkers tokens, where the relay asks for them.
    pub issuer: Option<Issuer>,
    /// How fast, against the recording.
    pub speed: f64,
    /// The grid, and how far walkers see.
    pub grid: Grid,
    /// Bytes of an update, [`MIN_PAYLOAD`] to [`MAX_UPDATE`].
    pub bytes: usize,
    /// An unsubscription so long after an update was published excuses its delivery.
    pub settle: Duration,
}

impl CrowdConfig {
    /// Checks what needs no trace and no relay.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), CrowdError> {
        if !(MIN_PAYLOAD..=MAX_UPDATE).contains(&self.bytes) {
            return Err(CrowdError::Bytes(self.bytes));
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(CrowdError::Speed(self.speed));
        }
        Ok(())
    }
}

/// Why a crowd cannot walk.
#[derive(Debug, thiserror::Error)]
pub enum CrowdError {
    /// Updates of this length cannot be made.
    #[error("--bytes {0} is out of range; choose {MIN_PAYLOAD} to {MAX_UPDATE}")]
    Bytes(usize),
    /// The speed is none.
    #[error("--speed {0} is no speed; choose a number above 0")]
    Speed(f64),
    /// A walker's token cannot be issued.
    #[error("a walker's token cannot be issued: {0}")]
    Token(#[from] KeyError),
    /// The grid does not fit the world.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Nobody could connect.
    #[error(
        "no walker got an answer from {0} within 5 s; is the relay running there? (canopy relay --listen {0})"
    )]
    Unreachable(SocketAddr),
    /// The relay takes nobody.
    #[error("the relay refused the walkers: {:?}; {}", .0, remedy(*.0))]
    Refused(RefusedReason),
    /// There are not enough descriptors for a socket each.
    #[error(
        "only {limit} files may be open, too few for {walkers} walkers with a socket each; raise the limit (ulimit -n)"
    )]
    OpenFiles {
        /// The hard limit.
        limit: u64,
        /// Walkers.
        walkers: u32,
    },
    /// The system says no.
    #[error("a walker's socket failed")]
    Socket(#[from] io::Error),
}

fn remedy(reason: RefusedReason) -> &'static str {
    match reason {
        RefusedReason::Token => {
            "give a signing key that it trusts (--token-key) and the comtree's world (--world); its log \
             says what is wrong with their tokens, which are good for seven days"
        }
        _ => "see its limits and comtrees",
    }
}

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

/// Walks the trace through the relay, until its end or until `stop` is set.
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
        let _ = crowd.leave(crowd.clock.now() + SETTLE_LIMIT);
        return Err(error);
    }
    crowd.finish(trace)
}

/// An update as a walker received it.
struct Arrival {
    receiver: u32,
    at: Time,
    /// What it says; `None` if no walker publishes such a thing.
    position: Option<Position>,
    /// What else the oracle judges.
    received: Received,
}

/// Who joins and leaves when.
struct Members {
    /// Walkers by the time they join, with their first position; latest first.
    joins: Vec<(Time, u32, f64, f64)>,
    /// Walkers by the time they leave; latest first.
    leaves: Vec<(Time, u32)>,
}

impl Members {
    fn is_done(&self) -> bool {
        self.leaves.is_empty()
    }
}

struct Crowd<'a> {
    config: &'a CrowdConfig,
    clock: Clock,
    start: Time,
    walkers: Vec<Option<Walker>>,
    members: Members,
    readiness: Readiness,
    receiver: Receiver,
    oracle: Oracle,
    told: Told,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    ages: Histogram<u64>,
    recent_ages: Histogram<u64>,
    last_ages: (u64, u64),
    ages_at: Time,
    refresh_at: Time,
    connected_once: bool,
    updates_unsent: u64,
    view: Option<Arc<View>>,
    watched: Vec<u32>,
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
        let start = clock.now() + LEAD;
        // Ages up to a minute, in nanoseconds, to three digits.
        let ages = || Histogram::new_with_bounds(1, 60_000_000_000, 3);
        let (Ok(all), Ok(recent)) = (ages(), ages()) else { unreachable!("the bounds are valid") };
        let rules = Rules::undisturbed(config.settle, PATIENCE);
        let comtrees = std::iter::repeat_n(config.comtree, trace.walkers() as usize);
        let mut crowd = Crowd {
            config,
            clock,
            start,
            walkers: (0..trace.walkers()).map(|_| None).collect(),
            members: Members { joins: Vec::new(), leaves: Vec::new() },
            readiness: Readiness::new()?,
            receiver: Receiver::new(16, 65_535),
            oracle: Oracle::new(rules, comtrees),
            told: Told::default(),
            timers: BinaryHeap::new(),
            ages: all,
            recent_ages: recent,
            last_ages: (0, 0),
            ages_at: start,
            refresh_at: Time::ZERO,
            connected_once: false,
            updates_unsent: 0,
            view,
            watched: Vec::new(),
            heard: BTreeMap::new(),
            ready: Vec::new(),
            arrivals: Vec::new(),
            cells: Vec::new(),
            payload: vec![0; config.bytes],
        };
        crowd.plan(trace.rows());
        Ok(crowd)
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
            self.join_and_leave(now)?;
            next = self.publish_due(trace.rows(), next, now);
            self.turn_due(now);
            self.housekeeping(now)?;
            if now.since(self.start) > progress_at {
                progress_at += PROGRESS;
                progress(&self.progress(next as f64 / trace.rows().len() as f64));
            }
            let row = trace.rows().get(next);
            if row.is_none() && self.members.is_done() {
                break;
            }
            let until = row.map(|row| self.due(row.t));
            self.serve(until)?;
        }
        Ok(())
    }

    fn plan(&mut self, rows: &[Row]) {
        let mut spans: Vec<Option<(Row, f64)>> = vec![None; self.walkers.len()];
        for row in rows {
            let span = &mut spans[row.walker as usize];
            span.get_or_insert((*row, row.t)).1 = row.t;
        }
        for (number, span) in (0..).zip(spans) {
            let Some((first, last)) = span else { continue };
            self.members.joins.push((self.due(first.t) - LEAD, number, first.x, first.y));
            self.members.leaves.push((self.due(last) + TRAIL, number));
        }
        self.members.joins.sort_by_key(|(at, number, ..)| Reverse((*at, *number)));
        self.members.leaves.sort_by_key(|(at, number)| Reverse((*at, *number)));
    }

    /// When something at `t` seconds of the trace is due.
    fn due(&self, t: f64) -> Time {
        self.start + Duration::from_secs_f64(t / self.config.speed)
    }

    fn join_and_leave(&mut self, now: Time) -> Result<(), CrowdError> {
        let mut joined = 0;
        while let Some((_, number, x, y)) = self.members.joins.pop_if(|(at, ..)| *at <= now) {
            let CrowdConfig { grid, .. } = self.config;
            let mut walker = Walker::new(number, self.config, &self.readiness)?;
            self.oracle.appear(now, number as usize);
            walker.look_around(now, grid, (x, y), &mut self.cells, &mut self.oracle);
            self.walkers[number as usize] = Some(walker);
            self.turn(number, now);
            joined += 1;
            // A thousand may join at once: answers are read meanwhile.
            if joined % SENDS_IN_A_ROW == 0 {
                self.serve(Some(now))?;
            }
        }
        while let Some((_, number)) = self.members.leaves.pop_if(|(at, _)| *at <= now) {
            if let Some(walker) = &mut self.walkers[number as usize] {
                walker.leave(now, &mut self.oracle);
                self.turn(number, now);
            }
        }
        Ok(())
    }

    /// Publishes rows that are due, from number `next` on; returns the first that it has not. No
    /// more than [`SENDS_IN_A_ROW`] of them: a crowd that cannot keep up still serves its sockets
    /// and timers, judges, and stops when it is told to.
    fn publish_due(&mut self, rows: &[Row], next: usize, now: Time) -> usize {
        let due = rows[next..].iter().take(SENDS_IN_A_ROW);
        let due = due.take_while(|row| self.due(row.t) <= now).count();
        rows[next..next + due].iter().for_each(|row| self.publish(row));
        next + due
    }

    fn publish(&mut self, row: &Row) {
        let Some(walker) = &mut self.walkers[row.walker as usize] else { return };
        let now = self.clock.now();
        let grid = &self.config.grid;
        walker.at = Some([row.x, row.y]);
        walker.look_around(now, grid, (row.x, row.y), &mut self.cells, &mut self.oracle);
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
            // Nothing is lost on its way to the relay: what it does not forward is missing.
            self.oracle.read(now, publish.publisher, &[id]);
            let (x, y, number) = (row.x as f32, row.y as f32, id as u32);
            Position { walker: row.walker, number, published: now, x, y }.encode(&mut self.payload);
            walker.publish(group, level, &self.payload);
        } else {
            self.updates_unsent += 1;
        }
        self.turn(row.walker, now);
    }

    /// Lets a walker's session do what is due, and notes when it wants to be called again.
    fn turn(&mut self, number: u32, now: Time) {
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        walker.turn(now, &self.config.grid, &mut self.oracle, &mut self.told);
        self.connected_once |= walker.is_connected();
        match walker.session.poll_timeout() {
            None => {
                self.told.echoes += walker.session.echoes();
                self.walkers[number as usize] = None;
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

    /// Takes what waits on a walker's socket. Judging it waits until all sockets are read: what
    /// the oracle takes is no part of an update's age.
    fn receive(&mut self, number: u32) -> Result<(), CrowdError> {
        let Some(walker) = &mut self.walkers[number as usize] else { return Ok(()) };
        let (clock, arrivals) = (&self.clock, &mut self.arrivals);
        // Read when the first is here: a clock read before would make them younger than they are.
        let mut arrived = None;
        let session = &mut walker.session;
        self.receiver.receive(&walker.socket, |_, datagram| {
            let now = *arrived.get_or_insert_with(|| clock.now());
            let deliver = |update: Update<'_>| {
                let Update { src, dst, level, payload, .. } = update;
                let position = Position::decode(payload);
                let received = Received { id: None, src, dst, level };
                arrivals.push(Arrival { receiver: number, at: now, position, received });
            };
            // A datagram that is no packet delivers nothing: the oracle will miss what it held.
            let _ = session.handle_datagram(now, datagram, deliver);
        })?;
        Ok(())
    }

    fn judge_arrivals(&mut self) {
        for Arrival { receiver, at, position, received } in self.arrivals.drain(..) {
            let last = self.oracle.tally().published;
            let id = position.and_then(|position| position.id(last));
            let carriage = Carriage { sent: at, copy: false, overtaken: false };
            self.oracle.received(at, receiver as usize, &Received { id, ..received }, carriage);
            let Some(position) = position else { continue };
            let age = at.since(position.published);
            // Saturating, so it cannot fail.
            self.ages.saturating_record(age.as_nanos() as u64);
            self.recent_ages.saturating_record(age.as_nanos() as u64);
            if self.watched.contains(&receiver) {
                let Position { walker, x, y, .. } = position;
                let receiver_has = self.walkers.get(receiver as usize).and_then(Option::as_ref);
                let held = received.dst.group().zip(receiver_has);
                let held = held.and_then(|(group, w)| w.level_held(&self.config.grid, group));
                let level = held.unwrap_or(COARSE);
                let heard = Heard { x, y, received: at, age, level };
                self.heard.entry(receiver).or_default().push((walker, heard));
            }
        }
    }

    /// Judges, checks that there is a relay at all, and refreshes the view.
    fn housekeeping(&mut self, now: Time) -> Result<(), CrowdError> {
        if now < self.refresh_at {
            return Ok(());
        }
        self.refresh_at = now + REFRESH;
        self.oracle.judge(now);
        // A relay that drains comes back, or another does; the other refusals are for good, and a
        // crowd that lacks some of its walkers would walk a different trace.
        let refused = self.told.refused;
        let refused = refused.filter(|r| !self.connected_once || *r != RefusedReason::Draining);
        if let Some(reason) = refused {
            return Err(CrowdError::Refused(reason));
        }
        if !self.connected_once && now.since(Time::ZERO) > CONNECT_LIMIT {
            return Err(CrowdError::Unreachable(self.config.relay));
        }
        if now >= self.ages_at {
            self.ages_at = now + Duration::from_secs(1);
            let micros = |quantile| self.recent_ages.value_at_quantile(quantile) / 1000;
            self.last_ages = (micros(0.5), micros(0.99));
            self.recent_ages.reset();
        }
        self.refresh_view(now);
        Ok(())
    }

    fn refresh_view(&mut self, now: Time) {
        let Some(view) = &self.view else { return };
        self.watched = view.watched();
        let avatars = self.walkers.iter().flatten();
        let avatars = avatars.filter_map(|walker| walker.at.map(|[x, y]| (walker.number, x, y)));
        let snapshot = Snapshot { now, avatars: avatars.collect(), totals: self.totals() };
        let walkers = &self.walkers;
        view.refresh(snapshot, std::mem::take(&mut self.heard), |number| {
            match walkers.get(number as usize).and_then(Option::as_ref) {
                Some(walker) => (walker.at, walker.acknowledged()),
                None => (None, Vec::new()),
            }
        });
    }

    fn totals(&self) -> Totals {
        Totals {
            verdict: Verdict::new(self.oracle.tally()),
            age_p50_us: self.last_ages.0,
            age_p99_us: self.last_ages.1,
        }
    }

    fn progress(&self, done: f64) -> Progress {
        let walkers = self.walkers.iter().flatten().filter(|walker| walker.at.is_some()).count();
        Progress { done, walkers, totals: self.totals() }
    }

    /// Leaves in order, so that the relay has no session of this crowd any more. Who is about to
    /// be connected is waited for: before that it does not know what to leave.
    fn leave(&mut self, limit: Time) -> Result<(), CrowdError> {
        while self.walkers.iter().any(Option::is_some) && self.clock.now() < limit {
            let now = self.clock.now();
            for number in 0..self.walkers.len() as u32 {
                let walker = self.walkers[number as usize].as_mut();
                let Some(walker) = walker.filter(|walker| walker.may_leave()) else { continue };
                walker.leave(now, &mut self.oracle);
                self.turn(number, now);
            }
            self.turn_due(now);
            self.serve(Some(limit))?;
        }
        Ok(())
    }

    /// Waits for what is on its way, leaves, and sums up.
    fn finish(mut self, trace: &Trace) -> Result<Report, CrowdError> {
        let seconds = self.clock.now().since(self.start).as_secs_f64();
        let limit = self.clock.now() + SETTLE_LIMIT;
        while !self.oracle.is_settled() && self.clock.now() < limit {
            self.serve(Some(limit))?;
            self.turn_due(self.clock.now());
        }
        self.oracle.judge_all(self.clock.now());
        self.leave(limit)?;
        let micros = |quantile| self.ages.value_at_quantile(quantile) / 1000;
        let still_here = self.walkers.iter().flatten().map(|walker| walker.session.echoes());
        Ok(Report {
            clients: trace.walkers(),
            verdict: Verdict::new(self.oracle.tally()),
            age_us: Ages { p50: micros(0.5), p99: micros(0.99), p999: micros(0.999) },
            subscriptions_changed: self.told.subscriptions_changed,
            seconds,
            updates_unsent: self.updates_unsent,
            subscriptions_refused: self.told.subscriptions_refused,
            reconnects: self.told.reconnects,
            echoes: self.told.echoes + still_here.sum::<u64>(),
            findings: self.oracle.tally().findings.clone(),
            trace: trace.name().to_owned(),
            speed: self.config.speed,
        })
    }
}
