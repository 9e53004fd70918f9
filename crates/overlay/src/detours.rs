//! Detours: a relay whose link to its parent on a comtree has failed uses its standby parent, if its
//! controller does not say otherwise in time.

use canopy_control::signal::{Branch, Role};
use canopy_control::{Item, ItemKey, LinkId};
use canopy_plan::Rate;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The controller has so long to give a comtree another tree after a link has failed.
const PATIENCE: Duration = Duration::from_millis(300);
/// The link to a parent is used again once it has been up for so long.
const STEADY: Duration = Duration::from_secs(5);
/// How long after the controller is back any branch may bring what its link bears. If the link to a parent is up by then, the
/// detour is over some nine seconds later: the link is steady after [`STEADY`], and the way back without loss takes some four
/// seconds. The rest is for relays that the controller hears later.
const ALL_BACK: Duration = Duration::from_secs(15);

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

/// The detours of a relay, by comtree. What it is told of its links and its controller makes them begin
/// and end; what the controller wants stays as it is, and [`Detours::apply_to`] says what the data plane
/// is to have instead.
#[derive(Clone, Debug, Default)]
pub struct Detours {
    links: BTreeMap<PublicKey, Heard>,
    controller: Controller,
    /// Whether branches may be brought what their links bear: while nobody can reserve for detours.
    is_unlimited: bool,
    /// With the standby parent's link.
    on: BTreeMap<Comtree, (LinkId, Stage)>,
}

/// What a comtree's item says of the way up.
#[derive(Clone, Copy)]
struct WaysUp {
    parent: Option<LinkId>,
    standby: LinkId,
}

impl Detours {
    /// A data thread says that a link has come up, or gone down.
    pub fn hear_link(&mut self, now: Time, neighbour: PublicKey, up: bool) {
        let heard = self.links.entry(neighbour).or_insert(Heard { up, since: now });
        if heard.up != up {
            *heard = Heard { up, since: now };
        }
    }

    /// Whether there is a channel to the controller. Without one nobody is waited for.
    pub fn set_controller(&mut self, now: Time, is_there: bool) {
        self.controller = match (self.controller, is_there) {
            (Controller::NotYet, true) => Controller::There,
            (Controller::Gone, true) => Controller::BackSince(now),
            (Controller::There | Controller::BackSince(_), false) => Controller::Gone,
            (same, _) => same,
        };
    }

    fn has_controller(&self) -> bool {
        matches!(self.controller, Controller::There | Controller::BackSince(_))
    }

    /// Begins and ends detours, as it is time for `items`, and lifts limits while there is no controller.
    /// Returns whether that changes what the data plane is to have.
    pub fn review(&mut self, now: Time, items: &Items) -> bool {
        if matches!(self.controller, Controller::BackSince(at) if at + ALL_BACK <= now) {
            self.controller = Controller::There;
        }
        let is_unlimited = matches!(self.controller, Controller::Gone | Controller::BackSince(_));
        let was_unlimited = core::mem::replace(&mut self.is_unlimited, is_unlimited);
        let has_item = |comtree: &Comtree| items.contains_key(&ItemKey::Comtree(*comtree));
        let before = self.on.len();
        self.on.retain(|comtree, _| has_item(comtree));
        let mut has_changed = self.on.len() < before || is_unlimited != was_unlimited;
        for (comtree, branches) in comtrees(items) {
            let before = self.on.get(&comtree).copied();
            let after = ways_up(branches).and_then(|ways| self.next(now, items, before, ways));
            has_changed |= before != after;
            match after {
                Some(after) => _ = self.on.insert(comtree, after),
                None => _ = self.on.remove(&comtree),
            }
        }
        has_changed
    }

    fn next(
        &self,
        now: Time,
        items: &Items,
        before: Option<(LinkId, Stage)>,
        WaysUp { parent, standby }: WaysUp,
    ) -> Option<(LinkId, Stage)> {
        let heard = |link| self.heard(items, link);
        let is_up = |link| heard(link).is_none_or(|heard| heard.up);
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

    fn heard(&self, items: &Items, link: LinkId) -> Option<Heard> {
        match items.get(&ItemKey::Link(link)) {
            Some(Item::Link { key, .. }) => self.links.get(key).copied(),
            _ => None,
        }
    }

    /// When [`Detours::review`] may have something to do though nothing is heard.
    pub fn poll_timeout(&self, now: Time, items: &Items) -> Option<Time> {
        let due = comtrees(items).filter_map(|(_, branches)| {
            let heard = self.heard(items, ways_up(branches)?.parent?)?;
            Some(heard.since + if heard.up { STEADY } else { PATIENCE })
        });
        let limits = match self.controller {
            Controller::BackSince(at) => Some(at + ALL_BACK),
            _ => None,
        };
        due.chain(limits).filter(|due| *due > now).min()
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
        self.on.contains_key(&comtree)
    }

    /// The comtrees with detours now.
    pub fn comtrees(&self) -> impl Iterator<Item = Comtree> + '_ {
        self.on.keys().copied()
    }

    /// What the data plane is to have: the standby parents of detours are parents, and while nobody can
    /// reserve for detours, any branch may be brought what its link bears. A relay does not know what
    /// detours elsewhere lead to it.
    pub fn apply_to<'a>(&self, items: &'a Items) -> Cow<'a, Items> {
        let mut applied = Cow::Borrowed(items);
        for (comtree, (over, stage)) in &self.on {
            let Some(capacity) = capacity(items, *over) else { continue };
            let item = applied.to_mut().get_mut(&ItemKey::Comtree(*comtree));
            let Some(Item::Comtree { branches, .. }) = item else { continue };
            branches.retain(|of| of.role != Role::Parent || *stage == Stage::Returning);
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
        // Until all detours are over, of which one may still be on its way back after nine seconds; and then no longer.
        detours.set_controller(at(2_000), true);
        for now in [2_000, 11_000] {
            assert!(!detours.review(at(now), &items));
            assert_eq!(detours.poll_timeout(at(now), &items), Some(at(17_000)));
            assert_eq!(receive(&detours), [most; 2]);
        }
        assert!(detours.review(at(17_000), &items));
        assert_eq!(receive(&detours), [reserved; 2]);
        assert_eq!(detours.poll_timeout(at(17_000), &items), None);
    }
}
