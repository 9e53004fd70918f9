//! `canopy bench restart`: how long a crowd is away when its relay is killed and started again.

use crate::Processors;
use crate::relay::Server;
use anyhow::{Context, bail};
use canopy_client::{Event, Group, Level, Participant, PollClient};
use canopy_output::{print_line, print_note};
use clap::Args;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Has clients of the SDK publish twenty times a second through a relay with a key, kills it (`kill -9`),
/// and starts it again at the same address. Ends with 1 if a client is away for more than two seconds,
/// if the protocol takes more than a tenth of a second of that, or if anybody comes back under another
/// address.
#[derive(Args)]
pub(crate) struct RestartBench {
    /// Clients, ten to a group
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    clients: u32,
    /// How often the relay is killed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What was measured, of all clients in all rounds.
#[derive(Serialize)]
struct Restart {
    clients: u32,
    rounds: u32,
    /// From the kill until the new process says that it listens.
    relay_away_max_ms: f64,
    /// From the kill until a client is connected again.
    away_p50_ms: f64,
    away_max_ms: f64,
    away_allowed_ms: f64,
    /// The part of it since a client has sent something that the new process could answer.
    protocol_p50_ms: f64,
    protocol_max_ms: f64,
    protocol_allowed_ms: f64,
    /// Who came back under another address than before.
    other_addresses: u32,
}

/// A client, and what it was before the kill.
struct Walker {
    client: PollClient,
    group: Group,
    was: Option<Participant>,
    /// When it has published since.
    published: Vec<Instant>,
    /// When it was connected again.
    back: Option<Instant>,
}

const AWAY_ALLOWED: Duration = Duration::from_secs(2);
const PROTOCOL_ALLOWED: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(50);
/// How long clients publish before each kill.
const BEFORE: Duration = Duration::from_secs(1);
/// How long it may take until all are back; otherwise the bench ends with an error.
const PATIENCE: Duration = Duration::from_secs(30);
const CLIENTS_OF_A_GROUP: u32 = 10;

impl RestartBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let processors = Processors::take()?;
        let folder = tempfile::tempdir().context("there is no room for the relay's key")?;
        let start = |at: SocketAddr| start(at, &folder.path().join("relay.key"), &processors);
        let mut server = start(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let at = server.address;
        let walkers = (0..self.clients).map(|number| Walker::join(at, number));
        let mut walkers: Vec<Walker> = walkers.collect::<anyhow::Result<_>>()?;
        let mut result = Measured::default();
        for round in 1..=self.rounds {
            print_note(format_args!("round {round} of {}", self.rounds));
            let begun = Instant::now();
            walk(&mut walkers, |_| begun.elapsed() >= BEFORE)?;
            walkers.iter_mut().for_each(Walker::remember);
            let killed = Instant::now();
            drop(server);
            // They go on while it starts, which this thread sees to: with it the relay would end.
            let again = std::thread::scope(|scope| {
                let walking = scope.spawn(|| walk(&mut walkers, are_back));
                let again = start(at)?;
                let listens = Instant::now();
                walking.join().ok().context("the walkers were lost")??;
                anyhow::Ok((again, listens))
            })?;
            server = again.0;
            result.add(killed, again.1, &walkers)?;
        }
        let result = result.sum_up(&self);
        print_line(if self.json { serde_json::to_string(&result)? } else { result.in_words() })?;
        let excesses = result.excesses();
        for excess in &excesses {
            print_note(format_args!("more than promised: {excess}"));
        }
        Ok(if excesses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn start(at: SocketAddr, key: &Path, processors: &Processors) -> anyhow::Result<Server> {
    let (key, pin) = (key.to_str().context("no path for a key")?, processors.relay_on[0]);
    Server::start_relay_at(at, &["--key", key, "--pin", &pin.to_string()])
}

fn are_back(walkers: &[Walker]) -> bool {
    walkers.iter().all(|walker| walker.back.is_some())
}

/// Lets all walkers publish and hear until it is over.
fn walk(walkers: &mut [Walker], is_over: impl Fn(&[Walker]) -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut step = begun;
    while !is_over(walkers) {
        let now = Instant::now();
        if now - begun > PATIENCE {
            let away = walkers.iter().filter(|walker| walker.back.is_none()).count();
            bail!("{away} clients did not come back within {PATIENCE:?}");
        }
        let publishes = now >= step;
        if publishes {
            step = now + STEP;
        }
        walkers.iter_mut().try_for_each(|walker| walker.turn(publishes))?;
    }
    Ok(())
}

impl Walker {
    fn join(relay: SocketAddr, number: u32) -> anyhow::Result<Walker> {
        let mut client = PollClient::builder(relay).connect_blocking()?;
        let group = Group::new(number / CLIENTS_OF_A_GROUP);
        client.subscribe(group, Level(0));
        Ok(Walker { client, group, was: None, published: Vec::new(), back: None })
    }

    fn remember(&mut self) {
        (self.was, self.back) = (self.client.participant(), None);
        self.published.clear();
    }

    fn turn(&mut self, publishes: bool) -> anyhow::Result<()> {
        if !self.client.poll() {
            bail!("a client has left");
        }
        while self.client.try_recv().is_some() {}
        while let Some(event) = self.client.try_next_event() {
            if matches!(event, Event::Connected { .. }) {
                self.back = Some(Instant::now());
            }
        }
        if publishes && self.client.is_connected() {
            self.client.publish(self.group, Level(0), &[0x5a; 20])?;
            self.published.push(Instant::now());
        }
        Ok(())
    }
}

/// Milliseconds of all clients in all rounds.
#[derive(Default)]
struct Measured {
    relay_away: Vec<f64>,
    away: Vec<f64>,
    protocol: Vec<f64>,
    other_addresses: u32,
}

impl Measured {
    fn add(&mut self, killed: Instant, listens: Instant, walkers: &[Walker]) -> anyhow::Result<()> {
        let ms = |since: Instant, until: Instant| {
            until.saturating_duration_since(since).as_secs_f64() * 1000.0
        };
        self.relay_away.push(ms(killed, listens));
        for walker in walkers {
            let back = walker.back.context("a client is not back")?;
            self.away.push(ms(killed, back));
            let asked = walker.published.iter().find(|published| **published >= listens);
            self.protocol.push(ms(*asked.unwrap_or(&listens), back));
            self.other_addresses += u32::from(walker.client.participant() != walker.was);
        }
        Ok(())
    }

    fn sum_up(&self, bench: &RestartBench) -> Restart {
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        Restart {
            clients: bench.clients,
            rounds: bench.rounds,
            relay_away_max_ms: most(&self.relay_away),
            away_p50_ms: crate::noise::median(&self.away),
            away_max_ms: most(&self.away),
            away_allowed_ms: AWAY_ALLOWED.as_secs_f64() * 1000.0,
            protocol_p50_ms: crate::noise::median(&self.protocol),
            protocol_max_ms: most(&self.protocol),
            protocol_allowed_ms: PROTOCOL_ALLOWED.as_secs_f64() * 1000.0,
            other_addresses: self.other_addresses,
        }
    }
}

impl Restart {
    /// What is above its limit.
    fn excesses(&self) -> Vec<&'static str> {
        let away = (self.away_max_ms > self.away_allowed_ms).then_some("time away");
        let protocol = self.protocol_max_ms > self.protocol_allowed_ms;
        let protocol = protocol.then_some("the protocol's part of it");
        let addresses = (self.other_addresses > 0).then_some("clients with another address");
        [away, protocol, addresses].into_iter().flatten().collect()
    }

    fn in_words(&self) -> String {
        format!(
            "{} clients, {} kills: the relay listens again after {:.0} ms at most; clients are back \
             after {:.0} ms, at most {:.0} of {:.0} allowed, of which the protocol takes {:.1} ms, at \
             most {:.1} of {:.0} allowed; {} came back under another address",
            self.clients,
            self.rounds,
            self.relay_away_max_ms,
            self.away_p50_ms,
            self.away_max_ms,
            self.away_allowed_ms,
            self.protocol_p50_ms,
            self.protocol_max_ms,
            self.protocol_allowed_ms,
            self.other_addresses,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_may_be_reached_and_none_exceeded() {
        let excesses = |away_ms, protocol_ms, other_addresses| {
            let bench = RestartBench { clients: 1, rounds: 1, json: false };
            let measured = Measured {
                relay_away: vec![1.0],
                away: vec![away_ms],
                protocol: vec![protocol_ms],
                other_addresses,
            };
            measured.sum_up(&bench).excesses().len()
        };
        assert_eq!(excesses(2000.0, 100.0, 0), 0);
        assert_eq!(excesses(2000.1, 100.0, 0), 1);
        assert_eq!(excesses(2000.0, 100.1, 0), 1);
        assert_eq!(excesses(2000.0, 100.0, 1), 1);
        assert_eq!(excesses(9000.0, 9000.0, 9), 3);
    }
}
