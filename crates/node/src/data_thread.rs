//! One data thread: turn after turn, and between them what is not traffic.
//!
//! It takes no lock for a packet, allocates nothing after its start but for whoever inspects it, and
//! waits in one place only.
//! The clone engines ask the kernel for routes and hardware addresses here too, once for each
//! receiver every ten seconds or when they change.

use crate::config::NodeConfig;
use crate::inspect::Inspection;
use crate::sockets::Sockets;
use crate::watch::{Request, Shared, ThreadStatus};
use canopy_net::{Clock, sleep_until, thread_cpu_time};
use canopy_relay::{Change, Notice, Turn, Wait};
use canopy_wire::Time;
use rtrb::Consumer;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

const STATUS_EVERY: Duration = Duration::from_millis(200);
/// Changes that are applied between two turns.
const CHANGES_A_TURN: usize = 64;

/// One data thread and all that it owns.
pub(crate) struct DataThread {
    pub(crate) number: u16,
    pub(crate) turn: Turn,
    pub(crate) sockets: Sockets,
    pub(crate) clock: Clock,
    pub(crate) requests: Consumer<Request>,
    pub(crate) notices: SyncSender<Notice>,
    /// What is shared with each data thread of the relay, this one among them.
    pub(crate) shared: Vec<Arc<Shared>>,
    pub(crate) drain_limit: Duration,
    pub(crate) drain_until: Option<Time>,
    pub(crate) longest_turn: Duration,
    pub(crate) status_at: Time,
    /// Whether something has happened since the status was told.
    pub(crate) untold: bool,
}

impl DataThread {
    pub(crate) fn new(
        number: u16,
        turn: Turn,
        sockets: Sockets,
        clock: Clock,
        settings: &NodeConfig,
        (requests, notices): (Consumer<Request>, SyncSender<Notice>),
        shared: &[Arc<Shared>],
    ) -> DataThread {
        DataThread {
            number,
            turn,
            sockets,
            clock,
            requests,
            notices,
            shared: shared.to_vec(),
            drain_limit: settings.drain,
            drain_until: None,
            longest_turn: Duration::ZERO,
            status_at: Time::ZERO,
            untold: true,
        }
    }

    /// Runs until told to stop.
    ///
    /// # Errors
    /// If the socket is lost.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        loop {
            self.wait()?;
            let now = self.clock.now();
            let stop = self.follow_requests(now);
            self.sockets.begin(now);
            let to_wake = self.turn.run(now, &mut self.sockets)?;
            self.wake(to_wake);
            let done = self.clock.now();
            self.longest_turn = self.longest_turn.max(done.since(now));
            if self.attend(done, stop) {
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let retry = self.sockets.retry_at();
        let sooner = |at: Time| retry.map_or(at, |retry| retry.min(at));
        let due = match self.turn.wait() {
            Wait::Until(at) => {
                let until = sooner(at);
                if until > self.clock.now() {
                    sleep_until(&self.clock, until);
                }
                return Ok(());
            }
            Wait::Stranger(at) => {
                // Whoever changes something wakes it too; other data threads need not.
                return Ok(self.sockets.wait_for_stranger(sooner(at))?);
            }
            Wait::Arrival(due) => due,
        };
        // An empty relay that has told how it stands sleeps until it is woken.
        let status = self.untold.then_some(self.status_at);
        let until = [due, retry, status, self.drain_until].into_iter().flatten().min();
        let shared = &self.shared[usize::from(self.number)];
        shared.waiting.store(true, Ordering::Relaxed);
        // The wake protocol: this thread says that it waits and then looks at the logs and the
        // queue; the others write there and then look whether it waits. With a fence between the
        // two steps on both sides, at least one of them sees what the other did, so nothing is
        // left lying while this thread sleeps.
        fence(Ordering::SeqCst);
        if self.turn.relay().has_heard_all() && self.requests.is_empty() {
            self.sockets.wait(until)?;
        }
        shared.waiting.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Wakes the threads in `mask` that wait.
    fn wake(&self, mask: u64) {
        if mask == 0 {
            return;
        }
        // See `wait`.
        fence(Ordering::SeqCst);
        for (number, shared) in self.shared.iter().enumerate() {
            if mask & 1 << number != 0 && shared.waiting.load(Ordering::Relaxed) {
                shared.waker.wake();
            }
        }
    }

    /// Does what the queue of changes asks for. Returns whether to stop.
    fn follow_requests(&mut self, now: Time) -> bool {
        for _ in 0..CHANGES_A_TURN {
            let Ok(request) = self.requests.pop() else { return false };
            match request {
                Request::Stop => return true,
                Request::Inspect(answer) => {
                    // Who asked may have given up waiting.
                    let _ = answer.try_send(Inspection::of(self.turn.relay_mut(), now));
                }
                Request::Change(change, answer) => {
                    if matches!(change, Change::Drain) {
                        self.drain_until.get_or_insert(now + self.drain_limit);
                    }
                    let result = self.turn.relay_mut().apply(now, change);
                    // Who asked may have given up waiting.
                    let _ = answer.try_send(result);
                }
            }
        }
        false
    }

    /// Tells the status and what there is to log. Returns whether to stop.
    fn attend(&mut self, now: Time, stop: bool) -> bool {
        while let Some(notice) = self.turn.relay_mut().poll_notice() {
            // Nobody may be listening.
            let _ = self.notices.try_send(notice);
        }
        let drained =
            self.drain_until.is_some_and(|until| now >= until || self.turn.relay().sessions() == 0);
        let stop = stop || drained;
        self.untold = true;
        if stop || now >= self.status_at {
            self.status_at = now + STATUS_EVERY;
            self.tell_status(stop);
        }
        stop
    }

    fn tell_status(&mut self, at_any_cost: bool) {
        let shared = &self.shared[usize::from(self.number)];
        let slot = if at_any_cost {
            shared.status.lock().ok()
        } else {
            // Someone is reading: tell it next time.
            shared.status.try_lock().ok()
        };
        if let Some(mut slot) = slot {
            self.untold = false;
            let relay = self.turn.relay();
            // The lists keep their memory.
            let comtrees = refill(&mut slot.comtrees, relay.comtrees());
            let links = refill(&mut slot.links, relay.links());
            let branches = refill(&mut slot.branches, relay.branches());
            let talkers = refill(&mut slot.talkers, relay.talkers().iter().copied());
            let thinned = refill(&mut slot.thinned, relay.thinned().iter().copied());
            *slot = ThreadStatus {
                at: self.clock.now(),
                counters: relay.counters().clone(),
                sessions: relay.sessions(),
                subscriptions: relay.subscriptions(),
                groups: relay.groups(),
                waiting_updates: relay.waiting_updates(),
                comtrees,
                links,
                branches,
                routes: relay.routes(),
                talkers,
                thinned,
                sent: self.sockets.sent,
                sending: self.sockets.sending,
                cpu: thread_cpu_time(),
                longest_turn: std::mem::take(&mut self.longest_turn),
                engines_stopped: self.sockets.engine_has_stopped().into(),
            };
        }
    }
}

/// A list's memory with other elements in it.
fn refill<T>(list: &mut Vec<T>, elements: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list = std::mem::take(list);
    list.clear();
    list.extend(elements);
    list
}
