//! Flows: what one publisher says of one of its objects in one group. Each is known by a number while it
//! goes on. A roaming object is one flow in whatever group it is, and has its part of the weight of that group.

use crate::index::{ComtreeIndex, FlowId, fold};
use crate::shares::Shares;
use canopy_wire::{Address, Time, is_roaming};
use core::time::Duration;
use hashbrown::HashTable;

/// The most flows that a data thread knows at a time.
pub(crate) const MAX_FLOWS: u32 = 1 << 18;
/// A flow's number has room for its place, or for one that flows without a place of their own share.
const PLACE_BITS: u32 = MAX_FLOWS.trailing_zeros() + 1;
/// How many places the flows of a comtree share that have none of their own.
const SHARED_PLACES: u32 = 64;
/// A flow from which nothing came for so long rests, and its part of its group's weight is the others'.
pub(crate) const FLOW_LIFETIME: Duration = Duration::from_secs(4);
/// One from which nothing came for so long has ended: what comes then is another flow. Nothing waits for so
/// long, or what is older could come later.
pub(crate) const FLOW_ENDS: Duration = Duration::from_secs(90);

/// What makes a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) comtree: ComtreeIndex,
    pub(crate) src: Address,
    pub(crate) object: u16,
    pub(crate) dst: Address,
}

impl FlowKey {
    /// What tells it from other flows: where a roaming object is does not.
    fn identity(&self) -> FlowKey {
        let dst = if is_roaming(self.object) { Address::UNSPECIFIED } else { self.dst };
        FlowKey { dst, ..*self }
    }
}

/// How fast updates come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    seen: Time,
    /// When the last came before those that came then, and which was the first of these: a flush may bring several, of
    /// which one row is told after the other.
    before: Time,
    first: u32,
    /// The mean time between two, in seconds; 0 is unknown.
    interval: f32,
    /// How many have come; wraps.
    pub(crate) said: u32,
}

/// What is thought to come of who has said one thing only, updates a second.
const UNKNOWN_HZ: f32 = 10.0;
/// The mean follows over so many intervals.
const SMOOTH_INTERVALS: u32 = 16;

impl Pace {
    fn note(&mut self, now: Time) {
        let gap = now.since(self.seen);
        if self.said > 0 && gap < FLOW_LIFETIME {
            let of = self.said.min(SMOOTH_INTERVALS) as f32;
            self.interval += (gap.as_secs_f32() - self.interval) / of;
        }
        self.said = self.said.wrapping_add(1);
        if now != self.seen {
            self.before = core::mem::replace(&mut self.seen, now);
            self.first = self.said;
        }
    }

    /// That of a flow of as many updates a second as one is thought to send whose speed is not known.
    #[cfg(test)]
    pub(crate) fn after(said: u32) -> Pace {
        let at = |said: u32| Time::from_millis(1_000 + 100 * u64::from(said));
        let (seen, before) = (at(said), at(said.saturating_sub(1)));
        Pace { seen, before, first: said, interval: 0.0, said }
    }

    /// Whether update `said`, which came when the last did, is the first since time was a multiple of a period and a
    /// part of it.
    pub(crate) fn begins(&self, period: Duration, part: f32) -> bool {
        let period = period.as_nanos().max(1) as u64;
        let number = |at: Time| (at.as_nanos() + (period as f32 * part) as u64) / period;
        self.said == self.first && number(self.seen) != number(self.before)
    }

    /// Updates a second.
    pub(crate) fn hz(&self) -> f32 {
        if self.interval > 0.0 { 1.0 / self.interval } else { UNKNOWN_HZ }
    }
}

struct Flow {
    /// Where a roaming object was last.
    key: FlowKey,
    pace: Pace,
    /// Its updates' weight beside the group's other flows.
    weight: f32,
    /// Its group.
    group: u32,
    turn: u32,
    /// It has not ended.
    live: bool,
    /// It is not counted in its group.
    rests: bool,
}

/// A group that has flows, which share its weight.
struct FlowGroup {
    comtree: ComtreeIndex,
    dst: Address,
    flows: u32,
    sum: f32,
}

/// The flows of a data thread to groups that a limited receiver wants.
pub(crate) struct Flows {
    flows: Vec<Flow>,
    /// How comtrees share the places.
    room: Shares,
    /// By comtree: the places that flows without one share. Those of one such place count as one flow.
    shared: Vec<Pace>,
    free: Vec<u32>,
    by_key: HashTable<u32>,
    groups: Vec<FlowGroup>,
    free_groups: Vec<u32>,
    by_group: HashTable<u32>,
    sweep: usize,
}

impl Flows {
    /// No flows, and room for so many.
    pub(crate) fn new(most: u32) -> Flows {
        Flows {
            flows: Vec::new(),
            room: Shares::new(most.min(MAX_FLOWS)),
            shared: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            groups: Vec::new(),
            free_groups: Vec::new(),
            by_group: HashTable::new(),
            sweep: 0,
        }
    }

    /// This many comtrees share the places from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.room.deal(comtrees);
    }

    /// An update of a flow has come, of that weight. Returns the flow's number, its share of what its group's weight
    /// is, and which of its updates this is.
    pub(crate) fn note(&mut self, now: Time, key: FlowKey, weight: f32) -> (FlowId, f32, u32) {
        let hash = hash_of(&key);
        let identity = key.identity();
        let same = |place: &u32| self.flows[*place as usize].key.identity() == identity;
        let place = match self.by_key.find(hash, same).copied() {
            Some(place) => place,
            None if self.room.has_room(key.comtree) => self.open(hash, key, weight),
            None => return self.note_without_place(now, key, weight),
        };
        let Flow { key: before, rests, .. } = self.flows[place as usize];
        if !rests && before.dst != key.dst {
            self.rest(place);
        }
        if rests || before.dst != key.dst {
            let group = self.join_group(key, weight);
            let flow = &mut self.flows[place as usize];
            (flow.key, flow.group, flow.weight, flow.rests) = (key, group, weight, false);
        }
        let flow = &mut self.flows[place as usize];
        flow.pace.note(now);
        let group = &mut self.groups[flow.group as usize];
        if flow.weight != weight {
            group.sum += weight - core::mem::replace(&mut flow.weight, weight);
        }
        // Sums of differences drift a little.
        let share = weight / group.sum.max(weight);
        (flow.turn << PLACE_BITS | place, share, flow.pace.said)
    }

    /// The same of a flow for which there is no place: it shares one with others of its comtree.
    #[cold]
    fn note_without_place(&mut self, now: Time, key: FlowKey, weight: f32) -> (FlowId, f32, u32) {
        let first = key.comtree * SHARED_PLACES;
        if self.shared.len() < (first + SHARED_PLACES) as usize {
            self.shared.resize((first + SHARED_PLACES) as usize, Pace::default());
        }
        let place = first + (hash_of(&key) % u64::from(SHARED_PLACES)) as u32;
        let pace = &mut self.shared[place as usize];
        pace.note(now);
        let said = pace.said;
        let hash = group_hash(key.comtree, key.dst);
        let same = |group: &u32| {
            let group = &self.groups[*group as usize];
            group.dst == key.dst && group.comtree == key.comtree
        };
        let others = self.by_group.find(hash, same).map(|group| self.groups[*group as usize].sum);
        (MAX_FLOWS + place, weight / (others.unwrap_or_default().max(0.0) + weight), said)
    }

    /// Whether a flow has a place of its own.
    #[inline]
    pub(crate) fn has_place(flow: FlowId) -> bool {
        flow & ((1 << PLACE_BITS) - 1) < MAX_FLOWS
    }

    /// How fast the updates of a flow come.
    pub(crate) fn pace_of(&self, flow: FlowId) -> Pace {
        let place = flow & ((1 << PLACE_BITS) - 1);
        match place.checked_sub(MAX_FLOWS) {
            Some(shared) => self.shared[shared as usize],
            None => self.flows[place as usize].pace,
        }
    }

    fn open(&mut self, hash: u64, key: FlowKey, weight: f32) -> u32 {
        let group = self.join_group(key, weight);
        let pace = Pace::default();
        let mut flow = Flow { key, pace, weight, group, turn: 0, live: true, rests: false };
        let place = match self.free.pop() {
            Some(place) => {
                flow.turn = self.flows[place as usize].turn.wrapping_add(1);
                self.flows[place as usize] = flow;
                place
            }
            None => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
        };
        self.room.take(key.comtree);
        let flows = &self.flows;
        self.by_key.insert_unique(hash, place, |place| hash_of(&flows[*place as usize].key));
        place
    }

    fn join_group(&mut self, FlowKey { comtree, dst, .. }: FlowKey, weight: f32) -> u32 {
        let hash = group_hash(comtree, dst);
        let same = |group: &u32| {
            let group = &self.groups[*group as usize];
            group.dst == dst && group.comtree == comtree
        };
        if let Some(found) = self.by_group.find(hash, same).copied() {
            let group = &mut self.groups[found as usize];
            group.flows += 1;
            group.sum += weight;
            return found;
        }
        let group = FlowGroup { comtree, dst, flows: 1, sum: weight };
        let place = match self.free_groups.pop() {
            Some(place) => {
                self.groups[place as usize] = group;
                place
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        };
        let groups = &self.groups;
        self.by_group.insert_unique(hash, place, |place| {
            let group = &groups[*place as usize];
            group_hash(group.comtree, group.dst)
        });
        place
    }

    /// Looks at a part of the flows, for those that have ended.
    pub(crate) fn sweep(&mut self, now: Time, parts: usize) {
        for _ in 0..self.flows.len().div_ceil(parts) {
            self.sweep = (self.sweep + 1) % self.flows.len();
            let flow = &self.flows[self.sweep];
            let age = now.since(flow.pace.seen);
            if flow.live && !flow.rests && age >= FLOW_LIFETIME {
                self.rest(self.sweep as u32);
            }
            if self.flows[self.sweep].live && age >= FLOW_ENDS {
                self.close(self.sweep as u32);
            }
        }
    }

    fn close(&mut self, place: u32) {
        let flow = &mut self.flows[place as usize];
        flow.live = false;
        let hash = hash_of(&flow.key);
        self.room.give_back(flow.key.comtree);
        if let Ok(found) = self.by_key.find_entry(hash, |found| *found == place) {
            found.remove();
        }
        self.free.push(place);
    }

    fn rest(&mut self, place: u32) {
        let flow = &mut self.flows[place as usize];
        flow.rests = true;
        let (group, weight) = (flow.group, flow.weight);
        let shared = &mut self.groups[group as usize];
        shared.flows -= 1;
        shared.sum -= weight;
        if shared.flows == 0 {
            let hash = group_hash(shared.comtree, shared.dst);
            if let Ok(found) = self.by_group.find_entry(hash, |found| *found == group) {
                found.remove();
            }
            self.free_groups.push(group);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> u32 {
        self.room.total()
    }
}

fn hash_of(key: &FlowKey) -> u64 {
    let key = key.identity();
    let address = u64::from(key.src.0) << 32 | u64::from(key.dst.0);
    fold(fold(address) ^ (u64::from(key.comtree) << 16 | u64::from(key.object)))
}

fn group_hash(comtree: ComtreeIndex, dst: Address) -> u64 {
    fold(u64::from(comtree) << 32 | u64::from(dst.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::ROAMING;

    fn key(src: u16, group: u32) -> FlowKey {
        FlowKey { comtree: 1, src: Address::unicast(1, src), object: 0, dst: Address(group) }
    }

    #[test]
    fn the_first_of_a_flush_begins_a_period_whichever_is_the_last() {
        let (mut pace, period) = (Pace::default(), Duration::from_secs(1));
        let begins = |pace: Pace, said| Pace { said, ..pace }.begins(period, 0.0);
        for update in 0..30 {
            pace.note(Time::from_millis(900 + 50 * (update / 3)));
        }
        // At 1,350 ms.
        assert!((1..=30).all(|said| !begins(pace, said)));
        for _ in 0..3 {
            pace.note(Time::from_millis(2_010));
            let beginning: Vec<u32> = (28..=33).filter(|said| begins(pace, *said)).collect();
            assert_eq!(beginning, [31]);
        }
    }

    #[test]
    fn flows_of_a_group_share_its_weight_by_theirs() {
        let (mut flows, now) = (Flows::new(MAX_FLOWS), Time::from_millis(1));
        assert_eq!(flows.note(now, key(1, 7), 2.0).1, 1.0, "alone");
        assert_eq!(flows.note(now, key(2, 7), 6.0).1, 0.75);
        assert_eq!(flows.note(now, key(1, 7), 2.0).1, 0.25);
        assert_eq!(flows.note(now, key(1, 8), 1.0).1, 1.0, "another group is another flow");
        // It says another weight.
        assert_eq!(flows.note(now, key(1, 7), 6.0).1, 0.5);
    }

    #[test]
    fn a_roaming_object_is_one_flow_and_takes_its_part_along() {
        let (mut flows, now) = (Flows::new(MAX_FLOWS), Time::from_millis(1));
        let of = |group: u32, object: u16| FlowKey { object, ..key(1, group) };
        let (roams, other) = (of(7, ROAMING | 3), of(7, ROAMING | 4));
        let (flow, share, said) = flows.note(now, roams, 2.0);
        assert_eq!((share, said), (1.0, 1));
        assert_ne!(flows.note(now, other, 6.0).0, flow, "another object of the publisher");
        assert_eq!(flows.note(now, key(2, 8), 2.0).1, 1.0);
        // It goes into the other group.
        let roams = FlowKey { dst: Address(8), ..roams };
        assert_eq!(flows.note(now, roams, 2.0), (flow, 0.5, 2));
        assert_eq!(flows.note(now, key(2, 8), 2.0).1, 0.5);
        assert_eq!(flows.note(now, other, 6.0).1, 1.0, "alone");
        assert_ne!(flows.note(now, of(7, 3), 1.0).0, flows.note(now, of(8, 3), 1.0).0);
        // It rests, and comes back elsewhere.
        let later = now + FLOW_LIFETIME;
        flows.sweep(later, 1);
        let roams = FlowKey { dst: Address(9), ..roams };
        assert_eq!(flows.note(later, roams, 2.0), (flow, 1.0, 3));
        flows.note(later, other, 6.0);
        flows.note(later, key(2, 8), 2.0);
        assert_eq!(flows.by_group.len(), 3);
        flows.sweep(later + FLOW_ENDS, 1);
        assert!(flows.by_group.is_empty() && flows.len() == 0);
    }

    #[test]
    fn whoever_says_no_more_gives_its_share_back_and_its_number_to_nobody() {
        let mut flows = Flows::new(MAX_FLOWS);
        let old = flows.note(Time::ZERO, key(1, 7), 1.0).0;
        flows.note(Time::from_millis(3_900), key(2, 7), 1.0);
        flows.sweep(Time::from_millis(4_000), 1);
        assert_eq!(flows.note(Time::from_millis(4_000), key(2, 7), 1.0).1, 1.0);
        assert_eq!(flows.len(), 2);
        flows.note(Time::from_millis(89_000), key(2, 7), 1.0);
        flows.sweep(Time::from_millis(90_000), 1);
        assert_eq!(flows.len(), 1);
        let (other, share, _) = flows.note(Time::from_millis(90_000), key(3, 9), 1.0);
        assert_eq!(
            (other & (MAX_FLOWS - 1), share),
            (old & (MAX_FLOWS - 1), 1.0),
            "the same place"
        );
        assert_ne!(other, old);
        assert_eq!(flows.note(Time::from_millis(90_001), key(2, 7), 1.0).1, 1.0);
    }

    #[test]
    fn a_group_in_which_nobody_says_anything_gives_its_place_back() {
        let (mut flows, mut now) = (Flows::new(MAX_FLOWS), Time::from_millis(1));
        for group in 0..100 {
            for src in 0..3 {
                flows.note(now, key(src, group), 1.0);
            }
            now = now + FLOW_ENDS;
            (0..3).for_each(|_| flows.sweep(now, 3));
        }
        assert_eq!((flows.len(), flows.groups.len()), (0, 1));
        assert!(flows.by_group.is_empty());
    }

    #[test]
    fn whoever_has_no_place_leaves_other_comtrees_theirs_and_counts_as_one_with_others() {
        let mut flows = Flows::new(8);
        flows.deal(2);
        let of = |comtree: ComtreeIndex, src: u16| FlowKey { comtree, ..key(src, 7) };
        let now = |millis: u64| Time::from_millis(1 + millis);
        let mut has_place =
            |comtree, src| Flows::has_place(flows.note(now(0), of(comtree, src), 1.0).0);
        let places = (0..100).filter(|src| has_place(0, *src)).count();
        assert_eq!(places, 6, "its own part, and all that is common");
        assert_eq!((0..10).filter(|src| has_place(1, *src)).count(), 2);
        // A seventh and six others share the group's weight, and it is known how often it says something.
        let (seventh, mut share) = (of(0, 50), 0.0);
        let mut said = Vec::new();
        for update in 0..50 {
            let number;
            (_, share, number) = flows.note(now(100 * update), seventh, 1.0);
            said.push(number);
        }
        assert!((share - 1.0 / 7.0).abs() < 1e-6, "{share}");
        let (flow, ..) = flows.note(now(5_000), seventh, 1.0);
        let hz = flows.pace_of(flow).hz();
        assert!((hz - 10.0).abs() < 0.5, "{hz}");
        assert!(said.windows(2).all(|two| two[1] == two[0] + 1));
        // Who ends gives its place to the next one.
        flows.sweep(now(100_000), 1);
        assert!(Flows::has_place(flows.note(now(100_000), seventh, 1.0).0));
    }
}
