//! An area whose outline is given.

use crate::plane::{Point, Rect, distance};
use serde::{Deserialize, Serialize};

/// A polygon of one or several parts, perhaps with holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Polygon {
    /// Its name; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The outlines of its parts and holes, each without its first point again at the end.
    pub rings: Vec<Vec<Point>>,
}

impl Polygon {
    /// Whether it has an outline of finite numbers, and an extent.
    pub(crate) fn is_proper(&self) -> bool {
        self.rings.iter().all(|ring| ring.len() >= 3) && self.bounds().is_proper()
    }

    /// The smallest rectangle around it.
    pub(crate) fn bounds(&self) -> Rect {
        let none = Rect { from: [f64::INFINITY; 2], to: [f64::NEG_INFINITY; 2] };
        self.rings.iter().flatten().fold(none, |rect, point| {
            let with = |of: Point, least: fn(f64, f64) -> f64| {
                [0, 1].map(|axis| least(of[axis], point[axis]))
            };
            Rect { from: with(rect.from, f64::min), to: with(rect.to, f64::max) }
        })
    }

    /// Whether a point is inside: a ray to the east crosses the outlines an odd number of times.
    pub(crate) fn contains(&self, [x, y]: Point) -> bool {
        let crosses = |[[x0, y0], [x1, y1]]: &[Point; 2]| {
            (*y0 > y) != (*y1 > y) && x < (x1 - x0) * (y - y0) / (y1 - y0) + x0
        };
        self.edges().filter(crosses).count() % 2 == 1
    }

    /// How far away a point is; 0 inside.
    pub(crate) fn distance(&self, point: Point) -> f64 {
        if self.contains(point) {
            return 0.0;
        }
        self.edges().map(|edge| to_edge(edge, point)).fold(f64::INFINITY, f64::min)
    }

    fn edges(&self) -> impl Iterator<Item = [Point; 2]> {
        self.rings.iter().flat_map(|ring| {
            let next = ring.iter().cycle().skip(1);
            ring.iter().zip(next).map(|(from, to)| [*from, *to])
        })
    }
}

fn to_edge([from, to]: [Point; 2], point: Point) -> f64 {
    let along = [to[0] - from[0], to[1] - from[1]];
    let length = along[0] * along[0] + along[1] * along[1];
    let share = (point[0] - from[0]) * along[0] + (point[1] - from[1]) * along[1];
    let share = if length > 0.0 { (share / length).clamp(0.0, 1.0) } else { 0.0 };
    distance([from[0] + share * along[0], from[1] + share * along[1]], point)
}
