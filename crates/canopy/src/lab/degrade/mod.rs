//! `canopy lab degrade`: what viewers see of a crowd when their budgets do not hold all of it.

mod bed;
mod pictures;
mod verdict;
mod words;

use super::files::COMTREE;
use crate::bots::stop_on_interrupt;
use crate::output::{chart, print_line, print_note};
use anyhow::Context;
use bed::Bed;
use canopy_bots::degrade::{
    DegradeConfig, Measured, Phases, Row, Scheme, Script, Stage, Summary, check_budgets, measure,
    run,
};
use canopy_bots::{Generated, Trace};
use canopy_client::weight_at;
use canopy_output::verdict::conclude;
use canopy_wire::Comtree;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Walks a recorded crowd, or one that it makes up, through a relay of its own on loopback. Each walker
/// publishes its positions to a group of its own. Viewers at the places of those walkers that stay longest
/// are subscribed to all others, with weights by distance that follow both, and each has a budget, in
/// percent of what it is sent without one. What comes is held against the fair share of each walker, as a
/// fluid model of weighted max-min rates has it.
#[derive(Args)]
pub(super) struct DegradeCommand {
    /// The trace: CSV with columns t,id,x,y, plain or .gz; without it a hundred walkers are made up
    #[arg(long, value_name = "FILE[.csv|.csv.gz]")]
    trace: Option<PathBuf>,
    /// The viewers' budgets, in percent of their demand
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',',
          default_values_t = [100.0, 50.0, 25.0, 10.0, 5.0])]
    budgets: Vec<f64>,
    /// Viewers at each budget
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    viewers: u16,
    /// Seconds that count, of the densest part of the trace; seven are played beside them
    #[arg(long, value_name = "S", default_value_t = 40,
          value_parser = clap::value_parser!(u16).range(2..=3600))]
    seconds: u16,
    /// Bytes of an update
    #[arg(long, value_name = "B", default_value_t = 80)]
    bytes: usize,
    /// Give the budgets to a link between two relays in place of the viewers: the crowd is at one end, the
    /// viewers at the other. Each budget has a run of its own
    #[arg(long)]
    bottleneck: bool,
    /// Print rows and summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Where the table and the pictures go; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A crowd that is made up: as many as in the recorded ones, on a large square.
const WALKERS: u32 = 100;
const SIDE: f64 = 40.0;
const RATE: f64 = 10.0;
/// Square metres of a walker.
const AVATAR: f32 = 1.0;
/// The relay's tick.
const TICK: Duration = Duration::from_millis(50);
/// Seconds between two notes of how far it is.
const NOTE_EVERY: u64 = 5;
/// What the relay grants every flow, updates a second.
const FLOOR: f64 = 0.5;

/// What is printed with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    rows: Vec<&'a Row>,
    summary: &'a Summary,
}

impl DegradeCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            chart::make_folder(out, "--out")?;
        }
        let (seconds, viewers) = (f64::from(self.seconds), self.viewers.into());
        let script = Script::new(&self.trace()?, seconds, viewers, Phases::default())?;
        let measured = self.play(&script)?;
        if let Some(out) = &self.out {
            pictures::write(out, &measured)?;
        }
        if self.json {
            let ours = measured.shares.iter().filter(|shares| shares.scheme == Scheme::Ours);
            let rows = ours.flat_map(|shares| &shares.rows).collect();
            print_line(serde_json::to_string(&Report { rows, summary: &measured.summary })?)?;
        } else {
            print_line(words::table(&measured))?;
        }
        print_note(verdict::not_judged(self.bottleneck));
        let tick_ms = TICK.as_secs_f64() * 1000.0;
        Ok(conclude(&verdict::findings(&measured.summary, tick_ms, self.bottleneck)))
    }

    fn trace(&self) -> anyhow::Result<Trace> {
        let Some(path) = &self.trace else {
            let seconds = f64::from(self.seconds) + Phases::default().seconds() + 1.0;
            let crowd = Generated { seed: 1, walkers: WALKERS, side: SIDE, seconds, rate: RATE };
            return Ok(Trace::generate(&crowd));
        };
        Ok(Trace::read(path)?)
    }

    fn play(&self, script: &Script) -> anyhow::Result<Measured> {
        let mut budgets = self.budgets.clone();
        budgets.sort_by(|a, b| b.total_cmp(a));
        budgets.dedup();
        check_budgets(&budgets)?;
        let stop = stop_on_interrupt()?;
        if !self.bottleneck {
            return self.play_at(budgets, script, &stop);
        }
        // A link has one budget at a time.
        let mut sum: Option<Measured> = None;
        for budget in budgets {
            print_note(format_args!("{}: {budget} % of the demand", script.name));
            let measured = self.play_at(vec![budget], script, &stop)?;
            match &mut sum {
                Some(sum) => sum.add(measured),
                None => sum = Some(measured),
            }
        }
        sum.context("--budgets names none; name one at least, like 10")
    }

    /// One run.
    fn play_at(
        &self,
        budgets: Vec<f64>,
        script: &Script,
        stop: &AtomicBool,
    ) -> anyhow::Result<Measured> {
        let bed = if self.bottleneck { Bed::with_link(TICK)? } else { Bed::start(TICK)? };
        let config = DegradeConfig {
            walkers_at: bed.walkers_at(),
            viewers_at: bed.viewers_at(),
            comtree: Comtree(COMTREE),
            budgets,
            is_shared: self.bottleneck,
            bytes: self.bytes,
            weight_of: |distance| weight_at(distance as f32, AVATAR),
            tick: TICK,
            floor: FLOOR,
        };
        config.check()?;
        let note =
            |what: &dyn std::fmt::Display| print_note(format_args!("{}: {what}", script.name));
        let recording = run(&config, script, stop, bed.allow(), |stage| {
            if !matches!(stage, Stage::Measuring { seconds, .. } if seconds % NOTE_EVERY != 0) {
                note(&stage);
            }
        })?;
        bed.stop()?;
        let mut told = 0.0;
        Ok(measure(&recording, |part| {
            if part >= told {
                note(&format_args!("comparing with the fluid model, {:.0} %", part * 100.0));
                told += 0.2;
            }
        }))
    }
}
