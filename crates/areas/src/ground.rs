//! How a world's plane is cut at first, before anything is split: squares, hexagons or polygons.

use crate::error::AreasError;
use crate::hexagons::Hexagons;
use crate::plane::{Point, Rect};
use crate::polygon::Polygon;
use serde::{Deserialize, Serialize};

/// The most cells of a ground.
pub const MOST_CELLS: u32 = 65_536;

/// The cells into which a plane is cut. Each position is in exactly one: what is beyond the edge of a
/// grid belongs to the cell that is nearest, and what is in no polygon to the nearest polygon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ground {
    /// Squares, row by row from the least corner on.
    Grid {
        /// The length of a side.
        size: f64,
        /// What they cover.
        over: Rect,
    },
    /// Hexagons that stand on a tip, row by row from the least corner on, where the first has its centre.
    Hex {
        /// From one flat side to the other.
        size: f64,
        /// What they cover.
        over: Rect,
    },
    /// Polygons that do not overlap.
    Polygons(Vec<Polygon>),
}

impl Ground {
    /// How many cells there are.
    ///
    /// # Errors
    /// A number is not allowed, or there are more than [`MOST_CELLS`].
    pub fn check(&self) -> Result<u32, AreasError> {
        let wrong = |place, found: String, wanted| Err(AreasError::Number { place, found, wanted });
        let cells = match self {
            Ground::Grid { size, over } | Ground::Hex { size, over } => {
                if !(size.is_finite() && *size > 0.0) {
                    return wrong("size", size.to_string(), "a length above 0");
                }
                if !over.is_proper() {
                    let wanted = "two corners, the second one north-east of the first";
                    return wrong("over", format!("{:?} to {:?}", over.from, over.to), wanted);
                }
                let [columns, rows] = self.counts();
                columns * rows
            }
            Ground::Polygons(polygons) => {
                if let Some(polygon) = polygons.iter().position(|polygon| !polygon.is_proper()) {
                    let what = "it has no outline of finite numbers".to_owned();
                    return Err(AreasError::Polygon { polygon, what });
                }
                polygons.len() as f64
            }
        };
        if cells < 1.0 {
            return wrong("polygons", "empty".to_owned(), "at least one polygon");
        }
        if cells > f64::from(MOST_CELLS) {
            return Err(AreasError::TooMany { cells: cells as u64, most: MOST_CELLS });
        }
        Ok(cells as u32)
    }

    /// How many cells a ground has that was checked.
    pub(crate) fn cells(&self) -> u32 {
        let [columns, rows] = self.counts();
        (columns * rows) as u32
    }

    /// How many columns and rows there are; polygons are in one row.
    fn counts(&self) -> [f64; 2] {
        match self {
            Ground::Grid { size, over } => over.size().map(|side| (side / size).ceil()),
            Ground::Hex { size, over } => Hexagons::new(*size, *over).counts(),
            Ground::Polygons(polygons) => [polygons.len() as f64, 1.0],
        }
    }

    /// The position that counts for a position: itself, or the nearest one that is covered.
    pub(crate) fn within(&self, point: Point) -> Point {
        match self {
            Ground::Grid { over, .. } | Ground::Hex { over, .. } => over.nearest(point),
            Ground::Polygons(_) => {
                point.map(|number| if number.is_finite() { number } else { 0.0 })
            }
        }
    }

    /// The cell of a position that is [within](Ground::within).
    pub(crate) fn cell_at(&self, point: Point) -> u32 {
        match self {
            Ground::Grid { size, over } => {
                let [columns, rows] = self.counts().map(|count| count as u32);
                let at = |axis: usize| ((point[axis] - over.from[axis]) / size) as u32;
                at(1).min(rows - 1) * columns + at(0).min(columns - 1)
            }
            Ground::Hex { size, over } => Hexagons::new(*size, *over).cell_at(point),
            Ground::Polygons(polygons) => {
                let inside = polygons.iter().position(|polygon| polygon.contains(point));
                let nearest = || {
                    let far = polygons.iter().map(|polygon| polygon.distance(point));
                    far.enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other))
                };
                inside.or_else(|| nearest().map(|(cell, _)| cell)).unwrap_or(0) as u32
            }
        }
    }

    /// The cells of which something may be within a radius of a position that is within.
    pub(crate) fn cells_near(&self, point: Point, radius: f64) -> Vec<u32> {
        match self {
            Ground::Grid { size, over } => {
                let [columns, rows] = self.counts().map(|count| count as u32);
                let at = |axis: usize, off: f64, count: u32| {
                    // A negative number becomes 0.
                    (((point[axis] + off - over.from[axis]) / size) as u32).min(count - 1)
                };
                let across = at(0, -radius, columns)..=at(0, radius, columns);
                (at(1, -radius, rows)..=at(1, radius, rows))
                    .flat_map(|row| across.clone().map(move |column| row * columns + column))
                    .collect()
            }
            Ground::Hex { size, over } => Hexagons::new(*size, *over).cells_near(point, radius),
            Ground::Polygons(polygons) => (0..polygons.len() as u32).collect(),
        }
    }

    /// A cell's bounds: the rectangle that is quartered when it is split.
    pub(crate) fn bounds(&self, cell: u32) -> Rect {
        match self {
            Ground::Grid { size, over } => {
                let columns = self.counts()[0] as u32;
                let from = [
                    over.from[0] + f64::from(cell % columns) * size,
                    over.from[1] + f64::from(cell / columns) * size,
                ];
                Rect { from, to: from.map(|corner| corner + size) }
            }
            _ => Polygon { name: String::new(), rings: self.outline(cell) }.bounds(),
        }
    }

    /// How far a position that is within is from a cell; 0 inside.
    pub(crate) fn distance(&self, cell: u32, point: Point) -> f64 {
        match self {
            Ground::Grid { .. } => self.bounds(cell).distance(point),
            Ground::Hex { .. } => {
                Polygon { name: String::new(), rings: self.outline(cell) }.distance(point)
            }
            Ground::Polygons(polygons) => {
                polygons.get(cell as usize).map_or(f64::INFINITY, |polygon| polygon.distance(point))
            }
        }
    }

    /// A cell's outlines.
    pub(crate) fn outline(&self, cell: u32) -> Vec<Vec<Point>> {
        match self {
            Ground::Grid { .. } => {
                let Rect { from, to } = self.bounds(cell);
                vec![vec![from, [to[0], from[1]], to, [from[0], to[1]]]]
            }
            Ground::Hex { size, over } => vec![Hexagons::new(*size, *over).corners(cell)],
            Ground::Polygons(polygons) => {
                polygons.get(cell as usize).map(|polygon| polygon.rings.clone()).unwrap_or_default()
            }
        }
    }
}
