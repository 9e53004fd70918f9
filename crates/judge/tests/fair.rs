//! What a fair share is, whatever the weights: held against its definition, not against a second way
//! to compute it.

use canopy_judge::fair::{Flow, Fluid, fair_rates};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// What rounding may do.
const CLOSE: f64 = 1e-6;

/// Weights over more than six decades, and demands, floors and costs of a busy world.
fn flow() -> impl Strategy<Value = Flow> {
    let cost = prop_oneof![Just(0.001), 0.0001..0.01];
    let floor = prop_oneof![Just(0.0), 0.01..2.0];
    (-3.5..3.5, 0.1..60.0, floor, cost).prop_map(|(decade, demand, floor, cost)| Flow {
        weight: 10f64.powf(decade),
        demand,
        floor,
        cost,
    })
}

fn flows() -> impl Strategy<Value = Vec<Flow>> {
    prop::collection::vec(flow(), 1..80)
}

/// With costs as if the budget were so many times as large.
fn under(budget: f64, flows: &[Flow]) -> Vec<Flow> {
    flows.iter().map(|flow| Flow { cost: flow.cost / budget, ..*flow }).collect()
}

fn floor(flow: &Flow) -> f64 {
    flow.floor.min(flow.demand)
}

fn cost(flows: &[Flow], rate: impl Fn(usize, &Flow) -> f64) -> f64 {
    flows.iter().enumerate().map(|(number, flow)| rate(number, flow) * flow.cost).sum()
}

/// Rates of the same flows before and after a change that leaves less for each of them.
fn none_gains(before: &[f64], after: &[f64]) -> Result<(), TestCaseError> {
    for (before, after) in before.iter().zip(after) {
        prop_assert!(*after <= before * (1.0 + CLOSE) + CLOSE, "{before} became {after}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        rng_seed: RngSeed::Fixed(0xfa12),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Nobody gets more than it sends or less than its floor, and nothing is left that somebody wants.
    #[test]
    fn a_budget_is_used_and_not_overdrawn(flows in flows()) {
        let rates = fair_rates(&flows);
        let all = cost(&flows, |_, flow| flow.demand);
        let spent = cost(&flows, |number, _| rates[number]);
        prop_assert!((spent - all.min(1.0)).abs() < CLOSE, "spent {spent} of {all}");
        let floors_fit = cost(&flows, |_, flow| floor(flow)) <= 1.0;
        for (flow, rate) in flows.iter().zip(&rates) {
            prop_assert!(*rate <= flow.demand && *rate >= 0.0);
            prop_assert!(!floors_fit || *rate >= floor(flow), "{flow:?} gets {rate}");
        }
    }

    /// Max-min: whoever has more than its floor has no more, for its weight, than anybody who wants more.
    #[test]
    fn nobody_who_wants_more_has_less_for_its_weight(flows in flows()) {
        let rates = fair_rates(&flows);
        prop_assume!(cost(&flows, |_, flow| floor(flow)) < 1.0);
        let is_rich = |(flow, rate): &(&Flow, &f64)| **rate > floor(flow) * (1.0 + CLOSE);
        let is_poor = |(flow, rate): &(&Flow, &f64)| **rate < flow.demand * (1.0 - CLOSE);
        let each = || flows.iter().zip(&rates);
        let level = |(flow, rate): (&Flow, &f64)| rate / flow.weight;
        let richest = each().filter(is_rich).map(level).fold(0.0, f64::max);
        let poorest = each().filter(is_poor).map(level).fold(f64::INFINITY, f64::min);
        prop_assert!(richest <= poorest * (1.0 + CLOSE), "{richest} of {poorest}");
    }

    /// If the floors alone are too much, all are scaled down alike.
    #[test]
    fn floors_that_do_not_fit_shrink_alike(flows in flows(), part in 0.01..1.0f64) {
        let all: Vec<_> = flows.iter().map(|flow| Flow { floor: flow.floor + 0.1, ..*flow }).collect();
        let too_little = part * cost(&all, |_, flow| floor(flow));
        for (flow, rate) in all.iter().zip(fair_rates(&under(too_little, &all))) {
            prop_assert!((rate - floor(flow) * part).abs() <= CLOSE, "{rate}");
        }
    }

    /// Only ratios of weights mean anything.
    #[test]
    fn the_scale_of_weights_does_not_matter(flows in flows(), decade in -6.0..6.0f64) {
        let scale = 10f64.powf(decade);
        let scaled: Vec<_> =
            flows.iter().map(|flow| Flow { weight: flow.weight * scale, ..*flow }).collect();
        for (rate, other) in fair_rates(&flows).iter().zip(fair_rates(&scaled)) {
            prop_assert!((rate - other).abs() <= CLOSE * (1.0 + rate), "{rate}, {other}");
        }
    }

    /// A flow that joins takes from the others and gives to none; when it leaves, all is as before. A
    /// smaller budget gives to none either.
    #[test]
    fn who_joins_takes_and_who_leaves_gives(flows in flows(), more in flow(), budget in 0.2..1.0f64) {
        let alone = fair_rates(&flows);
        let mut fluid = Fluid::new(flows.len() + 1);
        for (number, flow) in flows.iter().enumerate() {
            fluid.set(number, Some(*flow));
        }
        let rates = |fluid: &mut Fluid| -> Vec<f64> {
            (0..flows.len()).map(|number| fluid.rate(number)).collect()
        };
        prop_assert_eq!(&rates(&mut fluid), &alone);
        fluid.set(flows.len(), Some(more));
        none_gains(&alone, &rates(&mut fluid))?;
        fluid.set(flows.len(), None);
        prop_assert_eq!(&rates(&mut fluid), &alone);
        none_gains(&alone, &fair_rates(&under(budget, &flows)))?;
    }
}
