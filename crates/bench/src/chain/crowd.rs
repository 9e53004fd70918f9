//! A recorded crowd on one relay and on a chain, one after the other: what the hops add to the ages.

use super::network::{Layout, Network};
use super::{ChainBench, Core};
use crate::relay::cases::ModeName;
use crate::table::{Column, table};
use crate::{Processors, flag_value};
use canopy_bots::{CrowdConfig, Grid, RelayTarget, Report, Trace};
use canopy_output::{print_line, print_note};
use canopy_wire::Comtree;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Side of a grid cell, and how far a walker sees, metres: what `canopy bots` has unless it is said.
const CELL: f64 = 2.0;
const RADIUS: f64 = 4.0;
/// Who unsubscribes so soon after an update was published may miss it.
const SETTLE: Duration = Duration::from_millis(350);

/// How a crowd fared on one network.
#[derive(Clone, Debug, Serialize)]
struct CrowdRow {
    relays: u16,
    core: Core,
    mode: ModeName,
    /// 0 in immediate mode.
    tick_ms: u16,
    clients: u32,
    deliveries: u64,
    missing: u64,
    duplicates: u64,
    unexpected: u64,
    out_of_order: u64,
    updates_unsent: u64,
    age_p50_us: u64,
    age_p99_us: u64,
    /// Against the single relay's.
    age_p99_ratio: f64,
}

/// Walks the crowd through each network in turn and tells how it fared. Returns whether everything
/// arrived where it must, once and in order.
pub(super) fn run(
    bench: &ChainBench,
    trace: &Path,
    processors: &Processors,
) -> anyhow::Result<bool> {
    let trace = Trace::read(trace)?;
    let mut rows: Vec<CrowdRow> = Vec::new();
    let mut is_flawless = true;
    for layout in bench.layouts(bench.mode.unwrap_or(ModeName::Immediate)) {
        let (relays, core) = (layout.relays, flag_value(layout.core));
        print_note(format_args!(
            "{}: {:.0} s, relays={relays} core={core}",
            trace.name(),
            trace.seconds()
        ));
        let network = Network::start(&layout, processors)?;
        let report = walk(&network, &trace, bench.bytes.into(), layout.tick())?;
        report.findings.iter().for_each(print_note);
        is_flawless &= report.is_flawless();
        let row = CrowdRow::new(&layout, &report, rows.first());
        if bench.json {
            print_line(serde_json::to_string(&row)?)?;
        }
        rows.push(row);
    }
    if !bench.json {
        print_line(CrowdRow::table(&rows))?;
    }
    Ok(is_flawless)
}

fn walk(network: &Network, trace: &Trace, bytes: usize, tick: Duration) -> anyhow::Result<Report> {
    let config = CrowdConfig {
        relays: network.addresses.iter().copied().map(RelayTarget::from).collect(),
        comtree: Comtree(1),
        issuer: None,
        speed: 1.0,
        grid: Grid::new(CELL, RADIUS)?,
        bytes,
        settle: SETTLE + tick,
        hop: canopy_bots::DEFAULT_HOP + tick,
        weigh: None,
        seats: None,
        killed: None,
        controller: None,
        endures: false,
    };
    Ok(canopy_bots::run(&config, trace, None, &AtomicBool::new(false), |_| ())?)
}

impl CrowdRow {
    fn new(layout: &Layout, report: &Report, single: Option<&CrowdRow>) -> CrowdRow {
        let age_p99_us = report.age_us.p99;
        let single = single.map_or(age_p99_us, |single| single.age_p99_us);
        CrowdRow {
            relays: layout.relays,
            core: layout.core,
            mode: layout.mode,
            tick_ms: layout.tick().as_millis() as u16,
            clients: report.clients,
            deliveries: report.verdict.delivered,
            missing: report.verdict.missing,
            duplicates: report.verdict.duplicates,
            unexpected: report.verdict.unexpected,
            out_of_order: report.verdict.out_of_order,
            updates_unsent: report.updates_unsent,
            age_p50_us: report.age_us.p50,
            age_p99_us,
            age_p99_ratio: age_p99_us as f64 / single.max(1) as f64,
        }
    }

    fn table(rows: &[CrowdRow]) -> String {
        let columns: [Column<CrowdRow>; 11] = [
            ("mode", |row| flag_value(row.mode)),
            ("relays", |row| row.relays.to_string()),
            ("core", |row| flag_value(row.core)),
            ("deliveries", |row| row.deliveries.to_string()),
            ("missing", |row| row.missing.to_string()),
            ("duplicates", |row| row.duplicates.to_string()),
            ("unexpected", |row| row.unexpected.to_string()),
            ("out of order", |row| row.out_of_order.to_string()),
            ("age p50 µs", |row| row.age_p50_us.to_string()),
            ("age p99 µs", |row| row.age_p99_us.to_string()),
            ("ratio", |row| format!("{:.2}", row.age_p99_ratio)),
        ];
        table(rows, &columns)
    }
}
