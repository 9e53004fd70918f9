//! A relay's side of the control plane: it executes the controller's calls, says what it has, and
//! beats.
//!
//! What a call means for the data plane is the daemon's to say: it is handed one [`Applying`] after
//! the other, and answers each. Until it does, no other is begun.

use crate::codec::Coded;
use crate::model::{LinkId, MOST_LINKS};
use crate::signal::{
    Answer, Call, Callee, Item, ItemKey, LinkLoad, LinkReport, MOST_DETOURS, MOST_SUCCEEDED,
    Measure, Measured, Message, Role, Ticket,
};
use canopy_wire::{Comtree, Time};
use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A relay says that it is there this often.
const BEAT: Duration = Duration::from_millis(500);
/// How many bytes of a message are left for what is not items.
const FRAME: usize = 64;

/// What is to be applied to the data plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Applying {
    /// What is answered with.
    pub ticket: Ticket,
    /// What the relay has of it so far.
    pub before: Option<Item>,
    /// What it is to have; nothing if it is to be removed.
    pub after: Option<Item>,
    key: ItemKey,
}

impl Applying {
    /// What changes.
    pub fn key(&self) -> ItemKey {
        self.key
    }
}

/// The control plane of a relay, in one life.
#[derive(Clone, Debug)]
pub struct RelaySide {
    callee: Callee,
    /// What the data plane has.
    items: BTreeMap<ItemKey, Item>,
    applying: Option<Applying>,
    /// Whether the data plane has not answered yet. A new controller waits for that too, or it
    /// would list what is about to change.
    is_busy: bool,
    links: BTreeMap<LinkId, LinkReport>,
    /// Over which link the next parent is that is the way to the core now.
    succeeded: BTreeMap<Comtree, LinkId>,
    /// On which comtrees its standby parent is the way up.
    detours: BTreeSet<Comtree>,
    next_beat: Time,
    /// What it is to measure, until the daemon takes it; of several, the last.
    measure: Option<Measure>,
    out: VecDeque<Vec<u8>>,
}

impl RelaySide {
    /// A relay in this life, counted by its starts. It has nothing yet.
    pub fn new(life: u32) -> RelaySide {
        RelaySide {
            callee: Callee::new(life),
            items: BTreeMap::new(),
            applying: None,
            is_busy: false,
            links: BTreeMap::new(),
            succeeded: BTreeMap::new(),
            detours: BTreeSet::new(),
            next_beat: Time::ZERO,
            measure: None,
            out: VecDeque::new(),
        }
    }

    /// What the data plane has.
    pub fn items(&self) -> &BTreeMap<ItemKey, Item> {
        &self.items
    }

    /// How many calls were ignored; see [`Callee::ignored`].
    pub fn ignored(&self) -> u64 {
        self.callee.ignored()
    }

    /// Takes a message from the controller; one that cannot be read is ignored.
    pub fn handle_message(&mut self, bytes: &[u8]) {
        let Ok(message) = Message::decode(bytes) else { return };
        if let Message::Measure(measure) = message {
            self.measure = Some(measure);
            return;
        }
        if let Some(answer) = self.callee.handle(message) {
            self.out.push_back(answer.encode());
        }
        self.execute();
    }

    /// How the relay finds a link from now on. Tells the controller at once if it is up or down
    /// now and was not before.
    pub fn set_link(&mut self, now: Time, report: LinkReport) {
        let before = self.links.insert(report.link, report);
        if before.is_none_or(|before| before.up != report.up) {
            self.next_beat = now;
        }
    }

    /// The comtree's next parent is the way to the core now. The controller is told at once, and with
    /// each beat until it has made that the parent.
    pub fn set_succeeded(&mut self, now: Time, comtree: Comtree) {
        if let Some(link) = self.items.get(&ItemKey::Comtree(comtree)).and_then(next_parent) {
            self.succeeded.insert(comtree, link);
            self.next_beat = now;
        }
    }

    /// On which comtrees the relay is on a detour. The controller is told at once of what has changed, and before each
    /// beat of those that there are: it begins nothing meanwhile that would take their standby parents away.
    pub fn set_detours(&mut self, now: Time, comtrees: impl IntoIterator<Item = Comtree>) {
        let detours = comtrees.into_iter().collect();
        if self.detours != detours {
            self.detours = detours;
            self.next_beat = now;
        }
    }

    /// Takes the time.
    pub fn handle_timeout(&mut self, now: Time) {
        if now >= self.next_beat {
            self.next_beat = now + BEAT;
            if !self.detours.is_empty() {
                let detours = self.detours.iter().copied().take(MOST_DETOURS).collect();
                self.out.push_back(Message::Detours(detours).encode());
            }
            let links = self.links.values().copied().collect();
            let succeeded = self.succeeded.iter().take(MOST_SUCCEEDED);
            let succeeded = succeeded.map(|(comtree, link)| (*comtree, *link)).collect();
            let beat = Message::Beat {
                relay: self.callee.relay(),
                controller: self.callee.controller(),
                answered: self.callee.answered(),
                links,
                succeeded,
            };
            self.out.push_back(beat.encode());
        }
    }

    /// When it wants to know the time.
    pub fn poll_timeout(&self) -> Time {
        self.next_beat
    }

    /// A message for the controller.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// What is to be measured now. It takes the place of what is being measured.
    pub fn poll_measure(&mut self) -> Option<Measure> {
        self.measure.take()
    }

    /// What was found, as it was asked for; the controller is told once.
    pub fn measured(&mut self, measured: Measured) {
        self.out.push_back(Message::Measured(measured).encode());
    }

    /// What it sends over its links. The controller is told once, for whoever looks on.
    pub fn set_loads(&mut self, mut loads: Vec<LinkLoad>) {
        loads.truncate(MOST_LINKS);
        self.out.push_back(Message::Loads(loads).encode());
    }

    /// What is to be applied to the data plane now.
    pub fn poll_apply(&mut self) -> Option<Applying> {
        self.applying.take()
    }

    /// What became of it. A refusal says why, and then nothing has changed.
    pub fn applied(&mut self, applying: Applying, result: Result<(), String>) {
        let answer = match result {
            Ok(()) => {
                if let ItemKey::Comtree(comtree) = applying.key {
                    let next = applying.after.as_ref().and_then(next_parent);
                    if self.succeeded.get(&comtree).copied() != next {
                        self.succeeded.remove(&comtree);
                    }
                }
                match applying.after {
                    Some(item) => self.items.insert(applying.key, item),
                    None => {
                        if let ItemKey::Link(link) = applying.key {
                            self.links.remove(&link);
                        }
                        self.items.remove(&applying.key)
                    }
                };
                Answer::Done
            }
            Err(why) => Answer::Refused(why),
        };
        self.is_busy = false;
        self.answer(applying.ticket, answer);
        self.execute();
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(message) = self.callee.answer(ticket, answer) {
            self.out.push_back(message.encode());
        }
    }

    /// Executes calls until one waits for the data plane.
    fn execute(&mut self) {
        while !self.is_busy {
            let Some((ticket, call)) = self.callee.poll_call() else { return };
            let (key, after) = match call {
                Call::List(after) => {
                    let page = self.page(after);
                    self.answer(ticket, page);
                    continue;
                }
                Call::Set(item) => (item.key(), Some(item)),
                Call::Remove(key) => (key, None),
            };
            let before = self.items.get(&key).cloned();
            // Who is gone may have a token that holds, also if this life of the relay has not seen him.
            let is_dismissed = matches!((key, &after), (ItemKey::Member(..), None));
            if before == after && !is_dismissed {
                self.answer(ticket, Answer::Done);
                continue;
            }
            self.applying = Some(Applying { ticket, before, after, key });
            self.is_busy = true;
        }
    }

    /// As many items behind this key as fit a message. There is always more, up to a page of nothing, by which the
    /// controller knows that this relay takes a [`Sharing`](crate::Sharing).
    fn page(&self, after: Option<ItemKey>) -> Answer {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = Message::MOST - FRAME;
        let mut items = Vec::new();
        for item in self.items.range((from, Bound::Unbounded)).map(|(_, item)| item) {
            let Some(rest) = left.checked_sub(item.to_bytes().len()) else {
                return Answer::Items(items, true);
            };
            left = rest;
            items.push(item.clone());
        }
        Answer::Items(items, true)
    }
}

/// Over which link a comtree's next parent is, if it has one.
pub(crate) fn next_parent(item: &Item) -> Option<LinkId> {
    let Item::Comtree { branches, .. } = item else { return None };
    branches.iter().find(|branch| branch.role == Role::NextParent).map(|branch| branch.link)
}
