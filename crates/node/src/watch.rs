//! Who watches over data threads: what they tell, and the queue through which everything that is
//! not traffic reaches them.

use crate::inspect::Inspection;
use canopy_net::{Clock, SendReport, Waker};
use canopy_relay::{
    BranchStatus, Change, ComtreeStatus, Counters, LinkStatus, MAX_TALKERS, MAX_THINNED, Refusal,
    Talker, ThinnedReceiver, Trust, UnixTime,
};
use canopy_wire::Time;
use core::cmp::Reverse;
use core::ops::Range;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Requests that wait for a data thread.
const QUEUE: usize = 256;
/// How long to wait for room in a queue, and then for an answer; a data thread looks at its queue in
/// every turn.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for an answer before looking whether the thread has ended.
const ANSWER_WAIT: Duration = Duration::from_millis(20);
/// How long to wait for room in a queue before looking again.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// What a data thread last told about itself.
#[derive(Clone, Debug, Default)]
pub struct ThreadStatus {
    /// When it told so, by the relay's clock.
    pub at: Time,
    /// What its relay counted.
    pub counters: Counters,
    /// Participants connected.
    pub sessions: u32,
    /// Subscriptions held.
    pub subscriptions: u32,
    /// Groups with subscribers.
    pub groups: u32,
    /// Updates that wait for receivers that cannot be sent everything, for all of them together.
    pub waiting_updates: u64,
    /// How its comtrees stand.
    pub comtrees: Vec<ComtreeStatus>,
    /// How its links to neighbour relays stand.
    pub links: Vec<LinkStatus>,
    /// How its comtrees' branches stand.
    pub branches: Vec<BranchStatus>,
    /// Routes that it has learned, each on every data thread that uses it.
    pub routes: u32,
    /// Who sent the most in the last second, the heaviest first.
    pub talkers: Vec<Talker>,
    /// Who was thinned most in the last second, the most first.
    pub thinned: Vec<ThinnedReceiver>,
    /// What the send engine did.
    pub sent: SendReport,
    /// Time spent in it.
    pub sending: Duration,
    /// Processor time of the thread.
    pub cpu: Duration,
    /// The longest turn since the status before.
    pub longest_turn: Duration,
    /// Data threads whose engine sends in another way than its own.
    pub engines_stopped: u32,
}

impl ThreadStatus {
    /// Adds another thread's, or another relay's.
    pub fn add(&mut self, other: &ThreadStatus) {
        self.counters.add(&other.counters);
        self.sessions += other.sessions;
        self.subscriptions += other.subscriptions;
        self.groups += other.groups;
        self.waiting_updates += other.waiting_updates;
        for comtree in &other.comtrees {
            match self.comtrees.iter_mut().find(|sum| sum.comtree == comtree.comtree) {
                Some(sum) => {
                    sum.participants += comtree.participants;
                    sum.counters.add(&comtree.counters);
                }
                None => self.comtrees.push(*comtree),
            }
        }
        self.links.extend(&other.links);
        self.branches.extend(&other.branches);
        self.routes += other.routes;
        self.talkers.extend(&other.talkers);
        self.talkers.sort_by_key(|talker| Reverse(talker.bits));
        self.talkers.truncate(MAX_TALKERS);
        self.thinned.extend(&other.thinned);
        self.thinned.sort_by_key(|receiver| Reverse(receiver.rank()));
        self.thinned.truncate(MAX_THINNED);
        self.at = self.at.max(other.at);
        self.sent.add(other.sent);
        self.sending += other.sending;
        self.cpu += other.cpu;
        self.longest_turn = self.longest_turn.max(other.longest_turn);
        self.engines_stopped += other.engines_stopped;
    }
}

/// How a relay is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take no one new and tell everyone to go; stop when they have gone, or when the time for that
    /// is over.
    Drain,
    /// Stop at once.
    Stop,
}

/// What a data thread is asked to do.
pub(crate) enum Request {
    Change(Change, SyncSender<Result<(), Refusal>>),
    Inspect(SyncSender<Inspection>),
    Stop,
}

/// What a data thread shares with its watchers and with the other data threads. It touches the
/// status a few times a second, never for a packet.
pub(crate) struct Shared {
    pub(crate) waker: Arc<Waker>,
    /// Set while the thread waits for its socket, so that others know to wake it.
    pub(crate) waiting: AtomicBool,
    pub(crate) status: Mutex<ThreadStatus>,
    requests: Mutex<Producer<Request>>,
}

impl Shared {
    /// What is shared, and the end of the queue that the thread reads, which the waker wakes.
    pub(crate) fn new(waker: Arc<Waker>) -> (Arc<Shared>, Consumer<Request>) {
        let (requests, consumer) = RingBuffer::new(QUEUE);
        let shared = Shared {
            waker,
            waiting: AtomicBool::new(false),
            status: Mutex::default(),
            requests: Mutex::new(requests),
        };
        (Arc::new(shared), consumer)
    }

    /// Whether the thread that reads the queue is gone, for whatever reason.
    fn has_ended(&self) -> bool {
        lock(&self.requests).is_abandoned()
    }

    /// Puts a request into the thread's queue, if there is room now.
    fn ask(&self, request: Request) -> Result<(), Unasked> {
        let mut requests = lock(&self.requests);
        if requests.is_abandoned() {
            return Err(Unasked::Ended);
        }
        let pushed = requests.push(request);
        drop(requests);
        // Without looking whether it waits: changes are rare, so a needless wake costs nothing.
        fence(Ordering::SeqCst);
        self.waker.wake();
        pushed.map_err(|PushError::Full(back)| Unasked::Full(Box::new(back)))
    }
}

/// Why a thread was not asked.
enum Unasked {
    /// It has ended.
    Ended,
    /// Its queue has no room for this request.
    Full(Box<Request>),
}

/// Why a change did not happen, or not everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// A data thread refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A data thread has ended, or does not get round to its queue.
    #[error("data thread {0} does not answer; the relay is stopping or overloaded")]
    NoAnswer(usize),
    /// A data thread's queue is full, and it does not get round to it.
    #[error("the queue of data thread {0} stays full; the relay is overloaded, try again later")]
    QueueFull(usize),
}

/// How a relay is, for whoever sends it traffic or restarts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All data threads serve.
    Serving,
    /// It was told to drain or to stop.
    Draining,
    /// This many data threads have ended although nobody told them to.
    ThreadsEnded(usize),
}

/// Reads a running relay's status and changes it, from anywhere.
#[derive(Clone)]
pub struct RelayWatch {
    shared: Vec<Arc<Shared>>,
    clock: Clock,
    /// Whether it was told to drain or to stop.
    is_leaving: Arc<AtomicBool>,
    /// How long to wait for room in a queue, and then for an answer.
    patience: Duration,
}

impl RelayWatch {
    pub(crate) fn new(shared: Vec<Arc<Shared>>, clock: Clock) -> RelayWatch {
        RelayWatch { shared, clock, is_leaving: Arc::default(), patience: ANSWER_LIMIT }
    }

    /// What the system's clock shows now for the relay's zero: another time if that was set.
    pub fn origin(&self) -> UnixTime {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let up = Duration::from_nanos(self.clock.now().as_nanos());
        // To the nearest second, so that it stays the same while nobody sets the clock.
        UnixTime((now.saturating_sub(up) + Duration::from_millis(500)).as_secs())
    }

    /// Lets in by other keys from now on; see [`Change::Trust`].
    ///
    /// # Errors
    /// If a data thread does not answer.
    pub fn trust(&self, trust: Arc<Trust>) -> Result<(), ChangeError> {
        self.apply(Change::Trust { trust, origin: self.origin() })
    }

    pub(crate) fn shared(&self) -> &[Arc<Shared>] {
        &self.shared
    }

    /// Whether it serves.
    pub fn health(&self) -> Health {
        if self.is_leaving.load(Ordering::Relaxed) {
            return Health::Draining;
        }
        match self.shared.iter().filter(|shared| shared.has_ended()).count() {
            0 => Health::Serving,
            ended => Health::ThreadsEnded(ended),
        }
    }

    /// The sum of what the data threads last told, a fifth of a second old at most.
    pub fn status(&self) -> ThreadStatus {
        let mut sum = ThreadStatus::default();
        for shared in &self.shared {
            sum.add(&lock(&shared.status));
        }
        sum
    }

    /// Applies a change on the data threads that it concerns, and waits until they have.
    ///
    /// # Errors
    /// If one of them refuses it or does not answer. Others may have applied it all the same.
    pub fn apply(&self, change: Change) -> Result<(), ChangeError> {
        let threads = self.shared.len();
        let concerned = match change.thread(threads as u16) {
            Some(thread) => usize::from(thread)..usize::from(thread) + 1,
            None => 0..threads,
        };
        let answers = self.ask(concerned, |answer| Request::Change(change.clone(), answer))?;
        let mut first = Ok(());
        for (thread, answer) in answers {
            let result = self.wait_for(thread, &answer);
            first = first.and(result.and_then(|result| result.map_err(ChangeError::Refused)));
        }
        first
    }

    /// Looks at the routes and groups of all data threads, and waits until they have told them.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn inspect(&self) -> Result<Inspection, ChangeError> {
        let answers = self.ask(0..self.shared.len(), Request::Inspect)?;
        let told = answers.into_iter().map(|(thread, answer)| self.wait_for(thread, &answer));
        Ok(Inspection::merge(told.collect::<Result<Vec<_>, _>>()?))
    }

    /// Puts a request into the queues of these data threads. What they answer comes by what is returned.
    fn ask<T>(
        &self,
        threads: Range<usize>,
        request: impl Fn(SyncSender<T>) -> Request,
    ) -> Result<Vec<(usize, Receiver<T>)>, ChangeError> {
        let deadline = Instant::now() + self.patience;
        let ask = |thread: usize| {
            let (answer, receiver) = sync_channel(1);
            let mut request = request(answer);
            loop {
                match self.shared[thread].ask(request) {
                    Ok(()) => return Ok((thread, receiver)),
                    Err(Unasked::Ended) => return Err(ChangeError::NoAnswer(thread)),
                    Err(Unasked::Full(_)) if Instant::now() >= deadline => {
                        return Err(ChangeError::QueueFull(thread));
                    }
                    Err(Unasked::Full(back)) => request = *back,
                }
                std::thread::sleep(ROOM_WAIT);
            }
        };
        threads.map(ask).collect()
    }

    /// Waits for the answer of a data thread, as long as there can be one.
    fn wait_for<T>(&self, thread: usize, answer: &Receiver<T>) -> Result<T, ChangeError> {
        let deadline = Instant::now() + self.patience;
        loop {
            // Asked first: what it answered before it ended is there already.
            let has_ended = self.shared[thread].has_ended();
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left.min(ANSWER_WAIT)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if !has_ended && !left.is_zero() => {}
                Err(_) => return Err(ChangeError::NoAnswer(thread)),
            }
        }
    }

    /// Tells every data thread to end, in one way or the other. One whose queue stays full for
    /// seconds is not told.
    pub fn command(&self, command: Command) {
        self.is_leaving.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + self.patience;
        let request = || match command {
            Command::Drain => Request::Change(Change::Drain, sync_channel(1).0),
            Command::Stop => Request::Stop,
        };
        // One that does not get round to its queue keeps no other from hearing of it, and one that
        // has ended already need not be told.
        let is_full =
            |shared: &&Arc<Shared>| matches!(shared.ask(request()), Err(Unasked::Full(_)));
        let mut untold: Vec<_> = self.shared.iter().filter(is_full).collect();
        while !untold.is_empty() && Instant::now() < deadline {
            std::thread::sleep(ROOM_WAIT);
            untold.retain(is_full);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Comtree;

    fn shared() -> (Arc<Shared>, Consumer<Request>) {
        Shared::new(Arc::new(Waker::new().unwrap()))
    }

    #[test]
    fn a_thread_that_ends_unasked_is_noticed_even_if_it_panics() {
        let (shared, mut queues): (Vec<_>, Vec<_>) = (0..2).map(|_| shared()).unzip();
        let watch = RelayWatch::new(shared, Clock::start());
        assert_eq!(watch.health(), Health::Serving);
        let queue = queues.pop();
        let panicked = std::thread::spawn(move || {
            let _queue = queue;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(watch.health(), Health::ThreadsEnded(1));
        assert_eq!(watch.apply(Change::Drain), Err(ChangeError::NoAnswer(1)));
        watch.command(Command::Drain);
        assert_eq!(watch.health(), Health::Draining);
    }

    /// It would wait for an hour otherwise.
    #[test]
    fn nobody_waits_for_a_thread_that_ended_with_questions_in_its_queue() {
        let (shared, queue) = self::shared();
        let mut watch = RelayWatch::new(vec![shared], Clock::start());
        watch.patience = Duration::from_secs(3600);
        let asking = watch.clone();
        let asked = std::thread::spawn(move || asking.apply(Change::Drain));
        while queue.is_empty() {
            std::thread::yield_now();
        }
        drop(queue);
        assert_eq!(asked.join().unwrap(), Err(ChangeError::NoAnswer(0)));
    }

    #[test]
    fn a_full_queue_holds_nobody_up_for_ever() {
        let (shared, mut queues): (Vec<_>, Vec<_>) = (0..2).map(|_| shared()).unzip();
        let mut watch = RelayWatch::new(shared, Clock::start());
        watch.patience = Duration::ZERO;
        for _ in 0..QUEUE {
            let unanswered = watch.apply(Change::RemoveComtree(Comtree(1)));
            assert_eq!(unanswered, Err(ChangeError::NoAnswer(0)));
            queues[1].pop().unwrap();
        }
        let refused = watch.apply(Change::Drain).unwrap_err();
        assert_eq!(refused, ChangeError::QueueFull(0));
        assert!(refused.to_string().contains("try again later"), "{refused}");
        assert!(matches!(watch.inspect(), Err(ChangeError::QueueFull(0))));
        watch.command(Command::Stop);
        assert!(matches!(queues[1].pop(), Ok(Request::Stop)), "the other hears of it");
        // Once there is room, it is asked again.
        queues[0].pop().unwrap();
        assert_eq!(watch.apply(Change::Drain), Err(ChangeError::NoAnswer(0)));
    }
}
