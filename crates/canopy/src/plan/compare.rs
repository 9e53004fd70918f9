//! `canopy plan compare`: all methods on one network.

use super::input::NetworkArgs;
use super::tree::TreeReport;
use crate::output::{print_line, print_note};
use canopy_plan::{Demand, Method, Request, Root, choose, optimum};
use clap::Args;
use serde::Serialize;
use std::time::Instant;

/// Chooses a tree by every method and sets them side by side; on up to 13 nodes beside the optimum.
#[derive(Args)]
pub(crate) struct CompareCommand {
    #[command(flatten)]
    network: NetworkArgs,
    /// For the method 'stretch': the way from the root at most, in lengths of the direct way
    #[arg(long, value_name = "S", default_value_t = 1.2)]
    stretch: f64,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Comparison {
    methods: Vec<MethodRow>,
    /// The cost of the least costly tree of all, where it can be computed.
    optimum: Option<f64>,
    /// How many times the optimum a shortest-path tree costs at most (Forest §3.5), where that
    /// holds: without a core and without limits on the links.
    shortest_path_bound: Option<f64>,
}

#[derive(Serialize)]
struct MethodRow {
    method: Method,
    root: String,
    cost: f64,
    /// Against the cheapest of all.
    ratio_to_best: f64,
    /// Against the optimum, where that is known.
    ratio_to_optimum: Option<f64>,
    max_delay: f64,
    mean_delay: f64,
    links: usize,
    /// How long the choice took.
    seconds: f64,
}

impl CompareCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let input = self.network.read()?;
        let demand = Demand::new(&input.network, &input.endpoints, input.core.clone())?;
        let mut methods = Vec::new();
        for method in Method::ALL {
            print_note(method.name());
            let started = Instant::now();
            let (root, stretch, improve) = (Root::Best, self.stretch, false);
            let choice = choose(&demand, &Request { method, root, stretch, improve })?;
            let seconds = started.elapsed().as_secs_f64();
            let report = TreeReport::new(&demand, &choice);
            methods.push(MethodRow {
                method,
                root: input.network.nodes()[choice.tree.root()].name.clone(),
                cost: report.cost,
                ratio_to_best: 1.0,
                ratio_to_optimum: None,
                max_delay: report.max_delay,
                mean_delay: report.mean_delay,
                links: choice.tree.order().len() - 1,
                seconds,
            });
        }
        let optimum = optimum(&demand).map(|choice| choice.cost);
        let best = methods.iter().map(|row| row.cost).fold(f64::INFINITY, f64::min);
        let ratio = |cost: f64, to: f64| if to > 0.0 { cost / to } else { 1.0 };
        for row in &mut methods {
            row.ratio_to_best = ratio(row.cost, best);
            row.ratio_to_optimum = optimum.map(|optimum| ratio(row.cost, optimum));
        }
        let shortest_path_bound = Some(demand.shortest_path_bound())
            .filter(|bound| bound.is_finite() && demand.is_bounded());
        let comparison = Comparison { methods, optimum, shortest_path_bound };
        if self.json {
            print_line(serde_json::to_string(&comparison)?)?;
        } else {
            print_line(comparison.in_words())?;
        }
        Ok(())
    }
}

impl Comparison {
    fn in_words(&self) -> String {
        let mut text = format!(
            "{:<8} {:>14} {:>8} {:>8} {:>8} {:>8} {:>6} {:>8}  root\n",
            "method", "cost", "to best", "to opt.", "mean ms", "max ms", "links", "seconds"
        );
        for row in &self.methods {
            let to_optimum = row.ratio_to_optimum.map_or("–".to_owned(), |r| format!("{r:.3}"));
            text += &format!(
                "{:<8} {:>14.1} {:>8.3} {to_optimum:>8} {:>8.3} {:>8.3} {:>6} {:>8.3}  {}\n",
                row.method.name(),
                row.cost,
                row.ratio_to_best,
                row.mean_delay,
                row.max_delay,
                row.links,
                row.seconds,
                row.root,
            );
        }
        if let Some(bound) = self.shortest_path_bound {
            text += &format!("a shortest-path tree costs at most {bound:.3} times the optimum");
        }
        text.trim_end().to_owned()
    }
}
