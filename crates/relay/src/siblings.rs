//! What passes between the data threads of a relay.
//!
//! Each thread writes two logs that all others read. In the *control* log it says what it listens
//! to and who has moved; there it waits for room, so that nothing is lost. In the *data* log it
//! passes updates to the threads that listen; there the newest counts, and whoever is too slow
//! loses what it did not read, counted. So memory grows with the number of threads, not with its
//! square, and what passes is typed: no datagram is parsed twice.

use crate::access::TokenId;
use crate::log::{Found, LogReader, LogWriter, MAX_READERS, log};
use crate::pending::Update;
use canopy_session::Proof;
use canopy_wire::{
    Acts, Address, Comtree, Flags, Group, Level, MAX_DATAGRAM, MAX_UPDATE, Path, Restriction, Time,
    Verdict,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The most data threads of a relay.
pub const MAX_THREADS: u16 = MAX_READERS as u16;

/// Words of a thread's data log: 2 MiB, some 14,000 updates of 100 bytes.
const DATA_WORDS: usize = 1 << 18;
/// Words of a thread's control log: 512 KiB, some 16,000 changes.
const CONTROL_WORDS: usize = 1 << 16;
/// Words that are kept for what is told before interests: who moved, who asks for a place.
const URGENT_WORDS: u64 = 1 << 12;
/// Those of them that no connect takes, which may be sent again: what servers say must be heard.
const LAST_WORDS: u64 = 1 << 11;
/// Records taken from one log in a turn.
const MAX_TAKEN: usize = 1 << 14;

const INTEREST: u64 = 1;
const MOVED: u64 = 2;
const CONNECT: u64 = 3;
const TOKEN_USED: u64 = 4;
const VERDICT: u64 = 5;
const CONDUCT: u64 = 6;
const GONE: u64 = 7;

/// What a data thread tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told<'a> {
    /// It wants a group's updates up to this level from now on, or none.
    Interest { comtree: Comtree, group: Group, wanted: Option<Level> },
    /// A session there holds this path by that proof: whoever held it by an older one has lost it.
    Moved { path: Path, proof: Proof },
    /// Somebody who has proved its path wants to join.
    Connect { path: Path, passed: Passed, datagram: &'a [u8] },
    /// A session there joined by this token and that proof: whoever joined by it before has lost it.
    TokenUsed { token: TokenId, proof: Proof },
    /// What a server says of a member that the other thread serves.
    Verdict { comtree: Comtree, address: Address, verdict: Verdict },
    /// What a server has said of the bearer of a token.
    Conduct { token: TokenId, ends: Time, verdict: Verdict },
    /// Nobody is at an address to which a participant there has sent.
    Gone { comtree: Comtree, sender: Address, address: Address },
}

/// Why a data thread passes on a connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Data threads that were asked in turn, and have no address or no place left.
    pub(crate) asked: u16,
    /// Before that it was brought to the thread whose the address is that it wants.
    pub(crate) was_brought: bool,
}

/// A data thread's ends of the logs between it and the others.
pub struct Siblings {
    thread: u16,
    threads: u16,
    logs: Option<Logs>,
    from: Vec<Incoming>,
    /// Threads that were passed something since they were last woken.
    to_wake: u64,
}

struct Logs {
    data: LogWriter,
    control: LogWriter,
}

/// What comes from one other thread.
pub(crate) struct Incoming {
    pub(crate) thread: u16,
    data: LogReader,
    control: LogReader,
}

impl Siblings {
    /// A data thread without others.
    pub fn alone() -> Siblings {
        Siblings { thread: 0, threads: 1, logs: None, from: Vec::new(), to_wake: 0 }
    }

    /// The ends of all logs between `threads` data threads, for each of them, in order. More than
    /// [`MAX_THREADS`] are not possible.
    pub fn mesh(threads: u16) -> Vec<Siblings> {
        let threads = threads.clamp(1, MAX_THREADS);
        if threads == 1 {
            return vec![Siblings::alone()];
        }
        let all = u64::MAX >> (64 - threads);
        let mut meshed: Vec<Siblings> =
            (0..threads).map(|thread| Siblings { thread, threads, ..Siblings::alone() }).collect();
        for thread in 0..threads {
            let others = all & !(1 << thread);
            let (data, from_data) = log(DATA_WORDS, others);
            let (control, from_control) = log(CONTROL_WORDS, others);
            meshed[usize::from(thread)].logs = Some(Logs { data, control });
            let readers = meshed.iter_mut().filter(|reader| reader.thread != thread);
            for ((data, control), reader) in from_data.into_iter().zip(from_control).zip(readers) {
                reader.from.push(Incoming { thread, data, control });
            }
        }
        meshed
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
        self.from.iter().all(|one| one.data.is_empty() && one.control.is_empty())
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
            | (update.payload.len() as u64) << 32;
        words[1] = u64::from(update.comtree.0) << 32 | u64::from(update.src.0);
        words[2] = u64::from(update.series) << 32 | u64::from(update.dst.0);
        let len = 3 + pack(update.payload, &mut words[3..]);
        logs.data.push(mask, &words[..len]);
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
            match self.control.next(end) {
                // Its writer waits for room, so nothing is lost.
                Some(Found::Record(words)) => {
                    decode(words, &mut bytes).into_iter().for_each(&mut take);
                }
                Some(Found::Lost(_)) | None => return,
            }
        }
    }

    /// Calls `take` for each update that the thread has passed, until it returns false. Returns how
    /// many are lost.
    pub(crate) fn read_data(&mut self, mut take: impl FnMut(&Update<'_>) -> bool) -> u64 {
        let end = self.data.end();
        let mut lost = 0;
        let mut bytes = [0; MAX_UPDATE.next_multiple_of(8)];
        for _ in 0..MAX_TAKEN {
            match self.data.next(end) {
                Some(Found::Record([head, from, dst, payload @ ..])) => {
                    let len = ((head >> 32) as usize).min(payload.len() * 8).min(MAX_UPDATE);
                    unpack(payload, &mut bytes);
                    let goes_on = take(&Update {
                        comtree: Comtree((from >> 32) as u32),
                        src: Address(*from as u32),
                        series: (dst >> 32) as u16,
                        dst: Address(*dst as u32),
                        flags: Flags((head >> 8) as u8),
                        level: Level(*head as u8),
                        hops: (head >> 16) as u8,
                        from_core_peer: head >> 24 & 1 == 1,
                        payload: &bytes[..len],
                    });
                    if !goes_on {
                        break;
                    }
                }
                Some(Found::Record(_)) => {}
                Some(Found::Lost(more)) => lost += more,
                None => break,
            }
        }
        lost
    }
}

/// Writes bytes into words; returns how many words.
fn pack(bytes: &[u8], words: &mut [u64]) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[chunks.len()] = u64::from_le_bytes(last);
    }
    bytes.len().div_ceil(8)
}

/// Writes words back into bytes.
fn unpack(words: &[u64], bytes: &mut [u8]) {
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
}

const MOST_CONTROL_WORDS: usize = CONNECT_HEAD + MAX_DATAGRAM.div_ceil(8);
/// Words before the datagram of a connect.
const CONNECT_HEAD: usize = 6;

fn encode(told: &Told<'_>) -> ([u64; MOST_CONTROL_WORDS], usize) {
    let mut words = [0; MOST_CONTROL_WORDS];
    let len = match told {
        Told::Interest { comtree, group, wanted } => {
            let wanted = wanted.map_or(0, |level| u64::from(level.0) + 1);
            words[0] = INTEREST | wanted << 8 | u64::from(comtree.0) << 32;
            words[1] = group.number().into();
            2
        }
        Told::Moved { path, proof } => {
            words[0] = MOVED;
            words[1..3].copy_from_slice(&[proof.at.as_nanos(), proof.nonce]);
            words[3..8].copy_from_slice(&encode_path(path));
            8
        }
        Told::Connect { path, passed: Passed { asked, was_brought }, datagram } => {
            words[0] = CONNECT
                | u64::from(*asked) << 8
                | u64::from(*was_brought) << 24
                | (datagram.len() as u64) << 32;
            words[1..CONNECT_HEAD].copy_from_slice(&encode_path(path));
            CONNECT_HEAD + pack(datagram, &mut words[CONNECT_HEAD..])
        }
        Told::TokenUsed { token, proof } => {
            words[..4].copy_from_slice(&[TOKEN_USED, proof.at.as_nanos(), proof.nonce, token.0]);
            4
        }
        Told::Verdict { comtree, address, verdict } => {
            let (kind, groups) = encode_verdict(verdict);
            let head = VERDICT | kind << 8 | u64::from(comtree.0) << 32;
            words[..3].copy_from_slice(&[head, address.0.into(), groups]);
            3
        }
        Told::Conduct { token, ends, verdict } => {
            let (kind, groups) = encode_verdict(verdict);
            let all = [CONDUCT | kind << 8, token.0, ends.as_nanos(), groups];
            words[..4].copy_from_slice(&all);
            4
        }
        Told::Gone { comtree, sender, address } => {
            words[0] = GONE | u64::from(comtree.0) << 32;
            words[1] = u64::from(sender.0) << 32 | u64::from(address.0);
            2
        }
    };
    (words, len)
}

/// A verdict: its kind and its acts, a byte each, and its groups.
fn encode_verdict(verdict: &Verdict) -> (u64, u64) {
    let of = |kind, Restriction { acts, first, last }: &Restriction| {
        let groups = u64::from(first.number()) << 32 | u64::from(last.number());
        (kind | u64::from(acts.0) << 8, groups)
    };
    match verdict {
        Verdict::ThrowOut => (0, 0),
        Verdict::Restrict(restriction) => of(1, restriction),
        Verdict::Restore(restriction) => of(2, restriction),
    }
}

fn decode_verdict(kind: u64, groups: u64) -> Verdict {
    let group = |word: u64| Group::from_low_bits(word as u32);
    let acts = Acts((kind >> 8) as u8);
    let restriction = Restriction { acts, first: group(groups >> 32), last: group(groups) };
    match kind & 0xff {
        0 => Verdict::ThrowOut,
        1 => Verdict::Restrict(restriction),
        _ => Verdict::Restore(restriction),
    }
}

fn decode<'a>(words: &[u64], bytes: &'a mut [u8]) -> Option<Told<'a>> {
    let (head, value) = (*words.first()?, *words.get(1)?);
    let comtree = Comtree((head >> 32) as u32);
    let path = || words.get(3..8)?.try_into().ok().map(decode_path);
    let proof = || Some(Proof { at: Time::from_nanos(value), nonce: *words.get(2)? });
    match head & 0xff {
        INTEREST => {
            let wanted = (head >> 8 & 0xffff).checked_sub(1).map(|level| Level(level as u8));
            Some(Told::Interest { comtree, group: Group::from_low_bits(value as u32), wanted })
        }
        MOVED => Some(Told::Moved { path: path()?, proof: proof()? }),
        CONNECT => {
            let path = decode_path(words.get(1..CONNECT_HEAD)?.try_into().ok()?);
            unpack(&words[CONNECT_HEAD..], bytes);
            let datagram = bytes.get(..(head >> 32) as usize)?;
            let passed = Passed { asked: (head >> 8) as u16, was_brought: head >> 24 & 1 == 1 };
            Some(Told::Connect { path, passed, datagram })
        }
        GONE => {
            let (sender, address) = (Address((value >> 32) as u32), Address(value as u32));
            Some(Told::Gone { comtree, sender, address })
        }
        TOKEN_USED => Some(Told::TokenUsed { token: TokenId(*words.get(3)?), proof: proof()? }),
        VERDICT => {
            let verdict = decode_verdict(head >> 8 & 0xffff, *words.get(2)?);
            Some(Told::Verdict { comtree, address: Address(value as u32), verdict })
        }
        CONDUCT => {
            let ends = Time::from_nanos(*words.get(2)?);
            let verdict = decode_verdict(head >> 8 & 0xffff, *words.get(3)?);
            Some(Told::Conduct { token: TokenId(value), ends, verdict })
        }
        _ => None,
    }
}

const REMOTE_IS_V6: u64 = 1 << 48;
const HAS_LOCAL: u64 = 1 << 49;
const LOCAL_IS_V6: u64 = 1 << 50;

fn encode_path(path: &Path) -> [u64; 5] {
    let (remote, is_v6) = encode_ip(path.remote.ip());
    let mut rest = u64::from(path.remote.port());
    rest |= if is_v6 { REMOTE_IS_V6 } else { 0 };
    if let SocketAddr::V6(v6) = path.remote {
        rest |= u64::from(v6.scope_id()) << 16;
    }
    let mut local = [0; 2];
    if let Some(ip) = path.local {
        let (words, is_v6) = encode_ip(ip);
        local = words;
        rest |= HAS_LOCAL | if is_v6 { LOCAL_IS_V6 } else { 0 };
    }
    [remote[0], remote[1], rest, local[0], local[1]]
}

fn decode_path(words: [u64; 5]) -> Path {
    let [remote_high, remote_low, rest, local_high, local_low] = words;
    let port = rest as u16;
    let remote = match decode_ip([remote_high, remote_low], rest & REMOTE_IS_V6 != 0) {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, (rest >> 16) as u32).into(),
    };
    let local = decode_ip([local_high, local_low], rest & LOCAL_IS_V6 != 0);
    Path { remote, local: (rest & HAS_LOCAL != 0).then_some(local) }
}

fn encode_ip(ip: IpAddr) -> ([u64; 2], bool) {
    match ip {
        IpAddr::V4(ip) => ([0, u64::from(ip.to_bits())], false),
        IpAddr::V6(ip) => ([(ip.to_bits() >> 64) as u64, ip.to_bits() as u64], true),
    }
}

fn decode_ip(words: [u64; 2], is_v6: bool) -> IpAddr {
    if is_v6 {
        Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])).into()
    } else {
        Ipv4Addr::from_bits(words[1] as u32).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_arrives_as_it_was() {
        let local = "fe80::1".parse().ok();
        let paths = [
            Path::from(SocketAddr::from(([127, 0, 0, 1], 9))),
            Path { remote: "[2001:db8::7]:4040".parse().unwrap(), local },
            Path {
                remote: SocketAddrV6::new("fe80::2".parse().unwrap(), 1, 0, 7).into(),
                local: Some(Ipv4Addr::LOCALHOST.into()),
            },
        ];
        let comtree = Comtree(u32::MAX);
        let longest: Vec<u8> = (0..MAX_DATAGRAM).map(|byte| byte as u8).collect();
        let mut all = vec![
            Told::Interest { comtree, group: Group::new(Group::MAX), wanted: Some(Level(255)) },
            Told::Interest { comtree, group: Group::new(0), wanted: Some(Level(0)) },
            Told::Interest { comtree, group: Group::new(3), wanted: None },
            Told::Gone { comtree, sender: Address(u32::MAX), address: Address(7) },
        ];
        let (token, ends) = (TokenId(u64::MAX), Time::from_nanos(u64::MAX));
        let (first, last) = (Group::new(Group::MAX - 1), Group::new(Group::MAX));
        let some = Restriction { acts: Acts(u8::MAX), first, last };
        for verdict in [Verdict::ThrowOut, Verdict::Restrict(some), Verdict::Restore(some)] {
            all.push(Told::Verdict { comtree, address: Address(u32::MAX), verdict });
            all.push(Told::Conduct { token, ends, verdict });
        }
        let proof = Proof { at: Time::from_millis(77), nonce: u64::MAX };
        all.push(Told::TokenUsed { token, proof });
        for path in paths {
            let proof = Proof { at: Time::from_millis(77), nonce: u64::MAX };
            all.push(Told::Moved { path, proof });
            let passed = Passed { asked: 63, was_brought: false };
            all.push(Told::Connect { path, passed, datagram: &longest });
            let passed = Passed { asked: 0, was_brought: true };
            all.push(Told::Connect { path, passed, datagram: b"short" });
        }
        for told in all {
            let (words, len) = encode(&told);
            assert_eq!(decode(&words[..len], &mut [0; 1456]), Some(told));
        }
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
            hops: 31,
            from_core_peer: true,
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
}
