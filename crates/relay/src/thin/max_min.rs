//! How branches share a link: weighted max-min fairness with demands, in parts of the link's capacity.

/// Which part of a link its branches without a guarantee have, where the guarantees add up to all of it.
const LEAST_WITHOUT: f64 = 0.05;

/// What a branch wants of its link, and gets. Parts of the capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    weight: f64,
    demand: f64,
    pub(crate) guaranteed: f64,
    pub(crate) share: f64,
    is_sated: bool,
}

impl Want {
    /// A branch whose guarantee is so many bits a second; 0 is none.
    pub(crate) fn of(guaranteed_bits: u64, demand: f64) -> Want {
        let weight = guaranteed_bits as f64;
        Want { weight, demand, guaranteed: 0.0, share: 0.0, is_sated: false }
    }
}

/// Shares out a part of a capacity: weighted max-min fairness with demands. Guarantees are the weights; what
/// they leave of the capacity is the weight of the branches without one, in equal parts.
pub(crate) fn share_out(total: f64, bits: u64, wants: &mut [Want]) {
    let guaranteed: f64 = wants.iter().map(|want| want.weight).sum();
    let without = wants.iter().filter(|want| want.weight == 0.0).count() as f64;
    let whole = (bits as f64).max(1.0) * total;
    let rest = (whole - guaranteed).max(LEAST_WITHOUT * whole.max(guaranteed)) / without.max(1.0);
    let mut weights = 0.0;
    for want in wants.iter_mut() {
        want.weight = if want.weight == 0.0 { rest } else { want.weight };
        weights += want.weight;
    }
    for want in wants.iter_mut() {
        want.guaranteed = total * want.weight / weights;
    }
    let mut left = total;
    loop {
        let water_level = left / weights;
        let mut is_done = true;
        for want in wants.iter_mut().filter(|want| !want.is_sated) {
            want.share = water_level * want.weight;
            if want.demand <= want.share {
                (want.share, want.is_sated, is_done) = (want.demand, true, false);
                left -= want.demand;
                weights -= want.weight;
            }
        }
        if is_done || weights <= 0.0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits a second.
    const MEGABIT: u64 = 1_000_000;

    fn shares(total: f64, of: &[(u64, f64)]) -> Vec<f64> {
        let mut wants: Vec<Want> =
            of.iter().map(|(bits, demand)| Want::of(*bits, *demand)).collect();
        share_out(total, MEGABIT, &mut wants);
        wants.iter().map(|want| (want.share * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn what_one_leaves_is_the_others() {
        assert_eq!(shares(1.0, &[(0, 0.2), (0, 20.0)]), [0.2, 0.8]);
        assert_eq!(shares(1.0, &[(0, 2.0), (0, 20.0)]), [0.5, 0.5]);
        assert_eq!(shares(0.9, &[(0, 0.1), (0, 0.2), (0, 9.0), (0, 9.0)]), [0.1, 0.2, 0.3, 0.3]);
        assert_eq!(shares(1.0, &[(0, 0.0), (0, 0.1)]), [0.0, 0.1], "nobody wants all of it");
        assert_eq!(shares(1.0, &[]), [0.0; 0]);
    }

    #[test]
    fn guarantees_are_weights() {
        assert_eq!(shares(1.0, &[(300_000, 9.0), (100_000, 9.0)]), [0.75, 0.25]);
        assert_eq!(shares(1.0, &[(3_000_000, 9.0), (1_000_000, 9.0)]), [0.75, 0.25]);
        assert_eq!(shares(1.0, &[(600_000, 9.0), (0, 9.0), (0, 9.0)]), [0.6, 0.2, 0.2]);
        assert_eq!(shares(1.0, &[(600_000, 0.1), (0, 9.0), (0, 9.0)]), [0.1, 0.45, 0.45]);
        let all = shares(1.0, &[(1_000_000, 9.0), (0, 9.0)]);
        assert!(all[1] > 0.04, "{all:?}: who has no guarantee is not shut out");
    }

    /// Whatever is wanted and guaranteed: nobody gets more than it wants, all is given away while anybody wants
    /// more, and whoever has less than it wants has its guarantee.
    #[test]
    fn no_capacity_is_left_and_no_guarantee_is_broken() {
        let mut dice = 5_u64;
        let mut roll = |below: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % below
        };
        for _ in 0..2_000 {
            let total = 0.5 + roll(50) as f64 / 100.0;
            let count = 1 + roll(12);
            let mut wants: Vec<Want> = (0..count)
                .map(|_| {
                    let bits = if roll(3) == 0 { 0 } else { roll(500_000) };
                    Want::of(bits, roll(1_000) as f64 / 2_000.0)
                })
                .collect();
            share_out(total, MEGABIT, &mut wants);
            let taken: f64 = wants.iter().map(|want| want.share).sum();
            let wanted: f64 = wants.iter().map(|want| want.demand).sum();
            assert!((taken - total.min(wanted)).abs() < 1e-9, "{taken} of {total}: {wants:?}");
            for want in &wants {
                let least = want.demand.min(want.guaranteed);
                assert!(want.share >= least - 1e-9 && want.share <= want.demand + 1e-9, "{want:?}");
            }
        }
    }
}
