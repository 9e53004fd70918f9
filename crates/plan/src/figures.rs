//! The paper's experiments again: figures 4, 5 and 6 of Forest §3.5, from seeded trials.
//!
//! Points are spread over a square of side 2 around the origin, every two of them linked directly.
//! At each point as many users as there are points send at a limit of 1 each, to users at `fanout`
//! other points: a point sends up to n and receives up to n × fan-out. Trees grow from the point
//! closest to the origin. All figures are plain means over the trials.

use crate::core_rule::CoreRule;
use crate::demand::{Demand, PlanError};
use crate::network::{Network, Ordered};
use crate::place::Place;
use crate::rate::Limits;
use crate::select::{Choice, Method, Request, Root, choose};
use rand::SeedableRng;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Side of the square.
const SIDE: f64 = 2.0;
/// Figure 5 takes the cheapest of these stretches for each way of provisioning.
const STRETCHES: [f64; 8] = [1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, f64::INFINITY];

/// The size of the experiments. The paper's: 50 trials of 25 points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// Points, at least 3.
    pub points: usize,
    /// Independently generated networks.
    pub trials: u64,
    /// The first network's seed; the others follow.
    pub seed: u64,
}

impl Default for Experiment {
    fn default() -> Experiment {
        Experiment { points: 25, trials: 50, seed: 1 }
    }
}

/// Figure 4: what trees cost. All means of capacity both ways times length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TopologyRow {
    /// Other points that a user's updates go to.
    pub fanout: u32,
    /// The shortest-path tree from the centre.
    pub spt: f64,
    /// The minimum spanning tree.
    pub mst: f64,
    /// Prim's algorithm with a stretch of at most 1.2.
    pub stretch_1_2: f64,
    /// The cheapest hybrid of the two.
    pub hybrid: f64,
    /// The cheapest found by any method.
    pub best: f64,
}

/// Figure 5: what cores cost, each with the cheapest of several stretches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreRow {
    /// Other points that a user's updates go to.
    pub fanout: u32,
    /// Multicast without a core.
    pub no_core: f64,
    /// The root is the core.
    pub core_center: f64,
    /// The root and its neighbours are.
    pub core_center_and_neighbours: f64,
    /// Every node is.
    pub all_core: f64,
    /// Unicast on direct paths.
    pub unicast: f64,
}

/// Figure 6: what a bound on the stretch does to delays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DelayRow {
    /// The bound.
    pub stretch: f64,
    /// Over the tree, between all pairs.
    pub mean_tree_delay: f64,
    /// Between the pair furthest apart in the tree.
    pub max_tree_delay: f64,
    /// Directly, between all pairs.
    pub mean_direct_delay: f64,
}

struct Trial {
    network: Network,
    center: usize,
    seed: u64,
}

impl Experiment {
    /// The rows of figure 4, one a fan-out from 1 to points − 1; `done` hears of each.
    ///
    /// # Errors
    /// Fewer than 3 points or no trials.
    pub fn topologies(&self, mut done: impl FnMut(u32)) -> Result<Vec<TopologyRow>, PlanError> {
        self.over_fanouts(|trials, fanout| {
            let mut row = TopologyRow { fanout, ..TopologyRow::default() };
            for trial in trials {
                let demand = trial.demand(fanout, CoreRule::None)?;
                let cost = |method, root| trial.choose(&demand, method, root, 1.2);
                let center = Root::Node(trial.center);
                row.spt += cost(Method::Spt, center)?.cost;
                row.mst += cost(Method::Mst, center)?.cost;
                row.stretch_1_2 += cost(Method::Stretch, center)?.cost;
                row.hybrid += cost(Method::Hybrid, center)?.cost;
                row.best += cost(Method::Best, Root::Best)?.cost;
            }
            for sum in
                [&mut row.spt, &mut row.mst, &mut row.stretch_1_2, &mut row.hybrid, &mut row.best]
            {
                *sum /= self.trials as f64;
            }
            done(fanout);
            Ok(row)
        })
    }

    /// The rows of figure 5, one a fan-out from 1 to points − 1.
    ///
    /// # Errors
    /// Fewer than 3 points or no trials.
    pub fn cores(&self, mut done: impl FnMut(u32)) -> Result<Vec<CoreRow>, PlanError> {
        self.over_fanouts(|trials, fanout| {
            let mut row = CoreRow { fanout, ..CoreRow::default() };
            for trial in trials {
                row.no_core += trial.cheapest_stretch(fanout, CoreRule::None)?;
                row.core_center += trial.cheapest_stretch(fanout, CoreRule::Center)?;
                row.core_center_and_neighbours +=
                    trial.cheapest_stretch(fanout, CoreRule::CenterAndNeighbours)?;
                row.all_core += trial.cheapest_stretch(fanout, CoreRule::All)?;
                row.unicast += trial.unicast(fanout);
            }
            for sum in [
                &mut row.no_core,
                &mut row.core_center,
                &mut row.core_center_and_neighbours,
                &mut row.all_core,
                &mut row.unicast,
            ] {
                *sum /= self.trials as f64;
            }
            done(fanout);
            Ok(row)
        })
    }

    /// The rows of figure 6: stretches from 1 to 4 in steps of 0.1.
    ///
    /// # Errors
    /// Fewer than 3 points or no trials.
    pub fn delays(&self) -> Result<Vec<DelayRow>, PlanError> {
        let trials = self.trials()?;
        let stretches = (10..=40).map(|tenths| f64::from(tenths) / 10.0);
        let mean = |stretch: f64| {
            let mut row = DelayRow { stretch, ..DelayRow::default() };
            for trial in &trials {
                let demand = trial.demand(1, CoreRule::None)?;
                let center = Root::Node(trial.center);
                let choice = trial.choose(&demand, Method::Stretch, center, stretch)?;
                let lengths = choice.tree.path_lengths(&trial.network, demand.endpoints());
                row.mean_tree_delay += lengths.mean / self.trials as f64;
                row.max_tree_delay += lengths.max / self.trials as f64;
                row.mean_direct_delay += trial.mean_distance() / self.trials as f64;
            }
            Ok(row)
        };
        stretches.map(mean).collect()
    }

    fn trials(&self) -> Result<Vec<Trial>, PlanError> {
        if self.points < 3 || self.trials == 0 {
            return Err(PlanError::Experiment { points: self.points, trials: self.trials });
        }
        let seeds = (0..self.trials).map(|number| self.seed.wrapping_add(number));
        Ok(seeds.map(|seed| Trial::new(self.points, seed)).collect())
    }

    fn over_fanouts<Row>(
        &self,
        mut row: impl FnMut(&[Trial], u32) -> Result<Row, PlanError>,
    ) -> Result<Vec<Row>, PlanError> {
        let trials = self.trials()?;
        (1..self.points as u32).map(|fanout| row(&trials, fanout)).collect()
    }
}

impl Trial {
    fn new(points: usize, seed: u64) -> Trial {
        let network = Network::square(points, SIDE, seed);
        let from_origin = |node: &usize| match network.nodes()[*node].place {
            Some(Place::Plane { x, y }) => Ordered(x.hypot(y)),
            _ => Ordered(f64::INFINITY),
        };
        let center = (0..points).min_by_key(from_origin).unwrap_or_default();
        Trial { network, center, seed }
    }

    fn points(&self) -> usize {
        self.network.nodes().len()
    }

    fn demand(&self, fanout: u32, core: CoreRule) -> Result<Demand<'_>, PlanError> {
        let users = self.points() as f64;
        let limits = Limits::bits(users, users * f64::from(fanout));
        let endpoints: Vec<(usize, Limits)> =
            (0..self.points()).map(|point| (point, limits)).collect();
        Demand::new(&self.network, &endpoints, core)
    }

    fn choose(
        &self,
        demand: &Demand<'_>,
        method: Method,
        root: Root,
        stretch: f64,
    ) -> Result<Choice, PlanError> {
        choose(demand, &Request { method, root, stretch, improve: false })
    }

    fn cheapest_stretch(&self, fanout: u32, core: CoreRule) -> Result<f64, PlanError> {
        let demand = self.demand(fanout, core)?;
        let center = Root::Node(self.center);
        let mut cheapest = f64::INFINITY;
        for stretch in STRETCHES {
            let choice = self.choose(&demand, Method::Stretch, center, stretch)?;
            cheapest = cheapest.min(choice.cost);
        }
        Ok(cheapest)
    }

    /// Every user's updates go straight to each of the points that were drawn for it.
    fn unicast(&self, fanout: u32) -> f64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ u64::from(fanout) << 32);
        let others = self.points() - 1;
        let mut sum = 0.0;
        for point in 0..self.points() {
            let distances = self.network.distances(point);
            for _user in 0..self.points() {
                let drawn = sample(&mut rng, others, fanout as usize);
                // The others are all points but this one.
                let length = |other: usize| distances[other + usize::from(other >= point)];
                sum += drawn.into_iter().map(length).sum::<f64>();
            }
        }
        sum
    }

    fn mean_distance(&self) -> f64 {
        let pairs = self.network.links().len() as f64;
        self.network.links().iter().map(|link| link.length).sum::<f64>() / pairs
    }
}
