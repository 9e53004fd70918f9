//! A run, from its configuration to its report.

use super::config::OverlayConfig;
use super::report::OverlayReport;
use super::world::World;
use crate::trace::Tap;

/// Simulates one run of many relays and judges it.
pub fn run_overlay(config: &OverlayConfig) -> OverlayReport {
    run_overlay_with_tap(config, &mut |_, _, _, _| ())
}

/// Simulates one run of many relays and judges it, showing every datagram to `tap` as it arrives.
pub fn run_overlay_with_tap(config: &OverlayConfig, tap: Tap<'_>) -> OverlayReport {
    let mut world = World::new(config, tap);
    world.begin();
    while world.step() {}
    world.finish();
    OverlayReport::new(&world, &world.counters(), world.trace.hash())
}
