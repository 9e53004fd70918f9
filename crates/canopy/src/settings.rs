//! The relay's settings, in two steps: what was given (flags, environment, file), then what is
//! valid. Nothing after this checks again.

mod budgets;
mod comtrees;
mod file;
mod fixed;
mod given;
pub(crate) mod key;
mod limits;
mod links;
mod sources;

use anyhow::{Context, bail};
use budgets::check_own_budgets;
use canopy_engines::{ENGINE_FOLDER, EngineChoice};
use canopy_node::{DEFAULT_RECEIVE_BUFFER, NodeConfig};
use canopy_relay::{BranchConfig, DEFAULT_WORLD, FIRST_ENDPOINT, Mode};
use canopy_token::MAX_NAME;
use canopy_wire::{Downlink, MAX_DATAGRAM, SAFE_DATAGRAM};
use clap::Args;
use comtrees::{Defaults, check_comtrees};
use limits::{
    LimitArgs, MAX_SITE, check_budgets, check_gate, check_lifetimes, check_tables, millis,
};
use links::{Link, check_links};
use sources::Sources;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Flags of everything that runs a relay. Each can also be set by the environment and in the file;
/// flags win over the environment, the environment over the file. Their values are text until
/// they are checked, so that every mistake is explained in the same way.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RelayArgs {
    /// Settings file (TOML); docs/settings.md lists its keys
    #[arg(long, value_name = "FILE", env = "CANOPY_SETTINGS", hide_env_values = true)]
    settings: Option<PathBuf>,
    /// UDP address to serve participants on; port 0 takes a free one. Addresses that other machines
    /// can reach need --trust, or --open [default: 127.0.0.1:4040]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_LISTEN", hide_env_values = true)]
    listen: Option<String>,
    /// When updates leave: 'immediate', as they come, or 'periodic', together every tick
    /// [default: immediate]
    #[arg(long, value_name = "MODE", env = "CANOPY_MODE", hide_env_values = true)]
    mode: Option<String>,
    /// Milliseconds between ticks in periodic mode, 1 to 1000 [default: 50]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_TICK_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    tick_ms: Option<String>,
    /// Data threads, 1 to 64 [default: one for each processor]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_THREADS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    threads: Option<String>,
    /// How datagrams are sent: 'auto' (the cheapest way that works here), or one by name: sendto,
    /// sendmmsg, gso, uring, tc-bpf, xdp [default: auto]
    #[arg(long, value_name = "NAME", env = "CANOPY_ENGINE", hide_env_values = true)]
    engine: Option<String>,
    /// Where `canopy engine install` put what it installed [default: /run/canopy/engine]
    #[arg(long, value_name = "DIR", env = "CANOPY_ENGINE_FOLDER", hide_env_values = true)]
    engine_folder: Option<String>,
    /// A comtree (an isolated channel of a world, by its number) to carry; repeat for several
    /// [default: 1]
    #[arg(
        long = "comtree",
        value_name = "ID",
        env = "CANOPY_COMTREE",
        hide_env_values = true,
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    comtrees: Vec<String>,
    /// The upper half of the addresses given to participants, 0 to 28671 [default: 1]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_SITE",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    site: Option<String>,
    /// How updates to participants are protected: 'member', with a key for each; 'group', with one for
    /// all of a comtree; or 'none', so that anyone on the way can read them. Engines that clone need
    /// 'group' or 'none' [default: member]
    #[arg(long, value_name = "MODE", env = "CANOPY_DOWNLINK", hide_env_values = true)]
    downlink: Option<String>,
    /// The world of the comtrees: tokens are for a world, by its name [default: main]
    #[arg(long, value_name = "NAME", env = "CANOPY_WORLD", hide_env_values = true)]
    world: Option<String>,
    /// File (TOML) with the keys whose tokens let in; it is read again when it changes [default: on
    /// this machine's own addresses whoever comes is let in; others need this, or --open]
    #[arg(long, value_name = "FILE", env = "CANOPY_TRUST", hide_env_values = true)]
    trust: Option<String>,
    /// Let in whoever comes, without tokens, from other machines too
    #[arg(long, value_name = "BOOL", env = "CANOPY_OPEN", hide_env_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    open: Option<String>,
    /// File of the relay's secret key, made if there is none: with it clients know the relay again
    /// after a restart [default: a new key at each start]
    #[arg(long, value_name = "FILE", env = "CANOPY_KEY", hide_env_values = true)]
    key: Option<String>,
    /// HTTP address of the console, with /metrics and /healthz, or 'off' [default: off; of a demo
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_CONSOLE", hide_env_values = true)]
    console: Option<String>,
    /// HTTP address of /metrics and /healthz without a console, or 'off' [default: off]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_METRICS", hide_env_values = true)]
    metrics: Option<String>,
    /// Serve in cleartext what other machines can reach: console and metrics, which have no password,
    /// and updates on comtrees whose downlink is none
    #[arg(long, value_name = "BOOL", env = "CANOPY_INSECURE", hide_env_values = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<String>,
    /// Whether a controller says who is let in.
    #[arg(skip)]
    pub(crate) is_controlled: bool,
    #[command(flatten)]
    limits: LimitArgs,
    /// Keep data thread K on the K-th of these processors
    #[arg(long, value_name = "CPU", value_delimiter = ',', hide = true)]
    pin: Vec<usize>,
    /// Bytes that may wait for each data thread; the kernel may grant less
    #[arg(long, value_name = "BYTES", hide = true)]
    receive_buffer: Option<usize>,
}

/// How long the longest datagram may be.
const DATAGRAMS: std::ops::RangeInclusive<u64> = SAFE_DATAGRAM as u64..=MAX_DATAGRAM as u64;

impl RelayArgs {
    /// Whether it was said to let in whoever comes.
    pub(crate) fn is_open(&self) -> bool {
        self.open.as_ref().is_some_and(|text| text != "false")
    }

    /// What was given, by the key that the file has for it.
    fn by_key(&self) -> BTreeMap<&'static str, String> {
        let comtrees = (!self.comtrees.is_empty()).then(|| self.comtrees.join(","));
        let given = [
            ("listen", &self.listen),
            ("mode", &self.mode),
            ("tick_ms", &self.tick_ms),
            ("threads", &self.threads),
            ("engine", &self.engine),
            ("engine_folder", &self.engine_folder),
            ("comtrees", &comtrees),
            ("site", &self.site),
            ("downlink", &self.downlink),
            ("world", &self.world),
            ("trust", &self.trust),
            ("open", &self.open),
            ("key", &self.key),
            ("console", &self.console),
            ("metrics", &self.metrics),
            ("insecure", &self.insecure),
        ];
        let given = given.into_iter().chain(self.limits.by_key());
        given.filter_map(|(key, text)| Some((key, text.clone()?))).collect()
    }
}

#[cfg(test)]
impl RelayArgs {
    /// A relay of one data thread on a port that is free.
    pub(crate) fn somewhere() -> RelayArgs {
        let (listen, threads) = (Some("127.0.0.1:0".to_owned()), Some("1".to_owned()));
        RelayArgs { listen, threads, ..RelayArgs::default() }
    }
}

/// Valid settings of a relay.
#[derive(Clone, Debug)]
pub(crate) struct RelaySettings {
    pub(crate) node: NodeConfig,
    pub(crate) console: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
    /// Where the relay's secret key is kept.
    key: Option<PathBuf>,
    /// Where it stands whose tokens let in.
    pub(crate) trust: Option<PathBuf>,
    /// The links to neighbour relays.
    pub(crate) links: Vec<Link>,
    /// The branches of comtrees over them.
    pub(crate) branches: Vec<BranchConfig>,
    /// What comtrees and branches may be sent.
    pub(crate) own_budgets: canopy_overlay::OwnBudgets,
    /// Whether updates may go out in cleartext: nobody else can read them, or that was asked for.
    pub(crate) may_be_clear: bool,
    /// What was given and does nothing, or not what it should, each with its place and a remedy.
    pub(crate) warnings: Vec<String>,
}

impl RelaySettings {
    /// Reads the file, if one is named, and checks everything once. `console` is where the console
    /// is served unless a setting says otherwise.
    pub(crate) fn resolve(args: RelayArgs, console: &str) -> anyhow::Result<RelaySettings> {
        let path = args.settings.clone().unwrap_or_default();
        let text = match &args.settings {
            Some(path) => std::fs::read_to_string(path).with_context(|| {
                format!("cannot read the settings file {}; check --settings", path.display())
            })?,
            None => String::new(),
        };
        RelaySettings::check(args, &path, &text, console)
    }

    fn check(
        args: RelayArgs,
        path: &Path,
        text: &str,
        console: &str,
    ) -> anyhow::Result<RelaySettings> {
        let sources = Sources::new(args.by_key(), path, text)?;
        let insecure = sources.switch("insecure")?;
        let tick = millis(&sources, "tick_ms", 1, 1_000, Duration::from_millis(50))?;
        let processors = canopy_net::available_processors().len() as u64;
        let threads = sources.number("threads", 1..=64, processors.min(64))? as u16;
        let room = u64::from(u16::MAX - FIRST_ENDPOINT) + 1;
        let site = sources.number("site", 0..=MAX_SITE, 1)? as u16;
        let downlink = sources.text("downlink", "member").check(|name| parse_downlink(&name))?;
        let world = sources.text("world", DEFAULT_WORLD).check(parse_world)?;
        let (key, trust) = (file(&sources, "key"), file(&sources, "trust"));
        let is_open = check_open(&sources, trust.is_some())?;
        let is_guarded = trust.is_some() || is_open || args.is_controlled;
        let links = check_links(&sources)?;
        let defaults = Defaults { site, downlink, world };
        let (comtrees, branches) = check_comtrees(&sources, &defaults, threads, &links)?;
        let budgets = check_budgets(&sources)?;
        let own_budgets = check_own_budgets(&sources, &budgets.comtree, &comtrees, &branches)?;
        let is_clear = comtrees.iter().any(|comtree| comtree.downlink == Downlink::None);
        let may_be_reached = Reach { is_guarded, is_clear: is_clear && !insecure };
        let node = NodeConfig {
            listen: sources
                .text("listen", "127.0.0.1:4040")
                .check(|text| parse_listen(&text, may_be_reached))?,
            mode: sources.text("mode", "immediate").check(|name| parse_mode(&name, tick))?,
            threads,
            engine: sources
                .text("engine", "auto")
                .check(|name| EngineChoice::from_str(&name).map_err(|error| error.to_string()))?,
            engine_folder: sources.text("engine_folder", ENGINE_FOLDER).check(parse_folder)?,
            comtrees,
            max_sessions: sources.number("max_sessions", 1..=room, 10_000.min(room))? as u32,
            // Whom a controller sends, it has counted.
            divides_places: !args.is_controlled,
            identity: None,
            trust: None,
            life: None,
            address_rest: limits::check_rest(&sources)?,
            max_datagram: sources.number("max_datagram", DATAGRAMS, SAFE_DATAGRAM as u64)? as u16,
            tables: check_tables(&sources)?,
            budgets,
            gate: check_gate(&sources)?,
            session_limits: check_lifetimes(&sources)?,
            drain: millis(&sources, "drain_ms", 0, 600_000, Duration::from_secs(5))?,
            receive_buffer: args.receive_buffer.unwrap_or(DEFAULT_RECEIVE_BUFFER),
            pin: args.pin,
        };
        let forgotten = forgettable(&links, key.as_deref());
        Ok(RelaySettings {
            may_be_clear: insecure || node.listen.ip().is_loopback(),
            warnings: unused(&sources, &node).into_iter().chain(forgotten).collect(),
            key,
            trust,
            links,
            branches,
            own_budgets,
            node,
            console: sources.text("console", console).check(|text| parse_http(&text, insecure))?,
            metrics: sources.text("metrics", "off").check(|text| parse_http(&text, insecure))?,
        })
    }
}

/// Whether it lets in whoever comes.
fn check_open(sources: &Sources, has_trust: bool) -> anyhow::Result<bool> {
    let is_open = sources.switch("open")?;
    if let Some(place) = sources.place("open").filter(|_| is_open && has_trust) {
        bail!(
            "{place}: this lets in whoever comes, but trust only who has a token of a trusted key; \
             leave one of the two out"
        );
    }
    Ok(is_open)
}

impl RelaySettings {
    /// Where the relay's secret key is kept.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// Reads the relay's secret key, or makes it if there is none yet, and counts its start; and reads
    /// whose tokens it takes.
    pub(crate) fn open_keys(&mut self) -> anyhow::Result<()> {
        if let Some(path) = &self.key {
            self.node.identity = Some(key::load_or_make(path)?);
            self.node.life = Some(key::next_life(path)?);
        }
        if let Some(path) = &self.trust {
            self.node.trust = Some(Arc::new(crate::trust::read(path)?));
        }
        Ok(())
    }
}

/// A file, if one is named.
fn file(sources: &Sources, key: &str) -> Option<PathBuf> {
    let path = PathBuf::from(sources.text(key, "").value());
    (!path.as_os_str().is_empty()).then_some(path)
}

/// What was given, and does nothing beside the other settings.
fn unused(sources: &Sources, node: &NodeConfig) -> Vec<String> {
    let mut unused = Vec::new();
    if let (Mode::Immediate, Some(place)) = (node.mode, sources.place("tick_ms")) {
        unused.push(format!(
            "{place}: immediate mode has no ticks; choose mode periodic, or leave this out"
        ));
    }
    let clones = matches!(node.engine, EngineChoice::Named(name) if name.clones());
    let is_shared = node.comtrees.iter().any(|comtree| comtree.downlink.is_shared());
    if let (true, false, Some(place)) = (clones, is_shared, sources.place("engine")) {
        unused.push(format!(
            "{place}: engine {} copies what is the same for many, and nothing is where each member \
             has its own key; choose downlink group or none, or another engine",
            node.engine
        ));
    }
    let plain = matches!(node.engine, EngineChoice::Named(name) if !name.clones());
    if let (true, Some(place)) = (plain, sources.place("engine_folder")) {
        unused.push(format!(
            "{place}: engine {} uses nothing that was installed; choose engine auto, tc-bpf or \
             xdp, or leave this out",
            node.engine
        ));
    }
    unused
}

/// A relay whose neighbours would not know it again.
fn forgettable(links: &[Link], key: Option<&Path>) -> Option<String> {
    let Link { place, .. } = links.first().filter(|_| key.is_none())?;
    Some(format!(
        "{place}: without a key file this relay has another key at each start, and its neighbours know \
         it by its key; name a file with key"
    ))
}

/// A way to protect updates, by its name.
fn parse_downlink(name: &str) -> Result<Downlink, String> {
    match name {
        "member" => Ok(Downlink::Member),
        "group" => Ok(Downlink::Group),
        "none" => Ok(Downlink::None),
        _ => Err(format!("{name:?} is no way to protect updates; choose member, group or none")),
    }
}

/// What must be so before other machines may reach a relay.
#[derive(Clone, Copy)]
struct Reach {
    /// It asks for tokens, or was told to let in whoever comes.
    is_guarded: bool,
    /// Some of its updates would be in cleartext, which nobody has asked for.
    is_clear: bool,
}

fn parse_listen(text: &str, reach: Reach) -> Result<SocketAddr, String> {
    let address = parse_address(text)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    if !reach.is_guarded {
        return Err(format!(
            "{address} can be reached from other machines, and whoever reaches it could join; name \
             the keys whose tokens let in with --trust, say --open to let in whoever comes, or listen \
             on 127.0.0.1 or [::1]"
        ));
    }
    if reach.is_clear {
        return Err(format!(
            "{address} can be reached from other machines, and with downlink none updates go out in \
             cleartext; choose downlink member, say --insecure, or listen on 127.0.0.1 or [::1]"
        ));
    }
    Ok(address)
}

fn parse_world(name: String) -> Result<String, String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a world's name has 1 to {MAX_NAME} bytes"));
    }
    Ok(name)
}

fn parse_http(text: &str, insecure: bool) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    let address = parse_address(text)?;
    if address.ip().is_loopback() || insecure {
        return Ok(Some(address));
    }
    Err(format!(
        "{address} can be reached from other machines, and these pages have no password; serve \
         them on 127.0.0.1 or [::1], or say --insecure"
    ))
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no address and port; write it like 127.0.0.1:4040 or [::1]:4040")
    })
}

fn parse_mode(name: &str, tick: Duration) -> Result<Mode, String> {
    match name {
        "immediate" => Ok(Mode::Immediate),
        "periodic" => Ok(Mode::Periodic { tick }),
        _ => Err(format!("there is no mode {name:?}; choose immediate or periodic")),
    }
}

fn parse_folder(path: String) -> Result<PathBuf, String> {
    if path.is_empty() { Err("name a folder".to_owned()) } else { Ok(path.into()) }
}

impl Display for RelaySettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node.mode {
            Mode::Immediate => f.write_str("immediate")?,
            Mode::Periodic { tick } => write!(f, "periodic, tick {} ms", tick.as_millis())?,
        }
        write!(f, ", {} data thread(s), engine {}", self.node.threads, self.node.engine)
    }
}

#[cfg(test)]
mod tests;
