//! `canopy plan figures`: the paper's figures from our own runs.

use crate::output::{print_line, print_note};
use canopy_output::chart::{self, Chart, Column, SeriesLabelPosition};
use canopy_plan::{CoreRow, DelayRow, Experiment, TopologyRow};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Runs the experiments of Forest §3.5 again and writes figure4, figure5 and figure6, each as SVG
/// and CSV: plain means over the trials of capacity both ways times length.
#[derive(Args)]
pub(crate) struct FiguresCommand {
    /// Where the files go; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Independently generated networks
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    trials: u64,
    /// The first network's seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Points of a network
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(3..=100))]
    points: u32,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// What the figures say, as the paper puts it.
#[derive(Serialize)]
struct Findings {
    /// By how much the cheapest tree is below the cheapest of the paper's three, mean over fan-outs
    /// 4, 8 and 12 (as far as there are such).
    best_gain: f64,
    /// The cost of the trees of the largest fan-out, in costs of the spanning tree.
    spt_to_mst_at_most_fanout: f64,
    stretch_to_mst_at_most_fanout: f64,
    /// A single core at the centre against none, the largest difference.
    core_center_extra: f64,
    /// Unicast against multicast at fan-out 2 and at the largest.
    unicast_at_2: f64,
    unicast_at_most_fanout: f64,
    /// Delays at stretch 1.2, in lengths.
    mean_tree_delay: f64,
    max_tree_delay: f64,
    mean_direct_delay: f64,
    files: Vec<PathBuf>,
}

impl FiguresCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let out = &self.out;
        chart::make_folder(out, "--out")?;
        let points = self.points as usize;
        let experiment = Experiment { points, trials: self.trials, seed: self.seed };
        let most = points - 1;
        let progress = |figure: u32| {
            move |fanout: u32| {
                if fanout.is_multiple_of(6) || fanout as usize == most {
                    print_note(format_args!("figure {figure}: fan-out {fanout} of {most}"));
                }
            }
        };
        let topologies = experiment.topologies(progress(4))?;
        let cores = experiment.cores(progress(5))?;
        print_note("figure 6");
        let delays = experiment.delays()?;
        let cost = "cost: capacity × length";
        let labels = ["What trees cost", "fan-out", cost];
        let topology =
            write(out, "figure4", labels, &topologies, |row| row.fanout.into(), &TOPOLOGY);
        let labels = ["What cores cost", "fan-out", cost];
        let core = write(out, "figure5", labels, &cores, |row| row.fanout.into(), &CORE);
        let labels = ["What the stretch does to delays", "stretch", "length of paths"];
        let delay = write(out, "figure6", labels, &delays, |row| row.stretch, &DELAY);
        let files = [topology?, core?, delay?].concat();
        let findings = Findings::new(&topologies, &cores, &delays, files);
        if self.json {
            print_line(serde_json::to_string(&findings)?)?;
        } else {
            print_line(findings.in_words())?;
        }
        Ok(())
    }
}

impl Findings {
    fn new(
        topologies: &[TopologyRow],
        cores: &[CoreRow],
        delays: &[DelayRow],
        files: Vec<PathBuf>,
    ) -> Findings {
        let papers = |row: &TopologyRow| row.spt.min(row.mst).min(row.stretch_1_2);
        let gains: Vec<f64> = topologies
            .iter()
            .filter(|row| [4, 8, 12].contains(&row.fanout))
            .map(|row| 1.0 - row.best / papers(row))
            .collect();
        let last = topologies[topologies.len() - 1];
        let extra = |row: &CoreRow| row.core_center / row.no_core - 1.0;
        let unicast = |row: &CoreRow| row.unicast / row.no_core;
        let delay = delays.iter().find(|row| (row.stretch - 1.2).abs() < 1e-9);
        let delay = delay.copied().unwrap_or_default();
        Findings {
            best_gain: gains.iter().sum::<f64>() / gains.len().max(1) as f64,
            spt_to_mst_at_most_fanout: last.spt / last.mst,
            stretch_to_mst_at_most_fanout: last.stretch_1_2 / last.mst,
            core_center_extra: cores.iter().map(extra).fold(0.0, f64::max),
            unicast_at_2: unicast(&cores[1]),
            unicast_at_most_fanout: unicast(&cores[cores.len() - 1]),
            mean_tree_delay: delay.mean_tree_delay,
            max_tree_delay: delay.max_tree_delay,
            mean_direct_delay: delay.mean_direct_delay,
            files,
        }
    }

    fn in_words(&self) -> String {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        format!(
            "figure 4: the best tree is {:.1} % below the cheapest of the paper's three (mean over \
             fan-outs 4, 8, 12); at the largest fan-out shortest-path trees cost {:.2} and stretch \
             1.2 {:.2} times the spanning tree\n\
             figure 5: a core at the centre costs at most {:.2} % more than none; unicast costs {:.2} \
             times multicast at fan-out 2 and {:.2} times at the largest\n\
             figure 6: at stretch 1.2 the mean path over the tree is {:.2} and the longest {:.2}; \
             direct paths are {:.2}\n{}",
            self.best_gain * 100.0,
            self.spt_to_mst_at_most_fanout,
            self.stretch_to_mst_at_most_fanout,
            self.core_center_extra * 100.0,
            self.unicast_at_2,
            self.unicast_at_most_fanout,
            self.mean_tree_delay,
            self.max_tree_delay,
            self.mean_direct_delay,
            files.join("\n"),
        )
    }
}

const TOPOLOGY: [Column<TopologyRow>; 5] = [
    ("shortest-path tree", |row| Some(row.spt)),
    ("spanning tree", |row| Some(row.mst)),
    ("stretch 1.2", |row| Some(row.stretch_1_2)),
    ("hybrid", |row| Some(row.hybrid)),
    ("best", |row| Some(row.best)),
];

const CORE: [Column<CoreRow>; 5] = [
    ("no core", |row| Some(row.no_core)),
    ("center", |row| Some(row.core_center)),
    ("center and neighbours", |row| Some(row.core_center_and_neighbours)),
    ("all nodes", |row| Some(row.all_core)),
    ("unicast", |row| Some(row.unicast)),
];

const DELAY: [Column<DelayRow>; 3] = [
    ("longest over the tree", |row| Some(row.max_tree_delay)),
    ("mean over the tree", |row| Some(row.mean_tree_delay)),
    ("mean of direct paths", |row| Some(row.mean_direct_delay)),
];

/// Writes a figure as CSV and as SVG; returns both files.
fn write<Row: Serialize>(
    out: &Path,
    name: &str,
    [title, x_label, y_label]: [&str; 3],
    rows: &[Row],
    x: fn(&Row) -> f64,
    columns: &[Column<Row>],
) -> anyhow::Result<[PathBuf; 2]> {
    let curves = chart::curves(rows, x, columns);
    let legend = SeriesLabelPosition::UpperLeft;
    let chart = Chart { title, x_label, y_label, log_x: false, bottom: 0.0, legend, curves };
    chart::write(out, name, rows, &chart)
}
