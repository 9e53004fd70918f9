//! Hexagons that stand on a tip, in rows; every other row is shifted by half a hexagon.

use crate::plane::{Point, Rect, distance};

/// The rows and columns of hexagons that cover a rectangle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hexagons {
    /// From one flat side to the other.
    width: f64,
    over: Rect,
}

impl Hexagons {
    pub(crate) fn new(width: f64, over: Rect) -> Hexagons {
        Hexagons { width, over }
    }

    /// How far a row is from the next.
    fn row_height(&self) -> f64 {
        self.width * 3_f64.sqrt() / 2.0
    }

    /// How many columns and rows there are. The first centre is at the rectangle's least corner, the last
    /// at most half a hexagon before its greatest.
    pub(crate) fn counts(&self) -> [f64; 2] {
        let [width, height] = self.over.size();
        [(width / self.width + 0.5).floor() + 1.0, (height / self.row_height()).ceil() + 1.0]
    }

    fn center(&self, cell: u32) -> Point {
        let columns = self.counts()[0] as u32;
        self.center_of(cell % columns, cell / columns)
    }

    fn center_of(&self, column: u32, row: u32) -> Point {
        let shift = if row.is_multiple_of(2) { 0.0 } else { 0.5 };
        let east = self.over.from[0] + (f64::from(column) + shift) * self.width;
        [east, self.over.from[1] + f64::from(row) * self.row_height()]
    }

    /// The cell whose centre is nearest, for a point within the rectangle.
    pub(crate) fn cell_at(&self, point: Point) -> u32 {
        let [columns, rows] = self.counts().map(|count| count as u32);
        let below = ((point[1] - self.over.from[1]) / self.row_height()) as u32;
        let candidates = [below, below + 1].into_iter().filter(|row| *row < rows).map(|row| {
            let first = self.center_of(0, row)[0];
            let column = ((point[0] - first) / self.width).round().max(0.0) as u32;
            (column.min(columns - 1), row)
        });
        let far = |of: &(u32, u32)| distance(self.center_of(of.0, of.1), point);
        let nearest = candidates.min_by(|one, other| far(one).total_cmp(&far(other)));
        nearest.map_or(0, |(column, row)| row * columns + column)
    }

    /// The cells of which something may be within a radius of a point.
    pub(crate) fn cells_near(&self, point: Point, radius: f64) -> Vec<u32> {
        let [columns, rows] = self.counts().map(|count| count as u32);
        // A tip is 0.58 of the width from its centre, and shifted rows are half a width off.
        let reach = radius + self.width * 1.1;
        let span = |axis: usize, step: f64, count: u32| {
            let at = |offset: f64| ((point[axis] + offset - self.over.from[axis]) / step).max(0.0);
            (at(-reach) as u32).min(count - 1)..=(at(reach).ceil() as u32).min(count - 1)
        };
        let across = span(0, self.width, columns);
        span(1, self.row_height(), rows)
            .flat_map(|row| across.clone().map(move |column| row * columns + column))
            .collect()
    }

    /// A cell's corners.
    pub(crate) fn corners(&self, cell: u32) -> Vec<Point> {
        let [x, y] = self.center(cell);
        let (half, tip) = (self.width / 2.0, self.width / 3_f64.sqrt());
        let corner = |east: f64, north: f64| [x + east * half, y + north * tip];
        vec![
            corner(0.0, 1.0),
            corner(1.0, 0.5),
            corner(1.0, -0.5),
            corner(0.0, -1.0),
            corner(-1.0, -0.5),
            corner(-1.0, 0.5),
        ]
    }
}
