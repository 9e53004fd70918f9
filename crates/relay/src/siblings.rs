//! What passes between the data threads of a relay.
//!
//! Each thread writes logs that all others read. In the *control* log it says what it listens
//! to and who has moved; there it waits for room, so that nothing is lost. In its *data logs* it
//! passes updates to the threads that listen; there the newest counts, and whoever is too slow
//! loses what it did not read, counted. There is one for each lane, and they are read in turns, so a flood
//! on one comtree takes no room of others between data threads either. So memory grows with the number of
//! threads, not with its square, and what passes is typed: no datagram is parsed twice.

use crate::budget_parts::Wants;
use crate::log::{Entry, Found, LogReader, LogWriter, MAX_READERS, MAX_WORDS, log, memory};
use crate::path::PathMarks;
use crate::pending::Update;
use crate::routes::Leads;
use crate::told::{Told, decode, encode, pack, unpack};
use canopy_wire::{Address, Comtree, Flags, Lane, Level, MAX_DATAGRAM, MAX_UPDATE, Weight};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The most data threads of a relay.
pub const MAX_THREADS: u16 = MAX_READERS as u16;

/// Bytes of a thread's logs. Memory is touched where a log is written.
const MAX_MEMORY: usize = 16 << 20;
/// Words of eight bytes of each of a thread's data logs: 1.9 MiB, some 13,000 updates of 100 bytes.
pub const DATA_WORDS: usize = 15 << 14;
/// Words of a thread's control log: 512 KiB, some 16,000 changes.
const CONTROL_WORDS: usize = 1 << 16;
const _: () =
    assert!(Lane::COUNT as usize * memory(DATA_WORDS) + memory(CONTROL_WORDS) <= MAX_MEMORY);
/// Words that are kept for what is told before interests: who moved, who asks for a place.
const URGENT_WORDS: u64 = 1 << 12;
/// Those of them that no connect takes, which may be sent again: what servers say must be heard.
const LAST_WORDS: u64 = 1 << 11;
/// Entries taken from one log in a turn.
const MAX_TAKEN: usize = 1 << 14;
/// Updates taken from one data log before the others are looked at.
const TAKEN_AT_ONCE: usize = 64;

/// A data thread's ends of the logs between it and the others.
pub struct Siblings {
    thread: u16,
    threads: u16,
    logs: Option<Logs>,
    /// Whose paths are limited, on all of them.
    path_marks: Arc<PathMarks>,
    from: Vec<Incoming>,
    /// Threads that were passed something since they were last woken.
    to_wake: u64,
}

struct Logs {
    /// By lane.
    data: Vec<LogWriter>,
    /// Counts the updates in all of them.
    passed: Arc<AtomicU64>,
    control: LogWriter,
}

/// What comes from one other thread.
pub(crate) struct Incoming {
    pub(crate) thread: u16,
    /// By lane.
    data: Vec<LogReader>,
    /// How many updates it has passed, and how many it had when all of them were read last.
    passed: Arc<AtomicU64>,
    seen: u64,
    /// The lane that is read next.
    lane: usize,
    control: LogReader,
    entry: Box<Entry>,
}

impl Siblings {
    /// A data thread without others.
    pub fn alone() -> Siblings {
        let path_marks = PathMarks::new();
        Siblings { thread: 0, threads: 1, logs: None, path_marks, from: Vec::new(), to_wake: 0 }
    }

    /// The ends of all logs between `threads` data threads, for each of them, in order. More than
    /// [`MAX_THREADS`] are not possible.
    pub fn mesh(threads: u16) -> Vec<Siblings> {
        Siblings::mesh_with(threads, DATA_WORDS)
    }

    /// The same, with `data_words` words of eight bytes in each data log; room for one update of the
    /// longest is there in any case. The simulator makes them small, so that they overflow.
    pub fn mesh_with(threads: u16, data_words: usize) -> Vec<Siblings> {
        let threads = threads.clamp(1, MAX_THREADS);
        let data_words = data_words.max(LogWriter::cost(MAX_WORDS) as usize);
        if threads == 1 {
            return vec![Siblings::alone()];
        }
        let all = u64::MAX >> (64 - threads);
        let path_marks = PathMarks::new();
        let mut meshed: Vec<Siblings> = (0..threads)
            .map(|thread| Siblings {
                thread,
                threads,
                path_marks: Arc::clone(&path_marks),
                ..Siblings::alone()
            })
            .collect();
        for thread in 0..threads {
            let others = all & !(1 << thread);
            let passed = Arc::default();
            let (control, from_control) = log(CONTROL_WORDS, others);
            let readers = meshed.iter_mut().filter(|reader| reader.thread != thread);
            for (control, reader) in from_control.into_iter().zip(readers) {
                let (data, passed) = (Vec::new(), Arc::clone(&passed));
                let entry = Box::new([0; MAX_WORDS]);
                reader.from.push(Incoming {
                    thread,
                    data,
                    passed,
                    seen: 0,
                    lane: 0,
                    control,
                    entry,
                });
            }
            let mut data = Vec::new();
            for _ in Lane::all() {
                let (writer, from_data) = log(data_words, others);
                data.push(writer);
                let incoming = meshed.iter_mut().filter_map(|reader| {
                    reader.from.last_mut().filter(|incoming| incoming.thread == thread)
                });
                for (reader, incoming) in from_data.into_iter().zip(incoming) {
                    incoming.data.push(reader);
                }
            }
            meshed[usize::from(thread)].logs = Some(Logs { data, passed, control });
        }
        meshed
    }

    /// Whose paths are limited, on all data threads.
    pub(crate) fn path_marks(&self) -> Arc<PathMarks> {
        Arc::clone(&self.path_marks)
    }

    /// The number of this thread.
    pub fn thread(&self) -> u16 {
        self.thread
    }

    /// How many threads there are.
    pub fn threads(&self) -> u16 {
        self.threads
    }

    /// Whether the others have told or passed nothing that was not taken.
    pub fn is_empty(&self) -> bool {
        self.from.iter().all(|one| !one.has_updates() && one.control.is_empty())
    }

    /// The threads that have something to take since the last call, a bit for each.
    pub(crate) fn take_wakes(&mut self) -> u64 {
        core::mem::take(&mut self.to_wake)
    }

    /// Passes an update to the threads in `mask`.
    pub(crate) fn pass(&mut self, mask: u64, update: &Update<'_>) {
        let Some(logs) = &mut self.logs else { return };
        let mut words = [0; 3 + MAX_UPDATE.div_ceil(8)];
        words[0] = u64::from(update.level.0)
            | u64::from(update.flags.0) << 8
            | u64::from(update.hops) << 16
            | u64::from(update.from_core_peer) << 24
            | u64::from(update.asks_route) << 25
            | u64::from(update.weight.0) << 48
            | (update.payload.len() as u64) << 32;
        words[1] = u64::from(update.comtree.0) << 32 | u64::from(update.src.0);
        words[2] = u64::from(update.object) << 48
            | u64::from(update.series) << 32
            | u64::from(update.dst.0);
        let len = 3 + pack(update.payload, &mut words[3..]);
        let lane = usize::from(Lane::of(update.comtree).number());
        logs.data[lane].push(mask, &words[..len]);
        // Whoever sees this finds the entry.
        let passed = logs.passed.load(Ordering::Relaxed);
        logs.passed.store(passed + 1, Ordering::Release);
        self.to_wake |= mask;
    }

    /// Tells all others what must not wait for interests. Returns whether there was room.
    pub(crate) fn tell(&mut self, told: Told<'_>) -> bool {
        let others = self.others();
        let to = match told {
            Told::Verdict { address, .. } => 1 << (address.endpoint() % self.threads),
            _ => others,
        };
        self.write(told, to & others, 0)
    }

    /// Hands a connect on to one of the others. Returns whether there was room.
    pub(crate) fn hand_on(&mut self, thread: u16, connect: Told<'_>) -> bool {
        self.write(connect, 1 << thread & self.others(), LAST_WORDS)
    }

    /// Tells one of the others what nobody relies on. It takes no room from what must be heard.
    pub(crate) fn mention(&mut self, thread: u16, told: Told<'_>) {
        self.write(told, 1 << thread & self.others(), URGENT_WORDS);
    }

    /// Tells all others that a way leads here, and whether to a core peer; or that none does any more. Returns whether there was room; who
    /// did not hear of a way asks for it.
    pub(crate) fn tell_route(
        &mut self,
        comtree: Comtree,
        to: Address,
        leads: Option<Leads>,
    ) -> bool {
        self.write(Told::Route { comtree, to, leads }, self.others(), URGENT_WORDS)
    }

    /// Tells all others what is wanted here of a comtree's budget. Returns whether there was room.
    pub(crate) fn tell_wants(&mut self, comtree: Comtree, wants: Wants) -> bool {
        self.write(Told::Wants { comtree, wants }, self.others(), URGENT_WORDS)
    }

    /// The thread that is asked after this one.
    pub(crate) fn next_thread(&self) -> u16 {
        (self.thread + 1) % self.threads
    }

    /// How many interests can be told right now.
    pub(crate) fn room_for_interests(&self) -> usize {
        let Some(logs) = &self.logs else { return usize::MAX };
        (logs.control.room().saturating_sub(URGENT_WORDS) / LogWriter::cost(2)) as usize
    }

    /// Tells all others an interest. Returns whether there was room.
    pub(crate) fn tell_interest(&mut self, told: Told<'_>) -> bool {
        self.write(told, self.others(), URGENT_WORDS)
    }

    fn others(&self) -> u64 {
        (u64::MAX >> (64 - self.threads)) & !(1 << self.thread)
    }

    fn write(&mut self, told: Told<'_>, to: u64, keep: u64) -> bool {
        let Some(logs) = &mut self.logs else { return true };
        let (words, len) = encode(&told);
        let fits = logs.control.room() >= LogWriter::cost(len) + keep;
        if fits {
            logs.control.push(to, &words[..len]);
            self.to_wake |= to;
        }
        fits
    }

    /// Takes the ends that read, for as long as what they bring is being handled.
    pub(crate) fn take_incoming(&mut self) -> Vec<Incoming> {
        core::mem::take(&mut self.from)
    }

    pub(crate) fn put_back(&mut self, incoming: Vec<Incoming>) {
        self.from = incoming;
    }
}

impl Incoming {
    /// Calls `take` for everything that the thread has told.
    pub(crate) fn read_control(&mut self, mut take: impl FnMut(Told<'_>)) {
        let end = self.control.end();
        let mut bytes = [0; MAX_DATAGRAM.next_multiple_of(8)];
        for _ in 0..MAX_TAKEN {
            match self.control.next(end, &mut self.entry) {
                // Its writer waits for room, so nothing is lost.
                Some(Found::Entry(words)) => {
                    decode(words, &mut bytes).into_iter().for_each(&mut take);
                }
                Some(Found::Lost(_)) | None => return,
            }
        }
    }

    /// Whether the thread has passed any update since all of them were read.
    fn has_updates(&self) -> bool {
        self.passed.load(Ordering::Acquire) != self.seen
    }

    /// Calls `take` for each update that the thread has passed, lane by lane in turns, until it returns false.
    /// Returns how many are lost.
    pub(crate) fn read_data(&mut self, mut take: impl FnMut(&Update<'_>) -> bool) -> u64 {
        if !self.has_updates() {
            return 0;
        }
        let passed = self.passed.load(Ordering::Acquire);
        let (mut lost, mut idle) = (0, 0);
        for _ in 0..self.data.len() * MAX_TAKEN / TAKEN_AT_ONCE {
            let read = self.read_lane(&mut take);
            lost += read.lost;
            self.lane = (self.lane + 1) % self.data.len();
            if !read.goes_on {
                return lost;
            }
            idle = if read.is_done { idle + 1 } else { 0 };
            if idle == self.data.len() {
                if self.data.iter().all(LogReader::is_empty) {
                    self.seen = passed;
                }
                return lost;
            }
        }
        lost
    }

    /// Reads some updates of the lane that is next.
    fn read_lane(&mut self, take: &mut impl FnMut(&Update<'_>) -> bool) -> Read {
        let Incoming { data, lane, entry, .. } = self;
        let log = &mut data[*lane];
        let end = log.end();
        let mut read = Read { lost: 0, is_done: log.is_empty(), goes_on: true };
        if read.is_done {
            return read;
        }
        let mut bytes = [0; MAX_UPDATE.next_multiple_of(8)];
        for _ in 0..TAKEN_AT_ONCE {
            match log.next(end, entry) {
                Some(Found::Entry([head, from, dst, payload @ ..])) => {
                    let len =
                        usize::from((head >> 32) as u16).min(payload.len() * 8).min(MAX_UPDATE);
                    unpack(payload, &mut bytes);
                    read.goes_on = take(&Update {
                        comtree: Comtree((from >> 32) as u32),
                        src: Address(*from as u32),
                        series: (dst >> 32) as u16,
                        dst: Address(*dst as u32),
                        flags: Flags((head >> 8) as u8),
                        level: Level(*head as u8),
                        weight: Weight((head >> 48) as u8),
                        object: (dst >> 48) as u16,
                        hops: (head >> 16) as u8,
                        from_core_peer: head >> 24 & 1 == 1,
                        asks_route: head >> 25 & 1 == 1,
                        payload: &bytes[..len],
                    });
                    if !read.goes_on {
                        return read;
                    }
                }
                Some(Found::Entry(_)) => {}
                Some(Found::Lost(more)) => read.lost += more,
                None => {
                    read.is_done = true;
                    return read;
                }
            }
        }
        read
    }
}

/// What came of reading some updates of a lane.
struct Read {
    lost: u64,
    /// Whether nothing more can be taken of it now.
    is_done: bool,
    /// Whether the taker has room for more.
    goes_on: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::TokenId;
    use crate::told::Passed;
    use canopy_wire::{Path, Time, Verdict};
    use core::net::SocketAddr;

    #[test]
    fn updates_reach_those_they_are_for_and_losses_are_counted() {
        let mut threads = Siblings::mesh(3);
        let payload: Vec<u8> = (0..MAX_UPDATE).map(|byte| byte as u8).collect();
        let update = |len| Update {
            comtree: Comtree(5),
            src: Address(7),
            series: 0xfffe,
            dst: Address(9),
            flags: Flags(0),
            level: Level(3),
            weight: Weight(0xfd),
            object: 0xfffd,
            hops: 31,
            from_core_peer: true,
            asks_route: true,
            payload: &payload[..len],
        };
        for len in [0, 1, 8, 100, MAX_UPDATE] {
            threads[0].pass(0b010, &update(len));
        }
        assert_eq!(threads[0].take_wakes(), 0b010);
        let mut lens = Vec::new();
        let lost = threads[1].from[0].read_data(|taken| {
            assert_eq!(*taken, update(taken.payload.len()));
            lens.push(taken.payload.len());
            true
        });
        assert_eq!((lens, lost), (vec![0, 1, 8, 100, MAX_UPDATE], 0));
        assert_eq!(threads[2].from[0].read_data(|_| panic!("none is for this one")), 0);
        // Thread 2 sleeps while thread 1 reads: the first loses, the other does not.
        let mut read = 0;
        for _ in 0..100 {
            for _ in 0..50 {
                threads[0].pass(0b110, &update(MAX_UPDATE));
            }
            let count = |_: &Update<'_>| {
                read += 1;
                true
            };
            assert_eq!(threads[1].from[0].read_data(count), 0);
        }
        let mut late = 0;
        let lost = threads[2].from[0].read_data(|_| {
            late += 1;
            true
        });
        assert_eq!((read, lost + late), (5000, 5000));
        assert!(lost > 0);
    }

    #[test]
    fn a_flood_of_connects_leaves_room_for_what_servers_say() {
        let mut threads = Siblings::mesh(2);
        let path = Path::from(SocketAddr::from(([127, 0, 0, 1], 9)));
        let (passed, datagram) = (Passed::default(), &[7; 400][..]);
        while threads[0].hand_on(1, Told::Connect { path, passed, datagram }) {}
        let (token, ends) = (TokenId(1), Time::from_millis(1));
        let told = Told::Conduct { token, ends, verdict: Verdict::ThrowOut };
        let heard = (0..300).filter(|_| threads[0].tell(told)).count();
        assert_eq!(heard, 300);
    }
}
