//! What the kernel did not take yet: a queue that is bounded, in bytes and in sends.

use crate::{SendBatch, Transmit, Unsent};
use canopy_wire::Path;
use core::net::IpAddr;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// The most bytes that wait.
pub const MAX_WAITING_BYTES: usize = 4 << 20;
/// The most sends that wait.
pub const MAX_WAITING_SENDS: usize = 8192;

/// A send that waits. Its bytes lie behind those of the sends before it, or are the same.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    to: Path,
    /// Where its bytes begin, counted since the backlog was made. Others may share them, so it stays
    /// when a part of them was sent.
    start: u64,
    /// Bytes that are done with.
    skip: u32,
    /// All bytes, with those that are done with.
    len: u32,
    segment: u16,
}

/// Sends that wait, first come first served. Bytes that several of them share are there once.
#[derive(Debug)]
pub struct Backlog {
    sends: VecDeque<Waiting>,
    bytes: VecDeque<u8>,
    /// Where `bytes` begins, counted since the backlog was made.
    base: u64,
    /// How many sends wait for each address.
    waiting_for: BTreeMap<IpAddr, u32>,
}

impl Backlog {
    /// An empty backlog. The memory of sends and bytes is reserved, and touched as it fills.
    pub fn new() -> Backlog {
        Backlog {
            sends: VecDeque::with_capacity(MAX_WAITING_SENDS),
            bytes: VecDeque::with_capacity(MAX_WAITING_BYTES),
            base: 0,
            waiting_for: BTreeMap::new(),
        }
    }

    /// How many sends wait.
    pub fn len(&self) -> usize {
        self.sends.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Whether anything waits for an address.
    pub fn waits_for(&self, address: IpAddr) -> bool {
        self.waiting_for.contains_key(&address)
    }

    /// How many bytes wait; those that are shared count once.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Copies what is left of a batch behind what waits already. Returns how many datagrams there was
    /// no room for.
    pub fn push(&mut self, batch: &SendBatch, left: impl IntoIterator<Item = Unsent>) -> u64 {
        let mut dropped = 0;
        let mut before: Option<(&Transmit, u64)> = None;
        for unsent in left {
            let transmit = &batch.transmits()[unsent.transmit as usize];
            let skip = unsent.datagrams * u32::from(transmit.segment);
            let (to, segment) = (transmit.to, transmit.segment);
            let len = transmit.len - skip.min(transmit.len);
            let shared = before
                .filter(|(other, _)| skip == 0 && batch.carries_the_same(other, transmit))
                .map(|(_, start)| start);
            let more = if shared.is_some() { 0 } else { len as usize };
            if self.sends.len() >= MAX_WAITING_SENDS || self.bytes.len() + more > MAX_WAITING_BYTES
            {
                dropped += u64::from(transmit.datagrams() - unsent.datagrams);
                continue;
            }
            let start = shared.unwrap_or(self.base + self.bytes.len() as u64);
            if shared.is_none() {
                let mut skip = skip as usize;
                for part in batch.parts(transmit) {
                    let from = skip.min(part.len());
                    self.bytes.extend(&part[from..]);
                    skip -= from;
                }
                before = (unsent.datagrams == 0).then_some((transmit, start));
            }
            self.sends.push_back(Waiting { to, start, skip: 0, len, segment });
            *self.waiting_for.entry(to.remote.ip()).or_default() += 1;
        }
        dropped
    }

    /// Adds the first sends that wait to an empty batch, at most `most`. They wait on until
    /// [`Backlog::settle`] says what became of them.
    pub fn offer(&self, batch: &mut SendBatch, most: usize) {
        let mut before: Option<Waiting> = None;
        for waiting in self.sends.iter().take(most) {
            let same = |other: Waiting| {
                (other.start, other.skip, other.segment)
                    == (waiting.start, waiting.skip, waiting.segment)
            };
            if before.is_some_and(same) {
                batch.push_same(waiting.to);
                continue;
            }
            let start = (waiting.start - self.base) as usize;
            let (first, last) = (start + waiting.skip as usize, start + waiting.len as usize);
            let (front, back) = self.bytes.as_slices();
            let part = |slice: &'_ [u8], offset: usize| {
                let cut = |at: usize| at.saturating_sub(offset).min(slice.len());
                cut(first)..cut(last)
            };
            let parts = [&front[part(front, 0)], &back[part(back, front.len())]];
            batch.push_burst(waiting.to, &parts, waiting.segment);
            before = Some(*waiting);
        }
    }

    /// The first `offered` sends were offered. Those in `rest` wait on, with what is left of them; the others
    /// are done with.
    pub fn settle(&mut self, offered: usize, rest: &[Unsent]) {
        let (mut place, mut left) = (offered, rest.iter().peekable());
        for done in 0..offered {
            if left.next_if(|unsent| unsent.transmit as usize == done).is_none() {
                self.forget(self.sends[done].to.remote.ip());
            }
        }
        // From the last on, so that none is written over before it was read.
        for unsent in rest.iter().rev() {
            place -= 1;
            let waiting = self.sends[unsent.transmit as usize];
            let done = unsent.datagrams * u32::from(waiting.segment);
            self.sends[place] = Waiting { skip: waiting.skip + done, ..waiting };
        }
        self.sends.drain(..place);
        let start = self.sends.front().map_or(self.base + self.bytes.len() as u64, |w| w.start);
        self.bytes.drain(..(start - self.base) as usize);
        self.base = start;
    }

    /// Whom the first send is for.
    pub fn first_address(&self) -> Option<IpAddr> {
        self.sends.front().map(|first| first.to.remote.ip())
    }

    /// One send less waits for an address.
    fn forget(&mut self, address: IpAddr) {
        if let Entry::Occupied(mut count) = self.waiting_for.entry(address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Drops the first send. Returns how many datagrams it was.
    pub fn drop_first(&mut self) -> u64 {
        let first = self.sends.front();
        let first = first.map(|one| (one.len - one.skip).div_ceil(one.segment.max(1).into()));
        if first.is_some() {
            self.settle(1, &[]);
        }
        first.unwrap_or(0).into()
    }
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;
    use std::vec::Vec;

    fn to(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    fn all(batch: &SendBatch) -> Vec<Unsent> {
        let places = 0..batch.transmits().len() as u32;
        places.map(|transmit| Unsent { transmit, datagrams: 0 }).collect()
    }

    fn waiting(backlog: &Backlog) -> Vec<(u16, Vec<u8>, u16)> {
        let mut batch = SendBatch::new();
        backlog.offer(&mut batch, usize::MAX);
        let whole = |t: &Transmit| batch.parts(t).collect::<Vec<_>>().concat();
        batch.transmits().iter().map(|t| (t.to.remote.port(), whole(t), t.segment)).collect()
    }

    #[test]
    fn what_many_are_sent_waits_once() {
        let mut batch = SendBatch::new();
        batch.push_burst(to(1), &[b"abcd", b"efg"], 3);
        (2..=90).for_each(|number| batch.push_same(to(number)));
        batch.push_datagram(to(91), b"own");
        let mut backlog = Backlog::new();
        assert_eq!(backlog.push(&batch, all(&batch)), 0);
        assert_eq!((backlog.len(), backlog.bytes()), (91, 10));
        let again = waiting(&backlog);
        assert_eq!(again[89], (90, b"abcdefg".to_vec(), 3));
        assert_eq!(again[90], (91, b"own".to_vec(), 3));
        let mut offered = SendBatch::new();
        backlog.offer(&mut offered, 90);
        let [first, second] = [0, 89].map(|place| offered.transmits()[place]);
        assert!(offered.carries_the_same(&first, &second));
    }

    #[test]
    fn what_is_left_of_a_send_waits_on_in_its_place() {
        let mut batch = SendBatch::new();
        batch.push_burst(to(1), &[b"aabbcc"], 2);
        batch.push_same(to(2));
        batch.push_same(to(3));
        let mut backlog = Backlog::new();
        let left =
            [(0, 1), (1, 0), (2, 0)].map(|(transmit, datagrams)| Unsent { transmit, datagrams });
        assert_eq!(backlog.push(&batch, left), 0);
        let bytes = |text: &str| text.as_bytes().to_vec();
        let three = [(1, bytes("bbcc"), 2), (2, bytes("aabbcc"), 2), (3, bytes("aabbcc"), 2)];
        assert_eq!(waiting(&backlog), three);
        // The second is taken, and one datagram of the first.
        backlog.settle(
            3,
            &[Unsent { transmit: 0, datagrams: 1 }, Unsent { transmit: 2, datagrams: 0 }],
        );
        assert_eq!(waiting(&backlog), [(1, bytes("cc"), 2), (3, bytes("aabbcc"), 2)]);
        // Although the first is sent in part, the next ones still need all of its bytes.
        backlog.push(&batch, all(&batch));
        backlog.settle(2, &[Unsent { transmit: 1, datagrams: 2 }]);
        assert_eq!(waiting(&backlog)[..2], [(3, bytes("cc"), 2), (1, bytes("aabbcc"), 2)]);
        backlog.settle(
            4,
            &[Unsent { transmit: 1, datagrams: 1 }, Unsent { transmit: 3, datagrams: 0 }],
        );
        let left = [(1, bytes("bbcc"), 2), (3, bytes("aabbcc"), 2)];
        assert_eq!(waiting(&backlog), left);
        assert_eq!(backlog.drop_first(), 2);
        assert_eq!(backlog.drop_first(), 3);
        assert_eq!((backlog.len(), backlog.bytes(), backlog.drop_first()), (0, 0, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut batch = SendBatch::new();
        let bytes = [7; 60_000];
        (0..100).for_each(|number| batch.push_burst(to(number), &[&bytes], 1000));
        let mut backlog = Backlog::new();
        let fit = (MAX_WAITING_BYTES / bytes.len()) as u64;
        assert_eq!(backlog.push(&batch, all(&batch)), (100 - fit) * 60);
        batch.clear();
        batch.push_datagram(to(1), b"x");
        (0..MAX_WAITING_SENDS).for_each(|_| batch.push_same(to(1)));
        assert_eq!(backlog.push(&batch, all(&batch)), fit + 1);
        assert_eq!(backlog.len(), MAX_WAITING_SENDS);
        backlog.settle(MAX_WAITING_SENDS, &[]);
        assert_eq!((backlog.len(), backlog.bytes()), (0, 0));
    }

    #[test]
    fn bytes_wrap_around_in_their_ring() {
        let mut backlog = Backlog::new();
        let mut batch = SendBatch::new();
        for round in 0..300_u16 {
            let bytes: Vec<u8> = (0..61_337).map(|at| (at as u8) ^ round as u8).collect();
            batch.clear();
            batch.push_burst(to(round), &[&bytes], 1000);
            assert_eq!(backlog.push(&batch, all(&batch)), 0);
            if backlog.len() > 60 {
                let mut offered = SendBatch::new();
                backlog.offer(&mut offered, 1);
                let first = round - 60;
                let whole = offered.parts(&offered.transmits()[0]).collect::<Vec<_>>().concat();
                assert!(whole.iter().enumerate().all(|(at, byte)| *byte == at as u8 ^ first as u8));
                backlog.settle(1, &[]);
            }
        }
    }
}
