//! A relay with its data threads, and the books on all that it reads and sends.

use canopy_batch::{SendBatch, Transmit};
use canopy_judge::{Books, Limits, Page};
use canopy_relay::{Change, Counters, Relay, RelayConfig, Siblings};
use canopy_session::{Identity, Keyring};
use canopy_wire::{MAX_DATAGRAM, SessionId, Time};
use std::net::SocketAddr;
use std::sync::LazyLock;

/// A data thread, and the page of the books on what it read since it last sent.
struct Thread {
    relay: Relay,
    page: Page,
}

pub(crate) struct Host {
    threads: Vec<Thread>,
    books: Books,
    max_sessions: u32,
}

impl Host {
    pub(crate) fn new(config: &RelayConfig, threads: u16) -> Host {
        let limits = Limits {
            max_sessions: config.max_sessions,
            tables: config.tables,
            one_session: threads == 1,
        };
        let thread = |siblings: Siblings| {
            let table_key = [2 + siblings.thread() as u8; 16];
            let relay = Relay::new(config.clone(), siblings, keyring(), &table_key);
            Thread { page: Page::begin(&relay), relay }
        };
        Host {
            threads: Siblings::mesh(threads).into_iter().map(thread).collect(),
            books: Books::new(limits),
            max_sessions: config.max_sessions,
        }
    }

    /// Who its relay is.
    pub(crate) fn identity(&self) -> Identity {
        keyring().identity().clone()
    }

    /// What a datagram to or from the relay says; `None` if it was sealed by nobody.
    pub(crate) fn read(&self, datagram: &[u8], from_relay: bool) -> Option<Vec<u8>> {
        self.books.read(datagram, from_relay).map(|read| read.into_owned())
    }

    /// What all data threads counted.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.threads.iter().for_each(|thread| sum.add(thread.relay.counters()));
        sum
    }

    /// The sessions of all data threads.
    pub(crate) fn sessions(&self) -> u32 {
        self.threads.iter().map(|thread| thread.relay.sessions()).sum()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.threads.iter().filter_map(|thread| thread.relay.poll_timeout()).min()
    }

    /// Makes a change on all data threads, as the shell does.
    pub(crate) fn apply(&mut self, now: Time, change: impl Fn() -> Change) {
        for thread in &mut self.threads {
            thread.relay.apply(now, change()).unwrap();
        }
        self.handle_siblings(now);
    }

    /// Makes a change on all data threads where it is not refused.
    pub(crate) fn apply_where_it_may(&mut self, now: Time, change: &Change) {
        for thread in &mut self.threads {
            let _ = thread.relay.apply(now, change.clone());
        }
        self.handle_siblings(now);
    }

    /// A datagram arrives: at the data thread that its session has, or at the one behind that.
    pub(crate) fn reach(&mut self, now: Time, from: SocketAddr, datagram: &[u8], is_astray: bool) {
        let word = datagram.first_chunk().map_or(0, |head| u32::from_be_bytes(*head));
        let threads = self.threads.len();
        let thread = usize::from(SessionId::new(word).thread(threads as u16));
        let number = (thread + usize::from(is_astray)) % threads;
        let relay = &mut self.threads[number].relay;
        let before = relay.counters().clone();
        relay.handle_datagram(now, from, &mut datagram.to_vec());
        let after = relay.counters().clone();
        self.note_keys();
        let page = &mut self.threads[number].page;
        self.books.handled(page, from, datagram, (&before, &after)).unwrap();
        self.handle_siblings(now);
    }

    /// Time has come to `now`.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        // What one data thread tells gives another something to do, which takes it a turn more.
        self.handle_siblings(now);
        for _ in 0..self.threads.len() {
            for thread in &mut self.threads {
                thread.relay.handle_timeout(now);
            }
            self.handle_siblings(now);
        }
    }

    /// What one data thread tells and passes, the others take.
    fn handle_siblings(&mut self, now: Time) {
        for thread in &mut self.threads {
            thread.relay.handle_siblings(now);
        }
        self.note_keys();
    }

    fn note_keys(&mut self) {
        for thread in &mut self.threads {
            while let Some(keys) = thread.relay.poll_key_log() {
                self.books.opened(keys);
            }
            while let Some(key) = thread.relay.poll_group_key_log() {
                self.books.made(&key);
            }
        }
    }

    /// Everything that is due at `now`, and to whom.
    pub(crate) fn transmit(&mut self, now: Time) -> Vec<(SocketAddr, Vec<u8>)> {
        (0..self.threads.len()).flat_map(|number| self.transmit_of(number, now)).collect()
    }

    fn transmit_of(&mut self, number: usize, now: Time) -> Vec<(SocketAddr, Vec<u8>)> {
        let is_alone = self.threads.len() == 1;
        let Thread { relay, page } = &mut self.threads[number];
        let mut sent = Vec::new();
        relay.transmit(now, |batch| {
            for transmit in batch.transmits() {
                sent.extend(cut(batch, transmit).map(|datagram| (transmit.to.remote, datagram)));
            }
        });
        for (to, datagram) in &sent {
            self.books.sends(page, *to, datagram, relay.counters()).unwrap();
        }
        self.books.turn_ends(relay, page).unwrap();
        *page = Page::begin(relay);
        let flushes = relay.counters().flushes;
        relay.transmit(now, |_| panic!("everything was sent and there is more"));
        assert_eq!(relay.counters().flushes, flushes);
        // Others' interest is in the same table.
        if !relay.is_collecting() && is_alone {
            assert!(relay.groups() <= relay.subscriptions(), "a group without anyone");
        }
        sent
    }

    /// No one is there any more, and nothing is to be done.
    pub(crate) fn is_empty(&self) -> bool {
        let left = |relay: &Relay| relay.sessions() + relay.subscriptions() + relay.groups();
        self.poll_timeout().is_none() && self.threads.iter().all(|thread| left(&thread.relay) == 0)
    }

    /// The most turns after which a relay that nobody talks to any more is empty: a few sweeps for each
    /// session, and between two sweeps it looks 20 times at what waits for limited receivers.
    pub(crate) fn turns_to_empty(&self) -> u32 {
        4 * 21 * self.max_sessions
    }
}

/// The keys of every relay here. To make their public half takes as long as a part of a handshake.
pub(crate) fn keyring() -> Keyring {
    static KEYRING: LazyLock<Keyring> = LazyLock::new(|| Keyring::new([1; 16]));
    KEYRING.clone()
}

/// The ip:port of a number.
pub(crate) fn ip_port(place: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 10_000 + place as u16))
}

/// The datagrams of one send.
fn cut(batch: &SendBatch, transmit: &Transmit) -> impl Iterator<Item = Vec<u8>> {
    let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
    assert_eq!(bytes.len(), transmit.len as usize);
    assert!(!bytes.is_empty() && usize::from(transmit.segment) <= MAX_DATAGRAM);
    let datagrams: Vec<_> = bytes.chunks(transmit.segment.into()).map(<[u8]>::to_vec).collect();
    assert_eq!(datagrams.len(), transmit.datagrams() as usize);
    datagrams.into_iter()
}
