//! The demo's relays: in this process, joined to a tree, with links that can be cut and relays that
//! can be killed.

use super::start_on_a_free_port;
use crate::lab::topology::{Branch, Core, Join, Shape, Topology};
use crate::settings::RelaySettings;
use crate::token::random;
use anyhow::{Context, bail};
use canopy_node::{Command, Health, NodeConfig, RelayWatch, RunningRelay, ThreadStatus};
use canopy_relay::{BranchConfig, BranchId, Budget, Change, LinkConfig};
use canopy_session::{Identity, PublicKey};
use canopy_wire::{Address, Comtree};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What may be done to the relays. Relays and joins have numbers from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Cut the link of a join.
    Cut(usize),
    /// Mend it.
    Mend(usize),
    /// Kill a relay: it stops without a word to anybody.
    Kill(usize),
    /// Start it again, with its key and at its address.
    Revive(usize),
}

/// The demo's relays.
pub(crate) struct DemoRelays {
    pub(crate) topology: Topology,
    relays: Vec<DemoRelay>,
    /// Held while something is done to them.
    running: Mutex<Vec<Option<RunningRelay>>>,
    /// Held for a moment at a time: whoever looks must not wait for a relay that starts.
    shown: Mutex<Shown>,
}

/// What stays of a relay, whether it runs or not.
struct DemoRelay {
    config: NodeConfig,
    key: PublicKey,
}

/// What can be seen of the relays.
struct Shown {
    watches: Vec<Option<RelayWatch>>,
    cut: Vec<bool>,
    /// What relays had counted when they were killed.
    ended: ThreadStatus,
}

/// How the relays are.
pub(crate) struct Look {
    /// Of each relay; `None` if it was killed.
    pub(crate) relays: Vec<Option<ThreadStatus>>,
    /// Of each join, whether it was cut.
    pub(crate) cut: Vec<bool>,
    /// All of them together, with what those had counted that were killed.
    pub(crate) all: ThreadStatus,
}

/// How long the links may take until they are up.
const UP_LIMIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Look {
    /// Whether so many links are up, each at both ends.
    fn are_all_up(&self, links: usize) -> bool {
        let ends = self.relays.iter().flatten().flat_map(|status| &status.links);
        ends.filter(|link| link.is_up).count() == 2 * links
    }
}

impl DemoRelays {
    /// Starts so many relays with the same settings, joined to a binary tree whose root is the core. The
    /// first has the address and the key of the settings; the data threads are shared out to all.
    pub(super) fn start(settings: &RelaySettings, relays: usize) -> anyhow::Result<DemoRelays> {
        let topology = Topology::new(relays, Shape::Tree, Core::One)?;
        let mut all = DemoRelays {
            running: Mutex::default(),
            shown: Mutex::new(Shown {
                watches: Vec::new(),
                cut: vec![false; topology.joins.len()],
                ended: ThreadStatus::default(),
            }),
            relays: Vec::new(),
            topology,
        };
        for number in 0..relays {
            let mut config = one_of(settings, number, relays)?;
            let relay = start_on_a_free_port(&mut config)?;
            config.listen = relay.address();
            all.relays.push(DemoRelay { config, key: relay.key() });
            lock(&all.shown).watches.push(Some(relay.watch()));
            lock(&all.running).push(Some(relay));
        }
        for number in 0..relays {
            all.join(number)?;
        }
        Ok(all)
    }

    /// Where they listen, and by which keys they are known.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (SocketAddr, PublicKey)> {
        self.relays.iter().map(|relay| (relay.config.listen, relay.key))
    }

    /// The first relay, as long as it was not killed.
    pub(super) fn first(&self) -> Option<RelayWatch> {
        lock(&self.shown).watches.first().cloned().flatten()
    }

    /// How they are, a fifth of a second ago at most.
    pub(crate) fn look(&self) -> Look {
        let shown = lock(&self.shown);
        let status =
            |watch: &RelayWatch| (watch.health() == Health::Serving).then(|| watch.status());
        let relays: Vec<_> =
            shown.watches.iter().map(|watch| watch.as_ref().and_then(status)).collect();
        let mut all = shown.ended.clone();
        relays.iter().flatten().for_each(|status| all.add(status));
        Look { relays, cut: shown.cut.clone(), all }
    }

    /// Waits until every link is up, for [`UP_LIMIT`] at most: whoever looks on sees what is not.
    pub(super) async fn come_up(&self) {
        let started = Instant::now();
        while !self.look().are_all_up(self.topology.joins.len()) && started.elapsed() < UP_LIMIT {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Does something to them, and returns when it is done.
    ///
    /// # Errors
    /// If there is no such relay or join, it is so already, or a relay refuses.
    pub(crate) fn act(&self, deed: Deed) -> anyhow::Result<()> {
        match deed {
            Deed::Cut(join) => self.set_cut(join, true),
            Deed::Mend(join) => self.set_cut(join, false),
            Deed::Kill(relay) => self.kill(relay),
            Deed::Revive(relay) => self.revive(relay),
        }
    }

    /// Gives the participant that is walker number so-and-so another budget at its relay.
    pub(super) fn set_budget(
        &self,
        walker: u32,
        (comtree, address): (Comtree, Address),
        budget: Budget,
    ) -> anyhow::Result<()> {
        let number = walker as usize % self.relays.len();
        let watch = lock(&self.shown).watches[number].clone();
        let watch = watch.with_context(|| format!("relay {number} does not run"))?;
        Ok(watch.apply(Change::SetBudget { comtree, address, budget })?)
    }

    /// Ends all of them.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        let all: Vec<RunningRelay> = running.iter_mut().filter_map(Option::take).collect();
        all.iter().for_each(|relay| relay.watch().command(Command::Stop));
        all.into_iter().map(RunningRelay::join).fold(Ok(()), Result::and)
    }

    /// A link is cut at its end towards the core, which then knows nothing of it; the other end goes
    /// on calling, as it would if a cable were cut.
    fn set_cut(&self, join: usize, cut: bool) -> anyhow::Result<()> {
        let Some(Join { relays: [near, far], .. }) = self.topology.joins.get(join).copied() else {
            bail!("there is no link {join}");
        };
        let running = lock(&self.running);
        if lock(&self.shown).cut[join] == cut {
            bail!("link {join} is {} already", if cut { "cut" } else { "whole" });
        }
        if let Some(relay) = &running[near] {
            if cut {
                let (key, thread) = (self.relays[far].key, self.thread(join));
                relay.watch().apply(Change::RemoveLink { key, thread })?;
            } else {
                let mut branches = self.topology.branches(near);
                let branch = branches.find(|branch| branch.join == join);
                branch.map_or(Ok(()), |branch| self.add(relay, near, branch))?;
            }
        }
        lock(&self.shown).cut[join] = cut;
        Ok(())
    }

    fn kill(&self, number: usize) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        let Some(relay) = running.get_mut(number).and_then(Option::take) else {
            bail!("relay {number} does not run");
        };
        let mut shown = lock(&self.shown);
        if let Some(watch) = shown.watches[number].take() {
            watch.command(Command::Stop);
            let ThreadStatus { counters, cpu, .. } = watch.status();
            shown.ended.add(&ThreadStatus { counters, cpu, ..ThreadStatus::default() });
        }
        drop(shown);
        relay.join()
    }

    fn revive(&self, number: usize) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        if running.get(number).is_none_or(Option::is_some) {
            bail!("relay {number} runs already, or there is none");
        }
        let relay = RunningRelay::start(&self.relays[number].config)?;
        lock(&self.shown).watches[number] = Some(relay.watch());
        running[number] = Some(relay);
        drop(running);
        self.join(number)
    }

    /// Gives a relay its links and branches, but those that are cut at its end.
    fn join(&self, number: usize) -> anyhow::Result<()> {
        let running = lock(&self.running);
        let cut = lock(&self.shown).cut.clone();
        let Some(relay) = &running[number] else { return Ok(()) };
        for branch in self.topology.branches(number) {
            let is_near = self.topology.joins[branch.join].relays[0] == number;
            if !(cut[branch.join] && is_near) {
                self.add(relay, number, branch)?;
            }
        }
        Ok(())
    }

    /// Gives a relay one link, and its branches: one for each comtree.
    fn add(&self, relay: &RunningRelay, number: usize, branch: Branch) -> anyhow::Result<()> {
        let Branch { neighbour, role, join } = branch;
        let (watch, thread) = (relay.watch(), self.thread(join));
        let DemoRelay { config, key } = &self.relays[neighbour];
        // The end away from the core calls.
        let calls = self.topology.joins[join].relays[1] == number;
        let link = LinkConfig { key: *key, path: config.listen.into(), thread, calls };
        watch.apply(Change::AddLink(link)).context("the demo's relays cannot be joined")?;
        for comtree in &config.comtrees {
            let id = BranchId { comtree: comtree.comtree, link: *key, thread };
            watch
                .apply(Change::AddBranch(BranchConfig { id, role, site: comtree.site }))
                .context("the demo's relays cannot be joined")?;
        }
        Ok(())
    }

    /// The data thread that has a join's link, on both sides.
    fn thread(&self, join: usize) -> u16 {
        let threads = self.relays.first().map_or(1, |relay| relay.config.threads);
        (join % usize::from(threads.max(1))) as u16
    }
}

/// The settings of one of so many relays: its own key, sites and, but for the first, address.
fn one_of(settings: &RelaySettings, number: usize, relays: usize) -> anyhow::Result<NodeConfig> {
    let mut config = settings.node.clone();
    config.threads = (usize::from(config.threads) / relays).max(1) as u16;
    if number > 0 {
        config.listen.set_port(0);
        config.identity = None;
        config.life = None;
    }
    if config.identity.is_none() {
        config.identity = Some(Identity::new(random()?));
    }
    for comtree in &mut config.comtrees {
        // Whatever the settings say, no two have one.
        comtree.site = ((usize::from(comtree.site) + number) % SITES) as u16;
    }
    Ok(config)
}

/// How many sites there are.
const SITES: usize = 1 << 15;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
