//! The relay's settings, in two steps: what was given (flags, environment, file), then what is
//! valid. Nothing after this checks again.

use anyhow::{Context, bail};
use canopy_engines::{ENGINE_FOLDER, EngineChoice};
use canopy_node::NodeConfig;
use canopy_relay::{Mode, TableLimits};
use canopy_session::{SessionLimits, Sessions};
use canopy_wire::Comtree;
use clap::Args;
use clap::builder::BoolishValueParser;
use serde::Deserialize;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;

/// Flags of everything that runs a relay. Each can also be set in the file and, but for lists, by
/// the environment; flags win over the environment, the environment over the file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RelayArgs {
    /// Settings file (TOML); see docs/settings.md
    #[arg(long, value_name = "FILE", env = "CANOPY_SETTINGS")]
    settings: Option<PathBuf>,
    /// Address to serve participants on; port 0 takes a free one [default: 127.0.0.1:4040]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_LISTEN")]
    listen: Option<String>,
    /// When updates leave: 'immediate' as they come, 'periodic' together every tick [default: immediate]
    #[arg(long, value_name = "MODE", env = "CANOPY_MODE")]
    mode: Option<String>,
    /// Time between ticks in periodic mode, 1 to 1000 [default: 50]
    #[arg(long, value_name = "T", env = "CANOPY_TICK_MS")]
    tick_ms: Option<u64>,
    /// Data threads; one for each processor unless given
    #[arg(long, value_name = "N", env = "CANOPY_THREADS")]
    threads: Option<u64>,
    /// Send engine: auto (the cheapest that works here), or one by name: sendto, sendmmsg, gso,
    /// uring, tc-bpf, xdp [default: auto]
    #[arg(long, value_name = "NAME", env = "CANOPY_ENGINE")]
    engine: Option<String>,
    /// Where `canopy engine install` put what it installed [default: /run/canopy/engine]
    #[arg(long, value_name = "DIR", env = "CANOPY_ENGINE_FOLDER")]
    engine_folder: Option<PathBuf>,
    /// A comtree to carry; repeat for several [default: 1]
    #[arg(long = "comtree", value_name = "ID")]
    comtrees: Vec<u32>,
    /// The most participants at a time [default: 10000]
    #[arg(long, value_name = "N", env = "CANOPY_MAX_SESSIONS")]
    max_sessions: Option<u64>,
    /// Address of console and metrics over HTTP, or 'off' [default: off; of a demo 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_CONSOLE")]
    console: Option<String>,
    /// Address of a server for metrics alone, or 'off' [default: off]
    #[arg(long, value_name = "ADDR:PORT", env = "CANOPY_METRICS")]
    metrics: Option<String>,
    /// Serve beyond this machine although sessions are cleartext in this version
    #[arg(long, value_name = "BOOL", env = "CANOPY_INSECURE", num_args = 0..=1,
          require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    insecure: Option<bool>,
    /// Keep data thread K on the K-th of these processors
    #[arg(long, value_name = "CPU", value_delimiter = ',', hide = true)]
    pin: Vec<usize>,
}

/// Valid settings of a relay.
#[derive(Clone, Debug)]
pub(crate) struct RelaySettings {
    pub(crate) node: NodeConfig,
    pub(crate) console: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    relay: RelayTable,
    limits: LimitsTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RelayTable {
    listen: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    tick_ms: Option<Spanned<u64>>,
    threads: Option<Spanned<u64>>,
    engine: Option<Spanned<String>>,
    engine_folder: Option<Spanned<PathBuf>>,
    comtrees: Option<Spanned<Vec<u32>>>,
    site: Option<Spanned<u64>>,
    console: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    insecure: Option<Spanned<bool>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsTable {
    max_sessions: Option<Spanned<u64>>,
    max_groups: Option<Spanned<u64>>,
    max_subscriptions: Option<Spanned<u64>>,
    max_subscriptions_per_participant: Option<Spanned<u64>>,
    session_lifetime_ms: Option<Spanned<u64>>,
    keepalive_ms: Option<Spanned<u64>>,
    subscription_lifetime_ms: Option<Spanned<u64>>,
    drain_ms: Option<Spanned<u64>>,
}

/// A value and where it was given, for errors.
struct Given<T> {
    value: T,
    place: String,
}

impl<T> Given<T> {
    /// A valid form of the value, or an error that names where it came from.
    fn check<U>(self, check: impl FnOnce(T) -> Result<U, String>) -> anyhow::Result<U> {
        let Given { value, place } = self;
        check(value).map_err(|problem| anyhow::anyhow!("{place}: {problem}"))
    }
}

/// Finds out where values were given.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn place(&self, span: Range<usize>, key: &str) -> String {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        format!("{}:{line}: {key}", self.path.display())
    }

    fn pick<T>(
        &self,
        key: &str,
        flag: Option<T>,
        file: Option<Spanned<T>>,
        default: T,
    ) -> Given<T> {
        let dashed = key.replace('_', "-");
        match (flag, file) {
            (Some(value), _) => {
                let variable = key.to_uppercase();
                Given { value, place: format!("--{dashed} (or CANOPY_{variable})") }
            }
            (None, Some(spanned)) => {
                let place = self.place(spanned.span(), key);
                Given { value: spanned.into_inner(), place }
            }
            (None, None) => Given { value: default, place: format!("default of {key}") },
        }
    }
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
        let file: File = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].bytes().filter(|b| *b == b'\n').count() + 1
            });
            anyhow::anyhow!(
                "{}:{line}: {}; the keys are listed in docs/settings.md",
                path.display(),
                error.message()
            )
        })?;
        RelaySettings::check(args, file, &Source { path: &path, text: &text }, console)
    }

    fn check(
        args: RelayArgs,
        file: File,
        source: &Source<'_>,
        console: &str,
    ) -> anyhow::Result<RelaySettings> {
        let File { relay, limits } = file;
        let insecure = source.pick("insecure", args.insecure, relay.insecure, false).value;
        let listen = source.pick("listen", args.listen, relay.listen, "127.0.0.1:4040".to_owned());
        let listen = listen.check(|text| parse_listen(&text, insecure))?;
        let tick_ms = source.pick("tick_ms", args.tick_ms, relay.tick_ms, 50);
        let tick = tick_ms.check(within(1, 1000)).map(Duration::from_millis)?;
        let mode = source.pick("mode", args.mode, relay.mode, "immediate".to_owned());
        let mode = mode.check(|name| parse_mode(&name, tick))?;
        let processors = canopy_net::available_processors().len() as u64;
        let threads = source.pick("threads", args.threads, relay.threads, processors);
        let threads = threads.check(within(1, 64))? as u16;
        let engine = source.pick("engine", args.engine, relay.engine, "auto".to_owned());
        let engine_folder = source.pick(
            "engine_folder",
            args.engine_folder,
            relay.engine_folder,
            ENGINE_FOLDER.into(),
        );
        let max_sessions =
            source.pick("max_sessions", args.max_sessions, limits.max_sessions.clone(), 10_000);
        let room = u64::from(Sessions::capacity(threads)) * u64::from(threads);
        let comtrees = (!args.comtrees.is_empty()).then_some(args.comtrees);
        let comtrees = source.pick("comtree", comtrees, relay.comtrees, vec![1]);
        let node = NodeConfig {
            listen,
            mode,
            threads,
            engine: engine
                .check(|name| EngineChoice::from_str(&name).map_err(|error| error.to_string()))?,
            engine_folder: engine_folder.check(not_empty)?,
            comtrees: comtrees.check(parse_comtrees)?,
            site: source.pick("site", None, relay.site, 1).check(within(0, 0x7fff))? as u16,
            max_sessions: max_sessions.check(within(1, room))? as u32,
            tables: check_tables(&limits, source)?,
            session_limits: check_lifetimes(&limits, source)?,
            drain: source
                .pick("drain_ms", None, limits.drain_ms.clone(), 5_000)
                .check(within(0, 600_000))
                .map(Duration::from_millis)?,
            pin: args.pin,
        };
        Ok(RelaySettings {
            node,
            console: source
                .pick("console", args.console, relay.console, console.to_owned())
                .check(|text| parse_http(&text))?,
            metrics: source
                .pick("metrics", args.metrics, relay.metrics, "off".to_owned())
                .check(|text| parse_http(&text))?,
        })
    }
}

fn check_tables(limits: &LimitsTable, source: &Source<'_>) -> anyhow::Result<TableLimits> {
    let default = TableLimits::default();
    let table = |key: &str, given: &Option<Spanned<u64>>, default: u32| {
        source.pick(key, None, given.clone(), default.into()).check(within(1, 1 << 26))
    };
    Ok(TableLimits {
        max_groups: table("max_groups", &limits.max_groups, default.max_groups)? as u32,
        max_subscriptions: table(
            "max_subscriptions",
            &limits.max_subscriptions,
            default.max_subscriptions,
        )? as u32,
        max_subscriptions_per_participant: table(
            "max_subscriptions_per_participant",
            &limits.max_subscriptions_per_participant,
            default.max_subscriptions_per_participant,
        )? as u32,
    })
}

fn check_lifetimes(limits: &LimitsTable, source: &Source<'_>) -> anyhow::Result<SessionLimits> {
    let default = SessionLimits::default();
    let millis = |key: &str, given: &Option<Spanned<u64>>, default: Duration, least: u64| {
        source
            .pick(key, None, given.clone(), default.as_millis() as u64)
            .check(within(least, 3_600_000))
            .map(Duration::from_millis)
    };
    let lifetimes = SessionLimits {
        lifetime: millis("session_lifetime_ms", &limits.session_lifetime_ms, default.lifetime, 10)?,
        keepalive: millis("keepalive_ms", &limits.keepalive_ms, default.keepalive, 10)?,
        subscription: millis(
            "subscription_lifetime_ms",
            &limits.subscription_lifetime_ms,
            default.subscription,
            // Participants refresh after a third: there must be time for losses.
            1_000,
        )?,
    };
    if lifetimes.lifetime < lifetimes.keepalive * 2 {
        let place = limits
            .session_lifetime_ms
            .as_ref()
            .or(limits.keepalive_ms.as_ref())
            .map_or_else(String::new, |given| source.place(given.span(), "session_lifetime_ms"));
        bail!(
            "{place}: sessions must live at least two keepalives; raise it or lower keepalive_ms"
        );
    }
    Ok(lifetimes)
}

fn within(least: u64, most: u64) -> impl FnOnce(u64) -> Result<u64, String> {
    move |value| {
        if (least..=most).contains(&value) {
            Ok(value)
        } else {
            Err(format!("{value} is out of range; choose {least} to {most}"))
        }
    }
}

fn parse_listen(text: &str, insecure: bool) -> Result<SocketAddr, String> {
    let address = parse_address(text)?;
    if address.ip().is_loopback() || insecure {
        return Ok(address);
    }
    Err(format!(
        "{address} can be reached from other machines, and sessions are cleartext in this version; \
         listen on 127.0.0.1 or [::1], or say --insecure"
    ))
}

fn parse_http(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" { Ok(None) } else { parse_address(text).map(Some) }
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

fn not_empty(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str().is_empty() { Err("name a folder".to_owned()) } else { Ok(path) }
}

fn parse_comtrees(ids: Vec<u32>) -> Result<Vec<Comtree>, String> {
    if ids.is_empty() || ids.len() > 1024 {
        return Err("a relay carries 1 to 1024 comtrees".to_owned());
    }
    Ok(ids.into_iter().map(Comtree).collect())
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
mod tests {
    use super::*;

    fn resolve(text: &str, args: RelayArgs) -> Result<RelaySettings, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let source = Source { path: Path::new("canopy.toml"), text };
        RelaySettings::check(args, file, &source, "off").map_err(|error| error.to_string())
    }

    #[test]
    fn flags_win_over_the_file_over_the_default() {
        let text = "[relay]\nmode = \"periodic\"\ntick_ms = 20\n";
        let args = RelayArgs { tick_ms: Some(5), ..RelayArgs::default() };
        let settings = resolve(text, args).unwrap();
        assert_eq!(settings.node.mode, Mode::Periodic { tick: Duration::from_millis(5) });
        assert_eq!(settings.node.listen.port(), 4040);
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        let cases = [
            (
                "[relay]\n\ntick_ms = 0\n",
                "canopy.toml:3: tick_ms: 0 is out of range; choose 1 to 1000",
            ),
            (
                "[relay]\nmode = \"fast\"\n",
                "canopy.toml:2: mode: there is no mode \"fast\"; choose immediate or periodic",
            ),
            (
                "[limits]\nmax_sessions = 70000\n",
                "canopy.toml:2: max_sessions: 70000 is out of range",
            ),
            (
                "[limits]\nsubscription_lifetime_ms = 999\n",
                "canopy.toml:2: subscription_lifetime_ms: 999 is out of range; choose 1000 to",
            ),
            (
                "[limits]\nkeepalive_ms = 9000\n",
                "canopy.toml:2: session_lifetime_ms: sessions must live",
            ),
        ];
        for (text, expected) in cases {
            let error = resolve(text, RelayArgs::default()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn cleartext_stays_on_this_machine_unless_asked() {
        let args = |insecure| RelayArgs {
            listen: Some("0.0.0.0:1".to_owned()),
            insecure,
            ..RelayArgs::default()
        };
        let (allowed, forbidden) = ("[relay]\ninsecure = true", "[relay]\ninsecure = false");
        for (text, flag) in [("", None), (forbidden, None), (allowed, Some(false))] {
            let error = resolve(text, args(flag)).unwrap_err();
            assert!(error.contains("--listen") && error.contains("--insecure"), "{error}");
        }
        for (text, flag) in [("", Some(true)), (allowed, None), (forbidden, Some(true))] {
            assert_eq!(resolve(text, args(flag)).unwrap().node.listen.port(), 1);
        }
    }
}
