//! A small world whose cost is counted: the sizes that matter are run by `canopy sim scale`.

use canopy_sim::{Gauge, ScaleConfig, ScaleCore, run_scale};
use std::time::Duration;

/// Tells nothing.
struct Blind;

impl Gauge for Blind {
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }

    fn memory(&self) -> u64 {
        0
    }
}

#[test]
fn routes_joins_and_subscriptions_of_a_small_world_cost_what_they_must() {
    for core in [ScaleCore::One, ScaleCore::Subtree] {
        let config = ScaleConfig { seed: 1, relays: 10, endpoints_per_relay: 4, core };
        let row = run_scale(&config, &Blind, &mut |_| ()).unwrap();
        // Every other site has one route, and every endpoint of the own site that is elsewhere.
        // With contacts enough, there is a relay that knows all that it may: one more would be found.
        assert!(row.routes_max > 0 && row.routes_max <= row.busy_routes_max, "{row:?}");
        assert_eq!(row.addresses_max, row.addresses_planned, "{row:?}");
        assert!(row.addresses_per_root <= 3.0, "{row:?}");
        // Hello, challenge, connect, connected.
        assert!((4.0..4.5).contains(&row.join_datagrams), "{row:?}");
        assert!(
            row.subscribe_relays >= 1.0 && row.subscribe_hops <= f64::from(row.depth),
            "{row:?}"
        );
        assert!(row.deliveries > 0, "{row:?}");
    }
}
