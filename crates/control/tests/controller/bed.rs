//! A controller, and relays that answer at once.

use canopy_control::signal::{Answer, Call, Role};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Admission, Applying, Controller, Core, Downlink, Enter, Entry, Event, Item, ItemKey, LinkId,
    LinkReport, Message, Mode, Name, NewRelay, NewWorld, Refusal, RelayId, RelaySide, Retry,
    Settings, Sharing,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::BTreeSet;

/// A square: 1 r0–r1, 2 r1–r2, 3 r2–r3, 4 r3–r0.
pub(crate) const SQUARE: [(usize, usize, u32); 4] =
    [(0, 1, 1000), (1, 2, 1000), (2, 3, 1000), (3, 0, 5000)];

pub(crate) struct Bed {
    pub(crate) controller: Controller,
    pub(crate) storage: MemoryStorage,
    pub(crate) relays: Vec<(RelayId, RelaySide)>,
    pub(crate) now: Time,
    /// How many of the relays, the first ones, are connected.
    pub(crate) connected: usize,
    /// Members that relays sent away.
    pub(crate) sent_away: usize,
    /// Whether relays refuse next parents.
    pub(crate) stays_put: bool,
    /// Whether next parents are yet to be the way to the core.
    pub(crate) waits: bool,
    /// Whether relays beat and do nothing of what they are told.
    pub(crate) stalls: bool,
    /// The relays that are of an earlier release, and take no sharing.
    pub(crate) earlier: BTreeSet<usize>,
    /// How often a relay that is not the root let go of its way to the core without having another.
    pub(crate) parted: usize,
    /// Comtrees of which relays were told.
    comtrees: BTreeSet<Comtree>,
}

pub(crate) fn rate(bits: u32) -> Rate {
    Rate { bits: f64::from(bits), packets: f64::from(bits) }
}

pub(crate) fn limits(send: u32, receive: u32) -> Limits {
    Limits { send: rate(send), receive: rate(receive) }
}

pub(crate) fn world() -> Name {
    Name::new("w").unwrap()
}

pub(crate) fn new_world(name: Name) -> NewWorld {
    NewWorld {
        name,
        comtrees: 1,
        channels: Vec::new(),
        levels: 1,
        mode: Mode::Periodic(50),
        downlink: Downlink::Member,
        default: limits(1000, 1000),
        core: Core::Center,
        sharing: Sharing::default(),
    }
}

pub(crate) fn new_relay(number: u16, uplink: u32) -> NewRelay {
    NewRelay {
        name: Name::new(&format!("r{number}")).unwrap(),
        key: [number as u8; 32],
        native: ([127, 0, 0, 1], 7000 + number).into(),
        uplink: limits(uplink, uplink),
        places: 2,
        comtrees: 1024,
    }
}

impl Bed {
    /// Relays r0, r1, … with this uplink, joined by these links of 1 Mbit/s and so many microseconds.
    pub(crate) fn new(relays: u16, uplink: u32, links: &[(usize, usize, u32)]) -> Bed {
        Bed::with(Settings::default(), relays, uplink, links)
    }

    pub(crate) fn with(
        settings: Settings,
        relays: u16,
        uplink: u32,
        links: &[(usize, usize, u32)],
    ) -> Bed {
        let mut storage = MemoryStorage::default();
        let now = Time::from_millis(1000);
        let mut controller =
            Controller::start(settings, Retry::default(), now, &mut storage).unwrap();
        let mut register = |number: u16| {
            let new = new_relay(number, uplink);
            (controller.register(now, new).unwrap(), RelaySide::new(1))
        };
        let relays: Vec<_> = (0..relays).map(&mut register).collect();
        for (from, to, delay) in links {
            let ends = [relays[*from].0, relays[*to].0];
            controller.add_link(ends, rate(1_000_000), *delay).unwrap();
        }
        controller.create_world(new_world(world())).unwrap();
        let connected = relays.len();
        let (stays_put, waits, stalls, comtrees) = (false, false, false, BTreeSet::new());
        let mut bed = Bed {
            controller,
            storage,
            relays,
            now,
            connected,
            sent_away: 0,
            stays_put,
            waits,
            stalls,
            earlier: BTreeSet::new(),
            parted: 0,
            comtrees,
        };
        bed.exchange();
        bed
    }

    /// Carries everything until nobody has anything to say. Returns what was told.
    pub(crate) fn exchange(&mut self) -> Vec<Event> {
        (0..50).flat_map(|_| self.tick()).collect()
    }

    /// Carries what there is for a hundredth of a second. Returns what was told.
    pub(crate) fn tick(&mut self) -> Vec<Event> {
        self.now = self.now + Duration::from_millis(10);
        self.controller.handle_timeout(self.now);
        while let Some(batch) = self.controller.poll_commit(self.now) {
            let result = self.storage.commit(&batch);
            self.controller.handle_commit(self.now, result).unwrap();
        }
        while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
            let to = usize::from(to.0) - 1;
            if self.earlier.contains(&to) {
                assert!(!is_recent(&bytes), "an earlier release cannot read that");
            }
            if to < self.connected {
                self.relays[to].1.handle_message(&bytes);
            }
        }
        for (at, (relay, side)) in self.relays[..self.connected].iter_mut().enumerate() {
            side.handle_timeout(self.now);
            while let Some(applying) = if self.stalls { None } else { side.poll_apply() } {
                let is_member = matches!(applying.key(), ItemKey::Member(..));
                self.sent_away += usize::from(is_member && applying.after.is_none());
                if let ItemKey::Comtree(comtree) = applying.key() {
                    self.comtrees.insert(comtree);
                    let tree = self.controller.tree(comtree);
                    let is_root = tree.first().is_some_and(|hop| hop.relay == *relay);
                    let lets_go = has_way_up(&applying.before) && !has_way_up(&applying.after);
                    self.parted += usize::from(lets_go && !is_root);
                }
                let is_refused = self.stays_put && has_next_parent(&applying);
                let refused = Err("it takes no next parent".to_owned());
                side.applied(applying, if is_refused { refused } else { Ok(()) });
            }
            // A next parent is the way to the core at once, where there is one.
            for comtree in self.comtrees.iter().filter(|_| !self.waits) {
                side.set_succeeded(self.now, *comtree);
            }
            while let Some(bytes) = side.poll_transmit() {
                let bytes = if self.earlier.contains(&at) { without_more(bytes) } else { bytes };
                self.controller.handle_message(self.now, *relay, &bytes);
            }
        }
        core::iter::from_fn(|| self.controller.poll_event()).collect()
    }

    /// Another controller starts on the store, as it was committed last.
    pub(crate) fn start_again(&mut self) {
        let (settings, retry) = self.controller.started_with();
        self.controller = Controller::start(settings, retry, self.now, &mut self.storage).unwrap();
    }

    /// An endpoint enters that is next to these relays, the nearest first.
    pub(crate) fn enter(
        &mut self,
        owner: u8,
        near: &[usize],
        limits: Limits,
    ) -> Result<Admission, Refusal> {
        self.enter_by(owner, near, limits, Entry::default())
    }

    pub(crate) fn enter_by(
        &mut self,
        owner: u8,
        near: &[usize],
        limits: Limits,
        entry: Entry,
    ) -> Result<Admission, Refusal> {
        let measured = near.iter().zip(1..).map(|(at, far)| (self.relays[*at].0, far * 1000));
        let ask = Enter::new(world(), [owner; 16], measured.collect());
        self.controller.enter(self.now, &Enter { limits: Some(limits), entry, ..ask })
    }

    /// Everybody who is in renews its lease.
    pub(crate) fn renew_all(&mut self) {
        let members: Vec<_> = self.controller.members().map(|of| (of.world, of.address)).collect();
        for (world, address) in members {
            self.controller.renew(self.now, world, address).unwrap();
        }
    }

    pub(crate) fn set_link(&mut self, link: u32, ends: [usize; 2], up: bool) {
        for end in ends {
            let report = LinkReport { link: LinkId(link), up, delay_us: 0 };
            self.relays[end].1.set_link(self.now, report);
        }
    }

    pub(crate) fn links_of_tree(&self) -> Vec<u32> {
        let comtree = self.controller.world(&world()).unwrap().comtrees[0];
        let hops = self.controller.tree(comtree);
        let mut links: Vec<u32> = hops.iter().filter_map(|hop| Some(hop.above?.1.0)).collect();
        links.sort_unstable();
        links
    }
}

/// Whether a message tells of a sharing or a spare link, or of several changes.
fn is_recent(bytes: &[u8]) -> bool {
    match Message::decode(bytes) {
        Ok(Message::Call { call: Call::Set(Item::Comtree { sharing, branches, .. }), .. }) => {
            let has_spare = branches.iter().any(|of| of.role == Role::Spare);
            has_spare || sharing != Sharing::default()
        }
        Ok(Message::Call { call, .. }) => matches!(call, Call::Together(_)),
        _ => false,
    }
}

/// What an earlier release says in place of this: its last page of items is not an empty one.
fn without_more(bytes: Vec<u8>) -> Vec<u8> {
    match Message::decode(&bytes) {
        Ok(Message::Answer { controller, relay, number, answer: Answer::Items(items, _) }) => {
            let answer = Answer::Items(items, false);
            Message::Answer { controller, relay, number, answer }.encode()
        }
        _ => bytes,
    }
}

fn has_next_parent(applying: &Applying) -> bool {
    let Some(Item::Comtree { branches, .. }) = &applying.after else { return false };
    branches.iter().any(|branch| branch.role == Role::NextParent)
}

/// Whether a relay has a branch that leads to the core, or within it.
fn has_way_up(item: &Option<Item>) -> bool {
    let Some(Item::Comtree { branches, .. }) = item else { return false };
    let up = [Role::Parent, Role::NextParent, Role::Core, Role::CorePeer];
    branches.iter().any(|branch| up.contains(&branch.role))
}
