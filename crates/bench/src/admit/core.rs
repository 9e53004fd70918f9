//! The part of the controller that decides, with a store in memory. This thread plays the relays, too.

use super::{
    AdmitBench, AdmitRow, At, BITS_OF_PACKET, DOWN_BITS, LINK_BITS, LINKS_TO, MEMORY_ALLOWED,
    PLACES, UP_BITS, UPLINK_BITS, near, relay_name, relays, settings, world,
};
use crate::footprint::resident_bytes;
use anyhow::ensure;
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    COMTREES_OF_RELAY, Controller, Core, Downlink, Enter, Event, Mode, Name, NewRelay, NewWorld,
    RelayId, RelaySide, Retry,
};
use canopy_net::thread_cpu_time;
use canopy_output::print_note;
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use std::time::{Duration, Instant};

/// Participants that ask between two looks at the network.
const TOGETHER: u32 = 50;

struct Deciding {
    controller: Controller,
    storage: MemoryStorage,
    relays: Vec<(RelayId, RelaySide)>,
    now: Time,
    admitted: u32,
}

pub(super) fn measure(bench: &AdmitBench) -> anyhow::Result<AdmitRow> {
    let AdmitBench { endpoints, worlds, .. } = *bench;
    print_note(format_args!("core: {endpoints} participants in {worlds} worlds"));
    let before = resident_bytes(std::process::id())?;
    let mut deciding = Deciding::new(worlds)?;
    let (begun, cpu) = (Instant::now(), thread_cpu_time());
    for number in 0..endpoints {
        deciding.enter(number, worlds)?;
        if number % TOGETHER == TOGETHER - 1 {
            deciding.exchange()?;
        }
    }
    deciding.exchange()?;
    let (took, cpu) = (begun.elapsed(), thread_cpu_time() - cpu);
    let memory_bytes = resident_bytes(std::process::id())?.saturating_sub(before);
    let admitted = deciding.admitted;
    ensure!(admitted == endpoints, "{admitted} of {endpoints} participants were admitted");
    let Deciding { mut storage, controller, relays, now, .. } = deciding;
    drop((controller, relays));
    let begun = Instant::now();
    let again = Controller::start(settings(), Retry::default(), now, &mut storage)?;
    let started_again_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(AdmitRow {
        at: At::Core,
        endpoints,
        worlds,
        relays: super::relays(worlds),
        joins_per_second: f64::from(endpoints) / took.as_secs_f64(),
        joins_per_core_second: f64::from(endpoints) / cpu.as_secs_f64(),
        join_p50_ms: None,
        join_p99_ms: None,
        renewals_per_core_second: None,
        leaves_per_core_second: None,
        asked_again: 0,
        memory_bytes,
        memory_allowed_bytes: MEMORY_ALLOWED,
        started_again_ms,
        lost: endpoints - again.members().count() as u32,
    })
}

impl Deciding {
    fn new(worlds: u32) -> anyhow::Result<Deciding> {
        let mut storage = MemoryStorage::default();
        let now = Time::ZERO;
        let controller = Controller::start(settings(), Retry::default(), now, &mut storage)?;
        let mut deciding = Deciding { controller, storage, relays: Vec::new(), now, admitted: 0 };
        deciding.register(relays(worlds))?;
        for number in 0..worlds {
            let new = NewWorld {
                name: Name::new(&world(number))?,
                comtrees: 1,
                channels: Vec::new(),
                levels: 2,
                mode: Mode::Immediate,
                downlink: Downlink::Member,
                default: Limits { send: rate(UP_BITS), receive: rate(DOWN_BITS) },
                core: Core::Center,
                sharing: canopy_control::Sharing::default(),
            };
            deciding.controller.create_world(new)?;
        }
        deciding.exchange()?;
        Ok(deciding)
    }

    fn register(&mut self, relays: u16) -> anyhow::Result<()> {
        for number in 0..relays {
            let new = NewRelay {
                name: Name::new(&relay_name(number))?,
                key: [number as u8; 32],
                native: ([10, 0, 0, 1], 7000 + number).into(),
                uplink: Limits { send: rate(UPLINK_BITS), receive: rate(UPLINK_BITS) },
                places: PLACES,
                comtrees: COMTREES_OF_RELAY,
            };
            let id = self.controller.register(self.now, new)?;
            self.relays.push((id, RelaySide::new(1)));
        }
        for (at, (relay, _)) in self.relays.iter().enumerate() {
            for step in LINKS_TO {
                let other = self.relays[(at + usize::from(step)) % self.relays.len()].0;
                self.controller.add_link([*relay, other], rate(LINK_BITS), 3000)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, number: u32, worlds: u32) -> anyhow::Result<()> {
        let mut owner = [0; 16];
        owner[..4].copy_from_slice(&number.to_be_bytes());
        let measured = near(number, worlds);
        let measured = measured.map(|(at, delay)| (self.relays[usize::from(at)].0, delay));
        let ask = Enter::new(Name::new(&world(number % worlds))?, owner, measured.collect());
        self.controller.enter(self.now, &ask)?;
        Ok(())
    }

    /// Commits, and carries messages, until nobody has anything to say.
    fn exchange(&mut self) -> anyhow::Result<()> {
        self.now = self.now + Duration::from_millis(10);
        loop {
            let mut is_idle = true;
            while let Some(batch) = self.controller.poll_commit(self.now) {
                let result = self.storage.commit(&batch);
                self.controller.handle_commit(self.now, result)?;
                is_idle = false;
            }
            while let Some((relay, bytes)) = self.controller.poll_transmit(self.now) {
                let side = self.relays.iter_mut().find(|(id, _)| *id == relay);
                side.into_iter().for_each(|(_, side)| side.handle_message(&bytes));
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
                self.admitted += u32::from(matches!(event, Event::Admitted { .. }));
            }
            if is_idle {
                return Ok(());
            }
        }
    }
}

fn rate(bits: u64) -> Rate {
    Rate { bits: bits as f64, packets: (bits / BITS_OF_PACKET) as f64 }
}
