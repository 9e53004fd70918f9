//! Receivers that cannot be sent everything: what waits for them, and what goes.

use super::{Copy, Fanout, FlushCounts, FlushTotals, Outbox, Sealed, Tables};
use crate::burst::Fillers;
use crate::counters::Counters;
use crate::index::PortIndex;
use crate::pending::Pending;
use crate::thin::{RowIndex, Wanted, Who};
use canopy_batch::SendBatch;
use canopy_wire::DropReason;

impl Fanout {
    /// Notes which limited receivers want the updates of a target.
    pub(super) fn note_limited(&mut self, target: u32, is_for_one: bool, tables: &mut Tables<'_>) {
        for (port, level, weight) in self.limited.drain(..) {
            let row = match tables.thinning.row_in_flush(port).filter(|_| !is_for_one) {
                Some(row) => row,
                None => {
                    let Some(who) = who(port, is_for_one, tables) else { continue };
                    tables.thinning.row_of(tables.now, &who)
                }
            };
            tables.thinning.want(row, Wanted { target, level, weight });
        }
    }

    /// The burst at work does not fit what a receiver has left: it waits, and the receiver is limited.
    #[cold]
    pub(super) fn limit(
        &mut self,
        receiver: PortIndex,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
    ) {
        let comtree = tables.ports.get(receiver).map(|port| port.comtree);
        for number in self.burst.records() {
            let group = pending.records[*number as usize].dst.group();
            let Some(who) = who(receiver, group.is_none(), tables) else { return };
            let weight = comtree.zip(group).and_then(|(comtree, group)| {
                Some(tables.table.wanted_by(receiver, comtree, group)?.1)
            });
            let wanted = (&who, weight.unwrap_or_default());
            tables.thinning.limit(tables.now, wanted, *number, pending);
        }
    }

    /// Sends every limited receiver for whom something waits what it is the turn of.
    pub(super) fn serve_limited<F: FnMut(&SendBatch)>(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
        out: &mut Outbox<'_, F>,
    ) {
        tables.thinning.begin_serving(tables.now);
        counts.counters.updates_without_credit += tables.thinning.take_creditless();
        let mut place = 0;
        while let Some((row, is_due)) = tables.thinning.next_row(place) {
            if !is_due {
                place += 1;
                continue;
            }
            self.follow_changes(row, tables);
            let comtree = tables.thinning.comtree_of(row);
            let entry = counts.comtrees.get(comtree);
            let when = (tables.now, entry.fairness, entry.mode);
            let mark = pending.mark();
            let serving = tables.thinning.serve(when, row, pending, &mut self.chosen);
            let drops = &mut counts.counters.drops;
            let (replaced, too_late) = (serving.replaced, serving.too_late);
            drops[DropReason::Thinned as usize] += replaced.all;
            drops[DropReason::WaitedTooLong as usize] += too_late.all;
            counts.counters.urgent_thinned += replaced.urgent;
            counts.counters.urgent_waited_too_long += too_late.urgent;
            let paths = &mut tables.paths;
            tables.thinning.book_left_out(row, |member, count| paths.left_out(member, count));
            let before = FlushTotals::of(counts.counters);
            let sent = self.send_chosen(row, pending, tables, counts, out);
            let after = FlushTotals::of(counts.counters);
            tables.thinning.sent_together(
                row,
                (after.bytes - before.bytes, after.deliveries - before.deliveries),
            );
            pending.return_to(mark);
            let counters = &mut counts.comtrees.get_mut(comtree).counters;
            counters.deliveries_out += after.deliveries - before.deliveries;
            counters.bytes_out += after.bytes - before.bytes;
            counters.drops += after.drops - before.drops;
            counters.drops += replaced.all + too_late.all;
            place += usize::from(tables.thinning.served(tables.now, place, &serving, sent));
        }
        tables.thinning.end_serving(tables.now);
    }

    /// Looks at what the members of a row want by now: whoever wants something else goes to another row,
    /// and what nobody there wants any more is left out.
    fn follow_changes(&mut self, row: RowIndex, tables: &mut Tables<'_>) {
        let mut place = 0;
        while let Some(member) = tables.thinning.members(row).get(place).copied() {
            place += 1;
            let interests = tables.table.interests(member);
            if tables.thinning.has_changed(row, member, interests)
                && let Some(who) = who(member, false, tables)
            {
                tables.thinning.change(tables.now, &who);
                // If it left, another has its place.
                place -= usize::from(tables.thinning.members(row).get(place - 1) != Some(&member));
            }
        }
        let Some(first) = tables.thinning.members(row).first().copied() else { return };
        let Some(comtree) = tables.ports.get(first).map(|port| port.comtree) else { return };
        let table = &tables.table;
        tables.thinning.refresh(row, |dst, level| {
            dst.group().is_none_or(|group| {
                table.wanted_by(first, comtree, group).is_some_and(|wanted| level <= wanted.0)
            })
        });
    }

    /// Sends the chosen updates to the members of a row. Returns how many bytes and updates that is for
    /// each.
    fn send_chosen<F: FnMut(&SendBatch)>(
        &mut self,
        row: RowIndex,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
        out: &mut Outbox<'_, F>,
    ) -> (u64, u64) {
        let Some(first) = tables.thinning.members(row).first().copied() else { return (0, 0) };
        let brought = self.send_leftovers(pending, tables, counts, out);
        if self.chosen.is_empty() {
            return brought;
        }
        let is_shared = tables.thinning.members(row).len() > 1;
        let chosen = core::mem::take(&mut self.chosen);
        self.make_room(out);
        self.burst.take(pending, &chosen, None);
        let is_laid_out =
            self.lay_out(first, is_shared, pending, tables, counts.comtrees, out).is_some();
        let sent = (brought.0 + self.bytes_for_each(), brought.1 + self.burst.updates() as u64);
        let mut place = 0;
        while is_laid_out && let Some(member) = tables.thinning.members(row).get(place).copied() {
            place += 1;
            if is_shared && tables.thinning.is_apart(row, member) {
                // A part of it came before it was a member.
                self.apart.push(member);
                continue;
            }
            self.send_to_member(member, pending, tables, counts.counters, out);
        }
        while let Some(receiver) = self.apart.pop() {
            tables.thinning.take_for((row, receiver), &chosen, &mut self.own);
            self.make_room(out);
            self.burst.take(pending, &self.own, Some(receiver));
            if self.burst.updates() == 0 {
                continue;
            }
            self.lay_out(receiver, false, pending, tables, counts.comtrees, out);
            self.send_to_member(receiver, pending, tables, counts.counters, out);
        }
        self.chosen = chosen;
        sent
    }

    /// Sends one member of a row what waits for it alone. Returns how many bytes and updates that is.
    fn send_leftovers<F: FnMut(&SendBatch)>(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
        out: &mut Outbox<'_, F>,
    ) -> (u64, u64) {
        let (port, numbers) = tables.thinning.take_leftovers();
        let mut sent = (0, 0);
        if !numbers.is_empty() {
            self.make_room(out);
            self.burst.take(pending, &numbers, Some(port));
            if self.lay_out(port, false, pending, tables, counts.comtrees, out).is_some() {
                sent = (self.bytes_for_each(), self.burst.updates() as u64);
                self.send_to_member(port, pending, tables, counts.counters, out);
            }
        }
        tables.thinning.return_leftovers(numbers);
        sent
    }
}

impl Fanout {
    /// Sends the burst at work to a member of a row, whose allowance it was chosen for.
    fn send_to_member<F: FnMut(&SendBatch)>(
        &mut self,
        member: PortIndex,
        pending: &Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        if self.sealed != Sealed::ForAll {
            let Some(copy) = self.copy_for(member, pending, tables, counters) else { return };
            return self.push(member, &copy, tables, counters, out);
        }
        // What is sealed for all goes as it is: members drop what is their own.
        let own = self.burst.count_own(pending, member) as u64;
        let updates = self.burst.updates() as u64 - own;
        let Some(path) = tables.path(member).filter(|_| updates > 0) else { return };
        if tables.is_unreachable(path) {
            counters.drops[DropReason::Unreachable as usize] += updates;
            return;
        }
        counters.echoes_out += own;
        let copy = Copy { path, fillers: Fillers::default(), updates };
        self.push(member, &copy, tables, counters, out);
    }
}

/// Who a port is.
fn who(port: PortIndex, is_for_one: bool, tables: &mut Tables<'_>) -> Option<Who> {
    let entry = tables.ports.get(port)?;
    let (comtree, shape) = (entry.comtree_index, entry.shape);
    let interests = tables.table.interests(port);
    Some(Who { port, comtree, shape, interests, is_for_one })
}
