//! A plan as a picture: the network, the tree over it, what its links carry.

use canopy_plan::{Choice, Demand, Place};
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 30.0;
const HEADER: f64 = 40.0;
/// The widest line is the link that needs most.
const WIDEST: f64 = 12.0;

/// Draws the network's nodes at their places, its links thin, the tree's links as wide as the
/// capacity that they need, the core filled.
pub(super) fn svg(demand: &Demand<'_>, choice: &Choice, title: &str) -> String {
    let network = demand.network();
    let (places, height) = project(demand);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"26\" font-size=\"17\">{}</text>\n",
        escaped(title)
    );
    // In a complete graph the links would only hide the tree.
    if network.links().len() <= 8 * network.nodes().len() {
        for link in network.links() {
            svg += &line(link.ends.map(|end| places[end]), "stroke=\"#d5d5d5\"/>\n");
        }
    }
    draw_tree(&mut svg, demand, choice, &places);
    draw_nodes(&mut svg, demand, choice, &places);
    svg + "</svg>"
}

fn line([[x1, y1], [x2, y2]]: [[f64; 2]; 2], rest: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {rest}")
}

fn draw_tree(svg: &mut String, demand: &Demand<'_>, choice: &Choice, places: &[[f64; 2]]) {
    let network = demand.network();
    let both = |below: usize| choice.capacities[below].up.bits + choice.capacities[below].down.bits;
    let most = choice.tree.hops().map(|hop| both(hop.below)).fold(1e-9, f64::max);
    for hop in choice.tree.hops() {
        let width = 1.0 + (WIDEST - 1.0) * both(hop.below) / most;
        let style =
            format!("stroke=\"#2b6cb0\" stroke-opacity=\"0.75\" stroke-width=\"{width:.1}\">");
        *svg += &line([places[hop.below], places[hop.above]], &style);
        let capacity = choice.capacities[hop.below];
        let _ = writeln!(
            svg,
            "<title>{} – {}: {} up, {} down, {:.1} km</title></line>",
            escaped(&network.nodes()[hop.below].name),
            escaped(&network.nodes()[hop.above].name),
            capacity.up.bits,
            capacity.down.bits,
            network.links()[hop.link].length,
        );
    }
}

fn draw_nodes(svg: &mut String, demand: &Demand<'_>, choice: &Choice, places: &[[f64; 2]]) {
    let few = choice.tree.order().len() <= 60;
    for node in choice.tree.order() {
        let [x, y] = places[*node];
        let name = escaped(&demand.network().nodes()[*node].name);
        let is_endpoint = demand.endpoints().contains(node);
        let (radius, plain) = if is_endpoint { (4.5, "#222") } else { (2.5, "#fff") };
        let radius = if *node == choice.tree.root() { 7.0 } else { radius };
        let fill = if choice.core[*node] { "#d64a2b" } else { plain };
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"#222\">\
             <title>{name}</title></circle>"
        );
        if few {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222\" stroke=\"#fff\" stroke-width=\"3\" \
                 paint-order=\"stroke\">{name}</text>",
                x + 8.0,
                y - 6.0
            );
        }
    }
}

/// Where nodes are in the picture, and how high it is. Nodes without a place are put on a row
/// below.
fn project(demand: &Demand<'_>) -> (Vec<[f64; 2]>, f64) {
    let nodes = demand.network().nodes();
    let globe = |node: &canopy_plan::Node| match node.place {
        Some(Place::Globe { latitude, .. }) => Some(latitude),
        _ => None,
    };
    let latitudes: Vec<f64> = nodes.iter().filter_map(globe).collect();
    let middle = latitudes.iter().sum::<f64>() / latitudes.len().max(1) as f64;
    // Degrees of longitude are as long as the middle latitude makes them.
    let shrink = middle.to_radians().cos().max(0.1);
    let flat: Vec<Option<[f64; 2]>> = nodes
        .iter()
        .map(|node| {
            node.place.map(|place| match place {
                Place::Globe { latitude, longitude } => [longitude * shrink, -latitude],
                Place::Plane { x, y } => [x, -y],
            })
        })
        .collect();
    let in_view = || demand.component().iter().filter_map(|node| flat[*node]);
    let low = |axis: usize| in_view().map(|place| place[axis]).fold(f64::INFINITY, f64::min);
    let high = |axis: usize| in_view().map(|place| place[axis]).fold(f64::NEG_INFINITY, f64::max);
    let (left, top) = (low(0), low(1));
    let (left, top) = if left.is_finite() { (left, top) } else { (0.0, 0.0) };
    let width = (high(0) - left).max(1e-9);
    let depth = (high(1) - top).max(0.0);
    let scale = ((WIDTH - 2.0 * MARGIN) / width).min(1400.0 / depth.max(1e-9));
    let bottom = HEADER + MARGIN + depth * scale;
    let mut unplaced = 0.0;
    let places = flat.into_iter().map(|place| match place {
        Some([x, y]) => [MARGIN + (x - left) * scale, HEADER + (y - top) * scale],
        None => {
            unplaced += 1.0;
            [MARGIN + (unplaced * 24.0) % (WIDTH - 2.0 * MARGIN), bottom]
        }
    });
    (places.collect(), bottom + MARGIN)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
