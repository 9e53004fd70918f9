//! What a relay is made from.

use canopy_engines::EngineChoice;
use canopy_relay::{ADDRESS_REST, Budgets, ComtreeConfig, GateLimits, Mode, TableLimits, Trust};
use canopy_session::{Identity, SessionLimits};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that may wait for a data thread, unless a setting says otherwise.
pub const DEFAULT_RECEIVE_BUFFER: usize = 4 << 20;

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
    /// The comtrees that it carries at first.
    pub comtrees: Vec<ComtreeConfig>,
    /// The most sessions at a time, of all data threads.
    pub max_sessions: u32,
    /// Whether each comtree has a part of them for itself: unless somebody else counts who comes.
    pub divides_places: bool,
    /// Who the relay is; someone new at each start unless it is given.
    pub identity: Option<Identity>,
    /// Whose tokens let in; if none, whoever comes is let in.
    pub trust: Option<Arc<Trust>>,
    /// Which of this identity's starts it is, if they are counted: see [`RelayConfig::life`](canopy_relay::RelayConfig::life).
    pub life: Option<u32>,
    /// How long the address of a participant that left is given to nobody else.
    pub address_rest: Duration,
    /// The longest datagram in bytes that the network here takes.
    pub max_datagram: u16,
    /// The size of each data thread's tables.
    pub tables: TableLimits,
    /// What participants may send.
    pub budgets: Budgets,
    /// What one place of the network may cost.
    pub gate: GateLimits,
    /// How long things live.
    pub session_limits: SessionLimits,
    /// How long a drain waits for participants to leave.
    pub drain: Duration,
    /// Bytes that may wait for each data thread; the kernel may grant less.
    pub receive_buffer: usize,
    /// The processors of the data threads, in order; those without one run anywhere.
    pub pin: Vec<usize>,
}

impl NodeConfig {
    /// A relay with one data thread on a free port of this machine, without limits on what a
    /// participant sends, and with defaults for the rest: what tests and benches begin with.
    pub fn loopback() -> NodeConfig {
        NodeConfig {
            listen: SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0)),
            mode: Mode::Immediate,
            threads: 1,
            engine: EngineChoice::Auto,
            engine_folder: canopy_engines::ENGINE_FOLDER.into(),
            comtrees: vec![ComtreeConfig::new(canopy_wire::Comtree(1), 1)],
            max_sessions: 10_000,
            divides_places: true,
            identity: None,
            trust: None,
            life: None,
            address_rest: ADDRESS_REST,
            max_datagram: canopy_wire::SAFE_DATAGRAM as u16,
            tables: TableLimits::default(),
            budgets: Budgets::NONE,
            gate: GateLimits::NONE,
            session_limits: SessionLimits::default(),
            drain: Duration::from_secs(5),
            receive_buffer: DEFAULT_RECEIVE_BUFFER,
            pin: Vec::new(),
        }
    }
}
