//! A member is kept in its world while relays drain and die and the controller comes and goes, by seed. Beside it
//! stands what it must have heard: each update once and in order, but for those around the death of its relay.

use super::*;
use crate::ask::RelayPlace;
use crate::member::MemberConfig;
use crate::member::tests::{COMTREE, Script, World, config};
use crate::relays::Relays;
use crate::{Outgoing, RelayKey};
use canopy_wire::{Address, Group, Level, Weight};
use std::collections::{BTreeMap, BTreeSet};

const RELAYS: usize = 3;
const STEP: Duration = Duration::from_millis(25);
const LEASE: Duration = Duration::from_secs(6);
/// Whose relay is lost is at another within this.
const REPLACED: Duration = Duration::from_secs(2);
/// The controller has given up a relay of which it hears nothing after this.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// What was on its way to or from a relay that died may be lost.
const MARGIN: Duration = Duration::from_millis(500);
/// By how much later than others a relay brings updates, at most.
const LATEST: Duration = Duration::from_millis(300);

fn millis(chance: &mut Chance, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + chance.below(to - from))
}

/// What can be wrong with a run.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Missing,
    TwiceOrDisordered,
    NotReplaced,
    PlacesLeft,
    /// A place is given back at whose relay the member is.
    WrongPlace,
    Lost,
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    None,
    /// A relay leaves out an update now and then.
    Omits,
    /// What the next relay brings has other numbers: the two are not seen to be the same.
    Renumbers,
    /// The controller's answers never come once a relay has died.
    Silent,
    /// A place that is given back stays.
    KeepsPlaces,
    /// The other place is given back than the one that is named.
    TakesTheOther,
}

struct Controller {
    is_away: bool,
    drains: Option<usize>,
    /// The relays of the places that the member has, by address; the last is the one to renew.
    places: Vec<(String, usize)>,
    given: u32,
    refuses: bool,
}

struct Sim {
    seed: u64,
    sabotage: Sabotage,
    chance: Chance,
    world: World,
    keeper: Keeper,
    controller: Controller,
    /// The answer that is on its way.
    answer: Option<(Time, Answer)>,
    is_dead: [bool; RELAYS],
    /// When the last one vanished that nobody said anything of.
    vanished: Option<(usize, Time)>,
    late: [Duration; RELAYS],
    /// What relays are yet to bring: when, which relay, which number.
    on_its_way: BTreeSet<(Time, usize, u16)>,
    sent: BTreeMap<u16, Time>,
    taken: Vec<u16>,
    /// Until when what is published may be lost, and since when.
    excused: Vec<(Time, Time)>,
    /// Since when the member's relay is dead and the controller would name another.
    waits_since: Option<Time>,
    faults: BTreeSet<Fault>,
    moves: u32,
    deaths: u32,
}

fn relay_place(world: &World, relay: usize) -> RelayPlace {
    let script = &world.relays[relay];
    let key = RelayKey::new(*script.sessions.identity().public());
    RelayPlace { name: format!("r{relay}"), address: script.address(), key }
}

fn place(world: &World, relay: usize, address: &str, drains: bool) -> Place {
    Place {
        relay: relay_place(world, relay),
        second: None,
        token: String::new(),
        comtrees: vec![COMTREE],
        address: address.to_owned(),
        channels: Vec::new(),
        areas: false,
        drains,
        lease: LEASE,
    }
}

impl Sim {
    fn new(seed: u64, sabotage: Sabotage) -> Sim {
        let mut chance = Chance::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = World::new(vec![Script::new()]);
        for site in 2..=RELAYS as u16 {
            world.relays.push(Script::at(site));
        }
        let known = Relays::new([world.relays[0].address()]).unwrap();
        let relay_key = Some(*world.relays[0].sessions.identity().public());
        let config = MemberConfig { is_kept: true, relay_key, ..config() };
        world.member = Member::open(world.now, known, &config).unwrap();
        world.settle();
        drop(world.member.wish([(Group::new(7), Some((Level(0), Weight::ONE)))]));
        world.settle();
        world.events();
        let first = place(&world, 0, "a0", false);
        let keeper =
            Keeper::new(world.now, first, Vec::new(), chance.below(2) == 0, chance.clone());
        let places = vec![("a0".to_owned(), 0)];
        let late = [(); RELAYS].map(|()| millis(&mut chance, 0, LATEST.as_millis() as u64));
        Sim {
            seed,
            sabotage,
            chance,
            world,
            keeper,
            controller: Controller {
                is_away: false,
                drains: None,
                places,
                given: 0,
                refuses: false,
            },
            answer: None,
            is_dead: [false; RELAYS],
            vanished: None,
            late,
            on_its_way: BTreeSet::new(),
            sent: BTreeMap::new(),
            taken: Vec::new(),
            excused: Vec::new(),
            waits_since: None,
            faults: BTreeSet::new(),
            moves: 0,
            deaths: 0,
        }
    }

    fn serves(&self, relay: usize) -> bool {
        !self.is_dead[relay] && self.controller.drains != Some(relay)
    }

    /// A place at another relay, or the one that there is.
    fn renewed(&mut self, may_move: bool) -> Place {
        let (address, at) = self.controller.places.last().cloned().unwrap();
        let drains = self.controller.drains == Some(at);
        let is_missed = |(relay, when)| relay == at && self.world.now < when + GIVEN_UP;
        let is_given_up = self.is_dead[at] && !self.vanished.is_some_and(is_missed);
        let moves = may_move && drains && self.controller.places.len() == 1;
        if !is_given_up && !moves {
            return place(&self.world, at, &address, drains);
        }
        let Some(to) = (0..RELAYS).find(|relay| self.serves(*relay)) else {
            return place(&self.world, at, &address, drains);
        };
        if is_given_up {
            self.controller.places.pop();
        }
        self.controller.given += 1;
        let address = format!("a{}", self.controller.given);
        self.controller.places.push((address.clone(), to));
        place(&self.world, to, &address, false)
    }

    fn asked(&mut self, question: Question) -> Answer {
        let away = || JoinError::Controller { controller: "c".into(), why: "away".into() };
        let is_silent = self.sabotage == Sabotage::Silent && self.deaths > 0;
        let is_away = self.controller.is_away || is_silent;
        if self.controller.refuses && matches!(question, Question::Relocate(_)) {
            let [what, place, remedy] = ["full", "relay", "wait"].map(String::from);
            let why = Refusal { what, place, remedy, asked: None, free: None };
            return Answer::Relocated(Err(JoinError::Refused(why)));
        }
        match question {
            Question::Renew(_) if is_away => Answer::Renewed(Err(away())),
            Question::Relocate(_) if is_away => Answer::Relocated(Err(away())),
            Question::Renew(_) => Answer::Renewed(Ok(self.renewed(false))),
            Question::Relocate(_) => Answer::Relocated(Ok(self.renewed(true))),
            Question::Measure(own) => {
                let near = Nearness { relay: own.name, delay_us: 5 };
                Answer::Measured((!is_away).then(|| vec![near]))
            }
            Question::GiveBack(address) => {
                // A lease that nobody prolongs ends by itself; here it does at once.
                if self.sabotage != Sabotage::KeepsPlaces {
                    self.give_back(&address);
                }
                Answer::Done
            }
            Question::Leave => {
                if self.sabotage != Sabotage::KeepsPlaces {
                    self.controller.places.clear();
                }
                Answer::Left
            }
        }
    }

    fn give_back(&mut self, named: &str) {
        let places = &mut self.controller.places;
        let takes_other = self.sabotage == Sabotage::TakesTheOther && places.len() > 1;
        let Some(at) = places.iter().position(|(of, _)| (of != named) == takes_other) else {
            return;
        };
        let (_, relay) = places.remove(at);
        if self.world.relays[relay].address() == self.world.member.relay() {
            self.faults.insert(Fault::WrongPlace);
        }
    }

    /// Something fails, or is mended.
    fn happen(&mut self) {
        let now = self.world.now;
        let relay = self.chance.below(RELAYS as u64) as usize;
        match self.chance.below(6) {
            0 | 1 if self.controller.drains.is_none() => self.controller.drains = Some(relay),
            0 | 1 => self.controller.drains = None,
            2 => self.controller.is_away = !self.controller.is_away,
            3 => self.controller.refuses = !self.controller.refuses,
            _ if self.is_dead.contains(&true) => {
                let back = self.is_dead.iter().position(|dead| *dead).unwrap();
                let site = self.world.relays[back].site;
                self.world.relays[back] = Script::at(site);
                self.is_dead[back] = false;
            }
            4 => {
                // Its cable is cut: nobody says anything of it.
                self.note_death(relay);
                self.world.relays[relay].silent = true;
                self.vanished = Some((relay, now));
            }
            _ => {
                // Its port is closed: its host says so to whoever sends something there.
                self.note_death(relay);
                let site = self.world.relays[relay].site;
                self.world.relays[relay] = Script::at(site);
                self.world.relays[relay].silent = true;
            }
        }
    }

    fn note_death(&mut self, relay: usize) {
        let now = self.world.now;
        self.is_dead[relay] = true;
        // Where the member is, or is going to be.
        if self.world.member.relay() == self.world.relays[relay].address()
            || self.controller.places.iter().any(|(_, at)| *at == relay)
        {
            self.deaths += 1;
            self.excused.push((before(now, MARGIN + LATEST), now + MARGIN));
            self.waits_since = Some(now);
        }
    }

    fn step(&mut self, number: u16) {
        let now = self.world.now;
        self.sent.insert(number, now);
        for (relay, late) in self.late.into_iter().enumerate() {
            self.on_its_way.insert((now + late, relay, number));
        }
        while let Some((at, relay, number)) = self.on_its_way.first().copied() {
            if at > now {
                break;
            }
            self.on_its_way.pop_first();
            let to = &mut self.world.relays[relay];
            let is_omitted = self.sabotage == Sabotage::Omits && number % 97 == 0;
            if to.subscribed && !to.has_left && !self.is_dead[relay] && !is_omitted {
                let is_other = self.sabotage == Sabotage::Renumbers && relay > 0;
                let series = if is_other { number.wrapping_add(3) } else { number };
                to.publish_from(Address::unicast(9, 9), series, &[&number.to_be_bytes()]);
            }
        }
        // Who sends hears soon that nothing listens.
        let _ = self
            .world
            .member
            .publish(self.world.now, &Outgoing::new(Group::new(7), Level(0), b"here"));
        self.world.settle();
        self.ask();
        self.hear();
        self.look();
        self.world.now = now + STEP;
    }

    fn ask(&mut self) {
        let now = self.world.now;
        if self.answer.as_ref().is_some_and(|(at, _)| *at <= now)
            && let Some((_, answer)) = self.answer.take()
        {
            self.keeper.handle_answer(now, &mut self.world.member, answer);
        }
        while let Some(question) = self.keeper.turn(now, &mut self.world.member) {
            assert!(self.answer.is_none() || question == Question::Leave, "one at a time");
            let answer = self.asked(question);
            self.answer = Some((now + millis(&mut self.chance, 5, 200), answer));
        }
    }

    fn hear(&mut self) {
        for event in self.world.events() {
            match event {
                Event::Moved { .. } => self.moves += 1,
                Event::Lost if !self.is_excused(self.world.now) => {
                    self.faults.insert(Fault::Lost);
                }
                _ => {}
            }
        }
        while let Some(update) = self.world.member.inbox().next_update() {
            let number = u16::from_be_bytes(update.payload[..].try_into().unwrap());
            // A relay that is gone to after a loss may be behind the one that was lost.
            let is_again = self.taken.last().is_some_and(|last| *last >= number);
            if is_again && !self.is_excused(self.sent[&number]) {
                self.faults.insert(Fault::TwiceOrDisordered);
            }
            self.taken.push(number);
        }
    }

    fn is_excused(&self, at: Time) -> bool {
        self.excused.iter().any(|(from, to)| (*from..=*to).contains(&at))
    }

    /// Whether whoever has lost its relay is at another in time.
    fn look(&mut self) {
        let now = self.world.now;
        let Some(since) = self.waits_since else { return };
        if let Some(last) = self.excused.last_mut() {
            last.1 = now + MARGIN + LATEST;
        }
        let current = self.world.member.relay();
        let serves = (0..RELAYS)
            .any(|relay| !self.is_dead[relay] && self.world.relays[relay].address() == current);
        if serves && self.world.member.participant().is_some() {
            self.waits_since = None;
        } else if self.controller.is_away {
            // It waits for the controller.
            self.waits_since = Some(now);
        } else if now.since(since) > REPLACED {
            self.faults.insert(Fault::NotReplaced);
        }
    }

    fn run(mut self) -> (BTreeSet<Fault>, u32, u32) {
        let mut next = self.world.now + Duration::from_secs(1);
        for number in 0..2400 {
            if self.world.now >= next {
                self.happen();
                next = self.world.now + millis(&mut self.chance, 1000, 9000);
            }
            self.step(number);
        }
        let end = self.world.now;
        self.find_missing(before(end, LATEST + MARGIN));
        self.controller.is_away = false;
        self.world.member.leave(self.world.now);
        for _ in 0..80 {
            self.world.now = self.world.now + STEP;
            self.world.settle();
            if self.world.member.turn(self.world.now).is_none() {
                self.world.member.end();
            }
            self.ask();
        }
        if !self.controller.places.is_empty() {
            self.faults.insert(Fault::PlacesLeft);
        }
        (self.faults, self.moves, self.deaths)
    }

    fn find_missing(&mut self, until: Time) {
        let taken: BTreeSet<u16> = self.taken.iter().copied().collect();
        for (number, at) in &self.sent {
            if !taken.contains(number) && !self.is_excused(*at) && *at < until {
                println!("seed {}: {number} of {at:?} is missing", self.seed);
                self.faults.insert(Fault::Missing);
                return;
            }
        }
    }
}

fn before(time: Time, span: Duration) -> Time {
    Time::ZERO + time.since(Time::ZERO).saturating_sub(span)
}

#[test]
fn seeds_of_drains_and_deaths_keep_a_member_in_its_world() {
    let (mut moves, mut deaths) = (0, 0);
    for seed in 1..=40 {
        let (faults, moved, died) = Sim::new(seed, Sabotage::None).run();
        assert!(faults.is_empty(), "seed {seed}: {faults:?}");
        moves += moved;
        deaths += died;
    }
    assert!(moves > 20 && deaths > 10, "{moves} moves, {deaths} deaths");
}

#[test]
fn who_is_refused_for_good_asks_ever_more_seldom() {
    let mut sim = Sim::new(1, Sabotage::None);
    let site = sim.world.relays[0].site;
    sim.world.relays[0] = Script::at(site);
    sim.world.relays[0].silent = true;
    let (start, mut asked) = (sim.world.now, Vec::new());
    while sim.world.now.since(start) < Duration::from_secs(60) {
        let _ = sim
            .world
            .member
            .publish(sim.world.now, &Outgoing::new(Group::new(7), Level(0), b"here"));
        sim.world.settle();
        let now = sim.world.now;
        if let Some(question) = sim.keeper.turn(now, &mut sim.world.member) {
            assert!(matches!(question, Question::Renew(_)), "{question:?}");
            let [place, remedy] = ["world", "ask"].map(String::from);
            // What is left of it is said each time, and is no news.
            let what = format!("barred for {} s", 60 - now.since(start).as_secs());
            let why = Refusal { what, place, remedy, asked: None, free: None };
            let answer = Answer::Renewed(Err(JoinError::Refused(why)));
            sim.keeper.handle_answer(now, &mut sim.world.member, answer);
            asked.push(now.since(start));
        }
        sim.world.now = now + STEP;
    }
    let soon = asked.iter().filter(|at| **at < asked[0] + Duration::from_secs(2)).count();
    assert!(soon >= 3 && (12..30).contains(&asked.len()), "{asked:?}");
    let told = |event: &Event| matches!(event, Event::NotLetIn(_));
    assert_eq!(sim.world.events().iter().filter(|event| told(event)).count(), 1);
}

/// A relay that pauses is there again, and whoever stays is spared the way to another one and back.
#[test]
fn who_hears_nothing_asks_ever_more_seldom_and_stays_if_the_controller_says_so() {
    let mut sim = Sim::new(1, Sabotage::None);
    let (relay, start, mut asked) = (sim.world.member.relay(), sim.world.now, Vec::new());
    sim.world.relays[0].silent = true;
    while sim.world.now.since(start) < Duration::from_secs(5) {
        sim.world.settle();
        let now = sim.world.now;
        if let Some(question) = sim.keeper.turn(now, &mut sim.world.member) {
            assert!(matches!(question, Question::Renew(_)), "{question:?}");
            let answer = sim.asked(question);
            sim.keeper.handle_answer(now, &mut sim.world.member, answer);
            asked.push(now.since(start));
        }
        sim.world.now = now + STEP;
    }
    assert!((4..=6).contains(&asked.len()), "{asked:?}");
    assert!(asked[0] < Duration::from_millis(1_200), "{asked:?}");
    sim.world.relays[0].silent = false;
    for _ in 0..80 {
        sim.world.settle();
        sim.ask();
        sim.world.now = sim.world.now + STEP;
    }
    assert_eq!(sim.world.events(), []);
    assert!(sim.world.member.participant().is_some() && !sim.world.member.is_silent());
    assert_eq!((sim.world.member.relay(), sim.moves), (relay, 0));
}

#[test]
fn who_leaves_waits_two_seconds_at_most_for_its_place_to_be_taken_back() {
    for answers in [true, false] {
        let mut sim = Sim::new(1, Sabotage::None);
        sim.world.member.leave(sim.world.now);
        sim.world.settle();
        sim.world.member.end();
        let left = sim.world.now;
        assert_eq!(sim.keeper.turn(left, &mut sim.world.member), Some(Question::Leave));
        assert_eq!(sim.keeper.due(left, &sim.world.member), Some(left + LEAVE_LIMIT));
        if answers {
            // That is to an earlier question.
            sim.keeper.handle_answer(left, &mut sim.world.member, Answer::Done);
            assert!(!sim.keeper.is_over());
            sim.keeper.handle_answer(left, &mut sim.world.member, Answer::Left);
        } else {
            let soon = before(left + LEAVE_LIMIT, STEP);
            assert_eq!(sim.keeper.turn(soon, &mut sim.world.member), None);
            assert!(!sim.keeper.is_over());
            assert_eq!(sim.keeper.turn(left + LEAVE_LIMIT, &mut sim.world.member), None);
        }
        assert!(sim.keeper.is_over());
        assert_eq!(sim.keeper.due(left, &sim.world.member), None);
    }
}

#[test]
fn what_is_broken_on_purpose_is_seen() {
    for (sabotage, expected) in [
        (Sabotage::Omits, Fault::Missing),
        (Sabotage::Renumbers, Fault::TwiceOrDisordered),
        (Sabotage::Silent, Fault::NotReplaced),
        (Sabotage::KeepsPlaces, Fault::PlacesLeft),
        (Sabotage::TakesTheOther, Fault::WrongPlace),
    ] {
        let is_seen = (1..=6).any(|seed| Sim::new(seed, sabotage).run().0.contains(&expected));
        assert!(is_seen, "{sabotage:?}");
    }
}
