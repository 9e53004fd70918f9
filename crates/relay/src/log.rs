//! A ring that one data thread writes and all others read, each at its own pace.
//!
//! It holds 64-bit words in plain atomics, so that a reader may find an entry overwritten under its
//! eyes and say so, without a lock and without unsafe code. What is not read before the writer comes
//! round again is lost for the reader that was too slow, and for nobody else; the reader counts it
//! exactly. Or the writer looks for [`LogWriter::room`] first and loses nothing.
//!
//! How a reader knows that an entry is whole: before the writer overwrites any word it raises
//! `reserved` to where the new entry will end, and afterwards it raises `written` to there. A reader
//! only begins entries that end before `written`. It copies the words and looks at `reserved` last:
//! if that is no more than one round ahead of the entry, none of the words was overwritten while they
//! were copied. Otherwise the copy is thrown away and the reader goes on from where the writer is.
//! Positions count words since the beginning and never wrap; only their place in the ring does.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;
use zerocopy::FromZeros;

/// The most readers of a log.
pub(crate) const MAX_READERS: usize = 64;
/// The most words of an entry.
pub(crate) const MAX_WORDS: usize = 256;
/// How often a reader tries to catch up with a writer that is just writing, before it leaves it for
/// later.
const CATCH_UP_TRIES: u32 = 1000;

/// Words of an entry's head: its length and what it is, and whom it is for.
const HEAD_WORDS: u64 = 2;

struct Ring {
    words: Box<[AtomicU64]>,
    /// Up to here the writer may have written over what was there a round before.
    reserved: AtomicU64,
    /// Up to here entries are whole.
    written: AtomicU64,
    /// By reader: how many entries there were for it.
    sent: [AtomicU64; MAX_READERS],
    /// By reader: up to where it has read.
    read: [AtomicU64; MAX_READERS],
}

/// The one end that writes.
pub(crate) struct LogWriter {
    ring: Arc<Ring>,
    at: u64,
    readers: u64,
}

/// One of the ends that read.
pub(crate) struct LogReader {
    ring: Arc<Ring>,
    reader: usize,
    at: u64,
    received: u64,
}

/// Room for the entry that is read last.
pub(crate) type Entry = [u64; MAX_WORDS];

/// What a reader finds next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// The words of an entry for this reader.
    Entry(&'a [u64]),
    /// The writer has overtaken this reader, which lost so many entries.
    Lost(u64),
}

/// The bytes of memory of a log of `words` words.
pub(crate) const fn memory(words: usize) -> usize {
    size_of::<Ring>() + words * size_of::<AtomicU64>()
}

/// A log of `words` words, with a reader for each bit of `readers`.
pub(crate) fn log(words: usize, readers: u64) -> (LogWriter, Vec<LogReader>) {
    let ring = Arc::new(Ring {
        words: zeroed(words),
        reserved: AtomicU64::new(0),
        written: AtomicU64::new(0),
        sent: [const { AtomicU64::new(0) }; MAX_READERS],
        read: [const { AtomicU64::new(0) }; MAX_READERS],
    });
    let reader = |reader| LogReader { ring: Arc::clone(&ring), reader, at: 0, received: 0 };
    let ends = (0..MAX_READERS).filter(|reader| readers & 1 << reader != 0).map(reader).collect();
    (LogWriter { ring, at: 0, readers }, ends)
}

/// Words that the kernel zeroes, so that a page is touched only when the log reaches it.
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    <[AtomicU64]>::new_box_zeroed_with_elems(words)
        .unwrap_or_else(|_| (0..words).map(|_| AtomicU64::new(0)).collect())
}

impl Ring {
    /// The words from a position on, a whole round of them.
    fn words(&self, at: u64) -> impl Iterator<Item = &AtomicU64> {
        let (before, after) = self.words.split_at((at % self.len()) as usize);
        after.iter().chain(before)
    }

    fn len(&self) -> u64 {
        self.words.len() as u64
    }
}

impl LogWriter {
    /// Words that can be written before the slowest reader loses any.
    pub(crate) fn room(&self) -> u64 {
        let behind = (0..MAX_READERS)
            .filter(|reader| self.readers & 1 << reader != 0)
            .map(|reader| self.at - self.ring.read[reader].load(Ordering::Acquire))
            .max();
        self.ring.len().saturating_sub(behind.unwrap_or(0))
    }

    /// Words that an entry of `words` words takes.
    pub(crate) const fn cost(words: usize) -> u64 {
        HEAD_WORDS + words as u64
    }

    /// Writes an entry for the readers in `mask`, over what is oldest.
    pub(crate) fn push(&mut self, mask: u64, entry: &[u64]) {
        debug_assert!(entry.len() <= MAX_WORDS, "an entry has at most {MAX_WORDS} words");
        let end = self.at + LogWriter::cost(entry.len());
        // Before any word is overwritten, readers can see that it may be.
        self.ring.reserved.store(end, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = [entry.len() as u64, mask].into_iter().chain(entry.iter().copied());
        for (place, word) in self.ring.words(self.at).zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        let mut left = mask & self.readers;
        while left != 0 {
            let sent = &self.ring.sent[left.trailing_zeros() as usize];
            sent.store(sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            left &= left - 1;
        }
        self.ring.written.store(end, Ordering::Release);
        self.at = end;
    }
}

impl LogReader {
    /// Up to where there is something to read now.
    pub(crate) fn end(&self) -> u64 {
        self.ring.written.load(Ordering::Acquire)
    }

    /// Whether there is nothing to read now.
    pub(crate) fn is_empty(&self) -> bool {
        self.end() == self.at
    }

    /// The next entry for this reader before `end`, in `entry`.
    pub(crate) fn next<'a>(&mut self, end: u64, entry: &'a mut Entry) -> Option<Found<'a>> {
        while self.at < end {
            let Some((len, mask)) = self.copy(entry) else {
                return self.catch_up().map(Found::Lost);
            };
            self.at += LogWriter::cost(len);
            if mask & 1 << self.reader != 0 {
                self.received += 1;
                return Some(Found::Entry(&entry[..len]));
            }
        }
        self.ring.read[self.reader].store(self.at, Ordering::Release);
        None
    }

    /// Copies the entry at hand, if it is for this reader, and returns its length and whom it is
    /// for; `None` if the writer has begun to write over it.
    fn copy(&mut self, entry: &mut Entry) -> Option<(usize, u64)> {
        let mut words = self.ring.words(self.at).map(|word| word.load(Ordering::Relaxed));
        let len = (words.next()? as usize).min(MAX_WORDS);
        let mask = words.next()?;
        if mask & 1 << self.reader != 0 {
            entry[..len].iter_mut().zip(words).for_each(|(word, read)| *word = read);
        }
        // If any of these words is of a later round, then `reserved`, which is read behind this fence,
        // says so: the writer raised it before it wrote the word.
        fence(Ordering::Acquire);
        let reserved = self.ring.reserved.load(Ordering::Relaxed);
        (reserved - self.at <= self.ring.len()).then_some((len, mask))
    }

    /// Goes on from where the writer is. Returns how many entries for this reader are lost by that;
    /// `None` if the writer did not stand still long enough to tell.
    fn catch_up(&mut self) -> Option<u64> {
        for _ in 0..CATCH_UP_TRIES {
            let end = self.end();
            let sent = self.ring.sent[self.reader].load(Ordering::Relaxed);
            // If the writer has gone on meanwhile, `sent` may count entries behind `end`.
            fence(Ordering::Acquire);
            if self.ring.reserved.load(Ordering::Relaxed) == end {
                let lost = sent - self.received;
                (self.at, self.received) = (end, sent);
                return Some(lost);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x10);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { mask: u64, len: usize },
        Read { reader: usize, most: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..8, 0usize..20).prop_map(|(mask, len)| Step::Write { mask, len }),
            1 => (0usize..3, 0usize..12).prop_map(|(reader, most)| Step::Read { reader, most }),
        ]
    }

    proptest! {
        #![proptest_config(config())]
        /// Against a queue for each reader that never loses anything: a reader gets what was
        /// written for it, in order, but for gaps whose lengths it knows.
        #[test]
        fn every_entry_is_read_or_counted(steps in proptest::collection::vec(step(), 0..200)) {
            let (mut writer, mut readers) = log(125, 0b111);
            let mut room = [0; MAX_WORDS];
            let mut model: Vec<VecDeque<Vec<u64>>> = vec![VecDeque::new(); 3];
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Write { mask, len } => {
                        number += 1;
                        let entry: Vec<u64> = (0..len as u64).map(|word| number * 100 + word).collect();
                        writer.push(mask, &entry);
                        for (reader, queue) in model.iter_mut().enumerate() {
                            if mask & 1 << reader != 0 {
                                queue.push_back(entry.clone());
                            }
                        }
                    }
                    Step::Read { reader, most } => {
                        let end = readers[reader].end();
                        for _ in 0..most {
                            match readers[reader].next(end, &mut room) {
                                None => break,
                                Some(Found::Lost(lost)) => drop(model[reader].drain(..lost as usize)),
                                Some(Found::Entry(entry)) => {
                                    let expected = model[reader].pop_front();
                                    prop_assert_eq!(Some(entry), expected.as_deref());
                                }
                            }
                        }
                    }
                }
            }
            for (reader, queue) in readers.iter_mut().zip(&mut model) {
                let end = reader.end();
                while let Some(found) = reader.next(end, &mut room) {
                    match found {
                        Found::Lost(lost) => drop(queue.drain(..lost as usize)),
                        Found::Entry(entry) => {
                            let expected = queue.pop_front();
                            prop_assert_eq!(Some(entry), expected.as_deref());
                        }
                    }
                }
                prop_assert!(queue.is_empty(), "{} are neither read nor counted", queue.len());
            }
        }
    }

    #[test]
    fn whoever_looks_for_room_loses_nothing() {
        let (mut writer, mut readers) = log(64, 0b11);
        let mut written = 0u64;
        let (mut read, mut room) = ([0u64; 2], [0; MAX_WORDS]);
        for round in 0..1000 {
            while writer.room() >= LogWriter::cost(3) {
                writer.push(0b11, &[written, written, written]);
                written += 1;
            }
            let reader = round % 2;
            let end = readers[reader].end();
            while let Some(found) = readers[reader].next(end, &mut room) {
                assert_eq!(found, Found::Entry(&[read[reader]; 3]));
                read[reader] += 1;
            }
        }
        assert!(written > 5000, "{written}: room came back as it was read");
    }
}
