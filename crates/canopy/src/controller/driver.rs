//! The thread that owns the controller, and the handle by which the daemon's other parts ask it.

use anyhow::anyhow;
use canopy_control::storage::Storage;
use canopy_control::{Controller, Event, RelayId};
use canopy_wire::Time;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, oneshot};

/// How many events a receiver may be behind.
const MOST_EVENTS: usize = 4096;

type Question = Box<dyn FnOnce(&mut Controller, Time) + Send>;

/// Asks the controller.
#[derive(Clone)]
pub(crate) struct Handle {
    questions: Sender<Question>,
    events: broadcast::Sender<Event>,
}

impl Handle {
    /// Starts the thread. It ends when the last handle is dropped, or storage fails.
    pub(crate) fn start(
        controller: Controller,
        storage: impl Storage + Send + 'static,
        outgoing: impl FnMut(RelayId, Vec<u8>) + Send + 'static,
    ) -> Handle {
        let (questions, asked) = channel();
        let (events, _) = broadcast::channel(MOST_EVENTS);
        let driver = Driver { controller, storage, outgoing, events: events.clone() };
        std::thread::spawn(move || driver.run(&asked));
        Handle { questions, events }
    }

    /// Runs a question on the controller, between its other work.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Time) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |controller, now| {
            _ = answer.send(question(controller, now));
        });
        let stopped = || anyhow!("the controller has stopped; see its log");
        self.questions.send(question).map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())
    }

    /// What it tells from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
}

struct Driver<S, O> {
    controller: Controller,
    storage: S,
    outgoing: O,
    events: broadcast::Sender<Event>,
}

impl<S: Storage, O: FnMut(RelayId, Vec<u8>)> Driver<S, O> {
    fn run(mut self, asked: &Receiver<Question>) {
        loop {
            let wait = self.controller.poll_timeout(now()).as_nanos();
            let wait = Duration::from_nanos(wait.saturating_sub(now().as_nanos()));
            match asked.recv_timeout(wait) {
                Ok(question) => question(&mut self.controller, now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.controller.handle_timeout(now());
            while let Some(batch) = self.controller.poll_commit(now()) {
                let result = self.storage.commit(&batch);
                if let Err(error) = self.controller.handle_commit(now(), result) {
                    tracing::error!("{error}");
                    return;
                }
            }
            while let Some((relay, message)) = self.controller.poll_transmit(now()) {
                (self.outgoing)(relay, message);
            }
            while let Some(event) = self.controller.poll_event() {
                _ = self.events.send(event);
            }
        }
    }
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(since.as_nanos() as u64)
}
