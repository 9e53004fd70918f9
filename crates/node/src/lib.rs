//! A running relay as a library: data threads that run [`canopy_relay::Turn`]s on sockets, and what
//! watches over them. The daemon, the benches and the tests of everything that needs a relay run
//! this one.
#![forbid(unsafe_code)]

mod config;
mod data_thread;
mod inspect;
mod neighbours;
mod report;
mod sockets;
mod watch;

pub use config::{DEFAULT_RECEIVE_BUFFER, NodeConfig};
pub use inspect::{Inspection, MAX_LISTED};
pub use report::{RelayReport, TalkerReport, ThinnedDrops, ThinnedReport, drops_of};
pub use watch::{ChangeError, Command, Health, RelayWatch, ThreadStatus};

use anyhow::Context;
use canopy_engines::{Engine, EngineChoice};
use canopy_net::{Clock, SocketOptions, ThreadSockets};
use canopy_relay::{Gate, Notice, Places, Relay, RelayConfig, Siblings, Turn, UnixTime};
use canopy_session::{Keyring, PacketsPerKey, PublicKey};
use canopy_wire::Tag;
use data_thread::DataThread;
use neighbours::Neighbours;
use serde::Serialize;
use sockets::Sockets;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::Shared;

/// Notices that wait to be logged; later ones are not kept.
const NOTICES: usize = 1024;

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
    key: PublicKey,
    /// Bytes that may wait for a data thread: granted, and asked for.
    receive_buffer: (usize, usize),
    engines: Vec<EngineInUse>,
    watch: RelayWatch,
    notices: Option<Receiver<Notice>>,
    threads: Vec<JoinHandle<()>>,
    ends: Receiver<End>,
    neighbours: io::Result<Neighbours>,
}

/// A data thread's number, and how it ended.
type End = (u16, anyhow::Result<()>);

impl RunningRelay {
    /// Binds the sockets and starts the data threads.
    ///
    /// # Errors
    /// If the address cannot be had, an engine was asked for that does not work, or the system
    /// refuses a thread. The error says what to do.
    pub fn start(settings: &NodeConfig) -> anyhow::Result<RunningRelay> {
        let sockets = listen(settings)?;
        let address = sockets[0].sending().local_address();
        let receive_buffer = (sockets[0].sending().receive_buffer()?, settings.receive_buffer);
        let engines = open_engines(settings, &sockets)?;
        let in_use = in_use(&engines);
        let (told, notices) = sync_channel(NOTICES);
        let (ended, ends) = channel();
        let (shared, requests): (Vec<_>, Vec<_>) =
            sockets.iter().map(|sockets| Shared::new(Arc::clone(sockets.waker()))).unzip();
        let clock = Clock::start();
        let watch = RelayWatch::new(shared, clock);
        let mut threads = Vec::new();
        let keys = match &settings.identity {
            Some(identity) => Keyring::with_identity(random_tag()?, identity.clone()),
            None => Keyring::new(random_tag()?),
        };
        let relays = relays(settings, &keys, &engines, watch.origin())?;
        let each = relays.into_iter().zip(sockets).zip(engines).zip(requests);
        for (number, (((relay, socket), engine), requests)) in (0..).zip(each) {
            let sockets = Sockets::new(socket, engine, clock)?;
            let queues = (requests, told.clone());
            let turn = Turn::new(relay);
            let thread =
                DataThread::new(number, turn, sockets, clock, settings, queues, watch.shared());
            let pin = settings.pin.get(usize::from(number)).copied();
            threads.push(spawn(number, pin, thread, ended.clone())?);
        }
        let neighbours = Neighbours::watch(watch.clone(), clock);
        Ok(RunningRelay {
            address,
            key: *keys.identity().public(),
            receive_buffer,
            engines: in_use,
            watch,
            notices: Some(notices),
            threads,
            ends,
            neighbours,
        })
    }

    /// The key that it is known by.
    pub fn key(&self) -> PublicKey {
        self.key
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
        let (granted, asked) = self.receive_buffer;
        (granted < asked).then_some((granted, asked))
    }

    /// Why the kernel does not tell which receivers on this host's links do not answer, if so.
    pub fn blind_to_neighbours(&self) -> Option<&io::Error> {
        self.neighbours.as_ref().err()
    }

    /// A handle that reads status and makes changes from anywhere.
    pub fn watch(&self) -> RelayWatch {
        self.watch.clone()
    }

    /// What there is to log: joins and leaves, as they happen, until the relay has ended. What
    /// comes faster than it is fetched is not kept. Only the first call has it.
    pub fn take_notices(&mut self) -> Option<Receiver<Notice>> {
        self.notices.take()
    }

    /// Waits for the data threads to end; they must have been told to. If one ends by a fault, the
    /// others are stopped: a relay that serves a part of its participants serves nobody well.
    ///
    /// # Errors
    /// Why a data thread ended without having been told to.
    pub fn join(self) -> anyhow::Result<()> {
        let RunningRelay { watch, threads, ends, .. } = self;
        let mut result = Ok(());
        for _ in &threads {
            let Ok((number, end)) = ends.recv() else { break };
            if end.is_err() {
                watch.command(Command::Stop);
            }
            result = result.and(end.with_context(|| format!("data thread {number} failed")));
        }
        for thread in threads {
            // How it ended was told.
            let _ = thread.join();
        }
        result
    }
}

/// Tells how a data thread ended, if it panics too.
struct Ending {
    number: u16,
    ended: Sender<End>,
    result: Option<anyhow::Result<()>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let panicked = || Err(anyhow::anyhow!("it panicked; what is above says where"));
        let result = self.result.take().unwrap_or_else(panicked);
        // Nobody may be waiting any more.
        let _ = self.ended.send((self.number, result));
    }
}

fn spawn(
    number: u16,
    pin: Option<usize>,
    thread: DataThread,
    ended: Sender<End>,
) -> anyhow::Result<JoinHandle<()>> {
    let run = move || {
        let mut ending = Ending { number, ended, result: None };
        let pinned = pin.map_or(Ok(()), |processor| {
            canopy_net::pin_thread(processor)
                .with_context(|| format!("cannot stay on processor {processor}"))
        });
        ending.result = Some(pinned.and_then(|()| thread.run()));
    };
    Ok(std::thread::Builder::new().name(format!("data-{number}")).spawn(run)?)
}

/// A relay for each data thread; together they have one keyring, one count of places and one gate.
fn relays(
    settings: &NodeConfig,
    keys: &Keyring,
    engines: &[Engine],
    origin: UnixTime,
) -> anyhow::Result<Vec<Relay>> {
    let places =
        if settings.divides_places { Places::divided } else { Places::new }(settings.max_sessions);
    let gate = Gate::new(settings.gate, &random_tag()?);
    let siblings = Siblings::mesh(settings.threads);
    siblings
        .into_iter()
        .zip(engines)
        .map(|(siblings, engine)| {
            let config = RelayConfig {
                mode: settings.mode,
                comtrees: settings.comtrees.clone(),
                trust: settings.trust.clone(),
                origin,
                places: places.clone(),
                max_sessions: settings.max_sessions,
                max_datagram: settings.max_datagram,
                slow_suites: canopy_net::slow_suites(),
                address_rest: settings.address_rest,
                life: settings.life,
                log_keys: false,
                packets_per_key: PacketsPerKey::PROTOCOL,
                limits: settings.session_limits,
                tables: settings.tables,
                budgets: settings.budgets,
                gate: gate.clone(),
                smallest_set: engine.smallest_set(),
            };
            Ok(Relay::new(config, siblings, keys.clone(), &random_tag()?))
        })
        .collect()
}

/// How long to wait for an address that is still in use.
const ADDRESS_WAIT: Duration = Duration::from_millis(500);

/// The sockets of each data thread, on an address that nobody else holds.
fn listen(settings: &NodeConfig) -> anyhow::Result<Vec<ThreadSockets>> {
    let NodeConfig { listen: address, threads, receive_buffer, .. } = *settings;
    let options = SocketOptions { receive_buffer, ..SocketOptions::default() };
    let bind = || canopy_net::listen(address, threads, &options);
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
/// place for it, and takes none that clones where there is nothing to clone.
fn open_engines(settings: &NodeConfig, sockets: &[ThreadSockets]) -> anyhow::Result<Vec<Engine>> {
    let is_shared = settings.comtrees.iter().any(|comtree| comtree.downlink.is_shared());
    let open = |sockets: &ThreadSockets| match settings.engine {
        EngineChoice::Auto if !is_shared => Ok(Engine::open_without_clones(sockets.sending())),
        choice => Engine::open_in(&settings.engine_folder, choice, sockets.sending()),
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

fn random_tag() -> anyhow::Result<Tag> {
    let mut tag = Tag::default();
    getrandom::fill(&mut tag).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(tag)
}
