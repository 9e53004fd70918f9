//! `canopy bench admit`: how many participants a controller admits, a second and core, and how much
//! memory it needs for them.
//!
//! The first row is the part that decides, in this process with a store in memory. The second is the
//! daemon, as anyone would start it: a process on a processor of its own with its store on disk. Relays
//! and participants are played on the other processor. They speak to it over sealed channels, as real
//! ones do, but relays carry no data. There are 16 relays, or as many as carry the comtrees of all worlds.

mod api;
mod core;
mod crowd;
mod daemon;
mod relays;

use crate::Processors;
use crate::table::{Column, table};
use anyhow::bail;
use canopy_control::Settings;
use canopy_output::{print_line, print_note};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Has participants join worlds through a controller, and counts those that it admits within a second of its
/// processor time, with all messages to relays and all commits. At `core` that is the part that decides, with
/// a store in memory, and with the relays' side; at `daemon` it is the process on one processor, with the
/// handshakes of its channels, signatures of tokens, and a store on disk. There all participants renew their
/// leases then, the controller is killed (`kill -9`) and started again on its store, and all participants
/// leave. Ends with 1 if a controller needs more than 1 GiB, or if the second one lacks a member.
#[derive(Args)]
pub(crate) struct AdmitBench {
    /// What is measured; both unless it is given
    #[arg(long, value_enum)]
    at: Option<At>,
    /// Participants
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    endpoints: u32,
    /// Worlds that they join in turn, each of which lives at four relays
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    worlds: u32,
    /// Participants that ask the daemon at a time
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    together: u32,
    /// Where the daemon's folder is made, which is removed then; the system's temporary folder unless it is
    /// given, which is in memory on some systems
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum At {
    /// The part that decides
    Core,
    /// The process
    Daemon,
}

#[derive(Serialize)]
struct AdmitRow {
    at: At,
    endpoints: u32,
    worlds: u32,
    relays: u16,
    joins_per_second: f64,
    joins_per_core_second: f64,
    /// From the call until the answer, with the handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    join_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewals_per_core_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaves_per_core_second: Option<f64>,
    /// How often somebody was refused and asked again, as a relay has not answered in time.
    asked_again: u32,
    /// The daemon's greatest resident memory; of the core, with its store and the relays' side.
    memory_bytes: u64,
    memory_allowed_bytes: u64,
    /// From the start on that store until it is ready.
    started_again_ms: f64,
    /// Who was admitted and is not in when the controller has started again.
    lost: u32,
}

/// The promise for 100,000 endpoints in 10,000 worlds.
const MEMORY_ALLOWED: u64 = 1 << 30;
/// The fewest relays. Each has links with those one and five numbers further on.
const FEWEST_RELAYS: u16 = 16;
const LINKS_TO: [u16; 2] = [1, 5];
/// A world's participants are near so many relays, which follow each other.
const RELAYS_OF_WORLD: u16 = 4;
/// There are as many relays as have so many worlds at most, of the 1,024 comtrees that a relay carries. So a tree may
/// have a relay on its way, too.
const WORLDS_OF_RELAY: u32 = 640;
/// Members that a relay has room for.
const PLACES: u32 = 100_000;
/// What a relay can send and receive, and what a link bears, bits a second.
const UPLINK_BITS: u64 = 400_000_000_000;
const LINK_BITS: u64 = 100_000_000_000;
/// What a member may send and be sent, bits a second.
const UP_BITS: u64 = 50_000;
const DOWN_BITS: u64 = 500_000;
const BITS_OF_PACKET: u64 = 1_000;
/// No lease ends while the bench runs.
const LEASE: Duration = Duration::from_secs(3600);

impl AdmitBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let processors = Processors::take()?;
        if self.worlds > self.endpoints {
            bail!("--worlds {}: give no more worlds than --endpoints", self.worlds);
        }
        let mut rows = Vec::new();
        for at in At::value_variants() {
            if self.at.is_some_and(|only| only != *at) {
                continue;
            }
            let row = match at {
                At::Core => core::measure(&self)?,
                At::Daemon => daemon::measure(&self, &processors)?,
            };
            if self.json {
                print_line(serde_json::to_string(&row)?)?;
            }
            rows.push(row);
        }
        if !self.json {
            print_line(table(&rows, &COLUMNS))?;
        }
        let excesses: Vec<_> = rows.iter().flat_map(AdmitRow::excesses).collect();
        for excess in &excesses {
            print_note(format_args!("more than promised: {excess}"));
        }
        Ok(if excesses.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// How the controller does its work in this bench.
fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

/// The world of a participant.
fn world(number: u32) -> String {
    format!("w{number}")
}

fn relay_name(number: u16) -> String {
    format!("r{number}")
}

/// How many relays carry so many worlds.
fn relays(worlds: u32) -> u16 {
    let enough = (worlds * u32::from(RELAYS_OF_WORLD)).div_ceil(WORLDS_OF_RELAY);
    FEWEST_RELAYS.max(enough as u16)
}

/// The relays that a participant has measured: three of those that its world lives at. The participants of a world begin
/// with one after the other.
fn near(participant: u32, worlds: u32) -> impl Iterator<Item = (u16, u32)> {
    let (relays, turn) = (relays(worlds), (participant / worlds) as u16 % RELAYS_OF_WORLD);
    let home = (participant % worlds % u32::from(relays)) as u16;
    let relay = move |at: u16| (home + (turn + at) % RELAYS_OF_WORLD) % relays;
    (0..3).map(move |at| (relay(at), 1000 * u32::from(at)))
}

impl AdmitRow {
    /// What is above its limit.
    fn excesses(&self) -> Vec<String> {
        let memory = (self.memory_bytes > self.memory_allowed_bytes).then(|| "memory".to_owned());
        let lost = (self.lost > 0).then(|| format!("{} members are lost", self.lost));
        memory.into_iter().chain(lost).collect()
    }
}

const COLUMNS: [Column<AdmitRow>; 11] = [
    ("at", |row| if row.at == At::Core { "core" } else { "daemon" }.to_owned()),
    ("joins/s", |row| format!("{:.0}", row.joins_per_second)),
    ("joins/core-s", |row| format!("{:.0}", row.joins_per_core_second)),
    ("p50 ms", |row| or_nothing(row.join_p50_ms, 1)),
    ("p99 ms", |row| or_nothing(row.join_p99_ms, 1)),
    ("renewals/core-s", |row| or_nothing(row.renewals_per_core_second, 0)),
    ("leaves/core-s", |row| or_nothing(row.leaves_per_core_second, 0)),
    ("asked again", |row| row.asked_again.to_string()),
    ("MiB", |row| format!("{}", row.memory_bytes >> 20)),
    ("started again ms", |row| format!("{:.0}", row.started_again_ms)),
    ("lost", |row| row.lost.to_string()),
];

fn or_nothing(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_relay_has_more_worlds_than_it_carries() {
        for worlds in [1, 200, 2_000, 10_000, 20_000] {
            let at = (0..10 * worlds).flat_map(|number| {
                near(number, worlds).map(move |(relay, _)| (relay, number % worlds))
            });
            let at: BTreeSet<(u16, u32)> = at.collect();
            let of = |relay| at.range((relay, 0)..=(relay, u32::MAX)).count();
            let most = (0..relays(worlds)).map(of).max();
            assert!(most <= Some(640), "{worlds} worlds: {most:?} at one relay");
        }
        assert_eq!((relays(2_000), relays(10_000)), (16, 63));
    }

    #[test]
    fn memory_has_a_limit_and_no_member_may_be_lost() {
        let excesses = |memory_bytes, lost| {
            let row = AdmitRow {
                at: At::Core,
                endpoints: 1,
                worlds: 1,
                relays: 16,
                joins_per_second: 1.0,
                joins_per_core_second: 1.0,
                join_p50_ms: None,
                join_p99_ms: None,
                renewals_per_core_second: None,
                leaves_per_core_second: None,
                asked_again: 0,
                memory_bytes,
                memory_allowed_bytes: MEMORY_ALLOWED,
                started_again_ms: 1.0,
                lost,
            };
            row.excesses().len()
        };
        assert_eq!(excesses(MEMORY_ALLOWED, 0), 0);
        assert_eq!(excesses(MEMORY_ALLOWED + 1, 0), 1);
        assert_eq!(excesses(MEMORY_ALLOWED, 1), 1);
    }
}
