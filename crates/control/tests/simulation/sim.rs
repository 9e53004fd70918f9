//! The driver: picks steps by a seed. `carry` takes them through time, `ending` checks what is left.

use crate::adversary;
use crate::relays::SimRelay;
use canopy_control::signal::Branch;
use canopy_control::storage::{Batch, Fault, MemoryStorage, Storage};
use canopy_control::{
    Controller, Core, Downlink, Enter, Item, ItemKey, LinkId, LinkReport, Member, MemberState,
    Mode, Name, NewRelay, NewWorld, Refusal, RelayId, RelayState, Retry, Settings, WorldId,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Messages are lost, doubled and reordered, relays refuse members.
    Calm,
    /// All that; the controller dies and starts again while relays have next parents.
    Dying,
    /// As in calm weather; links fail, relays crash, trees are improved, links and relays are taken away.
    Failing,
    /// All that; the controller crashes, storage fails, messages do not pass.
    Stormy,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) admitted: u32,
    pub(crate) refused_at_once: u32,
    pub(crate) rolled_back: u32,
    pub(crate) moves: u32,
    pub(crate) relocated: u32,
    pub(crate) stayed: u32,
    pub(crate) swapped: u32,
    pub(crate) swapped_below_mesh: u32,
    pub(crate) joined_mesh: u32,
    pub(crate) left_mesh: u32,
    pub(crate) refused_peers: u32,
    pub(crate) left: u32,
    pub(crate) reshaped: u32,
    pub(crate) improved: u32,
    pub(crate) broken: u32,
    pub(crate) relays_lost: u32,
    /// Relays after which others were asked, and those that were reached.
    pub(crate) asked_after: u32,
    pub(crate) vouched: u32,
    pub(crate) relays_removed: u32,
    pub(crate) links_removed: u32,
    /// Links that were not gone yet when their removal began.
    pub(crate) links_left: u32,
    /// The same of relays.
    pub(crate) relays_left: u32,
    pub(crate) links_proposed: u32,
    pub(crate) worlds_changed: u32,
    pub(crate) kicked: u32,
    pub(crate) barred: u32,
    pub(crate) stayed_on: u32,
    pub(crate) came_back: u32,
    pub(crate) came_elsewhere: u32,
    pub(crate) controllers: u32,
    pub(crate) died_halfway: u32,
    pub(crate) commits_failed: u32,
    pub(crate) repeats: u64,
}

impl Told {
    pub(crate) fn add(&mut self, of: Told) {
        self.admitted += of.admitted;
        self.refused_at_once += of.refused_at_once;
        self.rolled_back += of.rolled_back;
        self.moves += of.moves;
        self.relocated += of.relocated;
        self.stayed += of.stayed;
        self.swapped += of.swapped;
        self.swapped_below_mesh += of.swapped_below_mesh;
        self.joined_mesh += of.joined_mesh;
        self.left_mesh += of.left_mesh;
        self.refused_peers += of.refused_peers;
        self.left += of.left;
        self.reshaped += of.reshaped;
        self.improved += of.improved;
        self.broken += of.broken;
        self.relays_lost += of.relays_lost;
        self.asked_after += of.asked_after;
        self.vouched += of.vouched;
        self.relays_removed += of.relays_removed;
        self.links_removed += of.links_removed;
        self.links_left += of.links_left;
        self.relays_left += of.relays_left;
        self.links_proposed += of.links_proposed;
        self.worlds_changed += of.worlds_changed;
        self.kicked += of.kicked;
        self.barred += of.barred;
        self.stayed_on += of.stayed_on;
        self.came_back += of.came_back;
        self.came_elsewhere += of.came_elsewhere;
        self.controllers += of.controllers;
        self.died_halfway += of.died_halfway;
        self.commits_failed += of.commits_failed;
        self.repeats += of.repeats;
    }

    /// A simulation in which nothing happens proves nothing.
    pub(crate) fn assert_everything_happened(&self, plan: Plan) {
        let calm = [
            self.admitted,
            self.refused_at_once,
            self.rolled_back,
            self.moves,
            self.improved,
            self.relocated,
            self.stayed,
            self.swapped,
            self.left,
            self.worlds_changed,
            self.kicked,
            self.barred,
            self.stayed_on,
            self.came_back,
            self.came_elsewhere,
            self.links_proposed,
            self.links_removed,
            self.links_left,
        ];
        let failing = [self.reshaped, self.broken, self.relays_lost, self.relays_removed];
        let stormy = [self.controllers, self.commits_failed, self.asked_after];
        assert!(calm.iter().all(|count| *count > 0) && self.repeats > 0, "{self:?}");
        let may_fail = matches!(plan, Plan::Failing | Plan::Stormy);
        assert!(!may_fail || failing.iter().all(|count| *count > 0), "{self:?}");
        assert!(plan != Plan::Calm || self.relays_left > 0, "{self:?}");
        assert!(plan != Plan::Dying || self.died_halfway > 0, "{self:?}");
        assert!(plan != Plan::Stormy || stormy.iter().all(|count| *count > 0), "{self:?}");
    }
}

#[derive(Clone, Copy)]
pub(crate) enum To {
    Controller(usize),
    Relay(usize),
}

impl To {
    /// At the end of whose channel.
    pub(crate) fn relay(self) -> usize {
        match self {
            To::Controller(at) | To::Relay(at) => at,
        }
    }
}

pub(crate) struct Sim {
    pub(crate) seed: u64,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) plan: Plan,
    /// Whether most worlds have meshed cores, and are moved and drained more often.
    pub(crate) is_meshed: bool,
    pub(crate) now: Time,
    pub(crate) controller: Option<Controller>,
    pub(crate) storage: MemoryStorage,
    pub(crate) commit: Option<(Time, Batch)>,
    pub(crate) relays: Vec<SimRelay>,
    pub(crate) links: Vec<(LinkId, [usize; 2], bool)>,
    pub(crate) network: BTreeMap<(Time, u64), (To, Vec<u8>)>,
    pub(crate) sent: u64,
    /// How long messages take at most, milliseconds; and now and then.
    pub(crate) takes: [usize; 2],
    pub(crate) is_clear: bool,
    /// Whether links are removed at once in calm weather, too.
    pub(crate) removes_at_once: bool,
    pub(crate) worlds: Vec<Name>,
    /// Comtrees whose worlds got another rule for the core, and when, until relays surely have that.
    pub(crate) remade: BTreeMap<Comtree, Time>,
    pub(crate) admitted: Vec<(WorldId, Address)>,
    pub(crate) told: Told,
}

/// A relay that is given up may be there all the same, so that is left to storms.
/// In one seed of three the controller proposes links, too.
pub(crate) fn settings(plan: Plan, seed: u64) -> Settings {
    let [silence, suspicion] = match plan {
        Plan::Calm | Plan::Dying => [20_000, 20_000],
        Plan::Failing | Plan::Stormy => [1_200, 900],
    };
    Settings {
        silence: Duration::from_millis(silence),
        suspicion: Duration::from_millis(suspicion),
        degree: if seed % 3 == 2 { 3 } else { 0 },
        ..SETTINGS
    }
}

pub(crate) const SETTINGS: Settings = Settings {
    share: 0.9,
    lease: Duration::from_secs(40),
    rest: Duration::from_secs(5),
    silence: Duration::from_millis(1200),
    suspicion: Duration::from_millis(900),
    half_life: Duration::from_secs(5),
    least_gain: 0.15,
    improve: Duration::from_secs(2),
    degree: 0,
};

pub(crate) fn rate(bits: u32) -> Rate {
    Rate { bits: f64::from(bits), packets: f64::from(bits / 100) }
}

impl Sim {
    pub(crate) fn new(seed: u64, plan: Plan, is_meshed: bool) -> Sim {
        let mut sim = Sim { is_meshed, ..Sim::empty(seed, plan) };
        sim.build();
        sim.settle();
        sim.is_clear = false;
        sim
    }

    /// A controller alone.
    pub(crate) fn empty(seed: u64, plan: Plan) -> Sim {
        let mut storage = MemoryStorage::default();
        let now = Time::from_millis(1_000);
        let controller =
            Controller::start(settings(plan, seed), Retry::default(), now, &mut storage).unwrap();
        Sim {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            plan,
            is_meshed: false,
            now,
            controller: Some(controller),
            storage,
            commit: None,
            relays: Vec::new(),
            links: Vec::new(),
            network: BTreeMap::new(),
            sent: 0,
            takes: [60, 3_000],
            is_clear: true,
            removes_at_once: false,
            worlds: Vec::new(),
            remade: BTreeMap::new(),
            admitted: Vec::new(),
            told: Told::default(),
        }
    }

    pub(crate) fn up_to(&mut self, most: usize) -> usize {
        self.rng.random_range(0..most.max(1))
    }

    pub(crate) fn one_in(&mut self, of: usize) -> bool {
        self.up_to(of) == 0
    }

    fn build(&mut self) {
        let count = 2 + self.up_to(7);
        let controller = self.controller.as_mut().unwrap();
        for number in 0..count {
            let id = controller.register(self.now, relay_of_number(number)).unwrap();
            let has_threads = (self.seed + number as u64) % 8 == 7;
            let mut relay = SimRelay::new(id);
            relay.has_threads = has_threads;
            self.relays.push(relay);
        }
        // Its name and key bring a relay its number back.
        for from in 1..count {
            let to = self.up_to(from);
            self.join(from, to);
        }
        let more = if self.is_meshed { 2 * count } else { count };
        for _ in 0..more {
            let (from, to) = (self.up_to(count), self.up_to(count));
            if from != to {
                self.join(from, to);
            }
        }
        (0..3).for_each(|number| self.create_world(number));
    }

    pub(crate) fn join(&mut self, from: usize, to: usize) {
        let bits = 200_000 + self.up_to(800_000) as u32;
        let delay = 1000 + self.up_to(30_000) as u32;
        let ends = [from, to].map(|end| self.relays[end].id);
        let Some(controller) = self.controller.as_mut() else { return };
        // A relay that was taken away has no links.
        let Ok(link) = controller.add_link(ends, rate(bits), delay) else { return };
        self.links.push((link, [from, to], true));
        self.report_links();
    }

    pub(crate) fn draw_core(&mut self) -> Core {
        match self.up_to(6) {
            0 => Core::All,
            1 => Core::CenterAndNeighbours,
            2 => Core::Mesh,
            _ if self.is_meshed => Core::Mesh,
            _ => Core::Center,
        }
    }

    pub(crate) fn create_world(&mut self, number: usize) {
        let name = Name::new(&format!("w{number}")).unwrap();
        let core = self.draw_core();
        let new = NewWorld {
            name: name.clone(),
            comtrees: 1 + self.up_to(2) as u8,
            channels: Vec::new(),
            levels: 2,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            default: Limits { send: rate(5_000), receive: rate(20_000) },
            core,
            sharing: canopy_control::Sharing::default(),
        };
        if let Some(controller) = &mut self.controller
            && controller.create_world(new).is_ok()
            && !self.worlds.contains(&name)
        {
            self.worlds.push(name);
        }
    }

    pub(crate) fn run(mut self) -> Told {
        for step in 0..150 {
            if self.controller.is_none() && self.one_in(8) {
                self.start_controller();
            }
            self.act();
            self.die_halfway();
            let pause = Duration::from_millis(1 + self.up_to(120) as u64);
            self.advance(self.now + pause);
            if step % 10 == 0
                && let Some(controller) = &self.controller
            {
                assert_eq!(controller.audit(), Ok(()));
            }
        }
        self.heal();
        self.check_settled();
        let seed = self.rng.random();
        adversary::check(self.controller.as_ref().unwrap(), seed);
        self.end();
        self.told.refused_peers = self.relays.iter().map(|relay| relay.refused_peers).sum();
        self.told
    }

    fn act(&mut self) {
        let most = match self.plan {
            Plan::Calm | Plan::Dying => 22,
            Plan::Failing => 28,
            Plan::Stormy => 34,
        };
        match self.up_to(most) {
            17 if self.is_meshed => self.drain_or_not(),
            5 | 6 | 12 if self.is_meshed => self.move_tree(),
            0..=6 => self.enter(),
            7 | 8 => self.leave(),
            9 | 10 => self.modify(),
            11 => self.renew_all(),
            12 => {
                let number = self.up_to(4);
                self.create_world(number);
            }
            13 if self.one_in(4) => self.delete_world(),
            14 => self.set_world(),
            15 => self.kick(),
            16 if self.one_in(2) => self.remove_link(self.removes_at_once),
            16 => self.drain_or_not(),
            17 if self.plan == Plan::Calm && self.one_in(4) => {
                self.remove_relay(self.removes_at_once);
            }
            17 => {
                let at = self.up_to(self.relays.len());
                _ = self.register(at);
            }
            18 | 19 => self.move_tree(),
            20 => self.relocate(),
            21 => self.give_up_place(),
            22 => self.remove_or_add_link(),
            23 => {
                let at_once = self.seed % 2 == 1;
                self.remove_relay(at_once);
            }
            24 | 25 => self.flip_link(),
            26 => self.crash_or_restart_relay(),
            27 => self.improve(),
            28 => {
                let at = self.up_to(self.relays.len());
                self.relays[at].is_cut_off ^= true;
            }
            29 | 30 => self.crash_or_start_controller(),
            31 => {
                let after = self.up_to(5) as u32;
                let fault = if self.one_in(2) { Fault::Before } else { Fault::After };
                self.storage.fail_after(after, fault);
            }
            _ => {}
        }
    }

    fn limits(&mut self) -> Limits {
        let send = 1_000 + self.up_to(30_000) as u32;
        let receive = 1_000 + self.up_to(120_000) as u32;
        Limits { send: rate(send), receive: rate(receive) }
    }

    fn enter(&mut self) {
        let world = self.worlds[self.rng.random_range(0..self.worlds.len())].clone();
        let owner = [self.up_to(25) as u8; 16];
        let measured = (0..self.relays.len())
            .map(|at| (self.relays[at].id, self.up_to(50_000) as u32))
            .collect();
        let limits = Some(self.limits());
        let Some(controller) = &mut self.controller else { return };
        let id = controller.world(&world).map(|world| world.id).ok();
        let is_its = |member: &&Member| Some(member.world) == id && member.owner == owner;
        let of = |state| controller.members().filter(is_its).filter(move |of| of.state == state);
        let is_in = of(MemberState::Held).next().is_some();
        let rests: Vec<Member> = of(MemberState::Resting).cloned().collect();
        let leaves: Vec<Address> = of(MemberState::Leaving).map(|of| of.address).collect();
        match controller.enter(self.now, &Enter { limits, ..Enter::new(world, owner, measured) }) {
            Ok(admission) => {
                let held = controller.members().filter(|member| {
                    member.world == admission.world
                        && member.owner == owner
                        && member.state == MemberState::Held
                });
                assert_eq!(held.count(), 1, "who asks again has one place");
                if !leaves.is_empty() {
                    self.told.stayed_on += u32::from(leaves.contains(&admission.address));
                    return;
                }
                let before = rests.iter().find(|rests| rests.address == admission.address);
                let is_due = !is_in && !rests.is_empty();
                assert_eq!(before.is_some(), is_due, "it has an address that rests for it");
                let Some(before) = before else { return };
                self.told.came_back += 1;
                self.told.came_elsewhere += u32::from(before.relay != admission.relay);
            }
            Err(refusal) => {
                self.told.barred += u32::from(matches!(refusal, Refusal::Barred { .. }));
                assert!(refusal.to_string().contains(';'), "{refusal}: it says what to do");
                self.told.refused_at_once += 1;
            }
        }
    }

    pub(crate) fn some_member(&mut self) -> Option<(WorldId, Address)> {
        let members: Vec<_> =
            self.controller.as_ref()?.members().map(|m| (m.world, m.address)).collect();
        let at = self.up_to(members.len());
        members.get(at).copied()
    }

    fn leave(&mut self) {
        if let (Some((world, address)), Some(controller)) =
            (self.some_member(), &mut self.controller)
        {
            _ = controller.leave(world, address);
        }
    }

    fn modify(&mut self) {
        let limits = self.limits();
        if let (Some((world, address)), Some(controller)) =
            (self.some_member(), &mut self.controller)
        {
            _ = controller.modify(world, address, limits);
        }
    }

    pub(crate) fn renew_all(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let members: Vec<_> = controller.members().map(|m| (m.world, m.address)).collect();
        members.into_iter().for_each(|(world, address)| {
            _ = controller.renew(self.now, world, address);
        });
    }

    fn delete_world(&mut self) {
        let world = self.worlds[self.rng.random_range(0..self.worlds.len())].clone();
        if let Some(controller) = &mut self.controller {
            _ = controller.delete_world(&world);
        }
    }

    fn improve(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let comtrees: Vec<Comtree> = controller.worlds().flat_map(|w| w.comtrees.clone()).collect();
        if let Some(comtree) = comtrees.first() {
            assert!(!controller.improve(*comtree).is_empty(), "it says why");
        }
    }

    fn flip_link(&mut self) {
        let at = self.up_to(self.links.len());
        self.links[at].2 ^= true;
        self.report_links();
    }

    /// Relays find links as they are: up if they are, and the other end is.
    pub(crate) fn report_links(&mut self) {
        self.know_proposed();
        for (link, ends, is_up) in self.links.clone() {
            let up = is_up && ends.iter().all(|end| self.relays[*end].side.is_some());
            for end in ends {
                if let Some(side) = &mut self.relays[end].side {
                    side.set_link(self.now, LinkReport { link, up, delay_us: 0 });
                }
            }
        }
    }

    fn crash_or_restart_relay(&mut self) {
        let at = self.up_to(self.relays.len());
        let relay = &mut self.relays[at];
        if relay.side.is_some() {
            relay.crash()
        } else {
            relay.restart()
        }
        self.report_links();
    }

    fn crash_or_start_controller(&mut self) {
        if self.controller.is_some() {
            self.crash_controller();
        } else {
            self.start_controller();
        }
    }

    pub(crate) fn crash_controller(&mut self) {
        if let Some(controller) = self.controller.take() {
            self.told.repeats += controller.repeats();
        }
        // What was handed to storage is committed, or not.
        if let Some((_, batch)) = self.commit.take()
            && self.one_in(2)
        {
            _ = self.storage.commit(&batch);
        }
        // So does what it has sent arrive, or not.
    }

    pub(crate) fn start_controller(&mut self) {
        let settings = settings(self.plan, self.seed);
        let started = Controller::start(settings, Retry::default(), self.now, &mut self.storage);
        self.controller = started.ok();
        self.told.controllers += 1;
        let gone = self.controller.iter().flat_map(Controller::relays);
        let gone = gone.filter(|relay| relay.state == RelayState::Gone).map(|relay| relay.id);
        let gone: Vec<RelayId> = gone.collect();
        self.give_up(&gone);
    }
}

/// What a relay says of itself when it registers.
pub(crate) fn relay_of_number(number: usize) -> NewRelay {
    NewRelay {
        name: Name::new(&format!("r{number}")).unwrap(),
        key: [number as u8; 32],
        native: ([127, 0, 0, 1], 7000 + number as u16).into(),
        uplink: Limits { send: rate(4_000_000), receive: rate(4_000_000) },
        places: 30,
        comtrees: 1024,
    }
}

/// The branches that a relay has on a comtree now.
pub(crate) fn branches(relay: &SimRelay, comtree: Comtree) -> Vec<Branch> {
    let item = relay.side.as_ref().and_then(|side| side.items().get(&ItemKey::Comtree(comtree)));
    let mut branches = match item {
        Some(Item::Comtree { branches, .. }) => branches.clone(),
        _ => Vec::new(),
    };
    branches.extend(relay.clung.get(&comtree).into_iter().flatten().copied());
    branches
}

/// A relay's number among the relays of a tree.
pub(crate) fn relay_of(relays: &[SimRelay], id: RelayId) -> Option<&SimRelay> {
    relays.iter().find(|relay| relay.id == id)
}
