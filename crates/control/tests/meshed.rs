//! A world whose core is a mesh (federated games §3.1), with relays that answer at once.

use canopy_control::signal::{Branch, Role};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, Core, Downlink, Enter, Event, Item, ItemKey, LinkId, LinkReport, Mode, Name,
    NewRelay, NewWorld, Refusal, RelayId, RelaySide, Retry, Settings, TreeAsk, WorldChanges,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// All four are joined with each other.
const ALL: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

struct Bed {
    controller: Controller,
    storage: MemoryStorage,
    relays: Vec<(RelayId, RelaySide)>,
    links: Vec<(LinkId, (usize, usize))>,
    now: Time,
}

fn rate(bits: u32) -> Rate {
    Rate { bits: f64::from(bits), packets: f64::from(bits) }
}

fn world() -> Name {
    Name::new("w").unwrap()
}

impl Bed {
    /// Four relays joined by these links of 1 Mbit/s, and a world with this core.
    fn new(links: &[(usize, usize)], core: Core) -> Bed {
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
        };
        let relays = (0..4)
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
        };
        controller.create_world(new).unwrap();
        let mut bed = Bed { controller, storage, relays, links, now };
        bed.exchange();
        bed
    }

    /// Carries everything until nobody has anything to say. Returns what was told.
    fn exchange(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..80 {
            self.now = self.now + Duration::from_millis(10);
            self.controller.handle_timeout(self.now);
            while let Some(batch) = self.controller.poll_commit(self.now) {
                let result = self.storage.commit(&batch);
                self.controller.handle_commit(self.now, result).unwrap();
            }
            while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
                self.relays[usize::from(to.0) - 1].1.handle_message(&bytes);
            }
            for (relay, side) in &mut self.relays {
                side.handle_timeout(self.now);
                while let Some(applying) = side.poll_apply() {
                    side.applied(applying, Ok(()));
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

    /// A member enters at a relay, and sends and receives so much.
    fn enter(&mut self, owner: u8, at: usize, send: u32) -> Result<(), Refusal> {
        let limits = Some(Limits { send: rate(send), receive: rate(400_000) });
        let measured = vec![(self.relays[at].0, 1000)];
        let ask = Enter { world: world(), owner: [owner; 16], limits, measured };
        self.controller.enter(self.now, &ask)?;
        self.exchange();
        Ok(())
    }

    fn comtree(&self) -> Comtree {
        self.controller.world(&world()).unwrap().comtrees[0]
    }

    fn branches(&self, at: usize) -> Vec<Branch> {
        match self.relays[at].1.items().get(&ItemKey::Comtree(self.comtree())) {
            Some(Item::Comtree { branches, .. }) => branches.clone(),
            _ => Vec::new(),
        }
    }

    /// What a relay's neighbours are to it, by the neighbour's number in the bed.
    fn roles(&self, at: usize) -> Vec<(u16, Role)> {
        let branches = self.branches(at);
        let standing = branches.iter().filter(|branch| !branch.role.is_standby());
        let mut roles: Vec<_> = standing.map(|branch| (branch.site - 1, branch.role)).collect();
        roles.sort_by_key(|(neighbour, _)| *neighbour);
        roles
    }

    fn are_peers(&self, relays: &[u16]) {
        for at in relays {
            let others = relays.iter().filter(|of| *of != at);
            let peers: Vec<_> = others.map(|of| (*of, Role::CorePeer)).collect();
            let roles = self.roles(usize::from(*at));
            let is_peer = |(_, role): &&(u16, Role)| *role == Role::CorePeer;
            assert_eq!(roles.iter().filter(is_peer).copied().collect::<Vec<_>>(), peers, "at {at}");
        }
    }

    fn report(&mut self, ends: (usize, usize), up: bool) -> Vec<Event> {
        let link = self.links.iter().find(|(_, of)| *of == ends).unwrap().0;
        for at in [ends.0, ends.1] {
            self.relays[at].1.set_link(self.now, LinkReport { link, up, delay_us: 1000 });
        }
        self.exchange()
    }

    fn outside(&self, at: usize) -> Option<String> {
        let explanation = self.controller.explain(self.comtree()).unwrap();
        let relay = explanation.relays.iter().find(|of| of.relay == self.relays[at].0);
        relay.unwrap().outside.clone()
    }

    /// What is reserved at a relay towards another and from there.
    fn reserved(&self, at: usize, to: u16) -> (f64, f64) {
        let branch = self.branches(at).into_iter().find(|of| of.site == to + 1).unwrap();
        (branch.send.bits, branch.receive.bits)
    }
}

#[test]
fn all_relays_with_members_hear_each_other_directly_and_each_link_bears_what_its_ends_send() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for (at, send) in [(0, 1000), (1, 2000), (2, 4000), (3, 8000)] {
        bed.enter(at as u8, at, send).unwrap();
    }
    bed.are_peers(&[0, 1, 2, 3]);
    for (at, to, expected) in [(0, 1, (1000.0, 2000.0)), (2, 3, (4000.0, 8000.0))] {
        assert_eq!(bed.reserved(at, to), expected);
    }
    bed.enter(9, 2, 100).unwrap();
    assert_eq!(bed.reserved(2, 0), (4100.0, 1000.0));
    assert_eq!(bed.reserved(1, 2), (2000.0, 4100.0));
    // A controller that starts again has the same.
    let before = bed.controller.mesh(bed.comtree());
    assert_eq!(before.len(), 6);
    let started =
        Controller::start(Settings::default(), Retry::default(), bed.now, &mut bed.storage);
    assert_eq!(started.as_ref().unwrap().mesh(bed.comtree()), before);
    assert_eq!(started.unwrap().audit(), Ok(()));
}

#[test]
fn a_relay_that_lacks_a_link_is_a_child_until_it_has_it() {
    let without = &ALL[..5];
    let mut bed = Bed::new(without, Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.outside(2), None);
    assert_eq!(bed.outside(3).as_deref(), Some("it has no link that can be used with r2"));
    let roles = bed.roles(3);
    assert!(matches!(roles[..], [(0 | 1, Role::Parent)]), "{roles:?}");
    let ends = [bed.relays[2].0, bed.relays[3].0];
    let link = bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.links.push((link, (2, 3)));
    // It is looked at with the next beats of the links.
    bed.report((2, 3), false);
    bed.report((2, 3), true);
    bed.are_peers(&[0, 1, 2, 3]);
    assert_eq!(bed.outside(3), None);
}

#[test]
fn who_loses_a_link_of_the_mesh_leaves_the_core_and_comes_back() {
    for lost in ALL {
        let mut bed = Bed::new(&ALL, Core::Mesh);
        for at in 0..4 {
            bed.enter(at as u8, at, 1000).unwrap();
        }
        let told = bed.report(lost, false);
        assert!(told.iter().any(|event| matches!(event, Event::Reshaped { .. })), "{told:?}");
        let (_, broken) = bed.controller.why(bed.comtree()).unwrap();
        assert_eq!(broken, None);
        assert_eq!(bed.controller.mesh(bed.comtree()).len(), 3, "three are left");
        let outside: Vec<usize> = (0..4).filter(|at| bed.outside(*at).is_some()).collect();
        assert_eq!(outside.len(), 1);
        assert!(outside[0] == lost.0 || outside[0] == lost.1);
        let in_core: Vec<u16> = (0..4).filter(|at| usize::from(*at) != outside[0]).collect();
        bed.are_peers(&in_core);
        let roles = bed.roles(outside[0]);
        assert!(matches!(roles[..], [(_, Role::Parent)]), "{roles:?}");
        bed.report(lost, true);
        bed.are_peers(&[0, 1, 2, 3]);
    }
}

#[test]
fn the_root_may_go_and_the_others_stay_as_they_are() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    let root = bed.controller.tree(bed.comtree())[0].relay;
    let there = bed.controller.members().find(|member| member.relay == root);
    let there = there.map(|member| (member.world, member.address)).unwrap();
    bed.controller.leave(there.0, there.1).unwrap();
    bed.exchange();
    let left: Vec<u16> = (0..4).filter(|at| *at != root.0 - 1).collect();
    bed.are_peers(&left);
    assert!(bed.branches(usize::from(root.0) - 1).is_empty());
}

#[test]
fn a_link_that_is_full_refuses_a_member_and_keeps_a_new_relay_outside() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for at in 0..3 {
        bed.enter(at as u8, at, 300_000).unwrap();
    }
    bed.enter(10, 1, 500_000).unwrap();
    let refusal = bed.enter(11, 1, 200_000).unwrap_err().to_string();
    assert!(refusal.contains("the link") && refusal.contains("from r1 to"), "{refusal}");
    assert!(refusal.contains("200000 bit/s") && refusal.contains("100000 bit/s"), "{refusal}");
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_world_gets_a_mesh_and_another_core_and_a_mesh_is_not_moved() {
    let mut bed = Bed::new(&ALL, Core::Center);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    let set = |bed: &mut Bed, core| {
        let changes = WorldChanges { core: Some(core), ..WorldChanges::default() };
        bed.controller.set_world(&world(), changes).unwrap();
        bed.exchange();
    };
    set(&mut bed, Core::Mesh);
    bed.are_peers(&[0, 1, 2, 3]);
    let refusal = bed.controller.move_world(&world(), TreeAsk::default()).unwrap_err();
    assert!(refusal.to_string().contains("its core is a mesh"), "{refusal}");
    assert!(bed.controller.improve(bed.comtree()).contains("its core is a mesh"));
    set(&mut bed, Core::All);
    for at in 0..4 {
        let roles = bed.roles(at);
        assert!(!roles.is_empty() && roles.iter().all(|(_, role)| *role == Role::Core));
    }
    assert_eq!(bed.controller.mesh(bed.comtree()), []);
}
