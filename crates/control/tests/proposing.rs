//! Links that the controller proposes, with relays that measure each other over a network of which the
//! test says how long its ways are.

use canopy_control::signal::{Measured, Message, Reading, Role};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, Core, Downlink, Enter, Event, Item, ItemKey, LinkId, LinkReport, Mode, Name,
    NewRelay, NewWorld, Origin, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

const DEGREE: usize = 3;
/// Within a region, and between two.
const NEAR: u32 = 2_000;
const FAR: u32 = 40_000;

/// What a relay says of the way to another; nothing if it says nothing.
type Lie = Box<dyn Fn(RelayId) -> Option<u32>>;

struct Bed {
    controller: Controller,
    storage: MemoryStorage,
    relays: Vec<(RelayId, RelaySide)>,
    /// How far two relays are from each other; nothing if they do not reach each other.
    far: Box<dyn Fn(RelayId, RelayId) -> Option<u32>>,
    /// How many of the relays, the first ones, know how to measure.
    measure: usize,
    /// One that says what it likes: of others when it is asked, and of its links.
    liar: Option<(RelayId, Lie)>,
    settings: Settings,
    now: Time,
    added: usize,
    removed: BTreeSet<LinkId>,
    most_at_once: usize,
}

fn limits(bits: f64) -> Limits {
    let rate = Rate { bits, packets: bits };
    Limits { send: rate, receive: rate }
}

/// Every second relay is in the second region.
fn two_regions(one: RelayId, other: RelayId) -> Option<u32> {
    let near = NEAR + u32::from(one.0 * 7 % 5 + other.0 * 7 % 5) * 50;
    Some(if one.0 % 2 == other.0 % 2 { near } else { FAR + near })
}

impl Bed {
    fn new(far: impl Fn(RelayId, RelayId) -> Option<u32> + 'static) -> Bed {
        let mut storage = MemoryStorage::default();
        let now = Time::from_millis(1000);
        let settings = Settings { degree: DEGREE, ..Settings::default() };
        let controller = Controller::start(settings, Retry::default(), now, &mut storage).unwrap();
        Bed {
            controller,
            storage,
            relays: Vec::new(),
            far: Box::new(far),
            measure: usize::MAX,
            liar: None,
            settings,
            now,
            added: 0,
            removed: BTreeSet::new(),
            most_at_once: 0,
        }
    }

    fn register(&mut self, uplink: f64) -> RelayId {
        let number = self.relays.len() as u16;
        let new = NewRelay {
            name: Name::new(&format!("r{number}")).unwrap(),
            key: [number as u8; 32],
            native: ([127, 0, 0, 1], 7000 + number).into(),
            uplink: limits(uplink),
            places: 9,
            comtrees: 1024,
        };
        let id = self.controller.register(self.now, new).unwrap();
        self.relays.push((id, RelaySide::new(1)));
        id
    }

    /// Goes on for so long. Returns what was told.
    fn go(&mut self, seconds: u64) -> Vec<Event> {
        let until = self.now + Duration::from_secs(seconds);
        let mut events = Vec::new();
        while self.now < until {
            self.now = self.now + Duration::from_millis(50);
            self.controller.handle_timeout(self.now);
            self.exchange();
            let before = (self.added, self.removed.len());
            while let Some(event) = self.controller.poll_event() {
                match event {
                    Event::LinkAdded(_) => self.added += 1,
                    Event::LinkRemoved(link) => _ = self.removed.insert(link),
                    _ => {}
                }
                events.push(event);
            }
            let changes = (self.added - before.0).max(self.removed.len() - before.1);
            self.most_at_once = self.most_at_once.max(changes);
        }
        events
    }

    fn exchange(&mut self) {
        while let Some(batch) = self.controller.poll_commit(self.now) {
            let result = self.storage.commit(&batch);
            self.controller.handle_commit(self.now, result).unwrap();
        }
        while let Some((to, bytes)) = self.controller.poll_transmit(self.now) {
            self.relays[usize::from(to.0) - 1].1.handle_message(&bytes);
        }
        for at in 0..self.relays.len() {
            self.work(at);
        }
    }

    /// What a relay says of the way to another.
    fn word(&self, of: RelayId, other: RelayId) -> Option<u32> {
        match &self.liar {
            Some((liar, lie)) if *liar == of => lie(other),
            _ => (self.far)(of, other),
        }
    }

    /// A relay does what it is told, and says how its links are.
    fn work(&mut self, at: usize) {
        let id = self.relays[at].0;
        if let Some(asked) = self.relays[at].1.poll_measure()
            && at < self.measure
        {
            let read = |other: RelayId| {
                let delay = self.word(id, other);
                let (delay_us, answered) = (delay.unwrap_or(0), u8::from(delay.is_some()) * 4);
                Reading { relay: other, delay_us, asked: 4, answered }
            };
            let readings = asked.others.iter().map(|other| read(other.relay)).collect();
            let (controller, round) = (asked.controller, asked.round);
            self.relays[at].1.measured(Measured { controller, round, readings });
        }
        let side = &mut self.relays[at].1;
        while let Some(applying) = side.poll_apply() {
            let key = applying.key();
            side.applied(applying, Ok(()));
            if let ItemKey::Comtree(comtree) = key {
                side.set_succeeded(self.now, comtree);
            }
        }
        let links = side.items().keys().filter_map(|key| match key {
            ItemKey::Link(link) => Some(*link),
            _ => None,
        });
        for link in links.collect::<Vec<_>>() {
            let Some(ends) = self.controller.link(link).map(|link| link.ends) else { continue };
            let other = if ends[0] == id { ends[1] } else { ends[0] };
            let up = (self.far)(id, other).is_some();
            let report = LinkReport { link, up, delay_us: self.word(id, other).unwrap_or(0) };
            self.relays[at].1.set_link(self.now, report);
        }
        let side = &mut self.relays[at].1;
        side.handle_timeout(self.now);
        while let Some(bytes) = side.poll_transmit() {
            self.controller.handle_message(self.now, id, &bytes);
        }
    }

    fn pairs(&self, is: impl Fn(Origin) -> bool) -> BTreeSet<(RelayId, RelayId)> {
        let links = self.controller.links().filter(|(link, _)| is(link.origin));
        links
            .map(|(link, _)| (link.ends[0].min(link.ends[1]), link.ends[0].max(link.ends[1])))
            .collect()
    }

    fn degrees(&self) -> BTreeMap<RelayId, usize> {
        let ends = self.controller.links().flat_map(|(link, _)| link.ends);
        ends.fold(BTreeMap::new(), |mut counts, end| {
            *counts.entry(end).or_default() += 1;
            counts
        })
    }

    /// How many relays hang together with the first over usable links.
    fn joined(&self) -> usize {
        let mut reached = BTreeSet::from([RelayId(1)]);
        loop {
            let before = reached.len();
            for (link, is_usable) in self.controller.links() {
                if is_usable && link.ends.iter().any(|end| reached.contains(end)) {
                    reached.extend(link.ends);
                }
            }
            if reached.len() == before {
                return before;
            }
        }
    }

    fn enter(&mut self, owner: u8, near: RelayId) {
        let world = Name::new("w").unwrap();
        if self.controller.world(&world).is_err() {
            let new = NewWorld {
                name: world.clone(),
                comtrees: 1,
                channels: Vec::new(),
                levels: 1,
                mode: Mode::Immediate,
                downlink: Downlink::Member,
                default: limits(1_000.0),
                core: Core::Center,
                sharing: canopy_control::Sharing::default(),
            };
            self.controller.create_world(new).unwrap();
        }
        let ask = Enter::new(world, [owner; 16], vec![(near, 1)]);
        self.controller.enter(self.now, &ask).unwrap();
    }
}

#[test]
fn proposed_links_follow_what_relays_measure() {
    let mut bed = Bed::new(two_regions);
    (0..6).for_each(|_| _ = bed.register(1e9));
    assert_eq!(bed.pairs(|of| of == Origin::Unmeasured).len(), 12, "all are joined at once");
    bed.go(20);
    assert!(bed.pairs(|of| matches!(of, Origin::Unmeasured | Origin::Given)).is_empty());
    let links = bed.pairs(|_| true);
    let across = links.iter().filter(|(one, other)| one.0 % 2 != other.0 % 2).count();
    assert_eq!(across, 2, "{links:?}: the regions are joined twice");
    assert!(bed.degrees().values().all(|degree| *degree <= DEGREE), "{links:?}");
    assert_eq!(bed.joined(), 6);
    // Nothing has to be exchanged any more, however often they measure.
    let before = (bed.added, bed.removed.len());
    bed.go(200);
    assert_eq!((bed.added, bed.removed.len()), before);
    assert_eq!(bed.controller.ignored(), canopy_control::Ignored::default());
}

#[test]
fn a_relay_that_comes_later_is_joined_where_it_is_near() {
    let mut bed = Bed::new(two_regions);
    (0..6).for_each(|_| _ = bed.register(1e9));
    bed.go(20);
    let new = bed.register(1e9);
    bed.go(20);
    let links = bed.pairs(|_| true);
    let mine: Vec<_> = links.iter().filter(|of| of.0 == new || of.1 == new).collect();
    assert!(mine.len() >= 2 && mine.iter().any(|of| of.0.0 % 2 == of.1.0 % 2), "{mine:?}");
    assert_eq!(bed.joined(), 7);
}

#[test]
fn given_links_stay_and_are_not_made_twice() {
    let mut bed = Bed::new(two_regions);
    let ids: Vec<RelayId> = (0..6).map(|_| bed.register(1e9)).collect();
    // From region to region, where nobody would propose so many.
    let given = [(0, 1), (0, 3), (2, 5), (4, 1)].map(|(from, to)| [ids[from], ids[to]]);
    let given = given.map(|ends| bed.controller.add_link(ends, limits(1e6).send, 1).unwrap());
    bed.go(60);
    let is_there =
        |link: &LinkId| bed.controller.link(*link).is_some_and(|link| link.origin == Origin::Given);
    assert!(given.iter().all(is_there));
    let of_given: BTreeSet<_> = bed.pairs(|of| of == Origin::Given);
    assert!(bed.pairs(Origin::is_proposed).is_disjoint(&of_given));
    assert_eq!(bed.joined(), 6);
}

#[test]
fn nothing_is_measured_and_everything_is_as_before() {
    let mut bed = Bed::new(two_regions);
    bed.measure = 0;
    for number in 0..12_usize {
        let id = bed.register(1e6 * (number + 3) as f64);
        let links = bed.pairs(|of| of == Origin::Unmeasured).len();
        let before: usize = (0..number).map(|before| before.min(DEGREE)).sum();
        // The first has an uplink for two.
        assert!(
            links <= before + number.min(DEGREE) && bed.degrees().contains_key(&id) == (number > 0)
        );
    }
    bed.go(100);
    let links = bed.pairs(|of| of == Origin::Unmeasured);
    assert_eq!((links.len(), bed.removed.len()), (bed.added, 0));
    let first = bed.controller.links().map(|(link, _)| link).next().unwrap();
    assert_eq!(first.rate.bits, 3e6, "the weaker end's");
    assert!(
        bed.degrees().values().all(|degree| (1..=2 * DEGREE).contains(degree)),
        "{:?}",
        bed.degrees()
    );
}

#[test]
fn relays_that_cannot_measure_keep_what_they_have() {
    let mut bed = Bed::new(two_regions);
    bed.measure = 4;
    // The last two are of an earlier release, and nobody reaches them but over links.
    let far = |one: RelayId, other: RelayId| two_regions(one, other);
    bed.far = Box::new(far);
    (0..6).for_each(|_| _ = bed.register(1e9));
    bed.go(60);
    assert_eq!(bed.joined(), 6);
}

#[test]
fn who_has_a_small_uplink_has_few_links() {
    let mut bed = Bed::new(|_, _| Some(NEAR));
    let small = bed.register(1_500_000.0);
    (0..5).for_each(|_| _ = bed.register(1e9));
    bed.go(20);
    assert!(bed.degrees()[&small] <= 2, "{:?}", bed.degrees());
    assert_eq!(bed.joined(), 6);
}

/// Eleven relays along a line, each so many places from the one with the number before.
fn along_a_line(step: u16) -> impl Fn(RelayId, RelayId) -> Option<u32> {
    move |one, other| {
        let [one, other] = [one, other].map(|of| of.0 * step % 11);
        Some(u32::from(one.abs_diff(other)) * 10_000)
    }
}

#[test]
fn a_link_that_carries_a_tree_goes_once_the_tree_has_left_it() {
    let mut bed = Bed::new(along_a_line(1));
    let ids: Vec<RelayId> = (0..10).map(|_| bed.register(1e9)).collect();
    bed.go(20);
    (0..10).for_each(|at| bed.enter(at as u8, ids[at]));
    bed.go(5);
    let tree = |bed: &Bed| -> BTreeSet<LinkId> {
        let comtree = bed.controller.worlds().next().unwrap().comtrees[0];
        let hops = bed.controller.tree(comtree);
        hops.iter().filter_map(|hop| hop.above.map(|(_, link)| link)).collect()
    };
    let used = tree(&bed);
    assert_eq!(used.len(), 9);
    // The network is another one now.
    bed.far = Box::new(along_a_line(4));
    for _ in 0..30 {
        let events = bed.go(20);
        (0..10).for_each(|at| bed.enter(at as u8, ids[at]));
        let lost = |event: &Event| {
            matches!(event, Event::Broken { .. } | Event::Left { .. } | Event::Refused { .. })
        };
        assert!(!events.iter().any(lost), "{events:?}");
        assert!(tree(&bed).is_disjoint(&bed.removed), "what a tree runs over stays");
    }
    assert_eq!(bed.joined(), 10);
    assert!(!bed.removed.is_disjoint(&used), "the tree has left some");
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// Nine relays of two regions, and the tenth far from all of them, which says this of the ways to others.
/// A relay whose parent's link failed uses its standby parent, and has yet to return.
#[test]
fn the_link_to_a_standby_parent_that_is_used_stays() {
    let mut bed = Bed::new(along_a_line(1));
    let ids: Vec<RelayId> = (0..10).map(|_| bed.register(1e9)).collect();
    bed.go(20);
    (0..10).for_each(|at| bed.enter(at as u8, ids[at]));
    bed.go(5);
    let comtree = bed.controller.worlds().next().unwrap().comtrees[0];
    let standby =
        |(_, side): &(RelayId, RelaySide)| match side.items().get(&ItemKey::Comtree(comtree)) {
            Some(Item::Comtree { branches, .. }) => {
                branches.iter().find(|of| of.role == Role::StandbyParent).map(|of| of.link)
            }
            _ => None,
        };
    let standbys: Vec<Option<LinkId>> = bed.relays.iter().map(standby).collect();
    let links: BTreeSet<LinkId> = standbys.iter().flatten().copied().collect();
    assert!(links.len() > 2, "{links:?}");
    let now = bed.now;
    for ((_, side), _) in bed.relays.iter_mut().zip(&standbys).filter(|(_, has)| has.is_some()) {
        side.set_detours(now, [comtree]);
    }
    bed.far = Box::new(along_a_line(4));
    let go = |bed: &mut Bed| {
        bed.go(20);
        (0..10).for_each(|at| bed.enter(at as u8, ids[at]));
    };
    (0..10).for_each(|_| go(&mut bed));
    assert!(!bed.removed.is_empty() && links.is_disjoint(&bed.removed), "{links:?}");
    let now = bed.now;
    bed.relays.iter_mut().for_each(|(_, side)| side.set_detours(now, []));
    (0..10).for_each(|_| go(&mut bed));
    assert!(!links.is_disjoint(&bed.removed), "{links:?}");
}

fn with_a_liar(lie: impl Fn(RelayId) -> Option<u32> + 'static) -> Bed {
    let mut bed = Bed::new(|one, other| {
        let is_liar = one.0 == 10 || other.0 == 10;
        if is_liar { Some(2 * FAR) } else { two_regions(one, other) }
    });
    let ids: Vec<RelayId> = (0..10).map(|_| bed.register(1e9)).collect();
    bed.liar = Some((ids[9], Box::new(lie)));
    bed.go(20);
    ids[..9].iter().for_each(|id| bed.enter(id.0 as u8, *id));
    for _ in 0..12 {
        bed.go(20);
        ids[..9].iter().for_each(|id| bed.enter(id.0 as u8, *id));
    }
    bed
}

/// The links that are not the liar's.
fn of_others(bed: &Bed) -> BTreeSet<(RelayId, RelayId)> {
    let mut links = bed.pairs(|_| true);
    links.retain(|(_, other)| other.0 != 10);
    links
}

/// Nobody's tree leads over the liar, and the others hang together without it.
fn assert_nobody_needs_the_liar(bed: &Bed) {
    let comtree = bed.controller.worlds().next().unwrap().comtrees[0];
    let tree: Vec<RelayId> = bed.controller.tree(comtree).iter().map(|hop| hop.relay).collect();
    assert_eq!(tree.len(), 9, "{tree:?}");
    assert!(!tree.contains(&RelayId(10)), "{tree:?}");
    let links = of_others(bed);
    let mut reached = BTreeSet::from([RelayId(1)]);
    for _ in 0..9 {
        let touch = |of: &&(RelayId, RelayId)| reached.contains(&of.0) || reached.contains(&of.1);
        let more: Vec<_> = links.iter().filter(touch).flat_map(|of| [of.0, of.1]).collect();
        reached.extend(more);
    }
    assert_eq!(reached.len(), 9, "{links:?}");
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn whoever_says_that_it_is_near_everybody_draws_no_tree_through_it() {
    let honest = with_a_liar(|_| Some(2 * FAR));
    let lying = with_a_liar(|_| Some(1));
    assert_eq!(of_others(&lying), of_others(&honest), "it has changed nothing");
    assert_eq!(lying.pairs(|_| true), honest.pairs(|_| true), "not even its own links");
    let mut links = lying.controller.links().filter(|(link, _)| link.ends.contains(&RelayId(10)));
    assert!(links.all(|(link, _)| link.delay_us >= 2 * FAR * 9 / 10), "nobody took its word");
    assert_nobody_needs_the_liar(&lying);
}

#[test]
fn whoever_says_nothing_or_that_it_is_far_parts_nobody() {
    for lie in [|_: RelayId| Some(9_000_000), |_: RelayId| None] {
        let bed = with_a_liar(lie);
        assert_nobody_needs_the_liar(&bed);
        assert_eq!(bed.joined(), 10, "it is joined all the same");
    }
}

#[test]
fn whoever_says_something_else_each_time_moves_no_others_links() {
    let said = core::cell::Cell::new(0_u32);
    let bed = with_a_liar(move |other| {
        said.set(said.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        [Some(1), None, Some(9_000_000)][(usize::from(other.0) + (said.get() >> 28) as usize) % 3]
    });
    assert_nobody_needs_the_liar(&bed);
}

#[test]
fn where_a_link_was_taken_away_others_are_proposed_soon() {
    // Links are looked at every 30 s anyway.
    [20, 27, 34, 41].into_iter().for_each(joined_anew_soon_after);
}

fn joined_anew_soon_after(before: u64) {
    let mut bed = Bed::new(two_regions);
    (0..6).for_each(|_| _ = bed.register(1e9));
    bed.go(before);
    let across: Vec<LinkId> = {
        let links = bed.controller.links().map(|(link, _)| link);
        links.filter(|link| link.ends[0].0 % 2 != link.ends[1].0 % 2).map(|link| link.id).collect()
    };
    across.into_iter().for_each(|link| bed.controller.remove_link(link).unwrap());
    assert_eq!(bed.joined(), 3);
    bed.go(5);
    assert_eq!(bed.joined(), 6, "after {before} s");
}

#[test]
fn a_link_that_others_do_without_is_not_proposed_again_at_once() {
    let mut bed = Bed::new(|_, _| Some(NEAR));
    (0..3).for_each(|_| _ = bed.register(1e9));
    bed.go(40);
    let link = bed.controller.links().next().unwrap().0.id;
    bed.controller.remove_link(link).unwrap();
    bed.go(10);
    assert_eq!((bed.controller.links().count(), bed.joined()), (2, 3));
    bed.go(30);
    assert_eq!(bed.controller.links().count(), 3, "they are looked at every half minute");
}

/// Its world would stay over it otherwise.
#[test]
fn whoever_is_joined_only_by_a_relay_that_drains_is_joined_with_others_soon() {
    // Links are looked at every 30 s anyway.
    for before in [60, 67, 74, 81] {
        let mut bed = Bed::new(|_, _| Some(NEAR));
        let ids: Vec<RelayId> = (0..5).map(|_| bed.register(1e9)).collect();
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 4)];
        for (from, to) in pairs {
            bed.controller.add_link([ids[from], ids[to]], limits(1e9).send, 1).unwrap();
        }
        bed.go(before);
        let of_last = |bed: &Bed| bed.degrees()[&ids[4]];
        assert_eq!(of_last(&bed), 1, "the others have as many links as they may have");
        bed.controller.drain(ids[0], true).unwrap();
        bed.go(5);
        assert_eq!(of_last(&bed), 2, "after {before} s");
    }
}

/// The links that such relays were given at first are never heard, and nobody says how far they are.
#[test]
fn whoever_is_joined_with_relays_that_nobody_reaches_is_joined_with_others_as_well() {
    let is_reached = |of: RelayId| of.0 % 3 == 1;
    let far =
        move |one, other| two_regions(one, other).filter(|_| is_reached(one) && is_reached(other));
    let mut bed = Bed::new(far);
    let ids: Vec<RelayId> = (0..30).map(|_| bed.register(1e9)).collect();
    bed.go(60);
    assert_eq!(bed.joined(), ids.iter().filter(|id| is_reached(**id)).count());
    let links = bed.controller.links().filter(|(_, is_usable)| *is_usable);
    let ends: Vec<RelayId> = links.flat_map(|(link, _)| link.ends).collect();
    let degree = |of: &RelayId| ends.iter().filter(|end| *end == of).count();
    assert!(ids.iter().all(|id| degree(id) <= DEGREE), "{ends:?}");
}

#[test]
fn a_controller_that_starts_again_goes_on_with_what_is_stored() {
    let mut bed = Bed::new(two_regions);
    let ids: Vec<RelayId> = (0..6).map(|_| bed.register(1e9)).collect();
    let given = bed.controller.add_link([ids[0], ids[1]], limits(1e6).send, 1).unwrap();
    bed.go(30);
    let origins = |bed: &Bed| -> Vec<_> {
        bed.controller.links().map(|(link, _)| (link.id, link.origin)).collect()
    };
    let before = origins(&bed);
    bed.controller =
        Controller::start(bed.settings, Retry::default(), bed.now, &mut bed.storage).unwrap();
    assert_eq!(origins(&bed), before);
    bed.go(90);
    assert_eq!(origins(&bed), before, "the same is measured, so nothing changes");
    assert_eq!(bed.controller.link(given).unwrap().origin, Origin::Given);
}

#[test]
fn few_links_are_exchanged_at_a_time() {
    let mut bed = Bed::new(two_regions);
    (0..40).for_each(|_| _ = bed.register(1e9));
    bed.go(1);
    bed.most_at_once = 0;
    bed.go(300);
    assert!(bed.most_at_once <= 8, "{}", bed.most_at_once);
    assert!(bed.pairs(|of| of == Origin::Unmeasured).is_empty());
    assert_eq!(bed.joined(), 40);
    let degrees = bed.degrees();
    assert!(degrees.values().all(|degree| *degree <= DEGREE), "{degrees:?}");
}

#[test]
fn a_network_that_changes_as_a_whole_is_written_down_in_parts() {
    let mut bed = Bed::new(two_regions);
    (0..100).for_each(|_| _ = bed.register(1e9));
    // Each commit has a bound, which the store enforces.
    bed.go(150);
    bed.far = Box::new(|one, other| two_regions(one, other).map(|delay| 3 * delay));
    bed.go(60);
    let follows = bed.controller.links().filter(|(link, _)| {
        let far = 3 * two_regions(link.ends[0], link.ends[1]).unwrap();
        link.delay_us >= far * 8 / 10
    });
    assert_eq!(follows.count(), bed.controller.links().count());
    let unmeasured = bed.pairs(|of| of == Origin::Unmeasured).len();
    assert_eq!((unmeasured, bed.joined()), (0, 100), "what was made before is exchanged");
}

#[test]
fn what_cannot_be_read_or_was_not_asked_is_counted() {
    let mut bed = Bed::new(two_regions);
    let id = bed.register(1e9);
    bed.controller.handle_message(bed.now, id, &[1, 4, 0]);
    let reading = Reading { relay: RelayId(9), delay_us: 1, asked: 1, answered: 1 };
    let told = Measured { controller: 7, round: 7, readings: vec![reading] };
    bed.controller.handle_message(bed.now, id, &Message::Measured(told).encode());
    let ignored = bed.controller.ignored();
    assert_eq!((ignored.unreadable, ignored.late), (1, 1));
}
