//! `canopy pub`, `sub` and `ping`: a relay tried from a shell, as a participant of the Rust SDK.

use crate::output::{print_line, print_note};
use crate::signals::Signals;
use anyhow::{Context, bail};
use canopy_client::{
    Client, Comtree, Event, Group, LeaveReason, Level, Outgoing, PublishError, RefusedReason,
    RelayKey, Update,
};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The relay to try.
#[derive(Args, Clone, Debug)]
struct RelayArgs {
    /// The relay
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "CANOPY_RELAY",
        hide_env_values = true,
        default_value = "127.0.0.1:4040"
    )]
    relay: String,
    /// The relay's key, which it tells when it starts; needed for a relay on another machine
    #[arg(
        long,
        value_name = "KEY",
        env = "CANOPY_RELAY_KEY",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    relay_key: Option<RelayKey>,
    /// Speak with any relay that answers, even an impostor
    #[arg(long, conflicts_with = "relay_key")]
    insecure: bool,
    /// The comtree to join
    #[arg(long, value_name = "ID", default_value_t = 1)]
    comtree: u32,
    /// The access token, where the relay asks for one
    #[arg(
        long,
        value_name = "TOKEN",
        env = "CANOPY_TOKEN",
        hide_env_values = true,
        requires = "client_key"
    )]
    token: Option<String>,
    /// The file of the client's key that the token names; `canopy token client-key` makes one
    #[arg(long, value_name = "FILE", env = "CANOPY_CLIENT_KEY", hide_env_values = true)]
    client_key: Option<PathBuf>,
}

impl RelayArgs {
    async fn connect(&self) -> anyhow::Result<Client> {
        // By its name, so that each of its addresses is tried: `localhost` is ::1 as well as 127.0.0.1.
        let mut builder = Client::builder(&self.relay).comtree(Comtree(self.comtree));
        if let Some(key) = self.relay_key {
            builder = builder.relay_key(key);
        }
        if self.insecure {
            builder = builder.trust_any_relay();
        }
        if let Some(token) = &self.token {
            builder = builder.token(token.trim());
        }
        if let Some(path) = &self.client_key {
            let told = || format!("--client-key {}", path.display());
            let text = std::fs::read_to_string(path).with_context(told)?;
            builder = builder.key(text.parse().with_context(told)?);
        }
        Ok(builder.connect().await?)
    }
}

fn group_parser() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(0..1 << 31)
}

/// Publishes updates to a group: one text, or each line of stdin. The relay drops what is beyond a
/// limit, which it tells, or beyond the token, which only its metrics tell.
#[derive(Args)]
pub(crate) struct PubCommand {
    /// The group
    #[arg(value_name = "GROUP", value_parser = group_parser())]
    group: u32,
    /// What to publish; '-' or nothing publishes each line of stdin
    #[arg(value_name = "TEXT", default_value = "-", hide_default_value = true)]
    text: String,
    /// Who is subscribed to the group at this level or above gets it
    #[arg(long, value_name = "L", default_value_t = 0)]
    level: u8,
    #[command(flatten)]
    relay: RelayArgs,
}

impl PubCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        in_runtime(self.publish())
    }

    async fn publish(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let client = self.relay.connect().await?;
        let mut lines = match self.text.as_str() {
            "-" => lines_of_stdin()?,
            text => only_line(text.to_owned()),
        };
        let mut published = 0u64;
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                Some(event) = client.next_event() => {
                    tell(&event);
                    continue;
                }
                () = signals.next() => None,
            };
            let Some(line) = line else { break };
            let line = line.context("cannot read from stdin")?;
            self.publish_one(&client, line.as_bytes())
                .await
                .with_context(|| format!("update {} was not published", published + 1))?;
            published += 1;
        }
        // Datagrams leave in order: once the relay has confirmed this, it has had the updates too.
        client.leave().await;
        print_note(format_args!("sent {published} to group {}", self.group));
        Ok(ExitCode::SUCCESS)
    }

    async fn publish_one(&self, client: &Client, payload: &[u8]) -> Result<(), PublishError> {
        const WAIT_FOR_ROOM: Duration = Duration::from_millis(1);
        loop {
            match client.publish(Group::new(self.group), Level(self.level), payload) {
                Err(PublishError::Busy) => tokio::time::sleep(WAIT_FOR_ROOM).await,
                done => return done,
            }
        }
    }
}

type Lines = mpsc::Receiver<std::io::Result<String>>;

fn only_line(text: String) -> Lines {
    let (lines, receiver) = mpsc::channel(1);
    // There is room for one.
    let _ = lines.try_send(Ok(text));
    receiver
}

/// Reads lines on a thread of their own: it may wait for a line when the command has ended.
fn lines_of_stdin() -> anyhow::Result<Lines> {
    let (lines, receiver) = mpsc::channel(64);
    let read = move || {
        for line in std::io::stdin().lock().lines() {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(read)
        .context("cannot read stdin")?;
    Ok(receiver)
}

/// Subscribes to groups and prints each update that comes.
#[derive(Args)]
pub(crate) struct SubCommand {
    /// The groups
    #[arg(value_name = "GROUP", required = true, value_parser = group_parser())]
    groups: Vec<u32>,
    /// Get the updates of this level and below
    #[arg(long, value_name = "L", default_value_t = 0)]
    level: u8,
    /// End after so many updates; without it, at Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each update as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    relay: RelayArgs,
}

impl SubCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        in_runtime(self.listen())
    }

    async fn listen(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let client = self.relay.connect().await?;
        let wishes = self.groups.iter().map(|group| (Group::new(*group), Level(self.level)));
        client.subscribe_many(wishes).await?;
        print_note(format_args!(
            "subscribed to {:?} at level {} through {}",
            self.groups,
            self.level,
            client.relay()
        ));
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            tokio::select! {
                // Events say why nothing comes any more.
                biased;
                Some(event) = client.next_event() => {
                    if let Some(end) = end_of(&event) {
                        bail!("the relay has ended the session: {end}");
                    }
                    tell(&event);
                }
                update = client.recv() => {
                    let Some(update) = update else { bail!("the session has ended") };
                    print_line(if self.json { as_json(&update) } else { in_words(&update) })?;
                    left -= 1;
                }
                () = signals.next() => break,
            }
        }
        client.leave().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Why a session is over for good, if it is.
fn end_of(event: &Event) -> Option<&'static str> {
    match event {
        Event::SentAway(LeaveReason::Revoked) => {
            Some("the token has ended or was revoked, or its key is trusted no more")
        }
        Event::SentAway(LeaveReason::ThrownOut) => Some("a server has thrown this participant out"),
        Event::SentAway(LeaveReason::Elsewhere) => Some("the token is in use elsewhere now"),
        Event::Refused(RefusedReason::Token) => Some("it takes the token no more"),
        _ => None,
    }
}

fn tell(event: &Event) {
    match event {
        Event::Lost => print_note("the relay is lost; trying again"),
        Event::Connected { participant, .. } => {
            print_note(format_args!("connected as {participant}"));
        }
        Event::SentAway(reason) => {
            print_note(format_args!("the relay ends the session: {reason:?}"));
        }
        Event::Refused(reason) => {
            print_note(format_args!("the relay refuses: {reason:?}; asking again"));
        }
        Event::SubscriptionsRefused(groups) => {
            let groups: Vec<_> = groups.iter().map(|(group, _)| group).collect();
            print_note(format_args!("the relay has no room any more for {groups:?}"));
        }
        Event::Busy { what, dropped, .. } => {
            print_note(format_args!("the relay dropped {dropped}: too much ({what:?}); send less"));
        }
        _ => {}
    }
}

fn in_words(update: &Update) -> String {
    let Update { from, group, level, payload, .. } = update;
    let to = group.map_or("private".to_owned(), |group| group.number().to_string());
    let payload = std::str::from_utf8(payload).map_or_else(|_| hex(payload), str::to_owned);
    format!("{to}  from {from}  level {}  {payload}", level.0)
}

fn as_json(update: &Update) -> String {
    let Update { from, level, payload, .. } = update;
    let group = update.group.map(Group::number);
    let (key, text) = match std::str::from_utf8(payload) {
        Ok(text) => ("text", text.to_owned()),
        Err(_) => ("hex", hex(payload)),
    };
    serde_json::json!({ "group": group, "from": from.to_string(), "level": level.0, key: text })
        .to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Measures round trips through a relay: an update to a group of its own, until it comes back. In
/// periodic mode that includes the wait for the tick.
#[derive(Args)]
pub(crate) struct PingCommand {
    /// How many round trips
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Time from one to the next
    #[arg(long, value_name = "MS", default_value_t = 100)]
    interval_ms: u64,
    /// The group to use, where a token grants only some: for publishing and for subscribing
    /// [default: one from 2147418112 to 2147483647]
    #[arg(long, value_name = "GROUP", value_parser = group_parser())]
    group: Option<u32>,
    /// Print one JSON object at the end, in place of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    relay: RelayArgs,
}

/// After so long a round trip is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

impl PingCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        in_runtime(self.ping())
    }

    async fn ping(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let client = self.relay.connect().await?;
        // A group that nobody else is likely to use, and that no other ping uses.
        let random = || 0x7fff_0000 | u32::from(RandomState::new().build_hasher().finish() as u16);
        let group = Group::new(self.group.unwrap_or_else(random));
        client.subscribe(group, Level(0)).await?;
        let mut interval = tokio::time::interval(Duration::from_millis(self.interval_ms.max(1)));
        let mut trips = Trips::default();
        for number in 0..self.count {
            tokio::select! {
                _ = interval.tick() => {}
                () = signals.next() => break,
            }
            let trip = round_trip(&client, group, number).await?;
            trips.add(trip);
            if !self.json {
                print_line(match trip {
                    Some(trip) => format!("{number}: {:.3} ms", trip.as_secs_f64() * 1e3),
                    None => format!("{number}: lost"),
                })?;
            }
        }
        let relay = client.relay();
        client.leave().await;
        print_line(if self.json { trips.as_json(relay) } else { trips.in_words(relay) })?;
        if trips.all.is_empty() {
            bail!("{relay} answers, but no update came back; look at its drops in /metrics");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// How long an update takes to come back; `None` if it does not.
async fn round_trip(
    client: &Client,
    group: Group,
    number: u32,
) -> anyhow::Result<Option<Duration>> {
    let payload = number.to_be_bytes();
    let sent = Instant::now();
    client.publish_with(Outgoing::new(group, Level(0), &payload).echo())?;
    let back = async {
        while let Some(update) = client.recv().await {
            // Not one that was given up for lost and came after all, nor somebody else's.
            if update.payload[..] == payload && Some(update.from) == client.participant() {
                return Some(sent.elapsed());
            }
        }
        None
    };
    Ok(tokio::time::timeout(LOST_AFTER, back).await.unwrap_or(None))
}

/// Round trips so far.
#[derive(Default)]
struct Trips {
    sent: u32,
    /// In order of their length.
    all: Vec<Duration>,
}

impl Trips {
    fn add(&mut self, trip: Option<Duration>) {
        self.sent += 1;
        if let Some(trip) = trip {
            let place = self.all.partition_point(|other| *other <= trip);
            self.all.insert(place, trip);
        }
    }

    /// The time that this share of the round trips did not exceed, milliseconds.
    fn quantile(&self, share: f64) -> Option<f64> {
        let place = (share * self.all.len() as f64).ceil() as usize;
        self.all.get(place.saturating_sub(1)).map(|trip| trip.as_secs_f64() * 1e3)
    }

    fn as_json(&self, relay: SocketAddr) -> String {
        serde_json::json!({
            "relay": relay,
            "sent": self.sent,
            "received": self.all.len(),
            "min_ms": self.quantile(0.0),
            "median_ms": self.quantile(0.5),
            "p99_ms": self.quantile(0.99),
        })
        .to_string()
    }

    fn in_words(&self, relay: SocketAddr) -> String {
        let (sent, received) = (self.sent, self.all.len());
        let mut text = format!("{relay}: {sent} sent, {received} came back");
        if let [Some(min), Some(median), Some(p99)] =
            [0.0, 0.5, 0.99].map(|share| self.quantile(share))
        {
            // Writing to a String cannot fail.
            let _ = write!(text, "; min {min:.3}, median {median:.3}, p99 {p99:.3} ms");
        }
        text
    }
}

fn in_runtime(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_came_back() {
        let mut trips = Trips::default();
        assert_eq!(trips.quantile(0.5), None);
        for ms in (1..=200).rev() {
            trips.add(Some(Duration::from_millis(ms)));
        }
        trips.add(None);
        let of = |share| trips.quantile(share).unwrap().round();
        assert_eq!([of(0.0), of(0.5), of(0.99), of(1.0)], [1.0, 100.0, 198.0, 200.0]);
        assert_eq!((trips.sent, trips.all.len()), (201, 200));
    }
}
