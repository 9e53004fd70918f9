//! `canopy bench footprint`: what a connected client costs a relay that has nothing to do.

use super::relay::Server;
use crate::members::{Members, config, session_of};
use crate::tokens::Tokens;
use anyhow::{Context, ensure};
use canopy_net::{SocketOptions, process_cpu_time};
use canopy_output::{print_line, print_note};
use canopy_wire::MAX_DATAGRAM;
use clap::Args;
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

/// Connects clients to a real relay process, subscribes them, and leaves it idle: memory by the
/// growth of its resident memory, processor time by the kernel's account of it. Ends with 1 if either
/// is more than promised.
#[derive(Args)]
pub(crate) struct FootprintBench {
    /// Clients, each with a session and a socket, 100 or more; what the first 50 cost is not counted
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    clients: u32,
    /// Subscriptions of each client, a third of them shared with its neighbours
    #[arg(long, default_value_t = 20)]
    subscriptions: u32,
    /// Clients bring tokens, and the relay takes nobody without
    #[arg(long)]
    tokens: bool,
    /// Seconds of idleness
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Footprint {
    clients: u32,
    tokens: bool,
    subscriptions: u64,
    /// Growth of the relay's resident memory, without its code, after the first clients, which touch
    /// what all share, bytes.
    memory_bytes: u64,
    /// The promise: 4 KiB for each further client and 64 bytes for each of its subscriptions.
    memory_allowed_bytes: u64,
    idle_seconds: u64,
    /// Share of one core.
    idle_cpu_share: f64,
    idle_cpu_share_allowed: f64,
}

/// The pause between two looks at the clients; what they have to send can wait that long.
const NAP: Duration = Duration::from_millis(20);
/// Clients that are being joined at a time.
const AT_A_TIME: u32 = 50;

impl FootprintBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        canopy_net::raise_open_files();
        let tokens = self.tokens.then(Tokens::new).transpose()?;
        let mut flags = vec!["--mode", "immediate", "--max-sessions", "20000"];
        flags.extend(tokens.iter().flat_map(Tokens::flags));
        let server = Server::start_relay(&flags)?;
        let mut clients = Members::new(MAX_DATAGRAM + 1, false)?;
        let memory_bytes = self.join(&server, &mut clients, tokens.as_ref())?;
        let idle_cpu_share = self.idle(&server, &mut clients)?;
        let counted = u64::from(self.clients.saturating_sub(AT_A_TIME));
        let footprint = Footprint {
            clients: self.clients,
            tokens: self.tokens,
            subscriptions: u64::from(self.clients) * u64::from(self.subscriptions),
            memory_bytes,
            memory_allowed_bytes: counted * (4096 + u64::from(self.subscriptions) * 64),
            idle_seconds: self.seconds,
            idle_cpu_share,
            idle_cpu_share_allowed: 0.02 * f64::from(self.clients) / 1000.0,
        };
        print_line(if self.json {
            serde_json::to_string(&footprint)?
        } else {
            footprint.in_words()
        })?;
        let excesses = footprint.excesses();
        for excess in &excesses {
            print_note(format_args!("more than promised: {excess}"));
        }
        Ok(if excesses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Joins all clients. Returns by how much the relay's memory grew after the first, which touch what
    /// all share.
    fn join(
        &self,
        server: &Server,
        clients: &mut Members,
        tokens: Option<&Tokens>,
    ) -> anyhow::Result<u64> {
        let mut before = 0;
        let options = SocketOptions {
            receive_offload: false,
            receive_buffer: 64 << 10,
            ..SocketOptions::default()
        };
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        print_note(format_args!("joining {} clients", self.clients));
        for number in 0..self.clients {
            // Neighbours overlap as the cells of a crowd do.
            let first = number * self.subscriptions * 2 / 3;
            let mut config = config(number as usize);
            if let Some(tokens) = tokens {
                tokens.give(&mut config, number)?;
            }
            let session = session_of(config, first..first + self.subscriptions);
            clients.add([from, server.address], &options, Some(session), true)?;
            if (number + 1) % AT_A_TIME == 0 || number + 1 == self.clients {
                clients.join(|_| ())?;
            }
            if number + 1 == AT_A_TIME {
                before = resident_bytes(server.process())?;
            }
        }
        Ok(resident_bytes(server.process())?.saturating_sub(before))
    }

    /// Leaves all clients idle. Returns the share of a core that the relay takes meanwhile.
    fn idle(&self, server: &Server, clients: &mut Members) -> anyhow::Result<f64> {
        print_note(format_args!("idle for {} s", self.seconds));
        let cpu = process_cpu_time(server.process())?;
        let until = clients.clock.now() + Duration::from_secs(self.seconds);
        while clients.clock.now() < until {
            let now = clients.clock.now();
            clients.turn(now)?;
            clients.receive(NAP.min(until.since(now)), |_| ())?;
        }
        ensure!(clients.losses == 0, "a client lost its idle relay");
        let cpu = process_cpu_time(server.process())?.saturating_sub(cpu);
        Ok(cpu.as_secs_f64() / self.seconds.max(1) as f64)
    }
}

impl Footprint {
    fn in_words(&self) -> String {
        format!(
            "{} clients with {} subscriptions{}: {} KiB of {} KiB allowed; idle: {:.2} % of a core of \
             {:.2} % allowed",
            self.clients,
            self.subscriptions,
            if self.tokens { " and tokens" } else { "" },
            self.memory_bytes / 1024,
            self.memory_allowed_bytes / 1024,
            self.idle_cpu_share * 100.0,
            self.idle_cpu_share_allowed * 100.0,
        )
    }

    /// What is above its limit.
    fn excesses(&self) -> Vec<&'static str> {
        let memory = (self.memory_bytes > self.memory_allowed_bytes).then_some("memory");
        let idle = (self.idle_cpu_share > self.idle_cpu_share_allowed).then_some("idle cost");
        memory.into_iter().chain(idle).collect()
    }
}

/// The resident memory of a process that is its own: not its code, of which the kernel brings in as
/// much at a time as it likes.
pub(crate) fn resident_bytes(process: u32) -> anyhow::Result<u64> {
    status_bytes(process, "RssAnon")
}

/// The greatest resident memory that a process has had, with its code.
pub(crate) fn peak_bytes(process: u32) -> anyhow::Result<u64> {
    status_bytes(process, "VmHWM")
}

fn status_bytes(process: u32, field: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no {field}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(memory_bytes: u64, idle_cpu_share: f64) -> Footprint {
        Footprint {
            clients: 1,
            tokens: false,
            subscriptions: 1,
            memory_bytes,
            memory_allowed_bytes: 4160,
            idle_seconds: 1,
            idle_cpu_share,
            idle_cpu_share_allowed: 0.02,
        }
    }

    #[test]
    fn either_limit_may_be_reached_and_neither_exceeded() {
        assert_eq!(footprint(4160, 0.02).excesses(), [""; 0]);
        assert_eq!(footprint(4161, 0.02).excesses(), ["memory"]);
        assert_eq!(footprint(4160, 0.021).excesses(), ["idle cost"]);
        assert_eq!(footprint(4161, 0.021).excesses(), ["memory", "idle cost"]);
    }
}
