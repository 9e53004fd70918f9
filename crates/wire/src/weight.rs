//! What matters how much to whom, when not everything can be sent.

/// How much a group matters to a subscriber, or an update to its publisher, beside others: a logarithmic
/// scale. Where a receiver's budget does not hold everything, flows share it by weight (Meru §4.2).
///
/// Number n stands for 2^((n − 128) / 12), so twelve steps double it, and the scale spans more than six
/// decades. Only ratios of weights mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(pub u8);

/// Steps of the scale that double a weight.
const STEPS: f32 = 12.0;

impl Weight {
    /// What has the weight 1: whatever says nothing of its weight.
    pub const ONE: Weight = Weight(128);
    /// The smallest weight.
    pub const LEAST: Weight = Weight(0);
    /// The weight of what is left out only when everything else was: see [`Weight::is_important`].
    pub const IMPORTANT: Weight = Weight(u8::MAX);

    /// The weight that is nearest to `value`, from [`Weight::LEAST`] to the one below
    /// [`Weight::IMPORTANT`]. What is no positive number is the least.
    pub fn nearest(value: f32) -> Weight {
        if value.is_nan() || value <= 0.0 {
            return Weight::LEAST;
        }
        let number = f32::from(Weight::ONE.0) + STEPS * libm::log2f(value);
        // A cast keeps to the range of its type.
        Weight((libm::roundf(number) as u8).min(Weight::IMPORTANT.0 - 1))
    }

    /// What it stands for.
    pub fn value(self) -> f32 {
        libm::exp2f((f32::from(self.0) - f32::from(Weight::ONE.0)) / STEPS)
    }

    /// Whether it is another by so much that a relay tells its parent at once and not with the next refresh:
    /// eight steps of the scale, more than a half. So of many subscribers a parent hears a few times.
    pub const fn is_far_from(self, other: Weight) -> bool {
        self.0.abs_diff(other.0) >= 8
    }

    /// Whether it comes before all weights: it is sent first, whatever the others are.
    pub const fn is_important(self) -> bool {
        self.0 == Weight::IMPORTANT.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_nearest_to_what_it_stands_for() {
        for number in 0..Weight::IMPORTANT.0 {
            assert_eq!(Weight::nearest(Weight(number).value()), Weight(number));
        }
        assert_eq!(Weight::ONE.value(), 1.0);
        assert!(Weight(254).value() / Weight::LEAST.value() > 1e6);
    }

    #[test]
    fn what_is_no_weight_becomes_the_least_and_what_is_too_much_the_most() {
        for value in [f32::NAN, 0.0, -1.0, f32::NEG_INFINITY, 1e-30] {
            assert_eq!(Weight::nearest(value), Weight::LEAST);
        }
        for value in [1e30, f32::INFINITY] {
            assert_eq!(Weight::nearest(value), Weight(254));
        }
    }
}
