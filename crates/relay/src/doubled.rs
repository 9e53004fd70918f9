//! What core peers bring twice while one of them joins a meshed core or leaves it, passed once and in its
//! publisher's order.
//!
//! Between the two states, a *next peer* is sent all directly, and one other core peer, of which both are
//! neighbours, sends each what the other sends, too. Who brings a publisher's updates first *leads* it: what the
//! others bring waits until the leader has brought what comes before. It waits for nothing where the publisher's
//! numbers show that nothing is before it.
//!
//! ```text
//!   n ─── p      n: next peer of c; p takes n for a neighbour in the core as in a tree, and n takes p for a core
//!    ╲   ╱       peer. So what n and c send reaches the other over p as well, and what p sends only directly.
//!      c
//! ```

use crate::index::{NONE, PortIndex};
use crate::pending::Update;
use crate::succession::{AFTERWARDS, AHEAD, Kept, MOST_BYTES, MOST_PUBLISHERS, OVERHEAD, Seen};
use canopy_wire::{Address, Time};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A full table is searched for silent publishers no more often.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// The number of a publisher's first update.
const FIRST: u16 = 0;

/// What passes once.
#[derive(Debug, Default)]
pub(crate) struct Doubled {
    /// Next peers that were no peers before: what they bring of publishers that nobody has brought waits.
    young: Vec<PortIndex>,
    /// Until then nothing passes of what those bring: the old way brings all of it, or did before it was noted.
    heard_from: Option<Time>,
    /// By publisher: what has passed, and who leads. These are [`MOST_PUBLISHERS`] at most. What others send beside
    /// them is not known, and passes twice, until some are silent.
    publishers: BTreeMap<Address, Publisher>,
    /// When all of them were searched last for those that are silent.
    searched: Option<Time>,
    /// By branch that leads publishers: another that has brought the same.
    others: BTreeMap<PortIndex, PortIndex>,
    /// By publisher: what waits, each with the branch that brought it.
    ahead: BTreeMap<Address, VecDeque<(PortIndex, Kept)>>,
    /// When each of that came, and of whom.
    came: VecDeque<(Time, Address)>,
    bytes: usize,
    /// When nothing can come twice any more; not known as long as there is a next peer.
    until: Option<Time>,
}

#[derive(Debug)]
struct Publisher {
    seen: Seen,
    /// The branch that leads; whoever comes first, if none does.
    leader: Option<PortIndex>,
}

/// What becomes of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It goes on.
    Open,
    /// It has passed already.
    Repeated,
    /// It waits.
    Waits,
    /// It would wait, and there is no room.
    NoRoom,
}

impl Doubled {
    /// One without a next peer, which only remembers what has passed.
    pub(crate) fn remembering(now: Time) -> Doubled {
        Doubled { until: Some(now + AFTERWARDS), ..Doubled::default() }
    }

    /// This has passed before, by publisher.
    pub(crate) fn know(&mut self, seen: BTreeMap<Address, Seen>) {
        for (src, seen) in seen {
            if self.publishers.len() < MOST_PUBLISHERS {
                self.publishers.entry(src).or_insert(Publisher { seen, leader: None });
            }
        }
    }

    /// A core peer is a next peer from now on; `is_new` says whether it was no peer before.
    pub(crate) fn watch(&mut self, now: Time, port: PortIndex, is_new: bool) {
        self.until = None;
        self.heard_from.get_or_insert(now + AHEAD);
        if is_new && !self.young.contains(&port) {
            self.young.push(port);
        }
    }

    /// The old way has gone: what next peers bring is all that there is.
    pub(crate) fn hear(&mut self) {
        self.heard_from = Some(Time::ZERO);
    }

    /// A branch is no next peer any more, or brings nothing any more, whatever it was. Nobody waits for what it would
    /// have brought. Returns the branch that brings it.
    pub(crate) fn let_go(
        &mut self,
        now: Time,
        port: PortIndex,
        is_last: bool,
    ) -> Option<PortIndex> {
        self.young.retain(|young| *young != port);
        for publisher in self.publishers.values_mut() {
            publisher.leader = publisher.leader.filter(|leader| *leader != port);
        }
        for (from, _) in self.ahead.values_mut().flatten() {
            *from = if *from == port { NONE } else { *from };
        }
        if is_last {
            self.until = Some(now + AFTERWARDS);
        }
        self.others.retain(|_, other| *other != port);
        self.others.remove(&port)
    }

    /// The next peers are core peers as others: they bring everything, and nobody else does.
    pub(crate) fn lead_no_more(&mut self) {
        self.young.clear();
        for publisher in self.publishers.values_mut() {
            publisher.leader = None;
        }
    }

    /// What becomes of an update that a core peer has brought. What its publisher sent before is to be
    /// [taken](Self::take_before) first.
    pub(crate) fn pass(
        &mut self,
        now: Time,
        (origin, may_lead): (PortIndex, bool),
        update: &Update<'_>,
    ) -> Passage {
        let (src, series) = (update.src, update.series);
        let is_young = self.young.contains(&origin);
        if let Some(leader) = self.publishers.get(&src).and_then(|of| of.leader)
            && leader != origin
            && may_lead
        {
            self.others.insert(leader, origin);
        }
        if is_young && self.heard_from.is_some_and(|from| now < from) {
            return Passage::Repeated;
        }
        let is_open = match self.publishers.get(&src) {
            Some(of) if !of.seen.would_pass(now, series) => return Passage::Repeated,
            Some(of) => {
                let leads = of.leader.map_or(!is_young, |leader| leader == origin);
                leads || of.seen.is_next(series)
            }
            None => !is_young || series == FIRST,
        };
        if is_open {
            self.note(now, if may_lead { origin } else { NONE }, src, series);
            return Passage::Open;
        }
        match self.keep(now, origin, update) {
            true => Passage::Waits,
            false => Passage::NoRoom,
        }
    }

    /// Whether the branch leads a publisher, or would.
    pub(crate) fn leads(&self, origin: PortIndex, src: Address) -> bool {
        let of = self.publishers.get(&src);
        let is_young = self.young.contains(&origin);
        of.and_then(|of| of.leader).map_or(!is_young, |leader| leader == origin)
    }

    /// An update that waited goes on. False if it has passed meanwhile.
    pub(crate) fn pass_late(&mut self, now: Time, origin: PortIndex, kept: &Kept) -> bool {
        let Update { src, series, .. } = kept.update();
        let is_new = self.publishers.get(&src).is_none_or(|of| of.seen.would_pass(now, series));
        if is_new {
            self.note(now, origin, src, series);
        }
        is_new
    }

    fn note(&mut self, now: Time, origin: PortIndex, src: Address, series: u16) {
        if !self.publishers.contains_key(&src) && !self.has_room(now) {
            return;
        }
        let first = || Publisher { seen: Seen::before(now, series), leader: None };
        let of = self.publishers.entry(src).or_insert_with(first);
        of.seen.pass(now, series);
        if self.until.is_none() && origin != NONE {
            of.leader.get_or_insert(origin);
        }
    }

    /// Whether there is room for another publisher. If there is none, those that have been silent for longer than
    /// something may come twice are forgotten. A search takes long, so there is one in a while.
    fn has_room(&mut self, now: Time) -> bool {
        let is_full = self.publishers.len() >= MOST_PUBLISHERS;
        if is_full && self.searched.is_none_or(|before| now.since(before) >= SEARCH_EVERY) {
            self.searched = Some(now);
            self.publishers.retain(|_, of| of.seen.silent_for(now) <= AFTERWARDS);
        }
        self.publishers.len() < MOST_PUBLISHERS
    }

    /// A publisher's leader has not brought what was waited for: whoever did leads.
    fn follow(&mut self, origin: PortIndex, src: Address) {
        if let Some(of) = self.publishers.get_mut(&src) {
            of.leader = Some(origin).filter(|origin| *origin != NONE);
        }
    }

    fn keep(&mut self, now: Time, origin: PortIndex, update: &Update<'_>) -> bool {
        if self.bytes >= MOST_BYTES {
            return false;
        }
        self.bytes += OVERHEAD + update.payload.len();
        self.ahead.entry(update.src).or_default().push_back((origin, Kept::new(now, update)));
        self.came.push_back((now, update.src));
        true
    }

    /// The next update that a publisher sent before this one, which its leader brings.
    pub(crate) fn take_before(&mut self, src: Address, series: u16) -> Option<(PortIndex, Kept)> {
        self.take(src, |kept| series.wrapping_sub(kept.update().series) <= u16::MAX / 2)
    }

    /// The next update of a publisher before which nothing is missing any more, or whose publisher nobody leads.
    pub(crate) fn take_next(&mut self, now: Time, src: Address) -> Option<(PortIndex, Kept)> {
        // Nothing has passed of a publisher that only young next peers have brought.
        let of = self.publishers.get(&src);
        let is_led = of.is_some_and(|of| of.leader.is_some()) || !self.young.is_empty();
        let seen = of.map(|of| of.seen);
        self.take(src, |kept| {
            let series = kept.update().series;
            let is_due = |seen: Seen| seen.is_next(series) || !seen.would_pass(now, series);
            !is_led || seen.is_some_and(is_due)
        })
    }

    /// The next update that has waited long enough.
    pub(crate) fn take_late(&mut self, now: Time) -> Option<(PortIndex, Kept)> {
        loop {
            let (came, src) = *self.came.front()?;
            if came + AHEAD > now {
                return None;
            }
            self.came.pop_front();
            // It may have been taken by then.
            if let Some((origin, kept)) = self.take(src, |kept| kept.at <= came) {
                self.follow(origin, src);
                return Some((origin, kept));
            }
        }
    }

    fn take(&mut self, src: Address, is_due: impl Fn(&Kept) -> bool) -> Option<(PortIndex, Kept)> {
        let of_src = self.ahead.get_mut(&src)?;
        of_src.front().filter(|(_, kept)| is_due(kept))?;
        let taken = of_src.pop_front()?;
        if of_src.is_empty() {
            self.ahead.remove(&src);
        }
        self.bytes -= OVERHEAD + taken.1.update().payload.len();
        Some(taken)
    }

    /// The publishers of whom something waits.
    pub(crate) fn waiting(&self) -> Vec<Address> {
        self.ahead.keys().copied().collect()
    }

    /// Whether nothing can come twice any more, and nothing waits.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.until.is_some_and(|until| until <= now) && self.ahead.is_empty()
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Option<Time> {
        self.came.front().map(|(came, _)| *came + AHEAD).or(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Comtree, Flags, Group, Level, Weight};

    const OLD: PortIndex = 3;
    const NEW: PortIndex = 4;

    /// An update of a publisher, by its number.
    fn update(series: u16) -> Update<'static> {
        Update {
            comtree: Comtree(1),
            src: Address::unicast(7, 100),
            series,
            dst: Group::new(5).address(),
            flags: Flags(0),
            level: Level(0),
            weight: Weight::default(),
            object: 0,
            hops: 9,
            from_core_peer: true,
            asks_route: false,
            payload: b"x",
        }
    }

    /// Counted from when a next peer that came at [`Time::ZERO`] is heard.
    fn at(ms: u64) -> Time {
        Time::ZERO + AHEAD + Duration::from_millis(ms)
    }

    fn pass(doubled: &mut Doubled, ms: u64, from: PortIndex, series: u16) -> Passage {
        doubled.pass(at(ms), (from, true), &update(series))
    }

    /// What may go on, by its number.
    fn next(doubled: &mut Doubled, ms: u64) -> Vec<u16> {
        let mut passed = Vec::new();
        while let Some((from, kept)) = doubled.take_next(at(ms), update(0).src) {
            if doubled.pass_late(at(ms), from, &kept) {
                passed.push(kept.update().series);
            }
        }
        passed
    }

    /// What it sends at first went over the old way as well, and may have passed there before anything was noted.
    #[test]
    fn a_next_peer_is_not_heard_for_its_first_half_second() {
        let mut doubled = Doubled::default();
        doubled.watch(at(0), NEW, true);
        assert_eq!(pass(&mut doubled, 5, NEW, 9), Passage::Repeated, "the old way brought it");
        assert_eq!(pass(&mut doubled, 6, NEW, FIRST), Passage::Repeated, "of whom none is known");
        assert_eq!(pass(&mut doubled, 7, OLD, 10), Passage::Open);
        assert_eq!(next(&mut doubled, 7), [] as [u16; 0], "nothing waits");
        assert_eq!(pass(&mut doubled, 8, NEW, 11), Passage::Repeated, "the old way will bring it");
        assert_eq!(pass(&mut doubled, 9, OLD, 11), Passage::Open);
        assert_eq!(pass(&mut doubled, 500, NEW, 12), Passage::Open);
        assert_eq!(pass(&mut doubled, 501, OLD, 12), Passage::Repeated);
        // All has been noted for so long, so another one is heard at once.
        doubled.watch(at(600), NEW + 1, true);
        assert_eq!(pass(&mut doubled, 601, NEW + 1, 13), Passage::Open);
    }

    /// The parent before was ahead of the one that is a core peer now.
    #[test]
    fn what_has_passed_before_a_parent_became_a_core_peer_is_known_for_two_seconds() {
        let mut seen = Seen::before(at(0), 9);
        assert!(seen.pass(at(0), 9));
        let mut doubled = Doubled::remembering(at(0));
        doubled.know(BTreeMap::from([(update(0).src, seen)]));
        assert_eq!(pass(&mut doubled, 100, OLD, 9), Passage::Repeated);
        assert_eq!(pass(&mut doubled, 101, OLD, 10), Passage::Open);
        assert!(!doubled.is_over(at(1_999)) && doubled.is_over(at(2_000)));
    }

    #[test]
    fn a_next_peer_is_heard_once_the_old_way_has_gone() {
        let mut doubled = Doubled::default();
        doubled.watch(at(0), NEW, true);
        assert_eq!(pass(&mut doubled, 5, OLD, 9), Passage::Open);
        assert_eq!(pass(&mut doubled, 6, NEW, 10), Passage::Repeated);
        doubled.let_go(at(7), OLD, false);
        doubled.hear();
        assert_eq!(pass(&mut doubled, 8, NEW, 10), Passage::Open);
    }

    #[test]
    fn what_a_next_peer_brings_first_waits_for_what_comes_before_it() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, true);
        assert_eq!(pass(&mut doubled, 1, NEW, 12), Passage::Waits, "nobody has brought anything");
        assert_eq!(pass(&mut doubled, 2, OLD, 10), Passage::Open);
        assert_eq!(next(&mut doubled, 2), [] as [u16; 0]);
        assert_eq!(pass(&mut doubled, 3, OLD, 11), Passage::Open);
        assert_eq!(next(&mut doubled, 3), [12]);
        assert_eq!(pass(&mut doubled, 4, OLD, 12), Passage::Repeated);
        // Nothing is before the next number, whoever brings it.
        assert_eq!(pass(&mut doubled, 5, NEW, 13), Passage::Open);
        assert_eq!(pass(&mut doubled, 6, OLD, 13), Passage::Repeated);
        // What the leader brings lets through what it has left out.
        assert_eq!(pass(&mut doubled, 7, NEW, 15), Passage::Waits);
        let before = doubled.take_before(update(0).src, 16).unwrap();
        assert!(doubled.pass_late(at(8), before.0, &before.1) && doubled.bytes == 0);
        assert_eq!(pass(&mut doubled, 8, OLD, 16), Passage::Open);
    }

    #[test]
    fn who_waits_in_vain_goes_on_after_half_a_second_and_leads() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, true);
        assert_eq!(pass(&mut doubled, 1, OLD, 10), Passage::Open);
        assert_eq!(pass(&mut doubled, 2, NEW, 20), Passage::Waits);
        assert!(doubled.take_late(at(501)).is_none());
        assert_eq!(doubled.due(), Some(at(502)));
        let (from, kept) = doubled.take_late(at(502)).unwrap();
        assert!(doubled.pass_late(at(502), from, &kept));
        assert_eq!(pass(&mut doubled, 503, NEW, 30), Passage::Open);
    }

    #[test]
    fn what_only_a_next_peer_has_brought_goes_on_in_order_once_it_is_a_core_peer() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, true);
        for series in [10, 11] {
            assert_eq!(pass(&mut doubled, 1, NEW, series), Passage::Waits);
        }
        assert_eq!(next(&mut doubled, 2), [] as [u16; 0]);
        assert_eq!(doubled.let_go(at(3), NEW, true), None);
        doubled.lead_no_more();
        assert_eq!(next(&mut doubled, 3), [10, 11]);
        assert_eq!(pass(&mut doubled, 4, NEW, 12), Passage::Open);
        assert_eq!(pass(&mut doubled, 5, OLD, 11), Passage::Repeated);
    }

    #[test]
    fn what_only_a_next_peer_has_brought_goes_on_before_what_its_leader_brings() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, true);
        assert_eq!(pass(&mut doubled, 1, NEW, 10), Passage::Waits);
        let src = update(0).src;
        assert!(doubled.leads(OLD, src) && !doubled.leads(NEW, src));
        let (from, kept) = doubled.take_before(src, 11).unwrap();
        assert!(doubled.pass_late(at(2), from, &kept));
        assert_eq!(pass(&mut doubled, 2, OLD, 11), Passage::Open);
        assert_eq!(pass(&mut doubled, 3, OLD, 10), Passage::Repeated);
    }

    #[test]
    fn publishers_that_are_silent_make_room_for_others() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, true);
        let mut pass = |ms: u64, from: PortIndex, number: usize| {
            let src = Address(0x0001_0000 + number as u32);
            doubled.pass(at(ms), (from, true), &Update { src, ..update(10) })
        };
        for number in 0..MOST_PUBLISHERS {
            assert_eq!(pass(1, OLD, number), Passage::Open);
        }
        assert_eq!(pass(1500, OLD, MOST_PUBLISHERS), Passage::Open);
        assert_eq!(pass(1500, OLD, MOST_PUBLISHERS), Passage::Open, "it is not known");
        // The search is not due yet, and then it is.
        for (ms, again) in [(2400, Passage::Open), (2500, Passage::Repeated)] {
            assert_eq!(pass(ms, OLD, MOST_PUBLISHERS), Passage::Open);
            assert_eq!(pass(ms, OLD, MOST_PUBLISHERS), again, "{ms}");
        }
    }

    /// Another one may have its number by then.
    #[test]
    fn who_has_gone_brings_nothing_in_the_place_of_a_next_peer() {
        let mut doubled = Doubled::default();
        doubled.watch(Time::ZERO, NEW, false);
        assert_eq!(pass(&mut doubled, 1, NEW, 10), Passage::Open);
        assert_eq!(pass(&mut doubled, 1, OLD, 10), Passage::Repeated);
        assert_eq!(pass(&mut doubled, 2, OLD, 12), Passage::Waits);
        assert_eq!(doubled.let_go(at(3), OLD, false), None, "it has led nobody");
        assert_eq!(doubled.let_go(at(4), NEW, true), None, "the other one is gone");
        let (from, kept) = doubled.take_next(at(4), update(0).src).unwrap();
        assert!(from == NONE && kept.update().series == 12);
    }

    #[test]
    fn what_was_led_by_who_goes_is_led_by_nobody_and_forgotten_two_seconds_later() {
        let mut doubled = Doubled::default();
        // It was a core peer, and leaves: the other one is ahead with what it has sent, too.
        doubled.watch(Time::ZERO, NEW, false);
        assert_eq!(pass(&mut doubled, 1, NEW, 10), Passage::Open);
        assert_eq!(pass(&mut doubled, 2, OLD, 12), Passage::Waits);
        assert_eq!(doubled.let_go(at(3), NEW, true), Some(OLD), "that has brought the same");
        assert_eq!(next(&mut doubled, 3), [12]);
        assert_eq!(doubled.pass(at(4), (NEW, false), &update(11)), Passage::Open);
        assert_eq!(pass(&mut doubled, 5, OLD, 12), Passage::Repeated);
        assert!(!doubled.is_over(at(2002)) && doubled.is_over(at(2003)));
    }
}
