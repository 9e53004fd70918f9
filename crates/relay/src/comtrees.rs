//! The comtrees that a relay carries: they come, change and go while it runs.

use crate::addresses::{AddressPool, Share};
use crate::comtree_config::{ComtreeConfig, MAX_COMTREES};
use crate::flush_queues::QueueIndex;
use crate::group_keys::GroupKeys;
use crate::index::{ComtreeIndex, PortIndex};
use crate::meters::{Budget, UpMeter};
use crate::thin::Fairness;
use crate::timing::Mode;
use crate::tree::Tree;
use canopy_session::{GroupKeyMaker, GroupSealer, KeyedState};
use canopy_wire::{Comtree, Downlink, GroupKeyNumber, Tag, Time};
use core::hash::BuildHasher;
use hashbrown::HashTable;

/// What happened on one comtree since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComtreeCounters {
    /// Updates accepted from participants.
    pub updates_in: u64,
    /// Bytes of their payloads.
    pub payload_bytes_in: u64,
    /// Copies of updates handed to receivers.
    pub deliveries_out: u64,
    /// Bytes of UDP payload sent.
    pub bytes_out: u64,
    /// Datagrams, updates and subscriptions dropped, for whatever reason.
    pub drops: u64,
}

impl ComtreeCounters {
    /// Adds another thread's totals.
    pub fn add(&mut self, other: &ComtreeCounters) {
        self.updates_in += other.updates_in;
        self.payload_bytes_in += other.payload_bytes_in;
        self.deliveries_out += other.deliveries_out;
        self.bytes_out += other.bytes_out;
        self.drops += other.drops;
    }
}

/// How one comtree stands on a data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComtreeStatus {
    /// Which.
    pub comtree: Comtree,
    /// Participants that are members.
    pub participants: u32,
    /// What happened on it.
    pub counters: ComtreeCounters,
}

/// From one addition of a comtree to the next: the fraction of √2, in parts of 2³².
const ANOTHER_START: u32 = 0x6a09_e667;

pub(crate) struct ComtreeEntry {
    pub(crate) id: Comtree,
    pub(crate) addresses: AddressPool,
    pub(crate) downlink: Downlink,
    pub(crate) fairness: Fairness,
    /// When its updates leave, and where they wait until then.
    pub(crate) mode: Mode,
    pub(crate) queue: QueueIndex,
    pub(crate) world: Box<str>,
    /// With downlink group.
    pub(crate) group_keys: Option<Box<GroupKeys>>,
    pub(crate) participants: u32,
    pub(crate) counters: ComtreeCounters,
    /// What its participants may send, and be sent, together, on all data threads; and this one's meter of what they send.
    pub(crate) budget: Budget,
    pub(crate) meter: UpMeter,
    pub(crate) beyond_half: BeyondHalf,
    pub(crate) tree: Tree,
    live: bool,
}

/// What of a comtree waits for a flush since more than half of the room is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BeyondHalf {
    /// How many flushes there were before.
    pub(crate) flush: u64,
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

/// The comtrees of a data thread.
pub(crate) struct Comtrees {
    entries: Vec<ComtreeEntry>,
    by_id: HashTable<ComtreeIndex>,
    hash: KeyedState,
    share: Share,
    /// How many comtrees were removed.
    removed: u32,
    pub(crate) key_maker: GroupKeyMaker,
    /// There may be something to do about group keys.
    wants_keys: bool,
}

impl Comtrees {
    pub(crate) fn new(share: Share, key: &Tag) -> Comtrees {
        Comtrees {
            entries: Vec::new(),
            by_id: HashTable::new(),
            hash: KeyedState::new(key),
            share,
            removed: 0,
            key_maker: GroupKeyMaker::new(key, share.thread, share.threads),
            wants_keys: false,
        }
    }

    pub(crate) fn find(&self, id: Comtree) -> Option<ComtreeIndex> {
        let same = |index: &ComtreeIndex| self.entries[*index as usize].id == id;
        self.by_id.find(self.hash.hash_one(id), same).copied()
    }

    pub(crate) fn get(&self, index: ComtreeIndex) -> &ComtreeEntry {
        &self.entries[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: ComtreeIndex) -> &mut ComtreeEntry {
        &mut self.entries[index as usize]
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &ComtreeEntry> {
        self.entries.iter().filter(|entry| entry.live)
    }

    /// The branches of a comtree whose neighbours get every update to a group; none if the index is
    /// [`NONE`].
    #[inline]
    pub(crate) fn everything(&self, index: ComtreeIndex) -> &[PortIndex] {
        self.entries.get(index as usize).map_or(&[], |entry| entry.tree.everything())
    }

    /// The branches of a comtree whose subscriptions do not count.
    pub(crate) fn above(&self, index: ComtreeIndex) -> &[PortIndex] {
        self.entries.get(index as usize).map_or(&[], |entry| entry.tree.above())
    }

    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut ComtreeEntry> {
        self.entries.iter_mut().filter(|entry| entry.live)
    }

    /// Adds a comtree that is not there yet; false if there is no room.
    pub(crate) fn add(
        &mut self,
        config: &ComtreeConfig,
        (mode, queue): (Mode, QueueIndex),
    ) -> bool {
        let is_group = config.downlink == Downlink::Group;
        let group_keys =
            is_group.then(|| Box::new(GroupKeys::new(config.group_suite, &mut self.key_maker)));
        // A comtree that comes back has forgotten whose its addresses were.
        let start = self.share.start.wrapping_add(self.removed.wrapping_mul(ANOTHER_START));
        let entry = ComtreeEntry {
            id: config.comtree,
            addresses: AddressPool::new(config, &Share { start, ..self.share }),
            downlink: config.downlink,
            fairness: config.fairness,
            mode,
            queue,
            world: config.world.as_str().into(),
            group_keys,
            participants: 0,
            counters: ComtreeCounters::default(),
            budget: Budget::default(),
            meter: UpMeter::default(),
            beyond_half: BeyondHalf::default(),
            tree: Tree::new(config.site & 0x7fff),
            live: true,
        };
        let index = match self.entries.iter().position(|entry| !entry.live) {
            Some(index) => {
                self.entries[index] = entry;
                index as u32
            }
            None if self.entries.len() < MAX_COMTREES => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            None => return false,
        };
        let (entries, hash) = (&self.entries, &self.hash);
        let hash_of = |index: &ComtreeIndex| hash.hash_one(entries[*index as usize].id);
        self.by_id.insert_unique(hash_of(&index), index, hash_of);
        true
    }

    /// Removes a comtree; nobody may be a member any more.
    pub(crate) fn remove(&mut self, index: ComtreeIndex) {
        let hash = self.hash.hash_one(self.entries[index as usize].id);
        if let Ok(entry) = self.by_id.find_entry(hash, |found| *found == index) {
            entry.remove();
        }
        self.entries[index as usize].live = false;
        self.entries[index as usize].group_keys = None;
        self.removed = self.removed.wrapping_add(1);
    }

    /// A participant is a member no more, that had said that it has this group key.
    pub(crate) fn member_left(&mut self, index: ComtreeIndex, held: GroupKeyNumber) {
        let entry = &mut self.entries[index as usize];
        entry.participants -= 1;
        if let Some(keys) = &mut entry.group_keys {
            keys.member_left(held);
            self.wants_keys = true;
        }
    }

    /// The group key of a comtree, to seal so many packets with, if its members share one.
    #[inline]
    pub(crate) fn sealer(
        &mut self,
        index: ComtreeIndex,
        packets: usize,
    ) -> Option<&mut GroupSealer> {
        let keys = self.entries[index as usize].group_keys.as_mut()?;
        let sealer = keys.sealer(packets as u64, &mut self.key_maker);
        self.wants_keys |= sealer.is_half_used();
        Some(sealer)
    }

    /// A member says which group key it has; `before` is what it had said before. Returns whether that
    /// is the newest; `None` if the comtree has no such keys.
    pub(crate) fn note_held(
        &mut self,
        index: ComtreeIndex,
        (number, before): (GroupKeyNumber, GroupKeyNumber),
    ) -> Option<bool> {
        let keys = self.entries[index as usize].group_keys.as_mut()?;
        self.wants_keys |= keys.next().is_some();
        Some(keys.note_held(number, before))
    }

    /// Whether there may be something to do about group keys, since this was last asked.
    pub(crate) fn take_wants_keys(&mut self) -> bool {
        core::mem::take(&mut self.wants_keys)
    }

    /// Whether there may be something to do about group keys.
    pub(crate) fn wants_keys(&self) -> bool {
        self.wants_keys
    }

    /// Makes the group keys that are wanted, and uses those whose time has come.
    pub(crate) fn advance_keys(&mut self, now: Time) -> KeysAdvanced {
        let mut advanced = KeysAdvanced::default();
        for entry in self.entries.iter_mut().filter(|entry| entry.live) {
            let Some(keys) = &mut entry.group_keys else { continue };
            let is_made = keys.advance(now, entry.participants, &mut self.key_maker);
            advanced.made += u64::from(is_made);
            advanced.is_giving |= keys.next().is_some();
            advanced.due = [advanced.due, keys.due()].into_iter().flatten().min();
        }
        advanced
    }
}

/// How the group keys of all comtrees stand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeysAdvanced {
    /// Keys that were made.
    pub(crate) made: u64,
    /// Some key is being given out.
    pub(crate) is_giving: bool,
    /// When there is something to do by itself.
    pub(crate) due: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// L5: a relay with many comtrees looked at each of them for every datagram of a stranger.
    #[test]
    fn one_of_many_comtrees_is_found_by_looking_at_hardly_any() {
        let share = Share { thread: 0, threads: 1, start: 0, rest: Duration::ZERO };
        let mut comtrees = Comtrees::new(share, &[7; 16]);
        let numbers = |count: usize| (1..=count as u32).map(|number| Comtree(number * 16));
        for id in numbers(MAX_COMTREES) {
            assert!(comtrees.add(&ComtreeConfig::new(id, 1), (Mode::Immediate, 0)));
        }
        for (index, id) in numbers(MAX_COMTREES).enumerate() {
            assert_eq!(comtrees.find(id), Some(index as u32));
        }
        let strange = |number: u32| Comtree(number * 16 + 5);
        let looked_at = |id: Comtree| comtrees.by_id.iter_hash(comtrees.hash.hash_one(id)).count();
        let all: usize = (0..10_000).map(|number| looked_at(strange(number))).sum();
        assert!((0..10_000).all(|number| comtrees.find(strange(number)).is_none()));
        assert!(all < 10_000, "{all}: less than one for each that is not there");
        let most = numbers(MAX_COMTREES).map(looked_at).max();
        assert!(most < Some(8), "{most:?}");
    }
}
