//! `canopy bench subscribe`: how many changes of subscriptions one core of a relay takes.
//!
//! Participants walk: each holds subscriptions to neighbouring groups, and of every two changes one
//! ends the oldest and one begins the next. In memory it is the data plane alone, fed with encoded
//! packets; through the socket it is the relay as it is served, with the kernel's work for it. In
//! memory each packet is another participant's than the one before, so that a change finds its part
//! of the tables in no near cache; through the socket a participant's packets come several at a time, without
//! which the load would be slower than the relay. Over a link it is what a relay's participants change
//! that the next relay towards the core hears of ([`link`]).

mod delay;
mod link;
mod walk;

use crate::members::{Members, session};
use crate::noise::median;
use crate::relay::{Server, UNLIMITED};
use crate::{Processors, flag_value};
use anyhow::{bail, ensure};
use canopy_net::{SocketOptions, process_cpu_time, thread_cpu_time};
use canopy_output::{print_line, print_note};
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, Relay, RelayConfig, Siblings,
    TableLimits,
};
use canopy_session::{Keyring, PacketsPerKey, SessionLimits, State};
use canopy_wire::{Comtree, MAX_DATAGRAM, Time};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use walk::{Walk, Walker};

/// Changes in a packet: as many as the format promises to fit, and the fewest.
const CHANGES: [u32; 2] = [350, 1];
const PARTICIPANTS: usize = 500;
/// Groups that each is subscribed to, half of them shared with the next participant: so all of them walk through
/// 65,390 groups, nearly as many as a relay's table has room for.
const HELD: u32 = 260;
/// Packets of a participant that leave in one segmented send.
const PACKETS_A_SEND: u32 = 16;
/// Participants whose packets are on their way.
const IN_FLIGHT: usize = 16;
/// What is not acknowledged after this long is sent again from where the relay lost it.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// Counts the subscription changes that one core of a relay applies and acknowledges in a second of
/// its processor time: 500 participants walk through 65,390 groups, 350 changes a packet and 1 a packet,
/// in memory ('sealed') and through the socket of a real relay process. Then, with every change of
/// other groups, how many a second the next relay hears of over a link of 100 ms round trip, and
/// whether both agree in the end.
#[derive(Args)]
pub(crate) struct SubscribeBench {
    /// Rounds of each row, of which the median is told
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds of each round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Changes a second that are offered over the link
    #[arg(long, value_name = "N", default_value_t = 120_000,
          value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    link_rate: u32,
    /// Only these rows
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    path: Vec<Through>,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// What the changes pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Through {
    /// The data plane alone, in memory
    Sealed,
    /// The socket of a relay process
    Socket,
    /// A relay, and a link of 100 ms round trip to the next
    Link,
}

#[derive(Serialize)]
struct SubscribeRow {
    path: Through,
    changes_per_packet: u32,
    changes_per_core_second: f64,
    /// What a participant's seal of such a packet takes, in memory: the relay opens one and makes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    seal_ns: Option<f64>,
}

/// What a round in memory showed.
#[derive(Clone, Copy)]
struct Round {
    changes_per_core_second: f64,
    seal_ns: f64,
}

impl SubscribeBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.05..=60.0).contains(&self.seconds) {
            bail!("--seconds {} is out of range; choose 0.05 to 60", self.seconds);
        }
        let relay_on = Processors::take()?.relay_on[0];
        let is_wanted = |path| self.path.is_empty() || self.path.contains(&path);
        for path in [Through::Sealed, Through::Socket].into_iter().filter(|path| is_wanted(*path)) {
            for changes in CHANGES {
                print_note(format_args!("{}, {changes} changes a packet", flag_value(path)));
                let (rounds, seals) = match path {
                    Through::Sealed => self
                        .in_memory(changes)?
                        .into_iter()
                        .map(|round| (round.changes_per_core_second, round.seal_ns))
                        .unzip(),
                    _ => (self.through_the_socket(changes, relay_on)?, Vec::new()),
                };
                let row = SubscribeRow {
                    path,
                    changes_per_packet: changes,
                    changes_per_core_second: median(&rounds).round(),
                    seal_ns: (!seals.is_empty()).then(|| median(&seals).round()),
                };
                print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
            }
        }
        if is_wanted(Through::Link) {
            print_note("link, 100 ms there and back");
            let row = link::measure(self.link_rate, self.seconds, relay_on)?;
            print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn in_memory(&self, changes: u32) -> anyhow::Result<Vec<Round>> {
        let mut relay = relay();
        let mut walkers = join(&mut relay, changes)?;
        let mut datagrams = vec![0; PARTICIPANTS * MAX_DATAGRAM];
        let mut lengths = [0; PARTICIPANTS];
        let mut rounds = Vec::new();
        let began = Instant::now();
        // The first round warms up: tables grow to their size in it.
        for _ in 0..=self.rounds {
            let before = relay.counters().clone();
            let (mut cpu, mut sealing, mut packets) = (Duration::ZERO, Duration::ZERO, 0);
            let until = Instant::now() + Duration::from_secs_f64(self.seconds);
            while Instant::now() < until {
                let places = datagrams.chunks_mut(MAX_DATAGRAM).zip(&mut lengths);
                for (walker, (place, len)) in walkers.iter_mut().zip(places) {
                    *len = walker.next_packet(place)?;
                }
                let started = thread_cpu_time();
                let places = datagrams.chunks_mut(MAX_DATAGRAM).zip(&mut lengths);
                for (walker, (place, len)) in walkers.iter_mut().zip(places) {
                    *len = walker.seal(place, *len)?;
                }
                sealing += thread_cpu_time().saturating_sub(started);
                packets += PARTICIPANTS as u32;
                let started = thread_cpu_time();
                let now = JOINED + began.elapsed();
                let all = datagrams.chunks_mut(MAX_DATAGRAM).zip(&lengths);
                for (walker, (datagram, len)) in walkers.iter().zip(all) {
                    relay.handle_datagram(now, walker.ip_port, &mut datagram[..*len]);
                }
                relay.handle_timeout(now);
                relay.transmit(now, |_| ());
                cpu += thread_cpu_time().saturating_sub(started);
            }
            let after = relay.counters();
            ensure!(after.drops == before.drops, "the relay dropped what it was asked");
            let changed = after.subscription_changes - before.subscription_changes;
            rounds.push(Round {
                changes_per_core_second: changed as f64 / cpu.as_secs_f64(),
                seal_ns: sealing.as_secs_f64() * 1e9 / f64::from(packets),
            });
        }
        Ok(rounds.split_off(1))
    }

    fn through_the_socket(&self, changes: u32, relay_on: usize) -> anyhow::Result<Vec<f64>> {
        let pin = relay_on.to_string();
        let flags = ["--threads", "1", "--pin", &pin];
        let server = Server::start_relay(&[&flags[..], &UNLIMITED].concat())?;
        let mut members = Members::new(65_535, false)?;
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        for number in 0..PARTICIPANTS {
            let session = session(number, std::iter::empty());
            let options = SocketOptions::default();
            members.add([from, server.address], &options, Some(session), true)?;
        }
        members.join(|_| ())?;
        let mut walk = Walk {
            walkers: (0..PARTICIPANTS).map(|number| Walker::new(number, None, changes)).collect(),
            members,
            idle: (0..PARTICIPANTS).collect(),
            in_flight: Vec::new(),
            packets: 0,
            packets_a_send: PACKETS_A_SEND,
        };
        let mut rounds = Vec::new();
        for _ in 0..=self.rounds {
            let (cpu, packets) = (process_cpu_time(server.process())?, walk.packets);
            walk.run(Duration::from_secs_f64(self.seconds), None)?;
            let cpu = process_cpu_time(server.process())?.saturating_sub(cpu);
            let changed = (walk.packets - packets) * u64::from(changes);
            rounds.push(changed as f64 / cpu.as_secs_f64());
        }
        Ok(rounds.split_off(1))
    }
}

impl SubscribeRow {
    fn in_words(&self) -> String {
        let seal = self.seal_ns.map_or(String::new(), |ns| format!("; a seal takes {ns} ns"));
        format!(
            "{:<7} {:>4} changes a packet: {:>8.2} M changes a core-second{seal}",
            flag_value(self.path),
            self.changes_per_packet,
            self.changes_per_core_second / 1e6
        )
    }
}

/// When all have joined in memory, which takes no time there.
const JOINED: Time = Time::from_millis(1);
const COMTREE: Comtree = Comtree(1);

fn relay() -> Relay {
    let config = RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![ComtreeConfig::new(COMTREE, 1)],
        trust: None,
        origin: canopy_relay::UnixTime(0),
        places: Places::new(PARTICIPANTS as u32),
        max_sessions: PARTICIPANTS as u32,
        max_datagram: MAX_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: false,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits::default(),
        tables: TableLimits { max_new_groups_per_participant: u32::MAX, ..TableLimits::default() },
        budgets: Budgets::NONE,
        gate: Gate::open(),
        smallest_set: None,
    };
    Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16])
}

/// Joins all participants to a relay in memory, in one round trip after the other.
fn join(relay: &mut Relay, changes: u32) -> anyhow::Result<Vec<Walker>> {
    let joined = |number: usize| {
        let mut session = session(number, std::iter::empty());
        let ip_port = ip_port(number);
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(JOINED, &mut out) {
            relay.handle_datagram(JOINED, ip_port, &mut out[..len]);
            relay.transmit(JOINED, |batch| {
                for reply in batch.transmits() {
                    let mut bytes = batch.parts(reply).collect::<Vec<_>>().concat();
                    // What the session makes of it shows in its state.
                    let _ = session.handle_datagram(JOINED, &mut bytes, |_| ());
                }
            });
        }
        ensure!(session.state() == State::Connected, "the relay did not take participant {number}");
        Ok(Walker::new(number, Some(session), changes))
    };
    (0..PARTICIPANTS).map(joined).collect()
}

fn ip_port(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 1024 + number as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relay_in_memory_applies_every_change() {
        let bench = SubscribeBench {
            rounds: 1,
            seconds: 0.05,
            link_rate: 1_000,
            path: Vec::new(),
            json: false,
        };
        for changes in CHANGES {
            let round = bench.in_memory(changes).unwrap()[0];
            assert!(round.changes_per_core_second > 0.0 && round.seal_ns > 0.0);
        }
    }
}
