//! Walkers and viewers on real sockets, on one thread.

use super::peer::Peer;
use super::recording::{Published, Recording, bytes_each};
use super::script::{Phases, Played, Script};
use super::viewer::{Gaze, LOOK_EVERY, Viewer, group_of};
use super::{Allowance, DegradeConfig, Stage};
use crate::error::CrowdError;
use crate::position::Position;
use canopy_net::{Clock, Readiness, Receiver};
use canopy_wire::Time;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// After so many sends the sockets are served, so that ages don't grow by our own doing.
const SENDS_IN_A_ROW: usize = 64;
/// How often sessions are asked whether something is due, and the longest wait.
const TURNS: Duration = Duration::from_millis(10);
/// All have joined after so long, or something is wrong.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// Between joining and the first update: subscriptions are on their way.
const LEAD: Duration = Duration::from_millis(500);
/// What is on its way at the end is waited for.
const SETTLE: Duration = Duration::from_secs(1);

/// Plays a script through the relays. When it is known how much the viewers would be sent, `allow` is
/// called, on a thread of its own, to give each its budget.
///
/// # Errors
/// Why it could not; see [`CrowdError`].
pub fn run(
    config: &DegradeConfig,
    script: &Script,
    stop: &AtomicBool,
    allow: impl FnOnce(Vec<Allowance>) -> Result<(), String> + Send + 'static,
    mut progress: impl FnMut(Stage),
) -> Result<Recording, CrowdError> {
    config.check()?;
    let mut crowd = Crowd::new(config, script, stop)?;
    let participants = crowd.peers().count();
    progress(Stage::Joining { participants });
    crowd.join()?;
    progress(Stage::Unbounded);
    crowd.subscribe(|viewer, at_first| viewer < at_first);
    let Phases { unbounded, settling, tail } = script.phases;
    crowd.play_until(crowd.start + unbounded)?;
    let bytes_each = crowd.bytes_each()?;
    let set = crowd.set_budgets(bytes_each, allow)?;
    progress(Stage::Settling);
    crowd.subscribe(|viewer, at_first| viewer >= at_first);
    let from = crowd.start + unbounded + settling;
    crowd.play_until(from)?;
    settled(set)?;
    let of = script.seconds().ceil() as u64;
    for seconds in 0..of {
        progress(Stage::Measuring { seconds, of });
        let end = script.seconds().min(seconds as f64 + 1.0);
        crowd.play_until(from + Duration::from_secs_f64(end))?;
    }
    let until = from + Duration::from_secs_f64(script.seconds());
    crowd.play_until(until + tail + SETTLE)?;
    crowd.finish((from, until), bytes_each)
}

/// How the budgets were set, which must be done by now.
fn settled(set: JoinHandle<Result<(), String>>) -> Result<(), CrowdError> {
    if !set.is_finished() {
        return Err(CrowdError::NoBudgets("it has not answered in time".to_owned()));
    }
    let result = set.join().unwrap_or_else(|_| Err("setting them failed".to_owned()));
    result.map_err(CrowdError::NoBudgets)
}

struct Crowd<'a> {
    config: &'a DegradeConfig,
    script: &'a Script,
    stop: &'a AtomicBool,
    clock: Clock,
    readiness: Readiness,
    receiver: Receiver,
    /// By number; those that are not seen have none.
    walkers: Vec<Option<Peer>>,
    viewers: Vec<Viewer>,
    /// When the script begins.
    start: Time,
    /// The next row that is due.
    next: usize,
    /// Where walkers were last, or will be first.
    places: Vec<Option<[f64; 2]>>,
    published: Vec<Published>,
    unsent: u64,
    turns_at: Time,
    ready: Vec<u64>,
    payload: Vec<u8>,
}

impl<'a> Crowd<'a> {
    fn new(
        config: &'a DegradeConfig,
        script: &'a Script,
        stop: &'a AtomicBool,
    ) -> Result<Crowd<'a>, CrowdError> {
        let places = script.first_seen();
        let participants = places.len() + script.viewers.len() * config.budgets.len();
        let limit = canopy_net::raise_open_files();
        if limit < participants as u64 + 64 {
            return Err(CrowdError::OpenFiles { limit, walkers: participants as u32 });
        }
        let readiness = Readiness::new()?;
        let join =
            |number: usize, relay| Peer::new(number as u32, relay, config.comtree, &readiness);
        let mut walkers = Vec::new();
        for (number, place) in places.iter().enumerate() {
            walkers.push(place.map(|_| join(number, config.walkers_at)).transpose()?);
        }
        let mut viewers = Vec::new();
        for budget in &config.budgets {
            for walker in &script.viewers {
                let peer = join(walkers.len() + viewers.len(), config.viewers_at)?;
                let gaze = Gaze::new(*walker, *budget, walkers.len());
                viewers.push(Viewer { peer, gaze });
            }
        }
        Ok(Crowd {
            config,
            script,
            stop,
            clock: Clock::start(),
            readiness,
            receiver: Receiver::new(16, 65_535),
            walkers,
            viewers,
            start: Time::ZERO,
            next: 0,
            places,
            published: Vec::with_capacity(script.rows.len()),
            unsent: 0,
            turns_at: Time::ZERO,
            ready: Vec::new(),
            payload: vec![0; config.bytes],
        })
    }

    fn peers(&mut self) -> impl Iterator<Item = &mut Peer> {
        let viewers = self.viewers.iter_mut().map(|viewer| &mut viewer.peer);
        self.walkers.iter_mut().flatten().chain(viewers)
    }

    fn join(&mut self) -> Result<(), CrowdError> {
        let limit = self.clock.now() + JOIN_LIMIT;
        loop {
            let missing = self.peers().find(|peer| !peer.is_connected());
            let Some(unreachable) = missing.map(|peer| peer.unreachable()) else { break };
            let now = self.clock.now();
            if now > limit {
                return Err(unreachable);
            }
            self.turn_due(now)?;
            self.serve(now + TURNS)?;
        }
        self.start = self.clock.now() + LEAD;
        Ok(())
    }

    /// Lets those viewers subscribe who are chosen by their number, and by how many have the first budget.
    fn subscribe(&mut self, is_chosen: impl Fn(usize, usize) -> bool) {
        let now = self.clock.now();
        let (count, at_first) = (self.viewers.len().max(1) as u32, self.script.viewers.len());
        for (number, viewer) in self.viewers.iter_mut().enumerate() {
            if is_chosen(number, at_first) {
                // They do not all look around at the same instant.
                viewer.gaze.look_at = Some(now + LOOK_EVERY * number as u32 / count);
                viewer.look_around(now, &self.places, self.config.weight_of);
            }
        }
    }

    /// Bytes that an update takes where all are sent.
    fn bytes_each(&self) -> Result<f64, CrowdError> {
        // At first, subscriptions are on their way.
        let from = self.start + self.script.phases.unbounded / 3;
        let viewers = self.viewers.iter().map(|viewer| &viewer.gaze.viewed);
        bytes_each(viewers, from..).ok_or(CrowdError::NothingCame)
    }

    /// Gives each viewer its part of what it would be sent in its busiest second, were everything sent.
    fn set_budgets(
        &mut self,
        bytes_each: f64,
        allow: impl FnOnce(Vec<Allowance>) -> Result<(), String> + Send + 'static,
    ) -> Result<JoinHandle<Result<(), String>>, CrowdError> {
        // Over a link goes what any of them wants, once: all walkers', if they are at more than one place.
        let without_own = !self.config.is_shared || self.script.viewers() < 2;
        let busiest = self.script.busiest_second(without_own);
        let mut allowances = Vec::new();
        for Viewer { peer, gaze: Gaze { viewed, .. } } in &mut self.viewers {
            viewed.set_bits(busiest[viewed.walker as usize], bytes_each);
            allowances.push(Allowance { viewer: peer.session.address(), bits: viewed.bits as u64 });
        }
        let thread = std::thread::Builder::new().name("budgets".to_owned());
        Ok(thread.spawn(move || allow(allowances))?)
    }

    fn play_until(&mut self, until: Time) -> Result<(), CrowdError> {
        loop {
            let now = self.clock.now();
            if self.stop.load(Ordering::Relaxed) {
                return Err(CrowdError::Stopped);
            }
            self.publish_due(now);
            self.look_due(now);
            self.turn_due(now)?;
            if now >= until {
                return Ok(());
            }
            let row = self.script.rows.get(self.next);
            let next = row.map_or(until, |played| self.due(played)).min(until);
            self.serve(next.min(now + TURNS))?;
        }
    }

    fn due(&self, played: &Played) -> Time {
        self.start + Duration::from_secs_f64(played.row.t)
    }

    fn publish_due(&mut self, now: Time) {
        let script = self.script;
        for played in script.rows[self.next..].iter().take(SENDS_IN_A_ROW) {
            if self.due(played) > now {
                return;
            }
            self.next += 1;
            self.publish(played);
        }
    }

    fn publish(&mut self, played: &Played) {
        let Played { row, demand, is_last } = *played;
        let (walker, place) = (row.walker as usize, [row.x, row.y]);
        self.places[walker] = Some(place);
        let at = self.clock.now();
        let number = self.published.len() as u32;
        let position = Position {
            walker: row.walker,
            number,
            published: at,
            x: row.x as f32,
            y: row.y as f32,
        };
        position.encode(&mut self.payload);
        let peer = self.walkers[walker].as_mut();
        if peer.is_some_and(|peer| peer.publish(group_of(walker), &self.payload)) {
            self.published.push(Published { at, walker: row.walker, place, demand, is_last });
        } else {
            self.unsent += 1;
        }
    }

    fn look_due(&mut self, now: Time) {
        for viewer in &mut self.viewers {
            if let Some(at) = viewer.gaze.look_at.filter(|at| *at <= now) {
                viewer.gaze.look_at = Some(at + LOOK_EVERY);
                viewer.look_around(now, &self.places, self.config.weight_of);
            }
        }
    }

    fn turn_due(&mut self, now: Time) -> Result<(), CrowdError> {
        if now < self.turns_at {
            return Ok(());
        }
        self.turns_at = now + TURNS;
        self.peers().filter(|peer| peer.is_due(now)).try_for_each(|peer| peer.turn(now))
    }

    /// Waits until something arrives, at most until `until`, and takes what has arrived.
    fn serve(&mut self, until: Time) -> Result<(), CrowdError> {
        self.ready.clear();
        let ready = &mut self.ready;
        self.readiness.wait(&self.clock, Some(until), |token| ready.push(token))?;
        for index in 0..self.ready.len() {
            let number = self.ready[index] as usize;
            let viewer = number.checked_sub(self.walkers.len());
            match viewer.and_then(|viewer| self.viewers.get_mut(viewer)) {
                Some(viewer) => viewer.receive(&self.clock, &mut self.receiver)?,
                None => self.receive_as_walker(number)?,
            }
        }
        Ok(())
    }

    fn receive_as_walker(&mut self, number: usize) -> Result<(), CrowdError> {
        let Some(Some(peer)) = self.walkers.get_mut(number) else { return Ok(()) };
        let now = self.clock.now();
        self.receiver.receive(&peer.socket, |_, datagram| {
            // Walkers are subscribed to nothing: it concerns the session.
            let _ = peer.session.handle_datagram(now, datagram, |_| ());
        })?;
        Ok(())
    }

    fn finish(mut self, measured: (Time, Time), bytes_each: f64) -> Result<Recording, CrowdError> {
        if self.unsent > 0 {
            return Err(CrowdError::Unsent(self.unsent));
        }
        self.peers().for_each(|peer| peer.session.leave());
        let now = self.clock.now();
        // What the relays say to that is not waited for.
        self.peers().try_for_each(|peer| peer.turn(now))?;
        let lost = |viewer: &Viewer| u64::from(viewer.peer.socket.lost());
        Ok(Recording {
            walkers: self.walkers.len(),
            published: self.published,
            is_shared: self.config.is_shared,
            measured,
            bytes_each,
            floor: self.config.floor,
            tick: self.config.tick,
            lost: self.viewers.iter().map(lost).sum(),
            viewers: self.viewers.into_iter().map(|viewer| viewer.gaze.viewed).collect(),
        })
    }
}
