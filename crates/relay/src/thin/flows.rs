//! Flows: what one publisher says of one of its objects in one group. Each is known by a number while it
//! goes on.

use crate::index::{ComtreeIndex, FlowId, fold};
use canopy_wire::{Address, Time};
use core::time::Duration;
use hashbrown::HashTable;

/// The most flows that a data thread knows at a time.
pub(crate) const MAX_FLOWS: u32 = 1 << 18;
const PLACE_BITS: u32 = MAX_FLOWS.trailing_zeros();
/// A flow from which nothing came for so long rests, and its part of its group's weight is the others'.
pub(crate) const FLOW_LIFETIME: Duration = Duration::from_secs(4);
/// One from which nothing came for so long has ended: what comes then is another flow. Nothing waits for so
/// long, or what is older could come later.
const FLOW_ENDS: Duration = Duration::from_secs(60);

/// What makes a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) comtree: ComtreeIndex,
    pub(crate) src: Address,
    pub(crate) object: u16,
    pub(crate) dst: Address,
}

struct Flow {
    key: FlowKey,
    seen: Time,
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
#[derive(Default)]
pub(crate) struct Flows {
    flows: Vec<Flow>,
    free: Vec<u32>,
    by_key: HashTable<u32>,
    groups: Vec<FlowGroup>,
    free_groups: Vec<u32>,
    by_group: HashTable<u32>,
    sweep: usize,
    live: u32,
}

impl Flows {
    /// An update of a flow has come, of that weight. Returns the flow's number, and its share of what its
    /// group's weight is; `None` if there are too many flows.
    pub(crate) fn note(&mut self, now: Time, key: FlowKey, weight: f32) -> Option<(FlowId, f32)> {
        let hash = hash_of(&key);
        let same = |place: &u32| self.flows[*place as usize].key == key;
        let place = match self.by_key.find(hash, same).copied() {
            Some(place) => place,
            None => self.open(hash, key, weight)?,
        };
        if self.flows[place as usize].rests {
            let group = self.join_group(key, weight);
            let flow = &mut self.flows[place as usize];
            (flow.group, flow.weight, flow.rests) = (group, weight, false);
        }
        let flow = &mut self.flows[place as usize];
        flow.seen = now;
        let group = &mut self.groups[flow.group as usize];
        if flow.weight != weight {
            group.sum += weight - core::mem::replace(&mut flow.weight, weight);
        }
        // Sums of differences drift a little.
        let share = weight / group.sum.max(weight);
        Some((flow.turn << PLACE_BITS | place, share))
    }

    fn open(&mut self, hash: u64, key: FlowKey, weight: f32) -> Option<u32> {
        if self.live == MAX_FLOWS {
            return None;
        }
        let group = self.join_group(key, weight);
        let mut flow =
            Flow { key, seen: Time::ZERO, weight, group, turn: 0, live: true, rests: false };
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
        self.live += 1;
        let flows = &self.flows;
        self.by_key.insert_unique(hash, place, |place| hash_of(&flows[*place as usize].key));
        Some(place)
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
            let age = now.since(flow.seen);
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
        if let Ok(found) = self.by_key.find_entry(hash, |found| *found == place) {
            found.remove();
        }
        self.free.push(place);
        self.live -= 1;
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
        self.live
    }
}

fn hash_of(key: &FlowKey) -> u64 {
    let address = u64::from(key.src.0) << 32 | u64::from(key.dst.0);
    fold(fold(address) ^ (u64::from(key.comtree) << 16 | u64::from(key.object)))
}

fn group_hash(comtree: ComtreeIndex, dst: Address) -> u64 {
    fold(u64::from(comtree) << 32 | u64::from(dst.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(src: u16, group: u32) -> FlowKey {
        FlowKey { comtree: 1, src: Address::unicast(1, src), object: 0, dst: Address(group) }
    }

    #[test]
    fn flows_of_a_group_share_its_weight_by_theirs() {
        let (mut flows, now) = (Flows::default(), Time::from_millis(1));
        assert_eq!(flows.note(now, key(1, 7), 2.0).unwrap().1, 1.0, "alone");
        assert_eq!(flows.note(now, key(2, 7), 6.0).unwrap().1, 0.75);
        assert_eq!(flows.note(now, key(1, 7), 2.0).unwrap().1, 0.25);
        assert_eq!(
            flows.note(now, key(1, 8), 1.0).unwrap().1,
            1.0,
            "another group is another flow"
        );
        // It says another weight.
        assert_eq!(flows.note(now, key(1, 7), 6.0).unwrap().1, 0.5);
    }

    #[test]
    fn whoever_says_no_more_gives_its_share_back_and_its_number_to_nobody() {
        let mut flows = Flows::default();
        let old = flows.note(Time::ZERO, key(1, 7), 1.0).unwrap().0;
        flows.note(Time::from_millis(3_900), key(2, 7), 1.0).unwrap();
        flows.sweep(Time::from_millis(4_000), 1);
        assert_eq!(flows.note(Time::from_millis(4_000), key(2, 7), 1.0).unwrap().1, 1.0);
        assert_eq!(flows.len(), 2);
        flows.note(Time::from_millis(59_000), key(2, 7), 1.0).unwrap();
        flows.sweep(Time::from_millis(60_000), 1);
        assert_eq!(flows.len(), 1);
        let (other, share) = flows.note(Time::from_millis(60_000), key(3, 9), 1.0).unwrap();
        assert_eq!(
            (other & (MAX_FLOWS - 1), share),
            (old & (MAX_FLOWS - 1), 1.0),
            "the same place"
        );
        assert_ne!(other, old);
        assert_eq!(flows.note(Time::from_millis(60_001), key(2, 7), 1.0).unwrap().1, 1.0);
    }

    #[test]
    fn a_group_in_which_nobody_says_anything_gives_its_place_back() {
        let (mut flows, mut now) = (Flows::default(), Time::from_millis(1));
        for group in 0..100 {
            for src in 0..3 {
                flows.note(now, key(src, group), 1.0).unwrap();
            }
            now = now + FLOW_ENDS;
            (0..3).for_each(|_| flows.sweep(now, 3));
        }
        assert_eq!((flows.len(), flows.groups.len()), (0, 1));
        assert!(flows.by_group.is_empty());
    }
}
