//! Areas of interest (federated games §3.1): a world's plane is divided into areas, each with a group
//! of its own. Who stands somewhere publishes to the group of the area there, and subscribes to those
//! within reach, each up to the level that its distance allows.
//!
//! A [`Division`] says which position is in which area: its [`Ground`] is a grid, hexagons or polygons,
//! and each of their cells can be split into quarters, again and again. [`Crowds`] decides what is split
//! and what is merged. [`Areas`] is what a controller tells: the division in force, and while that changes,
//! the next. A [`Guide`] leads from step to step, and a [`Follower`] turns what it is told into subscriptions.
//!
//! All of it is sans-IO, without clock and randomness. Positions are in the units of the world.
#![forbid(unsafe_code)]

mod areas;
mod crowds;
mod division;
mod error;
mod follower;
#[cfg(feature = "geojson")]
mod geojson;
mod ground;
mod guide;
mod hexagons;
mod plane;
mod polygon;
mod ring;
mod svg;

pub use areas::{Areas, Phase, Report, Rules};
pub use crowds::Crowds;
pub use division::{Area, Division, MOST_SPLITS, NoSuchArea};
pub use error::AreasError;
pub use follower::{Change, Follower};
pub use ground::{Ground, MOST_CELLS};
pub use guide::{DWELL, Guide, Who};
pub use plane::{Point, Rect};
pub use polygon::Polygon;
pub use ring::{Near, Ring};
