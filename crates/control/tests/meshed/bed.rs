//! Four relays, a controller, and a world.

use canopy_control::signal::{Branch, Role};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Applying, Controller, Core, Downlink, Enter, Event, Item, ItemKey, LinkId, LinkReport, Mode,
    Name, NewRelay, NewWorld, Refusal, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// All four are joined with each other.
pub(crate) const ALL: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

pub(crate) struct Bed {
    pub(crate) controller: Controller,
    pub(crate) storage: MemoryStorage,
    pub(crate) relays: Vec<(RelayId, RelaySide)>,
    pub(crate) links: Vec<(LinkId, (usize, usize))>,
    pub(crate) now: Time,
    /// Whether a next parent is the way to the core at once; otherwise it never is.
    pub(crate) succeeds: bool,
    /// A relay that refuses all that it is told of a comtree.
    pub(crate) refuses: Option<usize>,
    /// A relay that refuses next peers.
    pub(crate) has_threads: Option<usize>,
}

pub(crate) fn rate(bits: u32) -> Rate {
    Rate { bits: f64::from(bits), packets: f64::from(bits) }
}

pub(crate) fn world() -> Name {
    Name::new("w").unwrap()
}

/// A data plane refuses a next parent without a parent, but for one that is there already in some role; and next peers
/// where its links are of several data threads.
fn check(applying: &Applying, refuses: bool, has_threads: bool) -> Result<(), String> {
    if refuses && matches!(applying.key(), ItemKey::Comtree(_)) {
        return Err("it refuses".to_owned());
    }
    let branches = |item: &Option<Item>| match item {
        Some(Item::Comtree { branches, .. }) => branches.clone(),
        _ => Vec::new(),
    };
    let (before, after) = (branches(&applying.before), branches(&applying.after));
    if has_threads && after.iter().any(|of| of.role == Role::NextPeer) {
        return Err("a next peer needs one data thread".to_owned());
    }
    let has_parent = after.iter().any(|of| of.role == Role::Parent);
    let is_there = |link: LinkId| before.iter().any(|of| of.link == link);
    let next = after.iter().find(|of| of.role == Role::NextParent);
    match next.is_none_or(|next| has_parent || is_there(next.link)) {
        true => Ok(()),
        false => Err("there is no parent beside the next one".to_owned()),
    }
}

impl Bed {
    /// Four relays joined by these links of 1 Mbit/s, and a world with this core.
    pub(crate) fn new(links: &[(usize, usize)], core: Core) -> Bed {
        Bed::of(4, links, core)
    }

    /// The same with more relays.
    pub(crate) fn of(relays: u16, links: &[(usize, usize)], core: Core) -> Bed {
        let mut storage = MemoryStorage::default();
        let now = Time::from_millis(1000);
        let start = Controller::start(Settings::default(), Retry::default(), now, &mut storage);
        let mut controller = start.unwrap();
        let relay = |number: u16| NewRelay {
            name: Name::new(&format!("r{number}")).unwrap(),
            key: [number as u8; 32],
            native: ([127, 0, 0, 1], 7000 + number).into(),
            uplink: Limits { send: rate(90_000_000), receive: rate(90_000_000) },
            places: 9,
            comtrees: 1024,
        };
        let relays = (0..relays)
            .map(|number| (controller.register(now, relay(number)).unwrap(), RelaySide::new(1)));
        let relays: Vec<_> = relays.collect();
        let links = links.iter().map(|(from, to)| {
            let ends = [relays[*from].0, relays[*to].0];
            (controller.add_link(ends, rate(1_000_000), 1000).unwrap(), (*from, *to))
        });
        let links = links.collect();
        let limits = Limits { send: rate(1000), receive: rate(1000) };
        let new = NewWorld {
            name: world(),
            comtrees: 1,
            channels: Vec::new(),
            levels: 1,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            default: limits,
            core,
            sharing: canopy_control::Sharing::default(),
        };
        controller.create_world(new).unwrap();
        let mut bed = Bed {
            controller,
            storage,
            relays,
            links,
            now,
            succeeds: true,
            refuses: None,
            has_threads: None,
        };
        bed.exchange();
        bed
    }

    /// Carries everything until nobody has anything to say. Returns what was told.
    pub(crate) fn exchange(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let comtree = self.comtree();
        for _ in 0..80 {
            self.now = self.now + Duration::from_millis(10);
            self.controller.handle_timeout(self.now);
            self.commit();
            while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
                self.relays[usize::from(to.0) - 1].1.handle_message(&bytes);
            }
            for (at, (relay, side)) in self.relays.iter_mut().enumerate() {
                side.handle_timeout(self.now);
                while let Some(applying) = side.poll_apply() {
                    let result =
                        check(&applying, self.refuses == Some(at), self.has_threads == Some(at));
                    side.applied(applying, result);
                }
                if self.succeeds {
                    side.set_succeeded(self.now, comtree);
                }
                while let Some(bytes) = side.poll_transmit() {
                    self.controller.handle_message(self.now, *relay, &bytes);
                }
            }
            events.extend(core::iter::from_fn(|| self.controller.poll_event()));
        }
        assert_eq!(self.controller.audit(), Ok(()));
        events
    }

    /// All members stay in.
    pub(crate) fn renew(&mut self) {
        let members: Vec<_> = self.controller.members().map(|of| (of.world, of.address)).collect();
        for (world, address) in members {
            _ = self.controller.renew(self.now, world, address);
        }
        self.exchange();
    }

    /// Until it is looked at which comtrees are to leave relays that drain or to let others into their cores, and a
    /// move is over.
    pub(crate) fn wait(&mut self) {
        (0..9).for_each(|_| self.renew());
    }

    /// The controller is dropped, whatever it has not committed or told yet, and started again.
    pub(crate) fn start_again(&mut self) {
        let (settings, retry) = (Settings::default(), Retry::default());
        self.controller = Controller::start(settings, retry, self.now, &mut self.storage).unwrap();
    }

    /// All that is decided is committed.
    pub(crate) fn commit(&mut self) {
        while let Some(batch) = self.controller.poll_commit(self.now) {
            let result = self.storage.commit(&batch);
            self.controller.handle_commit(self.now, result).unwrap();
        }
    }

    /// Ten milliseconds pass, with those relays that are connected. No next parent becomes the way to the core.
    /// Returns what was told.
    pub(crate) fn tick(&mut self, is_connected: impl Fn(usize) -> bool) -> Vec<Event> {
        self.now = self.now + Duration::from_millis(10);
        self.controller.handle_timeout(self.now);
        self.commit();
        while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
            let at = usize::from(to.0) - 1;
            if is_connected(at) {
                self.relays[at].1.handle_message(&bytes);
            }
        }
        for (at, (relay, side)) in self.relays.iter_mut().enumerate() {
            if !is_connected(at) {
                continue;
            }
            side.handle_timeout(self.now);
            while let Some(applying) = side.poll_apply() {
                let result =
                    check(&applying, self.refuses == Some(at), self.has_threads == Some(at));
                side.applied(applying, result);
            }
            while let Some(bytes) = side.poll_transmit() {
                self.controller.handle_message(self.now, *relay, &bytes);
            }
        }
        core::iter::from_fn(|| self.controller.poll_event()).collect()
    }

    /// A member enters at a relay, and sends and receives so much.
    pub(crate) fn enter(&mut self, owner: u8, at: usize, send: u32) -> Result<(), Refusal> {
        let limits = Some(Limits { send: rate(send), receive: rate(400_000) });
        let measured = vec![(self.relays[at].0, 1000)];
        let ask = Enter { limits, ..Enter::new(world(), [owner; 16], measured) };
        self.controller.enter(self.now, &ask)?;
        self.exchange();
        Ok(())
    }

    pub(crate) fn comtree(&self) -> Comtree {
        self.controller.world(&world()).unwrap().comtrees[0]
    }

    pub(crate) fn branches(&self, at: usize) -> Vec<Branch> {
        match self.relays[at].1.items().get(&ItemKey::Comtree(self.comtree())) {
            Some(Item::Comtree { branches, .. }) => branches.clone(),
            _ => Vec::new(),
        }
    }

    /// What a relay's neighbours are to it, by the neighbour's number in the bed.
    pub(crate) fn roles(&self, at: usize) -> Vec<(u16, Role)> {
        let branches = self.branches(at);
        let standing = branches.iter().filter(|branch| !branch.role.is_standby());
        let mut roles: Vec<_> = standing.map(|branch| (branch.site - 1, branch.role)).collect();
        roles.sort_by_key(|(neighbour, _)| *neighbour);
        roles
    }

    pub(crate) fn are_peers(&self, relays: &[u16]) {
        for at in relays {
            let others = relays.iter().filter(|of| *of != at);
            let peers: Vec<_> = others.map(|of| (*of, Role::CorePeer)).collect();
            let roles = self.roles(usize::from(*at));
            let is_peer = |(_, role): &&(u16, Role)| *role == Role::CorePeer;
            assert_eq!(roles.iter().filter(is_peer).copied().collect::<Vec<_>>(), peers, "at {at}");
        }
    }

    pub(crate) fn report(&mut self, ends: (usize, usize), up: bool) -> Vec<Event> {
        self.report_together(&[ends], up)
    }

    pub(crate) fn report_together(&mut self, all: &[(usize, usize)], up: bool) -> Vec<Event> {
        all.iter().for_each(|ends| self.find(*ends, up));
        self.exchange()
    }

    /// The ends of a link find that it is up, or down, and have yet to say so.
    pub(crate) fn find(&mut self, ends: (usize, usize), up: bool) {
        let link = self.links.iter().find(|(_, of)| *of == ends).unwrap().0;
        for at in [ends.0, ends.1] {
            self.relays[at].1.set_link(self.now, LinkReport { link, up, delay_us: 1000 });
        }
    }

    pub(crate) fn outside(&self, at: usize) -> Option<String> {
        let explanation = self.controller.explain(self.comtree()).unwrap();
        let relay = explanation.relays.iter().find(|of| of.relay == self.relays[at].0);
        relay.unwrap().outside.clone()
    }

    /// What is reserved at a relay towards another and from there.
    pub(crate) fn reserved(&self, at: usize, to: u16) -> (f64, f64) {
        let branch = self.branches(at).into_iter().find(|of| of.site == to + 1).unwrap();
        (branch.send.bits, branch.receive.bits)
    }
}
