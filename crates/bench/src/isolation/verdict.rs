//! What the rows say of the promise: a world beside a flood is delivered, and its age stays.

use super::Row;
use canopy_output::verdict::{Finding, TOO_BUSY, status};

/// The least share of deliveries.
const DELIVERED: f64 = 0.999;
/// How many times the quiet age the world's may be.
const TIMES_QUIET: f64 = 2.0;

/// What was not as promised. What the kernel dropped before any socket, or what the flooder alone takes from
/// this machine, is not the relay's.
pub(super) fn findings(rows: &[Row]) -> Vec<Finding> {
    rows.iter().flat_map(of_row).collect()
}

/// How many rows ended how.
pub(super) fn tally(rows: &[Row]) -> String {
    let ended = |code: u8| rows.iter().filter(|row| status(&of_row(row)) == code).count();
    let [kept, broken, busy] = [0, 1, TOO_BUSY].map(ended);
    format!(
        "of {} rows, {kept} are as promised, {broken} are not, and {busy} cannot be told",
        rows.len()
    )
}

fn of_row(row: &Row) -> Vec<Finding> {
    let mut found = Vec::new();
    let place = format!("{:?}, {} data threads", row.at, row.threads);
    if row.victim_delivered < DELIVERED {
        let what = format!("{place}: {:.3} % was delivered", row.victim_delivered * 100.0);
        let dropped = row.kernel_backlog_drops + row.kernel_device_drops;
        found.push(match dropped {
            0 if row.quiet_delivered >= DELIVERED => Finding::Broken(what),
            0 => Finding::TooBusy(format!("{what}, and not all without a flood either")),
            dropped => {
                Finding::TooBusy(format!("{what}; the kernel dropped {dropped} before any socket"))
            }
        });
    }
    let most = TIMES_QUIET * row.quiet_age_p99_ms;
    if row.victim_age_p99_ms > most {
        let what = format!(
            "{place}: the age was {:.3} ms, more than twice the {:.3} ms without a flood",
            row.victim_age_p99_ms, row.quiet_age_p99_ms
        );
        found.push(if row.elsewhere_age_p99_ms > most {
            Finding::TooBusy(format!("{what}, as it is if the flood goes elsewhere"))
        } else {
            Finding::Broken(what)
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::Shared;

    fn good() -> Row {
        Row {
            at: Shared::Link,
            threads: 2,
            flood_pps_offered: 400_000.0,
            flood_pps_through: 47_301.0,
            victim_delivered: 1.0,
            victim_age_p99_ms: 0.52,
            quiet_delivered: 1.0,
            quiet_age_p99_ms: 0.281,
            elsewhere_age_p99_ms: 0.41,
            kernel_backlog_drops: 0,
            kernel_device_drops: 0,
            kernel_receive_buffer_drops: 9,
        }
    }

    #[test]
    fn a_loss_is_the_relays_unless_the_kernel_dropped_before_it() {
        assert!(findings(&[good()]).is_empty());
        let lossy = Row { victim_delivered: 0.4, ..good() };
        assert!(matches!(&findings(&[good(), lossy.clone()])[..], [Finding::Broken(_)]));
        let backlog = Row { kernel_backlog_drops: 5, ..lossy.clone() };
        assert!(matches!(&findings(&[backlog])[..], [Finding::TooBusy(_)]));
        let never = Row { quiet_delivered: 0.9, ..lossy };
        assert!(matches!(&findings(&[never])[..], [Finding::TooBusy(_)]));
    }

    #[test]
    fn an_age_is_the_relays_unless_the_flooder_alone_makes_it() {
        let late = Row { victim_age_p99_ms: 0.6, ..good() };
        assert!(matches!(&findings(std::slice::from_ref(&late))[..], [Finding::Broken(_)]));
        let anyway = Row { elsewhere_age_p99_ms: 0.7, ..late };
        assert!(matches!(&findings(&[anyway])[..], [Finding::TooBusy(_)]));
    }

    #[test]
    fn rows_are_counted_by_how_they_ended() {
        let lossy = Row { victim_delivered: 0.25, ..good() };
        // Lost by the kernel, and late by the relay.
        let both = Row { kernel_backlog_drops: 5, victim_age_p99_ms: 0.6, ..lossy.clone() };
        let busy = Row { kernel_backlog_drops: 5, ..lossy.clone() };
        let said = tally(&[good(), lossy, both, busy, good()]);
        assert_eq!(said, "of 5 rows, 2 are as promised, 2 are not, and 1 cannot be told");
    }
}
