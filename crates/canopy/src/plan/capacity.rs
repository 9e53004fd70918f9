//! `canopy plan capacity`: how many users a relay carries, by what sending costs it.

use crate::output::print_line;
use anyhow::{Context, anyhow, bail};
use canopy_output::chart::{self, Chart, Column, SeriesLabelPosition};
use canopy_plan::{
    Calibration, Comparison, Conditions, EngineCost, Evidence, GainByRatio, GainByShare,
    GainFigures, Growth, OtherWork, SendCost, Server, ServerModel,
};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The paper's period: 30 updates a second (Groupcast §6.3).
const PERIOD_MS: f64 = 33.3;

/// How many users a relay carries before and after sending gets cheaper, after the groupcast paper:
/// in a period T it sends to all N users and works on the messages that it gets from them. Exactly
/// one of --f, --alpha and --c says how much that other work is.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy plan capacity --model periodic --h constant --f 0.5 --t-ms 33.3 --bytes 80 \\\n    \
    --old 6.02e-3,8.69e-7 --new 2.16e-3,2.12e-7\n  \
    canopy bench groupcast --json > here.json\n  \
    canopy plan capacity --model immediate --h linear --c 0.01 --calibration here.json\n  \
    canopy plan capacity --figures figures")]
pub(crate) struct CapacityCommand {
    /// When the relay sends: on every message, or once a period
    #[arg(long, value_name = "MODEL", required_unless_present = "figures")]
    model: Option<ModelArg>,
    /// How the other work on a message grows with the users
    #[arg(long, value_name = "GROWTH", required_unless_present = "figures")]
    h: Option<GrowthArg>,
    #[command(flatten)]
    work: WorkArgs,
    /// λ: messages of a user in a period
    #[arg(long, value_name = "N", default_value_t = 1.0, allow_negative_numbers = true)]
    lambda: f64,
    /// Bytes of an update
    #[arg(long, value_name = "B", default_value_t = 80.0, allow_negative_numbers = true)]
    bytes: f64,
    #[command(flatten)]
    costs: CostArgs,
    /// Write the paper's figures 8 to 11 into this folder as SVG and CSV, of its own costs unless
    /// others are given
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "h", "f", "alpha", "c"])]
    figures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is known of the other work.
#[derive(Args)]
struct WorkArgs {
    /// The share of sending in all processing, measured with the old way; more than 0, at most 1
    #[arg(long, value_name = "F", group = "known", allow_negative_numbers = true)]
    f: Option<f64>,
    /// Sending one update to one user, in other operations
    #[arg(long, value_name = "A", group = "known", allow_negative_numbers = true)]
    alpha: Option<f64>,
    /// One other operation: milliseconds, with --h linear milliseconds per user
    #[arg(long, value_name = "MS", group = "known", allow_negative_numbers = true)]
    c: Option<f64>,
    /// For --f: the mean time between updates when it was measured; 33.3 if not given. It is the
    /// period too unless --period-ms is given
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    t_ms: Option<f64>,
    /// For --f: users when it was measured. Without --t-ms they are the most that the relay could
    /// serve (a stress test), and the period follows
    #[arg(long, value_name = "N", requires = "f", allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["alpha", "c", "figures"])]
    users: Option<f64>,
    /// For --f: messages received in --t-ms
    #[arg(long, value_name = "M", requires_all = ["f", "t_ms"], allow_negative_numbers = true)]
    #[arg(conflicts_with_all = ["alpha", "c", "figures"])]
    messages: Option<f64>,
    /// The longest time between updates
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    period_ms: Option<f64>,
}

/// What sending costs.
#[derive(Args)]
struct CostArgs {
    /// The old way: ms per receiver, ms per receiver and byte, and perhaps ms per message
    #[arg(long, value_name = "X,Y[,A]", requires = "new")]
    old: Option<CostArg>,
    /// The new way, likewise
    #[arg(long, value_name = "X,Y[,A]", requires = "old")]
    new: Option<CostArg>,
    /// What canopy bench groupcast --json wrote on this machine, instead of --old and --new
    #[arg(long, value_name = "FILE", conflicts_with_all = ["old", "new"])]
    calibration: Option<PathBuf>,
    /// The old way in that file
    #[arg(long, value_name = "NAME", default_value = "sendto", requires = "calibration")]
    old_engine: String,
    /// The new way in that file; the cheapest there if not given
    #[arg(long, value_name = "NAME", requires = "calibration")]
    new_engine: Option<String>,
    /// Datagrams of a segmented send in that file
    #[arg(long, value_name = "K", default_value_t = 1, requires = "calibration")]
    segments: u32,
    /// Where that file's sends went; its first sink if not given
    #[arg(long, value_name = "NAME", requires = "calibration")]
    sink: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ModelArg {
    /// On every message
    Immediate,
    /// Once a period
    Periodic,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum GrowthArg {
    /// As long with many users as with few
    Constant,
    /// In proportion to the users
    Linear,
}

/// A cost as a flag: `6.02e-3,8.69e-7` or `6.02e-3,8.69e-7,0.001`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CostArg(SendCost);

impl FromStr for CostArg {
    type Err = String;

    fn from_str(text: &str) -> Result<CostArg, String> {
        let numbers: Result<Vec<f64>, _> =
            text.split(',').map(|part| part.trim().parse()).collect();
        let cost = |per_message, per_receiver, per_byte| {
            Ok(CostArg(SendCost { per_message, per_receiver, per_byte }))
        };
        match numbers.as_deref() {
            Ok([x, y]) => cost(0.0, *x, *y),
            Ok([x, y, a]) => cost(*a, *x, *y),
            _ => Err("give two or three numbers, such as 6.02e-3,8.69e-7".into()),
        }
    }
}

/// A way of sending.
struct Way {
    /// Its name in the calibration.
    engine: Option<String>,
    cost: SendCost,
}

impl CapacityCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if self.figures.is_none() && self.costs.old.is_none() && self.costs.calibration.is_none() {
            bail!("what sending costs is not known; give --old and --new, or --calibration");
        }
        let ways = self.costs.ways(self.bytes)?;
        let server = Server {
            model: self.model.map_or(ServerModel::Immediate, ModelArg::model),
            period_ms: self.work.period_ms.or(self.work.t_ms).unwrap_or(PERIOD_MS),
            messages_per_user: self.lambda,
            bytes: self.bytes,
        };
        if let Some(folder) = &self.figures {
            let [old, new] = ways.map(|way| way.cost);
            return write_figures(folder, &GainFigures { server, old, new }, self.json);
        }
        let answer = self.answer(server, ways)?;
        if self.json { print_line(answer.as_json()) } else { print_line(answer.in_words()) }?;
        Ok(())
    }

    fn answer(&self, mut server: Server, ways: [Way; 2]) -> anyhow::Result<Answer> {
        let growth = self.h.map_or(Growth::Constant, GrowthArg::growth);
        let evidence = self.work.evidence(server.period_ms)?;
        let [old, new] = [ways[0].cost, ways[1].cost];
        let other = server.other_work(growth, evidence, old)?;
        if let (Evidence::StressTest { users, .. }, None) = (evidence, self.work.period_ms) {
            server.period_ms = server.busy_ms(other, old, users);
        }
        let mut found = server.compare(other, old, new)?;
        // What was given comes back to the digit.
        let given = |given: Option<f64>, found: f64| {
            given.filter(|given| (given - found).abs() <= 1e-9 * found).unwrap_or(found)
        };
        found.send_share = given(self.work.f, found.send_share);
        found.alpha = given(self.work.alpha, found.alpha);
        let time_ms = self.work.t_ms.unwrap_or(server.period_ms);
        Ok(Answer { server, time_ms, other, ways, found })
    }
}

impl WorkArgs {
    fn evidence(&self, period_ms: f64) -> anyhow::Result<Evidence> {
        Ok(match (self.f, self.alpha, self.c) {
            (Some(send_share), ..) => match (self.users, self.t_ms) {
                (Some(users), None) => Evidence::StressTest { send_share, users },
                (users, time_ms) => Evidence::Measured {
                    send_share,
                    time_ms: time_ms.unwrap_or(period_ms),
                    users,
                    messages: self.messages,
                },
            },
            (None, Some(alpha), _) => Evidence::Ratio(alpha),
            (None, None, Some(c)) => Evidence::Constant(c),
            (None, None, None) => bail!("the other work is not known; give --f, --alpha or --c"),
        })
    }
}

impl CostArgs {
    /// The old way and the new; the paper's if none are given.
    fn ways(&self, bytes: f64) -> anyhow::Result<[Way; 2]> {
        let Some(path) = &self.calibration else {
            let way = |given: Option<CostArg>, paper| Way {
                engine: None,
                cost: given.map_or(paper, |CostArg(cost)| cost),
            };
            return Ok([way(self.old, SendCost::PAPER_OLD), way(self.new, SendCost::PAPER_NEW)]);
        };
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the calibration {name}; check --calibration"))?;
        self.measured(&text, bytes).map_err(|problem| anyhow!("{name}: {problem}"))
    }

    fn measured(&self, text: &str, bytes: f64) -> Result<[Way; 2], canopy_plan::CalibrationError> {
        let file = Calibration::from_json(text)?;
        let conditions = Conditions { sink: self.sink.as_deref(), segments: self.segments };
        let old = file.engine(&self.old_engine, conditions)?;
        let new = match &self.new_engine {
            Some(engine) => file.engine(engine, conditions)?,
            None => file.cheapest(bytes, conditions)?,
        };
        let way = |cost: &EngineCost| Way { engine: Some(cost.engine.clone()), cost: cost.cost };
        Ok([way(old), way(new)])
    }
}

/// What was found, with what it was found from.
struct Answer {
    server: Server,
    /// t.
    time_ms: f64,
    other: OtherWork,
    ways: [Way; 2],
    found: Comparison,
}

impl Answer {
    fn as_json(&self) -> Value {
        let Answer { server, other, found, .. } = self;
        let [old, new] = self.ways.each_ref().map(|way| {
            let SendCost { per_message, per_receiver, per_byte } = way.cost;
            json!({ "engine": way.engine, "x": per_receiver, "y": per_byte, "a": per_message })
        });
        json!({
            "model": server.model,
            "h": other.growth,
            "f": found.send_share,
            "t_ms": self.time_ms,
            "period_ms": server.period_ms,
            "lambda": server.messages_per_user,
            "bytes": server.bytes,
            "c": other.c,
            "alpha": found.alpha,
            "n_max_old": found.users_old,
            "n_max_new": found.users_new,
            "k": found.gain,
            "r": found.speedup,
            "bound": found.bound,
            "old": old,
            "new": new,
        })
    }

    fn in_words(&self) -> String {
        let Answer { server, other, found, .. } = self;
        let (model, root) = match server.model {
            ServerModel::Immediate => ("immediate", "√r"),
            ServerModel::Periodic => ("periodic", "r"),
        };
        let (growth, unit) = match other.growth {
            Growth::Constant => ("constant", "ms"),
            Growth::Linear => ("linear", "ms a user"),
        };
        let way = |name: &str, way: &Way, users: f64| {
            let engine = way.engine.as_ref().map_or(String::new(), |name| format!(" ({name})"));
            format!("{name}{engine}: {users:.1} users at most; sending takes {} ms\n", way.cost)
        };
        let paper = self.ways.iter().all(|way| way.cost.per_message == 0.0);
        let root = if paper { format!("{root} = ") } else { String::new() };
        let side = if found.bound < 1.0 { "least" } else { "most" };
        format!(
            "{model} model, {growth} other work: T = {:.4} ms, λ = {}, {} bytes\n\
             {}{}k = {:.4} (at {side} {root}{:.4}), r = {:.4}\n\
             other work c = {:.4e} {unit}; at {:.1} users f = {:.4}, α = {:.4e}",
            server.period_ms,
            server.messages_per_user,
            server.bytes,
            way("old", &self.ways[0], found.users_old),
            way("new", &self.ways[1], found.users_new),
            found.gain,
            found.bound,
            found.speedup,
            other.c,
            found.users_old,
            found.send_share,
            found.alpha,
        )
    }
}

impl ModelArg {
    fn model(self) -> ServerModel {
        match self {
            ModelArg::Immediate => ServerModel::Immediate,
            ModelArg::Periodic => ServerModel::Periodic,
        }
    }
}

impl GrowthArg {
    fn growth(self) -> Growth {
        match self {
            GrowthArg::Constant => Growth::Constant,
            GrowthArg::Linear => Growth::Linear,
        }
    }
}

const BY_SHARE: [Column<GainByShare>; 2] =
    [("immediate", |row| row.immediate), ("periodic", |row| row.periodic)];
const BY_RATIO: [Column<GainByRatio>; 2] =
    [("immediate", |row| row.immediate), ("periodic", |row| row.periodic)];

/// Writes figures 8 to 11 and says where.
fn write_figures(folder: &Path, figures: &GainFigures, as_json: bool) -> anyhow::Result<()> {
    chart::make_folder(folder, "--figures")?;
    let mut files = Vec::new();
    for (growth, by_share, by_ratio, title) in [
        (
            Growth::Constant,
            "figure8",
            "figure10",
            "What cheaper sending gains, constant other work",
        ),
        (Growth::Linear, "figure9", "figure11", "What cheaper sending gains, linear other work"),
    ] {
        let rows = figures.by_share(growth)?;
        let curves = chart::curves(&rows, |row| row.f, &BY_SHARE);
        let chart = gain_chart(title, "f: share of sending", false, curves);
        files.extend(chart::write(folder, by_share, &rows, &chart)?);
        let rows = figures.by_ratio(growth)?;
        let curves = chart::curves(&rows, |row| row.alpha, &BY_RATIO);
        let chart = gain_chart(title, "α: an update to a user, in other operations", true, curves);
        files.extend(chart::write(folder, by_ratio, &rows, &chart)?);
    }
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    print_line(if as_json { json!({ "files": files }).to_string() } else { files.join("\n") })?;
    Ok(())
}

fn gain_chart<'a>(
    title: &'a str,
    x_label: &'a str,
    log_x: bool,
    curves: Vec<chart::Curve>,
) -> Chart<'a> {
    let gains = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, gain)| *gain));
    let bottom = if gains.fold(1.0, f64::min) < 1.0 { 0.0 } else { 1.0 };
    let legend = SeriesLabelPosition::UpperLeft;
    let y_label = "k: the new most users in old ones";
    Chart { title, x_label, y_label, log_x, bottom, legend, curves }
}
