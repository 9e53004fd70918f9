//! What limited receivers are sent: whose turn it is, what is chosen for a row, and what that took.

use super::allowance::{Down, MOST_COST, spare};
use super::link_share::Room;
use super::row::Fairness;
use super::rows::{Entry, RowIndex};
use super::{LeftOut, Thinning};
use crate::index::{LogNumber, NONE, PortIndex};
use crate::pending::Pending;
use crate::shape::PeerClass;
use crate::timing::Mode;
use canopy_wire::Time;
use core::time::Duration;

/// A receiver for whom nothing had to wait for so long is limited no more.
const CALM: Duration = Duration::from_secs(2);

/// What is due for the members of a row.
pub(crate) struct Serving {
    /// How much of the allowance was taken for it already.
    estimate: i64,
    /// Deliveries that were left out since the row was last served, and that were kept no more when their
    /// turn came.
    pub(crate) replaced: LeftOut,
    pub(crate) too_late: LeftOut,
}

impl Thinning {
    /// Books what was left out for each member of the row that was served last, since it was served before. Calls
    /// `left_out` with each member, and how much that was.
    pub(crate) fn book_left_out(
        &mut self,
        row: RowIndex,
        mut left_out: impl FnMut(PortIndex, u32),
    ) {
        let members = self.rows.get(row).members.iter();
        let kinds = self.replaced.iter().zip(&self.too_late);
        for (member, (replaced, too_late)) in members.zip(kinds) {
            self.thinned.left_out(*member, *replaced, *too_late);
            left_out(*member, (replaced.all + too_late.all) as u32);
        }
    }

    /// Whether a part of what was chosen last came before somebody was a member of the row.
    pub(crate) fn is_apart(&self, row: RowIndex, member: PortIndex) -> bool {
        let since = self.rows.since(row, member);
        self.taken.iter().any(|update| *update < since)
    }

    /// What such a member gets of it: what has come since then, and what it brought along. `numbers` are those in
    /// `pending`.
    pub(crate) fn take_for(
        &self,
        (row, member): (RowIndex, PortIndex),
        numbers: &[u32],
        own: &mut Vec<u32>,
    ) {
        let since = self.rows.since(row, member);
        let gets = |update: &LogNumber| {
            *update >= since || self.brought.binary_search(&(member, *update)).is_ok()
        };
        let all = self.taken.iter().zip(numbers);
        own.clear();
        own.extend(all.filter(|(update, _)| gets(update)).map(|(_, number)| number));
    }

    /// The rows for which something waits are to be served: over a shaped link, those go first that are the
    /// furthest below their guarantees; of a comtree with a budget, those that have the most left.
    pub(crate) fn begin_serving(&mut self, now: Time) {
        self.looks.begin(now);
        if !self.links.is_any_shaped() && !self.comtrees.is_any() {
            return;
        }
        let mut place = 0;
        while let Some(row) = self.rows.listed(place) {
            if let Some(port) = self.rows.get(row).key.alone {
                self.links.advance(now, self.pace_of_links, port);
            }
            place += 1;
        }
        let unused = |entry: &Entry| match entry.key.alone {
            Some(port) if entry.key.shape.class != PeerClass::Participant => {
                -self.links.unused(port)
            }
            _ => -entry.allowance.left(),
        };
        self.rows.sort_listed(unused);
    }

    /// All rows for which something waits have been served.
    pub(crate) fn end_serving(&mut self, now: Time) {
        let classes = self.rows.all_listed().map(|row| self.rows.get(row).key.shape.class);
        self.looks.end(now, classes);
    }

    /// The row at a place of the list of those for which something waits, and whether it is its time.
    pub(crate) fn next_row(&mut self, place: usize) -> Option<(RowIndex, bool)> {
        let row = self.rows.listed(place)?;
        Some((row, self.looks.is_due(self.rows.get(row).key.shape.class)))
    }

    /// Chooses what a row is sent now. The updates are appended to `pending`, and their numbers there to
    /// `numbers`, in the order in which they came.
    pub(crate) fn serve(
        &mut self,
        (now, fairness, mode): (Time, Fairness, Mode),
        row: RowIndex,
        pending: &mut Pending,
        numbers: &mut Vec<u32>,
    ) -> Serving {
        let down = self.down_of(row);
        let entry = self.rows.get_mut(row);
        let at_once = super::at_once(mode).max(self.looks.every(entry.key.shape.class));
        let window = self.looks.window(entry.key.shape.class);
        entry.allowance.advance(now, at_once, spare(down), window);
        let before = entry.row.pairs();
        self.chosen.clear();
        self.died.clear();
        entry.row.expire_urgent(now, |update| self.died.push(update));
        let (of_leftovers, lost_by) = self.choose_leftovers(now, row, pending);
        let estimate = of_leftovers + self.choose((now, fairness), row, (down, of_leftovers));
        let entry = self.rows.get_mut(row);
        let closed = before - entry.row.pairs();
        entry.row.take_overdue(&mut self.overdue);
        // Where there is no limit any more, nothing was to wait.
        let is_bound = !self.overdue.is_empty() && down.is_limited();
        if entry.row.take_left_out() || entry.is_waiting() || is_bound {
            entry.bound_at = now;
        }
        let urgent = entry.row.take_urgent_chosen();
        for update in self.overdue.drain(..) {
            self.rows.leave_out(row, (update, false), &self.log);
        }
        let replaced = self.rows.take_left_out(row, &mut self.replaced);
        self.rows.give_back(row, closed);
        self.take_chosen(row, urgent, pending, numbers);
        if let Some(member) = lost_by {
            self.rows.leave_out_for(row, member);
        }
        let too_late = self.rows.take_left_out(row, &mut self.too_late);
        Serving { estimate, replaced, too_late }
    }

    /// Chooses what goes to all members of a row, after so much of single members'. Returns how much of the allowance
    /// that is thought to take.
    fn choose(
        &mut self,
        (now, fairness): (Time, Fairness),
        row: RowIndex,
        (down, of_leftovers): (Down, i64),
    ) -> i64 {
        let entry = self.rows.get_mut(row);
        if !down.is_limited() {
            entry.row.empty(&mut self.chosen);
            return 0;
        }
        let allowance = &mut entry.allowance;
        // What the link or the comtree does not bear now is held back.
        let room = match entry.key.alone {
            _ if entry.key.shape.class == PeerClass::Participant => {
                // A comtree with many members may never bear an update for each at once, and owes that.
                let each = (entry.members.len(), down);
                let room = self.comtrees.room(now, entry.key.comtree, each);
                room.map(|now| Room { now, of_window: i64::MAX })
            }
            Some(port) if self.links.is_any_shaped() => self.links.room_of(port, down),
            _ => None,
        };
        let room = room.unwrap_or(Room { now: i64::MAX, of_window: i64::MAX });
        let margin = entry.row.margin(of_leftovers);
        let beyond =
            |left: i64, room: i64| margin + left.saturating_sub(room).clamp(0, MOST_COST as i64);
        let of_window = beyond(allowance.left_of_window(), room.of_window);
        allowance.hold(beyond(allowance.left(), room.now), of_window);
        let estimate = entry.row.serve(now, (down, fairness), allowance, &mut self.chosen);
        allowance.hold(0, 0);
        estimate
    }

    /// Takes back what was chosen, of which the first `urgent` are urgent, and counts what died.
    fn take_chosen(
        &mut self,
        row: RowIndex,
        urgent: usize,
        pending: &mut Pending,
        numbers: &mut Vec<u32>,
    ) {
        self.take_brought(row);
        // What waited for members that have left is for nobody.
        let since = self.rows.since_of_all(row);
        for update in self.died.drain(..).filter(|update| *update >= since) {
            self.rows.leave_out(row, (update, true), &self.log);
        }
        let kept_no_more = |update: &&LogNumber| !self.log.has(**update);
        self.died.extend(self.chosen[..urgent].iter().filter(kept_no_more));
        // A group's updates are next to each other in the log, and take less room so. Important ones may be of the same
        // flow as others, and go as they came.
        match urgent {
            0 => self.chosen.sort_unstable(),
            _ => self.log.put_in_order(&mut self.chosen),
        }
        numbers.clear();
        self.taken.clear();
        for update in &self.chosen {
            let brought = self.brought.iter().filter(|(_, brought)| brought == update);
            if *update < since && brought.clone().next().is_none() {
                continue;
            }
            if let Some(number) = self.log.take_back(*update, pending) {
                numbers.push(number);
                self.taken.push(*update);
            } else {
                let is_urgent = self.died.contains(update);
                self.rows.leave_out(row, (*update, is_urgent), &self.log);
                brought.for_each(|(member, _)| self.rows.leave_out_for(row, *member));
            }
        }
    }

    /// Takes out what members of a row have brought along of what was chosen: it goes to them, too.
    fn take_brought(&mut self, row: RowIndex) {
        self.brought.clear();
        if !self.rows.get(row).leftovers.is_empty() {
            self.taken.clone_from(&self.chosen);
            self.taken.sort_unstable();
            self.rows.take_brought(row, &self.taken, &mut self.brought);
            self.brought.sort_unstable();
        }
    }

    /// Takes back what goes to one member only. Returns how much of the allowance that is thought to take, and the
    /// member if one of its is kept no more.
    fn choose_leftovers(
        &mut self,
        now: Time,
        row: RowIndex,
        pending: &mut Pending,
    ) -> (i64, Option<PortIndex>) {
        let down = self.down_of(row);
        let Thinning { rows, log, leftovers: (port, numbers), .. } = self;
        (*port, _) = (NONE, numbers.clear());
        let entry = rows.get_mut(row);
        let (mut only, mut estimate) = (None, 0);
        // The last may owe what is lacking, but goes beyond no window; and nothing goes before what is urgent.
        let window = entry.allowance.left_of_window();
        let (most, may_resort) = (entry.row.within(window), window >= spare(down));
        while !entry.leftovers.is_empty()
            && !entry.row.has_urgent()
            && (entry.allowance.left() > 0 || !down.is_limited())
            && let Some(leftover) = entry.leftovers.next(now, only, |len| {
                let whole = estimate + down.cost(len.into(), 1);
                !down.is_limited() || whole <= most || estimate == 0 && may_resort
            })
        {
            only = Some(leftover.port);
            let Some(number) = log.take_back(leftover.update, pending) else {
                return (estimate, only);
            };
            let cost = down.cost(leftover.len.into(), 1);
            entry.allowance.spend(cost);
            estimate += cost;
            *port = leftover.port;
            numbers.push(number);
        }
        (estimate, None)
    }

    /// The updates of `pending` that only one member of the row that was served last is to get, and that
    /// member; they are taken out.
    pub(crate) fn take_leftovers(&mut self) -> (PortIndex, Vec<u32>) {
        let (port, numbers) = &mut self.leftovers;
        (*port, core::mem::take(numbers))
    }

    /// The memory of a list.
    pub(crate) fn return_leftovers(&mut self, numbers: Vec<u32>) {
        self.leftovers.1 = numbers;
    }

    /// What a row was sent took so many bytes for each member. Returns whether the row keeps its place in
    /// the list.
    pub(crate) fn served(
        &mut self,
        now: Time,
        place: usize,
        serving: &Serving,
        (bytes, updates): (u64, u64),
    ) -> bool {
        let Some(row) = self.rows.listed(place) else { return false };
        let down = self.down_of(row);
        let entry = self.rows.get_mut(row);
        let cost = down.cost(bytes, updates);
        entry.allowance.spend(cost - serving.estimate);
        entry.row.learn_cost(serving.estimate, cost);
        if let Some(port) = entry.key.alone.filter(|_| self.links.is_any_shaped()) {
            self.links.spend(port, (bytes, updates));
        }
        if entry.is_waiting() {
            return true;
        }
        let is_calm = now.since(entry.bound_at) >= CALM;
        self.rows.unlist(place);
        if is_calm {
            self.release(row);
        }
        false
    }

    /// The members of a row were sent so much together.
    pub(crate) fn sent_together(&mut self, row: RowIndex, sent: (u64, u64)) {
        let entry = self.rows.get(row);
        if entry.key.shape.class == PeerClass::Participant {
            self.comtrees.spend_together(entry.key.comtree, sent);
        }
    }

    /// Looks at a part of the rows for those that fell silent sooner after they had to wait than is calm: nothing
    /// else would look at them before something comes.
    pub(super) fn release_silent(&mut self, now: Time, parts: usize) {
        for _ in 0..self.rows.count().div_ceil(parts) {
            let (row, is_silent) = self.rows.sweep();
            if is_silent && now.since(self.rows.get(row).bound_at) >= CALM {
                self.release(row);
            }
        }
    }

    /// The members of a row are limited no more.
    fn release(&mut self, row: RowIndex) {
        while let Some(member) = self.rows.get(row).members.first().copied() {
            let allowance = self.rows.get(row).allowance;
            if let Some(receiver) = self.receivers.get_mut(member as usize) {
                receiver.allowance = allowance;
                self.limited[member as usize].row = None;
            }
            self.rows.leave(row, member);
        }
    }
}
