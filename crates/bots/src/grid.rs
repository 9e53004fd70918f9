//! The world as square cells, each with a group of its own.

use canopy_wire::{Group, Level};

/// What comes to whoever is near: every update.
pub(crate) const DETAILED: Level = Level(1);
/// What comes to everybody who is interested.
pub(crate) const COARSE: Level = Level(0);

/// A cell by its column and row; cell (0, 0) begins at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Column.
    pub x: i32,
    /// Row.
    pub y: i32,
}

/// Columns and rows fit 15 bits each, so that a cell's group tells its cell.
const COLUMNS: i32 = 1 << 15;
const ROWS: i32 = 1 << 15;

/// The grid and how far walkers see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    cell: f64,
    radius: f64,
    /// Where details end; `None` if all updates have one level.
    near: Option<f64>,
}

/// Why there is no such grid, or no such cell in it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GridError {
    /// The cell's side is not a length.
    #[error("a cell of {0} metres is no cell; choose a side above 0")]
    Cell(f64),
    /// The radius is no distance, or covers too many cells.
    #[error(
        "a radius of {radius} metres over cells of {cell} metres is not usable; choose 0 to 20 cells"
    )]
    Radius {
        /// The radius, metres.
        radius: f64,
        /// The cell's side, metres.
        cell: f64,
    },
    /// Nearness is no distance within the radius.
    #[error("near is {near} metres, which is not within the radius; choose 0 to {radius}")]
    Near {
        /// How far is near, metres.
        near: f64,
        /// The radius, metres.
        radius: f64,
    },
    /// The world has more cells than groups can tell apart.
    #[error("the world reaches {0} metres from the origin, more than {columns} cells; choose larger cells", columns = COLUMNS / 2)]
    TooLarge(f64),
}

impl Grid {
    /// A grid of square cells with sides of `cell` metres for walkers that see `radius` metres.
    ///
    /// # Errors
    /// [`GridError::Cell`], [`GridError::Radius`].
    pub fn new(cell: f64, radius: f64) -> Result<Grid, GridError> {
        if !(cell.is_finite() && cell > 0.0) {
            return Err(GridError::Cell(cell));
        }
        if !(0.0..=20.0 * cell).contains(&radius) {
            return Err(GridError::Radius { radius, cell });
        }
        Ok(Grid { cell, radius, near: None })
    }

    /// The same with two levels: walkers get every update from cells within `near` metres, and
    /// one in a few from those beyond.
    ///
    /// # Errors
    /// [`GridError::Near`].
    pub fn with_near(self, near: f64) -> Result<Grid, GridError> {
        let Grid { radius, .. } = self;
        if !(0.0..=radius).contains(&near) {
            return Err(GridError::Near { near, radius });
        }
        Ok(Grid { near: Some(near), ..self })
    }

    /// The side of a cell, metres.
    pub fn cell(&self) -> f64 {
        self.cell
    }

    /// How far walkers see, metres.
    pub fn radius(&self) -> f64 {
        self.radius
    }

    /// How far walkers get every update, metres; `None` if all updates have one level.
    pub fn near(&self) -> Option<f64> {
        self.near
    }

    /// The level at which a walker at a position wants a cell.
    pub fn level_of(&self, cell: Cell, x: f64, y: f64) -> Level {
        match self.near {
            Some(near) if self.distance(cell, x, y) <= near => DETAILED,
            _ => COARSE,
        }
    }

    /// Checks that everything within `reach` metres of the origin has cells.
    ///
    /// # Errors
    /// [`GridError::TooLarge`].
    pub fn check_reach(&self, reach: f64) -> Result<(), GridError> {
        let cells = (reach + self.radius) / self.cell + 1.0;
        if cells < f64::from(COLUMNS / 2) { Ok(()) } else { Err(GridError::TooLarge(reach)) }
    }

    /// The cell that a position lies in.
    pub fn cell_of(&self, x: f64, y: f64) -> Cell {
        Cell { x: (x / self.cell).floor() as i32, y: (y / self.cell).floor() as i32 }
    }

    /// The group of a cell; different cells have different groups.
    pub fn group_of(&self, cell: Cell) -> Group {
        let column = (cell.x + COLUMNS / 2).rem_euclid(COLUMNS) as u32;
        let row = (cell.y + ROWS / 2).rem_euclid(ROWS) as u32;
        Group::new(column << 15 | row)
    }

    /// The cells of which some point is within the radius, in order: whoever is within the radius
    /// is in one of them.
    pub fn cells_around(&self, x: f64, y: f64, out: &mut Vec<Cell>) {
        out.clear();
        let low = self.cell_of(x - self.radius, y - self.radius);
        let high = self.cell_of(x + self.radius, y + self.radius);
        for column in low.x..=high.x {
            for row in low.y..=high.y {
                let cell = Cell { x: column, y: row };
                if self.distance(cell, x, y) <= self.radius {
                    out.push(cell);
                }
            }
        }
    }

    /// From a position to the nearest point of a cell.
    pub(crate) fn distance(&self, cell: Cell, x: f64, y: f64) -> f64 {
        let along = |cell: i32, at: f64| {
            let start = f64::from(cell) * self.cell;
            (start - at).max(at - (start + self.cell)).max(0.0)
        };
        along(cell.x, x).hypot(along(cell.y, y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(7),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn whoever_is_near_is_in_a_cell_around(
            x in -50.0..50.0f64, y in -50.0..50.0f64, angle in 0.0..6.3f64, part in 0.0..0.999f64,
        ) {
            let grid = Grid::new(2.0, 4.0).unwrap();
            let mut cells = Vec::new();
            grid.cells_around(x, y, &mut cells);
            let near = grid.cell_of(x + 4.0 * part * angle.cos(), y + 4.0 * part * angle.sin());
            prop_assert!(cells.contains(&near));
        }

        #[test]
        fn cells_have_groups_of_their_own(a in -9000..9000i32, b in -9000..9000i32, c in -9000..9000i32, d in -9000..9000i32) {
            let grid = Grid::new(1.0, 1.0).unwrap();
            let (first, second) = (Cell { x: a, y: b }, Cell { x: c, y: d });
            prop_assert_eq!(grid.group_of(first) == grid.group_of(second), first == second);
        }
    }

    #[test]
    fn useless_grids_are_refused() {
        assert!(matches!(Grid::new(0.0, 1.0), Err(GridError::Cell(_))));
        assert!(matches!(Grid::new(1.0, 100.0), Err(GridError::Radius { .. })));
        assert!(Grid::new(1.0, 2.0).unwrap().check_reach(1e6).is_err());
        assert!(matches!(Grid::new(1.0, 2.0).unwrap().with_near(3.0), Err(GridError::Near { .. })));
    }

    #[test]
    fn near_cells_are_detailed() {
        let one = Grid::new(2.0, 8.0).unwrap();
        let two = one.with_near(4.0).unwrap();
        for (column, level) in
            [(0, DETAILED), (2, DETAILED), (3, COARSE), (-2, DETAILED), (-4, COARSE)]
        {
            let cell = Cell { x: column, y: 0 };
            assert_eq!(two.level_of(cell, 1.0, 1.0), level, "{column}");
            assert_eq!(one.level_of(cell, 1.0, 1.0), COARSE, "one level");
        }
    }
}
