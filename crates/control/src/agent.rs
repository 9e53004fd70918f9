//! The controller's side of one relay: what the relay is to have, and the calls that make it so.

use crate::model::{LinkId, RelayId};
use crate::relay_side::next_parent;
use crate::signal::{
    Answer, Call, Caller, FRAME, FoundWay, Item, ItemKey, MOST_TOGETHER, Message, Retry, Role,
};
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// What was refused is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// What became of an item at a relay.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) key: ItemKey,
    /// Up to which change of it.
    pub(crate) version: u64,
    /// Whether it is there, or gone.
    pub(crate) is_there: bool,
    pub(crate) result: Result<(), String>,
}

/// One relay's.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) relay: RelayId,
    controller: u32,
    retry: Retry,
    caller: Option<Caller>,
    /// When it was last heard.
    pub(crate) heard: Time,
    /// When it was last found, of this life of the controller.
    pub(crate) found: Option<Time>,
    /// When another relay last said that it is there, while it was not heard here.
    pub(crate) vouched: Time,
    /// Whether its channel has broken since.
    pub(crate) is_cut: bool,
    /// What it is to have, each with the number of its last change.
    wanted: BTreeMap<ItemKey, (u64, Item)>,
    /// What it is to have, or to have no more, once others have what comes before: if it has something of
    /// that already, it keeps it so long.
    expected: BTreeSet<ItemKey>,
    /// What it is to list before it is told anything of that: the change that is settled then.
    awaited: BTreeMap<ItemKey, u64>,
    /// What is to be called, in the order in which a relay takes it.
    queue: BTreeSet<(u8, ItemKey)>,
    /// The number of the last change of what is to be removed.
    removals: BTreeMap<ItemKey, u64>,
    /// Whom a relay that has started again is to dismiss before it has a comtree on which they could join.
    dismissals: BTreeSet<ItemKey>,
    /// By call: what it changes, and up to which change of each.
    flying: BTreeMap<u64, Vec<(ItemKey, u64)>>,
    /// The last call that was answered in this life: the relay has done all before it, as it does them in order.
    done: u64,
    /// By comtree: the last call that left the relay no next parent there.
    without_next: BTreeMap<Comtree, u64>,
    /// While it is asked what it has: what it has said so far.
    listing: Option<BTreeSet<ItemKey>>,
    refused: BTreeMap<ItemKey, Time>,
    /// What it sends over its links, bits a second, as it has said last in this life.
    pub(crate) loads: BTreeMap<LinkId, u64>,
    /// On which comtrees it is on a detour, as it has said since its last beat.
    pub(crate) detours: BTreeSet<Comtree>,
    /// And which ways it has found by itself.
    pub(crate) ways: Vec<FoundWay>,
    /// Whether it takes a sharing, and changes that are called together, as far as it has said so in this life.
    is_recent: bool,
}

impl Agent {
    pub(crate) fn new(relay: RelayId, controller: u32, retry: Retry, now: Time) -> Agent {
        Agent {
            relay,
            controller,
            retry,
            caller: None,
            heard: now,
            found: None,
            vouched: now,
            is_cut: false,
            wanted: BTreeMap::new(),
            expected: BTreeSet::new(),
            awaited: BTreeMap::new(),
            queue: BTreeSet::new(),
            removals: BTreeMap::new(),
            dismissals: BTreeSet::new(),
            flying: BTreeMap::new(),
            done: 0,
            without_next: BTreeMap::new(),
            listing: None,
            refused: BTreeMap::new(),
            loads: BTreeMap::new(),
            detours: BTreeSet::new(),
            ways: Vec::new(),
            is_recent: false,
        }
    }

    /// The relay is to have something, or nothing, under this key later. Until then it keeps what it has.
    pub(crate) fn expect(&mut self, key: ItemKey) {
        self.expected.insert(key);
    }

    /// The relay keeps what it has under this key. Once it has listed what it has, this change is settled.
    pub(crate) fn await_word(&mut self, key: ItemKey, version: u64) {
        self.expected.insert(key);
        self.awaited.insert(key, version);
    }

    /// The relay is to have this, or nothing under this key.
    pub(crate) fn want(&mut self, key: ItemKey, version: u64, item: Option<Item>) {
        self.expected.remove(&key);
        self.queue.remove(&rank(key, true));
        self.queue.remove(&rank(key, false));
        self.queue.insert(rank(key, item.is_some()));
        match item {
            Some(item) => {
                self.removals.remove(&key);
                self.dismissals.remove(&key);
                self.wanted.insert(key, (version, item));
            }
            None => {
                self.wanted.remove(&key);
                self.removals.insert(key, version);
            }
        }
    }

    /// The relay has started again, and is told once more that it has nothing under this key. Whoever waits for its
    /// word on that waits for the same change.
    pub(crate) fn remove_again(&mut self, key: ItemKey) {
        let version = self.removals.get(&key).copied().unwrap_or(0);
        self.want(key, version, None);
        self.dismissals.insert(key);
    }

    fn call_again(&mut self, key: ItemKey, version: u64) {
        self.queue.insert(rank(key, self.wanted.contains_key(&key)));
        self.keep_removal(key, version);
    }

    /// A removal that was called keeps its number until it is done.
    fn keep_removal(&mut self, key: ItemKey, version: u64) {
        if !self.wanted.contains_key(&key) {
            let kept = self.removals.entry(key).or_insert(version);
            *kept = version.max(*kept);
        }
    }

    /// The relay beats, in this life. In a new one it is asked what it has.
    pub(crate) fn hear(&mut self, now: Time, life: u32) {
        if self.caller.as_ref().is_some_and(|caller| caller.relay() > life) {
            return;
        }
        self.heard = now;
        self.is_cut = false;
        if self.caller.as_ref().is_some_and(|caller| caller.relay() == life) {
            return;
        }
        let mut caller = Caller::new(self.controller, life, self.retry);
        caller.call(now, Call::List(None));
        self.caller = Some(caller);
        // What was on its way to the life before may not have arrived.
        for (key, version) in std::mem::take(&mut self.flying).into_values().flatten() {
            self.call_again(key, version);
        }
        self.done = 0;
        // Its list shows what it lacks, but not what it is yet to be told to remove.
        self.refused.clear();
        self.queue.extend(self.removals.keys().map(|key| rank(*key, false)));
        let is_member = |key: &&ItemKey| matches!(key, ItemKey::Member(..));
        self.dismissals = self.removals.keys().filter(is_member).copied().collect();
        self.without_next.clear();
        self.is_recent = false;
        self.loads.clear();
        self.listing = Some(BTreeSet::new());
    }

    /// Takes an answer; what is settled by it goes to `out`. Returns whether the relay has said by it that it has
    /// nothing at all, as one does that has just started.
    pub(crate) fn handle_answer(
        &mut self,
        now: Time,
        message: Message,
        out: &mut Vec<Settled>,
    ) -> bool {
        let Message::Answer { controller, relay, number, answer } = message else { return false };
        let Some(caller) = &mut self.caller else { return false };
        let Some((call, answer)) = caller.handle_answer(controller, relay, number, answer) else {
            return false;
        };
        self.heard = now;
        self.done = self.done.max(number);
        match (call, answer) {
            (Call::List(_), Answer::Items(items, more)) => {
                let is_first = self.listing.as_ref().is_some_and(BTreeSet::is_empty);
                let has_nothing = is_first && items.is_empty();
                self.take_list(now, items, more, out);
                return has_nothing;
            }
            (Call::List(after), _) => _ = caller.call(now, Call::List(after)),
            (call, answer) => {
                let Some(keys) = self.flying.remove(&number) else { return false };
                let results = results(answer, keys.len());
                let changes = match call {
                    Call::Together(changes) => changes,
                    change => vec![change],
                };
                for ((change, (key, version)), result) in changes.iter().zip(keys).zip(results) {
                    let is_there = matches!(change, Call::Set(_));
                    // A link may have been refused for the sake of another with the same neighbour that is gone now, and
                    // a branch because its link was not there yet.
                    if result.is_ok() && matches!(key, ItemKey::Link(_)) {
                        self.refused.values_mut().for_each(|at| *at = now);
                    }
                    if result.is_err() && !(is_there && matches!(key, ItemKey::Member(..))) {
                        self.refused.insert(key, now + AGAIN);
                        self.keep_removal(key, version);
                    }
                    if result.is_ok() && !is_there {
                        self.dismissals.remove(&key);
                    }
                    out.push(Settled { key, version, is_there, result });
                }
            }
        }
        false
    }

    /// Compares what the relay has with what it is to have.
    fn take_list(&mut self, now: Time, items: Vec<Item>, more: bool, out: &mut Vec<Settled>) {
        let Some(seen) = &mut self.listing else { return };
        let last = items.last().map(Item::key);
        self.is_recent |= more && last.is_none();
        for item in items {
            let key = item.key();
            seen.insert(key);
            match self.wanted.get(&key) {
                Some((version, wanted)) if *wanted == item => {
                    self.queue.remove(&rank(key, true));
                    out.push(Settled { key, version: *version, is_there: true, result: Ok(()) });
                }
                Some(_) => _ = self.queue.insert(rank(key, true)),
                None if self.expected.contains(&key) => {}
                None => _ = self.queue.insert(rank(key, false)),
            }
        }
        if let (Some(caller), Some(last), true) = (&mut self.caller, last, more) {
            caller.call(now, Call::List(Some(last)));
            return;
        }
        let missing = self.wanted.keys().filter(|key| !seen.contains(*key));
        self.queue.extend(missing.map(|key| rank(*key, true)));
        self.listing = None;
        let word = |(key, version)| Settled { key, version, is_there: true, result: Ok(()) };
        out.extend(std::mem::take(&mut self.awaited).into_iter().map(word));
    }

    /// A message that is due, in bytes.
    pub(crate) fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        self.refill(now);
        self.caller.as_mut()?.poll_transmit(now)
    }

    /// Makes calls of what waits, as many as can be on their way.
    fn refill(&mut self, now: Time) {
        if self.listing.is_some() {
            return;
        }
        if !self.refused.is_empty() {
            let wanted = &self.wanted;
            let queue = &mut self.queue;
            self.refused.retain(|key, at| {
                if *at <= now {
                    queue.insert(rank(*key, wanted.contains_key(key)));
                }
                *at > now
            });
        }
        while self.caller.as_ref().is_some_and(Caller::has_room) {
            let (mut changes, keys) = self.next_changes();
            let call = match changes.len() {
                1 => changes.remove(0),
                _ => Call::Together(changes),
            };
            let Some(caller) = self.caller.as_mut().filter(|_| !keys.is_empty()) else { return };
            let number = caller.call(now, call);
            for (key, _) in &keys {
                if let ItemKey::Comtree(comtree) = *key
                    && self.next_parent(comtree).is_none()
                {
                    self.without_next.insert(comtree, number);
                }
            }
            self.flying.insert(number, keys);
        }
    }

    /// What is called next, as much of it as can be together, and up to which change of each key.
    fn next_changes(&mut self) -> (Vec<Call>, Vec<(ItemKey, u64)>) {
        let (mut changes, mut keys) = (Vec::new(), Vec::new());
        let most = if self.is_recent { MOST_TOGETHER } else { 1 };
        let mut left = Message::MOST - FRAME;
        while changes.len() < most
            && let Some(next) = next_of(&self.queue, &self.dismissals)
        {
            let (_, key) = next;
            let wanted = self.wanted.get(&key);
            let bytes = wanted.map_or(FRAME, |(_, item)| item.most_bytes());
            left = match left.checked_sub(bytes) {
                Some(left) => left,
                None if changes.is_empty() => 0,
                None => break,
            };
            let (version, change) = match wanted {
                Some((version, item)) if self.is_recent => (*version, Call::Set(item.clone())),
                Some((version, item)) => (*version, Call::Set(item.clone().for_earlier_release())),
                None => (self.removals.remove(&key).unwrap_or(0), Call::Remove(key)),
            };
            self.queue.remove(&next);
            changes.push(change);
            keys.push((key, version));
        }
        (changes, keys)
    }

    /// Whether the relay means the next parent over this link that it is to have now, and not one that
    /// it had before: by its own life, the life of the controller, and up to which call it had answered
    /// when it spoke.
    pub(crate) fn means(
        &self,
        (comtree, link): (Comtree, LinkId),
        life: u32,
        controller: u32,
        answered: u64,
    ) -> bool {
        let is_of_now = self.caller.as_ref().is_some_and(|caller| caller.relay() == life)
            && controller == self.controller
            && self.without_next.get(&comtree).is_none_or(|number| *number <= answered);
        is_of_now && self.next_parent(comtree) == Some(link)
    }

    /// Over which link the next parent is that the relay is to have on a comtree now.
    pub(crate) fn next_parent(&self, comtree: Comtree) -> Option<LinkId> {
        let wanted = self.wanted.get(&ItemKey::Comtree(comtree));
        wanted.and_then(|(_, item)| next_parent(item))
    }

    /// Whether the relay is to have next peers on a comtree now.
    pub(crate) fn has_next_peers(&self, comtree: Comtree) -> bool {
        let wanted = self.wanted.get(&ItemKey::Comtree(comtree));
        wanted.is_some_and(|(_, item)| match item {
            Item::Comtree { branches, .. } => branches.iter().any(|of| of.role == Role::NextPeer),
            _ => false,
        })
    }

    /// When the next message is due.
    pub(crate) fn poll_timeout(&self, now: Time) -> Option<Time> {
        let caller = self.caller.as_ref()?;
        let next = next_of(&self.queue, &self.dismissals);
        let can_call = self.listing.is_none() && next.is_some() && caller.has_room();
        let at_once = can_call.then_some(now);
        at_once.into_iter().chain(caller.poll_timeout()).chain(self.refused.values().copied()).min()
    }

    /// Whether the relay has what it is to have, as far as is known.
    pub(crate) fn is_settled(&self) -> bool {
        let is_idle = self.queue.is_empty() && self.flying.is_empty() && self.refused.is_empty();
        is_idle && self.listing.is_none() && self.caller.is_some()
    }

    /// Whether the relay is to have this, as it is here.
    pub(crate) fn wants(&self, item: &Item) -> bool {
        self.wanted.get(&item.key()).is_some_and(|(_, wanted)| wanted == item)
    }

    /// Whether the relay is about to be told more of something, or was told and is yet to do it. An answer that is late
    /// says nothing more.
    pub(crate) fn has_more(&self, key: ItemKey) -> bool {
        let is_queued = [true, false].iter().any(|is| self.queue.contains(&rank(key, *is)));
        let mut flying = self.flying.range(self.done..);
        is_queued || flying.any(|(_, keys)| keys.iter().any(|(of, _)| *of == key))
    }

    /// What the relay is to have.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &Item> {
        self.wanted.values().map(|(_, item)| item)
    }

    /// How often calls were sent again, in this life of the relay.
    pub(crate) fn repeats(&self) -> u64 {
        self.caller.as_ref().map_or(0, Caller::repeats)
    }
}

/// What became of each of so many changes that were called together.
fn results(answer: Answer, count: usize) -> Vec<Result<(), String>> {
    match answer {
        Answer::Done => vec![Ok(()); count],
        Answer::Refused(why) => vec![Err(why); count],
        Answer::Together(whys) if whys.len() == count => {
            whys.into_iter().map(|why| why.map_or(Ok(()), Err)).collect()
        }
        Answer::Together(_) | Answer::Items(..) => {
            vec![Err("it answered something else than was asked".to_owned()); count]
        }
    }
}

/// What is called next: no comtree, nor what comes after that, while there are dismissals that come before.
fn next_of(
    queue: &BTreeSet<(u8, ItemKey)>,
    dismissals: &BTreeSet<ItemKey>,
) -> Option<(u8, ItemKey)> {
    let next = queue.first().copied();
    next.filter(|(rank, _)| *rank < COMTREE || dismissals.is_empty())
}

/// The rank of a comtree that a relay is to have.
const COMTREE: u8 = 3;

/// In which order a relay takes what waits: what needs something else after it, and what is to go
/// before what it needs. Links come first: they need nothing, and their ends find each other while members are told.
fn rank(key: ItemKey, is_wanted: bool) -> (u8, ItemKey) {
    let rank = match (key, is_wanted) {
        (ItemKey::Link(_), true) => 0,
        (ItemKey::Member(..), false) => 1,
        (ItemKey::Comtree(_), false) => 2,
        (ItemKey::Comtree(_), true) => COMTREE,
        (ItemKey::Member(..), true) => 4,
        (ItemKey::Link(_), false) => 5,
    };
    (rank, key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Downlink, MOST_LINKS, Mode, Sharing};
    use crate::name::{MAX_NAME, Name};
    use crate::signal::Branch;
    use canopy_plan::Rate;
    use canopy_wire::Address;

    const KEY: ItemKey = ItemKey::Member(Comtree(16), Address(64));

    /// The relay has nothing, and does all that it is told but for what it refuses. Returns what that is.
    fn exchange(
        agent: &mut Agent,
        now: Time,
        refuses: impl Fn(&Call) -> bool,
    ) -> (Vec<Call>, Vec<Settled>) {
        let (mut calls, mut settled) = (Vec::new(), Vec::new());
        while let Some(bytes) = agent.poll_transmit(now) {
            let Ok(Message::Call { controller, relay, number, call, .. }) = Message::decode(&bytes)
            else {
                panic!("a call that can be read")
            };
            let why = |call: &Call| refuses(call).then(|| "no".to_owned());
            let answer = match &call {
                Call::List(_) => Answer::Items(Vec::new(), true),
                Call::Together(changes) => Answer::Together(changes.iter().map(why).collect()),
                call => why(call).map_or(Answer::Done, Answer::Refused),
            };
            let answer = Message::Answer { controller, relay, number, answer };
            agent.handle_answer(now, answer, &mut settled);
            calls.push(call);
        }
        (calls, settled)
    }

    fn comtree() -> Item {
        Item::Comtree {
            id: Comtree(16),
            world: Name::new("w").unwrap(),
            site: 1,
            mode: Mode::Immediate,
            downlink: Downlink::Member,
            levels: 1,
            sharing: Sharing::default(),
            branches: Vec::new(),
        }
    }

    fn link(id: u32) -> Item {
        let native = ([127, 0, 0, 1], 7000).into();
        Item::Link { id: LinkId(id), key: [1; 32], native, calls: true, capacity: Rate::ZERO }
    }

    /// The ends of this many members.
    fn removals(count: u32) -> Vec<ItemKey> {
        (0..count).map(|of| ItemKey::Member(Comtree(16), Address(64 + of))).collect()
    }

    #[test]
    fn what_waits_is_called_together_and_what_is_refused_of_it_is_called_again_alone() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        let keys = removals(130);
        agent.want(comtree().key(), 200, Some(comtree()));
        (1..).zip(&keys).for_each(|(version, key)| agent.want(*key, version, None));
        agent.hear(now, 1);
        let refused = Call::Remove(keys[70]);
        let (calls, settled) = exchange(&mut agent, now, |call| *call == refused);
        let together =
            |keys: &[ItemKey]| Call::Together(keys.iter().map(|key| Call::Remove(*key)).collect());
        let all = [together(&keys[..64]), together(&keys[64..128]), together(&keys[128..])];
        assert_eq!(calls, [&[Call::List(None)], &all[..]].concat());
        let of = |settled: &Settled| (settled.key, settled.version, settled.result.is_ok());
        let done = (1..).zip(&keys).map(|(version, key)| (*key, version, version != 71));
        assert_eq!(settled.iter().map(of).collect::<Vec<_>>(), done.collect::<Vec<_>>());
        // The comtree has waited for all of them.
        let (calls, settled) = exchange(&mut agent, now + AGAIN, |_| false);
        assert_eq!(calls, [refused, Call::Set(comtree())]);
        assert_eq!(settled.iter().map(|of| of.version).collect::<Vec<_>>(), [71, 200]);
        assert!(agent.is_settled());
    }

    /// A relay does calls in order, so one whose answer is late was done before the next one. Until a member that has come
    /// again is in, nothing more may be on its way.
    #[test]
    fn what_was_done_before_is_not_yet_to_come_however_late_its_answer_is() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        agent.hear(now, 1);
        exchange(&mut agent, now, |_| false);
        let rate = Rate::ZERO;
        let limits = canopy_plan::Limits { send: rate, receive: rate };
        let member = Item::Member { comtree: Comtree(16), address: Address(64), limits };
        let call = |agent: &mut Agent, version, item| {
            agent.want(KEY, version, item);
            let bytes = agent.poll_transmit(now).unwrap();
            let Ok(Message::Call { controller, relay, number, .. }) = Message::decode(&bytes)
            else {
                panic!("a call that can be read")
            };
            Message::Answer { controller, relay, number, answer: Answer::Done }
        };
        let [goes, comes] =
            [(1, None), (2, Some(member))].map(|(v, item)| call(&mut agent, v, item));
        assert!(agent.has_more(KEY));
        for (answer, version) in [(comes, 2), (goes, 1)] {
            let mut settled = Vec::new();
            agent.handle_answer(now, answer, &mut settled);
            assert_eq!(settled.iter().map(|of| of.version).collect::<Vec<_>>(), [version]);
            assert!(!agent.has_more(KEY), "{version}");
        }
        assert!(agent.is_settled());
    }

    /// Its neighbour's other link had to go first, and a branch needs the link.
    #[test]
    fn what_was_refused_is_called_again_as_soon_as_links_have_changed() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        agent.want(link(2).key(), 0, Some(link(2)));
        agent.want(comtree().key(), 1, Some(comtree()));
        agent.hear(now, 1);
        let waits = [Call::Set(link(2)), Call::Set(comtree())];
        let (_, settled) = exchange(&mut agent, now, |call| waits.contains(call));
        assert_eq!(settled.iter().filter(|of| of.result.is_err()).count(), 2);
        let (calls, _) = exchange(&mut agent, now, |_| false);
        assert_eq!(calls, []);
        agent.want(link(1).key(), 0, None);
        let (calls, _) = exchange(&mut agent, now, |_| false);
        assert_eq!(calls, [Call::Remove(link(1).key()), Call::Together(waits.to_vec())]);
    }

    #[test]
    fn together_is_no_more_than_a_message_holds() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        let most = Rate { bits: (1_u64 << 53) as f64, packets: (1_u64 << 53) as f64 };
        let branch = |link| {
            let (link, role) = (LinkId(u32::MAX - link), Role::StandbyParent);
            Branch { link, site: u16::MAX, role, send: most, receive: most }
        };
        for (of, count) in (0..100).zip([0, 1, 3, 40, MOST_LINKS as u32].into_iter().cycle()) {
            let mut item = comtree();
            let Item::Comtree { id, branches, world, .. } = &mut item else { unreachable!() };
            (*id, *branches) = (Comtree(u32::MAX - of), (0..count).map(branch).collect());
            *world = Name::new(&"w".repeat(MAX_NAME)).unwrap();
            agent.want(item.key(), 1, Some(item));
        }
        agent.hear(now, 1);
        let (calls, settled) = exchange(&mut agent, now, |_| false);
        assert!((20..60).contains(&calls.len()) && settled.len() == 100, "{}", calls.len());
    }

    #[test]
    fn a_relay_of_an_earlier_release_is_told_one_change_at_a_time() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        removals(3).into_iter().for_each(|key| agent.want(key, 1, None));
        agent.hear(now, 1);
        let call = agent.poll_transmit(now).unwrap();
        let Ok(Message::Call { number, .. }) = Message::decode(&call) else { panic!("a call") };
        let answer = Answer::Items(Vec::new(), false);
        let answer = Message::Answer { controller: 1, relay: 1, number, answer };
        agent.handle_answer(now, answer, &mut Vec::new());
        let (calls, _) = exchange(&mut agent, now, |_| false);
        assert_eq!(calls, removals(3).into_iter().map(Call::Remove).collect::<Vec<_>>());
    }

    #[test]
    fn a_removal_that_waits_keeps_its_number_when_it_is_told_again() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        agent.want(KEY, 5, None);
        agent.hear(now, 2);
        agent.remove_again(KEY);
        let (_, settled) = exchange(&mut agent, now, |_| false);
        assert_eq!(settled.iter().map(|of| (of.key, of.version)).collect::<Vec<_>>(), [(KEY, 5)]);
    }

    #[test]
    fn comtrees_wait_for_a_removal_that_is_refused_also_if_the_relay_starts_again() {
        let now = Time::from_millis(1000);
        let mut agent = Agent::new(RelayId(1), 1, Retry::default(), now);
        agent.want(comtree().key(), 1, Some(comtree()));
        agent.want(KEY, 5, None);
        let is_removal = |call: &Call| matches!(call, Call::Remove(_));
        let (list, remove) = (Call::List(None), Call::Remove(KEY));
        for (now, life) in [(now, 1), (now + AGAIN, 1), (now + AGAIN, 2)] {
            agent.hear(now, life);
            let (calls, _) = exchange(&mut agent, now, is_removal);
            assert_eq!(calls.last(), Some(&remove), "{calls:?}");
            assert_eq!(agent.poll_timeout(now), Some(now + AGAIN), "it waits for nothing else");
        }
        agent.hear(now + AGAIN, 3);
        let (calls, settled) = exchange(&mut agent, now + AGAIN, |_| false);
        assert_eq!(calls, [list, remove, Call::Set(comtree())]);
        assert_eq!(settled[0].version, 5);
        assert!(agent.is_settled());
    }
}
