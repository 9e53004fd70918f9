//! Unicast between relays (Forest §3.1): ways are learned from what passes. Where the way is not known,
//! an update goes to all branches and asks for it; the first relay that knows it answers, and each
//! relay on the answer's way learns.

use super::intake::Accepted;
use super::{GONE, Relay, SWEEP_EVERY};
use crate::NONE;
use crate::bucket::Rate;
use crate::changes::BranchRole;
use crate::comtrees::ComtreeIndex;
use crate::pending::Update;
use crate::ports::{Peer, PeerClass, PortIndex};
use crate::routes::{Noted, Way};
use crate::told::Told;
use crate::tree::{Asked, Branch, Reach};
use canopy_wire::{Address, Comtree, DropReason, MAX_DATAGRAM, Packet, Path, RouteReply, Time};
use core::time::Duration;

/// Updates to an address whose way is not known go to all branches for so long. Whoever has it has
/// answered by then.
const REPLY_WAIT: Duration = Duration::from_secs(1);
/// But so many must have asked, for one of them, or the answer, may be lost.
const MIN_TIMES: u32 = 3;
/// After that it counts as nobody's, until it is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Addresses of a comtree that are asked for at a time, and new ones a second.
const MAX_ASKED: usize = 4096;
const ASKS: Rate = Rate::new(1000, 1000);

/// An answer follows known ways only, however long they are.
const REPLY_HOPS: u8 = u8::MAX;

impl Relay {
    /// What stands for an address in the routes: itself in the relay's own site, its site otherwise.
    fn route_key(&self, index: ComtreeIndex, address: Address) -> (Address, bool) {
        let own_site = self.comtrees.get(index).addresses.site();
        let is_own_site = address.site() == own_site;
        (if is_own_site { address } else { Address::unicast(address.site(), 0) }, is_own_site)
    }

    /// Learns from an update that came over a branch which way leads to its source. False if that
    /// source is not the branch's to bring.
    #[inline]
    pub(super) fn learn_source(
        &mut self,
        now: Time,
        (comtree, index): (Comtree, ComtreeIndex),
        port: PortIndex,
        src: Address,
    ) -> bool {
        // A bundle has many updates of one source.
        if self.learned == (port, src) {
            return true;
        }
        let (to, is_own_site) = self.route_key(index, src);
        if src.is_group()
            || src == Address::UNSPECIFIED
            || (is_own_site && !self.may_bring_own_site(comtree, index, port, src))
        {
            return false;
        }
        self.learned = (port, src);
        self.learn(now, (comtree, index), to, port);
        true
    }

    /// Whether a neighbour may speak for an address of the relay's own site: it is of that site
    /// itself, and the address is nobody's who is here.
    fn may_bring_own_site(
        &self,
        comtree: Comtree,
        index: ComtreeIndex,
        port: PortIndex,
        src: Address,
    ) -> bool {
        let entry = self.comtrees.get(index);
        let is_of_site = |branch: &Branch| branch.site == entry.addresses.site();
        entry.tree.branch(port).is_some_and(is_of_site) && self.ports.find(comtree, src).is_none()
    }

    fn learn(&mut self, now: Time, comtree: (Comtree, ComtreeIndex), to: Address, port: PortIndex) {
        let class = self.ports.get(port).map(|port| port.shape.class);
        let way = Way { port, is_core_peer: class == Some(PeerClass::CorePeer) };
        match self.routes.note(now, comtree, to, way) {
            Noted::Known => {}
            Noted::Full => self.counters.routes_refused += 1,
            noted @ (Noted::New | Noted::Moved) => {
                let is_new = noted == Noted::New;
                self.counters.routes_learned += u64::from(is_new);
                self.counters.routes_moved += u64::from(!is_new);
                self.sweep_at.get_or_insert(now + SWEEP_EVERY);
                // Whoever cannot be told asks for the way as if nobody knew it.
                self.siblings.tell_route(comtree.0, to, Some(way.is_core_peer));
            }
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
        let (to, is_own_site) = self.route_key(index, update.dst);
        let known = self.routes.find(update.comtree, to).filter(|way| way.port != origin);
        if let Some(way) = known {
            return self.send_along(now, way, accepted);
        }
        if !may_pass && !update.asks_route {
            // The data thread that has passed it takes this for the way.
            self.siblings.tell_route(update.comtree, to, None);
        }
        let has_site = self.comtrees.get(index).tree.has_anywhere(Reach::SITE);
        if is_own_site && !has_site {
            // Of this site there is this relay alone.
            let thread = self.thread_of(update.comtree, update.dst).filter(|_| may_pass);
            let thread = thread.ok_or(DropReason::UnknownDestination)?;
            // Whether somebody is there or not, this is the way.
            self.answer_route(now, index, &update, may_pass);
            self.pass(1 << thread, &Update { asks_route: false, ..update });
            return Ok(());
        }
        self.ask_for_route(now, accepted, is_own_site)
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
        if update.from_core_peer && way.is_core_peer {
            // Core peers do not forward to core peers; the other has been asked itself.
            self.counters.route_requests_ended += u64::from(update.asks_route);
            return if update.asks_route { Ok(()) } else { Err(DropReason::NotThisWay) };
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
            Peer::Sibling(_) => Err(DropReason::UnknownDestination),
            _ => {
                self.answer_route(now, index, &update, may_pass);
                self.queue_for_one(now, way.port, origin, &plain)
            }
        }
    }

    /// Sends a unicast to all branches that may lead to its destination, and asks for the way.
    fn ask_for_route(
        &mut self,
        now: Time,
        accepted: Accepted<'_>,
        is_own_site: bool,
    ) -> Result<(), DropReason> {
        let Accepted { update, index, origin, may_pass } = accepted;
        let was_asking = update.asks_route;
        if !was_asking {
            self.may_ask(now, index, &update)?;
        }
        let update = Update { asks_route: true, ..update };
        let entry = self.comtrees.get(index);
        let own_site = entry.addresses.site();
        let mut threads = 0;
        if may_pass {
            threads =
                entry.tree.siblings_with(if is_own_site { Reach::SITE } else { Reach::BRANCHES });
            let thread = self.thread_of(update.comtree, update.dst).filter(|_| is_own_site);
            threads |= thread.map_or(0, |thread| 1 << thread);
        }
        let mut asked = u64::from(threads.count_ones());
        if threads != 0 {
            self.pass(threads, &update);
        }
        let mut next = 0;
        while let Some(branch) = self.comtrees.get(index).tree.branches().get(next).copied() {
            next += 1;
            let is_core = branch.role == BranchRole::CorePeer && update.from_core_peer;
            if branch.port == origin || is_core || (is_own_site && branch.site != own_site) {
                continue;
            }
            self.queue_for_one(now, branch.port, origin, &update)?;
            asked += 1;
        }
        if asked == 0 {
            // Of the copies of an update that asks for the way, most end where nobody is.
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

    fn queue_for_one(
        &mut self,
        now: Time,
        port: PortIndex,
        origin: PortIndex,
        update: &Update<'_>,
    ) -> Result<(), DropReason> {
        self.find_room(update.comtree, update.payload.len())?;
        let target = self.pending.target_of_port(port);
        self.queue(now, target, origin, update);
        Ok(())
    }

    /// Answers an update that asks for the way to its destination, which is known here.
    fn answer_route(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        update: &Update<'_>,
        may_pass: bool,
    ) {
        if !update.asks_route {
            return;
        }
        let (comtree, about) = (update.comtree, update.dst);
        if !may_pass {
            // The data thread that asks learns that the way leads here.
            let (to, _) = self.route_key(index, about);
            let way = self.routes.find(comtree, to);
            let is_core_peer = way.is_some_and(|way| way.is_core_peer);
            self.siblings.tell_route(comtree, to, Some(is_core_peer));
        }
        let reply = RouteReply { to: update.src, about, is_there: true, hops: REPLY_HOPS };
        self.send_reply(now, (comtree, index), reply, true);
    }

    /// Nobody is where an update was to go: its sender is told, at a rate.
    pub(super) fn tell_nobody(&mut self, now: Time, update: &Update<'_>) {
        if let Some(sender) = self.ports.find(update.comtree, update.src) {
            return self.tell_gone(now, sender, update.dst);
        }
        if !self.gone.take(&GONE, now, 1) {
            return self.drop_on(update.comtree, DropReason::RepliesRate);
        }
        let Some(index) = self.comtrees.find(update.comtree) else { return };
        let hops = REPLY_HOPS;
        let reply = RouteReply { to: update.src, about: update.dst, is_there: false, hops };
        self.send_reply(now, (update.comtree, index), reply, true);
    }

    /// Sends an answer on towards whoever has asked; if that is somebody here, it has arrived.
    fn send_reply(
        &mut self,
        now: Time,
        (comtree, index): (Comtree, ComtreeIndex),
        reply: RouteReply,
        may_pass: bool,
    ) {
        let RouteReply { to: asker, about, is_there, .. } = reply;
        if let Some(port) = self.ports.find(comtree, asker) {
            if !is_there {
                self.tell_gone(now, port, about);
            }
            return;
        }
        let (to, _) = self.route_key(index, asker);
        let way = self.routes.find(comtree, to).and_then(|way| self.ports.get(way.port));
        let thread = match way.map(|port| port.peer) {
            Some(Peer::Branch(session)) => {
                let mut packet = [0; MAX_DATAGRAM];
                if let Ok(len) = reply.encode(comtree, &mut packet) {
                    self.counters.route_replies += 1;
                    if !self.send_over(session, &packet[..len]) {
                        self.drop_on(comtree, DropReason::RepliesFull);
                    }
                }
                return;
            }
            Some(Peer::Sibling(thread)) => Some(thread),
            _ => self.thread_of(comtree, asker),
        };
        match thread.filter(|_| may_pass) {
            Some(thread) if !is_there && way.is_none() => {
                let (sender, address) = (asker, about);
                self.siblings.mention(thread, Told::Gone { comtree, sender, address });
            }
            Some(thread) if way.is_some() => {
                self.siblings.mention(thread, Told::RouteReply { comtree, reply });
            }
            // To a participant there the answer to its update is nothing.
            Some(_) => {}
            None => self.drop_on(comtree, DropReason::NotThisWay),
        }
    }

    /// Takes a neighbour's answer: it leads there, or it does not.
    pub(super) fn take_route_reply(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let port = self.admit(now, from, packet)?;
        let there = self.ports.get(port).ok_or(DropReason::UnknownSource)?;
        let (is_branch, index) = (matches!(there.peer, Peer::Branch(_)), there.comtree_index);
        let comtree = (packet.header().comtree, index);
        if !is_branch {
            return Err(DropReason::UnexpectedKind);
        }
        let reply = RouteReply::decode(packet)?;
        let hops = reply.hops.checked_sub(1).ok_or(DropReason::HopLimit)?;
        let (to, is_own_site) = self.route_key(index, reply.about);
        if reply.is_there {
            if !self.learn_source(now, comtree, port, reply.about) {
                return Err(DropReason::SpoofedSource);
            }
            self.comtrees.get_mut(index).tree.asked.remove(&reply.about);
        } else if is_own_site {
            // It is not there any more; the next update asks all the others.
            if let Some(route) = self.routes.forget(comtree.0, to, port) {
                self.tell_forgotten(route.comtree, route.to);
            }
        } else if let Some(asked) = self.comtrees.get_mut(index).tree.asked.get_mut(&reply.about) {
            // Who asks need not wait any longer.
            *asked = Asked { since: asked.since.min(now - REPLY_WAIT), times: MIN_TIMES };
        }
        self.send_reply(now, comtree, RouteReply { hops, ..reply }, true);
        Ok(())
    }

    pub(super) fn hear_route_reply(&mut self, now: Time, comtree: Comtree, reply: RouteReply) {
        if let Some(index) = self.comtrees.find(comtree) {
            self.send_reply(now, (comtree, index), reply, false);
        }
    }

    /// Another data thread knows a way, or does so no more.
    pub(super) fn hear_of_route(
        &mut self,
        thread: u16,
        comtree: Comtree,
        to: Address,
        leads: Option<bool>,
    ) {
        let Some(index) = self.comtrees.find(comtree) else { return };
        let port = u32::from(thread);
        let Some(is_core_peer) = leads else {
            self.routes.forget(comtree, to, port);
            return;
        };
        let way = Way { port, is_core_peer };
        if self.routes.note_sibling((comtree, index), to, way) == Noted::Full {
            self.counters.routes_refused += 1;
        }
    }

    /// The other data threads need not send here any more what goes there.
    pub(super) fn tell_forgotten(&mut self, comtree: Comtree, to: Address) {
        self.learned = super::NOBODY;
        self.siblings.tell_route(comtree, to, None);
    }

    pub(super) fn forget_routes_over(&mut self, port: PortIndex) {
        let siblings = &mut self.siblings;
        self.routes.retain(|route| {
            let keep = route.way.port != port;
            if !keep {
                siblings.tell_route(route.comtree, route.to, None);
            }
            keep
        });
        self.learned = super::NOBODY;
    }

    /// A participant has left an address: data threads that were told that it is here hear that it is
    /// not.
    pub(super) fn left_site(&mut self, index: ComtreeIndex, address: Address) {
        let entry = self.comtrees.get(index);
        if entry.tree.has_anywhere(Reach::SITE) {
            self.tell_forgotten(entry.id, address);
        }
    }

    /// A participant has an address here now: no way leads there any more.
    pub(super) fn arrived_here(&mut self, comtree: Comtree, address: Address) {
        if self.routes.forget(comtree, address, NONE).is_some() {
            self.tell_forgotten(comtree, address);
        }
    }

    /// Forgets ways from which nothing came for long, a part of them each time, and for what has been
    /// asked long ago.
    pub(super) fn sweep_routes(&mut self, now: Time) {
        let budget = self.routes.len() / super::ROUTE_SWEEPS + 1;
        let siblings = &mut self.siblings;
        let before = self.routes.len();
        self.routes.expire(now, budget, |route| {
            // Without room to say so it stays until the next round.
            siblings.tell_route(route.comtree, route.to, None)
        });
        self.learned = super::NOBODY;
        self.counters.routes_expired += u64::from(before - self.routes.len());
        for entry in self.comtrees.live_mut() {
            entry.tree.asked.retain(|_, asked| now.since(asked.since) < ASK_AGAIN);
        }
    }
}
