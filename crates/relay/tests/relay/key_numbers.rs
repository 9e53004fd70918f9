//! No key seals two packets with one number, whatever happens in the life of a session.

use crate::support::{COMTREE, config, group, ip_port, is_sealed};
use canopy_relay::{Mode, Relay, RelayConfig, Siblings};
use canopy_session::{Keyring, LoggedKeys, PacketsPerKey, Session, SessionConfig};
use canopy_wire::{Flags, Group, Level, Path, Tag, Time};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;
use std::time::Duration;

/// Few enough for keys to change several times in a life. After a longer loss nothing opens any more, and
/// the session begins again.
const PER_KEY: PacketsPerKey = PacketsPerKey::at_least(16);

/// Something that happens in the life of a session.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        len: usize,
        own: bool,
    },
    Subscribe {
        group: u32,
    },
    Unsubscribe {
        group: u32,
    },
    Move,
    Pass {
        millis: u64,
    },
    /// Loses this many of the next datagrams up and down.
    Lose {
        up: usize,
        down: usize,
    },
    /// Copies of the last datagrams come again, from here or elsewhere.
    Copy {
        count: usize,
        from_elsewhere: bool,
    },
    Leave,
    RestartRelay,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..1025usize, any::<bool>()).prop_map(|(len, own)| Step::Publish { len, own }),
        3 => (0..9u32).prop_map(|group| Step::Subscribe { group }),
        2 => (0..9u32).prop_map(|group| Step::Unsubscribe { group }),
        3 => Just(Step::Move),
        6 => (1..3_000u64).prop_map(|millis| Step::Pass { millis }),
        3 => (0..6usize, 0..6usize).prop_map(|(up, down)| Step::Lose { up, down }),
        2 => (1..6usize, any::<bool>())
            .prop_map(|(count, from_elsewhere)| Step::Copy { count, from_elsewhere }),
        1 => Just(Step::Leave),
        1 => Just(Step::RestartRelay),
    ]
}

/// A participant and its relay, with a network between them, and somebody who has all keys and sees
/// all that is sealed.
struct Life {
    now: Time,
    relay: Relay,
    session: Session,
    path: Path,
    paths: u16,
    lose_up: usize,
    lose_down: usize,
    up: Vec<Vec<u8>>,
    keys: Vec<LoggedKeys>,
    incarnations: u8,
    sealed: Vec<Vec<u8>>,
}

impl Life {
    fn new() -> Life {
        let mut life = Life {
            now: Time::from_millis(1),
            relay: relay(0),
            session: session([7; 16]),
            path: ip_port(0).into(),
            paths: 0,
            lose_up: 0,
            lose_down: 0,
            up: Vec::new(),
            keys: Vec::new(),
            incarnations: 1,
            sealed: Vec::new(),
        };
        life.talk();
        life
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Publish { len, own } => {
                let dst = if own { self.session.address() } else { group(len as u32 % 9) };
                let mut out = [0; 1500];
                let payload = &[9; 1024][..len.min(1024)];
                if let Ok(len) = self.session.publish(dst, Level(0), Flags::ECHO, payload, &mut out)
                {
                    self.send_up(&out[..len]);
                }
            }
            Step::Subscribe { group } => self.session.subscribe(Group::new(group), Level(0)),
            Step::Unsubscribe { group } => self.session.unsubscribe(Group::new(group)),
            Step::Move => {
                self.paths += 1;
                self.path = ip_port(self.paths.into()).into();
            }
            Step::Pass { millis } => self.now = self.now + Duration::from_millis(millis),
            Step::Lose { up, down } => (self.lose_up, self.lose_down) = (up, down),
            Step::Copy { count, from_elsewhere } => {
                let from = if from_elsewhere { ip_port(9_999).into() } else { self.path };
                for datagram in self.up.iter().rev().take(count) {
                    self.relay.handle_datagram(self.now, from, &mut datagram.clone());
                }
            }
            Step::Leave => {
                self.session.leave();
                self.talk();
                // Somebody else begins where it was.
                self.incarnations += 1;
                let seed = [self.incarnations; 16];
                self.session = session(seed);
            }
            Step::RestartRelay => {
                self.incarnations += 1;
                self.relay = relay(self.incarnations);
            }
        }
        self.talk();
    }

    fn send_up(&mut self, datagram: &[u8]) {
        self.note(datagram);
        self.up.push(datagram.to_vec());
        if self.lose_up > 0 {
            self.lose_up -= 1;
        } else {
            self.relay.handle_datagram(self.now, self.path, &mut datagram.to_vec());
        }
    }

    /// Both sides say all that they have to say now.
    fn talk(&mut self) {
        loop {
            let mut out = [0; 1500];
            let said = self.session.poll_transmit(self.now, &mut out);
            if let Some(len) = said {
                self.send_up(&out[..len]);
            }
            self.relay.handle_timeout(self.now);
            let mut down: Vec<Vec<u8>> = Vec::new();
            self.relay.transmit(self.now, |batch| {
                for transmit in batch.transmits() {
                    let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                    down.extend(bytes.chunks(transmit.segment.into()).map(<[u8]>::to_vec));
                }
            });
            self.keys.extend(std::iter::from_fn(|| self.relay.poll_key_log()));
            for mut datagram in down.clone() {
                self.note(&datagram);
                if self.lose_down > 0 {
                    self.lose_down -= 1;
                } else {
                    let _ = self.session.handle_datagram(self.now, &mut datagram, |_| ());
                }
            }
            if said.is_none() && down.is_empty() {
                return;
            }
        }
    }

    fn note(&mut self, datagram: &[u8]) {
        if is_sealed(datagram) {
            self.sealed.push(datagram.to_vec());
        }
    }

    /// By which key each datagram was sealed: of which session, and of which direction; and its
    /// number.
    fn keys_and_numbers(&mut self) -> Vec<(usize, bool, u32)> {
        let mut found = Vec::new();
        for datagram in &self.sealed {
            let number = u32::from_be_bytes(datagram[4..8].try_into().unwrap());
            let before = found.len();
            for (session, keys) in self.keys.iter_mut().enumerate() {
                for (is_relays, reader) in
                    [(false, &mut keys.from_participant), (true, &mut keys.from_relay)]
                {
                    if reader.peek(datagram).is_some() {
                        reader.follow(datagram);
                        found.push((session, is_relays, number));
                    }
                }
            }
            assert_eq!(found.len(), before + 1, "one key and no other opens a datagram");
        }
        found
    }
}

fn session(seed: Tag) -> Session {
    let config = SessionConfig::new(COMTREE, seed);
    Session::new(SessionConfig { packets_per_key: PER_KEY, ..config })
}

fn relay(incarnation: u8) -> Relay {
    let keys = Keyring::new([incarnation + 1; 16]);
    let config = RelayConfig { packets_per_key: PER_KEY, ..config(Mode::Immediate) };
    Relay::new(config, Siblings::alone(), keys, &[incarnation; 16])
}

fn rules() -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(0x5ea1);
    ProptestConfig { cases: 100, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(rules())]
    /// Whoever has two packets under one key and number can read and forge.
    #[test]
    fn no_key_seals_two_packets_with_one_number(steps in proptest::collection::vec(step(), 1..150)) {
        let mut life = Life::new();
        for step in &steps {
            life.take(step);
        }
        let all = life.keys_and_numbers();
        let mut seen = BTreeSet::new();
        for key_and_number in &all {
            prop_assert!(seen.insert(*key_and_number), "{key_and_number:?} was used twice");
        }
        // No number is passed over either, but for answers that were not sent.
        let highest = |is_relays| {
            let of_first = seen.iter().filter(|one| one.0 == 0 && one.1 == is_relays);
            of_first.map(|one| one.2 as usize + 1).max().unwrap_or(0)
        };
        let sent_up = seen.iter().filter(|one| one.0 == 0 && !one.1).count();
        prop_assert_eq!(highest(false), sent_up);
    }
}
