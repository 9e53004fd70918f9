//! Detours: a relay whose link to its parent on a comtree has failed uses its standby parent, if its
//! controller does not say otherwise in time. Without a controller, and without a standby parent, it looks for another
//! [way](ways).

use canopy_control::signal::{Branch, FoundWay, Role};
use canopy_control::{Item, ItemKey, LinkId, WORD_COMES};
use canopy_plan::Rate;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time, WaySearch, WayWord};
use core::time::Duration;
use std::borrow::Cow;
use std::collections::BTreeMap;
use ways::{AllWays, Place};

pub use ways::Said;

mod ways;

/// The controller has so long to give a comtree another tree after a link has failed.
const PATIENCE: Duration = Duration::from_millis(300);
/// The link to a parent is used again once it has been up for so long.
const STEADY: Duration = Duration::from_secs(5);
/// How long after it is back the controller has named whoever came as a child over a way that was found.
const ALL_NAMED: Duration = Duration::from_secs(20);
// Relays connect within eight seconds, and the controller has to tell them.
const _: () = assert!(ALL_NAMED.as_secs() >= 8 + WORD_COMES.as_secs() + 4);
/// How long after that moment standby parents are used again: no relay is a child any more that the controller has not
/// named, though relays have heard of it at different times.
const ALL_RANKED: Duration = Duration::from_secs(25);
/// How long after the controller is back any branch may bring what its link bears. If the link to a parent is up by then, the
/// detour is over some nine seconds later: the link is steady after [`STEADY`], and the way back without loss takes some four
/// seconds. Such a detour may wait for [`ALL_RANKED`] before.
const ALL_BACK: Duration = Duration::from_secs(35);

/// What a controller wants a relay to have.
pub type Items = BTreeMap<ItemKey, Item>;

/// Whether there is a controller, which reserves for what detours bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Controller {
    /// There has not been one yet, nor a comtree to take a detour on.
    #[default]
    NotYet,
    There,
    Gone,
    /// It is there again since then, and elsewhere detours may last for which it does not reserve.
    BackSince(Time),
}

/// Where a detour stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The standby parent is the parent.
    Away,
    /// It is, and the parent is about to succeed it without loss.
    Returning,
}

/// Whether a link is up, and since when.
#[derive(Clone, Copy, Debug)]
struct Heard {
    up: bool,
    since: Time,
}

/// How links stand, by the neighbour's key.
#[derive(Clone, Debug, Default)]
struct Links(BTreeMap<PublicKey, Heard>);

impl Links {
    fn heard(&self, items: &Items, link: LinkId) -> Option<Heard> {
        match items.get(&ItemKey::Link(link)) {
            Some(Item::Link { key, .. }) => self.0.get(key).copied(),
            _ => None,
        }
    }

    /// Whether the neighbour is heard, as far as it is known.
    fn is_up(&self, items: &Items, link: LinkId) -> bool {
        self.heard(items, link).is_none_or(|heard| heard.up)
    }
}

/// The detours of a relay, by comtree. What it is told of its links and its controller makes them begin
/// and end; what the controller wants stays as it is, and [`Detours::apply_to`] says what the data plane
/// is to have instead.
#[derive(Clone, Debug, Default)]
pub struct Detours {
    links: Links,
    controller: Controller,
    /// Whether branches may be brought what their links bear: while nobody can reserve for detours.
    is_unlimited: bool,
    /// With the standby parent's link.
    on: BTreeMap<Comtree, (LinkId, Stage)>,
    ways: AllWays,
}

/// What a comtree's item says of the way up.
#[derive(Clone, Copy)]
struct WaysUp {
    parent: Option<LinkId>,
    standby: LinkId,
}

impl Detours {
    /// None, of a relay whose clock showed nothing this long after the Unix epoch.
    pub fn new(origin: Duration) -> Detours {
        Detours { ways: AllWays::new(origin), ..Detours::default() }
    }

    /// A data thread says that a link has come up, or gone down.
    pub fn hear_link(&mut self, now: Time, neighbour: PublicKey, up: bool) {
        let heard = self.links.0.entry(neighbour).or_insert(Heard { up, since: now });
        if heard.up != up {
            *heard = Heard { up, since: now };
        }
    }

    /// Whether there is a channel to the controller. Without one nobody is waited for.
    pub fn set_controller(&mut self, now: Time, is_there: bool) {
        let was = self.controller;
        self.controller = match (was, is_there) {
            (Controller::NotYet, true) => Controller::There,
            (Controller::Gone, true) => Controller::BackSince(now),
            (Controller::There | Controller::BackSince(_), false) => Controller::Gone,
            (same, _) => same,
        };
        if was == Controller::Gone && is_there {
            // Who has found its parent again is on no detour.
            let ways = &self.ways;
            self.on.retain(|comtree, _| ways.found(*comtree).is_none());
            self.ways.end_searches();
        }
    }

    fn has_controller(&self) -> bool {
        matches!(self.controller, Controller::There | Controller::BackSince(_))
    }

    /// Begins and ends detours, as it is time for `items`, and lifts limits while there is no controller.
    /// Returns whether that changes what the data plane is to have.
    pub fn review(&mut self, now: Time, items: &Items) -> bool {
        let back = match self.controller {
            Controller::BackSince(at) => Some(now.since(at)),
            _ => None,
        };
        let is_past = |after: Duration| back.is_some_and(|back| back >= after);
        let mut has_changed = is_past(ALL_NAMED) && self.ways.forget_standings();
        if is_past(ALL_RANKED) || self.controller == Controller::There {
            self.ways.forget_passed();
        }
        if is_past(ALL_BACK) {
            self.controller = Controller::There;
        }
        let is_unlimited = matches!(self.controller, Controller::Gone | Controller::BackSince(_));
        let was_unlimited = core::mem::replace(&mut self.is_unlimited, is_unlimited);
        let has_item = |comtree: &Comtree| items.contains_key(&ItemKey::Comtree(*comtree));
        let before = self.on.len();
        self.on.retain(|comtree, _| has_item(comtree));
        has_changed |= self.on.len() < before || is_unlimited != was_unlimited;
        has_changed |= self.ways.review_found(items);
        for (comtree, branches) in comtrees(items) {
            let before = self.on.get(&comtree).copied();
            // Ranks say nothing of ways that were found.
            if self.ways.has_passed(comtree) || self.ways.found(comtree).is_some() {
                continue;
            }
            let after = ways_up(branches).and_then(|ways| self.next(now, items, before, ways));
            has_changed |= before != after;
            match after {
                Some(after) => _ = self.on.insert(comtree, after),
                None => _ = self.on.remove(&comtree),
            }
        }
        self.ways.say_again(now, items);
        if self.controller == Controller::Gone {
            let is_up = |link| self.links.is_up(items, link);
            for (comtree, _) in comtrees(items) {
                let Some(place) = self.place(items, comtree) else { continue };
                self.ways.seek(now, &place, items, &is_up);
            }
        }
        has_changed
    }

    /// A neighbour says something of a search, which counts while there is no controller. Returns whether that changes what
    /// the data plane is to have.
    pub fn hear_search(
        &mut self,
        now: Time,
        items: &Items,
        neighbour: &PublicKey,
        comtree: Comtree,
        search: WaySearch,
    ) -> bool {
        let is_taken = matches!(search.word, WayWord::Taken(_) | WayWord::Ended(_));
        if !is_taken && self.controller != Controller::Gone {
            return false;
        }
        let from = items.range(..FIRST_COMTREE).find_map(|(_, item)| match item {
            Item::Link { id, key, .. } if key == neighbour => Some(*id),
            _ => None,
        });
        let Some(from) = from else { return false };
        let Some(place) = self.place(items, comtree) else { return false };
        if !place.branches.iter().any(|of| of.link == from) {
            return false;
        }
        let is_up = |link| self.links.is_up(items, link);
        match search.word {
            WayWord::Ended(number) => self.ways.hear_ended(comtree, from, number),
            WayWord::Taken(_) => {
                let may_lend = match self.controller {
                    Controller::Gone => true,
                    Controller::BackSince(at) => now.since(at) < ALL_NAMED,
                    Controller::NotYet | Controller::There => false,
                };
                self.ways.hear_taken(&place, items, (from, search), may_lend)
            }
            _ => self.ways.hear(now, &place, items, &is_up, (from, search)),
        }
    }

    /// Where the relay is on a comtree.
    fn place<'a>(&self, items: &'a Items, comtree: Comtree) -> Option<Place<'a>> {
        let Some(Item::Comtree { site, branches, .. }) = items.get(&ItemKey::Comtree(comtree))
        else {
            return None;
        };
        let parent = parent(&self.on, comtree, branches);
        Some(Place { comtree, site: *site, branches, parent })
    }

    /// What is to be said to a neighbour next.
    pub fn poll_said(&mut self) -> Option<Said> {
        self.ways.poll_said()
    }

    fn next(
        &self,
        now: Time,
        items: &Items,
        before: Option<(LinkId, Stage)>,
        WaysUp { parent, standby }: WaysUp,
    ) -> Option<(LinkId, Stage)> {
        let heard = |link| self.links.heard(items, link);
        let is_up = |link| self.links.is_up(items, link);
        let stage = before.filter(|(over, _)| *over == standby).map(|(_, stage)| stage);
        let away = Some((standby, Stage::Away));
        // Between two trees there is none; a standby parent that is the parent stays it. It becomes that only
        // if nobody goes on with the trees: neighbours may have branches still that are about to go, and
        // with them goes what was asked over them.
        let Some(parent) = parent else {
            let may = stage.is_some() || !self.has_controller();
            return away.filter(|_| may && is_up(standby));
        };
        match (heard(parent).filter(|heard| !heard.up), stage) {
            (Some(down), None) => {
                let wait = if self.has_controller() { PATIENCE } else { Duration::ZERO };
                away.filter(|_| is_up(standby) && down.since + wait <= now)
            }
            (Some(_), Some(_)) => away.filter(|_| is_up(standby)),
            (None, None) => None,
            (None, Some(_)) if !is_up(standby) => None,
            (None, Some(stage)) => {
                let steady = heard(parent).is_none_or(|heard| heard.since + STEADY <= now);
                Some((standby, if steady { Stage::Returning } else { stage }))
            }
        }
    }

    /// When [`Detours::review`] may have something to do though nothing is heard.
    pub fn poll_timeout(&self, now: Time, items: &Items) -> Option<Time> {
        let due = comtrees(items).filter_map(|(_, branches)| {
            let heard = self.links.heard(items, ways_up(branches)?.parent?)?;
            Some(heard.since + if heard.up { STEADY } else { PATIENCE })
        });
        let limits = match self.controller {
            Controller::BackSince(at) => [ALL_NAMED, ALL_RANKED, ALL_BACK].map(|of| Some(at + of)),
            _ => [None; 3],
        };
        due.chain(limits.into_iter().flatten())
            .chain(self.ways.poll_timeout())
            .filter(|due| *due > now)
            .min()
    }

    /// The data plane says that a comtree's next parent is the way to the core. Returns whether that
    /// ends a detour; otherwise it is the controller's to know.
    pub fn succeeded(&mut self, comtree: Comtree) -> bool {
        let is_back = self.on.get(&comtree).is_some_and(|(_, stage)| *stage == Stage::Returning);
        if is_back {
            self.on.remove(&comtree);
        }
        is_back
    }

    /// Whether a comtree has a detour now.
    pub fn has(&self, comtree: Comtree) -> bool {
        self.comtrees().any(|of| of == comtree)
    }

    /// The ways that were found.
    pub fn ways(&self) -> impl Iterator<Item = FoundWay> + '_ {
        self.ways.all_found()
    }

    /// The comtrees with detours now.
    pub fn comtrees(&self) -> impl Iterator<Item = Comtree> + '_ {
        let found = self.ways().map(|way| way.comtree);
        found.chain(self.on.keys().copied().filter(|on| self.ways.found(*on).is_none()))
    }

    /// What the data plane is to have: the standby parents of detours are parents, and while nobody can
    /// reserve for detours, any branch may be brought what its link bears. A relay does not know what
    /// detours elsewhere lead to it.
    pub fn apply_to<'a>(&self, items: &'a Items) -> Cow<'a, Items> {
        let mut applied = Cow::Borrowed(items);
        for (comtree, (over, stage)) in &self.on {
            if self.ways.found(*comtree).is_some() {
                continue;
            }
            let Some(capacity) = capacity(items, *over) else { continue };
            let item = applied.to_mut().get_mut(&ItemKey::Comtree(*comtree));
            let Some(Item::Comtree { branches, .. }) = item else { continue };
            let stays =
                |of: &Branch| *stage == Stage::Returning || self.ways.may_come(*comtree, of.link);
            branches.retain(|of| of.role != Role::Parent || stays(of));
            for branch in branches {
                match branch.role {
                    Role::Parent => branch.role = Role::NextParent,
                    Role::StandbyParent => {
                        branch.role = Role::Parent;
                        branch.receive = capacity;
                    }
                    _ => {}
                }
            }
        }
        for comtree in self.ways.comtrees() {
            let item = applied.to_mut().get_mut(&ItemKey::Comtree(comtree));
            let Some(Item::Comtree { branches, .. }) = item else { continue };
            let Some(place) = self.place(items, comtree) else { continue };
            self.ways.apply_to(&place, branches, items);
        }
        if self.is_unlimited {
            for (_, item) in applied.to_mut().range_mut(FIRST_COMTREE..) {
                let Item::Comtree { branches, .. } = item else { break };
                for branch in branches {
                    branch.receive = capacity(items, branch.link).unwrap_or(branch.receive);
                }
            }
        }
        applied
    }
}

/// Items of comtrees follow one another.
const FIRST_COMTREE: ItemKey = ItemKey::Comtree(Comtree(0));

fn capacity(items: &Items, link: LinkId) -> Option<Rate> {
    match items.get(&ItemKey::Link(link)) {
        Some(Item::Link { capacity, .. }) => Some(*capacity),
        _ => None,
    }
}

fn comtrees(items: &Items) -> impl Iterator<Item = (Comtree, &[Branch])> {
    items.range(FIRST_COMTREE..).map_while(|(_, item)| match item {
        Item::Comtree { id, branches, .. } => Some((*id, &branches[..])),
        _ => None,
    })
}

/// The parent by the controller's word, or the standby parent on a detour.
fn parent(
    on: &BTreeMap<Comtree, (LinkId, Stage)>,
    comtree: Comtree,
    branches: &[Branch],
) -> Option<LinkId> {
    let wanted = branches.iter().find(|of| of.role == Role::Parent).map(|of| of.link);
    on.get(&comtree).map(|(over, _)| *over).or(wanted)
}

fn ways_up(branches: &[Branch]) -> Option<WaysUp> {
    let with = |role| branches.iter().find(|of| of.role == role).map(|of| of.link);
    // Who has a next parent, or is in the core, is on its way elsewhere.
    let is_elsewhere =
        |of: &Branch| matches!(of.role, Role::NextParent | Role::Core) || of.role.is_peer();
    let is_settled = !branches.iter().any(is_elsewhere);
    let standby = with(Role::StandbyParent).filter(|_| is_settled)?;
    Some(WaysUp { parent: with(Role::Parent), standby })
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::{Downlink, Mode, Name};

    const COMTREE: Comtree = Comtree(16);
    const PARENT: [u8; 32] = [1; 32];
    const STANDBY: [u8; 32] = [2; 32];

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn items(roles: &[(u32, Role)]) -> Items {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        let link = |number: u8| Item::Link {
            id: LinkId(u32::from(number)),
            key: [number; 32],
            native: ([127, 0, 0, 1], 4040).into(),
            calls: true,
            capacity: rate,
        };
        let branch = |(link, role): &(u32, Role)| Branch {
            link: LinkId(*link),
            site: *link as u16,
            role: *role,
            send: rate,
            receive: rate,
        };
        let comtree = Item::Comtree {
            id: COMTREE,
            world: Name::new("w").unwrap(),
            site: 9,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            levels: 1,
            sharing: canopy_control::Sharing::default(),
            branches: roles.iter().map(branch).collect(),
        };
        let all = [link(1), link(2), link(3), comtree];
        all.into_iter().map(|item| (item.key(), item)).collect()
    }

    fn usual() -> Items {
        items(&[(1, Role::Parent), (2, Role::StandbyParent), (3, Role::Child)])
    }

    fn roles(detours: &Detours, items: &Items) -> Vec<(u32, Role)> {
        let items = detours.apply_to(items);
        let (_, branches) = comtrees(&items).next().unwrap();
        branches.iter().map(|branch| (branch.link.0, branch.role)).collect()
    }

    #[test]
    fn the_controller_has_its_time_and_without_one_nobody_is_waited_for() {
        let items = usual();
        let mut detours = Detours::default();
        detours.set_controller(at(0), true);
        detours.hear_link(at(1_000), PARENT, false);
        assert!(!detours.review(at(1_000), &items));
        assert_eq!(detours.poll_timeout(at(1_000), &items), Some(at(1_300)));
        let mut alone = detours.clone();
        assert!(detours.review(at(1_300), &items));
        assert_eq!(roles(&detours, &items), [(2, Role::Parent), (3, Role::Child)]);
        alone.set_controller(at(1_000), false);
        assert!(alone.review(at(1_001), &items));
    }

    #[test]
    fn it_returns_without_loss_once_the_link_is_steady() {
        let items = usual();
        let mut detours = Detours::default();
        detours.hear_link(at(1_000), PARENT, false);
        assert!(detours.review(at(1_000), &items));
        detours.hear_link(at(2_000), PARENT, true);
        assert!(!detours.review(at(2_000), &items));
        assert_eq!(detours.poll_timeout(at(2_000), &items), Some(at(7_000)));
        assert!(detours.review(at(7_000), &items));
        let turning = [(1, Role::NextParent), (2, Role::Parent), (3, Role::Child)];
        assert_eq!(roles(&detours, &items), turning);
        assert!(detours.succeeded(COMTREE) && !detours.succeeded(COMTREE));
        let before = [(1, Role::Parent), (2, Role::StandbyParent), (3, Role::Child)];
        assert_eq!(roles(&detours, &items), before);
    }

    #[test]
    fn a_detour_ends_if_its_link_fails_or_the_controller_wants_another_tree() {
        let items = usual();
        let mut detours = Detours::default();
        detours.hear_link(at(1_000), STANDBY, false);
        detours.hear_link(at(1_000), PARENT, false);
        assert!(!detours.review(at(1_000), &items), "it leads nowhere");
        detours.hear_link(at(1_100), STANDBY, true);
        assert!(detours.review(at(1_100), &items));
        let other = super::tests::items(&[(3, Role::Parent)]);
        assert!(detours.clone().review(at(1_200), &other));
        // The tree that the relay has made itself: between the two, nothing changes.
        let between = super::tests::items(&[(2, Role::StandbyParent), (3, Role::Child)]);
        assert!(!detours.review(at(1_200), &between));
        assert_eq!(roles(&detours, &between), [(2, Role::Parent), (3, Role::Child)]);
        // Who had no detour begins none there, unless the controller has gone.
        let mut newcomer = Detours::default();
        newcomer.set_controller(at(0), true);
        newcomer.hear_link(at(1_000), PARENT, false);
        assert!(!newcomer.review(at(1_200), &between));
        newcomer.set_controller(at(1_200), false);
        assert!(newcomer.review(at(1_200), &between));
        let adopted = super::tests::items(&[(2, Role::Parent), (3, Role::Child)]);
        assert!(detours.review(at(1_300), &adopted));
        assert_eq!(roles(&detours, &adopted), [(2, Role::Parent), (3, Role::Child)]);
    }

    /// Nobody reserves for what a detour brings to relays above, and these do not know of it.
    #[test]
    fn branches_may_bring_what_their_links_bear_while_there_is_no_controller() {
        let most = Rate { bits: 9e9, packets: 9e6 };
        let mut items = items(&[(1, Role::Parent), (3, Role::Child)]);
        for (_, item) in items.range_mut(..FIRST_COMTREE) {
            let Item::Link { capacity, .. } = item else { continue };
            *capacity = most;
        }
        let reserved = Rate { bits: 1e6, packets: 1e3 };
        let receive = |detours: &Detours| -> Vec<Rate> {
            let items = detours.apply_to(&items);
            comtrees(&items).flat_map(|(_, of)| of.iter().map(|branch| branch.receive)).collect()
        };
        let mut detours = Detours::default();
        assert!(!detours.review(at(0), &items), "nothing is lifted before there is one");
        detours.set_controller(at(0), true);
        assert!(!detours.review(at(0), &items));
        assert_eq!(receive(&detours), [reserved; 2]);
        detours.set_controller(at(1_000), false);
        assert!(detours.review(at(1_000), &items));
        assert_eq!(receive(&detours), [most; 2]);
        // Until all detours are over, of which one may begin to return after 25 seconds, and no longer.
        detours.set_controller(at(2_000), true);
        for (now, next) in [(2_000, 22_000), (22_000, 27_000), (36_000, 37_000)] {
            assert!(!detours.review(at(now), &items));
            assert_eq!(detours.poll_timeout(at(now), &items), Some(at(next)));
            assert_eq!(receive(&detours), [most; 2]);
        }
        assert!(detours.review(at(37_000), &items));
        assert_eq!(receive(&detours), [reserved; 2]);
        assert_eq!(detours.poll_timeout(at(37_000), &items), None);
    }
}
