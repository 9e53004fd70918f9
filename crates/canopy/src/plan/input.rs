//! What all plans of trees take: a network, endpoints, limits, a rule for the core.

use crate::output::print_note;
use crate::rate;
use anyhow::{Context, bail};
use canopy_plan::{CoreRule, FIBRE_SPEED, Limits, Network, Rate, Reach};
use clap::Args;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Args)]
pub(crate) struct NetworkArgs {
    /// The network: GML as in the Internet Topology Zoo, or TOML with `[[node]]` and `[[link]]`
    #[arg(
        long,
        value_name = "FILE.gml|FILE.toml",
        required_unless_present = "points",
        conflicts_with = "points"
    )]
    network: Option<PathBuf>,
    /// Instead of a file: N points, uniformly over a square, every two linked directly
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    points: Option<u32>,
    /// Decides where the points are
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "network")]
    seed: u64,
    /// Side of the square
    #[arg(long, value_name = "KM", default_value_t = 2.0, conflicts_with = "network")]
    side: f64,
    /// Links of the overlay: the network's own, or every two nodes by their shortest path
    #[arg(long, value_name = "CHOICE", default_value = "links")]
    overlay: Overlay,
    /// The endpoints, by name; all located nodes of the largest component if not given
    #[arg(long, value_name = "A,B,…")]
    endpoints: Option<String>,
    /// What each endpoint sends at most, as a number with k, M or G, and packets behind a comma
    #[arg(long, value_name = "RATE[,PACKETS]")]
    send: RateArg,
    /// What each endpoint receives at most
    #[arg(long, value_name = "RATE[,PACKETS]")]
    receive: RateArg,
    /// Capacity that is free on every link, both ways; overrides the file's
    #[arg(long, value_name = "RATE[,PACKETS]")]
    free: Option<RateArg>,
    /// The nodes that get a copy of every multicast packet: 'none', 'center' (the root),
    /// 'neighbours' (the root and its neighbours), 'all', 'within' (the smallest core within
    /// --core-hops and --core-ms of every endpoint), or names
    #[arg(long, value_name = "RULE|A,B,…", default_value = "none")]
    core: String,
    /// For --core within: links from an endpoint to the core at most
    #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true)]
    core_hops: u32,
    /// For --core within: milliseconds from an endpoint to the core at most
    #[arg(long, value_name = "MS", default_value_t = f64::INFINITY, hide_default_value = true)]
    core_ms: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Overlay {
    Links,
    Complete,
}

/// A rate as a flag: `1`, `2.5M`, `1M,200`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateArg(pub(crate) Rate);

impl FromStr for RateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<RateArg, String> {
        let (bits, packets) = text.split_once(',').unwrap_or((text, "0"));
        Ok(RateArg(Rate { bits: rate::number(bits)?, packets: rate::number(packets)? }))
    }
}

/// A plan's input, read and checked.
pub(crate) struct Input {
    pub(crate) network: Network,
    pub(crate) endpoints: Vec<(usize, Limits)>,
    pub(crate) core: CoreRule,
}

impl NetworkArgs {
    pub(crate) fn read(&self) -> anyhow::Result<Input> {
        let mut network = match (&self.network, self.points) {
            (Some(path), _) => read_network(path)?,
            (None, points) => {
                if !(0.001..=40_000.0).contains(&self.side) {
                    bail!("--side {} is out of range; choose 0.001 to 40000 km", self.side);
                }
                Network::square(points.unwrap_or(1) as usize, self.side, self.seed)
            }
        };
        for note in network.notes() {
            print_note(format_args!("note: {note}"));
        }
        if self.overlay == Overlay::Complete {
            if network.has_limits() {
                print_note(format_args!(
                    "note: an overlay of tunnels has no limits: the links' capacity is left out"
                ));
            }
            network = network.complete();
        }
        if let Some(RateArg(mut free)) = self.free {
            if free.packets == 0.0 {
                free.packets = f64::INFINITY;
            }
            network = network.with_free(free);
        }
        let limits = Limits { send: self.send.0, receive: self.receive.0 };
        let endpoints = self.endpoints_of(&network)?;
        let core = self.core_rule(&network)?;
        let endpoints = endpoints.into_iter().map(|node| (node, limits)).collect();
        Ok(Input { network, endpoints, core })
    }

    fn endpoints_of(&self, network: &Network) -> anyhow::Result<Vec<usize>> {
        if let Some(names) = &self.endpoints {
            return find_all(network, names, "--endpoints");
        }
        let mut nodes = network.largest_component();
        let all = network.nodes().len();
        if nodes.len() < all {
            print_note(format_args!(
                "note: {} of {all} nodes are in the largest component",
                nodes.len()
            ));
        }
        nodes.retain(|node| network.nodes()[*node].located);
        if nodes.is_empty() {
            bail!("no node of the largest component has a place; name the --endpoints");
        }
        Ok(nodes)
    }

    fn core_rule(&self, network: &Network) -> anyhow::Result<CoreRule> {
        if self.core != "within" && (self.core_hops != u32::MAX || self.core_ms.is_finite()) {
            bail!("--core-hops and --core-ms go with --core within");
        }
        Ok(match self.core.as_str() {
            "none" => CoreRule::None,
            "center" => CoreRule::Center,
            "neighbours" => CoreRule::CenterAndNeighbours,
            "all" => CoreRule::All,
            "within" if self.core_hops == u32::MAX && self.core_ms.is_infinite() => {
                bail!("--core within needs --core-hops or --core-ms, or both");
            }
            "within" if self.core_ms.is_nan() || self.core_ms < 0.0 => {
                bail!("--core-ms {} is out of range; choose 0 or more", self.core_ms);
            }
            "within" => {
                CoreRule::Within(Reach { hops: self.core_hops, length: self.core_ms * FIBRE_SPEED })
            }
            names => CoreRule::Nodes(find_all(network, names, "--core")?),
        })
    }
}

/// The nodes of these names. A name may have commas in it: the longest that there is counts.
fn find_all(network: &Network, names: &str, flag: &str) -> anyhow::Result<Vec<usize>> {
    let parts: Vec<&str> = names.split(',').collect();
    let mut nodes = Vec::new();
    let mut next = 0;
    while next < parts.len() {
        let longest = (next + 1..=parts.len()).rev().find_map(|end| {
            let node = network.find(parts[next..end].join(",").trim())?;
            Some((node, end))
        });
        let (node, end) = match longest {
            Some(found) => found,
            None => (find(network, parts[next], flag)?, next + 1),
        };
        nodes.push(node);
        next = end;
    }
    Ok(nodes)
}

/// The node of this name, or what it might have been.
pub(crate) fn find(network: &Network, name: &str, flag: &str) -> anyhow::Result<usize> {
    let name = name.trim();
    network.find(name).with_context(|| {
        let lower = name.to_lowercase();
        let alike = network.nodes().iter().map(|node| node.name.as_str());
        let alike: Vec<&str> =
            alike.filter(|node| node.to_lowercase().contains(&lower)).take(5).collect();
        let hint = match alike[..] {
            [] => format!("the first is {:?}", network.nodes()[0].name),
            _ => format!("did you mean {}?", alike.join(", ")),
        };
        format!("{flag}: there is no node {name:?}; {hint}")
    })
}

fn read_network(path: &Path) -> anyhow::Result<Network> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the network {}; check --network", path.display()))?;
    Network::from_file(path, &bytes).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_plan::Node;

    #[test]
    fn names_may_have_commas() {
        let names = ["A", "B, C", "C"];
        let nodes = names.map(|name| Node { name: name.to_owned(), place: None, located: false });
        let network = Network::new(nodes.into(), Vec::new()).unwrap();
        let found = |names: &str| find_all(&network, names, "--endpoints");
        assert_eq!(found("A,B, C").unwrap(), [0, 1]);
        assert_eq!(found("C, A").unwrap(), [2, 0]);
        assert!(found("A,D").unwrap_err().to_string().contains("there is no node \"D\""));
    }

    #[test]
    fn rates_are_numbers_with_a_letter() {
        let rate = |text: &str| text.parse::<RateArg>().map(|rate| rate.0);
        assert_eq!(rate("1"), Ok(Rate::bits(1.0)));
        assert_eq!(rate("2.5M,200"), Ok(Rate { bits: 2_500_000.0, packets: 200.0 }));
        assert_eq!(rate("3k, 1k"), Ok(Rate { bits: 3000.0, packets: 1000.0 }));
        for text in ["", "-1", "1,2,3", "inf", "1m", "M", "5000G", "1e308"] {
            assert!(rate(text).unwrap_err().contains("is no rate"), "{text}");
        }
    }
}
