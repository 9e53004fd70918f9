//! Receivers that cannot be sent everything: what each gets instead (Meru §4.2–4.4).
//!
//! A receiver with a budget is sent everything, in the bursts that it shares with others, as long as its
//! allowance lasts. Once a burst does not fit, the receiver is *limited*: from then on it has a *row*, in
//! which the newest updates of each flow wait for their turn ([`row`]). It is limited no more once nothing had
//! to wait for a while. Receivers with equal budgets and equal subscriptions, weights included, share a row,
//! and so their bursts. A branch over a shaped link is such a receiver too, and so is any participant of a
//! comtree whose own budget does not hold what is meant for all of them.

mod allowance;
mod comtree_share;
mod flows;
mod leftovers;
mod link_share;
mod log;
mod looks;
mod max_min;
mod row;
mod rows;
mod serving;
mod thinned;

pub use allowance::Down;
pub(crate) use comtree_share::ComtreeShares;
pub(crate) use link_share::LinkShares;
pub use row::Fairness;
pub(crate) use rows::RowIndex;
pub use thinned::{LeftOutRates, MAX_THINNED, ThinnedReceiver};

use crate::flush_queues::FlushQueues;
use crate::index::{ComtreeIndex, LogNumber, NONE, NOTHING, PortIndex};
use crate::pending::{Pending, Waiting};
use crate::shape::{PeerClass, Shape};
use crate::timing::Mode;
use allowance::{Allowance, WINDOW, spare};
use canopy_session::SessionIndex;
use canopy_wire::{Address, Level, Time, Weight};
use core::time::Duration;
use flows::{FlowKey, Flows, MAX_FLOWS};
use log::Log;
use looks::Looks;
use row::{News, Noted};
use rows::{Entry, RowKey, Rows};
use thinned::ThinnedReceivers;

/// In immediate mode and in shorter ticks, what may be saved up is that of this time: bursts of many publishers come
/// no more spread out there.
const AT_ONCE: Duration = Duration::from_millis(25);
/// What the head of a record takes in a datagram, about, with its part of the datagram's own.
const RECORD_OVERHEAD: u16 = 8;

/// A receiver that has a budget.
#[derive(Clone, Copy, Default)]
struct Receiver {
    down: Down,
    allowance: Allowance,
}

/// Whether a receiver is limited.
#[derive(Clone, Copy, Default)]
struct Limited {
    /// Its row, if it is.
    row: Option<RowIndex>,
    /// The flush in which that was last made sure of.
    flush: u64,
}

/// Who a port is, for finding its row.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) port: PortIndex,
    pub(crate) comtree: ComtreeIndex,
    pub(crate) shape: Shape,
    /// Its subscriptions with their levels and weights, in brief: equal ones want the same.
    pub(crate) interests: u64,
    /// Whether it is to get something that is for its eyes only.
    pub(crate) is_for_one: bool,
}

/// A target whose updates are wanted, up to a level.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) target: u32,
    pub(crate) level: Level,
    pub(crate) weight: Weight,
}

/// Deliveries that were left out, and how many of them were of updates that are important, or for one endpoint's
/// eyes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) all: u64,
    pub(crate) urgent: u64,
}

impl LeftOut {
    pub(crate) fn add(&mut self, LeftOut { all, urgent }: LeftOut) {
        self.all += all;
        self.urgent += urgent;
    }
}

/// The receivers of a data thread that have a budget.
pub(crate) struct Thinning {
    /// What may be saved up is that of this time, by receivers in the flush at work.
    at_once: Duration,
    /// The same of links, which comtrees of all modes share; and the window in which they send no more than they bear.
    pace_of_links: (Duration, Duration),
    /// By port, as far as any has a budget.
    receivers: Vec<Receiver>,
    limited: Vec<Limited>,
    rows: Rows,
    flows: Flows,
    log: Log,
    /// The links to other relays, and what they bear.
    pub(crate) links: LinkShares,
    /// The comtrees that have budgets, and what their participants may be sent of them.
    pub(crate) comtrees: ComtreeShares,
    /// Weights by their numbers.
    weights: Box<[f32; 256]>,
    chosen: Vec<LogNumber>,
    /// Those of them that are still kept.
    taken: Vec<LogNumber>,
    /// Those of them that members of the row brought along, by member.
    brought: Vec<(PortIndex, LogNumber)>,
    /// Those of `pending` that only one member of the row that was served last is to get, and that member.
    leftovers: (PortIndex, Vec<u32>),
    /// By member of the row that was served last: what was left out for it, and what was kept no more when its
    /// turn came.
    replaced: Vec<LeftOut>,
    too_late: Vec<LeftOut>,
    /// What was left out for each receiver.
    pub(crate) thinned: ThinnedReceivers,
    /// What is important and died of its age, or was kept no more when its turn came.
    died: Vec<LogNumber>,
    /// What a newer one of its flow was chosen in place of.
    overdue: Vec<LogNumber>,
    looks: Looks,
    /// How many updates rows were told of for whose flow there was no room.
    creditless: u64,
    /// Counts the flushes, so that receivers that share a row are told of a target once.
    flush: u64,
    /// The number of the first update that this flush may bring.
    first_of_flush: LogNumber,
}

impl Thinning {
    pub(crate) fn new(mode: Mode, max_pairs: u32) -> Thinning {
        let looks = Looks::new(mode);
        Thinning {
            at_once: at_once(mode),
            pace_of_links: (at_once(mode), looks.window(PeerClass::TreeNeighbour)),
            receivers: Vec::new(),
            limited: Vec::new(),
            rows: Rows::new(max_pairs),
            flows: Flows::new(MAX_FLOWS),
            log: Log::new(),
            links: LinkShares::default(),
            comtrees: ComtreeShares::default(),
            weights: Box::new(core::array::from_fn(|number| Weight(number as u8).value())),
            chosen: Vec::new(),
            leftovers: (NONE, Vec::new()),
            taken: Vec::new(),
            brought: Vec::new(),
            replaced: Vec::new(),
            too_late: Vec::new(),
            thinned: ThinnedReceivers::default(),
            looks,
            died: Vec::new(),
            overdue: Vec::new(),
            creditless: 0,
            flush: 0,
            first_of_flush: 0,
        }
    }

    /// A receiver may be sent so much from now on.
    pub(crate) fn set_down(&mut self, port: PortIndex, down: Down) {
        let index = port as usize;
        if index >= self.receivers.len() {
            if !down.is_limited() && !self.comtrees.is_any() {
                return;
            }
            self.make_receivers(index + 1);
        }
        self.receivers[index].down = down;
        if let Some(row) = self.limited[index].row {
            self.rows.set_down(row, port, down);
        }
    }

    fn make_receivers(&mut self, count: usize) {
        self.receivers.resize(count, Receiver::default());
        self.limited.resize(count, Limited::default());
    }

    /// A participant of a comtree has a port.
    pub(crate) fn enter(&mut self, port: PortIndex, comtree: ComtreeIndex) {
        self.comtrees.enter(port, comtree);
    }

    /// The participants of a comtree may be sent so much together from now on, which is a part of what those on all
    /// data threads may be sent.
    pub(crate) fn set_comtree_budget(
        &mut self,
        comtree: ComtreeIndex,
        (budget, part): (Down, f64),
    ) {
        self.comtrees.set_budget(comtree, (budget, part));
        if self.comtrees.is_any() {
            self.make_receivers(self.comtrees.ports().max(self.receivers.len()));
        }
    }

    /// This many comtrees share the tables from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.rows.deal(comtrees);
        self.flows.deal(comtrees);
        self.log.deal(comtrees);
    }

    /// Works out what the participants of comtrees with budgets may be sent.
    pub(crate) fn review_comtrees(&mut self, now: Time) {
        if self.comtrees.due().is_none_or(|due| now < due) {
            return;
        }
        let (receivers, limited) = (&self.receivers, &self.limited);
        self.comtrees.review(now, |port| {
            let down = receivers.get(port as usize).map(|receiver| receiver.down);
            let row = limited.get(port as usize).and_then(|limited| limited.row);
            (down.unwrap_or_default(), row)
        });
    }

    /// What a receiver may be sent.
    pub(crate) fn budget_of(&self, port: PortIndex) -> Down {
        let own = self.receivers.get(port as usize).map_or(Down::NONE, |receiver| receiver.down);
        own.least(self.comtrees.limit_of(port))
    }

    /// What each member of a row may be sent.
    fn down_of(&self, row: RowIndex) -> Down {
        let entry = self.rows.get(row);
        if !self.comtrees.is_any() || entry.key.shape.class != PeerClass::Participant {
            return entry.key.down;
        }
        entry.key.down.least(self.comtrees.water_level_of(entry.key.comtree))
    }

    /// A port is closed.
    pub(crate) fn forget(&mut self, port: PortIndex) {
        self.log.forget(port);
        self.links.forget(port);
        self.comtrees.forget(port);
        self.thinned.forget(port);
        let Some(receiver) = self.receivers.get_mut(port as usize) else { return };
        *receiver = Receiver::default();
        if let Some(row) = core::mem::take(&mut self.limited[port as usize]).row {
            self.rows.leave(row, port);
        }
    }

    /// Whether what a port is sent waits in a row.
    #[inline]
    pub(crate) fn is_limited(&self, port: PortIndex) -> bool {
        self.limited.get(port as usize).is_some_and(|limited| limited.row.is_some())
    }

    /// Whether a burst of so many bytes and updates fits the allowance of a receiver that is not limited.
    #[inline]
    pub(crate) fn fits(
        &mut self,
        now: Time,
        port: PortIndex,
        (bytes, updates): (u64, u64),
    ) -> bool {
        let Some(receiver) = self.receivers.get_mut(port as usize) else { return true };
        let mut down = receiver.down;
        let has_budgets = self.comtrees.is_any();
        if has_budgets {
            down = down.least(self.comtrees.limit_of(port));
        } else if !down.is_limited() {
            return true;
        }
        receiver.allowance.advance(now, self.at_once, spare(down), WINDOW);
        let cost = down.cost(bytes, updates);
        let mut fits = !down.is_limited() || cost <= receiver.allowance.left();
        if fits && has_budgets {
            fits = self.comtrees.fits(now, port, (bytes, updates));
            if fits {
                self.comtrees.spend(port, (bytes, updates));
            }
        }
        if fits && self.links.is_any_shaped() {
            self.links.advance(now, self.pace_of_links, port);
            if !self.links.fits(port, (bytes, updates)) {
                return false;
            }
            self.links.offer(port, (bytes, updates));
            self.links.spend(port, (bytes, updates));
        }
        if fits {
            receiver.allowance.spend(cost);
        }
        fits
    }

    /// The comtrees have other modes from now on.
    pub(crate) fn follow_modes(&mut self, queues: &FlushQueues) {
        self.pace_of_links.0 = queues.longest(at_once);
    }

    /// A flush of comtrees of this mode begins.
    pub(crate) fn begin_flush(&mut self, mode: Mode) {
        self.at_once = at_once(mode);
        self.flush += 1;
        self.first_of_flush = self.log.next();
    }

    /// The row of a limited receiver, if it was made sure in this flush that it is that.
    #[inline]
    pub(crate) fn row_in_flush(&self, port: PortIndex) -> Option<RowIndex> {
        let limited = &self.limited[port as usize];
        limited.row.filter(|_| limited.flush == self.flush)
    }

    /// A limited receiver is to get the updates of a target. The row is told of them once all targets are
    /// known ([`Thinning::tell_rows`]): what it knows of its flows is near each other in memory, and of
    /// different rows far apart.
    #[inline]
    pub(crate) fn want(&mut self, row: RowIndex, wanted: Wanted) {
        self.rows.want(row, self.flush, wanted);
    }

    /// Tells all rows of the updates that they want of this flush. Calls `exhausted` with how many may not go
    /// on to relays because their hops have run out.
    pub(crate) fn tell_rows(
        &mut self,
        now: Time,
        pending: &mut Pending,
        mut exhausted: impl FnMut(ComtreeIndex, u64),
    ) {
        while let Some((row, mut wants)) = self.rows.next_wanting() {
            let mut out_of_hops = 0;
            for wanted in wants.drain(..) {
                out_of_hops += self.tell(now, (row, wanted), pending);
            }
            self.rows.return_wants(row, wants);
            if out_of_hops > 0 {
                exhausted(self.rows.get(row).key.comtree, out_of_hops);
            }
        }
    }

    fn tell(&mut self, now: Time, (row, wanted): (RowIndex, Wanted), pending: &mut Pending) -> u64 {
        let class = self.rows.get(row).key.shape.class;
        let mut exhausted = 0;
        let mut next = pending.first_of(wanted.target);
        while next != NONE {
            let number = next;
            next = pending.next_of(number);
            let record = &pending.records[number as usize];
            let is_for_class = class != PeerClass::CorePeer || !record.from_core_peer;
            if record.level > wanted.level || !is_for_class || self.rows.is_own(row, record.origin)
            {
                continue;
            }
            if class != PeerClass::Participant && record.hops == 0 {
                exhausted += 1;
                continue;
            }
            // A roaming object may have been in two groups since the last flush, and groups are told of in any order.
            if self.note(now, (row, wanted.weight), number, pending) == Noted::Outdated {
                let update = pending.records[number as usize].log;
                self.rows.leave_out(row, (update, false), &self.log);
            }
        }
        exhausted
    }

    /// An update of a burst did not fit: its receiver is limited from now on, and it waits.
    pub(crate) fn limit(
        &mut self,
        now: Time,
        (who, weight): (&Who, Weight),
        update: u32,
        pending: &mut Pending,
    ) {
        let origin = pending.records[update as usize].origin;
        let row = self.row_of(now, who);
        if !self.rows.is_own(row, origin)
            && self.note(now, (row, weight), update, pending) == Noted::Outdated
        {
            // It was left out before this receiver became a member.
            self.rows.leave_out_for(row, who.port);
        }
    }

    /// Takes note of one update that a row is to get.
    fn note(
        &mut self,
        now: Time,
        (row, weight): (RowIndex, Weight),
        number: u32,
        pending: &mut Pending,
    ) -> Noted {
        let record = &pending.records[number as usize];
        let len = record.len + RECORD_OVERHEAD;
        let is_urgent =
            !record.dst.is_group() || record.weight.is_important() || weight.is_important();
        let order = self.flush << 32 | u64::from(number);
        let update = match record.log {
            NOTHING => {
                let comtree = self.rows.get(row).key.comtree;
                let payload = pending.payload(number);
                let update = self.log.push(now, (comtree, order), record, payload);
                pending.records[number as usize].log = update;
                update
            }
            update => update,
        };
        let first = self.first_of_flush;
        let entry = self.rows.get_mut(row);
        let noted = if is_urgent {
            entry.row.note_urgent(now, (update, len), first)
        } else {
            let (flow, share, said) = self.flow_of(now, row, number, pending);
            let weight = self.weights[usize::from(weight.0)] * share;
            let Waiting { level: Level(level), series, .. } = pending.records[number as usize];
            let news = News { flow, weight, level, len, update, order, series };
            self.note_flow(now, row, (&news, said))
        };
        if self.links.is_any_shaped()
            && !matches!(noted, Noted::Known | Noted::Outdated | Noted::Overtaken)
            && let Entry { key: RowKey { alone: Some(port), .. }, row, .. } = self.rows.get(row)
        {
            self.links.offer(*port, ((f32::from(len) * row.real_cost()) as u64, 1));
        }
        if self.comtrees.is_any() && !matches!(noted, Noted::Known | Noted::Outdated) {
            let Entry { key: RowKey { comtree, .. }, row: of_row, .. } = self.rows.get(row);
            let bytes = (f32::from(len) * of_row.real_cost()) as u64;
            self.comtrees.offer(row, *comtree, bytes);
        }
        let left_out = match noted {
            Noted::Waits | Noted::Known | Noted::Outdated => [NOTHING; 2],
            Noted::Replaces(older) => older,
            Noted::NoRoom | Noted::Overtaken | Noted::NotItsTurn => [update, NOTHING],
        };
        for update in left_out.into_iter().filter(|update| *update != NOTHING) {
            self.rows.leave_out(row, (update, is_urgent), &self.log);
        }
        self.list(now, row);
        noted
    }

    /// Takes note of one update of a flow, and of its number there. A flow for which there is no room goes on without
    /// a credit.
    #[inline]
    fn note_flow(&mut self, now: Time, row: RowIndex, (news, said): (&News, u32)) -> Noted {
        let mut noted = self.rows.note(now, row, news, Flows::has_place(news.flow));
        if noted == Noted::NoRoom {
            let (mut pace, down) = (self.flows.pace_of(news.flow), self.down_of(row));
            // Rows are told of a flush's updates only when all of them have come.
            pace.said = said;
            let of_row = &mut self.rows.get_mut(row).row;
            noted = of_row.note_creditless(now, (news, &pace), (down, self.first_of_flush));
            self.creditless += u64::from(!matches!(noted, Noted::Known | Noted::Outdated));
            while matches!(noted, Noted::Waits | Noted::Replaces(_))
                && let Some(behind) = self.rows.get_mut(row).row.take_behind(news)
            {
                self.rows.leave_out(row, (behind, false), &self.log);
            }
        }
        if !matches!(noted, Noted::Overtaken | Noted::NotItsTurn) {
            self.rows.replace_leftovers(row, news.flow);
        }
        noted
    }

    /// How many updates rows were told of for whose flow there was no room, since the last call.
    pub(crate) fn take_creditless(&mut self) -> u64 {
        core::mem::take(&mut self.creditless)
    }

    /// Something waits for a row.
    #[inline]
    fn list(&mut self, now: Time, row: RowIndex) {
        self.looks.want(now, self.rows.get(row).key.shape.class);
        self.rows.list(row);
    }

    /// The flow of an update, its share of its group's weight, and its number in the flow.
    fn flow_of(
        &mut self,
        now: Time,
        row: RowIndex,
        number: u32,
        pending: &mut Pending,
    ) -> (u32, f32, u32) {
        let record = &mut pending.records[number as usize];
        if record.flow.1 == 0.0 {
            let comtree = self.rows.get(row).key.comtree;
            let key = FlowKey { comtree, src: record.src, object: record.object, dst: record.dst };
            let weight = self.weights[usize::from(record.weight.0)];
            record.flow = self.flows.note(now, key, weight);
        }
        record.flow
    }

    /// The row of a port, whose subscriptions may have changed since it was last asked for.
    pub(crate) fn row_of(&mut self, now: Time, who: &Who) -> RowIndex {
        let Receiver { down, allowance } = self.receivers[who.port as usize];
        let Limited { row: before, flush } = self.limited[who.port as usize];
        // Whoever was sent something for its eyes only stays alone, and whoever goes from one row to another
        // takes along what is important.
        let was_alone = before.map(|row| self.rows.get(row)).is_some_and(|entry| {
            let has_changed = entry.interests != who.interests || entry.key.down != down;
            entry.key.alone.is_some() || has_changed && entry.row.has_urgent()
        });
        let is_alone = who.shape.class != PeerClass::Participant || who.is_for_one || was_alone;
        let key = RowKey {
            comtree: who.comtree,
            interests: if is_alone { 0 } else { who.interests },
            shape: who.shape,
            down,
            alone: is_alone.then_some(who.port),
        };
        let since = self.first_of_flush;
        let row = match before {
            Some(row) => {
                let is_told = flush == self.flush;
                self.rows.follow(row, who.port, &key, (now, since, is_told, &self.log))
            }
            None => self.rows.open(who.port, &key, allowance, since),
        };
        self.looks.want(now, who.shape.class);
        self.limited[who.port as usize] = Limited { row: Some(row), flush: self.flush };
        let entry = self.rows.get_mut(row);
        if core::mem::replace(&mut entry.interests, who.interests) != who.interests {
            entry.is_stale = true;
        }
        row
    }

    /// Whether a member of a row wants something else than when it was last told of anything, or may be sent
    /// more or less.
    pub(crate) fn has_changed(&self, row: RowIndex, member: PortIndex, interests: u64) -> bool {
        let (entry, receiver) = (self.rows.get(row), &self.receivers[member as usize]);
        entry.interests != interests || entry.key.down != receiver.down
    }

    /// A member of a row wants something else from now on, before anything comes that it wants.
    pub(crate) fn change(&mut self, now: Time, who: &Who) {
        // It was told of everything that has come.
        self.first_of_flush = self.log.next();
        self.row_of(now, who);
    }

    /// Leaves out what a row's members want no more, if that may be: `is_wanted` says whether the first does.
    pub(crate) fn refresh(&mut self, row: RowIndex, is_wanted: impl Fn(Address, Level) -> bool) {
        let entry = self.rows.get_mut(row);
        if !core::mem::take(&mut entry.is_stale) || entry.key.shape.class != PeerClass::Participant
        {
            return;
        }
        let mut of_row = core::mem::take(&mut entry.row);
        let is_wanted = |update: LogNumber| {
            self.log.destination(update).is_none_or(|(dst, level)| is_wanted(dst, level))
        };
        let (mut left_out, mut urgent) = (Vec::new(), Vec::new());
        of_row.retain(is_wanted, |update| left_out.push(update), |update| urgent.push(update));
        for update in left_out {
            self.rows.leave_out(row, (update, false), &self.log);
        }
        for update in urgent {
            self.rows.leave_out(row, (update, true), &self.log);
        }
        self.rows.get_mut(row).row = of_row;
        self.rows.retain_leftovers(row, is_wanted);
    }

    /// Whether anything is remembered of a limited receiver.
    pub(crate) fn is_any_limited(&self) -> bool {
        self.rows.is_any()
    }

    /// Whether it is time to look at what waits for limited receivers.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// When it will be, if something waits.
    pub(crate) fn due(&self) -> Option<Time> {
        self.looks.next()
    }

    /// What has left over the shaped links is taken from what they bear: `bytes_out` knows the bytes in all.
    pub(crate) fn sync_links(&mut self, now: Time, bytes_out: impl Fn(SessionIndex) -> u64) {
        if self.links.is_any_shaped() {
            self.links.sync(now, self.pace_of_links, bytes_out);
        }
    }

    /// The comtree that a row's members are on.
    pub(crate) fn comtree_of(&self, row: RowIndex) -> ComtreeIndex {
        self.rows.get(row).key.comtree
    }

    /// The members of a row.
    pub(crate) fn members(&self, row: RowIndex) -> &[PortIndex] {
        &self.rows.get(row).members
    }

    /// How many updates wait for limited receivers, for all of them together.
    pub(crate) fn waiting(&self) -> u64 {
        self.rows.count_waiting()
    }

    /// Looks for flows that have ended, and for receivers for whom nothing waits any more, a part of them at a time,
    /// and for what has been kept for too long.
    pub(crate) fn sweep(&mut self, now: Time) {
        self.log.sweep(now);
        self.flows.sweep(now, SWEEPS);
        self.release_silent(now, SWEEPS);
    }
}

/// What receivers may save up is that of this time: of a tick in periodic mode, unless it is short.
fn at_once(mode: Mode) -> Duration {
    mode.tick().map_or(AT_ONCE, |tick| tick.max(AT_ONCE))
}

/// Every flow and every row is looked at once a second.
const SWEEPS: usize = 10;
