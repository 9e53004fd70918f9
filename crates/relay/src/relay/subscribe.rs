//! The receiving side of participants' subscriptions: one packet in flight for each, applied once,
//! answered as often as it is repeated.

use super::Relay;
use crate::access::Rights;
use crate::counters::Counters;
use crate::index::PortIndex;
use crate::ports::LastSubscribe;
use crate::subscriptions::{Found, Most, SubscriptionTable};
use canopy_wire::{
    Comtree, DropReason, Packet, Path, Subscribe, SubscribeAckWriter, SubscribeRefusal,
    SubscriptionChange, Time, next_sequence,
};

/// Whose subscriptions change, and how.
struct Subscriber<'a> {
    port: PortIndex,
    most: Most,
    comtree: Comtree,
    expires: Time,
    rights: Option<&'a Rights>,
    /// The packet comes again; and some of it was refused before.
    repeats: bool,
    was_refused: bool,
}

/// How many of a packet's changes were refused.
#[derive(Default)]
struct Refused {
    by_table: u64,
    new_groups: u64,
    not_allowed: u64,
}

impl Subscriber<'_> {
    /// Makes all changes of a packet. What is refused, and why, is written into the answer.
    fn change_all(
        &self,
        table: &mut SubscriptionTable,
        counters: &mut Counters,
        subscribe: &Subscribe<'_>,
        answer: &mut SubscribeAckWriter<'_>,
    ) -> Refused {
        let mut refused = Refused::default();
        counters.subscription_changes += subscribe.count() as u64;
        table.change_all((self.port, self.comtree), subscribe.changes(), |table, change, found| {
            if let Err(reason) = self.may(change) {
                table.remove_found(found);
                answer.push(change.group(), SubscribeRefusal::NotAllowed);
                counters.drops[reason as usize] += u64::from(!self.repeats);
                refused.not_allowed += 1;
            } else if let Err(reason) = self.change(table, found, change) {
                answer.push(change.group(), reason);
                let is_new = reason == SubscribeRefusal::NewGroups;
                *(if is_new { &mut refused.new_groups } else { &mut refused.by_table }) += 1;
            }
        });
        refused
    }

    /// Whether its token grants a change.
    fn may(&self, change: SubscriptionChange) -> Result<(), DropReason> {
        match (change.wanted(), self.rights) {
            (Some((level, _)), Some(rights)) => rights.check_subscription(change.group(), level),
            _ => Ok(()),
        }
    }

    fn change(
        &self,
        table: &mut SubscriptionTable,
        found: &Found,
        change: SubscriptionChange,
    ) -> Result<(), SubscribeRefusal> {
        let Subscriber { port, most, comtree, expires, was_refused, .. } = *self;
        let group = change.group();
        match change.wanted() {
            // A repeated packet renews what it added, for its sender counts from the answer. What was
            // refused stays so even if there would be room by now: its sender may have heard the
            // refusal already.
            Some(_) if was_refused && !table.contains(port, comtree, group) => {
                Err(table.would_refuse(port, most, (comtree, group)))
            }
            Some(wanted) => table.add_found(most, found, wanted, expires),
            None => {
                table.remove_found(found);
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
        let whose = Subscriber {
            port: index,
            most,
            comtree: header.comtree,
            expires: now + self.subscription_lifetime,
            rights: self.ports.get(index).and_then(|port| port.rights.as_deref()),
            repeats,
            was_refused: repeats && last.refused,
        };
        let (table, counters) = (&mut self.table, &mut self.counters);
        let refused = whose.change_all(table, counters, &subscribe, &mut writer);
        let Refused { by_table, new_groups, not_allowed } = refused;
        let len = writer.finish(header.comtree, header.session);
        self.push_reply(from, index, len)?;
        if let Some(port) = self.ports.get_mut(index) {
            port.last_subscribe = LastSubscribe { sequence, refused: by_table + new_groups > 0 };
        }
        self.begin_path(index);
        if !repeats {
            self.counters.drops[DropReason::SubscriptionsFull as usize] += by_table;
            self.counters.drops[DropReason::NewGroups as usize] += new_groups;
            self.count_on(header.comtree, by_table + new_groups + not_allowed);
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
