//! How much matters at what distance: the falloff of Meru §4.2.
//!
//! The paper prints 1/((s·r+ρ)² ln²(s·r+ρ)), which is infinite where s·r+ρ is 1, some 118 m away, and grows with
//! the distance before that. Here x = e + s·r takes the place of s·r+ρ, so that the logarithm begins at 1.

use canopy_wire::Weight;
use std::f32::consts::E;

/// How fast things matter less the farther away they are: as f(r) = 1/(x² ln² x) with x = e + s·r, where r is the
/// distance in metres and s the [`Falloff::scale`].
///
/// This is close to the slowest falloff of which a whole plane has a finite sum. So what is near keeps its share
/// however large a world grows, and yet nothing is without one (Meru §4.2).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Falloff {
    /// s, per metre: the larger it is, the nearer is what has most of the weight. For a world whose lengths
    /// are ten times as large, take a tenth. With 0 or less all distances are alike.
    pub scale: f32,
}

/// The weight of one square metre at no distance, 2^6.5. Above it there is room for what is 16 times as
/// large, and below it for what is a kilometre away.
const HERE: f32 = 90.51;

impl Falloff {
    /// The usual one, for worlds in metres. Where things are spread evenly over 36 km × 36 km, as in Meru §5, 80
    /// to 90 % of all weight is within a kilometre.
    pub const METRES: Falloff = Falloff { scale: 0.2 };

    /// One with this [`scale`](Falloff::scale).
    pub const fn new(scale: f32) -> Falloff {
        Falloff { scale }
    }

    /// f(r) / f(0): 1 at no distance, and less with every metre, but never 0. A `distance`, in metres, of
    /// less than 0 counts as 0.
    pub fn at(self, distance: f32) -> f32 {
        let x = E + self.scale.max(0.0) * distance.max(0.0);
        (E / (x * x.ln())).powi(2)
    }

    /// The weight of what is `distance` metres away and `size` square metres large: the ground that it
    /// covers, or the face that it shows. An avatar may have 1, and a house 100. Twice the size is twice the
    /// weight: Meru's Eq. 1 for things that are small beside their distance.
    ///
    /// Weights span six decades. What would weigh less than [`Weight::LEAST`] has that weight; for an avatar this
    /// begins a kilometre away, and for a house seven. A size of 0 or less, or one that is no number, has
    /// the least weight too. No distance and no size makes anything [`Weight::IMPORTANT`].
    pub fn weight(self, distance: f32, size: f32) -> Weight {
        if distance.is_nan() {
            return Weight::LEAST;
        }
        Weight::nearest(HERE * size * self.at(distance))
    }
}

impl Default for Falloff {
    fn default() -> Falloff {
        Falloff::METRES
    }
}

/// The weight of what is `distance` metres away and `size` square metres large, by the usual
/// [`Falloff`]; see [`Falloff::weight`].
///
/// ```
/// use canopy_client::weight_at;
///
/// let (avatar, house) = (1.0, 100.0);
/// assert!(weight_at(5.0, avatar) > weight_at(50.0, avatar));
/// assert!(weight_at(50.0, house) > weight_at(50.0, avatar));
/// ```
pub fn weight_at(distance: f32, size: f32) -> Weight {
    Falloff::METRES.weight(distance, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::PI;

    /// The falloff's integral over a disc of so many metres around a place, over 2π: by the trapezoidal rule in
    /// steps that grow with the radius.
    fn disc(falloff: Falloff, radius: f64) -> f64 {
        const STEPS: u32 = 4000;
        let last = (radius + 1.0).ln();
        let at = |step: u32| {
            let growth = (last * f64::from(step) / f64::from(STEPS)).exp();
            let here = growth - 1.0;
            f64::from(falloff.at(here as f32)) * here * growth
        };
        let inner: f64 = (1..STEPS).map(at).sum();
        (inner + at(STEPS) / 2.0) * last / f64::from(STEPS)
    }

    /// Which share of the weight of a square world, of so many metres a side, is within a kilometre of a place.
    fn share_within_a_kilometre(falloff: Falloff, side: f64, (x, y): (f64, f64)) -> f64 {
        const RAYS: u32 = 256;
        let (mut near, mut all) = (0.0, 0.0);
        for ray in 0..RAYS {
            let (sin, cos) = (2.0 * PI * (f64::from(ray) + 0.5) / f64::from(RAYS)).sin_cos();
            let until = |at: f64, step: f64| if step > 0.0 { side - at } else { at } / step.abs();
            let edge = until(x, cos).min(until(y, sin));
            near += disc(falloff, edge.min(1000.0));
            all += disc(falloff, edge);
        }
        near / all
    }

    #[test]
    fn most_weight_of_a_large_world_is_within_a_kilometre() {
        let side = 36_000.0;
        let (middle, quarter, rim) = (side / 2.0, side / 4.0, 1.0);
        let inside = [(middle, middle), (quarter, middle), (quarter, quarter)];
        for place in inside.into_iter().chain([(rim, middle), (rim, rim)]) {
            let share = share_within_a_kilometre(Falloff::METRES, side, place);
            assert!((0.8..=0.9).contains(&share), "{share:.3} at {place:?}");
        }
    }

    #[test]
    fn weights_of_avatars_and_houses() {
        let weights = |size| [0.0, 10.0, 100.0, 1000.0, 10_000.0].map(|at| weight_at(at, size).0);
        assert_eq!(weights(1.0), [206, 172, 93, 0, 0]);
        assert_eq!(weights(100.0), [254, 251, 173, 79, 0]);
    }

    #[test]
    fn what_is_no_number_has_the_least_weight() {
        for (distance, size) in
            [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0), (1.0, 0.0), (1.0, -7.0)]
        {
            assert_eq!(weight_at(distance, size), Weight::LEAST, "{size} m² at {distance} m");
        }
        for scale in [f32::NAN, -1.0, 0.0] {
            assert_eq!(Falloff { scale }.at(100.0), Falloff { scale }.at(0.0), "{scale}");
        }
        assert_eq!(weight_at(-5.0, 1.0), weight_at(0.0, 1.0));
        assert!(!weight_at(0.0, f32::MAX).is_important());
    }

    fn rules() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x3e0);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    /// Numbers of every magnitude between two powers of ten.
    fn of_magnitude(least: f32, most: f32) -> impl Strategy<Value = f32> {
        (least..most).prop_map(|exponent| 10_f32.powf(exponent))
    }

    proptest! {
        #![proptest_config(rules())]

        #[test]
        fn what_is_farther_matters_less_and_never_nothing(
            scale in of_magnitude(-4.0, 1.0),
            near in of_magnitude(-2.0, 8.0),
            more in 1.001_f32..10.0,
        ) {
            let falloff = Falloff { scale };
            let (near, far) = (falloff.at(near), falloff.at(near * more));
            prop_assert!(near <= 1.0 && far > 0.0 && far.is_finite());
            prop_assert!(far <= near);
            // It shows as soon as there is a difference to show.
            prop_assert!(far < near || near > 0.999);
        }

        #[test]
        fn what_is_larger_or_nearer_weighs_as_much_or_more(
            scale in of_magnitude(-4.0, 1.0),
            distance in of_magnitude(-2.0, 6.0),
            size in of_magnitude(-3.0, 5.0),
            more in 1.0_f32..10.0,
        ) {
            let falloff = Falloff { scale };
            let weight = falloff.weight(distance, size);
            prop_assert!(falloff.weight(distance, size * more) >= weight);
            prop_assert!(falloff.weight(distance * more, size) <= weight);
        }

        /// The sum over all that is beyond a radius is less than (e/s)² / ln(e + s·r), which is less than any
        /// number once the radius is large enough: the plane's sum is finite.
        #[test]
        fn the_plane_has_a_finite_sum(
            scale in of_magnitude(-3.0, 1.0),
            radius in of_magnitude(0.0, 5.0),
            beyond in of_magnitude(0.0, 5.0),
        ) {
            let falloff = Falloff { scale };
            let radius = f64::from(radius);
            let outside = disc(falloff, radius * f64::from(1.0 + beyond)) - disc(falloff, radius);
            let scale = f64::from(scale);
            let e = f64::from(E);
            let bound = (e / scale).powi(2) / (e + scale * radius).ln();
            prop_assert!(outside < bound * 1.01, "{outside} of {bound}");
        }
    }
}
