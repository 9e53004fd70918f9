//! A running relay as a library: data threads that run [`canopy_relay::Relay`], what passes between
//! them, and what watches over them.
#![forbid(unsafe_code)]

mod data_thread;

use anyhow::Context;
use canopy_engines::{Engine, EngineChoice};
use canopy_net::{Clock, SendReport, SocketOptions, ThreadSockets, Waker};
use canopy_relay::{Counters, Mode, Relay, RelayConfig, TableLimits};
use canopy_session::{Keyring, SessionLimits, SessionsConfig};
use canopy_wire::{Comtree, DropReason, Tag, Time};
use data_thread::{DataThread, Handover};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a relay is made from, checked already.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// When updates leave.
    pub mode: Mode,
    /// Data threads, 1 to 64.
    pub threads: u16,
    /// How datagrams are sent.
    pub engine: EngineChoice,
    /// Where clone engines were installed.
    pub engine_folder: PathBuf,
    /// The comtrees that it carries.
    pub comtrees: Vec<Comtree>,
    /// The site of the addresses that it gives out.
    pub site: u16,
    /// The most sessions at a time, of all data threads.
    pub max_sessions: u32,
    /// The size of each data thread's tables.
    pub tables: TableLimits,
    /// How long things live.
    pub session_limits: SessionLimits,
    /// How long a drain waits for participants to leave.
    pub drain: Duration,
    /// The processors of the data threads, in order; those without one run anywhere.
    pub pin: Vec<usize>,
}

/// What the data threads are asked to do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Serve.
    Run = 0,
    /// Take no one new, tell everyone to go, stop.
    Drain = 1,
    /// Stop at once.
    Stop = 2,
}

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

/// What a data thread and its watchers share. The thread touches it a few times a second, never
/// for a packet.
struct Shared {
    command: AtomicU8,
    waker: Waker,
    /// Set while the thread waits for its socket, so that others know to wake it.
    waiting: AtomicBool,
    status: Mutex<ThreadStatus>,
}

impl Shared {
    fn command(&self) -> Command {
        match self.command.load(Ordering::Relaxed) {
            0 => Command::Run,
            1 => Command::Drain,
            _ => Command::Stop,
        }
    }
}

/// A send engine, and how many data threads have it for the same reason.
#[derive(Clone, Debug, Serialize)]
pub struct EngineInUse {
    /// Its name.
    pub engine: &'static str,
    /// How many data threads have it.
    pub threads: usize,
    /// Why it was chosen.
    pub why: String,
}

/// A relay whose data threads run.
pub struct RunningRelay {
    address: SocketAddr,
    receive_buffer: usize,
    engines: Vec<EngineInUse>,
    shared: Vec<Arc<Shared>>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl RunningRelay {
    /// Binds the sockets and starts the data threads.
    pub fn start(settings: &NodeConfig) -> anyhow::Result<RunningRelay> {
        let shards = settings.threads;
        let sockets = listen(settings.listen, shards)?;
        let address = sockets[0].data.local_address();
        let receive_buffer = sockets[0].data.receive_buffer()?;
        let shared = (0..shards)
            .map(|_| {
                Ok(Arc::new(Shared {
                    command: AtomicU8::new(Command::Run as u8),
                    waker: Waker::new()?,
                    waiting: AtomicBool::new(false),
                    status: Mutex::default(),
                }))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let engines = open_engines(settings, &sockets)?;
        let in_use = in_use(&engines);
        let threads = spawn_all(settings, sockets, engines, &shared)?;
        Ok(RunningRelay { address, receive_buffer, engines: in_use, shared, threads })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The send engines, by how many data threads have them.
    pub fn engines(&self) -> &[EngineInUse] {
        &self.engines
    }

    /// The bytes that may wait for a data thread, if the kernel granted fewer than were asked for;
    /// and those.
    pub fn small_receive_buffer(&self) -> Option<(usize, usize)> {
        let asked = SocketOptions::default().receive_buffer;
        (self.receive_buffer < asked).then_some((self.receive_buffer, asked))
    }

    /// A handle that reads status and gives commands from anywhere.
    pub fn watch(&self) -> RelayWatch {
        RelayWatch { shared: self.shared.clone() }
    }

    /// Waits for the data threads to end; they must have been told to.
    pub fn join(self) -> anyhow::Result<()> {
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a data thread panicked"))??;
        }
        Ok(())
    }
}

/// Reads a running relay's status and gives it commands.
#[derive(Clone)]
pub struct RelayWatch {
    shared: Vec<Arc<Shared>>,
}

impl RelayWatch {
    /// The sum of what the data threads last told, a fifth of a second old at most.
    pub fn status(&self) -> ThreadStatus {
        let mut sum = ThreadStatus::default();
        for shared in &self.shared {
            let status = shared.status.lock().unwrap_or_else(PoisonError::into_inner);
            sum.counters.add(&status.counters);
            sum.sessions += status.sessions;
            sum.subscriptions += status.subscriptions;
            sum.groups += status.groups;
            sum.at = sum.at.max(status.at);
            sum.sent.add(status.sent);
            sum.sending += status.sending;
            sum.cpu += status.cpu;
            sum.longest_turn = sum.longest_turn.max(status.longest_turn);
            sum.engines_stopped += status.engines_stopped;
        }
        sum
    }

    /// Tells every data thread.
    pub fn command(&self, command: Command) {
        for shared in &self.shared {
            shared.command.store(command as u8, Ordering::Relaxed);
            shared.waker.wake();
        }
    }
}

/// So long is an address waited for that somebody has still.
const ADDRESS_WAIT: Duration = Duration::from_millis(500);

/// The sockets of each data thread, on an address that nobody else holds.
fn listen(address: SocketAddr, shards: u16) -> anyhow::Result<Vec<ThreadSockets>> {
    let bind = || canopy_net::listen(address, shards, &SocketOptions::default());
    let mut sockets = bind();
    let started = Instant::now();
    // The kernel lets go of a relay's io_uring, and so of its address, only after its process.
    while sockets.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        && started.elapsed() < ADDRESS_WAIT
    {
        std::thread::sleep(ADDRESS_WAIT / 20);
        sockets = bind();
    }
    sockets.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied => {
                "choose another address with --listen"
            }
            _ => "the system's limits may be why (ulimit -a)",
        };
        anyhow::Error::new(error).context(format!("cannot listen on {address}; {remedy}"))
    })
}

/// An engine for each data thread. Left to choose, a thread may find that what others use has no
/// place for it.
fn open_engines(settings: &NodeConfig, sockets: &[ThreadSockets]) -> anyhow::Result<Vec<Engine>> {
    let open = |sockets: &ThreadSockets| {
        Engine::open_in(&settings.engine_folder, settings.engine, &sockets.data)
    };
    Ok(sockets.iter().map(open).collect::<Result<_, _>>()?)
}

/// Which data threads chose alike, in the order of the first of them.
fn in_use(engines: &[Engine]) -> Vec<EngineInUse> {
    let mut all: Vec<EngineInUse> = Vec::new();
    for engine in engines {
        let (name, why) = (engine.name().name(), engine.why());
        match all.iter_mut().find(|one| one.engine == name && one.why == why) {
            Some(alike) => alike.threads += 1,
            None => all.push(EngineInUse { engine: name, threads: 1, why: why.to_owned() }),
        }
    }
    all
}

fn spawn_all(
    settings: &NodeConfig,
    sockets: Vec<ThreadSockets>,
    engines: Vec<Engine>,
    shared: &[Arc<Shared>],
) -> anyhow::Result<Vec<JoinHandle<anyhow::Result<()>>>> {
    let clock = Clock::start();
    let keys = Keyring::new(random_tag()?);
    let mut handovers = Handover::mesh(shared);
    let mut threads = Vec::new();
    for ((shard, sockets), engine) in (0..settings.threads).zip(sockets).zip(engines) {
        let pin = settings.pin.get(usize::from(shard)).copied();
        let config = relay_config(settings, shard, &engine);
        let relay = Relay::new(config, keys.clone(), &random_tag()?);
        let thread = DataThread::new(
            relay,
            sockets,
            clock,
            engine,
            settings,
            Arc::clone(&shared[usize::from(shard)]),
            handovers.remove(0),
        );
        let run = move || {
            if let Some(processor) = pin {
                canopy_net::pin_thread(processor)
                    .with_context(|| format!("cannot stay on processor {processor}"))?;
            }
            thread.run()
        };
        threads.push(std::thread::Builder::new().name(format!("data-{shard}")).spawn(run)?);
    }
    Ok(threads)
}

fn relay_config(settings: &NodeConfig, shard: u16, engine: &Engine) -> RelayConfig {
    RelayConfig {
        mode: settings.mode,
        sessions: SessionsConfig {
            comtrees: settings.comtrees.clone(),
            site: settings.site,
            shard,
            shards: settings.threads,
            max_sessions: share_of(settings.max_sessions, shard, settings.threads),
            limits: settings.session_limits,
        },
        tables: settings.tables,
        smallest_set: engine.smallest_set(),
    }
}

/// A data thread's share of what the relay has in all.
fn share_of(all: u32, shard: u16, shards: u16) -> u32 {
    let (shard, shards) = (u32::from(shard), u32::from(shards));
    all / shards + u32::from(shard < all % shards)
}

fn random_tag() -> anyhow::Result<Tag> {
    let mut tag = Tag::default();
    getrandom::fill(&mut tag).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(tag)
}

/// A relay's totals, as `--json` prints them.
#[derive(Serialize)]
pub struct RelayReport {
    sessions: u32,
    subscriptions: u32,
    groups: u32,
    send_waits: u64,
    /// Datagrams that the kernel cloned, and that were sent otherwise than the engine would.
    datagrams_cloned: u64,
    send_fallbacks: u64,
    sending_us: u64,
    cpu_us: u64,
    counters: BTreeMap<&'static str, u64>,
    /// Only the reasons that occurred.
    drops: BTreeMap<&'static str, u64>,
}

impl RelayReport {
    /// The totals that a status tells.
    pub fn new(status: &ThreadStatus) -> RelayReport {
        RelayReport {
            sessions: status.sessions,
            subscriptions: status.subscriptions,
            groups: status.groups,
            send_waits: status.sent.waits,
            datagrams_cloned: status.sent.cloned,
            send_fallbacks: status.sent.fallbacks,
            sending_us: status.sending.as_micros() as u64,
            cpu_us: status.cpu.as_micros() as u64,
            counters: status.counters.named().map(|(name, _, total)| (name, total)).collect(),
            drops: drops_of(&status.counters),
        }
    }
}

/// The drops that occurred, by name.
pub fn drops_of(counters: &Counters) -> BTreeMap<&'static str, u64> {
    let all = DropReason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
    all.filter(|(_, total)| *total > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (all, shards) in [(5, 2), (10_000, 3), (1, 4), (64, 64)] {
            let shares = || (0..shards).map(|shard| share_of(all, shard, shards));
            assert_eq!(shares().sum::<u32>(), all);
            assert!(shares().max().unwrap() - shares().min().unwrap() <= 1);
        }
    }
}
