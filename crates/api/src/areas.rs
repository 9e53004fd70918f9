//! Areas of interest: how a world is divided, and how many are where.

use crate::body::name;
use crate::problem::Problem;
use canopy_areas::{Area, Areas, Ground, Guide, Phase, Rect, Ring, Rules};
use canopy_control::{Controller, Name, NewAreas, World};
use canopy_wire::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How often a cell is quartered at most, if nothing is said.
const DEEPEST: u8 = 4;

/// How a world is to be divided. Exactly one of `grid`, `hex` and `geojson` is to be given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AreasAsk {
    /// The channel whose groups the areas have; the world's only one if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Squares with sides of this length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<f64>,
    /// Hexagons of this width, from one flat side to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hex: Option<f64>,
    /// Polygons, as GeoJSON: a FeatureCollection of Polygons and MultiPolygons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub geojson: Option<serde_json::Value>,
    /// What a grid or hexagons cover: the least and the greatest corner, x0, y0, x1, y1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!([0.0, 0.0, 1000.0, 1000.0]))]
    pub over: Option<[f64; 4]>,
    /// How far one hears, from the innermost ring on.
    pub rings: Vec<RingView>,
    /// An area with more than so many members in it is split; none is if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_above: Option<u32>,
    /// Four quarters with fewer members together are merged: at most half of `split_above`, which it is
    /// if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_below: Option<u32>,
    /// How often an area is quartered at most, 1 to 8; 4 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deepest: Option<u8>,
}

/// Up to which level one hears what is within a radius.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RingView {
    /// The radius, in the world's unit.
    pub radius: f64,
    /// The level: detail is the higher number.
    pub level: u8,
}

/// A world's areas.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct AreasView {
    /// How many steps their changes have gone; three are a change.
    pub step: u64,
    /// Whether they are changing.
    pub phase: PhaseView,
    /// How many groups no area has.
    pub free_groups: usize,
    /// How many members follow them.
    pub followers: usize,
    /// The areas in force.
    pub areas: Vec<AreaView>,
    /// All of it as followers are told.
    #[schema(value_type = Object)]
    pub told: serde_json::Value,
}

/// What of a change is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PhaseView {
    /// There is one division.
    Settled,
    /// The groups of the next one are being subscribed to.
    Ready,
    /// The next one is published by, and the one before still heard.
    Turned,
}

/// An area.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct AreaView {
    /// The number of its cell, and the quarters of it, such as `17.2.0`.
    pub area: String,
    /// Its group.
    pub group: u32,
    /// The rectangle around it: x0, y0, x1, y1.
    pub bounds: [f64; 4],
    /// How many members are in it, as far as they have said.
    pub members: u32,
}

/// Divides a world into areas, or otherwise than before; the ground is what [`ground`] makes of the same
/// question.
///
/// # Errors
/// A value is not allowed, there is no such world or channel, there are more areas than groups, or a
/// change is under way.
pub fn set_areas(
    controller: &mut Controller,
    now: Time,
    of: &str,
    ask: &AreasAsk,
    ground: Ground,
) -> Result<AreasView, Problem> {
    let world = controller.world(&name("world", of)?)?;
    let channel = channel(world, ask.channel.as_deref())?;
    let world = world.name.clone();
    let ring = |ring: &RingView| Ring { radius: ring.radius, level: ring.level };
    let rings = ask.rings.iter().map(ring).collect();
    let new = NewAreas { ground, channel, rings, rules: rules(ask)? };
    controller.set_areas(now, &world, new)?;
    areas(controller, of)
}

/// A world's areas.
///
/// # Errors
/// There is no such world, or it has none.
pub fn areas(controller: &Controller, of: &str) -> Result<AreasView, Problem> {
    let world = controller.world(&name("world", of)?)?;
    match controller.areas(world.id) {
        Some(guide) => Ok(view(guide)),
        None => {
            let place = format!("world {}", world.name);
            Err(Problem::missing(&place, "it has no areas", "divide it first"))
        }
    }
}

fn channel(world: &World, asked: Option<&str>) -> Result<Name, Problem> {
    match (asked, &world.channels[..]) {
        (Some(asked), _) => name("channel", asked),
        (None, [only]) => Ok(only.name.clone()),
        (None, all) => {
            let what = format!("the world has {} channels", all.len());
            Err(Problem::value("channel", what, "name the one whose groups the areas are to have"))
        }
    }
}

/// The cells that are asked for. Checking polygons may take seconds, so it is not for the controller's
/// thread.
///
/// # Errors
/// Not one kind of cells is asked for, or polygons cross themselves or each other.
pub fn ground(ask: &AreasAsk) -> Result<Ground, Problem> {
    let over = || {
        let [x0, y0, x1, y1] = ask.over.ok_or_else(|| {
            let what = "nothing says what the areas cover";
            Problem::value(
                "over",
                what,
                "give the least and the greatest corner, such as 0,0,1000,1000",
            )
        })?;
        Ok::<_, Problem>(Rect { from: [x0, y0], to: [x1, y1] })
    };
    match (ask.grid, ask.hex, &ask.geojson) {
        (Some(size), None, None) => Ok(Ground::Grid { size, over: over()? }),
        (None, Some(size), None) => Ok(Ground::Hex { size, over: over()? }),
        (None, None, Some(geojson)) => {
            if ask.over.is_some() {
                let what = "polygons say themselves what they cover";
                return Err(Problem::value("over", what, "leave it out"));
            }
            Ground::from_geojson(&geojson.to_string())
                .map_err(|error| canopy_control::Refusal::from(error).into())
        }
        _ => {
            let what = "exactly one of grid, hex and geojson is needed";
            Err(Problem::value("areas", what, "give one of them"))
        }
    }
}

fn rules(ask: &AreasAsk) -> Result<Option<Rules>, Problem> {
    let deepest = ask.deepest.unwrap_or(DEEPEST);
    if !(1..=Area::DEEPEST).contains(&deepest) {
        let remedy = format!("give 1 to {}", Area::DEEPEST);
        return Err(Problem::value("deepest", format!("{deepest} is not allowed"), &remedy));
    }
    match (ask.split_above, ask.merge_below) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let what = "nothing is merged where nothing is split";
            Err(Problem::value("merge_below", what, "give split_above, too"))
        }
        (Some(split_above), merge_below) => {
            let merge_below = merge_below.unwrap_or(split_above / 2);
            Ok(Some(Rules { split_above, merge_below, deepest }))
        }
    }
}

fn view(guide: &Guide) -> AreasView {
    let told: &Areas = guide.areas();
    let (division, crowd) = (told.in_force(), guide.crowd());
    let area = |area: Area| {
        let Rect { from, to } = division.bounds(area);
        AreaView {
            area: area.to_string(),
            group: division.group_of(area).map_or(0, |group| group.number()),
            bounds: [from[0], from[1], to[0], to[1]],
            members: crowd.get(&area).copied().unwrap_or(0),
        }
    };
    AreasView {
        step: told.step,
        phase: match told.phase() {
            Phase::Settled => PhaseView::Settled,
            Phase::Ready => PhaseView::Ready,
            Phase::Turned => PhaseView::Turned,
        },
        free_groups: division.free_groups().count(),
        followers: guide.followers(),
        areas: division.areas().map(area).collect(),
        told: serde_json::to_value(told).unwrap_or_default(),
    }
}
