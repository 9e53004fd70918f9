//! What a relay does while a comtree's parent is succeeded by another; see [`Succession`].

use super::Notice;
use super::Relay;
use super::intake::Accepted;
use super::overlay::NOBODY;
use crate::changes::BranchRole;
use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::pending::Update;
use crate::routes::Way;
use crate::succession::{AFTERWARDS, AHEAD, Kept, OVERLAP, Phase, Succession};
use canopy_wire::{Address, Comtree, DropReason, Flags, Level, Time, Weight};

/// Relays that what tells of a way may pass.
const MOST_HOPS: u8 = u8::MAX;

impl Relay {
    /// The comtree has got a next parent beside the one that it has.
    /// `is_new` says whether the branch to it has just come.
    pub(super) fn begin_succession(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        (next, is_new): (PortIndex, bool),
    ) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        let Some(old) = tree.old_parent() else { return };
        let mut succession = Succession::new(now, (old.port, old.site), (next, is_new));
        match tree.succession.take() {
            Some(before) => succession.remember(*before),
            None => self.overlay.successions.push(index),
        }
        tree.succession = Some(Box::new(succession));
        tree.sort_out();
    }

    /// A branch is about to be something else, or to be closed: if it is that of one of two parents, the
    /// other is the parent.
    pub(super) fn end_succession_over(&mut self, now: Time, index: ComtreeIndex, port: PortIndex) {
        let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession else { return };
        let (old, next) = (succession.old, succession.next);
        if next == port {
            // What was held goes on over the old one: in this phase that is the way up. What the next one was ahead
            // with waits on for the old one, and what waits for nobody passes now.
            let had_turned = succession.has_turned();
            succession.phase = Phase::Asking;
            self.pass_what_waits_for(now, index, port);
            self.send_held(now, index);
            match old {
                Some(old) if had_turned => self.overlay.routes.redirect(index, next, old),
                _ => {}
            }
            self.has_one_parent(now, index, old);
        } else if old == Some(port) {
            // Nothing is left to wait for when the old branch goes: the phases that are left are gone through at
            // once.
            self.turn_to_next(now, index);
            self.go_on(now, index);
            self.settle(now, index);
            self.has_one_parent(now, index, Some(next));
        }
    }

    /// One of two parents is left, or none. What has passed is known for a while still: the one that is
    /// left may bring what the other was ahead with.
    fn has_one_parent(&mut self, now: Time, index: ComtreeIndex, left: Option<PortIndex>) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        match left.zip(tree.succession.as_mut()) {
            Some((left, succession)) => {
                (succession.old, succession.next) = (None, left);
                succession.phase = Phase::Turned { until: Some(now + AFTERWARDS) };
                tree.sort_out();
            }
            None => {
                tree.end_succession();
                self.overlay.successions.retain(|of| *of != index);
            }
        }
    }

    /// Whether what comes over a branch is learned from: not if there is another way up. Both parents bring
    /// the same updates, and routes would lead to whichever brought the last one.
    pub(super) fn is_learned_from(&self, index: ComtreeIndex, port: PortIndex) -> bool {
        let tree = &self.comtrees.get(index).tree;
        let is_way_up = |of: &Succession| !of.is_from_above(port) || of.way_up() == port;
        tree.teaches(port) && tree.succession.as_ref().is_none_or(|of| is_way_up(of))
    }

    /// Whether what a parent brings came from below: it went up over one of the two and came round over the
    /// other.
    pub(super) fn has_come_round(&self, index: ComtreeIndex, port: PortIndex, to: Address) -> bool {
        let Some(succession) = &self.comtrees.get(index).tree.succession else { return false };
        let is_below = |way: Way| !succession.is_from_above(way.port);
        let way = self.overlay.routes.find(index, to);
        succession.is_from_above(port) && way.is_some_and(is_below)
    }

    /// What becomes of an update during a succession: it goes on, or it waits, or it has passed already.
    pub(super) fn pass_succession<'a>(
        &mut self,
        now: Time,
        accepted: Accepted<'a>,
    ) -> Result<Option<Accepted<'a>>, DropReason> {
        let Accepted { update, index, origin, .. } = accepted;
        if Self::is_word(&update) && update.src.is_portable() {
            return Ok(Some(self.pass_word(accepted)));
        }
        let goes_up = self.leads_up(&accepted);
        let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession else {
            return Ok(Some(accepted));
        };
        let is_group = update.dst.is_group();
        let kept = |is_kept: bool| is_kept.then_some(None).ok_or(DropReason::PendingFull);
        // 1. What the next parent brings early waits for the old one, so that a publisher's order is kept.
        if origin == succession.next && succession.is_unasked(&update) {
            return Err(DropReason::Repeated);
        }
        if origin == succession.next && succession.is_awaited(&update) {
            // A copy does not wait: later its publisher might seem to have been silent, and to count anew.
            if succession.has_passed(now, update.src, update.series) {
                return Err(DropReason::Repeated);
            }
            return kept(succession.keep(now, &update, false));
        }
        // 2. What the old one brings first lets through what its publisher sent before, and only the next one has
        //    brought. So does what comes from below: its publisher has come there meanwhile.
        let is_from_below = !succession.is_from_above(origin);
        if is_from_below || succession.waits_for(origin) {
            // A copy of what comes from below does not pass before it.
            let series = update.series.wrapping_sub(u16::from(is_from_below));
            self.pass_before(now, (index, update.src, series));
        }
        let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession else {
            return Ok(Some(accepted));
        };
        // 3. What comes from above passes once. It is noted of what comes from below as well, because that
        //    goes up over one parent and may come down again over the other.
        if succession.is_from_above(origin) {
            if !succession.pass(now, update.src, update.series) {
                return Err(DropReason::Repeated);
            }
            // It goes to neither of the two.
            return Ok(Some(Accepted { origin: succession.way_up(), ..accepted }));
        }
        succession.note(now, update.src, update.series);
        // 4. What goes up is held while the relay turns, so that what follows over the next branch overtakes
        //    nothing. What is for a group goes to those below all the same.
        if matches!(succession.phase, Phase::Holding { .. }) {
            if !is_group && !goes_up {
                return Ok(Some(accepted));
            }
            kept(succession.keep(now, &update, true))?;
        }
        Ok((is_group || !matches!(succession.phase, Phase::Holding { .. })).then_some(accepted))
    }

    /// What tells of a portable address bears its participant's name and none of its numbers, so it is not
    /// counted among that one's updates. It goes to neither parent if one of them brought it, as all that
    /// comes from above.
    fn pass_word<'a>(&self, accepted: Accepted<'a>) -> Accepted<'a> {
        let succession = &self.comtrees.get(accepted.index).tree.succession;
        let from_above = succession.as_ref().filter(|of| of.is_from_above(accepted.origin));
        let origin = from_above.map_or(accepted.origin, |of| of.way_up());
        Accepted { origin, ..accepted }
    }

    /// Whether an update to one endpoint leaves towards the core, or may.
    fn leads_up(&self, accepted: &Accepted<'_>) -> bool {
        let Accepted { update, index, .. } = *accepted;
        if self.ports.find(update.comtree, update.dst).is_some() {
            return false;
        }
        let (to, _) = self.route_key(index, update.dst);
        let way = self.overlay.routes.find(index, to);
        let succession = &self.comtrees.get(index).tree.succession;
        let leads = |port| succession.as_ref().is_some_and(|of| of.is_from_above(port));
        way.is_none_or(|way| leads(way.port))
    }

    /// When [`Relay::advance_successions`] has something to do.
    pub(super) fn successions_due(&self) -> Option<Time> {
        // The tree is asked only at the flush where an update goes. So no phase begins while one waits, and it
        // leaves as the tree stood when it came.
        let due = |index: &ComtreeIndex| {
            let entry = self.comtrees.get(*index);
            let queue = self.queues.get(entry.queue);
            let flush = queue.due().filter(|_| !queue.pending.records.is_empty());
            let earliest = flush.unwrap_or(Time::ZERO);
            let succession = entry.tree.succession.as_ref()?;
            match succession.phase {
                // What waited for the parent that was left is not for the one to come.
                Phase::Watching { until } => Some(until.min(succession.due()?.max(earliest))),
                Phase::Asking if self.has_asked(*index) => Some(Time::ZERO),
                _ => succession.due().map(|due| due.max(earliest)),
            }
        };
        self.overlay.successions.iter().filter_map(due).min()
    }

    /// Asks next parents in place of the old ones, if it is time, and gives the relays above them time once
    /// they have been asked.
    pub(super) fn ask_next_parents(&mut self, now: Time) {
        for place in 0..self.overlay.successions.len() {
            let index = self.overlay.successions[place];
            let (comtree, has_asked) = (self.comtrees.get(index).id, self.has_asked(index));
            let succession = &mut self.comtrees.get_mut(index).tree.succession;
            let Some(succession) = succession.as_deref_mut() else { continue };
            match succession.phase {
                Phase::Watching { until } if until <= now => {
                    succession.ask(self.table.all_asked(comtree));
                    self.follow_parent(now, index);
                }
                Phase::Asking if has_asked => {
                    succession.phase = Phase::Overlapping { until: now + OVERLAP };
                }
                _ => {}
            }
        }
    }

    /// Goes on with successions as far as it is time. Only between flushes.
    pub(super) fn advance_successions(&mut self, now: Time) {
        for place in (0..self.overlay.successions.len()).rev() {
            let index = self.overlay.successions[place];
            let queue = self.queues.get(self.comtrees.get(index).queue);
            if queue.pending.records.is_empty() && !self.advance_succession(now, index) {
                self.overlay.successions.swap_remove(place);
            }
        }
    }

    /// False if it has ended.
    fn advance_succession(&mut self, now: Time, index: ComtreeIndex) -> bool {
        self.inject_ahead(now, index, now);
        let tree = &mut self.comtrees.get_mut(index).tree;
        let Some(succession) = &mut tree.succession else { return false };
        match succession.phase {
            Phase::Overlapping { until } if until <= now => self.turn_to_next(now, index),
            Phase::Holding { until } if until <= now => self.go_on(now, index),
            Phase::Settling { until } if until <= now => self.settle(now, index),
            Phase::Turned { until: Some(until) } if until <= now => {
                tree.end_succession();
                return false;
            }
            _ => {}
        }
        true
    }

    /// Whether the next parent has been asked for everything.
    fn has_asked(&self, index: ComtreeIndex) -> bool {
        let entry = self.comtrees.get(index);
        let next = entry.tree.succession.as_ref().map(|succession| succession.next);
        next.is_some_and(|next| self.has_asked_all(entry.id, next))
    }

    /// What goes up waits from now on.
    fn turn_to_next(&mut self, now: Time, index: ComtreeIndex) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        let Some(succession) = &mut tree.succession else { return };
        if succession.has_turned() {
            return;
        }
        succession.hold(now);
        let (old, next) = (succession.old, succession.next);
        tree.sort_out();
        self.overlay.routes.redirect(index, old.unwrap_or(NONE), next);
        // Otherwise the source that was learned last would not be learned again by its new way.
        self.overlay.learned = NOBODY;
    }

    /// What goes up goes over the next branch from now on, what was held first.
    fn go_on(&mut self, now: Time, index: ComtreeIndex) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        let Some(succession) = &mut tree.succession else { return };
        if !matches!(succession.phase, Phase::Holding { .. }) {
            return;
        }
        let (next, old_site) = (succession.next, succession.old_site);
        succession.phase = Phase::Settling { until: now + AHEAD };
        tree.sort_out();
        self.send_held(now, index);
        self.tell_of_sites(now, index, next, old_site);
    }

    /// The next parent brings everything, and what it has brought passes.
    fn settle(&mut self, now: Time, index: ComtreeIndex) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        let Some(succession) = &mut tree.succession else { return };
        if !matches!(succession.phase, Phase::Settling { .. }) {
            return;
        }
        succession.phase = Phase::Turned { until: None };
        self.inject_all_ahead(now, index);
        let comtree = self.comtrees.get(index).id;
        self.note(Notice::ParentSucceeded { comtree });
    }

    /// Lets through what the next parent has brought, and the old one, by `then`, does not bring any more.
    fn inject_ahead(&mut self, now: Time, index: ComtreeIndex, then: Time) {
        while let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession {
            let Some(kept) = succession.take_ahead(then) else { return };
            self.inject(now, index, &kept);
        }
    }

    /// The one parent that is left is about to be gone, or to be something else: what waits for it passes now.
    pub(super) fn pass_what_waits_for(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        parent: PortIndex,
    ) {
        let succession = &self.comtrees.get(index).tree.succession;
        if succession.as_ref().is_some_and(|of| of.is_left_with(parent)) {
            self.inject_all_ahead(now, index);
        }
    }

    /// Lets all of that through: nobody is waited for any more.
    fn inject_all_ahead(&mut self, now: Time, index: ComtreeIndex) {
        self.inject_ahead(now, index, now + AHEAD);
    }

    /// Lets through what a publisher sent up to this number.
    fn pass_before(&mut self, now: Time, (index, src, series): (ComtreeIndex, Address, u16)) {
        while let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession {
            let Some(kept) = succession.take_before(now, src, series) else { return };
            self.inject(now, index, &kept);
        }
    }

    fn inject(&mut self, now: Time, index: ComtreeIndex, kept: &Kept) {
        let update = kept.update();
        let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession else { return };
        if !succession.pass(now, update.src, update.series) {
            return self.drop_on(update.comtree, DropReason::Repeated);
        }
        let origin = succession.way_up();
        let accepted = Accepted { update, index, origin, may_pass: true };
        if let Err(reason) = self.deliver_now(now, accepted) {
            self.drop_on(update.comtree, reason);
        }
    }

    /// Sends up what was held.
    fn send_held(&mut self, now: Time, index: ComtreeIndex) {
        while let Some(succession) = &mut self.comtrees.get_mut(index).tree.succession {
            let way_up = succession.way_up();
            let Some(kept) = succession.take_held() else { return };
            let update = kept.update();
            let sent = match update.dst.is_group() {
                true => self.queue_for_one(now, way_up, NONE, &update),
                false => {
                    let accepted = Accepted { update, index, origin: NONE, may_pass: true };
                    self.deliver_now(now, accepted)
                }
            };
            if let Err(reason) = sent {
                self.drop_on(update.comtree, reason);
            }
        }
    }

    /// Tells the relays between the next parent and the old one that the way to the sites here, and to
    /// the portable addresses here, leads over the next one. They learn it from an update to the old parent
    /// itself, which has no payload. What finds no room for it is learned from what they send.
    fn tell_of_sites(&mut self, now: Time, index: ComtreeIndex, next: PortIndex, old_site: u16) {
        self.overlay.routes.settle();
        let entry = self.comtrees.get(index);
        let (comtree, own) = (entry.id, entry.addresses.site());
        let is_below = |port: PortIndex| port != next && self.is_learned_from(index, port);
        let ways = self.overlay.routes.iter(now).filter(|route| route.comtree == index);
        let foreign = ways.filter(|route| route.to.site() != own && is_below(route.way.port));
        // Those whom other data threads serve are among the ways.
        let mut sources: Vec<Address> = foreign.map(|route| route.to).collect();
        sources.extend(self.portable_here(index));
        sources.push(Address::unicast(own, 0));
        for source in sources {
            let update = word_of(comtree, source, old_site);
            if let Err(reason) = self.queue_for_one(now, next, NONE, &update) {
                self.drop_on(comtree, reason);
            }
        }
    }

    /// What tells of a way has come. All of a meshed core hear it. True if it need not go on.
    pub(super) fn has_told_core(
        &mut self,
        now: Time,
        accepted: &Accepted<'_>,
    ) -> Result<bool, DropReason> {
        let Accepted { update, index, origin, .. } = *accepted;
        let (to, is_own_site) = self.route_key(index, update.dst);
        let way = self.overlay.routes.find(index, to);
        let leads_on = way.is_some_and(|way| !way.is_core_peer());
        if is_own_site || update.from_core_peer {
            return Ok(is_own_site || !leads_on);
        }
        let branches = self.comtrees.get(index).tree.branches().iter();
        let is_sent = |role: BranchRole| role.is_peer() && role.gets_everything();
        let peers = branches.filter(|one| is_sent(one.role) && one.port != origin);
        let peers: Vec<_> = peers.map(|peer| peer.port).collect();
        for peer in &peers {
            self.queue_for_one(now, *peer, origin, &update)?;
        }
        Ok(!peers.is_empty() && !leads_on)
    }

    /// Whether an update tells relays on its way of a site or of a portable address, and is for nobody. A
    /// participant with such an address could send it too, and would tell the truth.
    pub(super) fn is_word(update: &Update<'_>) -> bool {
        let is_to_relay = update.dst.endpoint() == 0 && !update.dst.is_portable();
        let is_of_many = update.src.endpoint() == 0 || update.src.is_portable();
        update.payload.is_empty() && !update.dst.is_group() && is_to_relay && is_of_many
    }

    /// Whether a branch is that of the old parent, or was that of one who was to be the next.
    pub(super) fn is_other_parent(&self, index: ComtreeIndex, port: PortIndex) -> bool {
        let tree = &self.comtrees.get(index).tree;
        let is_above = |succession: &Succession| succession.is_from_above(port);
        tree.succession.as_ref().is_some_and(|of| is_above(of)) && tree.parent() != Some(port)
    }

    /// Whether a branch leads up, but is not the way up now.
    pub(super) fn is_other_way_up(&self, index: ComtreeIndex, port: PortIndex) -> bool {
        let succession = &self.comtrees.get(index).tree.succession;
        succession.as_ref().is_some_and(|of| of.is_from_above(port) && of.way_up() != port)
    }
}

fn word_of(comtree: Comtree, src: Address, to: u16) -> Update<'static> {
    Update {
        comtree,
        src,
        series: 0,
        dst: Address::unicast(to, 0),
        flags: Flags(0),
        level: Level(0),
        weight: Weight::default(),
        object: 0,
        hops: MOST_HOPS,
        from_core_peer: false,
        asks_route: false,
        payload: &[],
    }
}
