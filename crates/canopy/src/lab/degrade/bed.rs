//! The relays that the crowd is walked through, in this process.

use super::super::files::COMTREE;
use canopy_bots::RelayTarget;
use canopy_bots::degrade::Allowance;
use canopy_node::{Command, NodeConfig, RunningRelay};
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Budget, Change, ComtreeConfig, Down, LinkConfig, Mode,
};
use canopy_wire::Comtree;
use std::time::Duration;

/// The data thread that has the link: each relay has one only.
const THREAD: u16 = 0;
/// The sites of both relays, the core's first.
const SITES: [u16; 2] = [1, 2];

/// A relay with one data thread and a tick, without limits but those that it is given; and maybe another
/// below it, with a link between them.
pub(super) struct Bed {
    core: RunningRelay,
    below: Option<RunningRelay>,
}

impl Bed {
    /// One relay.
    pub(super) fn start(tick: Duration) -> anyhow::Result<Bed> {
        let config = NodeConfig { mode: Mode::Periodic { tick }, ..NodeConfig::loopback() };
        Ok(Bed { core: RunningRelay::start(&config)?, below: None })
    }

    /// Two relays. The one below passes on at once what the link brings, so that viewers see when the
    /// link's datagrams come, and how much is in them.
    pub(super) fn with_link(tick: Duration) -> anyhow::Result<Bed> {
        let Bed { core, .. } = Bed::start(tick)?;
        let comtrees = vec![ComtreeConfig::new(Comtree(COMTREE), SITES[1])];
        let config = NodeConfig { comtrees, ..NodeConfig::loopback() };
        let below = RunningRelay::start(&config)?;
        let ends = [&core, &below];
        let roles = [BranchRole::Child, BranchRole::Parent];
        for (here, there) in [(0, 1), (1, 0)] {
            let (key, path) = (ends[there].key(), ends[there].address().into());
            let calls = here == 1;
            let link = LinkConfig { key, path, thread: THREAD, calls };
            let id = BranchId { comtree: Comtree(COMTREE), link: key, thread: THREAD };
            let branch = BranchConfig { id, role: roles[here], site: SITES[there] };
            let watch = ends[here].watch();
            watch.apply(Change::AddLink(link))?;
            watch.apply(Change::AddBranch(branch))?;
        }
        Ok(Bed { core, below: Some(below) })
    }

    /// Where walkers join: the core.
    pub(super) fn walkers_at(&self) -> RelayTarget {
        target(&self.core)
    }

    /// Where viewers join: the relay below, if there is one.
    pub(super) fn viewers_at(&self) -> RelayTarget {
        target(self.below.as_ref().unwrap_or(&self.core))
    }

    /// Gives viewers their budgets, by the queue of changes, as an operator would. If there is a link, it
    /// has the budget, which is the same for all viewers.
    pub(super) fn allow(
        &self,
    ) -> impl FnOnce(Vec<Allowance>) -> Result<(), String> + Send + 'static {
        let watch = self.core.watch();
        let link = self.below.as_ref().map(RunningRelay::key);
        move |allowances| {
            let change = |Allowance { viewer, bits }| match link {
                Some(key) => {
                    let capacity = Down { bits, ..Down::NONE };
                    Change::SetLinkCapacity { key, thread: THREAD, capacity }
                }
                None => {
                    let budget = Budget { down_bits: bits, ..Budget::default() };
                    Change::SetBudget { comtree: Comtree(COMTREE), address: viewer, budget }
                }
            };
            let needed = if link.is_some() { 1 } else { allowances.len() };
            for allowance in allowances.into_iter().take(needed) {
                watch.apply(change(allowance)).map_err(|error| error.to_string())?;
            }
            Ok(())
        }
    }

    pub(super) fn stop(self) -> anyhow::Result<()> {
        for relay in self.below.into_iter().chain([self.core]) {
            relay.watch().command(Command::Stop);
            relay.join()?;
        }
        Ok(())
    }
}

fn target(relay: &RunningRelay) -> RelayTarget {
    RelayTarget { address: relay.address(), key: Some(relay.key()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_bots::degrade::{DegradeConfig, Phases, Script, measure, run};
    use canopy_bots::{Generated, Trace};
    use canopy_client::weight_at;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_link_shares_its_capacity_by_the_weights_of_all_viewers() {
        let tick = Duration::from_millis(50);
        let second = Duration::from_secs(1);
        let phases = Phases { unbounded: 2 * second, settling: second, tail: second / 2 };
        let crowd = Generated { seed: 5, walkers: 12, side: 20.0, seconds: 9.0, rate: 20.0 };
        let script = Script::new(&Trace::generate(&crowd), 5.0, 3, phases).unwrap();
        let bed = Bed::with_link(tick).unwrap();
        let config = DegradeConfig {
            walkers_at: bed.walkers_at(),
            viewers_at: bed.viewers_at(),
            comtree: Comtree(COMTREE),
            budgets: vec![25.0],
            is_shared: true,
            bytes: 80,
            weight_of: |distance| weight_at(distance as f32, 1.0),
            tick,
            floor: 0.5,
        };
        let recording =
            run(&config, &script, &AtomicBool::new(false), bed.allow(), |_| ()).unwrap();
        bed.stop().unwrap();
        let summary = measure(&recording, |_| ()).summary;
        // This machine may be busy: the bounds are wide.
        assert!(summary.jfi_weighted > 0.8, "{summary:?}");
        let random = summary.budgets[0].random_jfi;
        assert!(summary.jfi_weighted > random, "{summary:?}");
        assert!((0.5..1.2).contains(&summary.utilisation), "{summary:?}");
        // What comes at one viewer comes at the other, but for their own walkers.
        let came = |place: usize| recording.viewers[place].arrivals.len() as f64;
        assert!((came(0) / came(1) - 1.0).abs() < 0.3, "{} and {}", came(0), came(1));
    }
}
