//! Points and rectangles of the plane that is divided.

use serde::{Deserialize, Serialize};

/// A position: east and north, in the world's own unit.
pub type Point = [f64; 2];

/// A rectangle along the axes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rect {
    /// Its least corner.
    pub from: Point,
    /// Its greatest corner.
    pub to: Point,
}

impl Rect {
    /// Whether all its numbers are finite, and it has an inside.
    pub fn is_proper(&self) -> bool {
        let is_finite = [self.from, self.to].iter().flatten().all(|number| number.is_finite());
        let [width, height] = self.size();
        is_finite && width > 0.0 && height > 0.0 && width.is_finite() && height.is_finite()
    }

    /// Its width and its height.
    pub fn size(&self) -> Point {
        [self.to[0] - self.from[0], self.to[1] - self.from[1]]
    }

    /// The point of the rectangle that is nearest to this one. What is no number is at the least corner.
    pub fn nearest(&self, point: Point) -> Point {
        // `max` returns the number of a number and what is none.
        [0, 1].map(|axis| point[axis].max(self.from[axis]).min(self.to[axis]))
    }

    /// How far away a point is; 0 within.
    pub fn distance(&self, point: Point) -> f64 {
        distance(self.nearest(point), point)
    }

    /// The quarter in which a point is: 0 is south-west, 1 south-east, 2 north-west, 3 north-east.
    pub(crate) fn quarter_at(&self, point: Point) -> u8 {
        let middle = self.middle();
        u8::from(point[0] >= middle[0]) + 2 * u8::from(point[1] >= middle[1])
    }

    /// This quarter of it.
    pub(crate) fn quarter(&self, quarter: u8) -> Rect {
        let middle = self.middle();
        let mut part = *self;
        for (axis, bit) in [(0, 1), (1, 2)] {
            if quarter & bit == 0 {
                part.to[axis] = middle[axis];
            } else {
                part.from[axis] = middle[axis];
            }
        }
        part
    }

    fn middle(&self) -> Point {
        [0, 1].map(|axis| self.from[axis] + (self.to[axis] - self.from[axis]) / 2.0)
    }
}

/// How far two points are from each other.
pub(crate) fn distance(one: Point, other: Point) -> f64 {
    (one[0] - other[0]).hypot(one[1] - other[1])
}
