//! The thread that owns the controller, the thread that owns its storage, and the handle by which the
//! daemon's other parts ask.
//!
//! Whatever the controller says in a turn, a task of the runtime hands out: waking a runtime from another
//! thread is a call to the kernel and often a change of threads, and a join has half a dozen to be told.
//!
//! The controller goes on deciding while a batch is written. If a commit fails, nobody knows what is
//! stored: the controller is dropped, and another is started from storage. If somebody else has
//! started on the store, the daemon ends.

use anyhow::anyhow;
use canopy_control::storage::{Batch, Revision, Storage, StorageError};
use canopy_control::{Controller, Event, LoadError, RelayId, Retry, Settings};
use canopy_wire::Time;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// How many events a receiver may be behind.
const MOST_EVENTS: usize = 4096;
/// The controller is started again so long after it could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// Questions that are answered before time and storage are looked at again.
const MOST_AT_ONCE: usize = 256;
/// Turns that may wait to be handed out. The controller's thread waits then.
const MOST_TURNS: usize = 16;

type Question = Box<dyn FnOnce(&mut Controller, Time) -> Answer + Send>;
/// Tells whoever asked what was answered.
type Answer = Box<dyn FnOnce() + Send>;
/// Called once what was decided is committed; dropped if that fails.
type Waiter = oneshot::Sender<()>;

/// What the controller's thread is given.
enum Work {
    /// Whoever waits until what it decides is committed waits from then on.
    Question(Question, Option<Waiter>),
    Committed(Result<Revision, StorageError>),
    Started(Box<Result<Controller, LoadError>>),
}

/// What the storage's thread is given.
enum Order {
    Commit(Batch),
    Start(Settings, Retry),
}

/// What the controller says in a turn, in the order in which it is handed out.
#[derive(Default)]
struct Turn {
    answers: Vec<Answer>,
    /// Whose decisions are committed.
    committed: Vec<Waiter>,
    messages: Vec<(RelayId, Vec<u8>)>,
    events: Vec<Event>,
}

/// Asks the controller. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    work: Sender<Work>,
    events: broadcast::Sender<Event>,
    lives: watch::Receiver<u32>,
    ended: watch::Receiver<Option<String>>,
}

impl Handle {
    /// Starts both threads, in a tokio runtime. They end when the last handle is dropped, or when another
    /// controller runs on the store: see [`Handle::ended`]. `outgoing` takes messages for relays, and must
    /// not wait.
    pub(crate) fn start(
        controller: Controller,
        storage: impl Storage + Send + 'static,
        outgoing: impl FnMut(RelayId, Vec<u8>) + Send + 'static,
    ) -> Handle {
        let (work, incoming) = channel();
        let (orders, ordered) = channel();
        let (turns, said) = mpsc::channel(MOST_TURNS);
        let (events, _) = broadcast::channel(MOST_EVENTS);
        let (lives, current) = watch::channel(controller.life());
        let (end, ended) = watch::channel(None);
        let answers = work.clone();
        std::thread::spawn(move || keep(storage, &ordered, &answers));
        tokio::spawn(hand_out(said, outgoing, events.clone()));
        let driver = Driver {
            with: controller.started_with(),
            controller: Some(controller),
            is_writing: false,
            waiting: Vec::new(),
            held: VecDeque::new(),
            orders,
            turn: Turn::default(),
            turns,
            lives,
        };
        std::thread::spawn(move || {
            if let Err(error) = driver.run(&incoming) {
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
        let question = move |controller: &mut Controller, now| -> Answer {
            let answered = question(controller, now);
            Box::new(move || _ = answer.send(answered))
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

/// The storage's thread: does what it is told until the controller's has ended.
fn keep(mut storage: impl Storage, orders: &Receiver<Order>, answers: &Sender<Work>) {
    for order in orders {
        let answer = match order {
            Order::Commit(batch) => Work::Committed(storage.commit(&batch)),
            Order::Start(settings, retry) => {
                let started = Controller::start(settings, retry, now(), &mut storage);
                Work::Started(Box::new(started))
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

/// Tells everyone what the controller says, until its thread has ended.
async fn hand_out(
    mut turns: mpsc::Receiver<Turn>,
    mut outgoing: impl FnMut(RelayId, Vec<u8>),
    events: broadcast::Sender<Event>,
) {
    while let Some(turn) = turns.recv().await {
        turn.answers.into_iter().for_each(|answer| answer());
        for waiter in turn.committed {
            _ = waiter.send(());
        }
        for (relay, message) in turn.messages {
            outgoing(relay, message);
        }
        for event in turn.events {
            _ = events.send(event);
        }
    }
}

struct Driver {
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
    /// What is said in this turn.
    turn: Turn,
    turns: mpsc::Sender<Turn>,
    lives: watch::Sender<u32>,
}

impl Driver {
    /// # Errors
    /// Why it cannot go on.
    fn run(mut self, incoming: &Receiver<Work>) -> anyhow::Result<()> {
        loop {
            let wait = self.controller.as_ref().map_or(AGAIN, |controller| {
                let until = controller.poll_timeout(now()).as_nanos();
                Duration::from_nanos(until.saturating_sub(now().as_nanos()))
            });
            match incoming.recv_timeout(wait) {
                Ok(work) => self.take(work)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            for work in incoming.try_iter().take(MOST_AT_ONCE) {
                self.take(work)?;
            }
            // The storage's thread has a sender too, so that the channel's end does not tell.
            if self.lives.is_closed() {
                return Ok(());
            }
            self.drive()?;
            self.end_turn();
        }
    }

    fn take(&mut self, work: Work) -> anyhow::Result<()> {
        match work {
            Work::Question(question, waiter) => match &mut self.controller {
                Some(controller) => {
                    self.turn.answers.push(question(controller, now()));
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
        self.end_turn();
        std::thread::sleep(AGAIN);
        let (settings, retry) = self.with;
        self.orders.send(Order::Start(settings, retry)).map_err(|_| stopped())
    }

    fn go_on(&mut self, mut controller: Controller) {
        tracing::info!(life = controller.life(), "the controller was started from storage again");
        // Relays are to register anew: what they were told may not be stored.
        self.lives.send_replace(controller.life());
        for (question, waiter) in self.held.drain(..) {
            self.turn.answers.push(question(&mut controller, now()));
            self.waiting.extend(waiter);
        }
        self.controller = Some(controller);
    }

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
            self.turn.committed.append(&mut self.waiting);
        }
        while let Some(message) = controller.poll_transmit(now()) {
            self.turn.messages.push(message);
        }
        while let Some(event) = controller.poll_event() {
            self.turn.events.push(event);
        }
        Ok(())
    }

    fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        let Turn { answers, committed, messages, events } = &turn;
        let is_silent =
            answers.is_empty() && committed.is_empty() && messages.is_empty() && events.is_empty();
        if !is_silent {
            // The runtime may have ended: nobody is there to be told anything then.
            _ = self.turns.blocking_send(turn);
        }
    }
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(since.as_nanos() as u64)
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
