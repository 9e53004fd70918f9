use super::*;
use canopy_wire::{Comtree, Header, Kind, MAX_DATAGRAM, Packet, SessionId};
use proptest::prelude::*;

const SECRET: Secret = [7; 32];
const PER_KEY: PacketsPerKey = PacketsPerKey::at_least(4096);
/// Packets of an epoch.
const EPOCH: u64 = PER_KEY.count();

fn pair(suite: Suite) -> (Sealer, Opener) {
    pair_of(suite, PER_KEY)
}

fn pair_of(suite: Suite, per_key: PacketsPerKey) -> (Sealer, Opener) {
    (Sealer::new(suite, &SECRET, per_key), Opener::new(suite, &SECRET, per_key))
}

fn sealed(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let header = Header::new(Kind::Keepalive, SessionId::new(9), Comtree(0x0102_0304));
    let len = header.encode_packet(payload, &mut out).unwrap();
    let len = sealer.seal(&mut out, len);
    out[..len].to_vec()
}

#[test]
fn what_is_sealed_is_opened_and_nothing_of_it_is_readable() {
    for suite in Suite::ALL {
        let (mut sealer, mut opener) = pair(*suite);
        let payload = b"a payload that nobody else reads";
        let mut datagram = sealed(&mut sealer, payload);
        assert_eq!(datagram.len(), 16 + payload.len() + SEAL_LEN);
        assert!(!datagram.windows(4).any(|four| payload.windows(4).any(|some| some == four)));
        assert!(!datagram.windows(4).any(|four| four == [1, 2, 3, 4]), "the comtree is readable");
        let opened = opener.open(&mut datagram, true).unwrap();
        let packet = Packet::new_checked(opened).unwrap();
        assert_eq!((packet.header().session, packet.payload()), (SessionId::new(9), &payload[..]));
    }
}

#[test]
fn any_change_of_any_byte_is_found() {
    let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
    let datagram = sealed(&mut sealer, b"payload");
    for at in 0..datagram.len() {
        let mut altered = datagram.clone();
        altered[at] ^= 1;
        assert_eq!(opener.open(&mut altered, true), Err(OpenError::Forged), "byte {at}");
    }
    for short in 0..datagram.len() {
        assert!(opener.open(&mut datagram[..short].to_vec(), true).is_err());
    }
    assert!(opener.open(&mut datagram.clone(), true).is_ok());
}

#[test]
fn a_packet_is_opened_once() {
    let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
    let first = sealed(&mut sealer, b"first");
    // By a path that is not proved, it may come again.
    assert!(opener.open(&mut first.clone(), false).is_ok());
    assert!(opener.open(&mut first.clone(), true).is_ok());
    assert_eq!(opener.open(&mut first.clone(), true), Err(OpenError::Replayed));
    assert_eq!(opener.open(&mut first.clone(), false), Err(OpenError::Replayed));
    // Beyond the window too.
    (0..2000).for_each(|_| assert!(opener.open(&mut sealed(&mut sealer, b""), true).is_ok()));
    assert_eq!(opener.open(&mut first.clone(), true), Err(OpenError::Replayed));
}

#[test]
fn a_forged_number_far_ahead_changes_no_key() {
    let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
    for ahead in [EPOCH, 2 * EPOCH, 1 << 31, u64::from(u32::MAX)] {
        let mut forged = sealed(&mut sealer, b"payload");
        forged[4..8].copy_from_slice(&(ahead as u32).to_be_bytes());
        assert_eq!(opener.open(&mut forged, true), Err(OpenError::Forged));
    }
    assert!(opener.open(&mut sealed(&mut sealer, b"payload"), true).is_ok());
}

#[test]
fn two_suites_and_two_secrets_have_nothing_in_common() {
    let mut sealer = Sealer::new(Suite::Aes128Gcm, &SECRET, PER_KEY);
    let datagram = sealed(&mut sealer, b"payload");
    let mut others = [
        Opener::new(Suite::ChaCha20Poly1305, &SECRET, PER_KEY),
        Opener::new(Suite::Aes128Gcm, &[8; 32], PER_KEY),
    ];
    for other in &mut others {
        assert_eq!(other.open(&mut datagram.clone(), true), Err(OpenError::Forged));
    }
}

fn config() -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5ea1);
    ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_datagram_is_taken_for_sealed(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut opener = Opener::new(Suite::Aes128Gcm, &SECRET, PER_KEY);
        prop_assert!(opener.open(&mut bytes, true).is_err());
    }

    /// Whatever the order of arrival, each is opened once.
    #[test]
    fn reordered_packets_open_once(order in proptest::collection::vec(0..300_usize, 0..600)) {
        let (mut sealer, mut opener) = pair(Suite::ChaCha20Poly1305);
        let all: Vec<_> = (0..300).map(|_| sealed(&mut sealer, b"x")).collect();
        let mut opened = [false; 300];
        for number in order {
            let result = opener.open(&mut all[number].clone(), true).map(|_| ());
            let expected = if opened[number] { Err(OpenError::Replayed) } else { Ok(()) };
            prop_assert_eq!(result, expected);
            opened[number] = true;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..config() })]

    /// Over several epochs, however long they are, whatever is lost on the way and whatever comes late: all
    /// that arrives within the replay window and half an epoch is opened, each by the key of its epoch.
    #[test]
    fn keys_change_without_a_gap_and_late_packets_still_open(
        suite in proptest::sample::select(Suite::ALL),
        per_key in proptest::sample::select(vec![64, 512, 1024, 4096]),
        fates in proptest::collection::vec((0..20_u8, 1..1_000_u64), 1..600),
        gap in (0..5_u64, 0.0..1.0, 0.0..0.9),
    ) {
        let per_key = PacketsPerKey::at_least(per_key);
        let epoch = per_key.count();
        let (mut sealer, mut opener) = pair_of(suite, per_key);
        let mut reader = Reader::new(suite, &SECRET, per_key);
        let gap_from = ((gap.0 as f64 + gap.1) * epoch as f64) as u64;
        let gap_len = (gap.2 * epoch as f64 / 2.0 - 24.0) as u64;
        let gap = gap_from..gap_from + gap_len;
        let (mut late, mut fates) = (Vec::new(), fates.iter().cycle());
        for number in 0..5 * epoch {
            let mut datagram = sealed(&mut sealer, b"payload");
            prop_assert_eq!(reader.follow(&datagram), number > 0 && number % epoch == 0);
            prop_assert!(reader.peek(&datagram).is_some(), "packet {number}");
            let (fate, delay) = fates.next().unwrap();
            // For a while nothing arrives at all.
            if *fate == 0 || gap.contains(&number) {
                continue;
            }
            if *fate == 1 {
                late.push((number, number + delay % (epoch / 2), datagram));
                continue;
            }
            prop_assert!(opener.open(&mut datagram, true).is_ok(), "packet {number}");
            for (from, _, mut datagram) in late.extract_if(.., |(_, due, _)| number >= *due) {
                let is_old = number - from >= (epoch / 2).min(1024);
                let is_opened = opener.open(&mut datagram.clone(), true).is_ok();
                prop_assert!(is_old || is_opened, "packet {from} at {number}");
                prop_assert!(opener.open(&mut datagram, true).is_err(), "packet {from} again");
            }
        }
    }
}

/// Sides that do not agree on it part at the first change of keys.
#[test]
fn who_has_other_epochs_opens_nothing_after_the_first() {
    let (mut sealer, _) = pair_of(Suite::Aes128Gcm, PacketsPerKey::at_least(64));
    let (_, mut opener) = pair_of(Suite::Aes128Gcm, PacketsPerKey::at_least(128));
    for number in 0..200 {
        let opened = opener.open(&mut sealed(&mut sealer, b"payload"), true).map(|_| ());
        let expected = if number < 64 { Ok(()) } else { Err(OpenError::Forged) };
        assert_eq!(opened, expected, "packet {number}");
    }
}

/// A packet that is sealed anew is as its sealer would have sealed it.
#[test]
fn a_reader_seals_anew_under_another_number() {
    let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
    let reader = Reader::new(Suite::Aes128Gcm, &SECRET, PER_KEY);
    let first = sealed(&mut sealer, b"payload");
    let mut third = reader.seal_as(&first, 2).unwrap();
    sealed(&mut sealer, b"another");
    assert_eq!(third, sealed(&mut sealer, b"payload"));
    assert!(opener.open(&mut third, true).is_ok());
    assert_eq!(reader.seal_as(&[7; 40], 2), None);
    let far = u32::try_from(2 * EPOCH).unwrap();
    assert_eq!(reader.seal_as(&first, far), None, "of an epoch that is not known");
    let other = Reader::new(Suite::Aes128Gcm, &[8; 32], PER_KEY);
    assert_ne!(reader.print(), other.print());
}

#[test]
fn as_many_packets_per_key_are_made_as_are_asked_for_at_least() {
    let made = [0, 2, 3, 64, 65, 1 << 22, u64::MAX].map(|at| PacketsPerKey::at_least(at).count());
    assert_eq!(made, [2, 2, 4, 64, 128, 1 << 22, 1 << 22]);
}

/// A lane that is flooded is read thousands of packets behind another.
#[test]
fn of_a_link_each_lane_has_a_window_of_its_own() {
    let (mut sealer, opener) = pair(Suite::Aes128Gcm);
    let mut opener = opener.by_lane();
    let sealed: Vec<Vec<u8>> = (0..6_000u32)
        .map(|number| {
            let mut packet = vec![0; 40];
            packet[3] = u8::from(number % 4_000 == 3_999);
            let len = sealer.seal(&mut packet, 24);
            packet.truncate(len);
            packet
        })
        .collect();
    let (quiet, flooded): (Vec<_>, Vec<_>) = sealed.iter().partition(|packet| packet[3] == 1);
    for packet in quiet.iter().chain(&flooded) {
        assert!(opener.open(&mut packet.to_vec(), true).is_ok());
        assert_eq!(opener.open(&mut packet.to_vec(), true).unwrap_err(), OpenError::Replayed);
    }
    let mut moved = flooded[100].clone();
    moved[3] = 2;
    assert_eq!(opener.open(&mut moved, true).unwrap_err(), OpenError::Forged);
}
