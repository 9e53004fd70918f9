//! Ways: a relay that has lost its parent on a comtree, and has neither a standby parent nor a controller, looks for another
//! way to the comtree's root, over whatever links there are.
//!
//! It asks all its neighbours. Whoever has a way to the root passes the question on to its parent; whoever is below the
//! relay that asks, or has lost its parent itself, to all others. The root answers by a number that is higher than all
//! that it has given. The answer goes back as the question has come. Whoever hears it from another than its parent takes
//! that one for its parent, and its parent for a child: so the part of the tree that was cut off is turned round as far as it must be.
//!
//! Whoever was the parent may be the child only when it says that it has taken the answer as well: until then it takes the
//! other for its child, and updates could go round over the two and its own way to the root.
//!
//! **No circle forms**, whatever is lost, late or under way at the same time. A relay notes the highest number that has *passed*
//! it, and takes an answer only if its number is higher. A relay's parent has passed what the relay has passed, or more:
//! an answer comes from the parent, or from whoever is it then. Were a relay's next parent below it, the numbers that have
//! passed there would be at most its own; but the answer has passed there, and has not passed here. Standby parents are
//! for those whom no answer has passed, as their ranks say nothing of ways that were found.

use super::{Items, capacity};
use canopy_control::signal::{Branch, FoundWay, Role};
use canopy_control::{Item, ItemKey, LinkId};
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time, WaySearch, WayWord};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// An answer comes within this, or not at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Who has got none asks again after this, which doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MOST_PAUSE: Duration = Duration::from_secs(4);
/// Whoever has taken an answer says so again after this, which doubles each time: it may be lost, or the link fail meanwhile.
const FIRST_REST: Duration = Duration::from_millis(100);
const MOST_REST: Duration = Duration::from_secs(4);
/// How many relays a question passes at most.
const MOST_HOPS: u8 = u8::MAX;
/// How many questions of others are remembered for a comtree.
const MOST_ASKED: usize = 1_024;
/// How much waits to be said to neighbours; what is more is lost, and asked again.
const MOST_WAITING: usize = 4_096;

/// Where a relay is on a comtree, apart from what it has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) comtree: Comtree,
    pub(crate) site: u16,
    pub(crate) branches: &'a [Branch],
    /// Its parent by its controller's word, or its standby parent in place of that.
    pub(crate) parent: Option<LinkId>,
}

/// What is said to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The neighbour's key.
    pub to: PublicKey,
    /// On which comtree.
    pub comtree: Comtree,
    /// What.
    pub search: WaySearch,
}

/// A question of another relay that has passed.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// From which neighbour.
    from: LinkId,
    at: Time,
    /// Whether all neighbours were asked, and not only the parent.
    by_all: bool,
}

/// A relay's own search.
#[derive(Clone, Copy, Debug)]
struct Own {
    again_at: Time,
    pause: Duration,
}

/// A parent that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    over: LinkId,
    /// The parent that the controller wants.
    instead_of: LinkId,
}

/// What a neighbour may be, other than the controller says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It may come as a child: an answer was passed on to it, or it has said that it has taken one.
    MayCome,
    /// It was the parent, until it was parted from by the answer of this number.
    WasParent(u64),
}

/// An answer that was taken from a neighbour which was not the parent.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from: LinkId,
    search: WaySearch,
    again_at: Time,
    rest: Duration,
}

/// What is known of the ways of one comtree.
#[derive(Clone, Debug, Default)]
struct Ways {
    /// The highest number of an answer that has passed.
    passed: u64,
    /// Whether one has passed since the controller has said which way leads up.
    has_passed: bool,
    asked: BTreeMap<(u16, u32), Asked>,
    own: Option<Own>,
    found: Option<Found>,
    taken: Option<Taken>,
    standings: BTreeMap<LinkId, Standing>,
    /// What the controller had said of the neighbours when their standings changed.
    told: Vec<(LinkId, Role)>,
}

/// The ways that a relay has found, and looks for. Everything is lost with the relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllWays {
    /// What time it was when this relay's clock showed nothing: answers of several roots have an order then.
    origin: Duration,
    of: BTreeMap<Comtree, Ways>,
    /// Numbers of searches, counted over all comtrees.
    searches: u32,
    said: VecDeque<Said>,
}

impl AllWays {
    pub(crate) fn new(origin: Duration) -> AllWays {
        AllWays { origin, ..AllWays::default() }
    }

    /// The parent that was found on a comtree.
    pub(crate) fn found(&self, comtree: Comtree) -> Option<LinkId> {
        self.of.get(&comtree)?.found.map(|found| found.over)
    }

    /// The ways that were found.
    pub(crate) fn all_found(&self) -> impl Iterator<Item = FoundWay> + '_ {
        self.of.iter().filter_map(|(comtree, ways)| {
            let Found { over, instead_of } = ways.found.filter(|of| of.over != of.instead_of)?;
            Some(FoundWay { comtree: *comtree, over, instead_of })
        })
    }

    /// Whether an answer has passed on a comtree, so that ranks say nothing of it any more.
    pub(crate) fn has_passed(&self, comtree: Comtree) -> bool {
        self.of.get(&comtree).is_some_and(|ways| ways.has_passed)
    }

    fn ways_of(&mut self, place: &Place<'_>) -> &mut Ways {
        let told = || place.branches.iter().map(|of| (of.link, of.role)).collect();
        self.of.entry(place.comtree).or_insert_with(|| Ways { told: told(), ..Ways::default() })
    }

    /// There is a controller again: what was asked without it is void. What was found stays until it says otherwise.
    pub(crate) fn end_searches(&mut self) {
        for ways in self.of.values_mut() {
            ways.own = None;
            ways.asked.clear();
        }
        self.said.retain(|said| matches!(said.search.word, WayWord::Taken(_)));
    }

    /// Forgets what was found where the controller has changed the way up since, and who was a parent or may come where it
    /// has changed what that one is: it knows what was found by then. Returns whether there was any.
    pub(crate) fn review_found(&mut self, items: &Items) -> bool {
        let mut has_changed = false;
        self.of.retain(|comtree, ways| {
            let branches = match items.get(&ItemKey::Comtree(*comtree)) {
                Some(Item::Comtree { branches, .. }) => &branches[..],
                _ => &[],
            };
            has_changed |= ways.follow(branches);
            !branches.is_empty()
        });
        has_changed
    }

    /// All have been told by the controller by now which way they go: whoever may have come over a way has been named.
    /// Returns whether there was anybody.
    pub(crate) fn forget_standings(&mut self) -> bool {
        let had_any = self.of.values().any(|ways| !ways.standings.is_empty());
        self.of.values_mut().for_each(|ways| ways.standings.clear());
        had_any
    }

    /// And what has passed says nothing any more.
    pub(crate) fn forget_passed(&mut self) {
        for ways in self.of.values_mut() {
            // Whoever has found its parent again is as the controller says.
            _ = ways.found.take_if(|found| found.over == found.instead_of);
        }
        self.of.retain(|_, ways| ways.found.is_some());
    }

    /// Looks for a way if it is time to. `is_up` says of a link whether the neighbour is heard.
    pub(crate) fn seek(
        &mut self,
        now: Time,
        place: &Place<'_>,
        items: &Items,
        is_up: &impl Fn(LinkId) -> bool,
    ) {
        if let Some(ways) = self.of.get_mut(&place.comtree) {
            ways.asked.retain(|_, asked| asked.at + ANSWER_WITHIN > now);
        }
        let may = place.may_search() && wanted_parent(place.branches).is_some();
        if !may || !self.is_lost(place, is_up) {
            if let Some(ways) = self.of.get_mut(&place.comtree) {
                ways.own = None;
            }
            return;
        }
        let number = self.searches.wrapping_add(1);
        let ways = self.ways_of(place);
        if ways.own.is_some_and(|own| own.again_at > now) {
            return;
        }
        let pause = ways.own.map_or(FIRST_PAUSE, |own| (own.pause * 2).min(MOST_PAUSE));
        ways.own = Some(Own { again_at: now + pause, pause });
        self.searches = number;
        let (seeker, word) = (place.site, WayWord::Ask);
        self.ask_all(
            place,
            items,
            is_up,
            None,
            WaySearch { seeker, number, word, hops: MOST_HOPS },
        );
    }

    /// Says once more to those who are parents now that their answers were taken, where it is time to.
    pub(crate) fn say_again(&mut self, now: Time, items: &Items) {
        let mut due = Vec::new();
        for (comtree, ways) in &mut self.of {
            let over = ways.found.map(|found| found.over);
            let Some(taken) = ways.taken.as_mut().filter(|taken| over == Some(taken.from)) else {
                ways.taken = None;
                continue;
            };
            if taken.again_at > now {
                continue;
            }
            due.push((taken.from, *comtree, taken.search));
            taken.rest = (taken.rest * 2).min(MOST_REST);
            taken.again_at = now + taken.rest;
        }
        due.into_iter().for_each(|(to, comtree, search)| self.say(items, to, comtree, search));
    }

    /// Whether the relay has a parent, and does not hear it.
    fn is_lost(&self, place: &Place<'_>, is_up: &impl Fn(LinkId) -> bool) -> bool {
        let parent = self.found(place.comtree).or(place.parent);
        parent.is_some_and(|parent| !is_up(parent))
    }

    /// A neighbour asks or answers. Returns whether that changes what the data plane is to have.
    pub(crate) fn hear(
        &mut self,
        now: Time,
        place: &Place<'_>,
        items: &Items,
        is_up: &impl Fn(LinkId) -> bool,
        (from, search): (LinkId, WaySearch),
    ) -> bool {
        match search.word {
            _ if !place.may_search() => false,
            WayWord::Ask => self.hear_question(now, place, items, is_up, (from, search)),
            WayWord::Answer(number) => self.hear_answer(now, place, items, (from, search), number),
            WayWord::Taken(_) | WayWord::Ended(_) => false,
        }
    }

    fn hear_question(
        &mut self,
        now: Time,
        place: &Place<'_>,
        items: &Items,
        is_up: &impl Fn(LinkId) -> bool,
        (from, search): (LinkId, WaySearch),
    ) -> bool {
        if search.seeker == place.site {
            return false;
        }
        let parent = self.found(place.comtree).or(place.parent);
        let is_root = parent.is_none();
        let time = self.origin.as_nanos() as u64 + now.as_nanos();
        let by_all = parent.is_some_and(|parent| parent == from || !is_up(parent));
        let ways = self.ways_of(place);
        ways.asked.retain(|_, asked| asked.at + ANSWER_WITHIN > now);
        let key = (search.seeker, search.number);
        let is_full = ways.asked.len() >= MOST_ASKED;
        match ways.asked.get_mut(&key) {
            // It came another way before, and was passed on to the parent only, which is below the seeker.
            Some(asked) if by_all && !asked.by_all => asked.by_all = true,
            Some(_) => return false,
            None if is_full => return false,
            None => {
                let asked = Asked { from, at: now, by_all };
                ways.asked.insert(key, asked);
            }
        }
        if is_root {
            // Higher than what another root has given before, if clocks are not far apart; or nobody takes it.
            ways.passed = time.max(ways.passed.saturating_add(1));
            ways.has_passed = true;
            let word = WayWord::Answer(ways.passed);
            let answer = WaySearch { word, hops: MOST_HOPS, ..search };
            return self.pass_on(place, items, from, answer);
        }
        let Some(hops) = search.hops.checked_sub(1) else { return false };
        let onwards = WaySearch { hops, ..search };
        match parent {
            Some(parent) if !by_all => self.say(items, parent, place.comtree, onwards),
            _ => self.ask_all(place, items, is_up, Some(from), onwards),
        }
        false
    }

    fn hear_answer(
        &mut self,
        now: Time,
        place: &Place<'_>,
        items: &Items,
        (from, search): (LinkId, WaySearch),
        number: u64,
    ) -> bool {
        let parent = self.found(place.comtree).or(place.parent);
        let Some(parent) = parent else { return false };
        let Some(ways) = self.of.get_mut(&place.comtree) else { return false };
        // Whoever asks again before the answer has come takes any of the two.
        let is_own = search.seeker == place.site && ways.own.is_some();
        let asked = ways.asked.get(&(search.seeker, search.number)).copied();
        let asked = asked.filter(|asked| asked.at + ANSWER_WITHIN > now && asked.from != from);
        if number <= ways.passed || !is_own && asked.is_none() {
            return false;
        }
        // Between two trees of the controller's it is told which is next.
        let Some(instead_of) = wanted_parent(place.branches) else { return false };
        (ways.passed, ways.has_passed) = (number, true);
        let has_changed = from != parent;
        if has_changed {
            ways.found = Some(Found { over: from, instead_of });
            ways.standings.remove(&from);
            ways.standings.insert(parent, Standing::WasParent(number));
        }
        if ways.found.is_some() {
            let search = WaySearch { word: WayWord::Taken(number), ..search };
            let (again_at, rest) = (now + FIRST_REST, FIRST_REST);
            ways.taken = Some(Taken { from, search, again_at, rest });
            self.say(items, from, place.comtree, search);
        }
        self.answered(place, items, search, (is_own, asked)) | has_changed
    }

    /// Passes on an answer that was taken. Returns whether a neighbour may be a child for it that might not be one before.
    fn answered(
        &mut self,
        place: &Place<'_>,
        items: &Items,
        search: WaySearch,
        (is_own, asked): (bool, Option<Asked>),
    ) -> bool {
        if is_own {
            self.ways_of(place).own = None;
            return false;
        }
        match asked.zip(search.hops.checked_sub(1)) {
            Some((asked, hops)) => {
                self.pass_on(place, items, asked.from, WaySearch { hops, ..search })
            }
            None => false,
        }
    }

    /// Passes an answer on to a neighbour, which may come as a child from now on. Whoever takes this relay for its child may
    /// only once it has taken the answer. Returns whether it might not before.
    fn pass_on(&mut self, place: &Place<'_>, items: &Items, to: LinkId, answer: WaySearch) -> bool {
        self.say(items, to, place.comtree, answer);
        let WayWord::Answer(number) = answer.word else { return false };
        let standing = match place.role(to) {
            Some(Role::Child | Role::StandbyChild) => return false,
            Some(Role::Parent | Role::StandbyParent) => Standing::WasParent(number),
            _ => Standing::MayCome,
        };
        let ways = self.ways_of(place);
        if ways.standings.contains_key(&to) {
            return false;
        }
        ways.standings.insert(to, standing);
        standing == Standing::MayCome
    }

    /// A neighbour says that this relay is its parent now. It is told if it may not be a child any more. Returns whether it
    /// might not be one before.
    pub(crate) fn hear_taken(
        &mut self,
        place: &Place<'_>,
        items: &Items,
        (from, search): (LinkId, WaySearch),
        may_lend: bool,
    ) -> bool {
        let WayWord::Taken(number) = search.word else { return false };
        let may_lend = may_lend && place.may_search();
        let parent = self.found(place.comtree).or(place.parent);
        let is_child = matches!(place.role(from), Some(Role::Child | Role::StandbyChild));
        let standing = self.of.get(&place.comtree).and_then(|ways| ways.standings.get(&from));
        match standing {
            _ if parent == Some(from) => return false,
            Some(Standing::MayCome) => return false,
            Some(Standing::WasParent(since)) if number < *since => return false,
            None if is_child => return false,
            _ if !may_lend => {
                let word = WayWord::Ended(number);
                self.say(items, from, place.comtree, WaySearch { word, ..search });
                return false;
            }
            _ => _ = self.ways_of(place).standings.insert(from, Standing::MayCome),
        }
        true
    }

    /// The parent that was found says that this relay is no child there any more. Returns whether it was the parent.
    pub(crate) fn hear_ended(&mut self, comtree: Comtree, from: LinkId, number: u64) -> bool {
        let Some(ways) = self.of.get_mut(&comtree) else { return false };
        let is_that = ways.passed == number;
        ways.found.take_if(|found| is_that && found.over == from).is_some()
    }

    fn ask_all(
        &mut self,
        place: &Place<'_>,
        items: &Items,
        is_up: &impl Fn(LinkId) -> bool,
        but: Option<LinkId>,
        search: WaySearch,
    ) {
        let links = place.branches.iter().map(|of| of.link);
        for link in links.filter(|link| Some(*link) != but && is_up(*link)) {
            self.say(items, link, place.comtree, search);
        }
    }

    fn say(&mut self, items: &Items, over: LinkId, comtree: Comtree, search: WaySearch) {
        if let Some(Item::Link { key, .. }) = items.get(&ItemKey::Link(over))
            && self.said.len() < MOST_WAITING
        {
            self.said.push_back(Said { to: *key, comtree, search });
        }
    }

    /// What is to be said to a neighbour next.
    pub(crate) fn poll_said(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    /// When [`AllWays::seek`] or [`AllWays::say_again`] may have something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let of = |ways: &Ways| {
            let own = ways.own.map(|own| own.again_at);
            own.into_iter().chain(ways.taken.map(|taken| taken.again_at)).min()
        };
        self.of.values().filter_map(of).min()
    }

    /// What the data plane is to have of a comtree: the parent that was found in place of this one, and those who may come as
    /// children.
    pub(crate) fn apply_to(&self, place: &Place<'_>, branches: &mut Vec<Branch>, items: &Items) {
        let Some(ways) = self.of.get(&place.comtree) else { return };
        let found = ways.found.map(|found| found.over);
        let parent = found.or(place.parent);
        for (link, standing) in ways.standings.iter().filter(|(link, _)| Some(**link) != parent) {
            match (standing, place.role(*link)) {
                // Where the controller wants a child by now, or a next parent, there is one.
                (Standing::MayCome, Some(role)) if role.is_standby() || role == Role::Parent => {
                    set(branches, items, *link, Role::StandbyChild);
                }
                (Standing::WasParent(_), Some(Role::Child | Role::StandbyChild)) => {
                    branches.retain(|of| of.link != *link);
                }
                _ => {}
            }
        }
        if let Some(over) = found {
            // Whoever was the parent takes this relay for a child as before, and would bring what has been up already.
            let leads_up = |role| matches!(role, Role::Parent | Role::NextParent);
            branches.retain(|of| !leads_up(of.role) || of.link == over);
            set(branches, items, over, Role::Parent);
        }
    }

    /// Whether a neighbour may come as a child, other than the controller says.
    pub(crate) fn may_come(&self, comtree: Comtree, link: LinkId) -> bool {
        let ways = self.of.get(&comtree);
        ways.is_some_and(|ways| ways.standings.get(&link) == Some(&Standing::MayCome))
    }

    /// Whether anything is to be applied.
    pub(crate) fn comtrees(&self) -> impl Iterator<Item = Comtree> + '_ {
        let changes = |ways: &Ways| ways.found.is_some() || !ways.standings.is_empty();
        self.of.iter().filter(move |(_, ways)| changes(ways)).map(|(comtree, _)| *comtree)
    }
}

impl Ways {
    /// The controller may have said something else. Returns whether that changes what was found, or a standing.
    fn follow(&mut self, branches: &[Branch]) -> bool {
        let leads = |found: Found| {
            let may = branches.iter().all(|of| may_search(of.role));
            let is_there = branches.iter().any(|of| of.link == found.over);
            may && is_there && wanted_parent(branches) == Some(found.instead_of)
        };
        let mut has_changed = self.found.take_if(|found| !leads(*found)).is_some();
        let is_as_told = |(of, told): (&Branch, &(LinkId, Role))| (of.link, of.role) == *told;
        if branches.len() == self.told.len() && branches.iter().zip(&self.told).all(is_as_told) {
            return has_changed;
        }
        let told: Vec<(LinkId, Role)> = branches.iter().map(|of| (of.link, of.role)).collect();
        let before = core::mem::replace(&mut self.told, told);
        let is_same = |link: LinkId| {
            let role = |of: &[(LinkId, Role)]| of.iter().find(|of| of.0 == link).copied();
            role(&before) == role(&self.told)
        };
        let standings = self.standings.len();
        self.standings.retain(|link, _| is_same(*link));
        let has_parent = |of: &[(LinkId, Role)]| of.iter().any(|(_, role)| *role == Role::Parent);
        if !has_parent(&before) && has_parent(&self.told) {
            // All have let go of what they had found.
            self.standings.retain(|_, standing| *standing == Standing::MayCome);
        }
        has_changed |= self.standings.len() < standings;
        let ways_up = |of: &[(LinkId, Role)]| -> Vec<(LinkId, Role)> {
            let leads_up = |role| matches!(role, Role::Parent | Role::StandbyParent);
            of.iter().copied().filter(|(_, role)| leads_up(*role)).collect()
        };
        // Its standby parent is by the rank of another tree.
        self.has_passed &= ways_up(&before) == ways_up(&self.told);
        has_changed
    }
}

impl Place<'_> {
    /// Whether all is as on a tree that stays, below one root.
    fn may_search(&self) -> bool {
        self.branches.iter().all(|of| may_search(of.role))
    }

    /// What a neighbour is, as the controller says.
    fn role(&self, link: LinkId) -> Option<Role> {
        self.branches.iter().find(|of| of.link == link).map(|of| of.role)
    }
}

fn may_search(role: Role) -> bool {
    !matches!(role, Role::Core | Role::NextParent) && !role.is_peer()
}

fn wanted_parent(branches: &[Branch]) -> Option<LinkId> {
    branches.iter().find(|of| of.role == Role::Parent).map(|of| of.link)
}

/// A neighbour is this from now on, and may bring what its link bears.
fn set(branches: &mut [Branch], items: &Items, link: LinkId, role: Role) {
    let branch = branches.iter_mut().find(|of| of.link == link);
    if let Some((branch, most)) = branch.zip(capacity(items, link)) {
        (branch.role, branch.receive) = (role, most);
    }
}
