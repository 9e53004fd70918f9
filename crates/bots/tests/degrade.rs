//! Viewers of a crowd over real sockets: what comes is measured as it is.

use canopy_bots::degrade::{
    Allowance, DegradeConfig, Phases, Recording, Scheme, Script, measure, run,
};
use canopy_bots::{Generated, Trace};
use canopy_node::{Command, NodeConfig, RunningRelay};
use canopy_relay::{Budget, Change, Mode};
use canopy_wire::{Comtree, Weight};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(50);
const WALKERS: u32 = 12;
const RATE: f64 = 20.0;

/// The nearer the more.
fn weight_of(distance: f64) -> Weight {
    Weight::nearest(1.0 / (1.0 + distance as f32))
}

/// A crowd with three viewers at each budget, through a relay that is told of them or not.
fn record(budgets: &[f64], is_told: bool, asked: Sender<Vec<Allowance>>) -> Recording {
    let second = Duration::from_secs(1);
    let phases = Phases { unbounded: second, settling: second / 2, tail: second / 2 };
    let crowd = Generated { seed: 5, walkers: WALKERS, side: 10.0, seconds: 5.0, rate: RATE };
    let script = Script::new(&Trace::generate(&crowd), 2.0, 3, phases).unwrap();
    let mode = Mode::Periodic { tick: TICK };
    let relay = RunningRelay::start(&NodeConfig { mode, ..NodeConfig::loopback() }).unwrap();
    let config = DegradeConfig {
        walkers_at: relay.address().into(),
        viewers_at: relay.address().into(),
        comtree: Comtree(1),
        budgets: budgets.to_vec(),
        is_shared: false,
        bytes: 80,
        weight_of,
        tick: TICK,
        floor: 0.5,
    };
    let watch = relay.watch();
    let allow = move |allowances: Vec<Allowance>| {
        for Allowance { viewer, bits } in allowances.iter().filter(|_| is_told) {
            let budget = Budget { down_bits: *bits, ..Budget::default() };
            let change = Change::SetBudget { comtree: Comtree(1), address: *viewer, budget };
            watch.apply(change).map_err(|error| error.to_string())?;
        }
        asked.send(allowances).map_err(|error| error.to_string())
    };
    let recording = run(&config, &script, &AtomicBool::new(false), allow, |_| ()).unwrap();
    relay.watch().command(Command::Stop);
    relay.join().unwrap();
    recording
}

#[test]
fn what_a_relay_sends_to_viewers_is_measured_as_it_is() {
    let (asked, allowances) = channel();
    let recording = record(&[100.0, 20.0], false, asked);
    let allowances = allowances.recv().unwrap();
    let bits = |viewer: usize| allowances[viewer].bits as f64;
    assert_eq!(allowances.len(), 6);
    // The busiest second has all eleven walkers beside its own, 80 bytes and some more for each update.
    let least = 8.0 * 80.0 * f64::from(WALKERS - 1) * RATE;
    assert!((least..2.0 * least).contains(&bits(0)), "{allowances:?}");
    assert!((bits(0) / bits(3) - 5.0).abs() < 0.01, "{allowances:?}");

    let measured = measure(&recording, |_| ());
    let [whole, fifth] = &measured.summary.budgets[..] else { panic!("{measured:?}") };
    assert!(whole.jfi_weighted > 0.99 && whole.worst_error_updates < 5.0, "{whole:?}");
    // Nothing held the viewers to a fifth: they got five times what was theirs.
    assert!((4.0..6.0).contains(&fifth.utilisation), "{fifth:?}");
    assert!(fifth.over_budget_bytes > 1000.0, "{fifth:?}");
    for shares in measured.shares.iter().filter(|shares| shares.scheme == Scheme::Ours) {
        for row in &shares.rows {
            assert!((row.delivered_hz - row.demand_hz).abs() < 0.1, "{row:?}");
            assert!((row.demand_hz - RATE).abs() < 0.5, "{row:?}");
        }
    }
    let fair: Vec<f64> = measured.shares[3].rows.iter().map(|row| row.fair_hz).collect();
    assert!(fair[0] > 1.5 * fair[fair.len() - 1], "near ones are due more: {fair:?}");
}

/// Not how well the relay does it, which a busy machine does not show, but that it does it at all.
#[test]
fn a_budget_is_kept_and_the_near_get_more() {
    let (asked, _allowances) = channel();
    let measured = measure(&record(&[25.0], true, asked), |_| ());
    let [budget] = &measured.summary.budgets[..] else { panic!("{measured:?}") };
    assert!((0.8..1.1).contains(&budget.utilisation), "{budget:?}");
    let rows = &measured.shares[0].rows;
    let (nearest, farthest) = (rows[0], rows[rows.len() - 1]);
    assert!(nearest.delivered_hz > farthest.delivered_hz, "{rows:?}");
    let came: f64 =
        rows.iter().map(|row| row.delivered_hz / row.demand_hz * row.updates as f64).sum();
    let sent: u64 = rows.iter().map(|row| row.updates).sum();
    assert!((0.1..0.35).contains(&(came / sent as f64)), "{rows:?}");
}
