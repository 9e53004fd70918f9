//! `canopy sim`: a seeded world in virtual time.

use crate::output::{print_line, print_note};
use canopy_sim::{Report, SimConfig};
use clap::Args;
use std::process::ExitCode;

/// Runs the real relay and the real sessions on a seeded virtual network: participants join, walk,
/// leave, crash and move to other addresses, the network loses and reorders, strangers attack, the
/// relay restarts. A reference model says what had to be delivered. The same seed gives the same
/// run, to the bit: compare trace_hash. The exit status is 1 if anything was wrong.
#[derive(Args)]
pub(crate) struct SimCommand {
    /// Decides everything that is not fixed by another flag
    #[arg(long, value_name = "N")]
    seed: u64,
    /// How many participants; drawn from the seed if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    participants: Option<u32>,
    /// Virtual seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl SimCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut config = SimConfig::new(self.seed);
        config.participants = self.participants;
        config.seconds = self.seconds.unwrap_or(config.seconds);
        let report = canopy_sim::run(&config);
        if self.json {
            print_line(serde_json::to_string(&report)?)?;
        } else {
            print_line(in_words(&report))?;
        }
        Ok(match report.verdict() {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                print_note(format_args!("{problem}"));
                ExitCode::FAILURE
            }
        })
    }
}

fn in_words(report: &Report) -> String {
    format!(
        "seed {}: {} participants for {} s, {}, {}, {} data thread(s)\n\
         {} updates published; deliveries: {} expected, {} made, {} missing, {} duplicates, {} \
         unexpected, {} out of order\n\
         {} relay restarts, {} rebinds, {} leaves, {} crashes, {} attacks\n\
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
        report.trace_hash,
    )
}
