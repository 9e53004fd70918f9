//! `canopy bench flood`: what a flood costs an honest crowd on another comtree.
//!
//! A crowd walks through a real relay process, and an oracle judges every delivery. In the middle
//! half of the walk an attacker, a process of its own, floods the relay in one of several ways.

mod attacker;
mod icmp;

use crate::Processors;
use crate::noise::median;
use crate::relay::Server;
use anyhow::{Context, ensure};
pub(crate) use attacker::Attacker;
use attacker::{Attack, Offered};
use canopy_bots::{CrowdConfig, Generated, Grid, Report, Trace};
use canopy_net::{end_with_parent, process_cpu_time};
use canopy_output::{print_line, print_note};
use canopy_wire::Comtree;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Walks a crowd through a relay, quietly and under floods, and tells what each flood cost it: missing
/// deliveries, lost sessions, and the ages of updates against the quiet walk's. The relay has one
/// data thread on a processor of its own and its usual settings; crowd and attacker share another. So
/// the attacker costs the crowd something by itself: each flood is also sent to a socket that nobody
/// reads. Ends with 1 if a flood cost a delivery that was due, or a session.
#[derive(Args)]
pub(crate) struct FloodBench {
    /// The floods; all unless given, but `icmp` only if it is allowed
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    attack: Vec<Attack>,
    /// Seconds of each walk; the flood lasts for the middle half
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// All floods in one walk
    #[arg(long)]
    together: bool,
    /// The part of each flood's rate that is sent
    #[arg(long, default_value_t = 1.0, value_name = "PART")]
    strength: f64,
    /// Rounds of all walks in turn; ages are medians over them, and what was lost is summed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Walkers, if they are generated
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(2..=1000))]
    walkers: u32,
    /// Walk this recorded crowd, as fast as it was recorded
    #[arg(long, value_name = "FILE[.csv|.csv.gz]", conflicts_with = "walkers")]
    trace: Option<PathBuf>,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// What happens in the middle of a walk.
#[derive(Clone, Copy)]
struct Flood<'a> {
    attacks: &'a [Attack],
    strength: f64,
    /// The relay is not what is flooded.
    is_elsewhere: bool,
}

#[derive(Serialize)]
struct FloodRow {
    /// The flood, `together` for several at once, or `quiet`.
    attack: &'static str,
    /// What follows is summed over the rounds, but for rates, ages and shares: these are medians.
    rounds: usize,
    /// What the attacker sent.
    #[serde(flatten)]
    offered: Offered,
    deliveries: u64,
    missing: u64,
    duplicates: u64,
    unexpected: u64,
    out_of_order: u64,
    updates_unsent: u64,
    reconnects: u64,
    age_p50_us: u64,
    age_p99_us: u64,
    /// Against the quiet walk's.
    age_p99_ratio: f64,
    /// The same ratio, and what was missing, when the flood does not go to the relay.
    age_p99_ratio_elsewhere: Option<f64>,
    missing_elsewhere: Option<u64>,
    /// The share of one processor, over the whole walk.
    relay_cpu_share: f64,
    /// What the relay dropped, by reason.
    drops: BTreeMap<String, u64>,
}

/// Area for each walker, square metres, so that some thirty are in sight.
const AREA_PER_WALKER: f64 = 1.6;
const UPDATES_PER_SECOND: f64 = 16.0;
/// The attacker's comtree; the crowd's is another.
const COMTREES: &str = "1,2";
/// Who unsubscribes so soon after an update was published may miss it.
const SETTLE: Duration = Duration::from_millis(350);

impl FloodBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let processors = Processors::take()?;
        let trace = match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::generate(&Generated {
                seed: 1,
                walkers: self.walkers,
                side: (AREA_PER_WALKER * f64::from(self.walkers)).sqrt(),
                seconds: f64::from(self.seconds),
                rate: UPDATES_PER_SECOND,
            }),
        };
        let attacks = self.attacks();
        let floods: Vec<&[Attack]> =
            if self.together { vec![&attacks] } else { attacks.chunks(1).collect() };
        let mut tallies: Vec<Tally> = floods.iter().map(|_| Tally::default()).collect();
        let mut quiet = Tally::default();
        for round in 1..=self.rounds {
            print_note(format_args!("round {round} of {}", self.rounds));
            let walk = |flood| self.walk(&trace, flood, processors.relay_on[0]);
            let quiet_age = quiet.add(walk(None)?, None);
            for (attacks, tally) in floods.iter().zip(&mut tallies) {
                let flood = |is_elsewhere| Flood { attacks, strength: self.strength, is_elsewhere };
                let elsewhere = walk(Some(flood(true)))?;
                tally.add(walk(Some(flood(false)))?, Some((quiet_age, &elsewhere)));
            }
        }
        let mut is_harmless = true;
        for tally in std::iter::once(quiet).chain(tallies) {
            let row = tally.row().context("no walk was made")?;
            // What is missing without the relay being flooded is the host's own.
            is_harmless &= row.missing <= row.missing_elsewhere.unwrap_or_default();
            is_harmless &= row.updates_unsent == 0 && row.reconnects == 0;
            print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
        }
        Ok(if is_harmless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Those that were asked for, or all that this process may.
    fn attacks(&self) -> Vec<Attack> {
        if !self.attack.is_empty() {
            return self.attack.clone();
        }
        let (allowed, left_out): (Vec<Attack>, Vec<Attack>) =
            Attack::value_variants().iter().partition(|attack| attack.is_allowed());
        for attack in left_out {
            print_note(format_args!(
                "{} is left out: it takes root, or CAP_NET_RAW",
                attack.name()
            ));
        }
        allowed
    }

    fn walk(
        &self,
        trace: &Trace,
        flood: Option<Flood<'_>>,
        relay_on: usize,
    ) -> anyhow::Result<FloodRow> {
        let name = flood.map_or("quiet", Flood::name);
        let place = if flood.is_some_and(|flood| flood.is_elsewhere) { " elsewhere" } else { "" };
        print_note(format_args!("{name}{place}: {:.0} s", trace.seconds()));
        let pin = relay_on.to_string();
        let server =
            Server::start_relay(&["--threads", "1", "--pin", &pin, "--comtree", COMTREES])?;
        let cpu = process_cpu_time(server.process())?;
        let length = trace.seconds();
        let start = |flood: Flood<'_>| flood.start(&server, (length / 4.0, length / 2.0));
        let attackers = flood.map_or(Ok(Vec::new()), start)?;
        let config = CrowdConfig {
            relays: vec![server.address.into()],
            comtree: Comtree(1),
            issuer: None,
            speed: 1.0,
            grid: Grid::new(2.0, 4.0)?,
            bytes: 100,
            settle: SETTLE,
            hop: canopy_bots::DEFAULT_HOP,
            weigh: None,
            seats: None,
            killed: None,
            controller: None,
            endures: false,
        };
        let report = canopy_bots::run(&config, trace, None, &AtomicBool::new(false), |_| ())?;
        let cpu = process_cpu_time(server.process())?.saturating_sub(cpu);
        let offered = attackers.into_iter().map(offered_by).sum::<anyhow::Result<Offered>>()?;
        Ok(FloodRow::new(name, offered, &report, cpu, server.stop()?))
    }
}

impl Flood<'_> {
    fn name(self) -> &'static str {
        if let [attack] = self.attacks { attack.name() } else { "together" }
    }

    /// Starts attackers that wait, flood, tell what they have sent, and end.
    fn start(self, server: &Server, (wait, length): (f64, f64)) -> anyhow::Result<Vec<Child>> {
        let start = |attack: &Attack| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "attacker", "--what", attack.name()]);
            command.args(["--relay", &server.address.to_string()]);
            command.args(["--wait", &wait.to_string(), "--seconds", &length.to_string()]);
            command.args(["--strength", &self.strength.to_string()]);
            if self.is_elsewhere {
                command.arg("--elsewhere");
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            end_with_parent(&mut command).spawn().context("cannot start an attacker")
        };
        self.attacks.iter().map(start).collect()
    }
}

/// The walks under one flood.
#[derive(Default)]
struct Tally {
    walks: Vec<FloodRow>,
}

impl Tally {
    /// Adds a walk, with the age of the round's quiet walk and the one whose flood went elsewhere.
    /// Returns this one's age.
    fn add(&mut self, mut walk: FloodRow, others: Option<(u64, &FloodRow)>) -> u64 {
        let age = walk.age_p99_us;
        if let Some((quiet, elsewhere)) = others {
            let quiet = quiet.max(1) as f64;
            walk.age_p99_ratio = age as f64 / quiet;
            walk.age_p99_ratio_elsewhere = Some(elsewhere.age_p99_us as f64 / quiet);
            walk.missing_elsewhere = Some(elsewhere.missing);
        }
        self.walks.push(walk);
        age
    }

    /// All of them as one; none if there are none.
    fn row(mut self) -> Option<FloodRow> {
        let middle =
            |pick: fn(&FloodRow) -> f64| median(&self.walks.iter().map(pick).collect::<Vec<_>>());
        let offered = Offered {
            packets_per_second: middle(|walk| walk.offered.packets_per_second),
            megabits_per_second: middle(|walk| walk.offered.megabits_per_second),
            updates_heard: middle(|walk| walk.offered.updates_heard as f64) as u64,
        };
        let is_flood = self.walks.first()?.age_p99_ratio_elsewhere.is_some();
        let elsewhere = middle(|walk| walk.age_p99_ratio_elsewhere.unwrap_or_default());
        let medians = FloodRow {
            rounds: self.walks.len(),
            offered,
            age_p50_us: middle(|walk| walk.age_p50_us as f64) as u64,
            age_p99_us: middle(|walk| walk.age_p99_us as f64) as u64,
            age_p99_ratio: middle(|walk| walk.age_p99_ratio),
            age_p99_ratio_elsewhere: is_flood.then_some(elsewhere),
            relay_cpu_share: middle(|walk| walk.relay_cpu_share),
            ..self.walks.pop()?
        };
        Some(self.walks.iter().fold(medians, FloodRow::plus))
    }
}

fn offered_by(attacker: Child) -> anyhow::Result<Offered> {
    let output = attacker.wait_with_output()?;
    ensure!(output.status.success(), "the attacker failed");
    serde_json::from_slice(&output.stdout).context("the attacker did not say what it has sent")
}

impl FloodRow {
    fn new(
        attack: &'static str,
        offered: Offered,
        report: &Report,
        cpu: Duration,
        drops: BTreeMap<String, u64>,
    ) -> FloodRow {
        let verdict = &report.verdict;
        FloodRow {
            attack,
            rounds: 1,
            offered,
            deliveries: verdict.delivered,
            missing: verdict.missing,
            duplicates: verdict.duplicates,
            unexpected: verdict.unexpected,
            out_of_order: verdict.out_of_order,
            updates_unsent: report.updates_unsent,
            reconnects: report.reconnects,
            age_p50_us: report.age_us.p50,
            age_p99_us: report.age_us.p99,
            age_p99_ratio: 1.0,
            age_p99_ratio_elsewhere: None,
            missing_elsewhere: None,
            relay_cpu_share: cpu.as_secs_f64() / report.seconds,
            drops,
        }
    }

    /// With what another walk lost and dropped.
    fn plus(mut self, other: &FloodRow) -> FloodRow {
        self.deliveries += other.deliveries;
        self.missing += other.missing;
        self.duplicates += other.duplicates;
        self.unexpected += other.unexpected;
        self.out_of_order += other.out_of_order;
        self.updates_unsent += other.updates_unsent;
        self.reconnects += other.reconnects;
        self.missing_elsewhere =
            self.missing_elsewhere.zip(other.missing_elsewhere).map(|(a, b)| a + b);
        for (reason, dropped) in &other.drops {
            *self.drops.entry(reason.clone()).or_default() += dropped;
        }
        self
    }

    fn in_words(&self) -> String {
        let FloodRow { attack, offered, missing, reconnects, .. } = self;
        format!(
            "{attack:<9} {:>9.0} packets/s, {:>6.0} Mbit/s: missing {missing} of {}, {reconnects} \
             sessions lost, age p99 {} µs ({:.2} × quiet{}), relay {:.0} % of a processor, dropped {:?}",
            offered.packets_per_second,
            offered.megabits_per_second,
            self.deliveries + missing,
            self.age_p99_us,
            self.age_p99_ratio,
            self.age_p99_ratio_elsewhere.map_or_else(String::new, |ratio| format!(
                "; {ratio:.2} × if the flood goes elsewhere"
            )),
            self.relay_cpu_share * 100.0,
            self.drops,
        )
    }
}
