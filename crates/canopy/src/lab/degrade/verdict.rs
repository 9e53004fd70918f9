//! What a run says of the promises that `docs/degrade.md` calls reached.

use canopy_bots::degrade::{BudgetSummary, Summary};
use canopy_output::verdict::Finding;

/// The least of Jain's index where each viewer has a budget of its own.
const FAIR: f64 = 0.99;
/// And where all of them are behind one link.
const FAIR_BEHIND_A_LINK: f64 = 0.95;
/// The least utilisation.
const USED: f64 = 0.97;
/// The 99th percentile of the age of what is nearest, in ticks.
const TICKS: f64 = 2.0;
/// The longest time without anything of a walker, milliseconds: the floor's interval, and a tenth.
const LONGEST_GAP_MS: f64 = 2_200.0;
/// The least part of their fair share that comes of the ten that are nearest.
const NEAR_OF_FAIR: f64 = 0.95;
/// How the age of what is known is to follow distance at least, where the budget binds.
const AGE_FOLLOWS: f64 = 0.95;
/// At less, in percent of the demand, most of a crowd is at the floor, near or far.
const ABOVE_FLOORS: f64 = 10.0;

/// What was not as promised. If the kernel dropped datagrams before the viewers, nothing can be told.
pub(super) fn findings(summary: &Summary, tick_ms: f64, is_shared: bool) -> Vec<Finding> {
    if summary.datagrams_lost > 0 {
        let lost = summary.datagrams_lost;
        let what = format!("the kernel dropped {lost} datagrams before the viewers");
        return vec![Finding::TooBusy(what)];
    }
    summary.budgets.iter().flat_map(|budget| of_budget(budget, tick_ms, is_shared)).collect()
}

/// What is shown and not judged.
pub(super) fn not_judged(is_shared: bool) -> &'static str {
    match is_shared {
        true => "all but Jain's index is shown and not judged",
        false => {
            "shown and not judged: errors in updates, bytes beyond the budget, gaps beyond 1.1 fair intervals and a tick; \
             below 10 % of the demand also what the nearest ten got, and there and at 100 % how age follows distance"
        }
    }
}

fn of_budget(of: &BudgetSummary, tick_ms: f64, is_shared: bool) -> Vec<Finding> {
    let fair = if is_shared { FAIR_BEHIND_A_LINK } else { FAIR };
    let oldest = TICKS * tick_ms;
    let mut broken = vec![(
        of.jfi_weighted < fair,
        format!("Jain's index is {:.4}, less than {fair}", of.jfi_weighted),
    )];
    // Control packets take a part of a link, and the relay behind it has no tick.
    if !is_shared {
        let (used, age, gap) = (of.utilisation, of.nearest_ten_age_p99_ms, of.longest_gap_ms);
        broken.extend([
            (used < USED, format!("{:.1} % of the fair bits came, less than 97 %", used * 100.0)),
            (age > oldest, format!("what is nearest is {age:.0} ms old, more than {oldest:.0} ms")),
            (gap > LONGEST_GAP_MS, format!("nothing came for {gap:.0} ms, more than 2,200 ms")),
        ]);
        broken.extend(by_distance(of));
    }
    let broken = broken.into_iter().filter(|(is_broken, _)| *is_broken);
    broken.map(|(_, what)| Finding::Broken(format!("at {} %: {what}", of.budget))).collect()
}

/// What near ones keep, and what far ones lose, where the budget leaves a choice.
fn by_distance(of: &BudgetSummary) -> [(bool, String); 2] {
    let (near, follows) = (of.nearest_ten_of_fair, of.age_follows_distance);
    let is_judged = of.budget >= ABOVE_FLOORS;
    [
        (
            is_judged && near < NEAR_OF_FAIR,
            format!(
                "the nearest ten got {:.1} % of their fair share, less than 95 %",
                near * 100.0
            ),
        ),
        (
            is_judged && of.budget < 100.0 && follows < AGE_FOLLOWS,
            format!("the age of what is known follows distance by {follows:.2}, less than 0.95"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run at 10 % in which all is as it should be.
    fn good() -> Summary {
        let budget = BudgetSummary {
            budget: 10.0,
            budget_bits: 1e5,
            bytes_per_update: 90.0,
            jfi_weighted: 0.9991,
            worst_error_updates: 1.7,
            foreseen_error_updates: None,
            error_p50_updates: 1.1,
            error_p99_updates: 1.3,
            utilisation: 1.0,
            over_budget_bytes: 700.0,
            nearest_ten_of_fair: 0.991,
            nearest_ten_age_p99_ms: 85.0,
            longest_gap_ms: 2_100.0,
            worst_gap_excess_ms: 0.0,
            worst_gap_beyond_one_ms: 0.0,
            foreseen_gap_excess_ms: None,
            foreseen_gap_beyond_one_ms: None,
            age_follows_distance: 1.0,
            drop_tail_jfi: 0.1,
            random_jfi: 0.8,
        };
        Summary {
            jfi_weighted: budget.jfi_weighted,
            worst_error_updates: budget.worst_error_updates,
            utilisation: budget.utilisation,
            over_budget_bytes: budget.over_budget_bytes,
            longest_gap_ms: budget.longest_gap_ms,
            datagrams_lost: 0,
            bytes_per_update: 90.0,
            budgets: vec![budget],
        }
    }

    #[test]
    fn each_promise_can_be_broken() {
        assert!(findings(&good(), 50.0, false).is_empty());
        type Spoil = fn(&mut BudgetSummary);
        let spoil: [(Spoil, &str); 6] = [
            (|of| of.jfi_weighted = 0.98, "Jain"),
            (|of| of.utilisation = 0.96, "96.0 %"),
            (|of| of.nearest_ten_age_p99_ms = 101.0, "101 ms old"),
            (|of| of.longest_gap_ms = 2_300.0, "2300 ms"),
            (|of| of.nearest_ten_of_fair = 0.94, "94.0 %"),
            (|of| of.age_follows_distance = 0.93, "0.93"),
        ];
        for (spoil, says) in spoil {
            let mut summary = good();
            spoil(&mut summary.budgets[0]);
            let found = findings(&summary, 50.0, false);
            let [Finding::Broken(what)] = &found[..] else { panic!("{found:?}") };
            assert!(what.contains(says) && what.contains("at 10 %"), "{what}");
            summary.datagrams_lost = 4;
            let found = findings(&summary, 50.0, false);
            assert!(matches!(&found[..], [Finding::TooBusy(_)]), "{found:?}");
        }
    }

    #[test]
    fn what_is_at_the_floor_says_nothing_of_distance() {
        let mut summary = good();
        let of = &mut summary.budgets[0];
        (of.budget, of.nearest_ten_of_fair, of.age_follows_distance) = (5.0, 0.9, 0.8);
        assert!(findings(&summary, 50.0, false).is_empty());
        // And where everything comes, age does not grow with distance.
        (summary.budgets[0].budget, summary.budgets[0].nearest_ten_of_fair) = (100.0, 1.0);
        assert!(findings(&summary, 50.0, false).is_empty());
    }

    #[test]
    fn behind_a_link_only_fairness_is_promised() {
        let mut summary = good();
        let of = &mut summary.budgets[0];
        (of.jfi_weighted, of.utilisation, of.longest_gap_ms) = (0.96, 0.44, 4_000.0);
        assert!(findings(&summary, 50.0, true).is_empty());
        summary.budgets[0].jfi_weighted = 0.94;
        assert_eq!(findings(&summary, 50.0, true).len(), 1);
    }
}
