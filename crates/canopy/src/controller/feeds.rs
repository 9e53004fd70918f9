//! Who follows the areas of worlds: each member over a channel of its own. What is decided comes from the
//! controller's events, once it is stored; one task reads them for all.

use super::credentials::Right;
use super::driver::Handle;
use super::joins::stopped;
use anyhow::{Context, bail};
use canopy_api::Problem;
use canopy_areas::{Areas, Report};
use canopy_channel::{Channel, pieces};
use canopy_control::{Controller, Event, Name, Owner, Refusal, WorldId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

type Told = Arc<Areas>;

/// What followers are told. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Feeds(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The areas of each world that somebody follows.
    worlds: Mutex<HashMap<WorldId, watch::Sender<Option<Told>>>>,
    /// How many channels there were: their numbers.
    channels: AtomicU64,
}

/// A member's place among the followers of its world.
pub(super) struct Feed {
    world: WorldId,
    owner: Owner,
    channel: u64,
    areas: watch::Receiver<Option<Told>>,
    lives: watch::Receiver<u32>,
}

impl Feeds {
    /// Begins to follow the controller, in a tokio runtime.
    pub(super) fn start(handle: &Handle) -> Feeds {
        let feeds = Feeds::default();
        tokio::spawn(feeds.clone().read(handle.events(), handle.clone()));
        feeds
    }

    async fn read(self, mut events: Receiver<Event>, handle: Handle) {
        loop {
            match events.recv().await {
                Ok(Event::AreasChanged { world, areas }) => self.tell(world, areas),
                Ok(Event::WorldDeleted { world, .. }) => _ = self.lock().remove(&world),
                Ok(_) => {}
                // What was missed is asked for.
                Err(RecvError::Lagged(_)) => {
                    let worlds: Vec<WorldId> = self.lock().keys().copied().collect();
                    for world in worlds {
                        if let Ok(Some(areas)) = current(&handle, world).await {
                            self.tell(world, areas);
                        }
                    }
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn tell(&self, world: WorldId, areas: Told) {
        let mut worlds = self.lock();
        if let Some(of) = worlds.get(&world) {
            if of.is_closed() {
                worlds.remove(&world);
            } else {
                of.send_replace(Some(areas));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorldId, watch::Sender<Option<Told>>>> {
        self.0.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a member among the followers of its world.
    ///
    /// # Errors
    /// There is no such world, it has no areas, or this is no member of it.
    pub(super) async fn follow(
        &self,
        handle: &Handle,
        world: String,
        right: Right,
    ) -> Result<Feed, Problem> {
        let owner = right.owner;
        let lives = handle.lives();
        let named = world.clone();
        let find = move |controller: &mut Controller, _| {
            let name = Name::new(&named).map_err(Refusal::from)?;
            let id = controller.world(&name)?.id;
            let place = format!("world {named}");
            let held = controller.held_by(id, owner);
            right.check_place(controller.known_by(id, owner))?;
            if held.is_none() {
                return Err(Problem::missing(&place, "you are not in it", "join it first"));
            }
            if controller.areas(id).is_none() {
                return Err(Problem::missing(&place, "it has no areas", "wait until it has"));
            }
            Ok(id)
        };
        let id = handle.ask(find).await.map_err(stopped)??;
        let areas = {
            let mut worlds = self.lock();
            let of = worlds.entry(id).or_insert_with(|| watch::channel(None).0);
            of.subscribe()
        };
        // Asked after subscribing, so that no change can be missed.
        let told = current(handle, id).await.map_err(stopped)?;
        if let Some(told) = told {
            let newer = |now: &mut Option<Told>| {
                let is_newer = now.as_ref().is_none_or(|now| now.step < told.step);
                if is_newer {
                    *now = Some(told.clone());
                }
                is_newer
            };
            if let Some(of) = self.lock().get(&id) {
                of.send_if_modified(newer);
            }
        }
        let channel = self.0.channels.fetch_add(1, Ordering::Relaxed);
        Ok(Feed { world: id, owner, channel, areas, lives })
    }
}

/// A world's areas, once they are stored.
async fn current(handle: &Handle, world: WorldId) -> anyhow::Result<Option<Told>> {
    let areas = move |controller: &mut Controller, _| {
        controller.areas(world).map(|guide| Arc::new(guide.areas().clone()))
    };
    handle.change(areas).await
}

impl Feed {
    /// Carries areas to the member and its reports back, until the channel ends, the member has left, or
    /// the controller starts again, which does not know its followers.
    pub(super) async fn carry(self, handle: &Handle, channel: Channel) -> anyhow::Result<()> {
        let Feed { world, owner, channel: number, mut areas, mut lives } = self;
        let Channel { mut sender, mut receiver, .. } = channel;
        let tell = async {
            areas.mark_changed();
            while areas.changed().await.is_ok() {
                let Some(told) = areas.borrow_and_update().clone() else { continue };
                for piece in pieces(told.to_text().as_bytes()) {
                    sender.send(&piece).await?;
                }
            }
            bail!("the world is gone")
        };
        let hear = async {
            loop {
                let message = receiver.receive().await?;
                let report: Report =
                    serde_json::from_slice(&message).context("a report cannot be read")?;
                let take = move |controller: &mut Controller, _| {
                    controller.handle_report(world, owner, number, report)
                };
                if !handle.ask(take).await? {
                    bail!("the member has left");
                }
            }
        };
        let ended: anyhow::Result<()> = tokio::select! {
            ended = tell => ended,
            ended = hear => ended,
            _ = lives.changed() => Ok(()),
        };
        let gone = move |controller: &mut Controller, now| {
            controller.handle_unreachable(now, world, owner, number);
        };
        handle.ask(gone).await?;
        ended
    }
}
