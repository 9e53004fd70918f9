//! A controller with relays that do what it says, for targets that ask it something.

use canopy_control::signal::LinkReport;
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, Event, Item, ItemKey, Name, NewRelay, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use std::collections::BTreeMap;

/// The controller, its store and its relays. The first two, `a` and `b`, are up from the beginning.
pub(crate) struct Bed {
    pub(crate) controller: Controller,
    storage: MemoryStorage,
    relays: BTreeMap<RelayId, RelaySide>,
    /// What the controller has told.
    pub(crate) events: Vec<Event>,
}

/// What a relay of these targets can send and receive.
pub(crate) const UPLINK: Rate = Rate { bits: 1e9, packets: 1e6 };

impl Bed {
    pub(crate) fn new() -> Bed {
        let (settings, retry) = (Settings::default(), Retry::default());
        let mut storage = MemoryStorage::default();
        let controller = Controller::start(settings, retry, Time::ZERO, &mut storage);
        let controller = controller.expect("an empty store");
        let (relays, events) = (BTreeMap::new(), Vec::new());
        let mut bed = Bed { controller, storage, relays, events };
        for (number, name) in [(1, "a"), (2, "b")] {
            let new = NewRelay {
                name: Name::new(name).expect("a name"),
                key: [number; 32],
                native: ([127, 0, 0, 1], 1).into(),
                uplink: Limits { send: UPLINK, receive: UPLINK },
                places: 4,
                comtrees: 1024,
            };
            let relay = bed.controller.register(Time::ZERO, new).expect("two relays");
            bed.run(relay);
        }
        bed.settle(Time::ZERO);
        bed
    }

    /// A relay that has registered does what it is told from now on, if it does not already.
    pub(crate) fn run(&mut self, relay: RelayId) {
        self.relays.entry(relay).or_insert_with(|| RelaySide::new(1));
    }

    /// A relay says nothing any more: whoever has its key may speak in its place.
    pub(crate) fn silence(&mut self, relay: RelayId) {
        self.relays.remove(&relay);
    }

    /// Time passes, what is decided is stored, and the relays do it. The accounts are right then.
    pub(crate) fn settle(&mut self, now: Time) {
        self.controller.handle_timeout(now);
        loop {
            while let Some(batch) = self.controller.poll_commit(now) {
                let result = self.storage.commit(&batch);
                self.controller.handle_commit(now, result).expect("nothing fails");
            }
            while let Some((to, message)) = self.controller.poll_transmit(now) {
                assert!(message.len() <= canopy_control::Message::MOST);
                if let Some(relay) = self.relays.get_mut(&to) {
                    relay.handle_message(&message);
                }
            }
            if !self.answer(now) {
                break;
            }
        }
        while let Some(event) = self.controller.poll_event() {
            self.events.push(event);
        }
        if let Err(wrong) = self.controller.audit() {
            panic!("{wrong}");
        }
    }

    /// The relays do what they were told, and say so. Returns whether they had something to say.
    fn answer(&mut self, now: Time) -> bool {
        let mut said = false;
        for (id, relay) in &mut self.relays {
            while let Some(applying) = relay.poll_apply() {
                let link = match (applying.key(), &applying.after) {
                    (ItemKey::Link(link), Some(Item::Link { .. })) => Some(link),
                    _ => None,
                };
                relay.applied(applying, Ok(()));
                if let Some(link) = link {
                    relay.set_link(now, LinkReport { link, up: true, delay_us: 500 });
                }
            }
            relay.handle_timeout(now);
            while let Some(message) = relay.poll_transmit() {
                said = true;
                self.controller.handle_message(now, *id, &message);
            }
        }
        said
    }
}

/// What is asked: a byte that says what, and what belongs to it, each behind its length in two bytes.
pub(crate) fn requests(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([what, high, low], behind) = input.split_first_chunk::<3>()?;
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (body, behind) = behind.split_at(len);
        input = behind;
        Some((*what, body))
    })
}

/// The reverse of [`requests`].
pub(crate) fn input_of(requests: &[(u8, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut input = Vec::new();
    for (what, body) in requests {
        let body = body.as_ref();
        input.push(*what);
        input.extend((body.len() as u16).to_be_bytes());
        input.extend(body);
    }
    input
}
