//! `canopy sim`: a seeded world in virtual time.

mod scale;
mod topology;

use crate::operate::word;
use crate::output::{print_line, print_note};
use anyhow::ensure;
use canopy_api::CoreRule;
use canopy_sim::{
    FLOODED_BELOW, MAX_RELAYS, OverlayConfig, OverlayReport, Report, SHAPED_SECONDS, SimConfig,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the real relay and the real sessions on a seeded virtual network: participants join, walk,
/// leave, crash and move to other addresses, the network loses and reorders, strangers attack, the
/// relay restarts. With --relays it is a world of many relays: comtrees of every shape over their
/// links, participants who move between them, links that are cut. With --topology it is a controller
/// with a relay at each node of a network: participants join by the controller, and links, relays, the
/// controller and its channels fail. A reference model says what had to be delivered. The same seed gives the same
/// run, to the bit: compare trace_hash. The exit status is 1 if anything was wrong, and 2 if a network cannot be
/// simulated so.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SimCommand {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    world: Option<WorldArgs>,
}

#[derive(Subcommand)]
enum What {
    /// See what worlds of up to thousands of relays cost, against their size
    Scale(scale::ScaleCommand),
}

/// One world of a seed.
#[derive(Args)]
struct WorldArgs {
    /// Decides everything that is not fixed by another flag
    #[arg(long, value_name = "N")]
    seed: u64,
    /// How many relays, 1 to 50; without it, one relay in more detail, with hostile participants and
    /// strangers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RELAYS)))]
    relays: Option<u32>,
    /// A network in a .gml or .toml file: a controller, and a relay at each of its nodes
    #[arg(long, value_name = "FILE", conflicts_with = "relays")]
    topology: Option<PathBuf>,
    /// With --topology: the controller proposes so many links for a relay at most, from delays that relays measure
    /// over the shortest ways; without it, the links of the file are there
    #[arg(long, value_name = "N", requires = "topology", value_parser = clap::value_parser!(u8).range(1..=32))]
    degree: Option<u8>,
    /// How many participants; drawn from the seed if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    participants: Option<u32>,
    /// Whether insiders and strangers send far more than they may for a while; drawn from the seed if not given.
    /// Nobody floods where the seed draws a network that flips bits, nor among 500 participants or more
    #[arg(long, value_name = "BOOL", conflicts_with = "topology")]
    floods: Option<bool>,
    /// With --relays of 2 or more and 28 --seconds or more: whether links have a capacity for a while that is less than
    /// they are to carry; drawn from the seed if not given
    #[arg(long, value_name = "BOOL", requires = "relays")]
    shaping: Option<bool>,
    /// With --topology: whether the controller looks for better trees every few seconds; drawn from the seed if not given
    #[arg(long, value_name = "BOOL", requires = "topology")]
    improve: Option<bool>,
    /// With --topology: whether worlds are in periodic mode; drawn from the seed for each if not given
    #[arg(long, value_name = "BOOL", requires = "topology")]
    periodic: Option<bool>,
    /// With --topology: whether an operator moves worlds, removes links and drains relays; drawn from the seed if not
    /// given
    #[arg(long, value_name = "BOOL", requires = "topology")]
    operator: Option<bool>,
    /// With --topology: which relays of worlds are their cores: 'center', 'center-and-neighbours', 'all' or 'mesh'; the
    /// center if not given
    #[arg(long, value_name = "RULE", requires = "topology", value_parser = word::<CoreRule>)]
    core: Option<CoreRule>,
    /// With --topology: whether everybody sends as much as its limits let through, over links that get full; what they
    /// send and how many they are is drawn from the seed. Then nothing fails or moves, 15 seconds are simulated if
    /// nothing else is asked for, and it is judged that nothing which was let in is dropped or late, and that no link
    /// bears more than what is reserved there
    #[arg(long, value_name = "BOOL", requires = "topology")]
    load: Option<bool>,
    /// With --relays: whether some participants may be sent less than what they want; drawn from the seed if not given
    #[arg(long, value_name = "BOOL", requires = "relays")]
    budgets: Option<bool>,
    /// With --relays: whether some participants mark a part of what they say as important, where links are shaped or
    /// somebody has a budget; drawn from the seed if not given
    #[arg(long, value_name = "BOOL", requires = "relays")]
    important: Option<bool>,
    /// With --relays: whether lower levels go before higher ones, where links are shaped or somebody has a budget; drawn
    /// from the seed if not given
    #[arg(long, value_name = "BOOL", requires = "relays")]
    levels_first: Option<bool>,
    /// Virtual seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl SimCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match (self.what, self.world) {
            (Some(What::Scale(command)), _) => command.run(),
            (None, Some(world)) => world.run(),
            (None, None) => anyhow::bail!("--seed says which world to run"),
        }
    }
}

impl WorldArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        self.check()?;
        if let Some(relays) = self.relays {
            return self.run_overlay(relays);
        }
        if let Some(file) = &self.topology {
            return topology::run(file, &self);
        }
        let mut config = SimConfig::new(self.seed);
        config.participants = self.participants;
        config.seconds = self.seconds.unwrap_or(config.seconds);
        config.floods = self.floods;
        let report = canopy_sim::run(&config);
        if self.json {
            print_line(serde_json::to_string(&report)?)?;
        } else {
            print_line(in_words(&report))?;
        }
        Ok(judged(report.verdict()))
    }

    /// What is asked for and cannot be is refused: the run would be as if it had not been asked for.
    fn check(&self) -> anyhow::Result<()> {
        let participants = self.participants.unwrap_or_default();
        ensure!(
            self.floods != Some(true) || participants < FLOODED_BELOW,
            "--floods true needs fewer than {FLOODED_BELOW} --participants"
        );
        let is_shaped = self.shaping == Some(true);
        let seconds = self.seconds.unwrap_or(SHAPED_SECONDS);
        ensure!(!is_shaped || self.relays != Some(1), "--shaping true needs --relays 2 or more");
        ensure!(
            !is_shaped || seconds >= SHAPED_SECONDS,
            "--shaping true needs --seconds {SHAPED_SECONDS} or more"
        );
        Ok(())
    }

    fn run_overlay(self, relays: u32) -> anyhow::Result<ExitCode> {
        let mut config = OverlayConfig::new(relays, self.seed);
        config.participants = self.participants;
        config.seconds = self.seconds.unwrap_or(config.seconds);
        config.shaping = self.shaping;
        config.budgets = self.budgets;
        config.floods = self.floods;
        config.important = self.important;
        config.levels_first = self.levels_first;
        let start = Instant::now();
        let report = canopy_sim::run_overlay(&config);
        let timed = Timed::new(&report, start.elapsed());
        if self.json {
            print_line(serde_json::to_string(&timed)?)?;
        } else {
            print_line(overlay_in_words(&timed))?;
        }
        Ok(judged(report.verdict()))
    }
}

/// A report, and how long it took to come about.
#[derive(Serialize)]
struct Timed<'a> {
    #[serde(flatten)]
    report: &'a OverlayReport,
    wall_seconds: f64,
    /// Seconds of one core: the simulation has one thread.
    client_seconds_per_second: f64,
}

impl Timed<'_> {
    fn new(report: &OverlayReport, took: Duration) -> Timed<'_> {
        let wall_seconds = took.as_secs_f64();
        let client_seconds_per_second = report.client_seconds / wall_seconds.max(1e-9);
        Timed { report, wall_seconds, client_seconds_per_second }
    }
}

fn judged(verdict: Result<(), String>) -> ExitCode {
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            print_note(format_args!("{problem}"));
            ExitCode::FAILURE
        }
    }
}

fn overlay_in_words(timed: &Timed<'_>) -> String {
    let report = timed.report;
    format!(
        "seed {}: {} relays with {} data threads and {} links, {} participants for {} s, {}, {}\n\
         comtrees: {}\n\
         {} updates published; deliveries: {} expected, {} made, {} excused, {} thinned, {} \
         missing, {} duplicates, {} unexpected, {} out of order\n\
         {} relay restarts, {} link cuts, {} links lost, {} leaves, {} crashes; at most {} routes in a relay\n\
         {} parents succeeded, {} relays joined cores, {} left them, {} steps of roots\n\
         {:.0} client-seconds a second\n\
         trace hash {}",
        report.seed,
        report.relays,
        report.threads,
        report.links,
        report.participants,
        report.virtual_seconds,
        report.mode,
        report.weather,
        report.comtrees.join("; "),
        report.updates_published,
        report.deliveries_expected,
        report.deliveries,
        report.deliveries_excused,
        report.thinned,
        report.missing,
        report.duplicates,
        report.unexpected,
        report.out_of_order,
        report.relay_restarts,
        report.link_cuts,
        report.links_lost,
        report.leaves,
        report.crashes,
        report.most_routes,
        report.parents_succeeded,
        report.joined_core,
        report.left_core,
        report.root_steps,
        timed.client_seconds_per_second,
        report.trace_hash,
    )
}

fn in_words(report: &Report) -> String {
    format!(
        "seed {}: {} participants for {} s, {}, {}, {} data thread(s)\n\
         {} updates published; deliveries: {} expected, {} made, {} missing, {} duplicates, {} \
         unexpected, {} out of order\n\
         {} relay restarts, {} rebinds, {} leaves, {} crashes, {} attacks, {} datagrams of \
         floods\n\
         trace hash {}",
        report.seed,
        report.participants,
        report.virtual_seconds,
        report.mode,
        report.weather,
        report.threads,
        report.updates_published,
        report.deliveries_expected,
        report.deliveries,
        report.missing,
        report.duplicates,
        report.unexpected,
        report.out_of_order,
        report.relay_restarts,
        report.rebinds,
        report.leaves,
        report.crashes,
        report.attacks,
        report.flooded,
        report.trace_hash,
    )
}
