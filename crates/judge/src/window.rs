//! The updates that are not forgotten yet, each with its receivers.

use canopy_wire::{Address, Comtree, Level, Time};
use std::collections::{BTreeSet, VecDeque};

/// How many empty lists of receivers are kept to be used again.
const MAX_SPARE: usize = 4096;

/// An update that an application publishes.
#[derive(Clone, Copy, Debug)]
pub struct Publish {
    /// Who publishes it.
    pub publisher: usize,
    /// The publisher's address.
    pub src: Address,
    /// Where to.
    pub dst: Address,
    /// At which level.
    pub level: Level,
    /// Whether the publisher wants it back.
    pub echo: bool,
    /// Whether later datagrams of the publisher's may overtake it.
    pub overtaken: bool,
}

/// A published update.
pub(crate) struct Update {
    pub(crate) publish: Publish,
    pub(crate) comtree: Comtree,
    /// The publisher's connection.
    pub(crate) connection: u64,
    pub(crate) published: Time,
    /// When the relay first read it, and how often it did.
    pub(crate) read: Option<Time>,
    /// When it read a copy of it last.
    pub(crate) last_read: Option<Time>,
    pub(crate) reads: u32,
    /// Bits of it were flipped on the way to the relay: what the relay read is anyone's guess.
    pub(crate) garbled: bool,
    pub(crate) receivers: Receivers,
}

/// What became of an update at one participant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receiver {
    /// It was subscribed without doubt when the update was published.
    pub(crate) due: bool,
    /// It was handed the update.
    pub(crate) came: bool,
    /// How often, the network's copies apart.
    pub(crate) handed: u32,
    /// The network lost a datagram with it.
    pub(crate) lost: bool,
    /// It was judged to be left out for it. It may still come: it may wait for longer than that.
    pub(crate) left_out: bool,
    /// The address that it had then: it may have another on another data thread since.
    pub(crate) address: Option<Address>,
}

/// Participants whom an update concerns, in order.
#[derive(Default)]
pub(crate) struct Receivers(Vec<(u32, Receiver)>);

/// The updates of the last while, by number.
#[derive(Default)]
pub(crate) struct Window {
    updates: VecDeque<Update>,
    /// The number of the first of them.
    first: u64,
    /// Updates to judge, by when all their copies have arrived.
    due: BTreeSet<(Time, u64)>,
    /// Lists of receivers to use again.
    spare: Vec<Receivers>,
}

impl Update {
    pub(crate) fn new(
        publish: Publish,
        comtree: Comtree,
        connection: u64,
        published: Time,
        receivers: Receivers,
    ) -> Update {
        let (read, last_read, reads, garbled) = (None, None, 0, false);
        Update {
            publish,
            comtree,
            connection,
            published,
            read,
            last_read,
            reads,
            garbled,
            receivers,
        }
    }
}

impl Receivers {
    /// A participant that must get the update; later ones come in order.
    pub(crate) fn due(&mut self, participant: u32, address: Option<Address>) {
        let receiver = self.of(participant);
        (receiver.due, receiver.address) = (true, address);
    }

    /// What became of the update at a participant.
    pub(crate) fn of(&mut self, participant: u32) -> &mut Receiver {
        let place = match self.0.binary_search_by_key(&participant, |(who, _)| *who) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, (participant, Receiver::default()));
                place
            }
        };
        &mut self.0[place].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Receiver)> {
        self.0.iter().map(|(who, receiver)| (*who, receiver))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Receiver)> {
        self.0.iter_mut().map(|(who, receiver)| (*who, receiver))
    }
}

impl Window {
    /// The number of the oldest update that is not forgotten.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn len(&self) -> usize {
        self.updates.len()
    }

    /// An empty list of receivers.
    pub(crate) fn spare(&mut self) -> Receivers {
        self.spare.pop().unwrap_or_default()
    }

    /// All updates, by their numbers, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Update)> {
        (self.first..).zip(&self.updates)
    }

    /// A new update; returns its number.
    pub(crate) fn publish(&mut self, update: Update) -> u64 {
        self.updates.push_back(update);
        self.first + self.updates.len() as u64 - 1
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Update> {
        self.updates.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Update> {
        self.updates.get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// The relay reads an update; if for the first time, it is judged after `due`.
    pub(crate) fn read(&mut self, now: Time, id: u64, due: Time) {
        let Some(update) = self.get_mut(id) else { return };
        update.reads += 1;
        update.last_read = Some(now);
        if update.read.is_none() {
            update.read = Some(now);
            self.due.insert((due, id));
        }
    }

    /// Takes the next update that is to be judged before `now`.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<u64> {
        let (due, id) = self.due.first().copied().filter(|(due, _)| *due < now)?;
        self.due.remove(&(due, id));
        Some(id)
    }

    /// Forgets what was published before `horizon`.
    pub(crate) fn forget(&mut self, horizon: Time) {
        while let Some(update) = self.updates.pop_front_if(|update| update.published < horizon) {
            self.first += 1;
            if self.spare.len() < MAX_SPARE {
                let mut receivers = update.receivers;
                receivers.0.clear();
                self.spare.push(receivers);
            }
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        let awaited =
            |update: &Update| update.receivers.iter().any(|(_, one)| one.due && !one.came);
        !self.updates.iter().any(awaited)
    }

    pub(crate) fn describe(&self, id: u64) -> String {
        let Some(update) = self.get(id) else { return format!("update {id}") };
        let Update { publish: Publish { publisher, src, dst, level, .. }, published, .. } = update;
        format!(
            "update {id} of participant {publisher} ({src}) to {dst} of comtree {} at level {}, published at {published}",
            update.comtree.0, level.0
        )
    }
}
