//! Who follows the areas of worlds: each member over a channel of its own. What is decided comes from the
//! controller's events, once it is stored; one task reads them for all.

use super::credentials::Right;
use super::driver::Handle;
use super::joins::stopped;
use anyhow::{Context, anyhow, bail};
use canopy_api::Problem;
use canopy_areas::{Areas, Report};
use canopy_channel::{Channel, pieces};
use canopy_control::{Controller, Event, MemberState, Name, Owner, Refusal, WorldId};
use canopy_wire::Address;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{oneshot, watch};

/// A member has at most so many channels over which it follows: one, and those that are about to end.
const MOST_OF_MEMBER: usize = 4;

type Told = Arc<Areas>;

/// What followers are told. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Feeds(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The worlds that somebody follows.
    worlds: Mutex<HashMap<WorldId, Followed>>,
    /// How many channels there were: their numbers.
    channels: AtomicU64,
}

/// A world whose areas somebody follows.
#[derive(Default)]
struct Followed {
    areas: watch::Sender<Option<Told>>,
    /// The channels of each follower, by their numbers. One ends when its sender is dropped.
    followers: HashMap<Owner, HashMap<u64, oneshot::Sender<()>>>,
}

/// A member's place among the followers of its world.
pub(super) struct Feed {
    feeds: Feeds,
    world: WorldId,
    owner: Owner,
    channel: u64,
    areas: watch::Receiver<Option<Told>>,
    ended: oneshot::Receiver<()>,
    lives: watch::Receiver<u32>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut worlds = self.feeds.lock();
        let Some(of) = worlds.get_mut(&self.world) else { return };
        if let Some(channels) = of.followers.get_mut(&self.owner) {
            channels.remove(&self.channel);
            if channels.is_empty() {
                of.followers.remove(&self.owner);
            }
        }
        if of.followers.is_empty() {
            worlds.remove(&self.world);
        }
    }
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
                Ok(Event::AreasChanged { world, areas }) => {
                    self.end_absent(&handle, world).await;
                    self.tell(world, &areas);
                }
                Ok(Event::Left { world, address }) => self.left(&handle, world, address).await,
                Ok(Event::WorldDeleted { world, .. }) => _ = self.lock().remove(&world),
                Ok(_) => {}
                // What was missed is asked for.
                Err(RecvError::Lagged(_)) => {
                    let worlds: Vec<WorldId> = self.lock().keys().copied().collect();
                    for world in worlds {
                        self.end_absent(&handle, world).await;
                        if let Ok(Some(areas)) = current(&handle, world).await {
                            self.tell(world, &areas);
                        }
                    }
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn tell(&self, world: WorldId, areas: &Told) {
        if let Some(of) = self.lock().get(&world) {
            of.areas.send_replace(Some(areas.clone()));
        }
    }

    /// Whoever had this address follows no more, unless it has another place.
    async fn left(&self, handle: &Handle, world: WorldId, address: Address) {
        if !self.lock().contains_key(&world) {
            return;
        }
        let left = move |controller: &mut Controller, _| {
            let owner = controller.member(world, address)?.owner;
            is_absent(controller, world, owner).then_some(owner)
        };
        if let Ok(Some(owner)) = handle.ask(left).await {
            self.end(world, [owner]);
        }
    }

    /// Nobody is told anything who was sent away, also while its relay is yet to say so.
    async fn end_absent(&self, handle: &Handle, world: WorldId) {
        let followers: Vec<Owner> = match self.lock().get(&world) {
            Some(of) => of.followers.keys().copied().collect(),
            None => return,
        };
        let absent = move |controller: &mut Controller, _| {
            let is_absent = |owner: &Owner| is_absent(controller, world, *owner);
            followers.into_iter().filter(is_absent).collect::<Vec<_>>()
        };
        if let Ok(absent) = handle.ask(absent).await {
            self.end(world, absent);
        }
    }

    fn end(&self, world: WorldId, owners: impl IntoIterator<Item = Owner>) {
        if let Some(of) = self.lock().get_mut(&world) {
            owners.into_iter().for_each(|owner| _ = of.followers.remove(&owner));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorldId, Followed>> {
        self.0.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a member among the followers of its world.
    ///
    /// # Errors
    /// There is no such world, it has no areas, or this is no member of it, or follows over many channels already.
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
        let feed = self.enter(id, owner, lives)?;
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
                of.areas.send_if_modified(newer);
            }
        }
        Ok(feed)
    }

    fn enter(
        &self,
        world: WorldId,
        owner: Owner,
        lives: watch::Receiver<u32>,
    ) -> Result<Feed, Problem> {
        let mut worlds = self.lock();
        let of = worlds.entry(world).or_default();
        let channels = of.followers.entry(owner).or_default();
        if channels.len() >= MOST_OF_MEMBER {
            let what = format!("you follow over {MOST_OF_MEMBER} channels already");
            return Err(Problem::new(429, what, "follow", "close one of them first"));
        }
        let channel = self.0.channels.fetch_add(1, Ordering::Relaxed);
        let (end, ended) = oneshot::channel();
        channels.insert(channel, end);
        let areas = of.areas.subscribe();
        Ok(Feed { feeds: self.clone(), world, owner, channel, areas, ended, lives })
    }
}

/// Whether somebody is in a world no more. Whose relay was lost may come back.
fn is_absent(controller: &Controller, world: WorldId, owner: Owner) -> bool {
    let known = controller.known_by(world, owner);
    !known.is_some_and(|known| known.state == MemberState::Held || known.is_given_up())
}

/// A world's areas, once they are stored.
async fn current(handle: &Handle, world: WorldId) -> anyhow::Result<Option<Told>> {
    let areas = move |controller: &mut Controller, _| {
        controller.areas(world).map(|guide| Arc::new(guide.areas().clone()))
    };
    handle.change(areas).await
}

impl Feed {
    /// Carries areas to the member and its reports back, until the channel ends, the member has left or was sent away,
    /// or the controller starts again, which does not know its followers.
    pub(super) async fn carry(mut self, handle: &Handle, channel: Channel) -> anyhow::Result<()> {
        let Feed { world, owner, channel: number, .. } = self;
        let Feed { areas, ended, lives, .. } = &mut self;
        let Channel { mut sender, mut receiver, .. } = channel;
        let tell = async {
            areas.mark_changed();
            while areas.changed().await.is_ok() {
                let Some(told) = areas.borrow_and_update().clone() else { continue };
                for piece in pieces(told.to_text().as_bytes()) {
                    sender.send(&piece).await?;
                }
            }
            bail!("nobody tells areas any more")
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
        let result: anyhow::Result<()> = tokio::select! {
            // In this order: nothing is told any more once it has ended.
            biased;
            _ = ended => Err(anyhow!("the world is gone, or the member has left it")),
            _ = lives.changed() => Ok(()),
            result = hear => result,
            result = tell => result,
        };
        let gone = move |controller: &mut Controller, now| {
            controller.handle_unreachable(now, world, owner, number);
        };
        handle.ask(gone).await?;
        result
    }
}
