//! Places: on the globe or in a plane.

/// The mean radius of the earth, kilometres.
const EARTH_RADIUS: f64 = 6371.0088;

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// On the globe, degrees.
    Globe {
        /// North of the equator, -90 to 90.
        latitude: f64,
        /// East of Greenwich, -180 to 180.
        longitude: f64,
    },
    /// In a plane, kilometres.
    Plane {
        /// To the right.
        x: f64,
        /// Up.
        y: f64,
    },
}

impl Place {
    /// The distance to another place, kilometres: on the globe along the great circle.
    ///
    /// `None` between a globe and a plane.
    pub fn distance(self, other: Place) -> Option<f64> {
        match (self, other) {
            (Place::Plane { x, y }, Place::Plane { x: x2, y: y2 }) => Some((x2 - x).hypot(y2 - y)),
            (
                Place::Globe { latitude: from, longitude: west },
                Place::Globe { latitude: to, longitude: east },
            ) => {
                let haversine = |angle: f64| (angle.to_radians() / 2.0).sin().powi(2);
                let parallels = from.to_radians().cos() * to.to_radians().cos();
                let square = haversine(to - from) + parallels * haversine(east - west);
                Some(2.0 * EARTH_RADIUS * square.sqrt().min(1.0).asin())
            }
            _ => None,
        }
    }
}

/// The middle of places of one kind: of the kind of the first.
pub(crate) fn middle(places: impl Iterator<Item = Place>) -> Option<Place> {
    let places: Vec<Place> = places.collect();
    let planes: Vec<(f64, f64)> = places
        .iter()
        .filter_map(|place| match place {
            Place::Plane { x, y } => Some((*x, *y)),
            Place::Globe { .. } => None,
        })
        .collect();
    if !planes.is_empty() {
        let count = planes.len() as f64;
        let x = planes.iter().map(|(x, _)| x).sum::<f64>() / count;
        let y = planes.iter().map(|(_, y)| y).sum::<f64>() / count;
        return Some(Place::Plane { x, y });
    }
    // On the globe: the direction of the sum of the unit vectors.
    let mut sum = [0.0; 3];
    for place in &places {
        let Place::Globe { latitude, longitude } = place else { continue };
        let (north, east) = (latitude.to_radians(), longitude.to_radians());
        sum[0] += north.cos() * east.cos();
        sum[1] += north.cos() * east.sin();
        sum[2] += north.sin();
    }
    let level = sum[0].hypot(sum[1]);
    (level.hypot(sum[2]) > 1e-9).then(|| Place::Globe {
        latitude: sum[2].atan2(level).to_degrees(),
        longitude: sum[1].atan2(sum[0]).to_degrees(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globe(latitude: f64, longitude: f64) -> Place {
        Place::Globe { latitude, longitude }
    }

    #[test]
    fn great_circles_are_known_ones() {
        let london = globe(51.5074, -0.1278);
        let new_york = globe(40.7128, -74.006);
        let km = london.distance(new_york).unwrap();
        assert!((km - 5570.2).abs() < 1.0, "{km}");
        let pole = globe(90.0, 0.0).distance(globe(-90.0, 77.0)).unwrap();
        assert!((pole - std::f64::consts::PI * EARTH_RADIUS).abs() < 1e-6, "{pole}");
    }

    #[test]
    fn the_middle_of_the_globe_is_nowhere() {
        let poles = [globe(90.0, 0.0), globe(-90.0, 0.0)];
        assert_eq!(middle(poles.into_iter()), None);
        assert_eq!(middle([].into_iter()), None);
    }
}
