//! A run in words.

use canopy_bots::degrade::{BudgetSummary, Measured, Row, Scheme};
use std::fmt::Write;

/// The rows of each budget, and what they come to.
pub(super) fn table(measured: &Measured) -> String {
    let mut text = String::new();
    let ours = measured.shares.iter().filter(|shares| shares.scheme == Scheme::Ours);
    for (shares, summary) in ours.zip(&measured.summary.budgets) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "at {} % of the demand\n  {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>9}",
            shares.budget,
            "metres",
            "sent/s",
            "fair/s",
            "came/s",
            "age p50",
            "p99 ms",
            "gap ms",
            "known p50",
        );
        shares.rows.iter().for_each(|row| text.push_str(&line(row)));
        text.push_str(&in_words(summary));
    }
    text.pop();
    text
}

fn line(row: &Row) -> String {
    format!(
        "  {:>8.1} {:>8.2} {:>8.2} {:>9.2} {:>8.0} {:>8.0} {:>8.0} {:>9.0}\n",
        row.distance_m,
        row.demand_hz,
        row.fair_hz,
        row.delivered_hz,
        row.age_p50_ms,
        row.age_p99_ms,
        row.longest_gap_ms,
        row.known_p50_ms,
    )
}

fn in_words(summary: &BudgetSummary) -> String {
    let at_best = |error: f64| format!(" ({error:.1} if all were known in advance)");
    let at_best = summary.foreseen_error_updates.map(at_best).unwrap_or_default();
    let by_foresight = |excess: f64| format!(" ({excess:.0} ms if all were known in advance)");
    let by_foresight = summary.foreseen_gap_excess_ms.map(by_foresight).unwrap_or_default();
    format!(
        "  Jain's index by fair shares {:.4} (drop-tail {:.3}, random drop {:.3}); at most {:.1} \
         updates off in 10 s{at_best}, half of them at most {:.1}\n  {:.1} % of the fair bits came, {:.0} bytes an update, {:.0} bytes \
         over budget in 100 ms\n  the nearest ten got {:.1} % of theirs, age p99 {:.0} ms; longest \
         gap {:.0} ms, the worst {:.0} ms beyond 1.1 fair intervals and a tick{by_foresight}\n  the age of what is known follows distance by {:.2}\n\n",
        summary.jfi_weighted,
        summary.drop_tail_jfi,
        summary.random_jfi,
        summary.worst_error_updates,
        summary.error_p50_updates,
        summary.utilisation * 100.0,
        summary.bytes_per_update,
        summary.over_budget_bytes,
        summary.nearest_ten_of_fair * 100.0,
        summary.nearest_ten_age_p99_ms,
        summary.longest_gap_ms,
        summary.worst_gap_excess_ms,
        summary.age_follows_distance,
    )
}
