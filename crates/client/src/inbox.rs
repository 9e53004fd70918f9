//! What waits for the application: updates and events in one queue, in the order in which they
//! came. Both are bounded apart, so that no flood of updates hides an event.
//!
//! When there are too many updates the oldest makes room: for a world, what is new matters more.
//! Events make room too, but so that no update is ever read before the `Connected` of its epoch.

use crate::{Event, Incoming, Update};
use std::collections::VecDeque;

/// Events that wait for an application that does not look at them.
const EVENTS: usize = 64;

pub(crate) struct Inbox {
    items: VecDeque<Incoming>,
    /// How many of the items are events; the others are updates.
    events: usize,
    limit: usize,
    dropped_updates: u64,
    dropped_events: u64,
    closed: bool,
}

impl Inbox {
    /// A queue of at most `limit` updates, and at least one.
    pub(crate) fn new(limit: usize) -> Inbox {
        Inbox {
            items: VecDeque::new(),
            events: 0,
            limit: limit.max(1),
            dropped_updates: 0,
            dropped_events: 0,
            closed: false,
        }
    }

    pub(crate) fn push_update(&mut self, update: Update) {
        if self.updates() >= self.limit {
            // At most `EVENTS` items stand before it.
            self.dropped_updates += u64::from(self.take_first(is_update).is_some());
        }
        self.items.push_back(Incoming::Update(update));
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events >= EVENTS {
            self.make_room_for_an_event();
        }
        self.items.push_back(Incoming::Event(event));
        self.events += 1;
    }

    /// The oldest event goes, but of the `Connected` the oldest only together with all that came
    /// in its epoch.
    fn make_room_for_an_event(&mut self) {
        if self.take_first(|item| is_event(item) && !is_connected(item)).is_some() {
            self.dropped_events += 1;
            return;
        }
        let second = self.items.iter().enumerate().filter(|(_, item)| is_connected(item)).nth(1);
        let end = second.map_or(self.items.len(), |(at, _)| at);
        for item in self.items.drain(..end) {
            let event = u64::from(is_event(&item));
            self.events -= event as usize;
            self.dropped_events += event;
            self.dropped_updates += 1 - event;
        }
    }

    /// Nothing is pushed any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// A number that grows with each item that comes, as long as none is taken.
    #[cfg(feature = "tokio")]
    pub(crate) fn came(&self) -> u64 {
        self.items.len() as u64 + self.dropped_updates + self.dropped_events
    }

    /// How many updates wait.
    pub(crate) fn updates(&self) -> usize {
        self.items.len() - self.events
    }

    pub(crate) fn dropped_updates(&self) -> u64 {
        self.dropped_updates
    }

    pub(crate) fn dropped_events(&self) -> u64 {
        self.dropped_events
    }

    /// The oldest item.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        self.take_first(|_| true)
    }

    /// The oldest update; events stay.
    pub(crate) fn next_update(&mut self) -> Option<Update> {
        match self.take_first(is_update) {
            Some(Incoming::Update(update)) => Some(update),
            _ => None,
        }
    }

    /// The oldest event; updates stay.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        if self.events == 0 {
            return None;
        }
        match self.take_first(is_event) {
            Some(Incoming::Event(event)) => Some(event),
            _ => None,
        }
    }

    fn take_first(&mut self, wanted: impl Fn(&Incoming) -> bool) -> Option<Incoming> {
        let at = self.items.iter().position(wanted)?;
        let item = self.items.remove(at)?;
        self.events -= usize::from(is_event(&item));
        Some(item)
    }
}

fn is_update(item: &Incoming) -> bool {
    matches!(item, Incoming::Update(_))
}

fn is_event(item: &Incoming) -> bool {
    matches!(item, Incoming::Event(_))
}

fn is_connected(item: &Incoming) -> bool {
    matches!(item, Incoming::Event(Event::Connected { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, Participant};
    use bytes::Bytes;
    use canopy_wire::{Level, Weight};

    fn update(number: u8, epoch: Epoch) -> Update {
        let from = Participant::new(1, 1).unwrap();
        let payload = Bytes::copy_from_slice(&[number]);
        let (weight, object, level) = (Weight::ONE, 0, Level(0));
        Update { from, group: None, series: 0, level, weight, object, payload, epoch }
    }

    fn connected(epoch: Epoch) -> Event {
        Event::Connected {
            participant: Participant::new(1, 9).unwrap(),
            kept_address: false,
            epoch,
        }
    }

    #[test]
    fn the_oldest_updates_make_room_and_events_stay_in_their_place() {
        let mut inbox = Inbox::new(2);
        inbox.push_event(Event::Rebound);
        for number in 0..5 {
            inbox.push_update(update(number, Epoch::default()));
        }
        inbox.push_event(Event::Lost);
        assert_eq!((inbox.updates(), inbox.dropped_updates()), (2, 3));
        assert_eq!(inbox.next(), Some(Incoming::Event(Event::Rebound)));
        assert_eq!(inbox.next_event(), Some(Event::Lost));
        assert_eq!(inbox.next_update().unwrap().payload[..], [3]);
        assert_eq!(inbox.next(), Some(Incoming::Update(update(4, Epoch::default()))));
        assert_eq!((inbox.next(), inbox.next_event()), (None, None));
    }

    /// Whatever is dropped, what is left of an epoch comes after its `Connected`.
    #[test]
    fn no_update_outlives_the_event_that_began_its_epoch() {
        let mut inbox = Inbox::new(1_000);
        let mut epoch = Epoch::default();
        for number in 0..200 {
            epoch = epoch.next();
            inbox.push_event(connected(epoch));
            inbox.push_update(update(number, epoch));
            if number % 3 == 0 {
                inbox.push_event(Event::Rebound);
            }
            inbox.push_update(update(number, epoch));
            inbox.push_event(Event::Lost);
        }
        assert!(inbox.events <= EVENTS && inbox.dropped_events() > 0);
        let (mut begun, mut updates) = (Epoch::default(), 0);
        while let Some(item) = inbox.next() {
            match item {
                Incoming::Event(Event::Connected { epoch, .. }) => begun = epoch,
                Incoming::Event(_) => {}
                Incoming::Update(update) => {
                    assert_eq!(update.epoch, begun);
                    updates += 1;
                }
            }
        }
        assert_eq!(begun, epoch);
        assert_eq!(updates + inbox.dropped_updates(), 400);
        assert_eq!((inbox.events, inbox.updates()), (0, 0));
    }
}
