//! Polygons from GeoJSON (RFC 7946), checked so that each place is in one of them at most.

use crate::error::AreasError;
use crate::ground::Ground;
use crate::plane::Point;
use crate::polygon::Polygon;
use geo::coordinate_position::CoordPos;
use geo::dimensions::Dimensions;
use geo::{BoundingRect, CoordsIter, Intersects, MultiPolygon, Relate, Validation};
use geojson::{Feature, GeoJson, GeometryValue};

/// The most corners of all polygons together: checking them takes the square of it at worst.
const MOST_CORNERS: usize = 8192;
/// The most polygons, for the same reason.
const MOST_POLYGONS: usize = 1024;
/// The largest coordinate: much larger ones have no room for digits behind the point.
const FARTHEST: f64 = 1e9;

impl Ground {
    /// The polygons of GeoJSON, in its order: of a FeatureCollection, a Feature or a geometry. A property
    /// `name` is a polygon's name. Coordinates are taken as a plane's: east, north; others are left out.
    ///
    /// # Errors
    /// It is no GeoJSON, has something else than polygons, too many corners, a polygon that crosses
    /// itself, or two that overlap.
    pub fn from_geojson(text: &str) -> Result<Ground, AreasError> {
        let wrong =
            |place: &str, what: String| AreasError::GeoJson { place: place.to_owned(), what };
        let parsed = text.parse::<GeoJson>();
        let parsed = parsed.map_err(|error| wrong("the GeoJSON", error.to_string()))?;
        let features = match parsed {
            GeoJson::FeatureCollection(all) => all.features,
            GeoJson::Feature(feature) => vec![feature],
            GeoJson::Geometry(geometry) => vec![Feature::from(geometry)],
        };
        let read = features.into_iter().enumerate().map(|(number, feature)| {
            let text = |text: String| text.chars().take(200).collect();
            read(feature).map_err(|what| wrong(&format!("feature {number}"), text(what)))
        });
        let read: Vec<(String, MultiPolygon)> = read.collect::<Result<_, _>>()?;
        let corners = read.iter().map(|(_, parts)| parts.coords_count()).sum::<usize>();
        for (found, most, of) in
            [(corners, MOST_CORNERS, "corners"), (read.len(), MOST_POLYGONS, "polygons")]
        {
            if found > most {
                return Err(wrong("the GeoJSON", format!("{found} {of} are more than {most}")));
            }
        }
        for (polygon, (_, parts)) in read.iter().enumerate() {
            let what = |error: geo::algorithm::validation::InvalidMultiPolygon| error.to_string();
            parts
                .check_validation()
                .map_err(|error| AreasError::Polygon { polygon, what: what(error) })?;
        }
        check_overlaps(&read)?;
        let ground = Ground::Polygons(read.into_iter().map(polygon).collect());
        ground.check().map(|_| ground)
    }
}

/// Neighbours may share an edge, and nothing more.
fn check_overlaps(read: &[(String, MultiPolygon)]) -> Result<(), AreasError> {
    let bounds: Vec<Option<geo::Rect>> =
        read.iter().map(|(_, parts)| parts.bounding_rect()).collect();
    for (one, (_, first)) in read.iter().enumerate() {
        for (other, (_, second)) in read.iter().enumerate().skip(one + 1) {
            let touch = bounds[one].zip(bounds[other]).is_some_and(|(a, b)| a.intersects(&b));
            let inside = CoordPos::Inside;
            if touch && first.relate(second).get(inside, inside) == Dimensions::TwoDimensional {
                return Err(AreasError::Overlap { one, other });
            }
        }
    }
    Ok(())
}

fn read(feature: Feature) -> Result<(String, MultiPolygon), String> {
    let name = feature.property("name").and_then(|name| name.as_str()).unwrap_or_default();
    let name = name.chars().filter(|letter| !letter.is_control()).take(64).collect();
    let parts = match feature.geometry.map(|geometry| geometry.value) {
        Some(GeometryValue::Polygon { coordinates }) => vec![coordinates],
        Some(GeometryValue::MultiPolygon { coordinates }) => coordinates,
        _ => return Err("it is no Polygon and no MultiPolygon".to_owned()),
    };
    let ring = |ring: Vec<geojson::Position>| {
        let corner = |corner: geojson::Position| {
            let numbers = corner.as_slice();
            let (x, y) = (*numbers.first()?, *numbers.get(1)?);
            let is_known = [x, y].iter().all(|number| number.abs() <= FARTHEST);
            is_known.then_some(geo::Coord { x, y })
        };
        let corners = ring.into_iter().map(corner).collect::<Option<Vec<_>>>();
        corners.map(geo::LineString::new).ok_or("a corner has no two numbers of at most a billion")
    };
    let mut polygons = Vec::new();
    for part in parts {
        let mut rings = part.into_iter().map(ring);
        let outline = rings.next().ok_or("it has no outline")??;
        polygons.push(geo::Polygon::new(outline, rings.collect::<Result<_, _>>()?));
    }
    Ok((name, MultiPolygon::new(polygons)))
}

fn polygon((name, parts): (String, MultiPolygon)) -> Polygon {
    let rings =
        parts.iter().flat_map(|part| std::iter::once(part.exterior()).chain(part.interiors()));
    let corners = |ring: &geo::LineString| {
        // The last corner is the first again.
        let corners = ring.coords().take(ring.0.len().saturating_sub(1));
        corners.map(|corner| [corner.x, corner.y]).collect::<Vec<Point>>()
    };
    Polygon { name, rings: rings.map(corners).collect() }
}
