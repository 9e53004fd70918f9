//! What links that are proposed cost a controller of 1,000 relays, which measure each other on a plane.
//! `cargo test --release -p canopy-control --test simulation scale_of_a_thousand -- --ignored
//! --nocapture` says how long the longest call into the controller takes, during which it does nothing
//! else, and what share of a core all calls take in the last minute.

use canopy_control::signal::{Measured, Reading};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, ItemKey, LinkReport, Name, NewRelay, Origin, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::BTreeMap;

const RELAYS: u16 = 1_000;
/// Each relay beats once in so many seconds: beats are not what is measured.
const BEAT: usize = 10;
/// Links are exchanged a few at a time. With few for each relay, most are exchanged by then.
const PLANS: [(usize, usize); 2] = [(3, 30), (16, 8)];
/// The plane is so wide, microseconds one way.
const WIDE: f64 = 100_000.0;

struct Many {
    controller: Controller,
    storage: MemoryStorage,
    relays: Vec<(RelayId, RelaySide)>,
    now: Time,
    /// How long each kind of call took, at most and in all.
    took: BTreeMap<&'static str, (Duration, Duration)>,
}

/// How far two relays are from each other, microseconds one way.
fn far(one: RelayId, other: RelayId) -> u32 {
    let place =
        |of: RelayId| [0.618_034, 0.754_878].map(|step| (f64::from(of.0) * step).fract() * WIDE);
    let [one, other] = [place(one), place(other)];
    ((one[0] - other[0]).hypot(one[1] - other[1]) + 100.0) as u32
}

impl Many {
    fn new(degree: usize) -> Many {
        let mut storage = MemoryStorage::default();
        let long = Duration::from_secs(86_400);
        let of = Settings::default();
        let settings = Settings { degree, silence: long, suspicion: long, lease: long, ..of };
        let now = Time::from_millis(1_000);
        let controller = Controller::start(settings, Retry::default(), now, &mut storage).unwrap();
        let (relays, took) = (Vec::new(), BTreeMap::new());
        let mut many = Many { controller, storage, relays, now, took };
        let rate = Rate { bits: 1e10, packets: 1e7 };
        for number in 0..RELAYS {
            let new = NewRelay {
                name: Name::new(&format!("r{number}")).unwrap(),
                key: core::array::from_fn(|at| number.to_be_bytes()[at % 2]),
                native: ([10, 0, 0, 1], 7000 + number).into(),
                uplink: Limits { send: rate, receive: rate },
                places: 100,
                comtrees: 1024,
            };
            let id = many.call("register", |of, now| of.register(now, new).unwrap());
            many.relays.push((id, RelaySide::new(1)));
        }
        many
    }

    #[allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a measurement needs a clock"
    )]
    fn call<T>(&mut self, what: &'static str, of: impl FnOnce(&mut Controller, Time) -> T) -> T {
        let start = std::time::Instant::now();
        let result = of(&mut self.controller, self.now);
        let took = start.elapsed();
        let (most, all) = self.took.entry(what).or_default();
        (*most, *all) = ((*most).max(took), *all + took);
        result
    }

    fn second(&mut self, second: usize) {
        for _ in 0..4 {
            self.now = self.now + Duration::from_millis(250);
            self.call("time", Controller::handle_timeout);
            self.exchange();
        }
        for at in (0..self.relays.len()).filter(|at| at % BEAT == second % BEAT) {
            self.report(at);
            self.relays[at].1.handle_timeout(self.now);
            self.work(at);
            self.exchange();
        }
        while self.controller.poll_event().is_some() {}
    }

    fn exchange(&mut self) {
        while let Some(batch) = self.controller.poll_commit(self.now) {
            let result = self.storage.commit(&batch);
            self.controller.handle_commit(self.now, result).unwrap();
        }
        while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
            let at = usize::from(to.0) - 1;
            self.relays[at].1.handle_message(&bytes);
            self.work(at);
        }
    }

    /// A relay does what it is told.
    fn work(&mut self, at: usize) {
        let (id, side) = &mut self.relays[at];
        let id = *id;
        if let Some(asked) = side.poll_measure() {
            let (controller, round) = (asked.controller, asked.round);
            let read = |relay| Reading { relay, delay_us: far(id, relay), asked: 4, answered: 4 };
            let readings = asked.others.iter().map(|other| read(other.relay)).collect();
            side.measured(Measured { controller, round, readings });
        }
        while let Some(applying) = side.poll_apply() {
            side.applied(applying, Ok(()));
        }
        while let Some(bytes) = self.relays[at].1.poll_transmit() {
            self.call("message", |of, now| of.handle_message(now, id, &bytes));
        }
    }

    /// All links of a relay work.
    fn report(&mut self, at: usize) {
        let side = &mut self.relays[at].1;
        let links: Vec<_> = side.items().keys().copied().collect();
        for key in links {
            let ItemKey::Link(link) = key else { continue };
            let Some(ends) = self.controller.link(link).map(|link| link.ends) else { continue };
            let delay_us = far(ends[0], ends[1]);
            side.set_link(self.now, LinkReport { link, up: true, delay_us });
        }
    }
}

#[test]
#[ignore = "a measurement, of a release build"]
fn scale_of_a_thousand_relays_that_measure() {
    for (degree, minutes) in PLANS {
        let mut many = Many::new(degree);
        for minute in 0..minutes {
            (0..60).for_each(|second| many.second(minute * 60 + second));
            if minute + 1 < minutes {
                many.took.values_mut().for_each(|(_, all)| *all = Duration::ZERO);
            }
        }
        for (what, (most, all)) in &many.took {
            println!(
                "degree {degree}, {what}: {:.1} ms at most, {:.1} % of a core",
                most.as_secs_f64() * 1e3,
                all.as_secs_f64() / 0.6,
            );
        }
        let is_unmeasured = |of: &Origin| *of == Origin::Unmeasured;
        let origins = || many.controller.links().map(|(link, _)| link.origin);
        let (all, unmeasured) = (origins().count(), origins().filter(is_unmeasured).count());
        println!("degree {degree}: {all} links, {unmeasured} of them from before measuring");
        assert!(degree > 3 || unmeasured < all / 2, "links follow what is measured");
    }
}
