//! Links of a known capacity: what each branch over such a link may be sent, and how much the link bears now.
//!
//! A branch over a *shaped* link is a receiver with a budget. Twenty times a second the budgets are worked out:
//! weighted max-min fairness of what the branches are offered, with their guarantees for weights. What one
//! leaves is the others', and it has its guarantee at once when it wants it again. Beside the branches' budgets
//! the link has an allowance of its own, from which all is taken that leaves over it: control packets too, which
//! never wait for updates.

use super::allowance::{Allowance, Down, WINDOW, spare};
use super::max_min::{Want, share_out};
use crate::index::{NONE, PortIndex};
use canopy_session::SessionIndex;
use canopy_wire::Time;
use core::time::Duration;

/// Shares are worked out this often.
pub(crate) const REVIEW_EVERY: Duration = Duration::from_millis(50);
/// What a branch is offered is averaged over this time, in seconds; what it is sent, for whoever looks, over that.
const SMOOTH: f64 = 0.25;
const SMOOTH_STATUS: f64 = 1.0;
/// Parts of the capacity that are kept for control packets: at least, and at most where they take less.
const LEAST_CONTROL: f64 = 0.01;
const MOST_CONTROL: f64 = 0.05;
/// On a slow link they are kept more: bits a second.
const CONTROL_BITS: f64 = 16_000.0;
/// Control packets leave this part to the updates, even if they take more.
const LEAST_DATA: f64 = 0.5;
/// A link is filled to this part, so that no 100 ms bring more than it bears, however updates fall into them.
const PACED: f64 = 0.985;
/// What is left for branches within their guarantees takes a link this long at most.
const MOST_FOR_OTHERS: Duration = Duration::from_millis(10);
/// What was sent beyond a guarantee, and over a link that bears less than its control packets, is made up for
/// in so many nanoseconds at most.
const OWN_DEBT: i64 = 100_000_000;
const LINK_DEBT: i64 = 60_000_000_000;
/// A branch that is offered a smaller part of the capacity is idle.
const IDLE: f64 = 0.001;
/// A budget that changes by less stays as it is.
const NEARLY: f64 = 0.02;

/// A link with a neighbour.
struct Link {
    session: SessionIndex,
    capacity: Down,
    allowance: Allowance,
    /// The bytes that have left over it, as far as they were taken from its allowance, if it has one. What is
    /// spent for updates is added at once, so that `sync` finds what else has left and takes nothing twice.
    accounted: Option<u64>,
    /// What control packets took since shares were worked out, in nanoseconds of the capacity, and the part of
    /// it that they take.
    control_cost: i64,
    control: f64,
}

impl Link {
    /// The part of the capacity that is kept for control packets.
    fn kept(&self) -> f64 {
        let slow = CONTROL_BITS / self.capacity.bits.max(1) as f64;
        let most = if self.capacity.bits > 0 { MOST_CONTROL.max(slow) } else { MOST_CONTROL };
        // Twice what they take on average, because they come in bunches.
        (2.0 * self.control).clamp(LEAST_CONTROL, most.min(LEAST_DATA))
    }

    /// The part that is there for updates.
    fn for_data(&self) -> f64 {
        1.0 - self.control.clamp(LEAST_CONTROL, LEAST_DATA)
    }
}

/// A branch over a link.
struct Branch {
    port: PortIndex,
    /// The place of its link.
    link: u32,
    guaranteed_bits: u64,
    /// What it was offered since shares were worked out, in nanoseconds of the capacity, and in bytes.
    offered_cost: i64,
    offered_bytes: u64,
    /// The part of the capacity that it is offered.
    demand: f64,
    /// Its guarantee, and what it may be sent now.
    guaranteed: f64,
    guarantee: Down,
    may: Down,
    /// Whether the others are offered anything.
    has_others: bool,
    /// What of its guarantee it has not used.
    own: Allowance,
    /// The bytes that it was sent when shares were worked out.
    sent: u32,
    offered_bits: f64,
    sent_bits: f64,
}

impl Branch {
    /// It may be sent so much from now on, unless that is nearly the same as before.
    fn set(&mut self, may: Down, changed: &mut Vec<PortIndex>) {
        let is_near = |one: u64, other: u64| {
            (one == 0) == (other == 0) && one.abs_diff(other) as f64 <= NEARLY * other as f64
        };
        if !is_near(may.bits, self.may.bits) || !is_near(may.updates, self.may.updates) {
            self.may = may;
            changed.push(self.port);
        }
    }
}

/// How much a link bears of what is for a branch, in nanoseconds of its capacity, or of what the branch may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Now.
    pub(crate) now: i64,
    /// At most, also of what may owe.
    pub(crate) of_window: i64,
}

/// What a branch is offered, is sent, and may be sent, bits a second. 0 for the last is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BranchLoad {
    pub(crate) offered: u64,
    pub(crate) sent: u64,
    pub(crate) allowed: u64,
}

/// The links of a data thread, and the branches over them.
#[derive(Default)]
pub(crate) struct LinkShares {
    links: Vec<Option<Link>>,
    branches: Vec<Branch>,
    /// By port: the place of its branch.
    by_port: Vec<u32>,
    wants: Vec<Want>,
    reviewed: Time,
    is_any_shaped: bool,
}

impl LinkShares {
    /// Whether any link has a known capacity.
    #[inline]
    pub(crate) fn is_any_shaped(&self) -> bool {
        self.is_any_shaped
    }

    /// When shares are to be worked out next.
    pub(crate) fn due(&self) -> Time {
        self.reviewed + REVIEW_EVERY
    }

    pub(crate) fn add_link(&mut self, session: SessionIndex) {
        let link = Link {
            session,
            capacity: Down::NONE,
            allowance: Allowance::default(),
            accounted: None,
            control_cost: 0,
            control: 0.0,
        };
        match self.links.iter_mut().find(|link| link.is_none()) {
            Some(place) => *place = Some(link),
            None => self.links.push(Some(link)),
        }
    }

    /// A link is no more; its branches went before.
    pub(crate) fn remove_link(&mut self, session: SessionIndex) {
        if let Some(place) = self.find(session) {
            self.links[place] = None;
        }
        self.look_for_shaped();
    }

    /// A link bears so much from now on.
    pub(crate) fn set_capacity(&mut self, session: SessionIndex, capacity: Down) {
        if let Some(link) = self.find(session).and_then(|place| self.links[place].as_mut()) {
            if !link.capacity.is_limited() {
                // Whatever has left before is nothing to it.
                (link.accounted, link.allowance) = (None, Allowance::default());
            }
            link.capacity = part(capacity, PACED);
        }
        self.look_for_shaped();
    }

    fn look_for_shaped(&mut self) {
        let mut all = self.links.iter().flatten();
        self.is_any_shaped = all.any(|link| link.capacity.is_limited());
    }

    fn find(&self, session: SessionIndex) -> Option<usize> {
        let is_it = |link: &Option<Link>| link.as_ref().is_some_and(|it| it.session == session);
        self.links.iter().position(is_it)
    }

    pub(crate) fn add_branch(&mut self, session: SessionIndex, port: PortIndex) {
        let Some(link) = self.find(session) else { return };
        let index = port as usize;
        if index >= self.by_port.len() {
            self.by_port.resize(index + 1, NONE);
        }
        self.by_port[index] = self.branches.len() as u32;
        self.branches.push(Branch {
            port,
            link: link as u32,
            guaranteed_bits: 0,
            offered_cost: 0,
            offered_bytes: 0,
            demand: 0.0,
            guaranteed: 0.0,
            guarantee: Down::NONE,
            may: Down::NONE,
            has_others: false,
            own: Allowance::default(),
            sent: 0,
            offered_bits: 0.0,
            sent_bits: 0.0,
        });
    }

    /// A port is closed.
    pub(crate) fn forget(&mut self, port: PortIndex) {
        let Some(place) = self.place(port) else { return };
        self.by_port[port as usize] = NONE;
        self.branches.swap_remove(place);
        if let Some(moved) = self.branches.get(place) {
            self.by_port[moved.port as usize] = place as u32;
        }
    }

    pub(crate) fn set_guarantee(&mut self, port: PortIndex, bits: u64) {
        if let Some(place) = self.place(port) {
            self.branches[place].guaranteed_bits = bits;
        }
    }

    #[inline]
    fn place(&self, port: PortIndex) -> Option<usize> {
        let place = self.by_port.get(port as usize).copied().unwrap_or(NONE);
        (place != NONE).then_some(place as usize)
    }

    /// What a branch may be sent now; of another port, no limit.
    pub(crate) fn share_of(&self, port: PortIndex) -> Down {
        self.place(port).map_or(Down::NONE, |place| self.branches[place].may)
    }

    /// How much a branch has to do.
    pub(crate) fn load_of(&self, port: PortIndex) -> BranchLoad {
        let Some(place) = self.place(port) else { return BranchLoad::default() };
        let Branch { offered_bits, sent_bits, may, .. } = &self.branches[place];
        let is_shaped = may.is_limited();
        let offered = if is_shaped { *offered_bits } else { *sent_bits };
        BranchLoad { offered: offered as u64, sent: *sent_bits as u64, allowed: may.bits }
    }

    /// A branch and its link, if that is shaped.
    #[inline]
    fn shaped(&mut self, port: PortIndex) -> Option<(&mut Branch, &mut Link)> {
        let place = self.place(port)?;
        let branch = &mut self.branches[place];
        let link = self.links[branch.link as usize].as_mut()?;
        link.capacity.is_limited().then_some((branch, link))
    }

    /// A branch was offered so much.
    pub(crate) fn offer(&mut self, port: PortIndex, (bytes, updates): (u64, u64)) {
        if let Some((branch, link)) = self.shaped(port) {
            branch.offered_cost += link.capacity.cost(bytes, updates);
            branch.offered_bytes += bytes;
        }
    }

    /// Takes note of the time, for a branch and its link. Where looks for relays have this `window`, what may be
    /// saved up is that of the time `at_once`.
    pub(crate) fn advance(
        &mut self,
        now: Time,
        (at_once, window): (Duration, Duration),
        port: PortIndex,
    ) {
        if let Some((branch, link)) = self.shaped(port) {
            branch.own.advance(now, at_once, spare(branch.guarantee), window);
            link.allowance.advance(now, at_once, spare(link.capacity), window);
        }
    }

    /// How long so many bytes take a shaped link; another bears everything.
    pub(crate) fn takes(&self, session: SessionIndex, bytes: u64) -> Duration {
        let link = self.find(session).and_then(|place| self.links[place].as_ref());
        let cost = link.map_or(0, |link| link.capacity.cost(bytes, 0));
        Duration::from_nanos(cost as u64)
    }

    /// How many bytes a shaped link takes within so long; another bears everything.
    pub(crate) fn bears_in(&self, session: SessionIndex, time: Duration) -> usize {
        let link = self.find(session).and_then(|place| self.links[place].as_ref());
        let bits = link.map_or(0, |link| link.capacity.bits);
        if bits == 0 { usize::MAX } else { (bits as f64 * time.as_secs_f64() / 8.0) as usize }
    }

    /// How much of its guarantee a branch has not used, in nanoseconds; who has the most goes first.
    pub(crate) fn unused(&mut self, port: PortIndex) -> i64 {
        self.shaped(port).map_or(i64::MAX, |(branch, _)| branch.own.left())
    }

    /// How much a link bears of what is for a branch, in nanoseconds of its capacity. Something is left for
    /// others who are within their guarantees: a datagram, if the link is not too slow for that.
    pub(crate) fn room(&mut self, port: PortIndex) -> Option<Room> {
        let (branch, link) = self.shaped(port)?;
        let kept = (link.kept() * WINDOW.as_nanos() as f64) as i64;
        let (saved, of_window) = (link.allowance.saved(), link.allowance.left_of_window() - kept);
        let for_others = spare(link.capacity).min(MOST_FOR_OTHERS.as_nanos() as i64);
        let for_others = if branch.has_others { for_others } else { 0 };
        // A branch may send within its guarantee as long as the link bears anything, and beyond it only what
        // leaves something for the others. The greater of the two holds.
        let (within, beyond) = (saved.min(of_window), (saved - for_others).min(of_window));
        let own = (branch.own.left() as f64 * branch.guaranteed) as i64;
        Some(Room { now: beyond.max(within.min(own)), of_window })
    }

    /// The same, in nanoseconds of what a branch may be sent: `down`.
    pub(crate) fn room_of(&mut self, port: PortIndex, down: Down) -> Option<Room> {
        let room = self.room(port)?;
        let (_, link) = self.shaped(port)?;
        let of = |whole: u64, part: u64| whole as f64 / part.max(1) as f64;
        let times = match (link.capacity, down) {
            (Down { bits: 1.., .. }, Down { bits: 1.., .. }) => of(link.capacity.bits, down.bits),
            _ => of(link.capacity.updates, down.updates),
        };
        let of_down = |room: i64| (room as f64 * times) as i64;
        Some(Room { now: of_down(room.now), of_window: of_down(room.of_window) })
    }

    /// Whether a link bears so much more of what is for a branch.
    pub(crate) fn fits(&mut self, port: PortIndex, (bytes, updates): (u64, u64)) -> bool {
        let Some(room) = self.room(port) else { return true };
        let Some((_, link)) = self.shaped(port) else { return true };
        link.capacity.cost(bytes, updates) <= room.now
    }

    /// A branch was sent so much.
    pub(crate) fn spend(&mut self, port: PortIndex, (bytes, updates): (u64, u64)) {
        if let Some((branch, link)) = self.shaped(port) {
            // Who was lent what others left unused does not pay for all of it later, or it would be silent when
            // the others come back, instead of having its guarantee.
            branch.own.spend_down_to(-OWN_DEBT, branch.guarantee.cost(bytes, updates));
            link.allowance.spend_down_to(-LINK_DEBT, link.capacity.cost(bytes, updates));
            link.accounted = link.accounted.map(|before| before + bytes);
        }
    }

    /// Takes what else has left over the shaped links from their allowances: `bytes_out` knows the bytes in all.
    pub(crate) fn sync(
        &mut self,
        now: Time,
        (at_once, window): (Duration, Duration),
        bytes_out: impl Fn(SessionIndex) -> u64,
    ) {
        for link in self.links.iter_mut().flatten().filter(|link| link.capacity.is_limited()) {
            link.allowance.advance(now, at_once, spare(link.capacity), window);
            let bytes = bytes_out(link.session);
            // A link that has come up again counts anew.
            let before = link.accounted.replace(bytes).unwrap_or(bytes);
            let more = bytes.saturating_sub(before);
            let cost = link.capacity.cost(more, 0);
            link.allowance.spend_down_to(-LINK_DEBT, cost);
            link.control_cost += cost;
        }
    }

    /// Works out what each branch may be sent. `sent` knows the bytes that a port was sent in all, which wrap.
    /// Lists the ports for which that has changed.
    pub(crate) fn review(
        &mut self,
        now: Time,
        sent: impl Fn(PortIndex) -> u32,
        changed: &mut Vec<PortIndex>,
    ) {
        let passed = now.since(core::mem::replace(&mut self.reviewed, now)).as_secs_f64();
        self.measure(passed, sent);
        for place in 0..self.links.len() {
            let Some(link) = &mut self.links[place] else { continue };
            let capacity = link.capacity;
            let of_link = |branch: &&mut Branch| branch.link as usize == place;
            if !capacity.is_limited() {
                for branch in self.branches.iter_mut().filter(of_link) {
                    branch.set(Down::NONE, changed);
                }
                continue;
            }
            let total = link.for_data();
            self.wants.clear();
            let all = self.branches.iter().filter(|branch| branch.link as usize == place);
            self.wants.extend(all.map(|branch| Want::of(branch.guaranteed_bits, branch.demand)));
            share_out(total, capacity.bits, &mut self.wants);
            let taken: f64 = self.wants.iter().map(|want| want.share).sum();
            let of_link = self.branches.iter_mut().filter(of_link);
            for (branch, want) in of_link.zip(&self.wants) {
                branch.guaranteed = want.guaranteed;
                branch.has_others = taken - want.share > IDLE;
                branch.guarantee = part(capacity, want.guaranteed);
                // What nobody takes is on top of everybody's share: a branch that begins to send more need not
                // wait for the next review. The link's own allowance holds if several do so at once.
                let left = total - taken + want.share;
                branch.set(part(capacity, left.max(want.guaranteed)), changed);
            }
        }
    }

    /// Takes note of what the branches were offered and sent, and of what control packets took.
    fn measure(&mut self, passed: f64, sent: impl Fn(PortIndex) -> u32) {
        if passed <= 0.0 {
            return;
        }
        let part = (passed / SMOOTH).min(1.0);
        let part_of_status = (passed / SMOOTH_STATUS).min(1.0);
        for link in self.links.iter_mut().flatten() {
            let control = core::mem::take(&mut link.control_cost) as f64 / 1e9 / passed;
            link.control += (control - link.control) * part;
        }
        for branch in &mut self.branches {
            let offered = core::mem::take(&mut branch.offered_cost) as f64 / 1e9 / passed;
            branch.demand += (offered - branch.demand) * part;
            let bytes = core::mem::take(&mut branch.offered_bytes) as f64;
            branch.offered_bits += (bytes * 8.0 / passed - branch.offered_bits) * part_of_status;
            let total = sent(branch.port);
            let bytes = total.wrapping_sub(core::mem::replace(&mut branch.sent, total));
            let bits = f64::from(bytes) * 8.0 / passed;
            branch.sent_bits += (bits - branch.sent_bits) * part_of_status;
        }
    }
}

/// A part of a capacity.
fn part(capacity: Down, part: f64) -> Down {
    let of = |number: u64| if number == 0 { 0 } else { (number as f64 * part).max(1.0) as u64 };
    Down { bits: of(capacity.bits), updates: of(capacity.updates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: Down = Down { bits: 1_000_000, updates: 0 };

    fn a_link(capacity: Down) -> LinkShares {
        let mut shares = LinkShares::default();
        shares.add_link(7);
        shares.add_branch(7, 3);
        shares.add_branch(7, 4);
        shares.set_capacity(7, capacity);
        shares
    }

    #[test]
    fn an_idle_branch_has_its_guarantee_and_a_busy_one_all_that_is_left() {
        let (mut shares, mut changed) = (a_link(MEGABIT), Vec::new());
        for milli in (50..3_000).step_by(50) {
            shares.offer(4, (100_000, 100));
            shares.review(Time::from_millis(milli), |_| 0, &mut changed);
        }
        let of = |port| shares.share_of(port).bits;
        assert!((480_000..=495_000).contains(&of(3)), "{}", of(3));
        assert!((960_000..985_000).contains(&of(4)), "{}", of(4));
        assert!(changed.len() <= 4, "{changed:?}: only what changes is told");
        shares.set_capacity(7, Down::NONE);
        changed.clear();
        shares.review(Time::from_millis(3_000), |_| 0, &mut changed);
        assert_eq!((&changed[..], shares.share_of(3)), (&[3, 4][..], Down::NONE));
        assert!(!shares.is_any_shaped());
    }

    #[test]
    fn control_packets_are_taken_from_what_is_left_for_updates() {
        let (mut shares, mut changed) = (a_link(MEGABIT), Vec::new());
        for milli in (5..2_000).step_by(5) {
            let now = Time::from_millis(milli);
            // 200 kbit/s of them.
            shares.sync(now, (REVIEW_EVERY, WINDOW), |_| milli * 25);
            if milli % 50 == 0 {
                shares.offer(3, (100_000, 100));
                shares.review(now, |_| 0, &mut changed);
            }
        }
        let bits = shares.share_of(3).bits;
        assert!((765_000..805_000).contains(&bits), "{bits}");
    }

    #[test]
    fn what_a_branch_was_offered_and_sent_is_told_in_bits_a_second() {
        let (mut shares, mut changed) = (a_link(MEGABIT), Vec::new());
        for milli in (50..10_000).step_by(50) {
            shares.offer(4, (10_000, 100));
            shares.review(Time::from_millis(milli), |_| milli as u32 * 50, &mut changed);
        }
        let BranchLoad { offered, sent, allowed } = shares.load_of(4);
        assert!((1_590_000..=1_600_000).contains(&offered), "{offered}");
        assert!((399_000..=400_000).contains(&sent), "{sent}");
        assert_eq!(allowed, shares.share_of(4).bits);
        assert_eq!(shares.load_of(5), BranchLoad::default(), "there is no such branch");
    }

    #[test]
    fn a_branch_leaves_something_for_the_others_if_they_send_at_all() {
        let room = |others: u64| {
            let (mut shares, mut changed) = (a_link(MEGABIT), Vec::new());
            for milli in (50..3_000).step_by(50) {
                let now = Time::from_millis(milli);
                shares.advance(now, (REVIEW_EVERY, WINDOW), 4);
                shares.offer(4, (100_000, 100));
                shares.offer(3, (others, 1));
                shares.review(now, |_| 0, &mut changed);
            }
            shares.spend(4, (3_000, 3));
            shares.room(4).unwrap().now
        };
        assert!(room(0) > room(1_000), "{} {}", room(0), room(1_000));
    }

    #[test]
    fn branches_go_and_come_back() {
        let mut shares = a_link(MEGABIT);
        shares.forget(3);
        shares.forget(3);
        let mut changed = Vec::new();
        shares.review(Time::from_millis(50), |_| 0, &mut changed);
        assert_eq!((changed, shares.share_of(3)), (vec![4], Down::NONE));
        shares.forget(4);
        shares.remove_link(7);
        assert!(!shares.is_any_shaped());
        shares.add_link(8);
        shares.add_branch(8, 4);
        assert_eq!(shares.room(4), None);
    }
}
