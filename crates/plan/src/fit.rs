//! What sending costs, from measured times: regression as in Groupcast §6.1.
//!
//! Samples count by relative error: each is divided by its time, so that a few receivers weigh as
//! much as many. Without that the largest groups alone would decide x and y, and what a message
//! costs by itself would drown in their noise.

use crate::send_cost::SendCost;

/// A measured send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// N: receivers, more than 0.
    pub receivers: f64,
    /// b: bytes of the update, 0 or more.
    pub bytes: f64,
    /// S: the time that it took, more than 0, in any unit; the costs come in the same.
    pub time: f64,
}

/// The costs that come closest to the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// S = a + xN + yNb.
    pub full: FittedCost,
    /// S = xN + yNb, the paper's form (eq. 7).
    pub paper: FittedCost,
}

/// A cost, and how well it tells the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedCost {
    /// The cost. Noise may make any of its numbers negative.
    pub cost: SendCost,
    /// R²: 1 less the squared errors over the squared distances from the mean, of the times as they
    /// are; 1 at best, negative if the mean tells them better. 0 if all times are equal and missed.
    pub r2: f64,
}

/// Why there is no fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Three numbers need three samples.
    #[error("{0} samples are too few; measure 3 or more")]
    TooFew(usize),
    /// A sample is no measurement.
    #[error(
        "sample {number} says {receivers} receivers, {bytes} bytes, time {time}; give receivers and \
         time more than 0 and bytes 0 or more"
    )]
    NoSample {
        /// Which, from 1.
        number: usize,
        /// Its receivers.
        receivers: f64,
        /// Its bytes.
        bytes: f64,
        /// Its time.
        time: f64,
    },
    /// The samples lie so that several costs tell them equally well.
    #[error(
        "the samples do not tell the costs apart; measure two numbers of receivers or more, and two \
         sizes or more"
    )]
    Collinear,
}

/// Least squares of relative errors.
///
/// # Errors
/// Fewer than three samples, one that is no measurement, or samples of one size or of one number of
/// receivers alone.
pub fn fit(samples: &[Sample]) -> Result<Fit, FitError> {
    if samples.len() < 3 {
        return Err(FitError::TooFew(samples.len()));
    }
    for (index, sample) in samples.iter().enumerate() {
        sample.check(index + 1)?;
    }
    let column = |value: fn(&Sample) -> f64| -> Vec<f64> {
        samples.iter().map(|sample| value(sample) / sample.time).collect()
    };
    let ones = column(|sample| sample.time);
    let message = column(|_| 1.0);
    let receiver = column(|sample| sample.receivers);
    let byte = column(|sample| sample.receivers * sample.bytes);
    // The constant goes last: what the others tell is not counted as its own.
    let [per_receiver, per_byte, per_message] =
        least_squares([receiver.clone(), byte.clone(), message], ones.clone())?;
    let full = SendCost { per_message, per_receiver, per_byte };
    let [per_receiver, per_byte] = least_squares([receiver, byte], ones)?;
    let fitted = |cost| FittedCost { cost, r2: r_squared(cost, samples) };
    Ok(Fit { full: fitted(full), paper: fitted(SendCost::paper(per_receiver, per_byte)) })
}

impl Sample {
    fn check(&self, number: usize) -> Result<(), FitError> {
        let Sample { receivers, bytes, time } = *self;
        let finite = receivers.is_finite() && bytes.is_finite() && time.is_finite();
        if finite && receivers > 0.0 && bytes >= 0.0 && time > 0.0 {
            return Ok(());
        }
        Err(FitError::NoSample { number, receivers, bytes, time })
    }
}

/// What is left of a column, of length 1, when the others' shares are taken out; below this it is
/// rounding.
const INDEPENDENT: f64 = 1e-9;

/// The factors of the columns whose sum is closest to the target: Gram and Schmidt's method, modified,
/// with the target as one more column. It keeps the digits that normal equations lose.
fn least_squares<const K: usize>(
    mut columns: [Vec<f64>; K],
    mut target: Vec<f64>,
) -> Result<[f64; K], FitError> {
    let lengths = columns.each_ref().map(|column| dot(column, column).sqrt());
    if lengths.contains(&0.0) {
        return Err(FitError::Collinear);
    }
    for (column, length) in columns.iter_mut().zip(lengths) {
        column.iter_mut().for_each(|value| *value /= length);
    }
    let mut shares = [[0.0; K]; K];
    let mut factors = [0.0; K];
    for at in 0..K {
        let (done, rest) = columns.split_at_mut(at + 1);
        let column = &mut done[at];
        let length = dot(column, column).sqrt();
        if length < INDEPENDENT {
            return Err(FitError::Collinear);
        }
        column.iter_mut().for_each(|value| *value /= length);
        shares[at][at] = length;
        for (later, other) in rest.iter_mut().enumerate() {
            shares[at][at + 1 + later] = take_out(column, other);
        }
        factors[at] = take_out(column, &mut target);
    }
    for at in (0..K).rev() {
        let known: f64 = (at + 1..K).map(|later| shares[at][later] * factors[later]).sum();
        factors[at] = (factors[at] - known) / shares[at][at];
    }
    Ok(std::array::from_fn(|at| factors[at] / lengths[at]))
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Takes a unit column's share out of another; returns the share.
fn take_out(unit: &[f64], other: &mut [f64]) -> f64 {
    let share = dot(unit, other);
    other.iter_mut().zip(unit).for_each(|(value, unit)| *value -= share * unit);
    share
}

fn r_squared(cost: SendCost, samples: &[Sample]) -> f64 {
    let mean = samples.iter().map(|sample| sample.time).sum::<f64>() / samples.len() as f64;
    let error = |sample: &Sample| sample.time - cost.time(sample.receivers, sample.bytes);
    let errors: f64 = samples.iter().map(|sample| error(sample).powi(2)).sum();
    let distances: f64 = samples.iter().map(|sample| (sample.time - mean).powi(2)).sum();
    let exact = errors <= samples.len() as f64 * (mean * 1e-12).powi(2);
    match (exact, distances > 0.0) {
        (true, _) => 1.0,
        (false, true) => 1.0 - errors / distances,
        (false, false) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples(cost: SendCost, noise: impl Fn(usize) -> f64) -> Vec<Sample> {
        let sizes = [1.0, 10.0, 100.0, 1000.0]
            .into_iter()
            .flat_map(|receivers| [64.0, 300.0, 1200.0].map(|bytes| (receivers, bytes)));
        let sample = |(index, (receivers, bytes))| {
            let time = cost.time(receivers, bytes) * (1.0 + noise(index));
            Sample { receivers, bytes, time }
        };
        sizes.enumerate().map(sample).collect()
    }

    #[test]
    fn noise_moves_the_costs_little() {
        let cost = SendCost { per_message: 300.0, per_receiver: 900.0, per_byte: 0.3 };
        let Fit { full, paper } =
            fit(&samples(cost, |index| [0.01, -0.01, 0.0][index * index % 3])).unwrap();
        assert!((full.cost.per_receiver / 900.0 - 1.0).abs() < 0.03, "{full:?}");
        assert!((full.cost.per_message / 300.0 - 1.0).abs() < 0.2, "{full:?}");
        assert!(full.r2 > 0.999 && full.r2 < 1.0 && paper.r2 > 0.9, "{full:?} {paper:?}");
        assert_eq!(paper.cost.per_message, 0.0);
        assert!(paper.cost.per_receiver > full.cost.per_receiver);
    }

    #[test]
    fn samples_that_tell_too_little_are_refused() {
        let all = samples(SendCost::paper(1.0, 0.1), |_| 0.0);
        assert_eq!(fit(&all[..2]), Err(FitError::TooFew(2)));
        let some = |keep: fn(&Sample) -> bool| -> Vec<Sample> {
            all.iter().copied().filter(keep).collect()
        };
        assert_eq!(fit(&some(|sample| sample.bytes == 64.0)), Err(FitError::Collinear));
        assert_eq!(fit(&some(|sample| sample.receivers == 10.0)), Err(FitError::Collinear));
        let empty: Vec<Sample> =
            all.iter().map(|sample| Sample { bytes: 0.0, ..*sample }).collect();
        assert_eq!(fit(&empty), Err(FitError::Collinear));
        let mut bad = all.clone();
        bad[4].time = 0.0;
        let error = fit(&bad).unwrap_err().to_string();
        assert!(error.starts_with("sample 5 says 10 receivers, 300 bytes, time 0;"), "{error}");
    }

    #[test]
    fn equal_times_have_no_spread_to_tell() {
        let constant = SendCost { per_message: 5.0, ..SendCost::default() };
        let Fit { full, paper } = fit(&samples(constant, |_| 0.0)).unwrap();
        assert!((full.cost.per_message - 5.0).abs() < 1e-9);
        assert_eq!((full.r2, paper.r2), (1.0, 0.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn costs_come_back_from_times_without_noise(
            a in 0.0..1e5, x in 1.0..1e4, y in 0.0..10.0, unit in -9..3,
        ) {
            let unit = 10.0_f64.powi(unit);
            let cost =
                SendCost { per_message: a * unit, per_receiver: x * unit, per_byte: y * unit };
            let Fit { full, .. } = fit(&samples(cost, |_| 0.0)).unwrap();
            prop_assert!((full.r2 - 1.0).abs() < 1e-12);
            let near = |found: f64, is: f64, scale: f64| (found - is).abs() < 1e-8 * scale;
            let scale = cost.time(1.0, 64.0);
            prop_assert!(near(full.cost.per_message, cost.per_message, scale), "{full:?} {cost:?}");
            prop_assert!(near(full.cost.per_receiver, cost.per_receiver, scale), "{full:?}");
            prop_assert!(near(full.cost.per_byte, cost.per_byte, scale / 64.0), "{full:?}");
            let exact = SendCost { per_message: 0.0, ..cost };
            let Fit { paper, .. } = fit(&samples(exact, |_| 0.0)).unwrap();
            prop_assert!((paper.r2 - 1.0).abs() < 1e-12);
            prop_assert!(near(paper.cost.per_receiver, cost.per_receiver, scale), "{paper:?}");
            prop_assert!(near(paper.cost.per_byte, cost.per_byte, scale / 64.0), "{paper:?}");
        }
    }
}
