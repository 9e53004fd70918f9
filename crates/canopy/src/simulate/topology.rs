//! `canopy sim --topology`: the control plane and the data plane on a network.

use super::{WorldArgs, judged};
use crate::output::{print_line, print_note};
use anyhow::Context;
use canopy_plan::Network;
use canopy_sim::{TopologyConfig, TopologyReport, run_topology};
use std::path::Path;
use std::process::ExitCode;

/// The exit status if the network cannot be simulated so: nothing was run.
const REFUSED: u8 = 2;

/// Runs one seed on the network of a file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn run(file: &Path, args: &WorldArgs) -> anyhow::Result<ExitCode> {
    let shown = file.display();
    let content = std::fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    let network = match Network::from_file(file, &content) {
        Ok(network) => network,
        Err(error) => return Ok(refused(&format!("in {shown}: {error}"))),
    };
    for note in network.notes() {
        print_note(format_args!("{shown}: {note}"));
    }
    let mut config = TopologyConfig::new(&shown.to_string(), args.seed);
    if args.load == Some(true) {
        config = config.with_load();
    }
    config.participants = args.participants;
    config.degree = args.degree.map_or(0, usize::from);
    config.core = args.core.unwrap_or_default().into();
    config.seconds = args.seconds.unwrap_or(config.seconds);
    (config.improve, config.periodic, config.operator) =
        (args.improve, args.periodic, args.operator);
    let report = match run_topology(&network, &config) {
        Ok(report) => report,
        Err(error) => return Ok(refused(&error)),
    };
    match args.json {
        true => print_line(serde_json::to_string(&report)?)?,
        false => print_line(in_words(&report))?,
    }
    Ok(judged(report.verdict()))
}

fn refused(why: &str) -> ExitCode {
    print_note(format_args!("error: {why}"));
    ExitCode::from(REFUSED)
}

fn in_words(report: &TopologyReport) -> String {
    let words = run_in_words(report);
    match &report.load {
        Some(load) => format!("{words}\n{}", load_in_words(report, load)),
        None => words,
    }
}

fn load_in_words(report: &TopologyReport, load: &str) -> String {
    format!(
        "{load}\n\
         {} refused for want of room; {} of {} links, each way, were full, {:.1} % of what may be reserved at most; links bore \
         {:.1} % of what they bear at most, and {:.1} % of what may pass by what is reserved; {} dropped, {} late",
        report.refused_for_room,
        report.links_full,
        report.links_carrying,
        100.0 * report.most_reserved,
        100.0 * report.fullest_link,
        100.0 * report.fullest_of_reserved,
        report.dropped_within_limits,
        report.late,
    )
}

fn run_in_words(report: &TopologyReport) -> String {
    format!(
        "seed {} on {}: {} relays with {} links in {} parts, {} participants in {} worlds for {} s\n\
         {} updates published; deliveries: {} expected, {} made, {} excused, {} missing, {} \
         duplicates and {} excused, {} unexpected, {} out of order\n\
         {} faults, {} lives of the controller; links made {}, taken away {}, down {}; relays lost {}, found {}; trees: {} \
         reshaped, {} broken, meshes of {} links at most; {} admitted, {} refused, {} left, {} moved\n\
         planned: {} better trees; by the operator: {} worlds moved, {} links removed, {} relays drained; ticks of worlds: \
         {:?} ms\n\
         trace hash {}",
        report.seed,
        report.topology,
        report.relays,
        report.links,
        report.components,
        report.participants,
        report.worlds,
        report.virtual_seconds,
        report.updates_published,
        report.deliveries_expected,
        report.deliveries,
        report.deliveries_excused,
        report.missing,
        report.duplicates,
        report.duplicates_excused,
        report.unexpected,
        report.out_of_order,
        report.faults,
        report.controllers,
        report.links_added,
        report.links_removed,
        report.links_down,
        report.relays_lost,
        report.relays_found,
        report.reshaped,
        report.broken,
        report.meshed,
        report.admitted,
        report.refused,
        report.left,
        report.moved,
        report.improved,
        report.worlds_moved,
        report.links_leaving,
        report.drained,
        report.ticks_ms,
        report.trace_hash,
    )
}
