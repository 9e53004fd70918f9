//! `canopy bench capacity`: the question that the groupcast paper leaves open (§7), whether its
//! framework predicts the users that a real server carries.
//!
//! A relay is measured at two light loads; what its work costs follows from them (eq. 7, 13 and 15),
//! and from that the most users whose updates are out in time. Then the load is raised until they
//! are not. A machine whose speed changes between the two would be taken for an error of the model,
//! so all cases are gone through in several rounds, and medians told.

mod look;

use crate::noise::{ksoftirqd, median};
use crate::relay::cases::{Case, ModeName, Scenario};
use crate::relay::load::{Load, Side, WARM_UP};
use crate::table::{Column, table};
use crate::{Processors, flag_value};
use anyhow::bail;
use canopy_engines::{EngineChoice, EngineName};
use canopy_net::{process_cpu_time, thread_cpu_time};
use canopy_node::{Command, NodeConfig, RunningRelay};
use canopy_output::{print_line, print_note};
use canopy_plan::BundledServer;
use canopy_relay::Mode;
use canopy_wire::SAFE_DATAGRAM;
use clap::Args;
use look::{Look, by_equation_1, costs};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Users of the first look.
const FIRST_LOOK: f64 = 60.0;
/// Shares of the capacity that it suggests at which the relay is then measured, and how many times
/// longer the updates are there: at the second, a receiver gets about the bytes that it would get
/// at capacity, so that their cost need not be guessed from smaller ones.
const MEASURED_AT: [(f64, u32); 2] = [(0.35, 1), (0.6, 2)];
/// The longest update that is sent.
const MOST_BYTES: u32 = 1000;
/// How often each load is measured, before the true number is searched for and again after.
const LOOKS: usize = 2;
/// A relay that keeps fewer of its ticks is late: some it misses for the machine's hiccups.
const MOST_TICKS: f64 = 0.95;
/// The true number is found to this share of the predicted one.
const STEP: f64 = 0.04;
/// The status of a data thread is this old at most.
const STATUS_AGE: Duration = Duration::from_millis(250);
/// More users than this are not tried.
const MOST_USERS: f64 = 4000.0;

/// Predicts how many users a relay with one data thread carries on this machine, in both modes and
/// with several engines, and finds the true number by raising the load until updates are late.
/// Every user publishes 20 updates a second to all the others. In time is, in immediate mode, a mean
/// age of at most T; in periodic mode, what a tick of T sends before the next one.
#[derive(Args)]
pub(crate) struct CapacityBench {
    /// Bytes of an update
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(12..=MOST_BYTES as i64))]
    bytes: u32,
    /// Milliseconds that an update may take on average, and between the ticks of the periodic mode.
    /// With more, one processor's load is no match for one relay
    #[arg(long, value_name = "T", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=50))]
    t_ms: u64,
    /// Send engines
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["sendto", "gso"])]
    engine: Vec<EngineName>,
    /// Rounds: in each, every mode with every engine is predicted and found
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// One mode with one engine, medians over the rounds.
#[derive(Serialize)]
struct CapacityRow {
    mode: ModeName,
    engine: &'static str,
    bytes: u32,
    /// The deadline or the tick.
    t_ms: u64,
    rounds: u32,
    /// What the relay's work was found to cost, in the round whose prediction is the median.
    costs: BundledServer,
    predicted: f64,
    /// What eq. 1 says, with the same costs: every message sent to all on its own.
    predicted_eq1: Option<f64>,
    measured: f64,
    /// The most that the load generator was busy where updates were late: close to 1, the relay may
    /// carry more than was measured.
    load_busy: f64,
    /// (predicted − measured) / measured, of the same round.
    error: f64,
    error_min: f64,
    error_max: f64,
}

/// One round of it.
struct Round {
    costs: BundledServer,
    predicted: f64,
    measured: f64,
    load_busy: f64,
}

/// A relay in this process and what is asked of it.
struct Trial<'a> {
    bench: &'a CapacityBench,
    mode: ModeName,
    engine: EngineName,
    relay_on: usize,
    ksoftirqd: Option<u32>,
}

impl CapacityBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.5..=60.0).contains(&self.seconds) {
            bail!("--seconds {} is out of range; choose 0.5 to 60", self.seconds);
        }
        let relay_on = Processors::take()?.relay_on[0];
        let ksoftirqd = ksoftirqd(relay_on);
        let mut trials = Vec::new();
        for mode in [ModeName::Immediate, ModeName::Periodic] {
            for engine in &self.engine {
                let trial = Trial { bench: &self, mode, engine: *engine, relay_on, ksoftirqd };
                trials.push((trial, Vec::new()));
            }
        }
        for number in 1..=self.rounds {
            for (trial, rounds) in &mut trials {
                let (mode, engine) = (flag_value(trial.mode), trial.engine);
                print_note(format_args!("round {number} of {}: {mode}, {engine}", self.rounds));
                rounds.push(trial.round()?);
            }
        }
        let rows: Vec<CapacityRow> =
            trials.into_iter().map(|(trial, rounds)| trial.row(rounds)).collect();
        if !self.json {
            print_line(in_words(&rows))?;
        }
        for row in rows.iter().filter(|_| self.json) {
            print_line(serde_json::to_string(row)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Trial<'_> {
    /// Predicts the number of users, and finds it. The light loads are measured before and after, so
    /// that a machine that became faster or slower did so for both.
    fn round(&self) -> anyhow::Result<Round> {
        let first = || self.look(FIRST_LOOK, self.bench.bytes);
        let mut looks = vec![first()?, first()?];
        let rough = self.predict(&looks).predicted.min(MOST_USERS);
        let loads = MEASURED_AT.map(|(share, longer)| {
            ((rough * share).round(), (self.bench.bytes * longer).min(MOST_BYTES))
        });
        self.look_at(loads, &mut looks)?;
        let predicted = self.predict(&looks).predicted;
        let (measured, load_busy) = most_in_time(predicted, |users| self.load_where_late(users))?;
        self.look_at(loads, &mut looks)?;
        let round = Round { measured, load_busy, ..self.predict(&looks) };
        print_note(format_args!(
            "    predicted: {:.0} users; found: {measured:.0}",
            round.predicted
        ));
        Ok(round)
    }

    /// Measures the loads a few times in turn.
    fn look_at(&self, loads: [(f64, u32); 2], looks: &mut Vec<Look>) -> anyhow::Result<()> {
        for _ in 0..LOOKS {
            for (users, bytes) in loads {
                looks.push(self.look(users, bytes)?);
            }
        }
        Ok(())
    }

    fn predict(&self, looks: &[Look]) -> Round {
        // The others send one datagram at a time.
        let together = matches!(self.engine, EngineName::Gso | EngineName::Uring);
        let costs = costs(looks, (!together).then_some(SAFE_DATAGRAM as f64));
        let predicted = costs.most_users(self.bench.t_ms as f64);
        Round { costs, predicted, measured: 0.0, load_busy: 0.0 }
    }

    fn row(&self, mut rounds: Vec<Round>) -> CapacityRow {
        let error = |round: &Round| round.predicted / round.measured - 1.0;
        let errors: Vec<f64> = rounds.iter().map(error).collect();
        let found: Vec<f64> = rounds.iter().map(|round| round.measured).collect();
        let load_busy = rounds.iter().map(|round| round.load_busy).fold(0.0, f64::max);
        rounds.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
        let Round { costs, predicted, .. } = rounds[(rounds.len() - 1) / 2];
        CapacityRow {
            mode: self.mode,
            engine: self.engine.name(),
            bytes: self.bench.bytes,
            t_ms: self.bench.t_ms,
            rounds: self.bench.rounds,
            costs,
            predicted,
            predicted_eq1: (self.mode == ModeName::Immediate).then(|| by_equation_1(&costs)),
            measured: median(&found),
            load_busy,
            error: median(&errors),
            error_min: errors.iter().copied().fold(f64::INFINITY, f64::min),
            error_max: errors.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// How busy the load was, if updates were late under it.
    fn load_where_late(&self, users: f64) -> anyhow::Result<Option<f64>> {
        let look = self.look(users, self.bench.bytes)?;
        let in_time = match self.mode {
            ModeName::Immediate => look.age_ms <= self.bench.t_ms as f64,
            ModeName::Periodic => look.ticks_kept(self.bench.t_ms as f64) >= MOST_TICKS,
        };
        print_note(format_args!(
            "    {users:.0} users: busy {:.0} %, the load {:.0} %, mean age {:.2} ms, {:.0} flushes a \
             second{}",
            look.busy_ms / look.elapsed_ms * 100.0,
            look.load_busy * 100.0,
            look.age_ms,
            look.flushes / look.elapsed_ms * 1000.0,
            if in_time { "" } else { ": late" },
        ));
        Ok((!in_time || look.lost > 0).then_some(look.load_busy))
    }

    /// A relay with one data thread on its processor, on a free port of this machine.
    fn node(&self) -> NodeConfig {
        NodeConfig {
            mode: match self.mode {
                ModeName::Immediate => Mode::Immediate,
                ModeName::Periodic => {
                    Mode::Periodic { tick: Duration::from_millis(self.bench.t_ms) }
                }
            },
            engine: EngineChoice::Named(self.engine),
            drain: Duration::ZERO,
            pin: vec![self.relay_on],
            ..NodeConfig::loopback()
        }
    }

    /// Runs a relay under the load of so many users and updates so long.
    fn look(&self, users: f64, bytes: u32) -> anyhow::Result<Look> {
        let relay = RunningRelay::start(&self.node())?;
        let watch = relay.watch();
        let case = Case {
            scenario: Scenario::Crowd,
            n: users as usize,
            bytes: bytes as usize,
            mode: self.mode,
            tick_ms: self.bench.t_ms,
            receivers_gro: true,
        };
        let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut load = Load::join(Side::Relay, &case, from, &[relay.address()])?;
        let time = Duration::from_secs_f64(self.bench.seconds);
        let softirq = || self.ksoftirqd.map_or(Duration::ZERO, process_cpu_time_of);
        let (started, load_cpu, softirq_before) = (Instant::now(), thread_cpu_time(), softirq());
        let (ran, [before, after]) = std::thread::scope(|scope| {
            let statuses = scope.spawn(|| {
                [WARM_UP + STATUS_AGE, time - STATUS_AGE].map(|wait| {
                    std::thread::sleep(wait);
                    watch.status()
                })
            });
            let ran = load.run(&[std::process::id()], time);
            (ran, statuses.join().unwrap_or_default())
        });
        let load_cpu = thread_cpu_time().saturating_sub(load_cpu);
        let share = |time: Duration| time.as_secs_f64() / started.elapsed().as_secs_f64();
        let softirq_busy = share(softirq().saturating_sub(softirq_before));
        let load_busy = share(load_cpu);
        watch.command(Command::Stop);
        relay.join()?;
        let measured = ran?;
        Ok(Look {
            users,
            age_ms: measured.ages.mean() / 1e6,
            lost: measured.lost(),
            load_busy,
            ..Look::between(&before, &after, softirq_busy)
        })
    }
}

fn process_cpu_time_of(process: u32) -> Duration {
    process_cpu_time(process).unwrap_or_default()
}

/// Raises the load in steps until updates are late, and lowers it where they are from the start.
/// Returns the most users whose updates are in time, and how busy the load was beyond.
fn most_in_time(
    predicted: f64,
    load_where_late: impl Fn(f64) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<(f64, f64)> {
    let step = (predicted * STEP).max(1.0);
    let mut users = (predicted * 0.9).round();
    while load_where_late(users)?.is_some() {
        users = (users * 0.85).floor();
        if users <= step {
            bail!("updates are late with {users} users too; choose a larger --t-ms");
        }
    }
    let mut carried = users;
    let mut late = Vec::new();
    // One late run may be a disturbance; two in a row are the limit.
    while late.len() < 2 {
        users += step;
        if users > MOST_USERS {
            bail!(
                "updates are in time with {carried:.0} users still, and more than {MOST_USERS} \
                 are not tried; choose a smaller --t-ms or more --bytes"
            );
        }
        match load_where_late(users.round())? {
            Some(load_busy) => late.push(load_busy),
            None => {
                carried = users.round();
                late.clear();
            }
        }
    }
    Ok((carried, late.into_iter().fold(0.0, f64::max)))
}

fn in_words(rows: &[CapacityRow]) -> String {
    let columns: [Column<CapacityRow>; 9] = [
        ("mode", |row| flag_value(row.mode)),
        ("engine", |row| row.engine.to_owned()),
        ("bytes", |row| row.bytes.to_string()),
        ("T", |row| format!("{} ms", row.t_ms)),
        ("predicted", |row| format!("{:.0}", row.predicted)),
        ("measured", |row| format!("{:.0}", row.measured)),
        ("load busy", |row| format!("{:.0} %", row.load_busy * 100.0)),
        ("error (range)", |row| {
            let [error, min, max] = [row.error, row.error_min, row.error_max].map(|e| e * 100.0);
            format!("{error:+.1} % ({min:+.1} to {max:+.1})")
        }),
        ("by eq. 1", |row| row.predicted_eq1.map_or(String::new(), |n| format!("{n:.0}"))),
    ];
    table(rows, &columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_found_wherever_it_was_predicted() {
        for limit in [20.0, 100.0, 700.0] {
            for predicted in [0.3 * limit, limit, 3.0 * limit] {
                let late = |users: f64| Ok((users > limit).then_some(users / limit));
                let (found, busy) = most_in_time(predicted, late).unwrap();
                let step = (predicted * STEP).max(1.0);
                assert!(found <= limit && found > limit - step - 1.0, "{found} of {limit}");
                assert!(busy > 1.0);
            }
        }
    }

    #[test]
    fn a_limit_that_is_not_reached_is_not_named() {
        for predicted in [1.0, 5.0, 60.0, 2000.0] {
            let error = most_in_time(predicted, |_| Ok(Some(0.5))).unwrap_err().to_string();
            assert!(error.contains("larger --t-ms"), "{error}");
            let error = most_in_time(predicted, |_| Ok(None)).unwrap_err().to_string();
            assert!(error.contains("smaller --t-ms"), "{error}");
        }
    }
}
