//! Networks: nodes with places, links with lengths and free capacity.

use crate::place::{Place, middle};
use crate::rate::Rate;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::Path;

/// No link is longer, kilometres: further than the planets, and sums stay finite.
const LONGEST: f64 = 1e9;
/// How far a signal comes in fibre, kilometres a millisecond.
pub const FIBRE_SPEED: f64 = 200.0;

/// A place where a relay is or may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique in its network.
    pub name: String,
    /// Where it is, if that is known or follows from its neighbours.
    pub place: Option<Place>,
    /// Whether its place was given rather than taken from its neighbours.
    pub located: bool,
}

/// A link between two nodes, used in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The nodes at its ends.
    pub ends: [usize; 2],
    /// Kilometres.
    pub length: f64,
    /// Capacity that can be provisioned from the first end to the second, and back.
    pub free: [Rate; 2],
}

impl Link {
    /// A link without a limit on what can be provisioned.
    pub fn new(ends: [usize; 2], length: f64) -> Link {
        Link { ends, length, free: [Rate::UNLIMITED; 2] }
    }

    /// The other end.
    pub fn other(&self, end: usize) -> usize {
        if self.ends[0] == end { self.ends[1] } else { self.ends[0] }
    }

    /// Capacity that can be provisioned from this end, and towards it.
    pub fn free_from(&self, end: usize) -> [Rate; 2] {
        let [forward, back] = self.free;
        if self.ends[0] == end { [forward, back] } else { [back, forward] }
    }
}

/// A substrate for comtrees: a multigraph without loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// By node: its neighbours, each with the link that leads there.
    neighbours: Vec<Vec<(usize, usize)>>,
    notes: Vec<String>,
}

/// Why a description is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// A line cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// A node or a link makes no sense.
    #[error("{what}: {problem}")]
    Item {
        /// The node or the link.
        what: String,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// There is nothing in it.
    #[error("there are no nodes in it; a network has at least one")]
    Empty,
    /// The file's name does not say how it is written.
    #[error("the name of a network's file ends in .gml or .toml")]
    UnknownFormat,
}

impl NetworkError {
    pub(crate) fn line(line: usize, problem: impl Into<String>) -> NetworkError {
        NetworkError::Line { line, problem: problem.into() }
    }

    pub(crate) fn item(what: impl Into<String>, problem: impl Into<String>) -> NetworkError {
        NetworkError::Item { what: what.into(), problem: problem.into() }
    }
}

/// A link as described: its length may have to be measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    pub(crate) ends: [usize; 2],
    pub(crate) length: Option<f64>,
    pub(crate) free: [Rate; 2],
}

impl Network {
    /// A network of these nodes and links. Loops are left out, with a note: no tree uses one.
    /// Parallel links stay: each may be the one that is free.
    ///
    /// # Errors
    /// The node or link that makes no sense: two nodes of one name, an end that is no node, a
    /// length that is no positive number.
    pub fn new(nodes: Vec<Node>, links: Vec<Link>) -> Result<Network, NetworkError> {
        let described =
            |link: Link| Described { ends: link.ends, length: Some(link.length), free: link.free };
        Network::described(nodes, &links.into_iter().map(described).collect::<Vec<_>>(), Vec::new())
    }

    /// Reads what a file of this name holds: the name's end says how it is written.
    ///
    /// # Errors
    /// What is wrong, with its line or the name of the node or link.
    pub fn from_file(name: &Path, content: &[u8]) -> Result<Network, NetworkError> {
        // The Topology Zoo's files are older than their encoding: what is no UTF-8 is in a name.
        let text = String::from_utf8_lossy(content);
        match name.extension().and_then(|extension| extension.to_str()) {
            Some("gml") => Network::from_gml(&text),
            Some("toml") => Network::from_toml(&text),
            _ => Err(NetworkError::UnknownFormat),
        }
    }

    /// The same, with lengths from places where none is given. A node without a place takes the
    /// middle of its neighbours', with a note.
    pub(crate) fn described(
        mut nodes: Vec<Node>,
        described: &[Described],
        mut notes: Vec<String>,
    ) -> Result<Network, NetworkError> {
        if nodes.is_empty() {
            return Err(NetworkError::Empty);
        }
        check_names(&nodes)?;
        let mut neighbours = vec![Vec::new(); nodes.len()];
        let mut kept = Vec::new();
        for link in described {
            let [from, to] = link.ends;
            if from.max(to) >= nodes.len() {
                let last = nodes.len() - 1;
                let problem = format!("an end is no node; the nodes are numbered 0 to {last}");
                return Err(NetworkError::item(format!("link {from}–{to}"), problem));
            }
            if from == to {
                notes.push(format!("left out the loop at {}", nodes[from].name));
                continue;
            }
            neighbours[from].push((to, kept.len()));
            neighbours[to].push((from, kept.len()));
            kept.push(*link);
        }
        place_between(&mut nodes, &neighbours, &mut notes);
        let mut links = Vec::with_capacity(kept.len());
        for Described { ends, length, free } in kept {
            let [from, to] = ends.map(|end| &nodes[end]);
            let what = || format!("link {}–{}", from.name, to.name);
            let places = from.place.zip(to.place);
            let measured = places.and_then(|(from, to)| from.distance(to));
            let Some(length) = length.or(measured) else {
                let problem =
                    "its ends have no places of one kind to measure between; give it a length";
                return Err(NetworkError::item(what(), problem));
            };
            if !(0.0..=LONGEST).contains(&length) {
                let problem = format!("the length {length} is out of range; give 0 to 1e9 km");
                return Err(NetworkError::item(what(), problem));
            }
            links.push(Link { ends, length, free });
        }
        Ok(Network { nodes, links, neighbours, notes })
    }

    /// Points spread uniformly over a square around the origin, every two of them linked directly
    /// (Forest §3.5's experiments use 25 in a square of side 2). The same seed gives the same. The
    /// side is 1 metre to the earth's circumference; others are taken as the nearest of these.
    pub fn square(points: usize, side: f64, seed: u64) -> Network {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let half = if side > 0.001 { side.min(40_000.0) } else { 0.001 } / 2.0;
        let mut coordinate = || rng.random_range(-half..half);
        let nodes: Vec<Node> = (0..points.max(1))
            .map(|number| {
                let place = Some(Place::Plane { x: coordinate(), y: coordinate() });
                Node { name: format!("p{number}"), place, located: true }
            })
            .collect();
        let between = |from: usize, to: usize| Described {
            ends: [from, to],
            length: None,
            free: [Rate::UNLIMITED; 2],
        };
        let links: Vec<Described> = (0..nodes.len())
            .flat_map(|from| (from + 1..points).map(move |to| between(from, to)))
            .collect();
        let Ok(network) = Network::described(nodes, &links, Vec::new()) else {
            unreachable!("points in a plane are nodes, and have distances")
        };
        network
    }

    /// The complete graph over the same nodes: every two that a path joins are linked, by a link
    /// as long as the shortest path. What is free on the paths is not carried over: the overlay's
    /// links are tunnels, and several may share a path.
    #[must_use]
    pub fn complete(&self) -> Network {
        let mut links = Vec::new();
        for from in 0..self.nodes.len() {
            let reach = self.distances(from);
            let further = reach.iter().enumerate().skip(from + 1);
            let joined = further.filter(|(_, length)| length.is_finite());
            links.extend(joined.map(|(to, length)| Link::new([from, to], *length)));
        }
        let Ok(mut network) = Network::new(self.nodes.clone(), links) else {
            unreachable!("the nodes were a network's, and distances are lengths")
        };
        network.notes.clone_from(&self.notes);
        network
    }

    /// The nodes, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The links, by number.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// A node's neighbours, each with the link that leads there.
    pub fn neighbours(&self, node: usize) -> &[(usize, usize)] {
        &self.neighbours[node]
    }

    /// What was put right while it was read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The same network with so much free on every link, both ways.
    #[must_use]
    pub fn with_free(mut self, free: Rate) -> Network {
        self.links.iter_mut().for_each(|link| link.free = [free; 2]);
        self
    }

    /// Whether any link has a limit on what can be provisioned.
    pub fn has_limits(&self) -> bool {
        self.links.iter().any(|link| link.free != [Rate::UNLIMITED; 2])
    }

    /// The number of the node of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// The nodes of the largest component, in order; of several as large, of the first.
    pub fn largest_component(&self) -> Vec<usize> {
        let mut largest = Vec::new();
        let mut seen = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            if seen[start] {
                continue;
            }
            let component = self.component(start);
            component.iter().for_each(|node| seen[*node] = true);
            if component.len() > largest.len() {
                largest = component;
            }
        }
        largest
    }

    /// The nodes that paths join to this one, with it, in order.
    pub fn component(&self, start: usize) -> Vec<usize> {
        let mut seen = vec![false; self.nodes.len()];
        seen[start] = true;
        let mut queue = VecDeque::from([start]);
        let mut component = Vec::new();
        while let Some(node) = queue.pop_front() {
            component.push(node);
            for (next, _) in &self.neighbours[node] {
                if !std::mem::replace(&mut seen[*next], true) {
                    queue.push_back(*next);
                }
            }
        }
        component.sort_unstable();
        component
    }

    /// The length of the shortest path from one node to each, kilometres; infinite where none is.
    pub fn distances(&self, from: usize) -> Vec<f64> {
        self.shortest_paths(from).lengths
    }

    /// The shortest paths from a node (Dijkstra).
    pub(crate) fn shortest_paths(&self, from: usize) -> ShortestPaths {
        let mut lengths = vec![f64::INFINITY; self.nodes.len()];
        let mut hops = vec![None; self.nodes.len()];
        lengths[from] = 0.0;
        if self.is_dense() {
            self.settle_dense(&mut lengths, &mut hops);
            return ShortestPaths { lengths, hops };
        }
        let mut queue = BinaryHeap::from([(Reverse(Ordered(0.0)), from)]);
        while let Some((Reverse(Ordered(so_far)), node)) = queue.pop() {
            if so_far > lengths[node] {
                continue;
            }
            for (next, link) in &self.neighbours[node] {
                let longer = so_far + self.links[*link].length;
                if longer < lengths[*next] {
                    lengths[*next] = longer;
                    hops[*next] = Some((node, *link));
                    queue.push((Reverse(Ordered(longer)), *next));
                }
            }
        }
        ShortestPaths { lengths, hops }
    }

    /// The same by looking through all nodes for the nearest, without a queue.
    fn settle_dense(&self, lengths: &mut [f64], hops: &mut [Option<(usize, usize)>]) {
        let mut settled = vec![false; self.nodes.len()];
        loop {
            let open = (0..settled.len()).filter(|node| !settled[*node]);
            let nearest = open.min_by(|a, b| lengths[*a].total_cmp(&lengths[*b]));
            let Some(node) = nearest.filter(|node| lengths[*node].is_finite()) else { return };
            settled[node] = true;
            for (next, link) in &self.neighbours[node] {
                let longer = lengths[node] + self.links[*link].length;
                if longer < lengths[*next] {
                    lengths[*next] = longer;
                    hops[*next] = Some((node, *link));
                }
            }
        }
    }

    /// Whether so many of the nodes are linked that a queue of links costs more than it saves.
    pub(crate) fn is_dense(&self) -> bool {
        self.links.len() > self.nodes.len() * self.nodes.len() / 8
    }
}

/// The shortest paths from one node, by node.
#[derive(Clone, Debug)]
pub(crate) struct ShortestPaths {
    /// Kilometres; infinite where no path leads.
    pub(crate) lengths: Vec<f64>,
    /// The last hop of the path: where from, and over which link.
    pub(crate) hops: Vec<Option<(usize, usize)>>,
}

/// A length or a cost in order: never a NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ordered(pub(crate) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

fn check_names(nodes: &[Node]) -> Result<(), NetworkError> {
    let mut names = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        if let Some(earlier) = names.insert(&node.name, number) {
            let problem = format!("nodes {earlier} and {number} have this name; give each its own");
            return Err(NetworkError::item(format!("node {:?}", node.name), problem));
        }
        let fits = match node.place {
            Some(Place::Globe { latitude, longitude }) => {
                latitude.abs() <= 90.0 && longitude.abs() <= 180.0
            }
            Some(Place::Plane { x, y }) => x.is_finite() && y.is_finite(),
            None => true,
        };
        if !fits {
            let problem = "its place is out of range; latitude is -90 to 90, longitude -180 to 180, x and y \
                 are numbers";
            return Err(NetworkError::item(format!("node {:?}", node.name), problem));
        }
    }
    Ok(())
}

/// Gives nodes without a place the middle of their neighbours', outwards from those that have one.
fn place_between(nodes: &mut [Node], neighbours: &[Vec<(usize, usize)>], notes: &mut Vec<String>) {
    let unplaced = |nodes: &[Node]| nodes.iter().filter(|node| node.place.is_none()).count();
    let before = unplaced(nodes);
    let first = nodes.iter().find(|node| node.place.is_none()).map(|node| node.name.clone());
    loop {
        let placed: Vec<(usize, Place)> = (0..nodes.len())
            .filter(|node| nodes[*node].place.is_none())
            .filter_map(|node| {
                let around = neighbours[node].iter().filter_map(|(next, _)| nodes[*next].place);
                Some((node, middle(around)?))
            })
            .collect();
        if placed.is_empty() {
            break;
        }
        placed.into_iter().for_each(|(node, place)| nodes[node].place = Some(place));
    }
    let placed = before - unplaced(nodes);
    if let Some(first) = first.filter(|_| placed > 0) {
        let nodes = counted(placed, "node");
        notes.push(format!("put {nodes} without a place between neighbours, {first} first"));
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, place: Option<Place>) -> Node {
        Node { name: name.to_owned(), place, located: place.is_some() }
    }

    fn globe(latitude: f64, longitude: f64) -> Option<Place> {
        Some(Place::Globe { latitude, longitude })
    }

    #[test]
    fn whoever_has_no_place_is_put_between_its_neighbours() {
        let nodes = vec![
            node("a", globe(0.0, 170.0)),
            node("b", globe(0.0, -170.0)),
            node("c", None),
            node("d", None),
        ];
        let link = |ends| Described { ends, length: None, free: [Rate::UNLIMITED; 2] };
        let links = [link([0, 2]), link([1, 2]), link([2, 3])];
        let network = Network::described(nodes, &links, Vec::new()).unwrap();
        let Some(Place::Globe { latitude, longitude }) = network.nodes()[2].place else { panic!() };
        assert!(latitude.abs() < 1e-9 && (longitude.abs() - 180.0).abs() < 1e-9, "{longitude}");
        assert_eq!(network.notes(), ["put 2 nodes without a place between neighbours, c first"]);
        assert_eq!(network.links()[2].length, 0.0);
    }

    #[test]
    fn loops_are_left_out_and_parallels_stay() {
        let nodes = vec![node("a", None), node("b", None)];
        let links = vec![Link::new([0, 0], 1.0), Link::new([0, 1], 5.0), Link::new([1, 0], 3.0)];
        let network = Network::new(nodes, links).unwrap();
        assert_eq!(network.links().len(), 2);
        assert_eq!(network.notes(), ["left out the loop at a"]);
        assert_eq!(network.distances(0), [0.0, 3.0]);
    }

    #[test]
    fn nonsense_is_named() {
        let ab = || vec![node("a", None), node("b", None)];
        let cases = [
            (Network::new(Vec::new(), Vec::new()), "there are no nodes in it"),
            (
                Network::new(vec![node("a", None), node("a", None)], Vec::new()),
                "node \"a\": nodes 0 and 1",
            ),
            (Network::new(ab(), vec![Link::new([0, 2], 1.0)]), "link 0–2: an end is no node"),
            (Network::new(ab(), vec![Link::new([0, 1], -1.0)]), "link a–b: the length -1"),
            (Network::new(vec![node("a", globe(91.0, 0.0))], Vec::new()), "node \"a\": its place"),
        ];
        for (network, expected) in cases {
            let error = network.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let link = Described { ends: [0, 1], length: None, free: [Rate::UNLIMITED; 2] };
        let error = Network::described(ab(), &[link], Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("link a–b: its ends have no places of one kind"), "{error}");
    }

    #[test]
    fn the_largest_component_is_found() {
        let nodes = "abcde".chars().map(|name| node(&name.to_string(), None)).collect();
        let links = vec![Link::new([0, 1], 1.0), Link::new([2, 4], 1.0), Link::new([4, 3], 1.0)];
        let network = Network::new(nodes, links).unwrap();
        assert_eq!(network.largest_component(), [2, 3, 4]);
        let complete = network.complete();
        assert_eq!(complete.links().len(), 1 + 3);
        assert_eq!(complete.distances(2)[3], 2.0);
    }

    #[test]
    fn a_seed_gives_one_square() {
        let square = Network::square(25, 2.0, 7);
        assert_eq!(square, Network::square(25, 2.0, 7));
        assert_ne!(square, Network::square(25, 2.0, 8));
        assert_eq!(square.links().len(), 25 * 24 / 2);
    }
}
