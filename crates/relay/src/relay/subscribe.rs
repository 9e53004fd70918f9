//! The receiving side of participants' subscriptions: one packet in flight for each, applied once,
//! answered as often as it is repeated.

use super::Relay;
use crate::index::PortIndex;
use crate::ports::LastSubscribe;
use crate::subscriptions::{Most, SubscriptionTable};
use canopy_wire::{
    Comtree, DropReason, Packet, Path, Subscribe, SubscribeAckWriter, SubscribeRefusal,
    SubscriptionChange, Time, next_sequence,
};

/// Whose subscriptions change.
struct Subscriber {
    port: PortIndex,
    most: Most,
    /// The packet comes again, and some of it was refused before.
    was_refused: bool,
}

impl Subscriber {
    fn change(
        &self,
        table: &mut SubscriptionTable,
        comtree: Comtree,
        change: SubscriptionChange,
        expires: Time,
    ) -> Result<(), SubscribeRefusal> {
        let Subscriber { port, most, was_refused } = *self;
        let group = change.group();
        match change.wanted() {
            // A repeated packet renews what it added, for its sender counts from the answer. What was
            // refused stays so even if there would be room by now: its sender may have heard the
            // refusal already.
            Some(_) if was_refused && !table.contains(port, comtree, group) => {
                Err(table.would_refuse(port, most, (comtree, group)))
            }
            Some(wanted) => table.add((port, most), comtree, group, wanted, expires),
            None => {
                table.remove(port, comtree, group);
                Ok(())
            }
        }
    }
}

impl Relay {
    pub(super) fn take_subscribe(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let header = packet.header();
        let index = self.admit(now, from, packet)?;
        let subscribe = Subscribe::new_checked(packet)?;
        if self.overlay.windows.contains_key(&index) {
            return self.take_from_branch(now, (from, index), header.comtree, &subscribe);
        }
        let port = self.ports.get_mut(index).ok_or(DropReason::UnknownSource)?;
        let most = self.most_of_participant;
        let (last, max_datagram) = (port.last_subscribe, port.shape.datagrams.max_datagram());
        let sequence = subscribe.sequence();
        let repeats = sequence == last.sequence && last.sequence != 0;
        if !repeats && sequence != next_sequence(last.sequence) {
            return Err(DropReason::SubscribeOrder);
        }
        // Without an answer the port asks again: then the other data threads may have caught up.
        if !self.can_tell(packet.payload().len() / 4) {
            return Err(DropReason::SiblingsFull);
        }
        self.charge_changes(now, index, subscribe.count())?;
        let room = self.replies.room().ok_or(DropReason::RepliesFull)?;
        let mut writer = SubscribeAckWriter::new(room, sequence, max_datagram)?;
        let expires = now + self.subscription_lifetime;
        let rights = self.ports.get(index).and_then(|port| port.rights.as_deref());
        let (mut refused, mut new_groups, mut not_allowed) = (0, 0, 0);
        for change in subscribe.changes() {
            self.counters.subscription_changes += 1;
            let group = change.group();
            if let (Some((level, _)), Some(rights)) = (change.wanted(), rights)
                && let Err(reason) = rights.check_subscription(group, level)
            {
                self.table.remove(index, header.comtree, group);
                writer.push(group, SubscribeRefusal::NotAllowed);
                self.counters.drops[reason as usize] += u64::from(!repeats);
                not_allowed += 1;
                continue;
            }
            let subscriber = Subscriber { port: index, most, was_refused: repeats && last.refused };
            let changed = subscriber.change(&mut self.table, header.comtree, change, expires);
            if let Err(reason) = changed {
                writer.push(group, reason);
                let is_new = reason == SubscribeRefusal::NewGroups;
                *(if is_new { &mut new_groups } else { &mut refused }) += 1;
            }
        }
        let len = writer.finish(header.comtree, header.session);
        self.push_reply(from, index, len)?;
        if let Some(port) = self.ports.get_mut(index) {
            port.last_subscribe = LastSubscribe { sequence, refused: refused + new_groups > 0 };
        }
        self.begin_path(index);
        if !repeats {
            self.counters.drops[DropReason::SubscriptionsFull as usize] += refused;
            self.counters.drops[DropReason::NewGroups as usize] += new_groups;
            self.count_on(header.comtree, refused + new_groups + not_allowed);
        }
        self.sweep_at.get_or_insert(now + super::SWEEP_EVERY);
        // There is room now; by the time the answer leaves, much else may want to be told.
        if self.table.changes_to_tell() > 0 {
            self.tell_siblings();
        }
        Ok(())
    }

    /// Counts the subscriptions that one packet was refused.
    fn count_on(&mut self, comtree: Comtree, refused: u64) {
        if let Some(index) = self.comtrees.find(comtree) {
            self.comtrees.get_mut(index).counters.drops += refused;
        }
    }
}
