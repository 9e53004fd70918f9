//! The agent at work: it connects again and again, and carries out what comes.

use super::AgentConfig;
use crate::net::Controlled;
use crate::trust;
use anyhow::{Context, anyhow};
use canopy_channel::{Channel, Hello, Register, Registered};
use canopy_control::{Applying, ItemKey, RelaySide};
use canopy_node::RelayWatch;
use canopy_overlay::LinkWatch;
use canopy_relay::Notice;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

/// Connecting, and each step of registering, may take so long.
const DEADLINE: Duration = Duration::from_secs(5);
/// The first pause after a connection that failed, on average; each is twice as long as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, on average. A controller that starts waits longer for its relays.
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// Links are looked at this often, beside what data threads tell of them at once.
const LOOK: Duration = Duration::from_millis(250);
/// What an agent is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// A link has come up, or gone down.
    Link(PublicKey, bool),
    /// A comtree's next parent is the way to the core.
    ParentSucceeded(Comtree),
    /// The cable to a neighbour is cut, or whole again: the demo's doing.
    Cable(PublicKey, bool),
}

impl Told {
    /// What of a data thread's notice concerns the agent.
    pub(crate) fn of(notice: &Notice) -> Option<Told> {
        match notice {
            Notice::LinkUp { key } => Some(Told::Link(*key, true)),
            Notice::LinkDown { key } => Some(Told::Link(*key, false)),
            Notice::ParentSucceeded { comtree } => Some(Told::ParentSucceeded(*comtree)),
            _ => None,
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
    issuers: String,
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
        let side = RelaySide::new(config.life);
        Agent {
            native: config.native.unwrap_or(native),
            config,
            side,
            data_plane,
            watch,
            notices,
            links: LinkWatch::default(),
            issuers: String::new(),
            origin: Instant::now(),
        }
    }

    /// Does what the controller says, whenever there is one, until the process ends.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut was_told = String::new();
        loop {
            let error = match self.register().await {
                Ok(channel) => {
                    tracing::info!(controller = self.config.controller, "registered");
                    (pause, was_told) = (FIRST_PAUSE, String::new());
                    self.serve(channel).await
                }
                Err(error) => error,
            };
            let why = format!("{error:#}");
            if why != was_told {
                tracing::warn!(
                    controller = self.config.controller,
                    "not connected to the controller: {why}; nothing changes here until it is there again"
                );
                was_told = why;
            }
            tokio::time::sleep(pause.mul_f64(0.5 + spread())).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    async fn register(&mut self) -> anyhow::Result<Channel> {
        let connect = TcpStream::connect(&self.config.controller);
        let stream = timeout(DEADLINE, connect).await.context("it does not answer")??;
        let key = self.config.controller_key.to_bytes();
        let mut channel = Channel::call(stream, &self.config.identity, &key, DEADLINE).await?;
        let register = Hello::Register(Register {
            name: self.config.name.to_string(),
            native: self.native,
            uplink: self.config.uplink,
            places: self.config.places,
            life: self.config.life,
        });
        let Registered { issuers, .. } = channel.ask(&register, DEADLINE).await?;
        if issuers != self.issuers {
            let trust = Arc::new(trust::of_keys(&issuers)?);
            let watch = self.watch.clone();
            tokio::task::spawn_blocking(move || watch.trust(trust)).await??;
            self.issuers = issuers;
        }
        Ok(channel)
    }

    /// Serves on a channel until it ends. Returns why it did.
    async fn serve(&mut self, channel: Channel) -> anyhow::Error {
        // Calls whose answers were lost with the last channel come again.
        while self.side.poll_transmit().is_some() {}
        let Channel { mut sender, mut receiver, .. } = channel;
        let mut looks = tokio::time::interval(LOOK);
        loop {
            self.side.handle_timeout(self.now());
            while let Some(message) = self.side.poll_transmit() {
                match timeout(DEADLINE, sender.send(&message)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.into(),
                    Err(_) => return anyhow!("it takes nothing more"),
                }
            }
            let until = self.side.poll_timeout().as_nanos();
            let wait = Duration::from_nanos(until.saturating_sub(self.now().as_nanos()));
            tokio::select! {
                received = receiver.receive() => match received {
                    Ok(message) => self.side.handle_message(&message),
                    Err(error) => return error.into(),
                },
                Some(told) = self.notices.recv() => self.hear(told).await,
                _ = looks.tick() => self.look(),
                () = tokio::time::sleep(wait) => {}
            }
            while let Some(applying) = self.side.poll_apply() {
                let result = self.apply(&applying).await;
                if let Err(why) = &result {
                    tracing::warn!("refused {:?}: {why}", applying.key());
                }
                self.side.applied(applying, result);
            }
        }
    }

    /// Applies a change to the data plane.
    async fn apply(&mut self, applying: &Applying) -> Result<(), String> {
        let key = applying.key();
        let data_plane = self.data_plane.clone();
        let (before, after) = (applying.before.clone(), applying.after.clone());
        let mut items = match key {
            ItemKey::Member(..) => BTreeMap::new(),
            _ => self.side.items().clone(),
        };
        let result = tokio::task::spawn_blocking(move || {
            if let ItemKey::Member(..) = key {
                return data_plane.apply_member(key, before.as_ref(), after.as_ref());
            }
            match after {
                Some(item) => _ = items.insert(key, item),
                None => _ = items.remove(&key),
            }
            data_plane.apply(&items)
        });
        result.await.unwrap_or_else(|error| Err(error.to_string()))?;
        self.links.applied(self.now(), applying);
        Ok(())
    }

    async fn hear(&mut self, told: Told) {
        match told {
            Told::Link(key, up) => self.hear_of_link(key, up),
            Told::ParentSucceeded(comtree) => self.side.set_succeeded(self.now(), comtree),
            Told::Cable(key, is_cut) => {
                let (data_plane, items) = (self.data_plane.clone(), self.side.items().clone());
                let cut = move || {
                    data_plane.set_cut(key, is_cut);
                    data_plane.apply(&items)
                };
                let done = tokio::task::spawn_blocking(cut).await;
                if let Err(why) = done.unwrap_or_else(|error| Err(error.to_string())) {
                    tracing::warn!("a cable is not as it should be: {why}");
                }
                if is_cut {
                    self.hear_of_link(key, false);
                }
            }
        }
    }

    fn hear_of_link(&mut self, key: PublicKey, up: bool) {
        let now = self.now();
        let delay_us = self.data_plane.links().get(&key).map_or(0, |seen| seen.delay_us);
        if let Some(report) = self.links.told(now, &key, up, delay_us) {
            self.side.set_link(now, report);
        }
    }

    /// Looks how the links are.
    fn look(&mut self) {
        let now = self.now();
        for (key, seen) in self.data_plane.links() {
            if let Some(report) = self.links.seen(now, &key, seen) {
                self.side.set_link(now, report);
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}

/// A random number from 0 to 1, so that relays do not all call at once.
fn spread() -> f64 {
    let bytes = crate::token::random::<4>().unwrap_or([0x80, 0, 0, 0]);
    f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
}
