//! What a controller of the size that is promised costs: 100,000 endpoints in 10,000 worlds, on
//! sixteen relays. `cargo test --release -p canopy-control --test simulation scale -- --ignored
//! --nocapture` says how many join a second on one core, with all messages to relays and all commits
//! (to a store in memory), and how much memory that takes.

use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, Core, Downlink, Enter, Event, Mode, Name, NewRelay, NewWorld, RelayId, RelaySide,
    Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use core::time::Duration;

const RELAYS: u16 = 16;
const WORLDS: usize = 10_000;
const ENDPOINTS: usize = 100_000;
/// Endpoints that ask between two looks at the network.
const TOGETHER: usize = 50;

struct Large {
    controller: Controller,
    storage: MemoryStorage,
    relays: Vec<(RelayId, RelaySide)>,
    now: Time,
    admitted: usize,
}

fn rate(bits: f64) -> Rate {
    Rate { bits, packets: bits / 1000.0 }
}

impl Large {
    fn new() -> Large {
        let mut storage = MemoryStorage::default();
        let settings = Settings { lease: Duration::from_secs(3600), ..Settings::default() };
        let now = Time::ZERO;
        let mut controller =
            Controller::start(settings, Retry::default(), now, &mut storage).unwrap();
        let relays: Vec<_> = (0..RELAYS)
            .map(|number| {
                let new = NewRelay {
                    name: Name::new(&format!("r{number}")).unwrap(),
                    key: [number as u8; 32],
                    native: ([10, 0, 0, 1], 7000 + number).into(),
                    uplink: Limits { send: rate(1e11), receive: rate(1e11) },
                    places: 20_000,
                };
                (controller.register(now, new).unwrap(), RelaySide::new(1))
            })
            .collect();
        for (at, (relay, _)) in relays.iter().enumerate() {
            for step in [1, 5] {
                let other = relays[(at + step) % relays.len()].0;
                controller.add_link([*relay, other], rate(4e10), 3000).unwrap();
            }
        }
        for number in 0..WORLDS {
            let new = NewWorld {
                name: Name::new(&format!("w{number}")).unwrap(),
                comtrees: 1,
                channels: Vec::new(),
                levels: 2,
                mode: Mode::Immediate,
                downlink: Downlink::Member,
                default: Limits { send: rate(50_000.0), receive: rate(500_000.0) },
                core: Core::Center,
            };
            controller.create_world(new).unwrap();
        }
        let mut large = Large { controller, storage, relays, now, admitted: 0 };
        large.exchange();
        large
    }

    /// Commits, and carries messages, until nobody has anything to say.
    fn exchange(&mut self) {
        self.now = self.now + Duration::from_millis(10);
        loop {
            let mut is_idle = true;
            while let Some(batch) = self.controller.poll_commit(self.now) {
                let result = self.storage.commit(&batch);
                self.controller.handle_commit(self.now, result).unwrap();
                is_idle = false;
            }
            while let Some((relay, bytes)) = self.controller.poll_transmit(self.now) {
                self.relays[usize::from(relay.0) - 1].1.handle_message(&bytes);
                is_idle = false;
            }
            for (relay, side) in &mut self.relays {
                side.handle_timeout(self.now);
                while let Some(applying) = side.poll_apply() {
                    side.applied(applying, Ok(()));
                }
                while let Some(bytes) = side.poll_transmit() {
                    self.controller.handle_message(self.now, *relay, &bytes);
                    is_idle = false;
                }
            }
            while let Some(event) = self.controller.poll_event() {
                self.admitted += usize::from(matches!(event, Event::Admitted { .. }));
            }
            if is_idle {
                return;
            }
        }
    }

    fn enter(&mut self, number: usize) {
        let mut owner = [0; 16];
        owner[..8].copy_from_slice(&number.to_be_bytes());
        let world = Name::new(&format!("w{}", number % WORLDS)).unwrap();
        // From somewhere between two relays, whatever the world.
        let near = number * 7919 / 13 % usize::from(RELAYS);
        let measured =
            (0..3).map(|at| (RelayId((near + at) as u16 % RELAYS + 1), 1000 * at as u32));
        let ask = Enter::new(world, owner, measured.collect());
        self.controller.enter(self.now, &ask).unwrap();
    }
}

#[allow(clippy::disallowed_methods, reason = "a measurement asks the system")]
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

#[test]
#[ignore = "a measurement, of a release build"]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement needs a clock"
)]
fn scale_of_a_hundred_thousand_endpoints() {
    let mut large = Large::new();
    let before = resident_mib();
    let start = std::time::Instant::now();
    for number in 0..ENDPOINTS {
        large.enter(number);
        if number % TOGETHER == TOGETHER - 1 {
            large.exchange();
        }
    }
    large.exchange();
    let took = start.elapsed().as_secs_f64();
    assert_eq!(large.admitted, ENDPOINTS, "all are let in");
    println!("joins a second: {:.0}", ENDPOINTS as f64 / took);
    println!("resident, with store and relays: {} MiB ({before} MiB before)", resident_mib());
    let Large { relays, storage, controller, .. } = large;
    drop(relays);
    println!("members: {}", controller.members().count());
    drop(controller);
    let start = std::time::Instant::now();
    let mut storage = storage;
    let again =
        Controller::start(Settings::default(), Retry::default(), Time::ZERO, &mut storage).unwrap();
    println!("started again in {:.2} s", start.elapsed().as_secs_f64());
    assert_eq!(again.members().count(), ENDPOINTS);
}
