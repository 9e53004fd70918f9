//! The agent at work: it connects again and again, and carries out what comes.

use super::spread::spread;
use super::{AgentConfig, measure};
use crate::net::{Controlled, SharedNet, SharedStates};
use crate::trust;
use anyhow::Context;
use canopy_api::Wrong;
use canopy_channel::{Channel, ChannelError, Hello, Register, Registered, Sender};
use canopy_control::signal::{LinkLoad, Measured};
use canopy_control::{Applying, ItemKey, RelaySide};
use canopy_node::RelayWatch;
use canopy_overlay::{Detours, Items, LinkWatch};
use canopy_relay::Notice;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time, WaySearch};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::timeout;

mod link_states;

/// Connecting, and each step of registering, may take so long.
const DEADLINE: Duration = Duration::from_secs(5);
/// The first pause after a connection that failed, on average; each is twice as long as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, on average. A controller that starts waits longer for its relays.
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// Links are looked at this often, beside what data threads tell of them at once.
const LOOK: Duration = Duration::from_millis(250);
/// How often the controller is told what links carry.
const LOADS: Duration = Duration::from_secs(1);
/// How much of what it is told it hears before it does anything else.
const MOST_HEARD: usize = 256;
/// What an agent is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// A link has come up, or gone down.
    Link(PublicKey, bool),
    /// A comtree's next parent is the way to the core.
    ParentSucceeded(Comtree),
    /// A neighbour says something of a search for a way to a comtree's root.
    Search(PublicKey, Comtree, WaySearch),
    /// The cable to a neighbour is cut, or whole again: the demo's doing.
    Cable(PublicKey, bool),
}

impl Told {
    /// What of a data thread's notice concerns the agent.
    fn of(notice: &Notice) -> Option<Told> {
        match notice {
            Notice::LinkUp { key } => Some(Told::Link(*key, true)),
            Notice::LinkDown { key } => Some(Told::Link(*key, false)),
            Notice::ParentSucceeded { comtree } => Some(Told::ParentSucceeded(*comtree)),
            Notice::Search { key, comtree, search } => Some(Told::Search(*key, *comtree, *search)),
            _ => None,
        }
    }

    /// Tells an agent what of a data thread's notice concerns it. What relays say of their links it finds with the relay's
    /// `net`.
    pub(crate) fn tell(notice: &Notice, net: &SharedNet, agent: &UnboundedSender<Told>) {
        if let Notice::LinkState { key, packet } = notice
            && let Some(states) = net.states()
        {
            states.hear(key, packet);
        }
        if let Some(told) = Told::of(notice) {
            // The agent of a relay that was killed hears no more.
            _ = agent.send(told);
        }
    }
}

/// A relay's agent at its controller.
pub(crate) struct Agent {
    config: AgentConfig,
    native: SocketAddr,
    side: RelaySide,
    data_plane: Controlled,
    watch: RelayWatch,
    notices: UnboundedReceiver<Told>,
    links: LinkWatch,
    detours: Detours,
    /// What relays say of their links, and what of that is being sent.
    states: SharedStates,
    flooding: JoinSet<()>,
    /// The measuring of other relays that is under way.
    measuring: JoinSet<Measured>,
    issuers: String,
    /// When the controller is told next what links carry.
    next_loads: Time,
    origin: Instant,
}

impl Agent {
    /// An agent of the relay that serves at `native`.
    pub(crate) fn new(
        config: AgentConfig,
        native: SocketAddr,
        data_plane: Controlled,
        watch: RelayWatch,
        notices: UnboundedReceiver<Told>,
    ) -> Agent {
        let (side, origin) = (RelaySide::new(config.life), Instant::now());
        let states = link_states::none(origin, *config.identity.public(), config.name.as_str());
        data_plane.show(states.clone());
        Agent {
            native: config.native.unwrap_or(native),
            config,
            side,
            data_plane,
            watch,
            notices,
            links: LinkWatch::default(),
            detours: no_detours(origin),
            states,
            flooding: JoinSet::new(),
            measuring: JoinSet::new(),
            issuers: String::new(),
            next_loads: Time::ZERO,
            origin,
        }
    }

    /// Does what the controller says, whenever there is one, until the process ends.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut wait = Duration::ZERO;
        let mut was_told = String::new();
        loop {
            let error = match self.call(wait).await {
                Ok((channel, issuers)) => {
                    self.issuers = issuers;
                    tracing::info!(controller = self.config.controller, "registered");
                    (pause, was_told) = (FIRST_PAUSE, String::new());
                    self.detours.set_controller(self.now(), true);
                    let error = self.serve(channel).await;
                    self.detours.set_controller(self.now(), false);
                    error
                }
                Err(error) => error,
            };
            if was_removed(&error) {
                self.give_up_all().await;
            }
            let why = format!("{error:#}");
            if why != was_told {
                tracing::warn!(
                    controller = self.config.controller,
                    "not connected to the controller: {why}; until it is there again, nothing changes here \
                     but that other neighbours take the place of parents whose links fail"
                );
                was_told = why;
            }
            wait = pause.mul_f64(0.5 + spread());
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// The controller has removed this relay while it could not be told: it carries nothing any more. If it is allowed
    /// again, it is as one that has just started.
    async fn give_up_all(&mut self) {
        if self.side.items().is_empty() {
            return;
        }
        let detours = no_detours(self.origin);
        (self.side, self.detours) = (RelaySide::new(self.config.life), detours);
        self.links = LinkWatch::default();
        self.set_own_links(BTreeMap::new());
        self.apply_items("what a relay that was removed has").await;
    }

    /// Calls the controller after a pause, and sees to detours meanwhile. Returns the channel, and whose
    /// tokens count.
    async fn call(&mut self, pause: Duration) -> anyhow::Result<(Channel, String)> {
        let (config, native) = (self.config.clone(), self.native);
        let (watch, issuers) = (self.watch.clone(), self.issuers.clone());
        let mut registered = std::pin::pin!(async move {
            tokio::time::sleep(pause).await;
            register(config, native, watch, issuers).await
        });
        let mut looks = tokio::time::interval(LOOK);
        loop {
            self.review_detours().await;
            let flood = self.flood();
            let until = self.detours.poll_timeout(self.now(), self.side.items());
            let wait = until.map_or(LOOK, |until| until.since(self.now()));
            tokio::select! {
                registered = &mut registered => return registered,
                Some(told) = self.notices.recv() => self.hear_all(told).await,
                _ = looks.tick() => drop(self.look_at_links()),
                () = self.states.has_heard() => {}
                Some(_) = self.flooding.join_next() => {}
                () = tokio::time::sleep(wait.min(flood)) => {}
            }
        }
    }

    /// Serves on a channel until it ends. Returns why it did.
    async fn serve(&mut self, channel: Channel) -> anyhow::Error {
        // Calls whose answers were lost with the last channel come again.
        while self.side.poll_transmit().is_some() {}
        let Channel { mut sender, mut receiver, .. } = channel;
        let mut looks = tokio::time::interval(LOOK);
        loop {
            self.review_detours().await;
            let now = self.now();
            self.side.set_detours(now, self.detours.comtrees());
            self.side.set_ways(now, self.detours.ways());
            if let Err(error) = self.speak(&mut sender).await {
                return error;
            }
            let flood = self.flood();
            let detours = self.detours.poll_timeout(self.now(), self.side.items());
            let until = detours.into_iter().fold(self.side.poll_timeout(), Time::min);
            let wait = until.since(self.now()).min(flood);
            tokio::select! {
                received = receiver.receive() => match received {
                    Ok(message) => self.side.handle_message(&message),
                    Err(error) => return error.into(),
                },
                Some(told) = self.notices.recv() => self.hear_all(told).await,
                Some(Ok(measured)) = self.measuring.join_next() => self.side.measured(measured),
                _ = looks.tick() => self.look(),
                () = self.states.has_heard() => {}
                Some(_) = self.flooding.join_next() => {}
                () = tokio::time::sleep(wait) => {}
            }
            if let Some(measure) = self.side.poll_measure() {
                self.measuring.abort_all();
                self.measuring.spawn(measure::all(measure));
            }
            while let Some(applying) = self.side.poll_apply() {
                let result = self.apply(&applying).await;
                if let Err(why) = &result {
                    tracing::warn!("refused {:?}: {why}", applying.key());
                }
                self.side.applied(applying, result);
                // However much is changed by one call, it beats.
                if self.side.poll_timeout() <= self.now()
                    && let Err(error) = self.speak(&mut sender).await
                {
                    return error;
                }
            }
        }
    }

    /// Tells the controller what there is to be told.
    async fn speak(&mut self, sender: &mut Sender) -> anyhow::Result<()> {
        self.side.handle_timeout(self.now());
        let messages = std::iter::from_fn(|| self.side.poll_transmit());
        timeout(DEADLINE, sender.send_all(messages)).await.context("it takes nothing more")??;
        Ok(())
    }

    /// Applies a change to the data plane.
    async fn apply(&mut self, applying: &Applying) -> Result<(), String> {
        let key = applying.key();
        let (now, data_plane) = (self.now(), self.data_plane.clone());
        let (before, after) = (applying.before.clone(), applying.after.clone());
        let items = match key {
            ItemKey::Member(..) => Items::new(),
            _ => self.wanted_with(applying),
        };
        let result = tokio::task::spawn_blocking(move || {
            if let ItemKey::Member(..) = key {
                return data_plane.apply_member(now, key, before.as_ref(), after.as_ref());
            }
            data_plane.apply(&items)
        });
        result.await.unwrap_or_else(|error| Err(error.to_string()))?;
        self.links.applied(self.now(), applying);
        Ok(())
    }

    /// What the data plane is to have once this is applied, with detours.
    fn wanted_with(&mut self, applying: &Applying) -> Items {
        let mut items = self.side.items().clone();
        match &applying.after {
            Some(item) => _ = items.insert(applying.key(), item.clone()),
            None => _ = items.remove(&applying.key()),
        }
        let before = self.detours.comtrees().collect();
        if self.detours.review(self.now(), &items) {
            self.tell_of_detours(&before);
        }
        self.detours.apply_to(&items).into_owned()
    }

    /// Tells of detours that were not there before.
    fn tell_of_detours(&self, before: &BTreeSet<Comtree>) {
        for comtree in self.detours.comtrees().filter(|comtree| !before.contains(comtree)) {
            self.data_plane.count_detour();
            tracing::warn!(
                comtree = comtree.0,
                "the link to the parent is down, and the controller has not said what follows; \
                 another neighbour takes its place"
            );
        }
    }

    /// Gives the data plane the detours that are due.
    async fn review_detours(&mut self) {
        let before = self.detours.comtrees().collect();
        if self.detours.review(self.now(), self.side.items()) {
            self.tell_of_detours(&before);
            self.apply_items("what changes without a controller").await;
        }
        self.say_all().await;
    }

    /// Gives the data plane what it is to have now.
    async fn apply_items(&self, what: &str) {
        let items = self.detours.apply_to(self.side.items()).into_owned();
        let data_plane = self.data_plane.clone();
        let done = tokio::task::spawn_blocking(move || data_plane.apply(&items)).await;
        if let Err(why) = done.unwrap_or_else(|error| Err(error.to_string())) {
            tracing::warn!("{what} is not as it should be: {why}");
        }
    }

    /// Hears what there is, of which this is the first: many ways may be found at once, and are applied together.
    async fn hear_all(&mut self, first: Told) {
        let before = self.detours.comtrees().collect();
        let mut has_found = false;
        let mut next = Some(first);
        for _ in 0..MOST_HEARD {
            let Some(told) = next else { break };
            match told {
                Told::Search(key, comtree, search) => {
                    let (now, items) = (self.now(), self.side.items());
                    has_found |= self.detours.hear_search(now, items, &key, comtree, search);
                }
                Told::Link(key, up) => self.hear_of_link(key, up),
                Told::ParentSucceeded(comtree) => self.hear_of_parent(comtree).await,
                Told::Cable(key, is_cut) => self.hear_of_cable(key, is_cut).await,
            }
            next = self.notices.try_recv().ok();
        }
        if has_found {
            self.tell_of_detours(&before);
            // Whoever hears of it next may come at once.
            self.apply_items("a way that was found").await;
        }
        self.say_all().await;
    }

    async fn hear_of_parent(&mut self, comtree: Comtree) {
        if self.detours.succeeded(comtree) {
            tracing::info!(comtree = comtree.0, "the parent is used again");
            self.apply_items("a comtree after a detour").await;
        } else {
            self.side.set_succeeded(self.now(), comtree);
        }
    }

    async fn hear_of_cable(&mut self, key: PublicKey, is_cut: bool) {
        self.data_plane.set_cut(key, is_cut);
        self.apply_items("a cable").await;
        if is_cut {
            self.hear_of_link(key, false);
        }
    }

    /// Tells neighbours what there is to say.
    async fn say_all(&mut self) {
        let said: Vec<_> = std::iter::from_fn(|| self.detours.poll_said()).collect();
        if said.is_empty() {
            return;
        }
        let data_plane = self.data_plane.clone();
        let done = tokio::task::spawn_blocking(move || {
            said.into_iter().try_for_each(|said| data_plane.say(said))
        });
        if let Err(why) = done.await.unwrap_or_else(|error| Err(error.to_string())) {
            tracing::warn!("neighbours are not asked for ways: {why}");
        }
    }

    fn hear_of_link(&mut self, key: PublicKey, up: bool) {
        let now = self.now();
        self.detours.hear_link(now, key, up);
        self.states.with(|now, states| states.hear_link(now, &key, up));
        let delay_us = self.data_plane.links().get(&key).map_or(0, |(seen, _)| seen.delay_us);
        if let Some(report) = self.links.told(now, &key, up, delay_us) {
            self.side.set_link(now, report);
        }
    }

    /// Looks how the links are, and tells the controller, and to whom links lead after whom it has asked.
    fn look(&mut self) {
        let loads = self.look_at_links();
        let now = self.now();
        if now >= self.next_loads {
            self.next_loads = now + LOADS;
            self.side.set_loads(loads);
        }
        self.answer_after();
    }

    /// Looks how the links are. Returns what they carry.
    fn look_at_links(&mut self) -> Vec<LinkLoad> {
        let now = self.now();
        let (mut loads, mut own) = (Vec::new(), BTreeMap::new());
        let free = self.data_plane.free_bits();
        for (key, (seen, bits_out)) in self.data_plane.links() {
            if let Some(report) = self.links.seen(now, &key, seen) {
                self.side.set_link(now, report);
                loads.push(LinkLoad { link: report.link, bits_out });
                own.insert(key, seen.detail(&report, free.get(&key).copied().unwrap_or(0)));
            }
        }
        self.set_own_links(own);
        loads
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}

/// Whether the controller does not take this relay because it was removed.
fn was_removed(error: &anyhow::Error) -> bool {
    let Some(ChannelError::Refused(why)) = error.downcast_ref() else { return false };
    serde_json::from_value::<Wrong>(why.clone()).is_ok_and(|wrong| wrong.is_removed)
}

/// Registers at the controller. Returns the channel, and whose tokens count; the relay trusts them.
async fn register(
    config: AgentConfig,
    native: SocketAddr,
    watch: RelayWatch,
    known: String,
) -> anyhow::Result<(Channel, String)> {
    let connect = TcpStream::connect(&config.controller);
    let stream = timeout(DEADLINE, connect).await.context("it does not answer")??;
    let key = config.controller_key.to_bytes();
    let mut channel = Channel::call(stream, &config.identity, &key, DEADLINE).await?;
    let register = Hello::Register(Register {
        name: config.name.to_string(),
        native,
        uplink: config.uplink,
        places: config.places,
        comtrees: canopy_relay::MAX_COMTREES as u32,
        life: config.life,
    });
    let Registered { issuers, .. } = channel.ask(&register, DEADLINE).await?;
    if issuers != known {
        let trust = Arc::new(trust::of_keys(&issuers)?);
        tokio::task::spawn_blocking(move || watch.trust(trust)).await??;
    }
    Ok((channel, issuers))
}

/// What a relay has that has just started.
fn no_detours(origin: Instant) -> Detours {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Detours::new(since.saturating_sub(origin.elapsed()))
}
