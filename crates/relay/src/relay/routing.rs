//! Unicast between relays (Forest §3.1): ways are learned from what passes. Where the way is not known,
//! an update goes to all branches and asks for it; the first relay that knows it answers, and each
//! relay on the answer's way learns.

use super::intake::Accepted;
use super::overlay::NOBODY;
use super::{Relay, SWEEP_EVERY};
use crate::bucket::Rate;
use crate::changes::BranchRole;
use crate::comtree_config::FIRST_ENDPOINT;
use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::pending::{Update, Waiting};
use crate::ports::Peer;
use crate::routes::{Changed, Leads, Noted, Way};
use crate::shape::PeerClass;
use crate::tree::{Asked, Branch, Reach, Tree};
use canopy_wire::{Address, Comtree, DropReason, Time};
use core::time::Duration;

/// Updates to an address whose way is not known go to all branches for so long. Whoever has it has
/// answered by then.
pub(super) const REPLY_WAIT: Duration = Duration::from_secs(1);
/// But so many must have asked, for one of them, or the answer, may be lost.
pub(super) const MIN_TIMES: u32 = 3;
/// After that it counts as nobody's, until it is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Addresses of a comtree that are asked for at a time, and new ones a second.
const MAX_ASKED: usize = 4096;
const ASKS: Rate = Rate::new(1000, 1000);

impl Relay {
    /// What stands for an address in the routes, and whether that is the address itself: it is if it is
    /// of the relay's own site, or portable. Otherwise its site stands for it.
    pub(super) fn route_key(&self, index: ComtreeIndex, address: Address) -> (Address, bool) {
        let own_site = self.comtrees.get(index).addresses.site();
        let is_alone = address.site() == own_site || address.is_portable();
        (if is_alone { address } else { Address::unicast(address.site(), 0) }, is_alone)
    }

    /// Whether an update's source is the branch's to bring over which it came. If it is, which way leads
    /// there is learned.
    #[inline]
    pub(super) fn may_bring(
        &mut self,
        now: Time,
        (comtree, index): (Comtree, ComtreeIndex),
        port: PortIndex,
        src: Address,
    ) -> bool {
        // A bundle has many updates of one source.
        if self.overlay.learned == (port, src) {
            return true;
        }
        let (to, is_alone) = self.route_key(index, src);
        if src.is_group()
            || src == Address::UNSPECIFIED
            || (is_alone && !self.may_bring_one(comtree, index, port, src))
        {
            return false;
        }
        self.overlay.learned = (port, src);
        self.wake_branch(index, port);
        if self.is_learned_from(index, port) && !self.has_come_round(index, port, to) {
            self.learn(now, (comtree, index), to, port);
        }
        true
    }

    /// Whether a neighbour may speak for an address of the relay's own site, or for a portable one: the
    /// address is nobody's who is here, and the neighbour is of that site itself. A portable address may
    /// come from everywhere; but its site as a whole is nobody's, and so are a relay's own numbers in it.
    fn may_bring_one(
        &self,
        comtree: Comtree,
        index: ComtreeIndex,
        port: PortIndex,
        src: Address,
    ) -> bool {
        let entry = self.comtrees.get(index);
        let is_of_site = |branch: &Branch| match src.is_portable() {
            true => src.endpoint() >= FIRST_ENDPOINT && !self.is_at_sibling(index, src),
            false => branch.site == entry.addresses.site(),
        };
        entry.tree.branch(port).is_some_and(is_of_site) && self.ports.find(comtree, src).is_none()
    }

    fn learn(
        &mut self,
        now: Time,
        (comtree, index): (Comtree, ComtreeIndex),
        to: Address,
        port: PortIndex,
    ) {
        let class = self.ports.get(port).map(|port| port.shape.class);
        let is_core_peer = class == Some(PeerClass::CorePeer);
        let leads = if is_core_peer { Leads::ToCorePeer } else { Leads::OverTree };
        let way = Way { port, leads };
        // The next sweep puts into the table what is only gathered.
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        if self.siblings.threads() == 1 {
            return self.overlay.routes.hear(now, index, to, way);
        }
        let noted = self.overlay.routes.note(now, index, to, way);
        if matches!(noted, Noted::New | Noted::Moved) {
            // Whoever cannot be told asks for the way as if nobody knew it.
            self.siblings.tell_route(comtree, to, Some(leads));
        }
    }

    /// Takes an update to one endpoint.
    pub(super) fn deliver_to_one(
        &mut self,
        now: Time,
        accepted: Accepted<'_>,
    ) -> Result<(), DropReason> {
        let Accepted { update, index, origin, may_pass } = accepted;
        if let Some(port) = self.ports.find(update.comtree, update.dst) {
            self.answer_route(now, index, &update, may_pass);
            // A unicast goes to whoever it names, its sender too.
            return self.queue_for_one(now, port, NONE, &Update { asks_route: false, ..update });
        }
        let (to, is_alone) = self.route_key(index, update.dst);
        if Self::is_word(&update) && self.has_told_core(now, &accepted)? {
            return Ok(());
        }
        let known = self.overlay.routes.find(index, to).filter(|way| way.port != origin);
        if let Some(way) = known {
            return self.send_along(now, way, accepted);
        }
        if !may_pass && !update.asks_route {
            // The data thread that has passed it takes this for the way.
            self.siblings.tell_route(update.comtree, to, None);
        }
        let tree = &self.comtrees.get(index).tree;
        if is_alone && !tree.has_anywhere(Tree::may_lead_to(update.dst)) {
            // This relay is the only one of its site, or of the comtree.
            let thread = self.thread_of(update.comtree, update.dst).filter(|_| may_pass);
            let thread = thread.ok_or(DropReason::UnknownDestination)?;
            // Whether somebody is there or not, this is the way.
            self.answer_route(now, index, &update, may_pass);
            self.pass(1 << thread, &Update { asks_route: false, ..update });
            return Ok(());
        }
        self.ask_for_route(now, accepted)
    }

    /// Sends a unicast the way that is known.
    fn send_along(
        &mut self,
        now: Time,
        way: Way,
        accepted: Accepted<'_>,
    ) -> Result<(), DropReason> {
        let Accepted { update, index, origin, may_pass } = accepted;
        let there = self.ports.get(way.port).ok_or(DropReason::UnknownDestination)?;
        let peer = there.peer;
        if update.from_core_peer && way.is_core_peer() && update.asks_route {
            // Core peers do not forward to core peers; the other has been asked itself. What asks for nothing
            // was sent here before its way changed.
            self.counters.route_requests_ended += 1;
            return Ok(());
        }
        let plain = Update { asks_route: false, ..update };
        match peer {
            Peer::Sibling(thread) if may_pass => {
                self.answer_route(now, index, &update, may_pass);
                self.pass(1 << thread, &plain);
                Ok(())
            }
            // What another data thread has passed is not passed on: this is a dead end, and whether
            // somebody is elsewhere is not known here.
            Peer::Sibling(_) if update.asks_route => {
                self.counters.route_requests_ended += 1;
                Ok(())
            }
            // It was passed before that one knew the way, which led over a branch here then.
            Peer::Sibling(_) => self.ask_for_route(now, accepted),
            _ => {
                self.answer_route(now, index, &update, may_pass);
                // It was sent here because this relay knows the way, whoever brought it.
                let plain = Update { from_core_peer: false, ..plain };
                self.queue_for_one(now, way.port, origin, &plain)
            }
        }
    }

    /// Sends a unicast to all branches that may lead to its destination, and asks for the way.
    fn ask_for_route(&mut self, now: Time, accepted: Accepted<'_>) -> Result<(), DropReason> {
        let Accepted { update, index, origin, may_pass } = accepted;
        let (_, is_alone) = self.route_key(index, update.dst);
        let reach = if is_alone { Tree::may_lead_to(update.dst) } else { Reach::BRANCHES };
        let was_asking = update.asks_route;
        if !was_asking && let Err(reason) = self.may_ask(now, index, &update) {
            // Whom another data thread serves is found even if there is no room for the ways to all.
            let is_full = self.overlay.routes.is_full(index) && update.dst.is_portable();
            let thread = self.thread_of(update.comtree, update.dst);
            let thread = thread.filter(|_| may_pass && is_full).ok_or(reason)?;
            self.pass(1 << thread, &update);
            return Ok(());
        }
        let update = Update { asks_route: true, ..update };
        let entry = self.comtrees.get(index);
        let own_site = entry.addresses.site();
        let mut threads = 0;
        if may_pass {
            // The data thread whose the address is may serve somebody with it.
            let thread = self.thread_of(update.comtree, update.dst);
            threads = entry.tree.siblings_with(reach) | thread.map_or(0, |thread| 1 << thread);
        }
        let mut asked = u64::from(threads.count_ones());
        if threads != 0 {
            self.pass(threads, &update);
        }
        let mut next = 0;
        while let Some(branch) = self.comtrees.get(index).tree.branches().get(next).copied() {
            next += 1;
            let is_core = branch.role.is_peer() && update.from_core_peer;
            let is_foreign = reach == Reach::SITE && branch.site != own_site;
            if branch.port == origin
                || matches!(branch.role, BranchRole::Standby | BranchRole::LastPeer)
                || is_core
                || is_foreign
                || self.is_other_way_up(index, branch.port)
            {
                continue;
            }
            self.queue_for_one(now, branch.port, origin, &update)?;
            asked += 1;
        }
        if asked == 0 {
            // An update that asks for the way is copied to everywhere, and most copies end where nobody is.
            self.counters.route_requests_ended += u64::from(was_asking);
            return if was_asking { Ok(()) } else { Err(DropReason::UnknownDestination) };
        }
        self.counters.route_requests += asked;
        Ok(())
    }

    /// Whether the way to an update's destination may be asked for, by whoever first does not know it.
    fn may_ask(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        update: &Update<'_>,
    ) -> Result<(), DropReason> {
        let tree = &mut self.comtrees.get_mut(index).tree;
        if !tree.has_anywhere(Reach::BRANCHES) {
            return Err(DropReason::UnknownDestination);
        }
        let before = tree.asked.get_mut(&update.dst);
        let is_known = before.is_some();
        if let Some(asked) = before.filter(|asked| now.since(asked.since) < ASK_AGAIN) {
            // A question or its answer may be lost.
            if now.since(asked.since) >= REPLY_WAIT && asked.times >= MIN_TIMES {
                return Err(DropReason::UnknownDestination);
            }
            asked.times += 1;
            return Ok(());
        }
        let sender = self.ports.find(update.comtree, update.src);
        let may = sender.is_none_or(|sender| self.meters.take_ask(sender, now));
        let has_room = is_known || tree.asked.len() < MAX_ASKED;
        if !may || !has_room || !tree.asks.take(&ASKS, now, 1) {
            return Err(DropReason::RouteRequests);
        }
        tree.asked.insert(update.dst, Asked { since: now, times: 1 });
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        Ok(())
    }

    pub(super) fn queue_for_one(
        &mut self,
        now: Time,
        port: PortIndex,
        origin: PortIndex,
        update: &Update<'_>,
    ) -> Result<(), DropReason> {
        let of = self.ports.get(port).ok_or(DropReason::UnknownDestination)?.comtree_index;
        self.find_room(of, update.payload.len())?;
        let queue = self.queues.get_mut(self.comtrees.get(of).queue);
        let target = queue.pending.target_of_port(port);
        queue.push(now, target, Waiting::new(origin, update), update.payload);
        Ok(())
    }

    /// Another data thread knows a way, or does so no more.
    pub(super) fn hear_of_route(
        &mut self,
        thread: u16,
        comtree: Comtree,
        to: Address,
        leads: Option<Leads>,
    ) {
        let Some(index) = self.comtrees.find(comtree) else { return };
        let port = u32::from(thread);
        let Some(leads) = leads else {
            self.overlay.routes.forget(index, to, port);
            return;
        };
        // A branch here may not bring any more what it brought last.
        self.overlay.learned = NOBODY;
        let before = self.overlay.routes.find(index, to);
        self.overlay.routes.note_sibling(index, to, Way { port, leads });
        let threads = u32::from(self.siblings.threads());
        if before.is_some_and(|way| way.port >= threads) {
            // The third may hear last of the way that was here, and never that it ends.
            self.siblings.tell_route(comtree, to, None);
        }
    }

    /// The other data threads need not send here any more what goes there.
    pub(super) fn tell_forgotten(&mut self, comtree: Comtree, to: Address) {
        self.overlay.learned = NOBODY;
        self.siblings.tell_route(comtree, to, None);
    }

    pub(super) fn forget_routes_over(&mut self, port: PortIndex) {
        let (siblings, comtrees) = (&mut self.siblings, &self.comtrees);
        self.overlay.routes.retain(|index, to, over| {
            if over == port {
                siblings.tell_route(comtrees.get(index).id, to, None);
            }
            over != port
        });
        self.overlay.learned = NOBODY;
    }

    /// A participant has left an address: data threads that were told that it is here hear that it is
    /// not.
    pub(super) fn left_site(&mut self, index: ComtreeIndex, address: Address) {
        let entry = self.comtrees.get(index);
        if address.is_portable() {
            self.tell_of_portable(entry.id, address);
        } else if entry.tree.has_anywhere(Reach::SITE) {
            self.tell_forgotten(entry.id, address);
        }
    }

    /// A participant has an address here now: no way leads there any more.
    pub(super) fn arrived_here(&mut self, comtree: Comtree, address: Address) {
        let index = self.comtrees.find(comtree);
        if index.is_some_and(|index| self.overlay.routes.forget(index, address, NONE)) {
            self.tell_forgotten(comtree, address);
        }
        self.tell_of_portable(comtree, address);
    }

    /// Forgets ways from which nothing came for long, a part of them each time, and for what has been
    /// asked long ago.
    pub(super) fn sweep_routes(&mut self, now: Time) {
        let (siblings, comtrees) = (&mut self.siblings, &self.comtrees);
        self.overlay.routes.settle();
        let before = self.overlay.routes.len();
        self.overlay.routes.expire(now, super::ROUTE_SWEEPS, |index, to| {
            // Without room to say so it stays until the next round.
            siblings.tell_route(comtrees.get(index).id, to, None)
        });
        self.overlay.learned = NOBODY;
        self.counters.routes_expired += u64::from(before - self.overlay.routes.len());
        let Changed { new, moved, refused } = self.overlay.routes.take_changed();
        self.counters.routes_learned += new;
        self.counters.routes_moved += moved;
        self.counters.routes_refused += refused;
        for entry in self.comtrees.live_mut() {
            entry.tree.asked.retain(|_, asked| now.since(asked.since) < ASK_AGAIN);
        }
    }
}
