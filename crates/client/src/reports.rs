//! Turns what a session tells into what the application hears: updates and events into its inbox,
//! acknowledgements to those who wait for them.

use crate::answer::Answers;
use crate::inbox::Inbox;
use crate::subscriptions::Subscriptions;
use crate::{Epoch, Event, Participant, Stats, Thinning, Update};
use bytes::Bytes;
use canopy_session::Session;
use canopy_wire::{Address, Busy, Group, RefusedReason, SubscribeRefusal};

pub(crate) struct Reports {
    pub(crate) inbox: Inbox,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) answers: Answers,
    pub(crate) stats: Stats,
    epoch: Epoch,
    /// Who the client is, or was last.
    participant: Option<Participant>,
    /// What a relay has answered, until the driver has looked at it.
    refused: Option<RefusedReason>,
}

impl Reports {
    /// `participant` is who the client was, if it comes back.
    pub(crate) fn new(receive_queue: usize, participant: Option<Participant>) -> Reports {
        Reports {
            inbox: Inbox::new(receive_queue),
            subscriptions: Subscriptions::default(),
            answers: Answers::default(),
            stats: Stats::default(),
            epoch: Epoch::default(),
            participant,
            refused: None,
        }
    }

    /// Which session this is, or was.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Who the client is, or was last.
    pub(crate) fn participant(&self) -> Option<Participant> {
        self.participant
    }

    pub(crate) fn take_refusal(&mut self) -> Option<RefusedReason> {
        self.refused.take()
    }

    /// An update as the application gets it; none if its publisher cannot be.
    pub(crate) fn read(
        &mut self,
        update: canopy_session::Update<'_>,
        payload: Bytes,
    ) -> Option<Update> {
        let Some(from) = Participant::of(update.src) else {
            self.stats.malformed += 1;
            return None;
        };
        let canopy_session::Update { dst, series, level, weight, object, .. } = update;
        let (group, epoch) = (dst.group(), self.epoch);
        Some(Update { from, group, series, level, weight, object, payload, epoch })
    }

    /// Hands the application an update, in the present epoch.
    pub(crate) fn take(&mut self, update: Update) {
        self.stats.received += 1;
        self.inbox.push_update(Update { epoch: self.epoch, ..update });
    }

    /// The client goes on with another relay, where it has this address already, and its subscriptions.
    pub(crate) fn moved(&mut self, address: Address) {
        if let Some(event) = self.begin_epoch(address) {
            self.inbox.push_event(event);
        }
    }

    /// What a relay that does not lead tells of subscriptions.
    pub(crate) fn hear_beside(&mut self, event: canopy_session::Event) {
        use canopy_session::Event as Happened;
        match event {
            Happened::Subscribed(group, level) => self.subscriptions.subscribed(group, level),
            Happened::Unsubscribed(group) => self.subscriptions.unsubscribed(group),
            _ => {}
        }
    }

    /// Takes note of what has happened to the session.
    pub(crate) fn hear(&mut self, session: &mut Session) {
        let mut refused = Vec::new();
        while let Some(event) = session.poll_event() {
            if let Some(event) = self.note(event, &mut refused) {
                self.inbox.push_event(event);
            }
        }
        if !refused.is_empty() {
            self.inbox.push_event(Event::SubscriptionsRefused(refused));
        }
    }

    /// Returns what the application should know of an event. Subscriptions refused are gathered,
    /// as one answer may refuse hundreds.
    fn note(
        &mut self,
        event: canopy_session::Event,
        refused: &mut Vec<(Group, SubscribeRefusal)>,
    ) -> Option<Event> {
        use canopy_session::Event as Happened;
        match event {
            Happened::Connected(address) => return self.connected(address),
            Happened::Lost => {
                self.subscriptions.restart();
                return Some(Event::Lost);
            }
            Happened::Refused(reason) => {
                self.refused = Some(reason);
                return Some(Event::Refused(reason));
            }
            Happened::SentAway(reason) => return Some(Event::SentAway(reason)),
            Happened::Answered(number, status) => self.answers.answered(number, status),
            Happened::Rebound => return Some(Event::Rebound),
            Happened::Busy(Busy { what, dropped }) => return Some(Event::Busy { what, dropped }),
            Happened::Thinned(thinning) => {
                let Thinning { share, left_out, budget_bits, because } = thinning.into();
                return Some(Event::Thinned { share, left_out, budget_bits, because });
            }
            Happened::Gone(address) => {
                return Participant::of(address).map(|participant| Event::Gone { participant });
            }
            Happened::Subscribed(group, level) => self.subscriptions.subscribed(group, level),
            Happened::Unsubscribed(group) => self.subscriptions.unsubscribed(group),
            Happened::SubscriptionRefused(group, reason) => {
                if !self.subscriptions.refused(group, reason) {
                    refused.push((group, reason));
                }
            }
            Happened::Closed => {}
        }
        None
    }

    fn connected(&mut self, address: Address) -> Option<Event> {
        self.subscriptions.restart();
        self.begin_epoch(address)
    }

    fn begin_epoch(&mut self, address: Address) -> Option<Event> {
        self.epoch = self.epoch.next();
        let Some(participant) = Participant::of(address) else {
            self.stats.malformed += 1;
            return None;
        };
        self.stats.connects += 1;
        let kept_address = self.participant.replace(participant) == Some(participant);
        Some(Event::Connected { participant, kept_address, epoch: self.epoch })
    }
}
