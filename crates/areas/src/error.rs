//! What makes no division of a world.

/// Why a world cannot be divided so. Each text says what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AreasError {
    /// A number is not finite, or not above 0, or a rectangle has no inside.
    #[error("{place} is {found}; give {wanted}")]
    Number {
        /// Which number.
        place: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// There are more cells than a division can have, or than the channel has groups.
    #[error(
        "there are {cells} areas, and {most} groups for them; make the areas larger, or the channel"
    )]
    TooMany {
        /// How many areas there are.
        cells: u64,
        /// How many there may be.
        most: u32,
    },
    /// The groups are not all numbers of groups.
    #[error("{groups} groups from {first} on are not all groups; choose another channel")]
    Groups {
        /// The first.
        first: u32,
        /// How many.
        groups: u32,
    },
    /// A split names an area that is not there, is too deep, or has groups that are others'.
    #[error("the area {0} cannot be split so; take the division from a controller")]
    Split(String),
    /// Rings are none, too many, or not in order.
    #[error("the rings are not in order; give 1 to 8, each with a larger radius and a lower level")]
    Rings,
    /// Thresholds would make areas flap.
    #[error(
        "areas are merged below {merge_below} and split above {split_above}; merge below half of what \
         splits at most"
    )]
    Rules {
        /// Above how many a part is split.
        split_above: u32,
        /// Below how many it is merged.
        merge_below: u32,
    },
    /// Text says no areas.
    #[error("the areas cannot be read: {0}; take them from a controller")]
    Text(String),
    /// Text is no GeoJSON that has areas.
    #[error("{place}: {what}; give a FeatureCollection of Polygons and MultiPolygons")]
    GeoJson {
        /// Which part of it.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// A polygon crosses itself, or is otherwise none.
    #[error("polygon {polygon}: {what}; correct its outline")]
    Polygon {
        /// Its number, counted from 0 in the order of the file.
        polygon: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Two polygons have an inside in common.
    #[error(
        "polygon {one} and polygon {other} overlap; each place is in one area only: cut one of them"
    )]
    Overlap {
        /// The number of the first.
        one: usize,
        /// The number of the second.
        other: usize,
    },
}
