//! The world as square cells, each with a group of its own.

use canopy_wire::Group;

/// A cell by its column and row; cell (0, 0) begins at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Column.
    pub x: i32,
    /// Row.
    pub y: i32,
}

/// Columns fit 15 bits and rows 16, so that a cell's group tells its cell.
const COLUMNS: i32 = 1 << 15;
const ROWS: i32 = 1 << 16;

/// The grid and how far walkers see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    cell: f64,
    radius: f64,
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
        Ok(Grid { cell, radius })
    }

    /// The side of a cell, metres.
    pub fn cell(&self) -> f64 {
        self.cell
    }

    /// How far walkers see, metres.
    pub fn radius(&self) -> f64 {
        self.radius
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
        Group::new(column << 16 | row)
    }

    /// The cells of which some point is within the radius, in order: whoever is within the radius
    /// is in one of them.
    pub fn cells_around(&self, x: f64, y: f64, out: &mut Vec<Cell>) {
        out.clear();
        let low = self.cell_of(x - self.radius, y - self.radius);
        let high = self.cell_of(x + self.radius, y + self.radius);
        let distance = |cell: i32, at: f64| {
            let start = f64::from(cell) * self.cell;
            (start - at).max(at - (start + self.cell)).max(0.0)
        };
        for column in low.x..=high.x {
            for row in low.y..=high.y {
                if distance(column, x).hypot(distance(row, y)) <= self.radius {
                    out.push(Cell { x: column, y: row });
                }
            }
        }
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
    }
}
