//! What updates cost on the wire beside their payloads: that is the receivers' bill.

use crate::support::{PERIODIC, World, config};
use canopy_wire::Flags;

const CROWD: usize = 90;
const TICKS: usize = 10;

/// All bytes of UDP payload that a relay sends to a crowd in which everybody publishes once a tick and
/// hears the others, with tags, counters, and what else it says meanwhile; for each byte of payload.
fn bytes_for_each(len: usize) -> f64 {
    let mut world = World::of(config(PERIODIC), CROWD);
    world.subscribe_all(7, 0);
    let before = world.sum(|counters| counters.bytes_out);
    for _ in 0..TICKS {
        (0..CROWD).for_each(|number| world.publish(number, 7, 0, Flags(0), &vec![0x5a; len]));
        world.tick();
    }
    let heard = world.participants.iter().flat_map(|one| &one.received);
    let payload: usize = heard.map(|update| update.payload.len()).sum();
    assert_eq!(payload, TICKS * CROWD * (CROWD - 1) * len, "everybody hears all others");
    let bytes = world.sum(|counters| counters.bytes_out) - before;
    bytes as f64 / payload as f64
}

#[test]
fn a_crowds_updates_cost_few_bytes_beside_their_payloads() {
    for (len, most) in [(100, 1.11), (20, 1.40)] {
        let ratio = bytes_for_each(len);
        assert!((1.0..=most).contains(&ratio), "{ratio:.3} bytes for each of {len}");
    }
}
