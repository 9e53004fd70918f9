//! The controller and its relays in virtual time, on a network that loses, doubles, delays and
//! reorders, with partitions and crashes of either side and of storage.
//!
//! A failing seed says how it is run again: `CONTROL_SEED=7 cargo test -p canopy-control --test
//! simulation`. `CONTROL_SEEDS=5000` runs as many, and `CONTROL_FROM=5000` begins there.

mod adversary;
mod carry;
mod ending;
#[path = "../flooding/mod.rs"]
mod flooding;
mod meshed;
mod moving;
mod operating;
mod peering;
mod proposing;
mod reaching;
mod reference;
mod relays;
mod relocating;
mod repairing;
mod sim;
mod thousand;

use sim::{Plan, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs these seeds, or those that the environment asks for.
fn run(plan: Plan, seeds: u64) {
    let told = run_worlds(plan, seeds, false);
    if let Some(told) = told {
        told.assert_everything_happened(plan);
    }
}

/// Runs them, with most worlds' cores meshed or not. Returns what happened, if it was more than one seed.
fn run_worlds(plan: Plan, seeds: u64, is_meshed: bool) -> Option<sim::Told> {
    run_seeds(plan, seeds, |seed| Sim::new(seed, plan, is_meshed).run())
}

fn run_seeds(plan: Plan, seeds: u64, of: impl Fn(u64) -> sim::Told) -> Option<sim::Told> {
    let asked = |name: &str| option_env(name).and_then(|text| text.parse::<u64>().ok());
    let seeds = match asked("CONTROL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = asked("CONTROL_FROM").unwrap_or(0);
            first..first + asked("CONTROL_SEEDS").unwrap_or(seeds)
        }
    };
    let mut told = sim::Told::default();
    for seed in seeds {
        let result = catch_unwind(AssertUnwindSafe(|| of(seed)));
        match result {
            Ok(of) => told.add(of),
            Err(_) => panic!(
                "seed {seed} of {plan:?} failed; again: CONTROL_SEED={seed} cargo test -p canopy-control --test simulation {}",
                std::thread::current().name().unwrap_or_default()
            ),
        }
    }
    println!("{plan:?}: {told:?}");
    asked("CONTROL_SEED").is_none().then_some(told)
}

#[allow(clippy::disallowed_methods, reason = "a test may be told which seeds to run")]
fn option_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
fn seeds_without_crashes_let_nobody_in_before_its_reservation() {
    run(Plan::Calm, 80);
}

#[test]
fn seeds_with_failing_links_and_relays_never_form_a_circle() {
    run(Plan::Failing, 120);
}

#[test]
fn seeds_with_crashes_and_failures_settle_without_orphans() {
    run(Plan::Stormy, 120);
}

/// A relay that only says that it has let go of a branch closes a circle, in storms as in any weather.
#[test]
fn relays_that_keep_what_they_are_to_let_go_of_are_seen() {
    for plan in [Plan::Failing, Plan::Stormy] {
        let why = (0..20).find_map(|seed| {
            let mut sim = Sim::new(seed, plan, false);
            sim.relays.iter_mut().for_each(|relay| relay.clings = true);
            let why = catch_unwind(AssertUnwindSafe(|| sim.run())).err()?;
            why.downcast_ref::<String>().filter(|why| why.contains("closes a circle")).cloned()
        });
        assert!(why.is_some(), "{plan:?}");
    }
}

#[test]
fn links_that_are_removed_at_once_are_seen_to_lose() {
    let why = (0..80).find_map(|seed| {
        let sim = Sim::new(seed, Plan::Calm, false);
        let sim = Sim { removes_at_once: true, ..sim };
        let why = catch_unwind(AssertUnwindSafe(|| sim.run())).err()?;
        why.downcast_ref::<String>().filter(|why| why.contains("has no way, though")).cloned()
    });
    assert!(why.is_some());
}

#[test]
fn seeds_whose_controller_dies_halfway_through_moves_keep_all_ways_up() {
    run(Plan::Dying, 100);
    run_worlds(Plan::Dying, 60, true);
    // These found faults.
    for seed in [261, 335, 1582] {
        for is_meshed in [false, true] {
            Sim::new(seed, Plan::Dying, is_meshed).run();
        }
    }
}

#[test]
fn seeds_of_meshed_worlds_are_moved_and_drained_around_their_cores() {
    // In this one a tree shrinks to one relay, and grows anew before that relay has heard of it.
    Sim::new(363, Plan::Calm, true).run();
    let plans = [(Plan::Calm, 100), (Plan::Failing, 120), (Plan::Stormy, 150)];
    let told = plans.map(|(plan, seeds)| run_worlds(plan, seeds, true));
    if let [Some(calm), Some(failing), Some(stormy)] = told {
        let joined = [calm, failing, stormy].map(|told| told.joined_mesh);
        assert!(joined[0] > 10 && joined[1] > 0 && joined[2] > 10, "{joined:?}");
        // Few seeds that fail have one that refuses.
        let refused = [calm.refused_peers, failing.refused_peers + stormy.refused_peers];
        assert!(refused[0] > 10 && refused[1] > 0, "{refused:?}");
        let swapped = [calm, failing, stormy].map(|told| told.swapped_below_mesh);
        assert!(swapped[0] > 10 && swapped[2] > 2, "{swapped:?}");
    }
}

#[test]
fn seeds_whose_meshed_core_becomes_another_one_deliver_once_at_any_moment() {
    for plan in [Plan::Calm, Plan::Dying] {
        let told = run_seeds(plan, 60, |seed| peering::another_core(seed, plan));
        if let Some(told) = told {
            assert!(told.left_mesh >= 30 && told.joined_mesh >= 60, "{told:?}");
            assert!(plan == Plan::Calm || told.died_halfway > 20, "{told:?}");
        }
    }
}
