//! Which position is in which area, and which group an area has.

use crate::error::AreasError;
use crate::ground::Ground;
use crate::plane::{Point, Rect};
use crate::ring::{Near, Ring};
use canopy_wire::{Group, Level};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The most splits of a division.
pub const MOST_SPLITS: usize = 4096;

/// A cell of the ground, or a quarter of a quarter … of one. It is written as the cell's number and the
/// quarters that lead to it, such as `17.2.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Area {
    cell: u32,
    /// The quarters that lead to it, two bits each, behind a bit that is set.
    path: u32,
}

/// Text that names no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no area; write the number of a cell and up to 8 quarters, such as 17.2.0")]
pub struct NoSuchArea;

impl Area {
    /// How often an area can be quartered at most.
    pub const DEEPEST: u8 = 8;

    /// A whole cell of the ground.
    pub fn cell(cell: u32) -> Area {
        Area { cell, path: 1 }
    }

    /// The number of the cell of which it is a part, or the whole.
    pub fn cell_number(self) -> u32 {
        self.cell
    }

    /// How many quarters lead to it; 0 for a whole cell.
    pub fn depth(self) -> u8 {
        (self.path.ilog2() / 2) as u8
    }

    /// The area of which it is a quarter; nothing for a whole cell.
    pub fn parent(self) -> Option<Area> {
        (self.path > 1).then_some(Area { path: self.path >> 2, ..self })
    }

    /// This quarter of it, 0 to 3: south-west, south-east, north-west, north-east.
    pub fn quarter(self, quarter: u8) -> Area {
        Area { path: self.path << 2 | u32::from(quarter & 3), ..self }
    }

    /// The quarters that lead to it, from the cell on.
    fn quarters(self) -> impl Iterator<Item = u8> {
        (0..self.depth()).rev().map(move |depth| (self.path >> (2 * depth) & 3) as u8)
    }
}

/// How a plane is divided: the cells of a ground, of which some are split into quarters. Every position
/// is in exactly one area. A cell has the group of its number, counted from the first; quarters have
/// groups of those that are left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// The cells.
    pub ground: Ground,
    /// The first group.
    pub first: u32,
    /// How many groups there are for areas.
    pub groups: u32,
    /// The areas that are split, and the groups of their quarters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub splits: BTreeMap<Area, [u32; 4]>,
}

impl Division {
    /// A ground of which nothing is split.
    ///
    /// # Errors
    /// It is not allowed, or has more cells than there are groups.
    pub fn new(ground: Ground, first: u32, groups: u32) -> Result<Division, AreasError> {
        let division = Division { ground, first, groups, splits: BTreeMap::new() };
        division.check()?;
        Ok(division)
    }

    /// Whether everything about it is as it should be.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), AreasError> {
        let Division { first, groups, .. } = *self;
        let cells = self.ground.check()?;
        let end = u64::from(first) + u64::from(groups);
        if groups == 0 || end > u64::from(Group::MAX) + 1 {
            return Err(AreasError::Groups { first, groups });
        }
        if cells > groups {
            return Err(AreasError::TooMany { cells: u64::from(cells), most: groups });
        }
        if self.splits.len() > MOST_SPLITS {
            return Err(AreasError::TooMany {
                cells: self.splits.len() as u64 * 4,
                most: 4 * MOST_SPLITS as u32,
            });
        }
        let mut taken = BTreeSet::new();
        for (area, of) in &self.splits {
            let is_there = area.cell < cells && self.has(*area) && area.depth() < Area::DEEPEST;
            let is_free = |group: &u32| {
                *group >= first + cells && u64::from(*group) < end && taken.insert(*group)
            };
            if !is_there || !of.iter().all(is_free) {
                return Err(AreasError::Split(area.to_string()));
            }
        }
        Ok(())
    }

    /// Whether an area is a whole cell, or a quarter of one that is split.
    fn has(&self, area: Area) -> bool {
        area.parent().is_none_or(|parent| self.splits.contains_key(&parent))
    }

    /// The area of a position: the only one that has it.
    pub fn area_at(&self, position: Point) -> Area {
        let point = self.ground.within(position);
        let mut area = Area::cell(self.ground.cell_at(point));
        if !self.splits.contains_key(&area) {
            return area;
        }
        let mut bounds = self.ground.bounds(area.cell);
        while self.splits.contains_key(&area) {
            let quarter = bounds.quarter_at(point);
            area = area.quarter(quarter);
            bounds = bounds.quarter(quarter);
        }
        area
    }

    /// The group of an area, whether it is split or not; nothing if there is no such area.
    pub fn group_of(&self, area: Area) -> Option<Group> {
        let number = match area.parent() {
            None if area.cell >= self.ground.cells() => return None,
            None => self.first.checked_add(area.cell)?,
            Some(parent) => self.splits.get(&parent)?[(area.path & 3) as usize],
        };
        Group::try_from(number).ok()
    }

    /// The group of a position's area.
    pub fn group_at(&self, position: Point) -> Group {
        // A division that was checked has a group for each of its areas.
        self.group_of(self.area_at(position)).unwrap_or_default()
    }

    /// The groups of the areas that rings around a position reach, each with its distance and the level of the innermost
    /// ring that reaches it. No area within reach is left out; at the edges of hexagons and polygons that are split, one may be
    /// taken that is a little farther away.
    pub fn near(&self, position: Point, rings: &[Ring]) -> BTreeMap<Group, Near> {
        let point = self.ground.within(position);
        let reach = rings.iter().map(|ring| ring.radius).fold(0.0, f64::max);
        let mut found = BTreeMap::new();
        for cell in self.ground.cells_near(point, reach) {
            let far = self.ground.distance(cell, point);
            if far <= reach {
                let area = (Area::cell(cell), self.ground.bounds(cell));
                self.take_near(area, far, point, rings, &mut found);
            }
        }
        found
    }

    fn take_near(
        &self,
        (area, bounds): (Area, Rect),
        far: f64,
        point: Point,
        rings: &[Ring],
        found: &mut BTreeMap<Group, Near>,
    ) {
        if self.splits.contains_key(&area) {
            for quarter in 0..4 {
                let part = bounds.quarter(quarter);
                let far = far.max(part.distance(point));
                self.take_near((area.quarter(quarter), part), far, point, rings, found);
            }
            return;
        }
        let level = rings.iter().find(|ring| far <= ring.radius).map(|ring| ring.level);
        if let (Some(level), Some(group)) = (level, self.group_of(area)) {
            found.insert(group, Near { level: Level(level), distance: far });
        }
    }

    /// The areas as they are now, in order: whole cells, and quarters that are not split again.
    pub fn areas(&self) -> impl Iterator<Item = Area> {
        let cells = (0..self.ground.cells()).map(Area::cell);
        let quarters =
            self.splits.keys().flat_map(|area| (0..4).map(move |quarter| area.quarter(quarter)));
        cells.chain(quarters).filter(|area| !self.splits.contains_key(area))
    }

    /// An area's bounds. Of a hexagon or polygon, what of them is inside belongs to it.
    pub fn bounds(&self, area: Area) -> Rect {
        area.quarters().fold(self.ground.bounds(area.cell), |bounds, part| bounds.quarter(part))
    }

    /// The groups that no area has, in order.
    pub fn free_groups(&self) -> impl Iterator<Item = u32> {
        let taken: BTreeSet<u32> = self.splits.values().flatten().copied().collect();
        let cells = self.ground.cells();
        let (first, end) =
            (self.first.saturating_add(cells), self.first.saturating_add(self.groups));
        (first..end).filter(move |group| !taken.contains(group))
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cell)?;
        self.quarters().try_for_each(|quarter| write!(f, ".{quarter}"))
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({self})")
    }
}

impl FromStr for Area {
    type Err = NoSuchArea;

    fn from_str(text: &str) -> Result<Area, NoSuchArea> {
        let mut parts = text.split('.');
        let cell = parts.next().and_then(|part| part.parse().ok()).ok_or(NoSuchArea)?;
        parts.try_fold(Area::cell(cell), |area, part| {
            let quarter = part.parse().ok().filter(|quarter| *quarter < 4).ok_or(NoSuchArea)?;
            (area.depth() < Area::DEEPEST).then(|| area.quarter(quarter)).ok_or(NoSuchArea)
        })
    }
}

impl TryFrom<String> for Area {
    type Error = NoSuchArea;

    fn try_from(text: String) -> Result<Area, NoSuchArea> {
        text.parse()
    }
}

impl From<Area> for String {
    fn from(area: Area) -> String {
        area.to_string()
    }
}
