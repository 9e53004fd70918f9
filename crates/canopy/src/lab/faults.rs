//! `canopy lab faults`: what a crowd notices when relays, links and the controller fail.

use super::bed::{Bed, name};
use crate::bots::{WalkArgs, stop_on_interrupt};
use crate::output::chart::{self, Chart, Curve, SeriesLabelPosition};
use crate::output::{print_line, print_note};
use anyhow::Context;
use canopy_bots::{CrowdConfig, Generated, Report, Tenth, Trace};
use canopy_client::RelayKey;
use canopy_client::join::Ask;
use canopy_relay::DEFAULT_WORLD;
use canopy_wire::Comtree;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Starts a controller and relays on hosts of their own, which are network namespaces, and walks a crowd
/// through them. One after the other, and by the seed, a relay is killed, a link of the world's tree is
/// cut, the controller is killed, the cable of a relay's host and that of a server's are pulled, and a server is
/// killed; each is made good after a while. An oracle says what is missing, and what came twice. The exit status is 1
/// unless traffic is there again within a second, for those whose relay was killed or has vanished within two, for
/// those on a server within two of its return, nothing is missing otherwise, and nothing came twice. Needs
/// root, `ip` and `tc`.
#[derive(Args)]
pub(super) struct FaultsCommand {
    /// How many relays
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u8).range(3..=32))]
    relays: u8,
    /// How many servers the crowd's walkers are on
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    servers: u8,
    /// How many faults
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    faults: u16,
    /// Megabits a second that each host's cable carries, each way
    #[arg(long, value_name = "MBIT", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Which relays, links and servers fail
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Walk this trace instead of generated walkers, for as long as it lasts
    #[arg(long, value_name = "FILE[.csv|.csv.gz]")]
    trace: Option<PathBuf>,
    /// How many walkers to generate
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(2..=2000))]
    walkers: u32,
    /// Begin to move the world to another root, or to drain a relay, shortly before each fault
    #[arg(long)]
    during_moves: bool,
    #[command(flatten)]
    walk: WalkArgs,
    /// Write faults.csv and faults.svg to this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the rows as one JSON object
    #[arg(long)]
    json: bool,
}

/// The crowd walks for so long before anything fails.
const BEFORE: Duration = Duration::from_secs(8);
/// What fails is made good after so long.
const DOWN: Duration = Duration::from_secs(4);
/// A move or a drain has begun up to so long before something fails: at this many times of it.
const A_MOVE: Duration = Duration::from_millis(1_500);
const OVERLAPS: usize = 6;
/// Once all is up again, the crowd walks for so long before the next fault.
const BETWEEN: Duration = Duration::from_secs(3);
/// A generated crowd walks for so long for each fault.
const OF_A_FAULT: f64 = 14.0;
/// What was on its way when something failed was published at most so long before, milliseconds.
const ON_ITS_WAY_MS: u64 = 200;
/// Who loses its relay has heard it last at most so long before that fails, milliseconds: relays are not silent for longer.
const LAST_HEARD_MS: u64 = 700;
/// Traffic is there again after so long at most, milliseconds; for those whose relay or server failed, the
/// second.
const LIMITS_MS: [u64; 2] = [1_000, 2_000];
/// Kinds of faults take turns.
const KINDS: u16 = 6;
/// A crowd that is later than this, milliseconds, is on a machine that stands still, or is too slow: relays that run there
/// miss each other's signs of life as well.
const STILL_MS: u64 = 500;
/// How finely missing updates are told of, milliseconds.
const STEP_MS: u64 = 100;
/// Area for each generated walker, square metres.
const AREA_PER_WALKER: f64 = 8.0;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Relay(usize),
    Link([usize; 2]),
    Controller,
    /// Its host answers nothing any more.
    Vanished(usize),
    /// The same of a server, with all the walkers on it.
    ServerVanished(usize),
    /// Its process is gone, with all that its walkers knew.
    ServerKilled(usize),
}

/// What has failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    fault: Fault,
    /// When, milliseconds after the trace's zero.
    at_ms: u64,
    /// For so long the server was away that failed.
    away_ms: u64,
}

/// What is under way when something fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// The world moves to this root.
    Move(usize),
    /// This relay is being left.
    Drain(usize),
}

/// A fault, and what the crowd noticed of it.
#[derive(Serialize)]
struct Row {
    fault: &'static str,
    what: String,
    /// When, milliseconds after the trace's zero.
    at_ms: u64,
    /// Walkers that lost their session.
    members: usize,
    /// The longest time that one of them was without, milliseconds; of those on a server that failed, from when it
    /// is there again.
    outage_ms: u64,
    /// How long after the fault the last update was published that is missing between others, to a tenth
    /// of a second. Whoever is on a server that failed is none of those.
    others_ms: u64,
    /// The same, where one of the two was at the relay, or on the server, that failed; there from when it is there
    /// again.
    members_ms: u64,
    /// Pairs of walkers of which one misses something of the other, counted once in a tenth of a second.
    gaps: usize,
    /// Deliveries that came about twice.
    doubled: u64,
    /// Deliveries that came after something that the same publisher sent later.
    overtaken: u64,
}

#[derive(Serialize)]
struct Outcome<'a> {
    seed: u64,
    relays: u8,
    servers: u8,
    walkers: u32,
    faults: &'a [Row],
    /// What is missing before the first fault, what came twice, and what was overtaken.
    gaps_before: usize,
    doubled_before: u64,
    overtaken_before: u64,
    crowd: &'a Report,
}

impl Fault {
    fn kind(self) -> &'static str {
        match self {
            Fault::Relay(_) => "relay killed",
            Fault::Link(_) => "link cut",
            Fault::Controller => "controller killed",
            Fault::Vanished(_) => "relay vanished",
            Fault::ServerVanished(_) => "server vanished",
            Fault::ServerKilled(_) => "server killed",
        }
    }

    fn what(self) -> String {
        match self {
            Fault::Relay(relay) | Fault::Vanished(relay) => name(relay),
            Fault::Link([one, other]) => format!("{} – {}", name(one), name(other)),
            Fault::Controller => String::new(),
            Fault::ServerVanished(server) | Fault::ServerKilled(server) => {
                format!("server-{}", server + 1)
            }
        }
    }

    /// The fault number so-and-so of a seed: kinds take turns.
    fn of(seed: u64, number: u16, bed: &Bed, (relays, servers): (u8, u8)) -> anyhow::Result<Fault> {
        Ok(match number % KINDS {
            0 => Fault::Relay(chance(seed, number, relays.into())),
            1 => {
                let tree = bed.tree()?;
                let place = chance(seed, number, tree.len());
                Fault::Link(*tree.get(place).context("the world has no tree")?)
            }
            2 => Fault::Controller,
            4 => Fault::ServerVanished(chance(seed, number, servers.into())),
            5 => Fault::ServerKilled(chance(seed, number, servers.into())),
            // One that was killed has lost its members to others.
            _ => {
                let serving = bed.serving()?;
                let place = chance(seed, number, serving.len());
                Fault::Vanished(*serving.get(place).context("no relay has members")?)
            }
        })
    }

    /// The server that fails, if it is one.
    fn server(self) -> Option<usize> {
        match self {
            Fault::ServerVanished(server) | Fault::ServerKilled(server) => Some(server),
            _ => None,
        }
    }

    fn happen(self, bed: &mut Bed) -> anyhow::Result<()> {
        match self {
            Fault::Relay(relay) => bed.kill_relay(relay),
            Fault::Link(ends) => bed.cut(ends, true)?,
            Fault::Controller => bed.kill_controller(),
            Fault::Vanished(relay) => bed.unplug(relay, true)?,
            Fault::ServerVanished(server) => bed.unplug_server(server, true)?,
            Fault::ServerKilled(server) => bed.kill_server(server),
        }
        Ok(())
    }

    fn end(self, bed: &mut Bed) -> anyhow::Result<()> {
        match self {
            Fault::Relay(relay) => bed.start_relay(relay),
            Fault::Link(ends) => bed.cut(ends, false),
            Fault::Controller => bed.start_controller(),
            Fault::Vanished(relay) => bed.unplug(relay, false),
            Fault::ServerVanished(server) => bed.unplug_server(server, false),
            Fault::ServerKilled(server) => {
                bed.start_server(server);
                Ok(())
            }
        }
    }
}

impl Under {
    /// What is begun before the fault number so-and-so of a seed: each kind of fault meets both in turn.
    fn of(seed: u64, number: u16, relays: u8) -> Under {
        let relay = chance(!seed, number, relays.into());
        if (number + number / KINDS).is_multiple_of(2) {
            Under::Move(relay)
        } else {
            Under::Drain(relay)
        }
    }

    fn in_words(self) -> String {
        match self {
            Under::Move(root) => format!("the world moves to root {}", name(root)),
            Under::Drain(relay) => format!("{} drains", name(relay)),
        }
    }

    fn begin(self, bed: &Bed) -> anyhow::Result<()> {
        match self {
            Under::Move(root) => bed.begin_move(root),
            Under::Drain(relay) => bed.drain(relay, true),
        }
    }

    fn end(self, bed: &Bed) -> anyhow::Result<()> {
        match self {
            // It ends by itself.
            Under::Move(_) => Ok(()),
            Under::Drain(relay) => bed.drain(relay, false),
        }
    }
}

impl FaultsCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &self.out {
            chart::make_folder(folder, "--out")?;
        }
        let mut bed = Bed::start(self.relays, self.servers, self.rate)?;
        print_note(format_args!("{} relays are up", self.relays));
        let (address, key) = bed.controller();
        let key: RelayKey = key.parse().context("the controller has said no key")?;
        let ask = Ask::new(address.to_string(), key, DEFAULT_WORLD.to_owned());
        let targets = bed.crowd().run(|| canopy_bots::relays_of(&ask))??;
        let (trace, config) = self.walk.prepare(self.trace()?, targets, Comtree(1))?;
        let config = CrowdConfig {
            endures: true,
            controller: Some(ask),
            seats: Some(bed.seats()),
            killed: Some(bed.killed()),
            ..config
        };
        let stop = stop_on_interrupt()?;
        let (faults, report) = self.walk_through(&mut bed, &config, &trace, &stop)?;
        let on_server = |walker, server| bed.server_of(walker) == server;
        let (rows, before) = rows(&faults, &report, on_server);
        if let Some(folder) = &self.out {
            chart::write(folder, "faults", &rows, &picture(&rows, &report))?;
        }
        if self.json {
            let outcome = Outcome {
                seed: self.seed,
                relays: self.relays,
                servers: self.servers,
                walkers: trace.walkers(),
                faults: &rows,
                gaps_before: before.gaps,
                doubled_before: before.doubled,
                overtaken_before: before.overtaken,
                crowd: &report,
            };
            print_line(serde_json::to_string(&outcome)?)?;
        } else {
            print_line(table(&rows, &report))?;
        }
        // Faults of which nothing can be said are none that were mended.
        let are_all_told = rows.len() == usize::from(self.faults) && has_all_gaps(&report);
        if !are_all_told {
            print_note(
                "not all faults are judged: the crowd has gone too soon, or too much is missing",
            );
        }
        if report.late_ms > STILL_MS {
            print_note(format_args!(
                "the crowd was {} ms late: this machine stood still, or is too slow, and what is wrong may be that alone",
                report.late_ms
            ));
        }
        let is_good = before == Before::default()
            && rows.iter().all(Row::is_good)
            && report.is_orderly()
            && are_all_told;
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn trace(&self) -> anyhow::Result<Trace> {
        Ok(match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::generate(&Generated {
                seed: self.seed,
                walkers: self.walkers,
                side: (AREA_PER_WALKER * f64::from(self.walkers)).sqrt(),
                seconds: BEFORE.as_secs_f64() + OF_A_FAULT * f64::from(self.faults),
                rate: 10.0,
            }),
        })
    }

    /// Walks the crowd while one thing after the other fails. Returns what has failed when, and what
    /// became of the crowd.
    fn walk_through(
        &self,
        bed: &mut Bed,
        config: &CrowdConfig,
        trace: &Trace,
        stop: &AtomicBool,
    ) -> anyhow::Result<(Vec<Failed>, Report)> {
        let crowd = bed.crowd();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let walking =
                scope.spawn(|| crowd.run(|| canopy_bots::run(config, trace, None, stop, |_| ())));
            let failed = self.fail(bed, began, &|| walking.is_finished() || is_set(stop));
            stop.store(true, Ordering::Relaxed);
            let report = walking.join().ok().context("the crowd was lost")???;
            let zero = report.zero.as_millis() as u64;
            let mut failed = failed?;
            failed.iter_mut().for_each(|one| one.at_ms = one.at_ms.saturating_sub(zero));
            Ok((failed, report))
        })
    }

    /// Lets one thing after the other fail, until the crowd has ended. Returns when what failed,
    /// milliseconds after the crowd's run began.
    fn fail(
        &self,
        bed: &mut Bed,
        began: Instant,
        has_ended: &dyn Fn() -> bool,
    ) -> anyhow::Result<Vec<Failed>> {
        let mut faults = Vec::new();
        std::thread::sleep(BEFORE);
        for number in 0..self.faults {
            let fault = Fault::of(self.seed, number, bed, (self.relays, self.servers))?;
            let under = self.during_moves.then(|| Under::of(self.seed, number, self.relays));
            if let Some(under) = under {
                print_note(under.in_words());
                under.begin(bed)?;
                let part = chance(self.seed, number, OVERLAPS) as u32;
                std::thread::sleep(A_MOVE * part / OVERLAPS as u32);
            }
            print_note(format_args!("{} {}", fault.kind(), fault.what()));
            let at = began.elapsed();
            fault.happen(bed)?;
            std::thread::sleep(DOWN);
            fault.end(bed)?;
            let was_away = match fault.server() {
                Some(_) => began.elapsed() - at,
                None => Duration::ZERO,
            };
            let [at_ms, away_ms] = [at, was_away].map(|time| time.as_millis() as u64);
            bed.until_whole()?;
            under.map(|under| under.end(bed)).transpose()?;
            std::thread::sleep(BETWEEN);
            if has_ended() {
                print_note("the crowd has gone before all faults; give a longer trace");
                break;
            }
            faults.push(Failed { fault, at_ms, away_ms });
        }
        Ok(faults)
    }
}

impl Row {
    fn is_good(&self) -> bool {
        let [others, members] = LIMITS_MS;
        self.others_ms <= others && self.members_ms.max(self.outage_ms) <= members
    }
}

/// One of so many, at a seed's fault number so-and-so.
pub(super) fn chance(seed: u64, number: u16, of: usize) -> usize {
    // A multiplicative hash: which one fails is to differ, and nothing more.
    let mixed = (seed ^ u64::from(number) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    mixed as usize % of.max(1)
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Before the first fault: who lost its session, what is missing, what came twice, and what was overtaken.
#[derive(Debug, Default, PartialEq, Eq)]
struct Before {
    outages: usize,
    gaps: usize,
    doubled: u64,
    overtaken: u64,
}

/// What was noticed of each fault, and before the first. `on_server` says which walker is on which server.
fn rows(
    faults: &[Failed],
    report: &Report,
    on_server: impl Fn(u32, usize) -> bool,
) -> (Vec<Row>, Before) {
    let row = |failed: &Failed| Row {
        fault: failed.fault.kind(),
        what: failed.fault.what(),
        at_ms: failed.at_ms,
        members: 0,
        outage_ms: 0,
        others_ms: 0,
        members_ms: 0,
        gaps: 0,
        doubled: 0,
        overtaken: 0,
    };
    let mut rows: Vec<Row> = faults.iter().map(row).collect();
    let mut before = Before::default();
    let fault_of =
        |at_ms, allowed| faults.iter().rposition(|failed| at_ms + allowed >= failed.at_ms);
    // For so long that walker's server was away.
    let away_ms = |of: usize, walker: u32| match faults[of].fault.server() {
        Some(server) if on_server(walker, server) => faults[of].away_ms,
        _ => 0,
    };
    let mut members: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); rows.len()];
    for lost in &report.outages {
        let Some(of) = fault_of(lost.at_ms, LAST_HEARD_MS) else {
            before.outages += 1;
            continue;
        };
        members[of].insert(lost.walker);
        // Whoever was killed counts from its return.
        let is_back = matches!(faults[of].fault, Fault::ServerKilled(_));
        let away_ms = if is_back { 0 } else { away_ms(of, lost.walker) };
        let without_ms = lost.ms.saturating_sub(away_ms);
        rows[of].outage_ms = without_ms.max(rows[of].outage_ms);
        rows[of].members = members[of].len();
    }
    for gap in &report.missing {
        let Some(of) = fault_of(gap.until_ms, ON_ITS_WAY_MS) else {
            before.gaps += 1;
            continue;
        };
        let ends = [gap.publisher, gap.receiver];
        let away_ms = ends.map(|who| away_ms(of, who)).into_iter().max().unwrap_or(0);
        let is_of_members = away_ms > 0 || ends.iter().any(|who| members[of].contains(who));
        let row = &mut rows[of];
        let longest = if is_of_members { &mut row.members_ms } else { &mut row.others_ms };
        *longest = gap.until_ms.saturating_sub(row.at_ms + away_ms).max(*longest);
        row.gaps += 1;
    }
    for Tenth { until_ms, deliveries } in &report.doubled {
        match fault_of(*until_ms, ON_ITS_WAY_MS) {
            Some(of) => rows[of].doubled += deliveries,
            None => before.doubled += deliveries,
        }
    }
    for Tenth { until_ms, deliveries } in &report.overtaken {
        match fault_of(*until_ms, ON_ITS_WAY_MS) {
            Some(of) => rows[of].overtaken += deliveries,
            None => before.overtaken += deliveries,
        }
    }
    (rows, before)
}

/// Whether a report has all gaps: of very many, it has the first ones.
fn has_all_gaps(report: &Report) -> bool {
    let last = report.missing.iter().map(|gap| gap.until_ms).max();
    report.last_missing_ms <= last
}

/// Who misses something when, and a line where something failed.
fn picture(rows: &[Row], report: &Report) -> Chart<'static> {
    let mut missing: BTreeMap<u64, f64> = BTreeMap::new();
    for gap in &report.missing {
        // A pause goes back to none beside it.
        let step = gap.until_ms / STEP_MS;
        *missing.entry(step).or_default() += 1.0;
        for beside in [step.saturating_sub(1), step + 1] {
            missing.entry(beside).or_default();
        }
    }
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let most = missing.values().copied().fold(1.0, f64::max);
    let last = report.seconds;
    let missing = [(0.0, 0.0)]
        .into_iter()
        .chain(missing.into_iter().map(|(step, pairs)| (seconds(step * STEP_MS), pairs)))
        .chain([(last, 0.0)]);
    let curve =
        |name: &str, points| Curve { name: name.to_owned(), points, marked: false, fitted: None };
    let mut curves = vec![curve("pairs", missing.collect())];
    let kinds: BTreeSet<_> = rows.iter().map(|row| row.fault).collect();
    for kind in kinds {
        let of_kind = rows.iter().filter(|row| row.fault == kind);
        let at = of_kind.map(|row| seconds(row.at_ms));
        let points = at.flat_map(|at| [(at, 0.0), (at, most), (at, 0.0)]).collect();
        curves.push(curve(kind, points));
    }
    Chart {
        title: "Pairs of walkers of which one misses something of the other",
        x_label: "seconds",
        y_label: "pairs, in a tenth of a second",
        log_x: false,
        bottom: 0.0,
        legend: SeriesLabelPosition::UpperRight,
        curves,
    }
}

fn table(rows: &[Row], report: &Report) -> String {
    let head = format!(
        "{:18} {:24} {:>8} {:>8} {:>10} {:>10} {:>10} {:>8} {:>9}\n",
        "fault", "", "at", "members", "without", "others", "members", "twice", "overtaken"
    );
    let line = |row: &Row| {
        format!(
            "{:18} {:24} {:>6} s {:>8} {:>7} ms {:>7} ms {:>7} ms {:>8} {:>9}\n",
            row.fault,
            row.what,
            row.at_ms / 1000,
            row.members,
            row.outage_ms,
            row.others_ms,
            row.members_ms,
            row.doubled,
            row.overtaken
        )
    };
    let verdict = &report.verdict;
    format!(
        "{head}{}deliveries: {} expected, {} missing, {} duplicates, {} unexpected, {} out of order",
        rows.iter().map(line).collect::<String>(),
        verdict.expected,
        verdict.missing,
        verdict.duplicates,
        verdict.unexpected,
        verdict.out_of_order
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_fault_meets_moves_and_drains() {
        let moves = |number| matches!(Under::of(1, number, 8), Under::Move(_));
        assert!((0..KINDS).all(|number| moves(number) != moves(number + KINDS)));
    }

    #[test]
    fn what_is_missing_counts_for_the_fault_before_it() {
        let mut report = Report::default();
        let gap =
            |until_ms, publisher, receiver| canopy_bots::Missing { until_ms, publisher, receiver };
        report.missing = vec![
            gap(1_000, 1, 2),
            gap(4_900, 1, 2),
            gap(5_400, 1, 2),
            gap(6_200, 1, 3),
            gap(9_300, 1, 3),
        ];
        let outage = |walker, at_ms, ms| canopy_bots::Outage { walker, at_ms, ms };
        // Who is lost has heard its relay last a moment before that failed.
        report.outages = vec![outage(3, 5_010, 900), outage(4, 8_950, 2_100)];
        let tenth = |until_ms| Tenth { until_ms, deliveries: 3 };
        report.doubled = vec![tenth(4_700), tenth(5_300), tenth(5_400)];
        report.overtaken = vec![tenth(4_600), tenth(9_300)];
        let failed = |fault, at_ms, away_ms| Failed { fault, at_ms, away_ms };
        let faults = [failed(Fault::Relay(1), 5_000, 0), failed(Fault::Controller, 9_000, 0)];
        let (rows, before) = rows(&faults, &report, |_, _| false);
        assert_eq!(before, Before { outages: 0, gaps: 1, doubled: 3, overtaken: 3 });
        assert_eq!([rows[0].doubled, rows[1].doubled], [6, 0]);
        assert_eq!([rows[0].overtaken, rows[1].overtaken], [0, 3]);
        let told: Vec<_> =
            rows.iter().map(|row| (row.members, row.others_ms, row.members_ms, row.gaps)).collect();
        assert_eq!(told, [(1, 400, 1_200, 3), (1, 300, 0, 1)]);
        assert_eq!(rows.iter().map(|row| row.outage_ms).collect::<Vec<_>>(), [900, 2_100]);
        // Two seconds without a session are too long, though nobody is missed who is there again.
        assert_eq!(rows.iter().map(Row::is_good).collect::<Vec<_>>(), [true, false]);
        let of: Vec<_> = picture(&rows, &report).curves;
        assert_eq!(
            of.iter().map(|c| &*c.name).collect::<Vec<_>>(),
            ["pairs", "controller killed", "relay killed"]
        );
        assert!(of[0].points.contains(&(1.0, 1.0)) && of[2].points.contains(&(5.0, 1.0)));
    }

    /// Nobody else is.
    #[test]
    fn who_is_on_a_server_that_vanishes_is_judged_from_its_return() {
        let mut report = Report::default();
        let gap =
            |until_ms, publisher, receiver| canopy_bots::Missing { until_ms, publisher, receiver };
        report.missing = vec![gap(9_700, 1, 2), gap(6_200, 2, 5), gap(8_000, 2, 7)];
        let outage = |walker, at_ms, ms| canopy_bots::Outage { walker, at_ms, ms };
        report.outages = vec![outage(1, 4_400, 5_500), outage(2, 4_200, 100)];
        let fault = Fault::ServerVanished(1);
        let faults = [Failed { fault, at_ms: 5_000, away_ms: 4_010 }];
        let on_server = |walker, server| walker as usize % 4 == server;
        // Walker 5 is on the server too, whether it has lost its session or not.
        let (of, before) = rows(&faults, &report, on_server);
        assert_eq!(before, Before { outages: 1, ..Before::default() });
        assert_eq!((of[0].members, of[0].outage_ms, of[0].members_ms), (1, 1_490, 690));
        assert!(of[0].others_ms == 3_000 && !of[0].is_good(), "others notice it");
        // Walker 3 is elsewhere, and is without a session for too long.
        report.outages.push(outage(3, 5_000, 3_000));
        report.missing = vec![gap(8_500, 3, 2)];
        let (of, _) = rows(&faults, &report, on_server);
        assert_eq!((of[0].members, of[0].outage_ms, of[0].members_ms), (2, 3_000, 3_500));
        // Whoever was killed says from its return on how long it was without.
        report.outages = vec![outage(1, 9_020, 700)];
        let faults = [Failed { fault: Fault::ServerKilled(1), ..faults[0] }];
        let (of, _) = rows(&faults, &report, on_server);
        assert_eq!((of[0].members, of[0].outage_ms), (1, 700));
    }

    #[test]
    fn a_report_that_has_not_all_gaps_is_found() {
        let mut report = Report::default();
        assert!(has_all_gaps(&report));
        report.last_missing_ms = Some(4_910);
        report.missing = vec![canopy_bots::Missing { until_ms: 5_000, publisher: 1, receiver: 2 }];
        assert!(has_all_gaps(&report));
        report.last_missing_ms = Some(5_001);
        assert!(!has_all_gaps(&report));
    }
}
