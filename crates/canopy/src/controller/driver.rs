//! The task that owns the controller, the thread that owns its storage, and the handle by which the
//! daemon's other parts ask.
//!
//! The task takes what has come in the meantime, has the controller decide, and hands out what it says: a
//! turn. It runs in the runtime of those who ask, because waking another thread is a call to the kernel
//! and often a change of threads, and a join has half a dozen to be told.
//!
//! The controller goes on deciding while a batch is written. If a commit fails, nobody knows what is
//! stored: the controller is dropped, and another is started from storage. If somebody else has
//! started on the store, the daemon ends.

use anyhow::anyhow;
use canopy_control::storage::{Batch, Revision, Storage, StorageError};
use canopy_control::{Controller, Event, LoadError, RelayId, Retry, Settings};
use canopy_wire::Time;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::timeout;

/// How many events a receiver may be behind.
const MOST_EVENTS: usize = 4096;
/// The controller is started again so long after it could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// Questions that are answered before time and storage are looked at again.
const MOST_AT_ONCE: usize = 256;

/// Tells whoever asked what is answered.
type Question = Box<dyn FnOnce(&mut Controller, Time) + Send>;
/// Called once what was decided is committed; dropped if that fails.
type Waiter = oneshot::Sender<()>;

/// What the controller's task is given.
enum Work {
    /// Whoever waits until what it decides is committed waits from then on.
    Question(Question, Option<Waiter>),
    Committed(Result<Revision, StorageError>),
    Started(Box<Result<Controller, LoadError>>),
}

/// What the storage's thread is given.
enum Order {
    Commit(Batch),
    /// After a while.
    Start(Settings, Retry),
}

/// Asks the controller. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    work: UnboundedSender<Work>,
    events: broadcast::Sender<Event>,
    lives: watch::Receiver<u32>,
    ended: watch::Receiver<Option<String>>,
}

impl Handle {
    /// Starts the task and the thread, in a tokio runtime. They end when the last handle is dropped, or when
    /// another controller runs on the store: see [`Handle::ended`]. `outgoing` takes messages for relays, and
    /// must not wait.
    pub(crate) fn start<O>(
        controller: Controller,
        storage: impl Storage + Send + 'static,
        outgoing: O,
    ) -> Handle
    where
        O: FnMut(RelayId, Vec<u8>) + Send + 'static,
    {
        let (work, incoming) = unbounded_channel();
        let (orders, ordered) = channel();
        let (events, _) = broadcast::channel(MOST_EVENTS);
        let (lives, current) = watch::channel(controller.life());
        let (end, ended) = watch::channel(None);
        // The channel ends with the last handle.
        let answers = work.downgrade();
        std::thread::spawn(move || keep(storage, &ordered, &answers));
        let driver = Driver {
            with: controller.started_with(),
            controller: Some(controller),
            is_writing: false,
            waiting: Vec::new(),
            held: VecDeque::new(),
            orders,
            outgoing,
            events: events.clone(),
            lives,
        };
        tokio::spawn(async move {
            if let Err(error) = driver.run(incoming).await {
                tracing::error!("the controller stops: {error}");
                end.send_replace(Some(error.to_string()));
            }
        });
        Handle { work, events, lives: current, ended }
    }

    /// Runs a question on the controller, between its other work.
    ///
    /// # Errors
    /// The controller has stopped, or was dropped meanwhile because a commit failed.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        self.send(question, answer, None)?;
        answered.await.map_err(|_| stopped())
    }

    /// The same, and returns once what was decided is committed.
    ///
    /// # Errors
    /// It was not, as far as is known, or the controller has stopped.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let (waiter, done) = oneshot::channel();
        self.send(question, answer, Some(waiter))?;
        let answer = answered.await.map_err(|_| stopped())?;
        done.await.map_err(|_| anyhow!("it could not be stored; ask again"))?;
        Ok(answer)
    }

    fn send<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Time) -> T + Send + 'static,
        answer: oneshot::Sender<T>,
        waiter: Option<Waiter>,
    ) -> anyhow::Result<()> {
        let question = move |controller: &mut Controller, now| {
            _ = answer.send(question(controller, now));
        };
        self.work.send(Work::Question(Box::new(question), waiter)).map_err(|_| stopped())
    }

    /// What it tells from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// The number of the controller's life, which changes if it is started from storage again.
    pub(crate) fn lives(&self) -> watch::Receiver<u32> {
        self.lives.clone()
    }

    /// Returns when the controller has stopped, and why.
    pub(crate) async fn ended(&self) -> anyhow::Error {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(why)) => anyhow!("{why}"),
            _ => stopped(),
        }
    }
}

fn stopped() -> anyhow::Error {
    anyhow!("the controller has stopped; see its log")
}

/// The storage's thread: does what it is told until the controller's task has ended.
fn keep(mut storage: impl Storage, orders: &Receiver<Order>, answers: &WeakUnboundedSender<Work>) {
    for order in orders {
        let answer = match order {
            Order::Commit(batch) => Work::Committed(storage.commit(&batch)),
            Order::Start(settings, retry) => {
                std::thread::sleep(AGAIN);
                let started = Controller::start(settings, retry, now(), &mut storage);
                Work::Started(Box::new(started))
            }
        };
        let Some(answers) = answers.upgrade() else { return };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

struct Driver<O> {
    with: (Settings, Retry),
    /// Nothing while another is being started.
    controller: Option<Controller>,
    /// Whether a batch is on its way to storage.
    is_writing: bool,
    /// Who waits for commits.
    waiting: Vec<Waiter>,
    /// What has come while there is no controller.
    held: VecDeque<(Question, Option<Waiter>)>,
    orders: Sender<Order>,
    outgoing: O,
    events: broadcast::Sender<Event>,
    lives: watch::Sender<u32>,
}

impl<O: FnMut(RelayId, Vec<u8>)> Driver<O> {
    /// # Errors
    /// Why it cannot go on.
    async fn run(mut self, mut incoming: UnboundedReceiver<Work>) -> anyhow::Result<()> {
        let mut together = Vec::new();
        loop {
            let wait = self.controller.as_ref().map_or(AGAIN, |controller| {
                let until = controller.poll_timeout(now()).as_nanos();
                Duration::from_nanos(until.saturating_sub(now().as_nanos()))
            });
            let first = timeout(wait, incoming.recv()).await;
            if matches!(first, Ok(None)) {
                return Ok(());
            }
            // Whoever can ask now asks before the turn: so messages to one relay leave together, and
            // members are stored together.
            yield_now().await;
            together.extend(first.ok().flatten());
            while together.len() < MOST_AT_ONCE
                && let Ok(work) = incoming.try_recv()
            {
                together.push(work);
            }
            for work in together.drain(..) {
                self.take(work)?;
            }
            self.drive()?;
        }
    }

    fn take(&mut self, work: Work) -> anyhow::Result<()> {
        match work {
            Work::Question(question, waiter) => match &mut self.controller {
                Some(controller) => {
                    question(controller, now());
                    self.waiting.extend(waiter);
                }
                None => self.held.push_back((question, waiter)),
            },
            Work::Committed(result) => {
                self.is_writing = false;
                if let Some(controller) = &mut self.controller
                    && let Err(error) = controller.handle_commit(now(), result)
                {
                    self.restart(error)?;
                }
            }
            Work::Started(started) => match *started {
                Ok(controller) => self.go_on(controller),
                Err(LoadError::Storage(error)) => self.restart(error)?,
                Err(error) => return Err(error.into()),
            },
        }
        Ok(())
    }

    /// Drops the controller, and has another started.
    fn restart(&mut self, error: StorageError) -> anyhow::Result<()> {
        let StorageError::Failed(_) = error else { return Err(error.into()) };
        tracing::error!("{error}");
        self.controller = None;
        self.waiting.clear();
        let (settings, retry) = self.with;
        self.orders.send(Order::Start(settings, retry)).map_err(|_| stopped())
    }

    fn go_on(&mut self, mut controller: Controller) {
        tracing::info!(life = controller.life(), "the controller was started from storage again");
        // Relays are to register anew: what they were told may not be stored.
        self.lives.send_replace(controller.life());
        for (question, waiter) in self.held.drain(..) {
            question(&mut controller, now());
            self.waiting.extend(waiter);
        }
        self.controller = Some(controller);
    }

    /// Has the controller do what is due, and hands out what it says.
    fn drive(&mut self) -> anyhow::Result<()> {
        let Some(controller) = &mut self.controller else { return Ok(()) };
        controller.handle_timeout(now());
        if !self.is_writing
            && let Some(batch) = controller.poll_commit(now())
        {
            self.is_writing = true;
            self.orders.send(Order::Commit(batch)).map_err(|_| stopped())?;
        }
        if controller.is_committed() {
            for waiter in self.waiting.drain(..) {
                _ = waiter.send(());
            }
        }
        while let Some((relay, message)) = controller.poll_transmit(now()) {
            (self.outgoing)(relay, message);
        }
        while let Some(event) = controller.poll_event() {
            _ = self.events.send(event);
        }
        Ok(())
    }
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(since.as_nanos() as u64)
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
