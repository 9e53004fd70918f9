//! `canopy plan tree`: one tree, provisioned.

use super::input::{NetworkArgs, RateArg, find};
use super::map;
use crate::output::print_line;
use anyhow::bail;
use canopy_plan::{
    Capacity, Choice, Demand, FIBRE_SPEED, Limits, Locality, Method, Network, PlanError, Rate,
    Request, Root, choose, cost, provision_local,
};
use clap::Args;
use serde::Serialize;

/// Chooses a tree over the network that joins the endpoints, provisions its links so that every
/// traffic within the limits fits, and says what it costs: capacity both ways times kilometres.
#[derive(Args)]
pub(crate) struct TreeCommand {
    #[command(flatten)]
    network: NetworkArgs,
    /// How the tree is chosen
    #[arg(long, value_name = "METHOD", default_value = "best")]
    method: MethodArg,
    /// For --method stretch: the way from the root at most, in lengths of the direct way; 'inf'
    /// gives spanning trees
    #[arg(long, value_name = "S", default_value_t = 1.2)]
    stretch: f64,
    /// Where the tree grows from: 'best' tries every node, 'central' takes the one with the least
    /// distance to the endpoints, or a name
    #[arg(long, value_name = "best|central|NODE", default_value = "best")]
    root: String,
    /// Improve the tree by a local search, under the method's own bound
    #[arg(long)]
    improve: bool,
    #[command(flatten)]
    locality: LocalityArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Args)]
struct LocalityArgs {
    /// Endpoints this near are a neighbourhood; what is exchanged with others has limits of its
    /// own. The tree is chosen without them, its links are provisioned with them
    #[arg(long, value_name = "KM", requires_all = ["send_outside", "receive_outside"])]
    near: Option<f64>,
    /// What each endpoint sends outside its neighbourhood at most
    #[arg(long, value_name = "RATE[,PACKETS]", requires = "near")]
    send_outside: Option<RateArg>,
    /// What each endpoint receives from outside its neighbourhood at most
    #[arg(long, value_name = "RATE[,PACKETS]", requires = "near")]
    receive_outside: Option<RateArg>,
}

#[derive(Args)]
#[group(multiple = false)]
struct FormatArgs {
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Print a map of the plan as SVG
    #[arg(long)]
    svg: bool,
    /// Print the tree for Graphviz
    #[arg(long)]
    dot: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MethodArg {
    /// The cheapest shortest-path tree
    Spt,
    /// The minimum spanning tree
    Mst,
    /// Prim's algorithm with bounded stretch
    Stretch,
    /// Like a spanning tree near the root, like a shortest-path tree further out
    Hybrid,
    /// The cheapest that any method or a local search finds; the optimum on up to 13 nodes
    Best,
}

impl From<MethodArg> for Method {
    fn from(method: MethodArg) -> Method {
        match method {
            MethodArg::Spt => Method::Spt,
            MethodArg::Mst => Method::Mst,
            MethodArg::Stretch => Method::Stretch,
            MethodArg::Hybrid => Method::Hybrid,
            MethodArg::Best => Method::Best,
        }
    }
}

/// A provisioned tree, as it is printed.
#[derive(Serialize)]
pub(super) struct TreeReport {
    method: Method,
    root: String,
    /// Capacity both ways, in the limits' unit, times kilometres.
    pub(super) cost: f64,
    links: Vec<LinkReport>,
    /// Milliseconds between the two endpoints furthest apart over the tree.
    pub(super) max_delay: f64,
    /// Milliseconds between two endpoints over the tree, the mean.
    pub(super) mean_delay: f64,
    core: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<LocalityReport>,
}

/// One link of a provisioned tree: from the node below to the one above.
#[derive(Serialize)]
struct LinkReport {
    from: String,
    to: String,
    capacity_forward: f64,
    capacity_back: f64,
    /// Kilometres.
    length: f64,
    #[serde(skip_serializing_if = "is_zero")]
    packets_forward: f64,
    #[serde(skip_serializing_if = "is_zero")]
    packets_back: f64,
}

/// What neighbourhoods save on the same tree.
#[derive(Serialize)]
struct LocalityReport {
    cost_without: f64,
    cost_of_bound: f64,
    saved: f64,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl TreeCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let input = self.network.read()?;
        let network = &input.network;
        let demand = Demand::new(network, &input.endpoints, input.core.clone())?;
        let root = match self.root.as_str() {
            "best" => Root::Best,
            "central" => Root::Central,
            name => Root::Node(find(network, name, "--root")?),
        };
        let (stretch, improve) = (self.stretch, self.improve);
        let request = Request { method: self.method.into(), root, stretch, improve };
        let mut choice = match choose(&demand, &request) {
            // What is too much without neighbourhoods may fit with them.
            Err(PlanError::Infeasible(_)) if self.locality.near.is_some() => {
                let unlimited = network.clone().with_free(Rate::UNLIMITED);
                let demand = Demand::new(&unlimited, &input.endpoints, input.core.clone())?;
                choose(&demand, &request)?
            }
            chosen => chosen?,
        };
        let locality = self.locality.apply(&demand, &mut choice)?;
        let report = TreeReport { locality, ..TreeReport::new(&demand, &choice) };
        if self.format.json {
            print_line(serde_json::to_string(&report)?)?;
        } else if self.format.svg {
            print_line(map::svg(&demand, &choice, &report.title(&demand)))?;
        } else if self.format.dot {
            print_line(report.dot())?;
        } else {
            print_line(report.in_words(&demand))?;
        }
        Ok(())
    }
}

impl LocalityArgs {
    /// Provisions the tree anew under neighbourhood constraints, if they are asked for.
    fn apply(
        &self,
        demand: &Demand<'_>,
        choice: &mut Choice,
    ) -> anyhow::Result<Option<LocalityReport>> {
        let Some(near) = self.near else { return Ok(None) };
        if near.is_nan() || near < 0.0 {
            bail!("--near {near} is out of range; choose 0 km or more");
        }
        let rate = |rate: Option<RateArg>| rate.map(|rate| rate.0).unwrap_or_default();
        let outside = Limits { send: rate(self.send_outside), receive: rate(self.receive_outside) };
        let locality = Locality::within(demand, near, outside);
        let local = provision_local(demand, &choice.tree, &choice.core, &locality);
        let cost_of = |capacities: &[Capacity]| cost(demand.network(), &choice.tree, capacities);
        let (without, exact) = (choice.cost, cost_of(&local.exact));
        let report = LocalityReport {
            cost_without: without,
            cost_of_bound: cost_of(&local.bound),
            saved: if without > 0.0 { 1.0 - exact / without } else { 0.0 },
        };
        choice.cost = exact;
        choice.capacities = local.exact;
        check_free(demand.network(), choice)?;
        Ok(Some(report))
    }
}

/// Refuses a tree that needs more than is free on a link.
fn check_free(network: &Network, choice: &Choice) -> anyhow::Result<()> {
    for hop in choice.tree.hops() {
        let Capacity { up, down } = choice.capacities[hop.below];
        let [free_up, free_down] = network.links()[hop.link].free_from(hop.below);
        let exceeds = |needed: Rate, free: Rate| needed != needed.min(free);
        if exceeds(up, free_up) || exceeds(down, free_down) {
            let name = |node: usize| &network.nodes()[node].name;
            bail!(
                "the tree does not fit what is free, with neighbourhoods either: the link {}–{} \
                 needs {} and {} back. Free more there, or lower the limits",
                name(hop.below),
                name(hop.above),
                up.bits,
                down.bits
            );
        }
    }
    Ok(())
}

impl TreeReport {
    pub(super) fn new(demand: &Demand<'_>, choice: &Choice) -> TreeReport {
        let network = demand.network();
        let name = |node: usize| network.nodes()[node].name.clone();
        let lengths = choice.tree.path_lengths(network, demand.endpoints());
        let links = choice.tree.hops().map(|hop| {
            let Capacity { up, down } = choice.capacities[hop.below];
            LinkReport {
                from: name(hop.below),
                to: name(hop.above),
                capacity_forward: up.bits,
                capacity_back: down.bits,
                length: network.links()[hop.link].length,
                packets_forward: up.packets,
                packets_back: down.packets,
            }
        });
        let core = (0..choice.core.len()).filter(|node| choice.core[*node]);
        TreeReport {
            method: choice.method,
            root: name(choice.tree.root()),
            cost: choice.cost,
            links: links.collect(),
            max_delay: lengths.max / FIBRE_SPEED,
            mean_delay: lengths.mean / FIBRE_SPEED,
            core: core.map(name).collect(),
            locality: None,
        }
    }

    fn title(&self, demand: &Demand<'_>) -> String {
        format!(
            "{} from {}: {} endpoints, {} links, cost {:.0}",
            self.method.name(),
            self.root,
            demand.endpoints().len(),
            self.links.len(),
            self.cost,
        )
    }

    fn in_words(&self, demand: &Demand<'_>) -> String {
        let mut text = format!(
            "{}\nbetween endpoints: mean {:.3} ms, at most {:.3} ms\n",
            self.title(demand),
            self.mean_delay,
            self.max_delay
        );
        if !self.core.is_empty() {
            text += &format!("core ({}): {}\n", self.core.len(), self.core.join(", "));
        }
        if let Some(locality) = &self.locality {
            text += &format!(
                "neighbourhoods save {:.1} % of {:.0}; the fast bound says {:.0}\n",
                locality.saved * 100.0,
                locality.cost_without,
                locality.cost_of_bound
            );
        }
        text += &format!("\n{:>12} {:>12} {:>9}  link\n", "forward", "back", "km");
        for link in &self.links {
            text += &format!(
                "{:>12} {:>12} {:>9.1}  {} – {}\n",
                link.capacity_forward, link.capacity_back, link.length, link.from, link.to
            );
        }
        text.trim_end().to_owned()
    }

    fn dot(&self) -> String {
        let quoted =
            |name: &str| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let mut text = "graph comtree {\n  node [shape=circle];\n".to_owned();
        text += &format!("  {} [shape=doublecircle];\n", quoted(&self.root));
        for name in &self.core {
            text += &format!("  {} [style=filled];\n", quoted(name));
        }
        for link in &self.links {
            text += &format!(
                "  {} -- {} [label=\"{} / {}\", len={:.3}];\n",
                quoted(&link.to),
                quoted(&link.from),
                link.capacity_back,
                link.capacity_forward,
                link.length
            );
        }
        text + "}"
    }
}
