//! Which cipher two sides agree on, by what their processors have instructions for.

use crate::support::{COMTREE, World, at_site, config, path_of_thread, with_downlink};
use canopy_relay::{Change, LinkConfig, Mode, RelayConfig};
use canopy_session::SessionConfig;
use canopy_wire::{Downlink, Flags, Suite};

const AES: u8 = Suite::Aes128Gcm.bit();
const CHACHA: u8 = Suite::ChaCha20Poly1305.bit();

/// What each side is slow at, and what they then use: AES only where both have instructions for it.
const ALL_FOUR: [(u8, u8, Suite); 4] = [
    (0, 0, Suite::Aes128Gcm),
    (AES, 0, Suite::ChaCha20Poly1305),
    (0, AES, Suite::ChaCha20Poly1305),
    (AES, AES, Suite::ChaCha20Poly1305),
];

fn of(slow_suites: u8) -> RelayConfig {
    RelayConfig { slow_suites, ..config(Mode::Immediate) }
}

/// They have a session with this suite, and hear each other.
fn assert_they_use(world: &mut World, suite: Suite) {
    assert_eq!((world.sessions(), world.suites()), (1, vec![suite]));
    world.subscribe(0, 7, 0);
    world.publish(0, 7, 0, Flags::ECHO, b"x");
    world.settle();
    assert_eq!(world.payloads(0), [b"x"]);
}

#[test]
fn a_session_has_the_cipher_that_both_processors_are_good_at() {
    for (slow, slow_suites, suite) in ALL_FOUR {
        let mut world = World::of(of(slow), 0);
        let session = SessionConfig { slow_suites, ..SessionConfig::new(COMTREE, [1; 16]) };
        world.add_session(0, session);
        world.settle();
        assert_they_use(&mut world, suite);
    }
}

/// A cipher without instructions is better than no session.
#[test]
fn who_takes_one_cipher_only_gets_it_however_slow_it_is() {
    for (suites, suite) in [(AES, Suite::Aes128Gcm), (CHACHA, Suite::ChaCha20Poly1305)] {
        for slow_suites in [0, AES, CHACHA, AES | CHACHA] {
            let mut world = World::of(of(AES), 0);
            let config = SessionConfig::new(COMTREE, [1; 16]);
            world.add_session(0, SessionConfig { suites, slow_suites, ..config });
            world.settle();
            assert_they_use(&mut world, suite);
        }
    }
}

/// What is sealed for all is the comtree's to say. Who is slow at that opens it nevertheless.
#[test]
fn who_is_slow_at_the_cipher_of_all_is_a_member() {
    let mut world = World::of(with_downlink(of(0), Downlink::Group), 0);
    let config = SessionConfig::new(COMTREE, [1; 16]);
    world.add_session(0, SessionConfig { slow_suites: AES, ..config });
    world.settle();
    assert_they_use(&mut world, Suite::ChaCha20Poly1305);
}

#[test]
fn a_link_has_the_cipher_that_both_processors_are_good_at() {
    for (one, other, suite) in ALL_FOUR {
        let mut world = World::empty();
        for (site, slow_suites) in [(1, one), (2, other)] {
            world.add_relay(RelayConfig { slow_suites, ..at_site(Mode::Immediate, site) }, 1);
        }
        for here in [1, 0] {
            let (key, path) = (world.key_of(1 - here), path_of_thread(1 - here));
            let link = LinkConfig { key, path, thread: 0, calls: here == 0 };
            let now = world.now;
            world.threads[here].apply(now, Change::AddLink(link)).unwrap();
        }
        world.settle();
        assert!((0..2).all(|here| world.threads[here].is_linked(&world.key_of(1 - here))));
        assert_eq!(world.suites(), [suite], "{one} and {other}");
    }
}
