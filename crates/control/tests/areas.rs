//! Areas of a world as the controller keeps them: stored, told once they are, and gone with the world.

use canopy_areas::{AreasError, Ground, Phase, Rect, Report, Ring};
use canopy_control::storage::{MemoryStorage, Storage, Table};
use canopy_control::{
    Channel, Controller, Core, Downlink, Enter, Event, Mode, Name, NewAreas, NewRelay, NewWorld,
    Refusal, RelayId, RelaySide, Retry, Settings, WorldChanges, WorldId,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use core::time::Duration;

struct Bed {
    controller: Controller,
    storage: MemoryStorage,
    now: Time,
    world: WorldId,
    /// The only relay, which answers at once.
    relay: (RelayId, RelaySide),
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn new(size: f64, channel: &str, level: u8) -> NewAreas {
    let over = Rect { from: [0.0, 0.0], to: [100.0, 100.0] };
    let rings = vec![Ring { radius: 9.0, level }];
    NewAreas { ground: Ground::Grid { size, over }, channel: name(channel), rings, rules: None }
}

fn start(storage: &mut MemoryStorage, now: Time) -> Controller {
    Controller::start(Settings::default(), Retry::default(), now, storage).unwrap()
}

impl Bed {
    fn new() -> Bed {
        let (mut storage, now) = (MemoryStorage::default(), Time::from_millis(1000));
        let mut controller = start(&mut storage, now);
        let rate = Rate { bits: 1e6, packets: 1e6 };
        let most = Limits { send: rate, receive: rate };
        let native = ([127, 0, 0, 1], 7000).into();
        let relay = NewRelay {
            name: name("r"),
            key: [1; 32],
            native,
            uplink: most,
            places: 9,
            comtrees: 9,
        };
        let relay = controller.register(now, relay).unwrap();
        let little = Rate { bits: 1e3, packets: 1e3 };
        let limits = Limits { send: little, receive: little };
        let world = NewWorld {
            name: name("w"),
            comtrees: 1,
            channels: vec![Channel { name: name("ground"), first: 100, groups: 8 }],
            levels: 1,
            mode: Mode::Immediate,
            downlink: Downlink::None,
            default: limits,
            core: Core::Center,
            sharing: canopy_control::Sharing::default(),
        };
        let world = controller.create_world(world).unwrap();
        let enter = Enter::new(name("w"), [7; 16], vec![(relay, 1)]);
        let mut bed = Bed { controller, storage, now, world, relay: (relay, RelaySide::new(1)) };
        bed.pass(1);
        bed.controller.enter(bed.now, &enter).unwrap();
        bed.pass(1);
        bed
    }

    /// Time passes, and everything is committed. Returns the steps that were told.
    fn pass(&mut self, seconds: u64) -> Vec<u64> {
        let until = self.now + Duration::from_secs(seconds);
        let mut told = Vec::new();
        loop {
            self.controller.handle_timeout(self.now);
            while let Some(batch) = self.controller.poll_commit(self.now) {
                let result = self.storage.commit(&batch);
                self.controller.handle_commit(self.now, result).unwrap();
            }
            while let Some((_, bytes)) = self.controller.poll_transmit(self.now) {
                self.relay.1.handle_message(&bytes);
            }
            self.relay.1.handle_timeout(self.now);
            while let Some(applying) = self.relay.1.poll_apply() {
                self.relay.1.applied(applying, Ok(()));
            }
            while let Some(bytes) = self.relay.1.poll_transmit() {
                self.controller.handle_message(self.now, self.relay.0, &bytes);
            }
            while let Some(event) = self.controller.poll_event() {
                if let Event::AreasChanged { areas, .. } = event {
                    told.push(areas.step);
                }
            }
            if self.now >= until {
                return told;
            }
            self.now = self.now + Duration::from_millis(250);
        }
    }

    fn report(&mut self, owner: u8, step: u64) -> bool {
        let report = Report { step, area: None };
        self.controller.handle_report(self.world, [owner; 16], 1, report)
    }

    fn set(&mut self, new: NewAreas) -> Result<(), Refusal> {
        self.controller.set_areas(self.now, &name("w"), new)
    }
}

#[test]
fn a_change_outlasts_a_restart_and_waits_for_members_only() {
    let mut bed = Bed::new();
    assert!(!bed.report(7, 0), "there are no areas");
    bed.set(new(50.0, "ground", 1)).unwrap();
    assert!(bed.report(7, 0) && !bed.report(8, 0), "the other is no member");
    assert_eq!(bed.pass(1), [0], "told once it is stored");
    bed.set(new(40.0, "ground", 1)).unwrap_err();
    bed.set(new(100.0, "ground", 0)).unwrap();
    assert_eq!(bed.set(new(50.0, "ground", 1)), Err(Refusal::AreasChanging(name("w"))));
    assert_eq!(bed.pass(9), [1], "the member has not confirmed");

    bed.controller = start(&mut bed.storage, bed.now);
    let phase = bed.controller.areas(bed.world).map(|guide| guide.areas().phase());
    assert_eq!(phase, Some(Phase::Ready), "as it was stored");
    assert!(bed.pass(9).is_empty(), "its followers may come yet");
    assert!(bed.report(7, 1));
    assert_eq!(bed.pass(4), [2]);
    assert!(bed.report(7, 2));
    assert_eq!(bed.pass(2), [3]);
    let guide = bed.controller.areas(bed.world).unwrap();
    assert_eq!(guide.areas().division.areas().count(), 1);

    bed.controller.delete_world(&name("w")).unwrap();
    assert_eq!(bed.set(new(50.0, "ground", 1)), Err(Refusal::Closing(name("w"))));
}

#[test]
fn areas_go_with_their_world() {
    let mut bed = Bed::new();
    let empty = NewWorld {
        name: name("empty"),
        comtrees: 1,
        channels: vec![Channel { name: name("ground"), first: 0, groups: 8 }],
        levels: 1,
        mode: Mode::Immediate,
        downlink: Downlink::None,
        default: Limits::default(),
        core: Core::Center,
        sharing: canopy_control::Sharing::default(),
    };
    let world = bed.controller.create_world(empty).unwrap();
    bed.controller.set_areas(bed.now, &name("empty"), new(50.0, "ground", 1)).unwrap();
    bed.pass(1);
    let stored = |bed: &Bed| bed.storage.list(Table::Areas, &[], None, 9).unwrap().len();
    assert_eq!(stored(&bed), 1);
    bed.controller.delete_world(&name("empty")).unwrap();
    assert!(bed.controller.areas(world).is_none());
    bed.pass(1);
    assert_eq!(stored(&bed), 0);
}

#[test]
fn a_refusal_changes_nothing_and_says_what_is_wrong() {
    let mut bed = Bed::new();
    let (world, channel) = (name("w"), name("sky"));
    assert_eq!(bed.set(new(50.0, "sky", 1)), Err(Refusal::NoSuchChannel { world, channel }));
    let (world, level, levels) = (name("w"), 2, 1);
    assert_eq!(bed.set(new(50.0, "ground", 2)), Err(Refusal::NoSuchLevel { world, level, levels }));
    let many = AreasError::TooMany { cells: 9, most: 8 };
    assert_eq!(bed.set(new(34.0, "ground", 1)), Err(Refusal::Areas(many)));
    assert!(bed.controller.areas(bed.world).is_none());
    assert!(bed.pass(1).is_empty());
    // Nor does the world lose a level that its areas have.
    bed.set(new(50.0, "ground", 1)).unwrap();
    let (world, level, levels) = (name("w"), 1, 0);
    let lower = WorldChanges { levels: Some(levels), ..WorldChanges::default() };
    let refused = Err(Refusal::NoSuchLevel { world, level, levels });
    assert_eq!(bed.controller.set_world(&name("w"), lower), refused);
}
