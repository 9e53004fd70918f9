//! A participant's subscriptions: what it wants, what the relay has acknowledged, what is on the
//! way. One subscribe packet is outstanding at a time; changes made meanwhile are merged, so a
//! group that changes back before it was sent costs nothing.

use canopy_wire::{
    Comtree, Group, Level, SessionId, SubscribeAck, SubscribeRefusal, SubscribeWriter,
    SubscriptionChange, Time, Weight, WireError, next_sequence,
};
use core::time::Duration;
use std::collections::BTreeMap;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Added(Group, Level),
    Dropped(Group),
    Refused(Group, SubscribeRefusal),
}

struct Outstanding {
    sequence: u32,
    changes: Vec<SubscriptionChange>,
    resend_at: Time,
    tries: u32,
}

#[derive(Default)]
pub(crate) struct Subscriptions {
    wanted: BTreeMap<Group, (Level, Weight)>,
    /// Changes to send, by group: the latest wins.
    queued: BTreeMap<Group, SubscriptionChange>,
    outstanding: Option<Outstanding>,
    sequence: u32,
    refresh_at: Option<Time>,
}

impl Subscriptions {
    pub(crate) fn add(&mut self, group: Group, level: Level, weight: Weight) {
        if self.wanted.insert(group, (level, weight)) != Some((level, weight)) {
            self.queued.insert(group, SubscriptionChange::add(group, level, weight));
        }
    }

    pub(crate) fn remove(&mut self, group: Group) {
        if self.wanted.remove(&group).is_some() {
            self.queued.insert(group, SubscriptionChange::Drop(group));
        }
    }

    pub(crate) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    pub(crate) fn all_wanted(&self) -> impl Iterator<Item = (Group, Level, Weight)> {
        self.wanted.iter().map(|(group, (level, weight))| (*group, *level, *weight))
    }

    /// All that is wanted is asked for again.
    pub(crate) fn renew(&mut self) {
        let queued = core::mem::take(&mut self.queued);
        self.queued = self.adds_of_all();
        self.queued.extend(queued);
    }

    /// How often the outstanding packet has been sent.
    pub(crate) fn tries(&self) -> u32 {
        self.outstanding.as_ref().map_or(0, |outstanding| outstanding.tries)
    }

    /// Everything that was acknowledged or on the way is gone: a new session starts from nothing.
    pub(crate) fn restart(&mut self) {
        self.outstanding = None;
        self.sequence = 0;
        self.refresh_at = None;
        self.queued = self.adds_of_all();
    }

    fn adds_of_all(&self) -> BTreeMap<Group, SubscriptionChange> {
        let add = |(group, wanted): (&Group, &(Level, Weight))| {
            (*group, SubscriptionChange::add(*group, wanted.0, wanted.1))
        };
        self.wanted.iter().map(add).collect()
    }

    /// When [`Subscriptions::poll_transmit`] will have something, if nothing else happens.
    pub(crate) fn due(&self) -> Option<Time> {
        match &self.outstanding {
            Some(outstanding) => Some(outstanding.resend_at),
            None if !self.queued.is_empty() => Some(Time::ZERO),
            None => self.refresh_at,
        }
    }

    /// Writes the packet that is due into `out`: a repetition, the next changes, or a refresh.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        refresh: Duration,
        (comtree, session, max_datagram): (Comtree, SessionId, usize),
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        let refresh_at = *self.refresh_at.get_or_insert(now + refresh);
        if self.outstanding.is_none() {
            if now >= refresh_at {
                self.renew();
                self.refresh_at = Some(now + refresh);
            }
            self.next_packet(now, max_datagram, out)?;
        }
        let Some(outstanding) = self.outstanding.as_mut().filter(|o| now >= o.resend_at) else {
            return Ok(None);
        };
        // Loss is rare on a working path: 200 ms, doubling to 3.2 s.
        let wait = Duration::from_millis(200 << outstanding.tries.min(4));
        outstanding.resend_at = now + wait;
        outstanding.tries += 1;
        let mut writer = SubscribeWriter::new(out, outstanding.sequence, max_datagram)?;
        for change in &outstanding.changes {
            writer.push(*change);
        }
        Ok(Some(writer.finish(comtree, session)))
    }

    /// Moves as many queued changes as fit one packet to the outstanding one.
    fn next_packet(
        &mut self,
        now: Time,
        max_datagram: usize,
        out: &mut [u8],
    ) -> Result<(), WireError> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::new();
        let mut writer = SubscribeWriter::new(out, 0, max_datagram)?;
        // Sorted by kind and level, changes share sections.
        let mut sorted: Vec<SubscriptionChange> = self.queued.values().copied().collect();
        sorted.sort_by_key(|change| match change {
            SubscriptionChange::Drop(group) => (0, Level(0), *group),
            SubscriptionChange::Add(group, level) => (1, *level, *group),
            SubscriptionChange::AddWeighted(group, level, _) => (2, *level, *group),
        });
        for change in sorted {
            if !writer.push(change) {
                break;
            }
            changes.push(change);
            self.queued.remove(&change.group());
        }
        self.sequence = next_sequence(self.sequence);
        let sequence = self.sequence;
        self.outstanding = Some(Outstanding { sequence, changes, resend_at: now, tries: 0 });
        Ok(())
    }

    pub(crate) fn handle_ack(&mut self, ack: &SubscribeAck<'_>, mut settled: impl FnMut(Settled)) {
        let answers_it = |o: &mut Outstanding| o.sequence == ack.sequence();
        let Some(outstanding) = self.outstanding.take_if(answers_it) else { return };
        for change in outstanding.changes {
            let group = change.group();
            settled(match (change.wanted(), ack.refusal_of(group)) {
                (None, _) => Settled::Dropped(group),
                (Some((level, _)), None) => Settled::Added(group, level),
                (Some(_), Some(reason)) => {
                    // A refused subscription is the application's to ask for again.
                    if !self.queued.contains_key(&group) {
                        self.wanted.remove(&group);
                    }
                    Settled::Refused(group, reason)
                }
            });
        }
    }
}
