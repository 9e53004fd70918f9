//! The demo's relays: in this process, under a controller that is in it too. Relays can be killed and
//! drained, links cut, and the world moved.

use super::follow::follow;
use super::start_on_a_free_port;
use crate::agent::{Agent, AgentConfig, Told, life_by_clock};
use crate::console::{Look, Shown};
use crate::controller::Running;
use crate::net::{self, Controlled};
use crate::settings::RelaySettings;
use crate::token::random;
use anyhow::{Context, bail};
use canopy_control::{Controller, Name, RelayId, TreeAsk};
use canopy_node::{Command, RelayWatch, RunningRelay, ThreadStatus};
use canopy_relay::{Budget, Change};
use canopy_session::{Identity, PublicKey};
use canopy_wire::{Address, Comtree};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

/// What may be done to the demo's overlay. Relays have numbers from 0 on, links those of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Cut a link, as if its cable were.
    Cut(u32),
    /// Mend it.
    Mend(u32),
    /// Kill a relay: it stops without a word to anybody.
    Kill(usize),
    /// Start it again, with its key and at its address.
    Revive(usize),
    /// Have a relay take nobody new, and its worlds move off it.
    Drain(usize),
    /// Let it take members again.
    Undrain(usize),
    /// Make a relay the root of the world's tree.
    Move(usize),
}

/// The demo's relays, and their controller.
pub(crate) struct DemoRelays {
    pub(super) controller: Running,
    world: Name,
    comtree: Comtree,
    relays: Vec<DemoRelay>,
    runtime: tokio::runtime::Handle,
    /// Held while something is done to them.
    running: Mutex<Vec<Option<AtWork>>>,
    /// What pages see of them.
    shown: Arc<Shown>,
}

/// What stays of a relay, whether it runs or not.
struct DemoRelay {
    settings: RelaySettings,
    key: PublicKey,
    agent: AgentConfig,
}

/// A relay that runs, and its agent at the controller.
struct AtWork {
    relay: RunningRelay,
    agent: AbortHandle,
    tell: UnboundedSender<Told>,
}

/// How long relays and links may take until they are up.
const UP_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl DemoRelays {
    /// Starts so many relays with the same settings, which are made for a controller. The first has the
    /// address and the key of the settings; the data threads are shared out to all. To be called in a
    /// tokio runtime.
    pub(super) fn start(
        settings: &RelaySettings,
        relays: usize,
        controller: Running,
        world: (Name, Comtree),
    ) -> anyhow::Result<DemoRelays> {
        let shown = Arc::new(Shown::default());
        follow(&shown, controller.handle.clone(), world.0.to_string());
        let mut all = DemoRelays {
            controller,
            world: world.0,
            comtree: world.1,
            relays: Vec::new(),
            runtime: tokio::runtime::Handle::current(),
            running: Mutex::default(),
            shown,
        };
        for number in 0..relays {
            let mut settings = one_of(settings, number, relays)?;
            let relay = start_on_a_free_port(&mut settings.node)?;
            settings.node.listen = relay.address();
            let agent = all.agent_config(&settings, number)?;
            let one = DemoRelay { settings, key: relay.key(), agent };
            all.shown.relays().watches.push(Some(relay.watch()));
            let at_work = all.put_to_work(&one, relay)?;
            lock(&all.running).push(Some(at_work));
            all.relays.push(one);
        }
        Ok(all)
    }

    /// Where they listen, and by which keys they are known.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (SocketAddr, PublicKey)> {
        self.relays.iter().map(|relay| (relay.settings.node.listen, relay.key))
    }

    /// The first relay, as long as it was not killed.
    pub(super) fn first(&self) -> Option<RelayWatch> {
        self.shown.relays().watches.first().cloned().flatten()
    }

    /// The number of the relay of this name.
    fn number_of(&self, name: &str) -> Option<usize> {
        self.relays.iter().position(|relay| relay.agent.name.as_str() == name)
    }

    /// Their names and keys, in the order of their numbers.
    pub(super) fn names_and_keys(&self) -> Vec<(String, PublicKey)> {
        self.relays.iter().map(|relay| (relay.agent.name.to_string(), relay.key)).collect()
    }

    /// What pages see of them.
    pub(super) fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown)
    }

    /// Waits until every relay and link is up, for [`UP_LIMIT`] at most: whoever looks on sees what is
    /// not.
    pub(super) async fn come_up(&self) {
        let started = Instant::now();
        while !is_all_up(&self.shown.look(), self.relays.len()) && started.elapsed() < UP_LIMIT {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Does something to them, and returns when it is done.
    ///
    /// # Errors
    /// If there is no such relay or link, it is so already, or the controller refuses.
    pub(crate) async fn act(self: &Arc<DemoRelays>, deed: Deed) -> anyhow::Result<()> {
        match deed {
            Deed::Cut(link) => self.set_cut(link, true),
            Deed::Mend(link) => self.set_cut(link, false),
            Deed::Drain(relay) => self.drain(relay, true).await,
            Deed::Undrain(relay) => self.drain(relay, false).await,
            Deed::Move(relay) => self.move_world(relay).await,
            Deed::Kill(relay) => self.wait_for(move |all| all.kill(relay)).await,
            Deed::Revive(relay) => self.wait_for(move |all| all.revive(relay)).await,
        }
    }

    /// Gives a participant another budget at its relay, whichever that is.
    pub(super) fn set_budget(&self, address: Address, budget: Budget) {
        let watches: Vec<_> = self.shown.relays().watches.iter().flatten().cloned().collect();
        for watch in watches {
            // Relays at which nobody has the address refuse.
            let _ = watch.apply(Change::SetBudget { comtree: self.comtree, address, budget });
        }
    }

    /// Ends all of them.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        let all: Vec<AtWork> = running.iter_mut().filter_map(Option::take).collect();
        for AtWork { relay, agent, .. } in &all {
            agent.abort();
            relay.watch().command(Command::Stop);
        }
        all.into_iter().map(|at_work| at_work.relay.join()).fold(Ok(()), Result::and)
    }

    /// Does something that waits for data threads.
    async fn wait_for(
        self: &Arc<DemoRelays>,
        what: impl FnOnce(&DemoRelays) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let all = Arc::clone(self);
        tokio::task::spawn_blocking(move || what(&all)).await.context("it was lost")?
    }

    /// Both ends are told: a cable that is cut is cut for both.
    fn set_cut(&self, link: u32, cut: bool) -> anyhow::Result<()> {
        let look = self.shown.look();
        let found = look.overlay.links.iter().find(|on_map| on_map.link.id == link);
        let ends = found.with_context(|| format!("there is no link {link}"))?;
        let [near, far] = ends.link.ends.clone().map(|name| self.number_of(&name));
        let (Some(near), Some(far)) = (near, far) else { bail!("link {link} is not the demo's") };
        let running = lock(&self.running);
        let mut shown = self.shown.relays();
        if shown.is_cut([near, far]) == cut {
            bail!("link {link} is {} already", if cut { "cut" } else { "whole" });
        }
        for (own, other) in [(near, far), (far, near)] {
            if let Some(at_work) = &running[own] {
                let _ = at_work.tell.send(Told::Cable(self.relays[other].key, cut));
            }
        }
        shown.set_cut([near, far], cut);
        Ok(())
    }

    async fn drain(&self, number: usize, drains: bool) -> anyhow::Result<()> {
        let name = self.name_of(number)?;
        let drain = move |controller: &mut Controller, _| {
            let id: RelayId = controller.relay_named(&name)?.id;
            controller.drain(id, drains)
        };
        Ok(self.controller.handle.change(drain).await??)
    }

    async fn move_world(&self, root: usize) -> anyhow::Result<()> {
        let (world, root) = (self.world.clone(), self.name_of(root)?);
        let change = move |controller: &mut Controller, _| {
            let root = controller.relay_named(&root)?.id;
            controller.move_world(&world, TreeAsk { root: Some(root), ..TreeAsk::default() })
        };
        self.controller.handle.change(change).await??;
        Ok(())
    }

    fn name_of(&self, number: usize) -> anyhow::Result<Name> {
        let relay = self.relays.get(number);
        Ok(relay.with_context(|| format!("there is no relay {number}"))?.agent.name.clone())
    }

    fn kill(&self, number: usize) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        let Some(AtWork { relay, agent, .. }) = running.get_mut(number).and_then(Option::take)
        else {
            bail!("relay {number} does not run");
        };
        agent.abort();
        let mut shown = self.shown.relays();
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
        let relay = RunningRelay::start(&self.relays[number].settings.node)?;
        let watch = relay.watch();
        let at_work = self.put_to_work(&self.relays[number], relay)?;
        let mut shown = self.shown.relays();
        for other in (0..self.relays.len()).filter(|other| shown.is_cut([number, *other])) {
            let _ = at_work.tell.send(Told::Cable(self.relays[other].key, true));
        }
        shown.watches[number] = Some(watch);
        running[number] = Some(at_work);
        Ok(())
    }

    /// Gives a relay that has just been started its agent.
    fn put_to_work(&self, one: &DemoRelay, mut relay: RunningRelay) -> anyhow::Result<AtWork> {
        let (watch, config) =
            (relay.watch(), AgentConfig { life: life_by_clock(), ..one.agent.clone() });
        let net = net::begin(&one.settings, &relay)?;
        let data_plane = Controlled::new(&one.settings, net.clone(), watch.clone());
        let (tell, told) = unbounded_channel();
        if let Some(notices) = relay.take_notices() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                notices.iter().for_each(|notice| Told::tell(&notice, &net, &tell));
            });
        }
        let agent = Agent::new(config, relay.address(), data_plane, watch, told);
        let agent = self.runtime.spawn(agent.run()).abort_handle();
        Ok(AtWork { relay, agent, tell })
    }

    fn agent_config(&self, settings: &RelaySettings, number: usize) -> anyhow::Result<AgentConfig> {
        let identity = settings.node.identity.clone().context("a relay of the demo has a key")?;
        Ok(AgentConfig {
            controller: self.controller.listen.to_string(),
            controller_key: self.controller.key,
            name: Name::new(&format!("relay-{}", number + 1))?,
            uplink: AgentConfig::uplink(UPLINK),
            places: settings.node.max_sessions,
            native: None,
            identity,
            life: life_by_clock(),
        })
    }
}

/// Bits a second that the controller may share out of each relay: loopback has no such limit.
const UPLINK: u64 = 100_000_000_000;

/// The settings of one of so many relays: its own key and, but for the first, address.
fn one_of(settings: &RelaySettings, number: usize, relays: usize) -> anyhow::Result<RelaySettings> {
    let mut settings = settings.clone();
    let node = &mut settings.node;
    node.threads = (usize::from(node.threads) / relays).max(1) as u16;
    if number > 0 {
        node.listen.set_port(0);
        node.identity = None;
        node.life = None;
    }
    if node.identity.is_none() {
        node.identity = Some(Identity::new(random()?));
    }
    Ok(settings)
}

/// Whether the controller has so many relays, and all their links.
fn is_all_up(look: &Look, relays: usize) -> bool {
    let up = look.overlay.relays.iter().filter(|relay| relay.state == "up").count();
    up == relays && look.overlay.links.iter().all(|on_map| on_map.link.usable)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
