//! What is important, or for one participant's eyes, goes before all that is not: over each shaped link, and to each who
//! has a budget.

use super::Model;
use super::updates::{Due, Update};
use crate::overlay::shape::Hop;
use canopy_wire::Time;
use std::time::Duration;

/// How long it waits at most for a shaped link, or for what somebody may be sent: these bear far more than is urgent.
pub(super) const URGENT_WAITS: Duration = Duration::from_millis(1000);
/// The path between a relay and a participant takes no longer.
const ACCESS: Duration = Duration::from_millis(100);

impl Model {
    /// All that has become of an update is known: if it is urgent, nothing that is not may have gone while it waited.
    pub(super) fn check_precedence(&mut self, now: Time, number: usize) {
        let update = &self.updates[number];
        if !update.is_urgent() {
            return;
        }
        let Some(what) = update.due.iter().find_map(|due| self.gone_before(update, due)) else {
            return;
        };
        let id = self.first + number as u64;
        self.broken(now, || format!("update {id}, which is urgent, waited {what}"));
    }

    /// What went first on the way to somebody, while an update was there already.
    fn gone_before(&self, update: &Update, due: &Due) -> Option<String> {
        let got = due.got.filter(|_| !self.is_excused(update, due))?;
        let ends = (update.relay, due.relay);
        let takes = self.patience.deliver + self.flooded_wait(update.comtree, ends);
        let mut ready = update.at + takes;
        for hop in self.shaped_on_way(update.at, update.comtree, ends) {
            let (_, went) = *update.over.iter().find(|(over, _)| *over == hop)?;
            if self.plain(update).any(|other| goes_over(other, hop, (ready, went))) {
                return Some(format!("from {ready} to {went} for {hop:?}, and others went"));
            }
            ready = went + takes;
        }
        self.scenario.budgets[due.number]?;
        let times = (ready + ACCESS, got - ACCESS);
        let reaches = |other: &Update| {
            let to_it =
                |number: usize, at: Time| number == due.number && times.0 < at && at < times.1;
            other.due.iter().any(|one| one.got.is_some_and(|at| to_it(one.number, at)))
                || other.others.iter().any(|(number, _, at)| to_it(*number, *at))
        };
        let waited = || format!("from {ready} to {got} for participant {}", due.number);
        self.plain(update).any(reaches).then(|| format!("{}, and others went", waited()))
    }

    /// The updates on an update's comtree that are not urgent.
    fn plain(&self, update: &Update) -> impl Iterator<Item = &Update> {
        let comtree = update.comtree;
        self.updates.iter().filter(move |one| one.comtree == comtree && !one.is_urgent())
    }
}

/// Whether an update was sent over a link between two times.
fn goes_over(update: &Update, hop: Hop, (from, until): (Time, Time)) -> bool {
    update.over.iter().any(|(over, at)| *over == hop && from < *at && *at < until)
}
