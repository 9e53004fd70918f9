//! Looks at each moment whether an update of everybody arrives at everybody once.

use crate::bed::Bed;
use crate::flooding::{At, check_once, has_two_ways};
use canopy_control::RelayId;
use canopy_control::signal::{Branch, Role};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// What was sent before relays were told has arrived after this, and what has passed is known for so long.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(1);
const KNOWN: Duration = Duration::from_secs(2);

/// By relay: what each neighbour is to it.
pub(crate) type Roles = Vec<Vec<(u16, Role)>>;

/// All relays' branches, again and again, and since when.
pub(crate) struct Watch {
    doubled: Vec<Option<Time>>,
    with_members: Vec<RelayId>,
    pub(crate) seen: Vec<(Time, Roles)>,
}

impl Watch {
    pub(crate) fn new(relays: usize) -> Watch {
        Watch::of(&(0..relays).collect::<Vec<_>>(), relays)
    }

    /// The same, with members at these relays alone.
    pub(crate) fn of(with_members: &[usize], relays: usize) -> Watch {
        let with_members = with_members.iter().map(|at| RelayId(*at as u16 + 1)).collect();
        Watch { doubled: vec![None; relays], with_members, seen: Vec::new() }
    }

    /// Goes on until it is over, and looks at each moment that an update of everybody arrives at everybody once.
    pub(crate) fn run(
        &mut self,
        bed: &mut Bed,
        steps: usize,
        mut is_over: impl FnMut(&Bed) -> bool,
    ) {
        for _ in 0..steps {
            if is_over(bed) {
                return;
            }
            bed.tick(|_| true);
            let comtree = bed.comtree();
            for (_, side) in &mut bed.relays {
                side.set_succeeded(bed.now, comtree);
            }
            let at = |at: usize| (RelayId(at as u16 + 1), self.look(at, bed.now, bed.branches(at)));
            let relays: BTreeMap<RelayId, At> = (0..bed.relays.len()).map(at).collect();
            assert_eq!(check_once(&relays, &self.with_members), Ok(()));
            let roles = (0..bed.relays.len()).map(|at| bed.roles(at));
            let roles: Roles = roles.collect();
            if self.seen.last().is_none_or(|(_, before)| *before != roles) {
                self.seen.push((bed.now, roles));
            }
        }
        panic!("it is not over: {:#?}", self.seen);
    }

    /// The same for so many ticks, whether it is over or not.
    pub(crate) fn run_for(&mut self, bed: &mut Bed, ticks: usize) {
        let mut left = ticks;
        self.run(bed, ticks + 1, |_| {
            let is_over = left == 0;
            left = left.saturating_sub(1);
            is_over
        });
    }

    fn look(&mut self, at: usize, now: Time, branches: Vec<Branch>) -> At {
        if has_two_ways(&branches) {
            self.doubled[at] = Some(now);
        }
        let passes_once = self.doubled[at].is_some_and(|last| last + KNOWN >= now);
        At { branches, passes_once }
    }

    /// How long relays had exactly these roles.
    pub(crate) fn lasted(&self, is: impl Fn(&Roles) -> bool) -> Duration {
        let at = self.seen.iter().position(|(_, roles)| is(roles)).expect("it was so");
        self.seen[at + 1].0.since(self.seen[at].0)
    }
}
