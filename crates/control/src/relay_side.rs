//! A relay's side of the control plane: it executes the controller's calls, says what it has, and
//! beats.
//!
//! What a call means for the data plane is the daemon's to say: it is handed one [`Applying`] after
//! the other, and answers each. Until it does, no other is begun.

use crate::codec::Coded;
use crate::model::{Key, LinkId, MOST_LINKS};
use crate::signal::{
    Answer, Call, Callee, FRAME, FoundWay, Item, ItemKey, LinkLoad, LinkReport, MOST_ASKED_AFTER,
    MOST_DETOURS, MOST_SUCCEEDED, MOST_TOGETHER, Measure, Measured, Message, Role, Ticket,
};
use canopy_wire::{Comtree, Time};
use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::IntoIter;

/// A relay says that it is there this often.
const BEAT: Duration = Duration::from_millis(500);
/// The bytes of a refusal that are said where changes are called together: all of theirs fit a message.
const MOST_OF_WHY: usize = (Message::MOST - FRAME) / MOST_TOGETHER - 4;

/// After how many relays a controller asks that are remembered at most.
const MOST_AFTER: usize = 4_096;

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

/// The changes of a call, which are done one after the other.
#[derive(Clone, Debug)]
struct Changes {
    ticket: Ticket,
    left: IntoIter<Call>,
    /// Why each of those was refused that are over, or nothing if it was done.
    over: Vec<Option<String>>,
}

/// The control plane of a relay, in one life.
#[derive(Clone, Debug)]
pub struct RelaySide {
    callee: Callee,
    /// What the data plane has.
    items: BTreeMap<ItemKey, Item>,
    /// The call that is executed, if it is to change anything.
    changes: Option<Changes>,
    applying: Option<Applying>,
    /// Whether the data plane has not answered yet. A new controller waits for that too, or it
    /// would list what is about to change.
    is_busy: bool,
    links: BTreeMap<LinkId, LinkReport>,
    /// Over which link the next parent is that is the way to the core now.
    succeeded: BTreeMap<Comtree, LinkId>,
    /// On which comtrees its standby parent is the way up.
    detours: BTreeSet<Comtree>,
    ways: Vec<FoundWay>,
    next_beat: Time,
    /// What it is to measure, until the daemon takes it; of several, the last.
    measure: Option<Measure>,
    /// After which relays the controller asks.
    asked_after: BTreeSet<Key>,
    out: VecDeque<Vec<u8>>,
}

impl RelaySide {
    /// A relay in this life, counted by its starts. It has nothing yet.
    pub fn new(life: u32) -> RelaySide {
        RelaySide {
            callee: Callee::new(life),
            items: BTreeMap::new(),
            changes: None,
            applying: None,
            is_busy: false,
            links: BTreeMap::new(),
            succeeded: BTreeMap::new(),
            detours: BTreeSet::new(),
            ways: Vec::new(),
            next_beat: Time::ZERO,
            measure: None,
            asked_after: BTreeSet::new(),
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
        match message {
            Message::Measure(measure) => return self.measure = Some(measure),
            // It asks again, and each time after the same.
            Message::AskAfter(relays) if self.asked_after.len() < MOST_AFTER => {
                return self.asked_after.extend(relays);
            }
            Message::AskAfter(_) => return,
            _ => {}
        }
        let controller = self.callee.controller();
        if let Some(answer) = self.callee.handle(message) {
            self.out.push_back(answer.encode());
        }
        if self.callee.controller() != controller {
            // What is left of a call is not done for a controller that was replaced.
            self.changes = None;
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

    /// Which ways the relay has found by itself, in order of comtrees. The controller is told as it is of detours.
    pub fn set_ways(&mut self, now: Time, ways: impl IntoIterator<Item = FoundWay>) {
        let ways = ways.into_iter().collect();
        if self.ways != ways {
            self.ways = ways;
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
            if !self.ways.is_empty() {
                let ways = self.ways.iter().copied().take(MOST_DETOURS).collect();
                self.out.push_back(Message::Ways(ways).encode());
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

    /// The relays after which the controller asks, of which it hears nothing. It is told once, by
    /// [`RelaySide::set_reachable`], to which of them links lead.
    pub fn poll_asked_after(&mut self) -> Option<BTreeSet<Key>> {
        (!self.asked_after.is_empty()).then(|| core::mem::take(&mut self.asked_after))
    }

    /// To these relays links lead, of those after which the controller has asked.
    pub fn set_reachable(&mut self, relays: &[Key]) {
        for relays in relays.chunks(MOST_ASKED_AFTER) {
            self.out.push_back(Message::Reachable(relays.to_vec()).encode());
        }
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
        let why = match result {
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
                None
            }
            Err(why) => Some(why),
        };
        self.is_busy = false;
        if let Some(changes) = &mut self.changes {
            changes.over.push(why);
        }
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
            if let Some(changes) = &mut self.changes {
                match changes.left.next() {
                    Some(change) => self.begin(change),
                    None => self.end_changes(),
                }
                continue;
            }
            let Some((ticket, call)) = self.callee.poll_call() else { return };
            let changes = match call {
                Call::List(after) => {
                    let page = self.page(after);
                    self.answer(ticket, page);
                    continue;
                }
                Call::Together(changes) => changes,
                change @ (Call::Set(_) | Call::Remove(_)) => vec![change],
            };
            let over = Vec::with_capacity(changes.len());
            self.changes = Some(Changes { ticket, left: changes.into_iter(), over });
        }
    }

    /// Begins a change, if there is anything to do.
    fn begin(&mut self, change: Call) {
        let Some(changes) = &mut self.changes else { return };
        let (key, after) = match change {
            Call::Set(item) => (item.key(), Some(item)),
            Call::Remove(key) => (key, None),
            Call::List(_) | Call::Together(_) => {
                return changes.over.push(Some("it is no change".to_owned()));
            }
        };
        let before = self.items.get(&key).cloned();
        // Who is gone may have a token that holds, also if this life of the relay has not seen him.
        let is_dismissed = matches!((key, &after), (ItemKey::Member(..), None));
        if before == after && !is_dismissed {
            return changes.over.push(None);
        }
        self.applying = Some(Applying { ticket: changes.ticket, before, after, key });
        self.is_busy = true;
    }

    /// Says what became of a call's changes.
    fn end_changes(&mut self) {
        let Some(Changes { ticket, mut over, .. }) = self.changes.take() else { return };
        let answer = match over.as_mut_slice() {
            all if all.iter().all(Option::is_none) => Answer::Done,
            [Some(why)] => Answer::Refused(std::mem::take(why)),
            all => {
                for why in all.iter_mut().flatten() {
                    why.truncate(why.floor_char_boundary(MOST_OF_WHY));
                }
                Answer::Together(over)
            }
        };
        self.answer(ticket, answer);
    }

    /// As many items behind this key as fit a message. There is always more, up to a page of nothing, by which the
    /// controller knows that this relay takes a [`Sharing`](crate::Sharing), and changes together.
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

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Address;

    fn key(of: u32) -> ItemKey {
        ItemKey::Member(Comtree(16), Address(of))
    }

    /// A call of so many removals, by a controller in this life.
    fn together(controller: u32, count: u32) -> Vec<u8> {
        let call = Call::Together((0..count).map(|of| Call::Remove(key(of))).collect());
        Message::Call { controller, relay: 1, number: 1, settled: 1, call }.encode()
    }

    fn answer(side: &mut RelaySide) -> Option<Answer> {
        match Message::decode(&side.poll_transmit()?) {
            Ok(Message::Answer { answer, .. }) => Some(answer),
            _ => None,
        }
    }

    #[test]
    fn changes_that_are_called_together_are_done_in_turn_and_answered_once() {
        let mut side = RelaySide::new(1);
        let long = "ß".repeat(Message::MOST);
        side.handle_message(&together(1, MOST_TOGETHER as u32));
        for of in 0..MOST_TOGETHER as u32 {
            assert_eq!(answer(&mut side), None);
            let applying = side.poll_apply().unwrap();
            assert_eq!(applying.key(), key(of));
            side.applied(applying, if of == 3 { Ok(()) } else { Err(long.clone()) });
        }
        let Some(Answer::Together(whys)) = answer(&mut side) else { panic!("an answer") };
        let is_part = |why: &String| why.len() > 100 && long.starts_with(why);
        let refused: Vec<bool> = whys.iter().map(|why| why.as_ref().is_some_and(is_part)).collect();
        assert_eq!(refused, (0..MOST_TOGETHER).map(|of| of != 3).collect::<Vec<_>>());
        // The answer was saved.
        side.handle_message(&together(1, MOST_TOGETHER as u32));
        assert!(side.poll_apply().is_none());
        assert_eq!(answer(&mut side), Some(Answer::Together(whys)));
    }

    #[test]
    fn a_new_controller_ends_what_the_last_one_has_called_after_the_change_that_is_under_way() {
        let mut side = RelaySide::new(1);
        side.handle_message(&together(1, 3));
        let first = side.poll_apply().unwrap();
        let list = Call::List(None);
        let list = Message::Call { controller: 2, relay: 1, number: 1, settled: 1, call: list };
        side.handle_message(&list.encode());
        assert_eq!((side.poll_apply(), answer(&mut side)), (None, None));
        side.applied(first, Ok(()));
        assert_eq!(side.poll_apply(), None);
        assert_eq!(answer(&mut side), Some(Answer::Items(Vec::new(), true)));
        assert_eq!(answer(&mut side), None);
    }

    #[test]
    fn no_call_has_more_changes_than_that() {
        let mut side = RelaySide::new(1);
        side.handle_message(&together(1, MOST_TOGETHER as u32 + 1));
        assert_eq!(side.poll_apply(), None);
        side.handle_message(&together(1, 0));
        assert_eq!(answer(&mut side), Some(Answer::Done));
    }
}
