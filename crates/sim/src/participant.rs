//! One participant: a real session, and an application that walks through the world and wants
//! what is near.

use crate::scenario::Habits;
use canopy_session::{Identity, Session, State};
use canopy_wire::{Address, Comtree, Group, GroupKeyNumber, Level, Ticket, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Within one cell everything is wanted, farther away only the updates for a large audience.
const NEAR: (i64, Level) = (1, Level(3));
const FAR: Level = Level(1);
/// A refused subscription is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(1500);

pub(crate) struct Participant {
    number: usize,
    pub(crate) comtree: Comtree,
    /// `None` while its application does not run.
    pub(crate) session: Option<Session>,
    pub(crate) ip_port: SocketAddr,
    /// Who it was when its application ended: its key pair, its ticket, and its address.
    pub(crate) was: Option<(Identity, Ticket, Address)>,
    /// The address that it has or had, and brings a ticket for.
    pub(crate) wanted: Option<Address>,
    /// How often it has joined.
    pub(crate) joined: u32,
    /// It tries what is not allowed.
    pub(crate) is_insider: bool,
    /// When its session asked to be polled.
    pub(crate) wake_at: Option<Time>,
    /// The group keys that it was told, and when each was sent.
    pub(crate) keys_told: Vec<(GroupKeyNumber, Time)>,
    bindings: u16,
    place: [f64; 2],
    goal: [f64; 2],
    moved: Time,
    wants: BTreeMap<Group, Level>,
    refused: BTreeMap<Group, Time>,
}

impl Participant {
    pub(crate) fn new(number: usize, comtree: Comtree, is_insider: bool) -> Participant {
        let mut participant = Participant {
            number,
            comtree,
            session: None,
            ip_port: SocketAddr::from(([0, 0, 0, 0], 0)),
            was: None,
            wanted: None,
            joined: 0,
            is_insider,
            wake_at: None,
            keys_told: Vec::new(),
            bindings: 0,
            place: [0.0; 2],
            goal: [0.0; 2],
            moved: Time::ZERO,
            wants: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        participant.rebind();
        participant
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.state() == State::Connected)
    }

    /// Its application ends. What it writes down of its session, it may have when it starts again.
    pub(crate) fn end_session(&mut self) {
        // `wanted` is its address by now, or the one that it did not come to ask for.
        if let Some((session, address)) = self.session.take().zip(self.wanted) {
            self.was = Some((session.identity().clone(), session.ticket(), address));
        }
        self.wake_at = None;
    }

    /// Moves to an ip:port that no one ever had.
    pub(crate) fn rebind(&mut self) {
        self.bindings += 1;
        let [high, low] = (self.number as u16).to_be_bytes();
        let ip = [10, high, low, (1 + self.bindings % 200) as u8];
        self.ip_port = SocketAddr::from((ip, 20_000 + self.bindings));
    }

    /// Comes into the world at a random place, wanting nothing yet.
    pub(crate) fn enter(&mut self, now: Time, habits: &Habits, rng: &mut ChaCha8Rng) {
        let side = f64::from(habits.side);
        self.place = [rng.random_range(0.0..side), rng.random_range(0.0..side)];
        self.goal = self.place;
        self.moved = now;
        self.wants.clear();
        self.refused.clear();
    }

    /// Walks on towards a goal, and from there to another.
    pub(crate) fn walk(&mut self, now: Time, habits: &Habits, rng: &mut ChaCha8Rng) {
        let step = habits.speed * now.since(self.moved).as_secs_f64();
        self.moved = now;
        let way = [self.goal[0] - self.place[0], self.goal[1] - self.place[1]];
        let distance = way[0].hypot(way[1]);
        if distance <= step {
            self.place = self.goal;
            let side = f64::from(habits.side);
            self.goal = [rng.random_range(0.0..side), rng.random_range(0.0..side)];
        } else {
            self.place = [0, 1].map(|axis| self.place[axis] + way[axis] * step / distance);
        }
    }

    /// The group of the cell that it is in.
    pub(crate) fn group(&self, habits: &Habits) -> Group {
        let [column, row] = self.cell(habits);
        group_of(column, row, habits)
    }

    /// What it newly wants, at which level, or wants no more, where it is now.
    pub(crate) fn changes(&mut self, now: Time, habits: &Habits) -> Vec<(Group, Option<Level>)> {
        let mut wants = self.wants_here(habits);
        self.refused.retain(|_, again| *again > now);
        wants.retain(|group, _| !self.refused.contains_key(group));
        let gone = self.wants.keys().filter(|group| !wants.contains_key(group));
        let mut changes: Vec<_> = gone.map(|group| (*group, None)).collect();
        let news = wants.iter().filter(|(group, level)| self.wants.get(group) != Some(level));
        changes.extend(news.map(|(group, level)| (*group, Some(*level))));
        self.wants = wants;
        changes
    }

    /// The relay refused a subscription.
    pub(crate) fn give_up(&mut self, now: Time, group: Group) {
        self.wants.remove(&group);
        self.refused.insert(group, now + ASK_AGAIN);
    }

    fn wants_here(&self, habits: &Habits) -> BTreeMap<Group, Level> {
        let [column, row] = self.cell(habits);
        let around = -habits.radius..=habits.radius;
        let cells = around.clone().flat_map(|dx| around.clone().map(move |dy| (dx, dy)));
        cells
            .filter(|(dx, dy)| {
                let inside = 0..i64::from(habits.side);
                inside.contains(&(column + dx)) && inside.contains(&(row + dy))
            })
            .map(|(dx, dy)| {
                let (near, all) = NEAR;
                let level = if dx.abs().max(dy.abs()) <= near { all } else { FAR };
                (group_of(column + dx, row + dy, habits), level)
            })
            .collect()
    }

    fn cell(&self, habits: &Habits) -> [i64; 2] {
        self.place.map(|at| (at as i64).clamp(0, i64::from(habits.side) - 1))
    }
}

fn group_of(column: i64, row: i64, habits: &Habits) -> Group {
    Group::new(1 + (row * i64::from(habits.side) + column) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Stream, stream};

    #[test]
    fn near_cells_are_wanted_at_a_higher_level_and_changes_bring_it_about() {
        let habits = Habits {
            side: 9,
            speed: 1.0,
            radius: 2,
            publish_ms: 1..2,
            burst: 0.0,
            bundle: 0.0,
            echo: 0.0,
            unicast: 0.0,
            longest: 200,
            churn_ms: None,
            insiders: 0.0,
        };
        let mut rng = stream(1, Stream::World);
        let mut participant = Participant::new(3, Comtree(1), false);
        participant.enter(Time::ZERO, &habits, &mut rng);
        let mut wants = BTreeMap::new();
        for second in 0..50 {
            let now = Time::from_millis(1000 * second);
            participant.walk(now, &habits, &mut rng);
            for (group, level) in participant.changes(now, &habits) {
                match level {
                    Some(level) => assert_ne!(wants.insert(group, level), Some(level)),
                    None => assert!(wants.remove(&group).is_some()),
                }
            }
            assert_eq!(wants, participant.wants_here(&habits));
            assert_eq!(wants[&participant.group(&habits)], Level(3));
        }
    }
}
