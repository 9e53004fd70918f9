//! `canopy bench plan`: how long planning takes.

use crate::noise::median;
use anyhow::Context;
use canopy_output::{print_line, print_note};
use canopy_plan::{
    CoreRule, Demand, Limits, Method, Network, Provisioning, Request, Root, Tree, choose,
};
use clap::Args;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Changes of one endpoint that are timed in each tree.
const CHANGES: usize = 20_000;
const ROUNDS: usize = 5;

/// Chooses a tree by every method over a network, and changes one endpoint's limits after another
/// in a tree with very many of them.
#[derive(Args)]
pub(crate) struct PlanBench {
    /// The network, GML or TOML; 200 points that are all linked if not given
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// Endpoints of the large tree
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    endpoints: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PlanTimes {
    nodes: usize,
    links: usize,
    methods: Vec<MethodTime>,
    all_methods_seconds: f64,
    endpoints: u32,
    provisioning: Vec<ChangeTime>,
}

#[derive(Serialize)]
struct MethodTime {
    method: Method,
    /// The median of five.
    seconds: f64,
}

/// How long one endpoint's change takes, microseconds.
#[derive(Serialize)]
struct ChangeTime {
    tree: &'static str,
    depth: usize,
    p50_us: f64,
    p99_us: f64,
    links_changed: f64,
}

impl PlanBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let network = match &self.network {
            Some(path) => std::fs::read(path)
                .map_err(anyhow::Error::new)
                .and_then(|content| Ok(Network::from_file(path, &content)?))
                .with_context(|| format!("cannot read the network {}", path.display()))?,
            None => Network::square(200, 2.0, 1),
        };
        let nodes = network.largest_component();
        let limits = Limits::bits(1.0, 8.0);
        let endpoints: Vec<(usize, Limits)> = nodes.iter().map(|node| (*node, limits)).collect();
        let demand = Demand::new(&network, &endpoints, CoreRule::None)?;
        let mut methods = Vec::new();
        for method in Method::ALL {
            print_note(method.name());
            let mut seconds = [0.0; ROUNDS];
            for seconds in &mut seconds {
                let request = Request { method, root: Root::Best, stretch: 1.2, improve: false };
                let started = Instant::now();
                choose(&demand, &request)?;
                *seconds = started.elapsed().as_secs_f64();
            }
            methods.push(MethodTime { method, seconds: median(&seconds) });
        }
        print_note(format_args!("provisioning {} endpoints", self.endpoints));
        let count = self.endpoints as usize;
        let provisioning = vec![
            change_time("parents drawn from all", count, count),
            change_time("parents drawn from the last 100", count, 100),
        ];
        let times = PlanTimes {
            nodes: nodes.len(),
            links: network.links().len(),
            all_methods_seconds: methods.iter().map(|method| method.seconds).sum(),
            methods,
            endpoints: self.endpoints,
            provisioning,
        };
        print_line(if self.json { serde_json::to_string(&times)? } else { times.in_words() })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Times changes in a tree whose nodes hang on one of the last `reach` before them.
fn change_time(name: &'static str, count: usize, reach: usize) -> ChangeTime {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut parent = |node: usize| rng.random_range(node.saturating_sub(reach)..node);
    let parents: Vec<Option<usize>> =
        (0..count).map(|node| (node > 0).then(|| parent(node))).collect();
    let Ok(tree) = Tree::from_parents(&parents) else {
        unreachable!("every node but the first hangs on one before it")
    };
    let mut depths = vec![0; count];
    (1..count).for_each(|node| depths[node] = depths[parents[node].unwrap_or(0)] + 1);
    let limits = vec![Limits::bits(1.0, 8.0); count];
    let mut provisioning = Provisioning::new(tree, limits, vec![false; count]);
    let mut micros = Vec::with_capacity(CHANGES);
    let mut changed = 0;
    for _ in 0..CHANGES {
        let node = rng.random_range(0..count);
        let limits = Limits::bits(f64::from(rng.random_range(0..3_u32)), 8.0);
        let started = Instant::now();
        changed += provisioning.set_limits(node, limits).len();
        micros.push(started.elapsed().as_secs_f64() * 1e6);
    }
    micros.sort_unstable_by(f64::total_cmp);
    ChangeTime {
        tree: name,
        depth: depths.iter().copied().max().unwrap_or(0),
        p50_us: micros[CHANGES / 2],
        p99_us: micros[CHANGES * 99 / 100],
        links_changed: changed as f64 / CHANGES as f64,
    }
}

impl PlanTimes {
    fn in_words(&self) -> String {
        let mut text = format!("{} nodes, {} links\n", self.nodes, self.links);
        for MethodTime { method, seconds } in &self.methods {
            text += &format!("{:<8} {seconds:>8.3} s\n", method.name());
        }
        text += &format!("together {:>8.3} s\n", self.all_methods_seconds);
        for ChangeTime { tree, depth, p50_us, p99_us, links_changed } in &self.provisioning {
            text += &format!(
                "one of {} endpoints changes ({tree}, depth {depth}): p50 {p50_us:.1} µs, p99 \
                 {p99_us:.1} µs, {links_changed:.0} links changed\n",
                self.endpoints
            );
        }
        text.trim_end().to_owned()
    }
}
