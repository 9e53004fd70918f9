//! Which limited receivers share a row, as they come, change what they want, and go.

use super::allowance::{Allowance, Down};
use super::leftovers::{Leftover, Leftovers};
use super::log::Log;
use super::row::{News, Noted, Row};
use super::{LeftOut, Wanted};
use crate::index::{ComtreeIndex, FlowId, LogNumber, PortIndex, fold};
use crate::shape::Shape;
use crate::shares::Shares;
use canopy_wire::Time;
use hashbrown::HashTable;

/// The number of a row.
pub(crate) type RowIndex = u32;

/// What is equal for all members of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowKey {
    /// On which all are. Who is subscribed to nothing is of one mind with nobody on another.
    pub(crate) comtree: ComtreeIndex,
    /// Their subscriptions in brief.
    pub(crate) interests: u64,
    pub(crate) shape: Shape,
    pub(crate) down: Down,
    /// The only member there may be, if it is so.
    pub(crate) alone: Option<PortIndex>,
}

/// A row with its members.
pub(crate) struct Entry {
    pub(crate) row: Row,
    pub(crate) key: RowKey,
    pub(crate) members: Vec<PortIndex>,
    /// By member: the first update that it gets through this row.
    since: Vec<LogNumber>,
    /// Whether it ever had several members, or was theirs: then something of a member's own may wait.
    was_shared: bool,
    /// The members' subscriptions in brief, also of a row that nobody else may share.
    pub(crate) interests: u64,
    /// Whether something may wait that is wanted no more.
    pub(crate) is_stale: bool,
    pub(crate) allowance: Allowance,
    /// When something had to wait last.
    pub(crate) bound_at: Time,
    /// What waits for single members from before they joined.
    pub(crate) leftovers: Leftovers,
    /// By member: updates that were left out for it, and not told of yet.
    left_out: Vec<LeftOut>,
    /// What it wants of this flush, and the flush and the target that it wanted last.
    wants: Vec<Wanted>,
    told: (u64, u32),
    /// Whether it is in the list of those for which something waits.
    is_listed: bool,
}

impl Entry {
    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.row.is_waiting() || !self.leftovers.is_empty()
    }
}

/// The rows of a data thread.
pub(crate) struct Rows {
    entries: Vec<Entry>,
    free: Vec<RowIndex>,
    by_key: HashTable<RowIndex>,
    /// Rows for which something waits.
    listed: Vec<RowIndex>,
    /// Rows that want something of this flush.
    wanting: Vec<RowIndex>,
    /// The pairs of a row and a flow, and how comtrees share the room for them.
    pairs: Shares,
    /// What was left out for members that have left their row, and not told of yet.
    left_out_of_others: LeftOut,
    /// The row that was looked at last, in turn.
    swept: RowIndex,
}

impl Rows {
    /// Rows with so many pairs of a receiver and a flow at most.
    pub(crate) fn new(max_pairs: u32) -> Rows {
        Rows {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            listed: Vec::new(),
            wanting: Vec::new(),
            pairs: Shares::new(max_pairs),
            left_out_of_others: LeftOut::default(),
            swept: 0,
        }
    }

    /// This many comtrees share the room for pairs from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.pairs.deal(comtrees);
    }

    /// Whether there is any row.
    pub(crate) fn is_any(&self) -> bool {
        self.entries.len() > self.free.len()
    }

    /// How many rows there have been at a time.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// The next of all rows in turn, of which there is one at least, and whether it has pairs and nothing waits for it.
    /// One that has none takes no room.
    pub(crate) fn sweep(&mut self) -> (RowIndex, bool) {
        self.swept = (self.swept + 1) % self.entries.len() as u32;
        let entry = self.get(self.swept);
        (self.swept, entry.row.pairs() > 0 && !entry.is_listed && entry.wants.is_empty())
    }

    pub(crate) fn get(&self, row: RowIndex) -> &Entry {
        &self.entries[row as usize]
    }

    pub(crate) fn get_mut(&mut self, row: RowIndex) -> &mut Entry {
        &mut self.entries[row as usize]
    }

    /// A row is told of an update of a flow. If it does not know the flow, and that may have a pair, it has one
    /// from now on where the comtree has room.
    #[inline]
    pub(crate) fn note(&mut self, now: Time, row: RowIndex, news: &News, may_open: bool) -> Noted {
        let Entry { row, key: RowKey { comtree, .. }, .. } = &mut self.entries[row as usize];
        let before = row.pairs();
        let noted = row.note(now, news, || may_open && self.pairs.has_room(*comtree));
        if row.pairs() > before {
            self.pairs.take(*comtree);
        }
        noted
    }

    /// A row has so many pairs less.
    pub(crate) fn give_back(&mut self, row: RowIndex, pairs: usize) {
        let comtree = self.entries[row as usize].key.comtree;
        (0..pairs).for_each(|_| self.pairs.give_back(comtree));
    }

    /// Something waits for a row from now on.
    pub(crate) fn list(&mut self, row: RowIndex) {
        if !core::mem::replace(&mut self.entries[row as usize].is_listed, true) {
            self.listed.push(row);
        }
    }

    /// The rows for which something waits, at the places of a list.
    pub(crate) fn listed(&self, place: usize) -> Option<RowIndex> {
        self.listed.get(place).copied()
    }

    /// How many updates wait, for all members together.
    pub(crate) fn count_waiting(&self) -> u64 {
        let waiting = |entry: &Entry| {
            (entry.row.count_waiting() * entry.members.len() + entry.leftovers.len()) as u64
        };
        self.all_listed().map(|row| waiting(self.get(row))).sum()
    }

    /// All rows of the list.
    pub(crate) fn all_listed(&self) -> impl Iterator<Item = RowIndex> + '_ {
        self.listed.iter().copied()
    }

    /// Puts the list in another order.
    pub(crate) fn sort_listed(&mut self, mut key: impl FnMut(&Entry) -> i64) {
        let entries = &self.entries;
        self.listed.sort_unstable_by_key(|row| key(&entries[*row as usize]));
    }

    /// Nothing waits any more for the row at a place of the list; another takes the place.
    pub(crate) fn unlist(&mut self, place: usize) {
        let row = self.listed.swap_remove(place);
        self.entries[row as usize].is_listed = false;
    }

    /// A row wants the updates of a target in this flush; if several share it, once.
    #[inline]
    pub(crate) fn want(&mut self, row: RowIndex, flush: u64, wanted: Wanted) {
        let entry = &mut self.entries[row as usize];
        let told = (flush, wanted.target);
        if core::mem::replace(&mut entry.told, told) == told {
            return;
        }
        if entry.wants.is_empty() {
            self.wanting.push(row);
        }
        entry.wants.push(wanted);
    }

    /// The next row that wants something of this flush, and what; the list's memory is to be returned.
    pub(crate) fn next_wanting(&mut self) -> Option<(RowIndex, Vec<Wanted>)> {
        let row = self.wanting.pop()?;
        Some((row, core::mem::take(&mut self.entries[row as usize].wants)))
    }

    /// The memory of a list.
    pub(crate) fn return_wants(&mut self, row: RowIndex, wants: Vec<Wanted>) {
        self.entries[row as usize].wants = wants;
    }

    /// Whether what came from a port is the only member's own.
    #[inline]
    pub(crate) fn is_own(&self, row: RowIndex, origin: PortIndex) -> bool {
        self.entries[row as usize].members == [origin]
    }

    /// An update is left out: for all members of a row but the one that it came from, and those who got it
    /// before they became members.
    pub(crate) fn leave_out(
        &mut self,
        row: RowIndex,
        (update, is_urgent): (LogNumber, bool),
        log: &Log,
    ) {
        let entry = &mut self.entries[row as usize];
        let origin = if entry.was_shared { log.origin(update) } else { None };
        for (place, left_out) in entry.left_out.iter_mut().enumerate() {
            let is_for_it = entry.since[place] <= update && Some(entry.members[place]) != origin;
            if !entry.was_shared || is_for_it {
                left_out.add(LeftOut { all: 1, urgent: is_urgent.into() });
            }
        }
    }

    /// An update is left out for one member of a row.
    pub(crate) fn leave_out_for(&mut self, row: RowIndex, port: PortIndex) {
        let Entry { members, left_out, .. } = &mut self.entries[row as usize];
        leave_out_of(members, left_out, port);
    }

    /// Something newer of a flow waits for a row: what its members brought along of it is left out.
    #[inline]
    pub(crate) fn replace_leftovers(&mut self, row: RowIndex, flow: FlowId) {
        let Entry { leftovers, members, left_out, .. } = &mut self.entries[row as usize];
        leftovers.replace(flow, |leftover| leave_out_of(members, left_out, leftover.port));
    }

    /// Updates, in the order of their numbers, go to all members of a row: appends those that members brought along.
    /// What they brought along before it of the same flow is left out.
    pub(crate) fn take_brought(
        &mut self,
        row: RowIndex,
        updates: &[LogNumber],
        brought: &mut Vec<(PortIndex, LogNumber)>,
    ) {
        let Entry { leftovers, members, left_out, .. } = &mut self.entries[row as usize];
        leftovers.take(
            updates,
            |Leftover { port, update, .. }| brought.push((port, update)),
            |Leftover { port, .. }| leave_out_of(members, left_out, port),
        );
    }

    /// Leaves out what members brought along and want no more.
    pub(crate) fn retain_leftovers(
        &mut self,
        row: RowIndex,
        is_wanted: impl Fn(LogNumber) -> bool,
    ) {
        let Entry { leftovers, members, left_out, .. } = &mut self.entries[row as usize];
        leftovers.retain(
            |leftover| is_wanted(leftover.update),
            |leftover| leave_out_of(members, left_out, leftover.port),
        );
    }

    /// Takes what was left out for the members of a row, in their order. Returns the sum, with what was for
    /// members of any row that have left it since.
    pub(crate) fn take_left_out(&mut self, row: RowIndex, by_member: &mut Vec<LeftOut>) -> LeftOut {
        by_member.clear();
        let mut sum = core::mem::take(&mut self.left_out_of_others);
        for left_out in &mut self.entries[row as usize].left_out {
            sum.add(*left_out);
            by_member.push(core::mem::take(left_out));
        }
        sum
    }

    /// The first update that any member of a row gets through it.
    pub(crate) fn since_of_all(&self, row: RowIndex) -> LogNumber {
        self.entries[row as usize].since.iter().copied().min().unwrap_or(0)
    }

    /// The first update that a member of a row gets through it.
    pub(crate) fn since(&self, row: RowIndex, port: PortIndex) -> LogNumber {
        let entry = &self.entries[row as usize];
        let place = entry.members.iter().position(|member| *member == port);
        place.map_or(0, |place| entry.since[place])
    }

    /// A port becomes limited: it joins those of its mind, or has a row of its own. It has got whatever came
    /// before `since`.
    pub(crate) fn open(
        &mut self,
        port: PortIndex,
        key: &RowKey,
        allowance: Allowance,
        since: LogNumber,
    ) -> RowIndex {
        if let Some(row) = self.find(key) {
            self.enter(row, port, since, &allowance);
            return row;
        }
        self.insert(port, key, allowance, (Row::default(), since))
    }

    fn enter(&mut self, row: RowIndex, port: PortIndex, since: LogNumber, own: &Allowance) {
        let entry = &mut self.entries[row as usize];
        entry.allowance.share_with(own);
        entry.members.push(port);
        entry.since.push(since);
        entry.left_out.push(LeftOut::default());
        entry.was_shared = true;
    }

    /// The row of a port, which goes to another one if it is no longer of one mind with the others. There it
    /// is told of everything from `since` on, and what waited for it before goes with it; so does what its row
    /// wants of this flush, if it was among those who wanted it (`is_told`).
    #[inline]
    pub(crate) fn follow(
        &mut self,
        row: RowIndex,
        port: PortIndex,
        key: &RowKey,
        news: (Time, LogNumber, bool, &Log),
    ) -> RowIndex {
        let entry = &self.entries[row as usize];
        if entry.key == *key {
            return row;
        }
        self.go_on(row, port, key, news)
    }

    fn go_on(
        &mut self,
        row: RowIndex,
        port: PortIndex,
        key: &RowKey,
        (now, since, is_told, log): (Time, LogNumber, bool, &Log),
    ) -> RowIndex {
        let entry = &self.entries[row as usize];
        let (is_alone, allowance) = (entry.members.len() == 1, entry.allowance);
        let comtree = entry.key.comtree;
        let was_since = self.since(row, port);
        if let Some(other) = self.find(key) {
            let is_due = |update: LogNumber| {
                (was_since..since).contains(&update) && log.origin(update) != Some(port)
            };
            let mut brought = self.take_leftovers(row, port);
            let waiting = self.entries[row as usize].row.all_waiting();
            let own = waiting.filter(|(_, update, _)| is_due(*update));
            brought.extend(own.map(|(flow, update, len)| Leftover { port, flow, update, len }));
            // What has no credit is left out: nothing would say when something newer has taken its place.
            let creditless = self.entries[row as usize].row.all_creditless();
            let creditless = creditless.filter(|update| is_due(*update)).count();
            self.left_out_of_others.add(LeftOut { all: creditless as u64, urgent: 0 });
            if let Ok([from, to]) = self.entries.get_disjoint_mut([row as usize, other as usize]) {
                to.row.take_in(now, &from.row);
            }
            self.leave(row, port);
            self.enter(other, port, since, &allowance);
            self.bring(now, other, brought);
            return other;
        }
        if is_alone {
            self.unindex(row);
            self.entries[row as usize].key = *key;
            self.index(row);
            self.entries[row as usize].is_stale = true;
            return row;
        }
        let mut copy = entry.row.clone();
        // Others may want of this flush what this port wants no more.
        let wants = is_told.then(|| (entry.wants.clone(), entry.told));
        let brought = self.take_leftovers(row, port);
        self.leave(row, port);
        let mut kept = 0;
        while kept < copy.pairs() && self.pairs.has_room(comtree) {
            self.pairs.take(comtree);
            kept += 1;
        }
        let mut left_out = Vec::new();
        copy.keep_pairs((now, since, key.down), kept, |update| left_out.push(update));
        let own = self.insert(port, key, allowance, (copy, was_since));
        let entry = &mut self.entries[own as usize];
        (entry.was_shared, entry.is_stale) = (true, true);
        if let Some((wants, told)) = wants {
            (entry.wants, entry.told) = (wants, told);
            if !entry.wants.is_empty() {
                self.wanting.push(own);
            }
        }
        for update in left_out {
            self.leave_out(own, (update, false), log);
        }
        self.bring(now, own, brought);
        own
    }

    /// What a member has brought along to a row, to be taken on to another.
    fn take_leftovers(&mut self, row: RowIndex, port: PortIndex) -> Vec<Leftover> {
        let mut taken = Vec::new();
        let leftovers = &mut self.entries[row as usize].leftovers;
        leftovers.retain(|leftover| leftover.port != port, |leftover| taken.push(leftover));
        taken
    }

    /// A new member of a row brings along what waits for it.
    fn bring(&mut self, now: Time, row: RowIndex, brought: Vec<Leftover>) {
        let entry = &mut self.entries[row as usize];
        // Not all of it may be wanted still.
        entry.is_stale |= !brought.is_empty();
        for leftover in brought {
            if !entry.leftovers.bring(now, leftover) {
                leave_out_of(&entry.members, &mut entry.left_out, leftover.port);
            }
        }
        self.list(row);
    }

    fn insert(
        &mut self,
        port: PortIndex,
        key: &RowKey,
        allowance: Allowance,
        (row, since): (Row, LogNumber),
    ) -> RowIndex {
        // What was not used before is nothing that the row could have shared out.
        let mut allowance = allowance;
        allowance.take_lost();
        let entry = Entry {
            row,
            key: *key,
            members: vec![port],
            since: vec![since],
            was_shared: false,
            interests: key.interests,
            is_stale: false,
            allowance,
            bound_at: Time::ZERO,
            leftovers: Leftovers::default(),
            left_out: vec![LeftOut::default()],
            wants: Vec::new(),
            told: (0, u32::MAX),
            is_listed: false,
        };
        let index = match self.free.pop() {
            Some(index) => {
                // Its place in the list is taken by whoever has its number.
                let is_listed = self.entries[index as usize].is_listed;
                self.entries[index as usize] = Entry { is_listed, ..entry };
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.index(index);
        index
    }

    /// A port may be sent so much from now on. Where it shares its row, that follows when it is told of the
    /// next target.
    pub(crate) fn set_down(&mut self, row: RowIndex, port: PortIndex, down: Down) {
        if self.entries[row as usize].members == [port] {
            self.unindex(row);
            self.entries[row as usize].key.down = down;
            self.index(row);
        }
    }

    /// A port has another row from now on, or none.
    pub(crate) fn leave(&mut self, row: RowIndex, port: PortIndex) {
        let entry = &mut self.entries[row as usize];
        if let Some(place) = entry.members.iter().position(|member| *member == port) {
            entry.members.remove(place);
            entry.since.remove(place);
            self.left_out_of_others.add(entry.left_out.remove(place));
        }
        entry.leftovers.retain(|leftover| leftover.port != port, drop);
        if !entry.members.is_empty() {
            return;
        }
        let pairs = core::mem::take(&mut entry.row).pairs();
        entry.wants.clear();
        self.give_back(row, pairs);
        self.unindex(row);
        self.free.push(row);
    }

    fn find(&self, key: &RowKey) -> Option<RowIndex> {
        self.by_key.find(hash_of(key), |row| self.entries[*row as usize].key == *key).copied()
    }

    fn index(&mut self, row: RowIndex) {
        let entries = &self.entries;
        let hash = |row: &RowIndex| hash_of(&entries[*row as usize].key);
        self.by_key.insert_unique(hash(&row), row, hash);
    }

    fn unindex(&mut self, row: RowIndex) {
        let hash = hash_of(&self.entries[row as usize].key);
        if let Ok(found) = self.by_key.find_entry(hash, |found| *found == row) {
            found.remove();
        }
    }
}

fn leave_out_of(members: &[PortIndex], left_out: &mut [LeftOut], port: PortIndex) {
    if let Some(place) = members.iter().position(|member| *member == port) {
        left_out[place].add(LeftOut { all: 1, urgent: 0 });
    }
}

fn hash_of(key: &RowKey) -> u64 {
    let alone = key.alone.map_or(u64::MAX, u64::from);
    let of_all = u64::from(key.comtree) << 48 ^ key.interests;
    fold(of_all ^ fold(alone ^ key.down.bits.rotate_left(32) ^ key.down.updates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::Waiting;
    use crate::shape::{DatagramClass, PeerClass};
    use crate::thin::Fairness;
    use crate::thin::allowance::{WINDOW, spare};
    use crate::thin::flows::Pace;
    use canopy_wire::{Level, Weight};
    use core::time::Duration;

    const SHAPE: Shape = Shape { class: PeerClass::Participant, datagrams: DatagramClass::Safe };
    const DOWN: Down = Down { bits: 64_000, updates: 0 };
    const NEWS: News =
        News { flow: 0, weight: 1.0, level: 0, len: 100, update: 0, order: 1, series: 1 };

    fn key(interests: u64) -> RowKey {
        RowKey { comtree: 0, interests, shape: SHAPE, down: DOWN, alone: None }
    }

    fn open(rows: &mut Rows, port: PortIndex, interests: u64) -> RowIndex {
        rows.open(port, &key(interests), Allowance::default(), 0)
    }

    /// An update of a flow comes to a row.
    fn note(rows: &mut Rows, row: RowIndex, flow: FlowId) -> Noted {
        let news = News { flow, update: flow.into(), ..NEWS };
        rows.note(Time::from_millis(1), row, &news, true)
    }

    #[test]
    fn a_flow_has_a_pair_once_nothing_older_of_it_waits_without_a_credit() {
        let mut rows = Rows::new(2);
        let row = open(&mut rows, 1, 7);
        let (pace, now) = (Pace::default(), Time::from_millis(1));
        let older = News { flow: 5, update: 5, ..NEWS };
        let noted = rows.get_mut(row).row.note_creditless(now, (&older, &pace), (DOWN, 0));
        assert_eq!(noted, Noted::Waits);
        assert_eq!(note(&mut rows, row, 6), Noted::Waits);
        assert_eq!(note(&mut rows, row, 5), Noted::NoRoom, "the older one goes first");
        assert_eq!(rows.pairs.total(), 1);
        let (mut allowance, mut chosen) = (Allowance::default(), Vec::new());
        let down = Down { bits: 8_000_000, updates: 0 };
        allowance.advance(now, Duration::from_millis(50), spare(down), WINDOW);
        let of_row = &mut rows.get_mut(row).row;
        of_row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
        assert!(chosen.contains(&5));
        assert_eq!(note(&mut rows, row, 5), Noted::Waits);
        assert_eq!(rows.pairs.total(), 2);
    }

    #[test]
    fn who_takes_no_pairs_along_misses_nothing_of_its_own() {
        let (mut rows, mut log) = (Rows::new(100), Log::new());
        log.deal(1);
        let row = open(&mut rows, 1, 7);
        open(&mut rows, 2, 7);
        for flow in 0..100 {
            let own = Waiting::new(2, &crate::thin::log::tests::update(0, &[]));
            let update = log.push(Time::from_millis(1), (0, 0), &own, &[]);
            let news = News { flow, update, ..NEWS };
            rows.note(Time::from_millis(1), row, &news, true);
        }
        let news = (Time::from_millis(2), log.next(), false, &log);
        let other = rows.follow(row, 2, &key(8), news);
        assert!(rows.get(other).row.count_waiting() < 100, "not all find room");
        assert_eq!(rows.get(other).left_out, [LeftOut::default()]);
    }

    #[test]
    fn pairs_are_counted_for_each_row_and_go_with_it() {
        let mut rows = Rows::new(3);
        let row = open(&mut rows, 1, 7);
        assert_eq!(open(&mut rows, 2, 7), row, "they are of one mind");
        (0..2).for_each(|flow| assert_eq!(note(&mut rows, row, flow), Noted::Waits));
        // Who is of another mind takes along the pairs for which there is room, and whoever stays has all still.
        let log = Log::new();
        let other = rows.follow(row, 2, &key(8), (Time::from_millis(2), 0, false, &log));
        assert_ne!(other, row);
        assert_eq!((rows.get(other).row.pairs(), rows.pairs.total()), (1, 3));
        assert_eq!(rows.get(other).row.count_waiting(), 2, "nothing that waits is lost");
        // The row is told once more of what goes without a credit now.
        let again = News { flow: 1, update: 1, ..NEWS };
        assert_eq!(rows.note(Time::from_millis(2), other, &again, true), Noted::NoRoom);
        let of_row = &mut rows.get_mut(other).row;
        let pace = Pace::default();
        let noted = of_row.note_creditless(Time::from_millis(2), (&again, &pace), (DOWN, 0));
        assert_eq!((noted, of_row.count_waiting()), (Noted::Known, 2));
        assert_eq!(note(&mut rows, row, 2), Noted::NoRoom);
        rows.leave(other, 2);
        assert_eq!(note(&mut rows, row, 2), Noted::Waits);
        rows.leave(row, 1);
        assert_eq!(rows.pairs.total(), 0);
    }

    /// Whoever goes on to want something would leave the row to the other, with the wrong comtree.
    #[test]
    fn who_wants_nothing_shares_no_row_with_whom_is_on_another_comtree() {
        let mut rows = Rows::new(4);
        let one = open(&mut rows, 1, 0);
        assert_eq!(open(&mut rows, 2, 0), one);
        let other = rows.open(3, &RowKey { comtree: 1, ..key(0) }, Allowance::default(), 0);
        assert_ne!(other, one);
        assert_eq!(rows.get(other).key.comtree, 1);
    }

    #[test]
    fn pairs_of_one_comtree_leave_room_for_those_of_others() {
        let mut rows = Rows::new(8);
        rows.deal(2);
        let flooded = open(&mut rows, 1, 7);
        let quiet = rows.open(2, &RowKey { comtree: 1, ..key(8) }, Allowance::default(), 0);
        let waits = (0..100).filter(|flow| note(&mut rows, flooded, *flow) == Noted::Waits);
        assert_eq!(waits.count(), 6, "its own part, and all that is common");
        (100..102).for_each(|flow| assert_eq!(note(&mut rows, quiet, flow), Noted::Waits));
        assert_eq!(note(&mut rows, quiet, 102), Noted::NoRoom);
    }

    /// What goes to a row of 140 flows, of 20 updates a second each, and when, in milliseconds. The budget holds little
    /// more than their floors.
    fn pass(rows: &mut Rows, row: RowIndex, millis: core::ops::Range<u64>) -> Vec<(FlowId, u64)> {
        const FLOWS: u64 = 140;
        let (mut allowance, mut all, mut chosen) = (Allowance::default(), Vec::new(), Vec::new());
        for at in millis.step_by(50) {
            let now = Time::from_millis(at);
            for flow in 0..FLOWS {
                let (update, order, series) = (at * FLOWS + flow, at, (at / 50) as u16);
                let news = News { flow: flow as FlowId, update, order, series, ..NEWS };
                rows.note(now, row, &news, true);
            }
            allowance.advance(now, Duration::from_millis(50), spare(DOWN), WINDOW);
            let of_row = &mut rows.get_mut(row).row;
            of_row.serve(now, (DOWN, Fairness::default()), &mut allowance, &mut chosen);
            all.extend(chosen.drain(..).map(|update| ((update % FLOWS) as FlowId, at)));
        }
        all
    }

    #[test]
    fn who_joins_others_waits_no_longer_than_the_floor() {
        let mut rows = Rows::new(1000);
        let (mine, others) = (open(&mut rows, 1, 7), open(&mut rows, 2, 8));
        let before = pass(&mut rows, mine, 50..10_000);
        // There each flow has its turn at another time.
        pass(&mut rows, others, 1_800..10_000);
        let news = (Time::from_millis(10_000), 0, false, &Log::new());
        assert_eq!(rows.follow(mine, 1, &key(8), news), others);
        let after = pass(&mut rows, others, 10_000..13_000);
        let gaps = (0..140).map(|flow| {
            let is_it = |one: &&(FlowId, u64)| one.0 == flow;
            let last = before.iter().rfind(is_it).expect("each goes at its floor").1;
            let next = after.iter().find(is_it).expect("each goes at its floor").1;
            next - last
        });
        let longest = gaps.max().expect("there are flows");
        assert!(longest <= 2_200, "{longest} ms");
    }

    #[test]
    fn who_leaves_a_row_within_a_flush_wants_what_the_row_wanted() {
        let mut rows = Rows::new(100);
        let row = open(&mut rows, 1, 7);
        open(&mut rows, 2, 7);
        rows.want(row, 5, Wanted { target: 9, level: Level(0), weight: Weight::ONE });
        let log = Log::new();
        let other = rows.follow(row, 2, &key(8), (Time::from_millis(2), 0, true, &log));
        let mut wanting = Vec::new();
        while let Some((row, wants)) = rows.next_wanting() {
            wanting.push((row, wants.len()));
        }
        wanting.sort_unstable();
        assert_eq!(wanting, [(row, 1), (other, 1)]);
    }
}
